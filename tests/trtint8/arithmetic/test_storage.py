"""Which tensors each arithmetic stores as integers."""

import json

import numpy as np
import pytest

from calibrators.errors import TableError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.arithmetic.simulated import table_of, values
from tests.trtint8.onnx_models import Shaped
from trtint8 import calibrate
from trtint8.arithmetic.storage import stored
from trtint8.models.model import load_model, prepare
from trtint8.quantization.config import ARITHMETICS, arithmetic_named

QNNPACK = arithmetic_named("qnnpack")


def residual_swish():
    """A convolution with a Relu, one with a swish, their sum, a pooling, and a product."""
    g = Shaped()

    def conv(source, name, channels):
        weights = g.weights(8, channels, 3, 3)
        return g.Conv(name, source, weights, kernel_shape=[3, 3], pads=[1] * 4)

    a = g.Relu("a", conv("x", "first", 3))
    b = conv(a, "second", 8)
    gated = g.Mul("gated", b, g.Sigmoid("gate", b))
    c = conv(gated, "third", 8)
    total = g.Relu("total", g.Add("sum", c, a))
    pooled = g.MaxPool("pooled", total, kernel_shape=[4, 4])
    flat = g.Flatten("flat", pooled)
    return g.model({"x": ["N", 3, 4, 4]}, g.Gemm("last", flat, g.weights(8, 5)))


def found(model, name, without=()):
    prepared = prepare(load_model(model))
    names = {value.name for node in prepared.graph_model.graph for value in node.outputs} | {"x"}
    ranges = {tensor: 2.0 for tensor in names if tensor not in without}
    return stored(prepared, table_of(ranges), arithmetic_named(name))


def read(model, name):
    """What each node reads as integers, by the names of nodes and the numbers of inputs."""
    return set(found(model, name).activations)


def test_explicit_rounds_what_pairs_round():
    layers = {("first", 0), ("second", 0), ("third", 0), ("last", 0)}
    assert read(residual_swish(), "explicit") == layers | {("sum", 1)}


def test_implicit_stores_the_outputs_of_groups():
    """The swish is a kernel of its own; the sum is a part of the third convolution."""
    everywhere = {("first", 0), ("second", 0), ("third", 0), ("last", 0), ("sum", 1)}
    swish = {("gate", 0), ("gated", 0)}
    assert read(residual_swish(), "implicit") == everywhere | swish | {("pooled", 0), ("flat", 0)}


def test_the_dla_leaves_products_of_matrices_in_float():
    stored_there = found(residual_swish(), "dla")
    assert stored_there.products == {"first", "second", "third"}
    assert stored_there.in_float == {"Gemm": 1}


def test_ncnn_rounds_what_layers_read():
    stored_there = found(residual_swish(), "ncnn")
    assert set(stored_there.activations) == {("first", 0), ("second", 0), ("third", 0), ("last", 0)}
    assert stored_there.in_float == {
        "Sigmoid": 1,
        "Mul": 1,
        "Add": 1,
        "Relu": 1,
        "MaxPool": 1,
    }


def test_qnnpack_stores_everything_but_what_a_relu_reads():
    stored_there = found(residual_swish(), "qnnpack")
    assert set(stored_there.outputs) == {
        "x",
        "a_out",
        "second_out",
        "gate_out",
        "gated_out",
        "third_out",
        "total_out",
        "pooled_out",
        "flat_out",
        "last_out",
    }
    assert stored_there.in_float == {}


def test_what_cannot_be_negative_has_all_integers_above_zero():
    outputs = found(residual_swish(), "qnnpack").outputs
    offsets = {name: config.offset for name, config in outputs.items()}
    positive = {"a_out", "gate_out", "total_out", "pooled_out", "flat_out"}
    assert {name for name, offset in offsets.items() if offset == 0} == positive
    assert {offsets[name] for name in offsets.keys() - positive} == {127}


def observed_table(model, images, **options):
    return calibrate(model, images, tensors="all", method="minmax", **options)


def test_the_signed_ends_are_those_of_the_data():
    """Values from -1 to 3, those of a Relu, and what is never above zero."""
    g = Shaped()
    y = g.Conv("conv", "x", g.constant(np.ones((1, 1, 1, 1), np.float32)), kernel_shape=[1, 1])
    z = g.Neg("negated", g.Relu("relu", y))
    last = g.Conv("last", z, g.constant(np.ones((1, 1, 1, 1), np.float32)), kernel_shape=[1, 1])
    total = g.Add("total", last, g.Sigmoid("gate", y))
    model = g.model({"x": ["N", 1, 1, 1]}, total)
    images = np.float32([-1, 3, 2.5]).reshape(3, 1, 1, 1)
    outputs = stored(prepare(load_model(model)), observed_table(model, images), QNNPACK).outputs
    steps = {name: (float(config.scale), config.offset) for name, config in outputs.items()}
    step, one_side = np.float32(4 / 255), np.float32(3 / 255)
    assert steps["conv_out"] == steps["x"] == (step, 64)
    assert steps["relu_out"] == (one_side, 0)
    assert steps["negated_out"] == steps["last_out"] == (one_side, 255)


