"""The calibration table that stands in a Q/DQ model."""

import numpy as np
import pytest

from calibrators.errors import ModelError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.interop.pairs_by_hand import Pairs, model_of
from tests.trtint8.onnx_models import Shaped
from trtint8 import calibrate, quantize
from trtint8.data import DEMO_MODEL
from trtint8.interop.extract import extract_table
from trtint8.models.model import load_model


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    images = np.random.default_rng(0).random((32, 1, 8, 8), np.float32)
    path = tmp_path_factory.mktemp("cache") / "model.cache"
    return calibrate(DEMO_MODEL, images, progress=False).save(path)


def test_every_scale_makes_the_round_trip(cache):
    table = CalibrationTable.load(cache)
    back = extract_table(load_model(quantize(DEMO_MODEL, table)))
    assert set(back.amax) <= set(table.amax)
    assert len(back.amax) == 9
    for name in back.amax:
        assert back.scale(name) == table.scale(name)


def test_a_model_with_two_ranges_for_one_tensor():
    g = Shaped()
    outs = []
    for index, scale in enumerate((0.1, 0.2)):
        pair = [g.constant(np.float32(scale)), g.constant(np.int8(0))]
        quantized = g.op("QuantizeLinear", ["x", *pair], f"q{index}")
        outs.append(g.op("DequantizeLinear", [quantized, *pair], f"d{index}"))
    model = g.model({"x": ["N", 4]}, g.op("Add", outs, "add"))
    with pytest.raises(
        ModelError, match=r"tensor 'x' of 'model' is quantized with two ranges, up to 12\.7 and"
    ):
        extract_table(load_model(model))


def test_scales_of_activations_in_the_graphs_order():
    g = Pairs()
    first = g.conv(g.quantize("x", 0.5), name="first")
    model = model_of(g, g.conv(g.quantize(first, 0.25, name="mid"), name="second"))
    table = extract_table(model)
    assert list(table.amax.items()) == [("x", 63.5), (first, 31.75)]
    assert table.scale("x") == np.float32(0.5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": [0.1, 0.2, 0.3, 0.4], "axis": 1}, "tensor 'x' has 4 scales"),
        ({"scale": -0.5}, "one positive scale"),
        ({"scale": np.inf}, "one positive scale"),
    ],
)
def test_a_scale_that_a_table_cannot_hold(options, words):
    g = Pairs()
    with pytest.raises(ModelError, match=words):
        extract_table(model_of(g, g.conv(g.quantize("x", **options))))


@pytest.mark.parametrize(
    ("zero", "wanted"), [(np.uint8(0), 127.5), (np.uint8(128), 63.5), (np.int8(28), 78.0)]
)
def test_the_range_of_an_activation_with_a_zero_point(zero, wanted):
    g = Pairs()
    assert extract_table(model_of(g, g.conv(g.quantize("x", 0.5, zero)))).amax == {"x": wanted}


def test_a_scale_that_nodes_make_of_constants():
    g = Pairs()
    scale = g.op("Div", [g.constant(np.float32(63.5)), g.constant(np.float32(127))], "div")
    zero = g.constant(np.int8(0))
    quantized = g.op("QuantizeLinear", ["x", scale, zero], "q")
    out = g.conv(g.op("DequantizeLinear", [quantized, scale, zero], "dq"))
    assert extract_table(model_of(g, out)).amax == {"x": 63.5}


def test_a_scale_that_is_computed_at_run_time():
    g = Pairs()
    scale = g.op("ReduceMax", ["x"], "max", keepdims=0)
    quantized = g.op("QuantizeLinear", ["x", scale, g.constant(np.int8(0))], "q")
    out = g.op("DequantizeLinear", [quantized, scale, g.constant(np.int8(0))], "dq")
    with pytest.raises(ModelError, match="the scale of tensor 'x' is computed at run time; a table needs a"):
        extract_table(model_of(g, out))
