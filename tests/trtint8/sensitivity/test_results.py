import dataclasses
import json
import math

import numpy as np
import pytest

import trtint8
from calibrators.errors import OutputError, TableError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.onnx_models import Shaped
from tests.trtint8.report.samples import SENSITIVITY
from tests.trtint8.sensitivity.measuring import measured
from trtint8.sensitivity.results import Sensitivity


@pytest.fixture
def path(tmp_path):
    return SENSITIVITY.save(tmp_path / "s.json")


def test_round_trip(path):
    assert Sensitivity.load(path) == SENSITIVITY
    document = json.loads(path.read_bytes())
    assert next(iter(document.items())) == ("format", "trtint8-sensitivity")
    assert document["layers"][2]["only"]["sqnr_db"] == "inf"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d["layers"][0].pop("only"), "Object missing required field `only` - at `$.layers[0]`"),
        (
            lambda d: d["layers"][1]["only"].update(sqnr_db="loud"),
            "Expected `float`, got `str` - at `$.layers[1].only.sqnr_db`",
        ),
        (
            lambda d: d["quantized"]["interval_db"].pop(),
            "Expected `array` of length 2, got 1 - at `$.quantized.interval_db`",
        ),
        (
            lambda d: d["quantized"]["drop"].update(p_value=1.5),
            "Expected `float` <= 1.0 - at `$.quantized.drop.p_value`",
        ),
        (lambda d: d["reference_top1"].update(count=-1), "Expected `int` >= 0 - at `$.reference_top1.count`"),
        (lambda d: d.update(samples=0), "Expected `int` >= 1 - at `$.samples`"),
        (lambda d: d.update(surplus=0), "Object contains unknown field `surplus`"),
        (lambda d: d.update(format="other"), 'it has no "format": "trtint8-sensitivity"'),
    ],
)
def test_wrong_fields_are_named(path, change, problem):
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(TableError) as caught:
        Sensitivity.load(path)
    assert str(caught.value) == (
        f"'{path}' is no result of 'trtint8 sensitivity' ({problem}); measure again, or give its output"
    )


def test_a_missing_file(tmp_path):
    with pytest.raises(TableError) as caught:
        Sensitivity.load(tmp_path / "s.json")
    assert str(caught.value) == f"cannot read '{tmp_path / 's.json'}': No such file or directory"


@pytest.mark.slow
def test_a_result_survives_its_file(table, tmp_path):
    found = measured(table, limit=32)
    assert Sensitivity.load(found.save(tmp_path / "s.json")) == found
    exact = CalibrationTable({"x": 127.0})
    g = Shaped(quantized=False)
    weights = g.constant(np.eye(2, dtype=np.float32) * 127)
    model = g.model({"x": ["N", 2]}, g.op("MatMul", ["x", weights], "layer"))
    found = trtint8.measure_sensitivity(model, exact, np.ones((4, 2), np.float32), progress=False)
    assert found.quantized.sqnr_db == found.layers[0].weights_db == math.inf
    assert found.layers[0].noise_share == 0.0
    assert Sensitivity.load(found.save(tmp_path / "s.json")) == found


@pytest.mark.parametrize("content", [b"{}", b"[]", b"\xff", b'{"format": "trtint8-sensitivity"}'])
def test_a_file_that_is_no_result(tmp_path, content):
    (tmp_path / "s.json").write_bytes(content)
    with pytest.raises(TableError, match="is no result of 'trtint8 sensitivity'"):
        Sensitivity.load(tmp_path / "s.json")


def test_the_text_is_one_line():
    assert repr(SENSITIVITY).startswith(
        "<Sensitivity: 3 layers, 128 samples, of which 96 show single layers, all layers in INT8 26.0 dB, "
        "worst '"
    )
    assert "\n" not in repr(SENSITIVITY)


def test_samples_that_all_show_single_layers_are_not_told_apart():
    assert dataclasses.replace(SENSITIVITY, shown=128).samples_text == "128 samples"
    assert dataclasses.replace(SENSITIVITY, samples=5000, shown=1350).samples_text == (
        "5,000 samples, of which 1,350 show single layers"
    )


def test_a_notebook_shows_the_worst_layer_first():
    page = SENSITIVITY._repr_html_()
    first, second, third = (page.index(f">{text} %<") for text in ("75.0", "20.0", "5.0"))
    assert first < second < third
    assert '<rect width="26.7"' in page  # 0.2 of 0.75
    assert "2.0 % of &#x27;images&#x27; lies beyond its range" in page and ">exact</td>" in page
    assert "<script" not in page and "</script" not in page


def test_the_picture_has_the_layers_that_were_measured():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'trtint8[notebook]')")
    picture = SENSITIVITY.plot()
    assert picture.title == "SQNR from layer to layer, 3 layers" and "var(--accent)" in picture.svg


def test_the_data_frame_has_the_layers_in_their_order():
    pytest.importorskip("pandas", reason="pandas is not installed (pip install 'trtint8[notebook]')")
    frame = SENSITIVITY.to_pandas()
    assert frame["alone_db"].tolist() == [40.0, 30.0, math.inf]
    assert frame["noise_share"].tolist() == [0.2, 0.75, 0.05]
    assert frame["weights_db"].isna().tolist() == [False, False, True]


def test_a_file_of_another_kind_is_not_replaced(tmp_path):
    data = tmp_path / "data.npz"
    data.write_bytes(b"kept")
    with pytest.raises(OutputError, match=r"data\.npz' does not end in \.json, as that of a JSON file does;"):
        SENSITIVITY.save(data)
    assert data.read_bytes() == b"kept"
