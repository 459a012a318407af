"""The ranges of a calibration cache, put where Q/DQ pairs need them."""

import numpy as np
import pytest

from calibrators.errors import ModelError, TableError
from calibrators.tables.formats import ncnn
from calibrators.tables.table import CalibrationTable
from tests.trtint8.onnx_models import normal, parsed
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL
from trtint8.interop.migrate import migrate, plan_migration, read_ncnn_table, render_ncnn_table
from trtint8.interop.unquantize import extract_table
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.quantization.quantize import QuantizeOptions

EVERYTHING = QuantizeOptions()
LEFT = "[first] first_out = Conv (x, w) relu_out = Relu (first_out)"
IMAGES = "float[N, 4, 8, 8] x"


@pytest.fixture(scope="module")
def prepared():
    """A convolution, a Relu and a MaxPool, which has the range of the Relu, and a convolution."""
    body = f"{LEFT} pool_out = MaxPool <kernel_shape = [2, 2]> (relu_out) [second] y = Conv (pool_out, v)"
    weights = {"w": normal(4, 4, 1, 1) / 10, "v": normal(4, 4, 1, 1, seed=1) / 10}
    return prepare(load_model(parsed(IMAGES, "float[] y", body, **weights)))


def test_every_range_is_used(prepared, tmp_path):
    migrated = migrate(prepared, CalibrationTable({"x": 1.0, "relu_out": 2.0, "pool_out": 2.0}), EVERYTHING)
    assert migrated.placement.quantized_nodes == ("first", "second")
    saved = load_model(migrated.save(tmp_path / "q.onnx"))
    assert saved.is_quantized
    assert sorted(set(extract_table(saved).amax.values())) == pytest.approx([1.0, 2.0])


def test_a_gap_is_filled_only_where_asked(prepared):
    gap = CalibrationTable({"x": 1.0, "relu_out": 2.0})
    with pytest.raises(
        TableError, match="the cache has no range for 1 tensor that needs one: 'pool_out'; all of"
    ):
        migrate(prepared, gap, EVERYTHING)
    migrated = migrate(prepared, gap, EVERYTHING, fill=True)
    assert migrated.plan.fills == {"pool_out": 2.0}
    assert repr(migrated) == "<Migrated: 2 nodes in INT8, 1 tensor without a range in the cache>"
    assert migrated.placement.quantized_nodes == ("first", "second")


def test_a_gap_that_nothing_fills(prepared):
    with pytest.raises(TableError, match="'x'; calibrate the model, or add ranges with 'trtint8 table set'"):
        migrate(prepared, CalibrationTable({"relu_out": 2.0, "pool_out": 2.0}), EVERYTHING, fill=True)


def test_a_tensor_that_had_another_name(prepared):
    with pytest.raises(TableError) as caught:
        migrate(prepared, CalibrationTable({"before": 1.0, "relu_out": 2.0, "pool_out": 2.0}), EVERYTHING)
    assert str(caught.value) == (
        "the cache has no range for 1 tensor that needs one: 'x'; it has one for 'before', which the model "
        "lacks (was a tensor renamed?); calibrate the model, or add ranges with 'trtint8 table set'"
    )


def test_layers_in_float_need_no_range(prepared):
    migrated = migrate(prepared, CalibrationTable({"x": 1.0}), QuantizeOptions(["second"]))
    assert migrated.placement.quantized_nodes == ("first",)
    with pytest.raises(ModelError, match="'third' matches no node"):
        migrate(prepared, CalibrationTable({"x": 1.0}), QuantizeOptions(["third"]))


@pytest.fixture(scope="module")
def placement():
    return place(prepare(load_model(DEMO_MODEL)).graph_model)


def test_a_whole_cache_needs_nothing(cache, placement):
    plan = plan_migration(placement, CalibrationTable.load(cache).amax)
    assert (plan.missing, plan.unused, plan.proposals, plan.unsolved) == ((), (), (), ())


def test_tensors_that_the_graph_lacks_are_listed(cache, placement):
    amax = {**CalibrationTable.load(cache).amax, "(Unnamed Layer* 3) [Shuffle]_output": 1.0}
    assert plan_migration(placement, amax).unused == ("(Unnamed Layer* 3) [Shuffle]_output",)


def test_a_missing_relu_follows_from_its_convolution(cache, placement):
    amax = dict(CalibrationTable.load(cache).amax)
    del amax["/block1/relu1/Relu_output_0"]
    plan = plan_migration(placement, amax)
    (proposal,) = plan.proposals
    assert plan.missing == ("/block1/relu1/Relu_output_0",)
    assert proposal.source == "/block1/bn1/BatchNormalization_output_0"
    assert proposal.amax == amax[proposal.source]
    assert proposal.reason == "fused with it"


def test_what_follows_from_nothing_is_unsolved(cache, placement):
    amax = {name: value for name, value in CalibrationTable.load(cache).amax.items() if name != "images"}
    plan = plan_migration(placement, amax)
    assert plan.unsolved == plan.missing == ("images",)


def test_scales_that_a_concatenation_makes_equal_are_told():
    body = f"{LEFT} joined = Concat <axis = 1> (relu_out, x) [second] y = Conv (joined, v)"
    weights = {"w": normal(4, 4, 1, 1) / 10, "v": normal(4, 8, 1, 1, seed=1) / 10}
    model = parsed(IMAGES, "float[] y", body, **weights)
    found = place(prepare(load_model(model)).graph_model)
    plan = plan_migration(found, {"x": 1.0, "relu_out": 4.0, "joined": 4.0})
    assert plan.widened == {"x": 4.0}
    rounded = plan_migration(found, {"x": 4.0 * (1 - 2**-23), "relu_out": 4.0, "joined": 4.0})
    assert rounded.widened == {}


PARAM = """7767517
3 3
Input input 0 1 x
Convolution first 1 1 x first_out 0=4
Convolution second 1 1 first_out second_out 0=4
"""


@pytest.fixture
def model(tmp_path):
    first = np.zeros((2, 4, 3, 3), np.float32)
    first[0, 0, 0, 0], first[1, 3, 2, 2] = -0.5, 2.0
    body = "[first] first_out = Conv <pads = [1, 1, 1, 1]> (x, w) [second] y = Conv (first_out, v)"
    built = parsed(IMAGES, "float[] y", body, w=first, v=np.full((3, 2, 1, 1), 0.25, np.float32))
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
