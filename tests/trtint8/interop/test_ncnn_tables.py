import numpy as np
import pytest

from calibrators.errors import TableError
from calibrators.tables.formats import ncnn
from calibrators.tables.table import CalibrationTable
from tests.trtint8.onnx_models import Shaped
from trtint8.cli.main import main
from trtint8.interop.ncnn_tables import read_ncnn_table, render_ncnn_table

PARAM = """7767517
3 3
Input input 0 1 x
Convolution first 1 1 x first_out 0=4
Convolution second 1 1 first_out second_out 0=4
"""


@pytest.fixture
def model(tmp_path):
    g = Shaped()
    first = np.zeros((2, 4, 3, 3), np.float32)
    first[0, 0, 0, 0], first[1, 3, 2, 2] = -0.5, 2.0
    second = np.full((3, 2, 1, 1), 0.25, np.float32)
    out = g.op("Conv", ["x", g.constant(first)], "first", pads=[1] * 4)
    built = g.model({"x": ["N", 4, 8, 8]}, g.op("Conv", [out, g.constant(second)], "second"))
    path = tmp_path / "model.onnx"
    path.write_bytes(built.SerializeToString())
    return path


TABLE = CalibrationTable({"x": 2.54, "first_out": 12.7})


def test_writing(model):
    assert render_ncnn_table(TABLE, model).decode() == (
        "first_param_0 254 63.5\nsecond_param_0 508 508 508\nfirst 50\nsecond 10\n"
    )


def test_a_layer_without_a_range(model):
    with pytest.raises(TableError, match="the table has no range for 'first_out', which a layer reads"):
        render_ncnn_table(CalibrationTable({"x": 1.0}), model)


def test_reading_by_the_onnx_model(model, tmp_path):
    path = tmp_path / "net.table"
    path.write_bytes(render_ncnn_table(TABLE, model))
    table, winograd = read_ncnn_table(path, model)
    assert table.amax == pytest.approx(dict(TABLE.amax))
    assert winograd == ()


def test_winograd_weights_are_told(model, tmp_path):
    path = tmp_path / "net.table"
    # 31 / amax where ncnn's older tools expected Winograd, 127 / amax elsewhere.
    path.write_text("first_param_0 62 15.5\nsecond_param_0 508 508 508\nfirst 50\nsecond 10\n")
    assert read_ncnn_table(path, model)[1] == ("first",)


def test_there_and_back_on_the_command_line(model, tmp_path, capsys):
    ours, theirs, back = (tmp_path / name for name in ("t.json", "net.table", "back.json"))
    param = tmp_path / "net.param"
    param.write_text(PARAM)
    TABLE.save(ours)
    assert main(["table", "convert", str(ours), str(theirs), "--network", str(model)]) == 0
    assert list(ncnn.parse(theirs.read_bytes(), "it").activations) == ["first", "second"]
    assert main(["table", "convert", str(theirs), str(back), "--network", str(param)]) == 0
    assert CalibrationTable.load(back).amax == pytest.approx(dict(TABLE.amax))
    assert main(["table", "convert", str(theirs), str(back), "--network", str(tmp_path / "no.param")]) == 2
    assert "cannot read" in capsys.readouterr().err
