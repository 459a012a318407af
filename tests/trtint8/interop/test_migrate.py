"""The ranges of a calibration cache, put where Q/DQ pairs need them."""

import re

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
    assert repr(migrated) == "<Migrated: 2 of 2 layers in INT8, 1 tensor without a range in the cache>"
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


def test_a_cache_that_lacks_most_ranges_is_suspected_to_be_of_another_model(prepared):
    def refusal(amax):
        with pytest.raises(TableError) as caught:
            migrate(prepared, CalibrationTable(amax), EVERYTHING, fill=True)
        return str(caught.value)

    assert "of another model" in refusal({"other": 1.0})
    assert "of another model" not in refusal({"relu_out": 2.0, "pool_out": 2.0})


def test_layers_in_float_need_no_range(prepared):
    migrated = migrate(prepared, CalibrationTable({"x": 1.0}), QuantizeOptions(["second"]))
    assert migrated.placement.quantized_nodes == ("first",)
    with pytest.raises(ModelError, match="'third' matches no node"):
        migrate(prepared, CalibrationTable({"x": 1.0}), QuantizeOptions(["third"]))


@pytest.fixture(scope="module")
def planned():
    model = prepare(load_model(DEMO_MODEL)).graph_model
    return lambda amax: plan_migration(model, place(model), amax)


def test_a_whole_cache_needs_nothing(cache, planned):
    plan = planned(CalibrationTable.load(cache).amax)
    assert (plan.missing, plan.unused, plan.proposals, plan.unsolved) == ((), (), (), ())


def test_tensors_that_the_graph_lacks_are_listed(cache, planned):
    amax = {**CalibrationTable.load(cache).amax, "(Unnamed Layer* 3) [Shuffle]_output": 1.0}
    assert planned(amax).unused == ("(Unnamed Layer* 3) [Shuffle]_output",)


def test_a_missing_relu_follows_from_its_convolution(cache, planned):
    amax = dict(CalibrationTable.load(cache).amax)
    del amax["/block1/relu1/Relu_output_0"]
    plan = planned(amax)
    (proposal,) = plan.proposals
    assert plan.missing == ("/block1/relu1/Relu_output_0",)
    assert proposal.source == "/block1/bn1/BatchNormalization_output_0"
    assert proposal.amax == amax[proposal.source]
    assert proposal.reason == "no larger than that"


def test_what_follows_from_nothing_is_unsolved(cache, planned):
    amax = {name: value for name, value in CalibrationTable.load(cache).amax.items() if name != "images"}
    plan = planned(amax)
    assert plan.unsolved == plan.missing == ("images",)


def test_scales_that_a_concatenation_makes_equal_are_told():
    body = f"{LEFT} joined = Concat <axis = 1> (relu_out, x) [second] y = Conv (joined, v)"
    weights = {"w": normal(4, 4, 1, 1) / 10, "v": normal(4, 8, 1, 1, seed=1) / 10}
    model = parsed(IMAGES, "float[] y", body, **weights)
    model = prepare(load_model(model)).graph_model
    plan = plan_migration(model, place(model), {"x": 1.0, "relu_out": 4.0, "joined": 4.0})
    assert plan.widened == {"x": 4.0}
    rounded = plan_migration(model, place(model), {"x": 4.0 * (1 - 2**-23), "relu_out": 4.0, "joined": 4.0})
    assert rounded.widened == {}


SIDE = f"{LEFT} [side] side_out = Conv (relu_out, w)"
TERMS = {"x": 1.0, "first_out": 4.0, "relu_out": 3.0, "side_out": 2.0}


@pytest.mark.parametrize(
    ("join", "known", "fills"),
    [
        # What is added, multiplied or compared says nothing of the result, however it is fused.
        ("sum_out = Add (side_out, relu_out) joined = Relu (sum_out)", {}, {}),
        ("sum_out = Add (side_out, relu_out) joined = Relu (sum_out)", {"sum_out": 5.0}, {"joined": 5.0}),
        ("s = Add (side_out, relu_out) t = Add (s, first_out) joined = Relu (t)", {"s": 5.0}, {}),
        ("sum_out = Add (side_out, bias) joined = Relu (sum_out)", {}, {}),
        ("sum_out = Sum (side_out, relu_out) joined = Relu (sum_out)", {}, {}),
        ("sum_out = Sub (side_out, relu_out) joined = Relu (sum_out)", {}, {}),
        ("product = Mul (side_out, relu_out) joined = Relu (product)", {}, {}),
        ("joined = Max (side_out, relu_out)", {}, {}),
        ("less = Less (side_out, relu_out) joined = Where (less, side_out, relu_out)", {}, {}),
        ("joined = AveragePool <kernel_shape = [2, 2]> (side_out)", {}, {}),
        # An activation function gives out as much as at the ends of its range.
        ("joined = Clip (side_out, zero, one)", {}, {"joined": 1.0}),
        ("joined = Clip (side_out, zero, nine)", {}, {"joined": 2.0}),
        ("joined = Sigmoid (side_out)", {}, {"joined": 1 / (1 + np.exp(-2.0))}),
        (
            "bent = LeakyRelu <alpha = 2.0> (side_out) joined = MaxPool <kernel_shape = [2, 2]> (bent)",
            {},
            {"joined": 4.0},
        ),
        # What is joined is as large as the largest; one of the parts says nothing of the others.
        (
            "cat = Concat <axis = 1> (side_out, relu_out) joined = Conv (cat, u)",
            {"joined": 1.0},
            {"cat": 3.0},
        ),
        (
            "a, b = Split <axis = 1> (side_out) c = Conv (a, h) d = Conv (b, h) joined = Sub (c, d)",
            {"joined": 1.0, "a": 0.5},
            {"b": 2.0},
        ),
        (
            "a, b = Split <axis = 1> (first_out) c = Conv (a, h) d = Conv (b, h) joined = Sub (c, d)",
            {"joined": 1.0, "a": 0.5, "first_out": None},
            {},
        ),
        # Values that are moved keep their range both ways.
        (
            "flat = Reshape (side_out, shape) joined = Reshape (flat, shape)",
            {"flat": 2.5, "side_out": None},
            {"joined": 2.5},
        ),
    ],
)
def test_a_range_follows_only_where_it_bounds_what_is_missing(join, known, fills):
    constants = {
        "w": normal(4, 4, 1, 1),
        "v": normal(4, 4, 1, 1),
        "u": normal(4, 8, 1, 1),
        "h": normal(4, 2, 1, 1),
        "bias": normal(1, 4, 1, 1),
        "shape": np.int64([0, 4, 8, 8]),
        "zero": np.float32(0),
        "one": np.float32(1),
        "nine": np.float32(9),
    }
    body = f"{SIDE} {join} [second] y = Conv (joined, v)"
    used = {name: array for name, array in constants.items() if name in re.findall(r"\w+", body)}
    model = prepare(load_model(parsed(IMAGES, "float[] y", body, **used))).graph_model
    amax = {name: value for name, value in {**TERMS, **known}.items() if value is not None}
    plan = plan_migration(model, place(model), amax)
    assert plan.missing
    assert plan.fills == pytest.approx(fills)


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