def test_a_range_by_hand_moves_the_larger_side():
    g = Shaped()
    model = g.model({"x": ["N", 1, 1, 1]}, g.Conv("c", "x", g.weights(1, 1, 1, 1), kernel_shape=[1, 1]))
    table = observed_table(model, np.float32([-1, 3]).reshape(2, 1, 1, 1))
    prepared = prepare(load_model(model))
    for amax, (low, high) in {4.0: (-1, 4), 2.0: (-1, 2), 0.5: (-0.5, 0.5)}.items():
        found = stored(prepared, table.override({"x": amax}), QNNPACK).outputs["x"]
        assert found == QNNPACK.activations.with_range(low, high)


@pytest.mark.parametrize("kind", ["cache", "dict", "older"])
def test_a_table_of_magnitudes_alone_is_refused(tmp_path, kind):
    model = residual_swish()
    table = observed_table(model, values((4, 3, 4, 4)))
    if kind == "cache":
        table = CalibrationTable.load(table.save(tmp_path / "t.cache"))
    elif kind == "dict":
        table = CalibrationTable(table.amax)
    else:
        document = json.loads(table.save(tmp_path / "t.json").read_text())
        for one in document["histograms"].values():
            assert one.pop("ends")
        (tmp_path / "t.json").write_text(json.dumps(document))
        table = CalibrationTable.load(tmp_path / "t.json")
    with pytest.raises(TableError, match="'x'") as caught:
        stored(prepare(load_model(model)), table, QNNPACK)
    assert "'a_out'" not in str(caught.value) and "calibrate" in str(caught.value)
    stored(prepare(load_model(model)), table, arithmetic_named("implicit"))
    stored(prepare(load_model(model)), table.override(table.amax), QNNPACK)


def test_signs_that_the_graph_tells_need_no_table():
    g = Shaped()
    relu = g.Relu("relu", "x")
    product = g.Conv("conv", relu, g.weights(1, 1, 1, 1), kernel_shape=[1, 1])
    model = g.model({"x": ["N", 1, 1, 1]}, g.Sigmoid("y", product))
    names = {"relu_out": 2.0, "y_out": 1.0}
    by_hand = {"x": 2.0, "conv_out": 2.0}
    table = CalibrationTable({**names, **by_hand}, overridden=frozenset(by_hand))
    outputs = stored(prepare(load_model(model)), table, QNNPACK).outputs
    assert [outputs[name].offset for name in ("relu_out", "y_out", "x", "conv_out")] == [0, 0, 127, 127]


def test_what_moves_values_keeps_the_scale():
    model = residual_swish()
    prepared = prepare(load_model(model))
    names = {value.name for node in prepared.graph_model.graph for value in node.outputs} | {"x"}
    ranges = {name: 3.0 if name in ("pooled_out", "flat_out") else 2.0 for name in names}
    table = table_of(ranges)
    for name in ("implicit", "qnnpack"):
        activations = stored(prepared, table, arithmetic_named(name)).activations
        assert activations["last", 0].scale == activations["pooled", 0].scale


@pytest.mark.parametrize("name", ["implicit", "dla"])
def test_what_has_no_range_stays_in_float(name):
    stored_there = found(residual_swish(), name, without=("second_out",))
    assert stored_there.without_range == ("second_out",)
    assert ("gate", 0) not in stored_there.activations


def test_qnnpack_needs_every_range():
    with pytest.raises(TableError, match="'last_out'"):
        found(residual_swish(), "qnnpack", without=("last_out",))


@pytest.mark.parametrize("name", ARITHMETICS)
def test_weights_have_scales_as_the_backend_takes_them(name):
    axes = set(found(residual_swish(), name).weights.values())
    assert axes == ({None} if name == "qnnpack" else {0} if name == "dla" else {0, 1})


@pytest.mark.parametrize("name", ["ncnn", "qnnpack"])
def test_layers_that_phones_have_no_integers_for(name):
    """One and three spatial dimensions, transposed convolutions and products of activations are in float."""
    g = Shaped()
    x = g.Conv("one", "x", g.constant(values((4, 3, 3))), kernel_shape=[3], pads=[1, 1])
    product = g.MatMul("product", x, g.Transpose("turned", x, perm=[0, 2, 1]))
    y = g.MatMul("constant", product, g.constant(np.ones((4, 4), np.float32)))
    stored_there = found(g.model({"x": ["N", 3, 8]}, y), name)
    assert stored_there.products == {"constant"}
    assert stored_there.in_float == {"Conv": 1, "MatMul": 1}


@pytest.mark.parametrize("name", ["implicit", "qnnpack"])
@pytest.mark.parametrize("function", ["Relu", None])
def test_a_bias_behind_a_matmul_is_a_part_of_it(name, function):
    g = Shaped()
    y = g.Add("bias", g.weights(32), g.MatMul("first", "x", g.weights(16, 32)))
    y = g.op(function, [y], "function") if function else y
    y = g.MatMul("second", y, g.weights(32, 32))
    stored_there = found(g.model({"x": ["N", 16]}, y), name)
    assert set(stored_there.activations) == {("first", 0), ("second", 0)}
    assert stored_there.in_float == {}
