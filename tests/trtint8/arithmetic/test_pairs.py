"""Models with Q/DQ pairs in an arithmetic: as the float model with a table, or refused by the node's name."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.errors import ModelError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.arithmetic.simulated import outputs_of, values
from tests.trtint8.onnx_models import Shaped, conv_relu_conv
from trtint8.arithmetic.simulation import simulate
from trtint8.models.model import load_model, prepare
from trtint8.models.session import open_graph_model
from trtint8.quantization.config import ARITHMETICS, arithmetic_named

IMAGES = values((2, 3, 8, 8))

#: Ranges whose scales are powers of two.
RANGES = {name: amax * 127 / 128 for name, amax in {"x": 4.0, "a_out": 8.0, "flat_out": 16.0}.items()}


def network(**options):
    """A convolution, a Relu and a product behind movements, whose weights lie on no grid."""
    g = Shaped()
    a = g.Relu("a", g.Conv("first", "x", g.weights(4, 3, 3, 3), g.weights(4), **options))
    flat = g.Flatten("flat", g.MaxPool("pool", a, kernel_shape=[6, 6]))
    return g.model({"x": ["N", 3, 8, 8]}, g.Gemm("last", flat, g.weights(5, 4), transB=1))


def run(model, arithmetic, images=IMAGES, table=None):
    simulation = simulate(prepare(load_model(model)), table, arithmetic_named(arithmetic))
    found, sums = outputs_of(simulation, {simulation.graph_model.graph.inputs[0].name: images})
    return next(iter(found.values())), sums


@pytest.mark.parametrize("name", ["explicit", "ncnn", "implicit"])
def test_pairs_say_what_a_table_says(name):
    """Those that the table and the pairs both have; where movements stand between, ranges are the same."""
    model = network(kernel_shape=[3, 3])
    table = CalibrationTable({**RANGES, "pool_out": RANGES["flat_out"], "a_out": RANGES["flat_out"]})
    pairs = trtint8.quantize(model, table)
    wanted, wanted_sums = run(model, name, table=table)
    got, sums = run(pairs, name)
    assert sums == wanted_sums
    assert np.array_equal(got, wanted)


@pytest.mark.parametrize("zero_points", [True, False])
def test_explicit_is_what_pairs_compute_without_a_placement_of_ours(zero_points):
    """Scales are powers of two, and the pairs stand where they are, also where none of ours would."""
    g = Shaped()
    rounded = pair(g, g.Relu("relu", pair(g, "x", 2.0**-5)), 2.0**-4)
    weights = pair(g, g.constant(in_steps((4, 3, 3, 3), 2.0**-6)), np.full(4, 2.0**-6, np.float32), axis=0)
    out = g.Conv("conv", rounded, weights, kernel_shape=[3, 3])
    model = g.model({"x": ["N", 3, 8, 8]}, g.Add("sum", out, pair(g, out, 2.0**-2)))
    if not zero_points:
        for node in model.graph.node:
            if node.op_type == "DequantizeLinear":
                del node.input[2]
    wanted = open_graph_model(load_model(model).graph_model).run({"x": IMAGES})[0]
    got, sums = run(model, "explicit")
    assert np.array_equal(got, wanted)
    assert set(sums) == {"conv"}


def test_layers_without_pairs_stay_in_float():
    model = network(kernel_shape=[3, 3])
    pairs = trtint8.quantize(model, CalibrationTable(RANGES), keep_float=["last"])
    for name in ("explicit", "implicit", "ncnn"):
        assert set(run(pairs, name)[1]) == {"first"}


def test_uint8_around_128_is_int8():
    wanted, wanted_sums = run(one_layer(), "explicit")
    got, sums = run(one_layer(dtype=np.uint8, point=128), "explicit")
    assert np.array_equal(got, wanted) and sums == wanted_sums


@pytest.mark.parametrize(("dtype", "point"), [(np.uint8, 0), (np.uint8, 100), (np.int8, -28), (np.int8, 0)])
def test_qnnpack_has_zero_points(dtype, point):
    """What it reads is rounded to the steps of the pair, and clipped to them."""
    images = np.linspace(-20, 20, 192, dtype=np.float32).reshape(1, 3, 8, 8)
    found = trtint8.validate(
        one_layer(dtype=dtype, point=point, weights_axis=None, output_scale=2.0),
        images,
        reference=one_layer(pairs=False),
        arithmetic="qnnpack",
        metrics="max_error",
        tensors=["x"],
    )
    (tensor,) = found.tensors.tensors
    low, high = (end - point for end in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    rounded = np.clip(np.rint(images / np.float32(0.1)), low, high) * np.float32(0.1)
    assert tensor.step == np.float32(0.1)
    assert tensor.max_error == pytest.approx(np.abs(rounded - images).max(), rel=1e-6)


def refused(kind):
    """A model with one pair of a kind that no backend here has, and the name of its node."""
    if kind == "zero point":
        return one_layer(point=5), "x_q"
    if kind == "unsigned":
        return one_layer(dtype=np.uint8), "x_q"
    if kind == "channels of an activation":
        return one_layer(scale=np.full(3, 0.1, np.float32), axis=1), "x_q"
    if kind == "two ranges":
        return one_layer(second_scale=0.2), "x_second_q"
    if kind == "blocks":
        return blocks(), "w_dq"
    if kind == "int4":
        return stored_weights(TensorProto.INT4), "w_dq"
    if kind == "float8":
        return stored_weights(TensorProto.FLOAT8E4M3FN), "w_dq"
    if kind == "int16":
        return one_layer(dtype=np.int16, opset=21), "x_dq"
    if kind == "integers as input":
        return integer_input(), "x_dq"
    assert kind == "input channels"
    return one_layer(weights_axis=1), "conv"


@pytest.mark.parametrize(
    "kind",
    [
        "zero point",
        "unsigned",
        "channels of an activation",
        "two ranges",
        "blocks",
        "int4",
        "float8",
        "int16",
        "integers as input",
        "input channels",
    ],
)
@pytest.mark.parametrize("name", ["explicit", "implicit"])
def test_pairs_that_an_arithmetic_cannot_express(kind, name):
    model, node = refused(kind)
    with pytest.raises(ModelError, match=rf"'{node}'.*'{name}'"):
        run(model, name)


def test_integers_that_an_arithmetic_lacks():
    weights = np.full((4, 3, 3, 3), -128, np.float32) * np.float32(0.5)
    run(one_layer(weights=weights), "explicit")
    with pytest.raises(ModelError, match=r"'conv'.*-128.*'implicit'"):
        run(one_layer(weights=weights), "implicit")


def test_scales_per_channel_where_there_is_one():
    with pytest.raises(ModelError, match=r"'conv'.*'qnnpack'"):
        run(one_layer(weights_axis=0, spread=True, output_scale=2.0), "qnnpack")


def test_a_tensor_that_has_no_pair():
    """QNNPACK stores every tensor."""
    with pytest.raises(ModelError, match=r"'conv_out'.*'qnnpack'"):
        run(one_layer(weights_axis=None), "qnnpack")


def test_no_arithmetic_of_operators_on_integers(tmp_path):
    onnx.save(integer_product(), tmp_path / "integers.onnx")
    with pytest.raises(ModelError, match=r"'integers\.onnx'.*ConvInteger.*'ncnn'"):
        trtint8.validate(
            tmp_path / "integers.onnx", IMAGES, reference=one_layer(pairs=False), arithmetic="ncnn"
        )


@pytest.mark.parametrize("name", ARITHMETICS)
def test_a_model_without_a_layer_in_pairs(name):
    g = Shaped()
    out = g.Conv("conv", pair(g, "x", 0.1), g.weights(4, 3, 3, 3), kernel_shape=[3, 3])
    with pytest.raises(ModelError, match=f"'{name}'"):
        run(g.model({"x": ["N", 3, 8, 8]}, out), name)


def test_the_pairs_of_any_tool(tmp_path):
    model = conv_relu_conv()
    images = values((2, 3, 16, 16))
    wanted = open_graph_model(load_model(model).graph_model).run({"images": images})[0]
    got, sums = run(model, "explicit", images)
    assert set(sums) == {"first", "second"}
    assert np.abs(got - wanted).max() < 1e-5


def in_steps(shape, step):
    return (np.random.default_rng(3).integers(-127, 128, shape) * step).astype(np.float32)


def pair(g, tensor, scale, dtype=np.int8, point=0, axis=None, stem=None):
    """A pair behind a tensor, with names by the tensor."""
    stem = stem or tensor
    parameters = [g.constant(np.asarray(scale, np.float32))]
    parameters.append(g.constant(np.full(np.shape(scale), point, dtype)))
    attributes = {} if axis is None else {"axis": axis}
    integers = g.QuantizeLinear(f"{stem}_q", tensor, *parameters, **attributes)
    return g.DequantizeLinear(f"{stem}_dq", integers, *parameters, **attributes)


def one_layer(
    *,
    pairs=True,
    scale=0.1,
    dtype=np.int8,
    point=0,
    axis=None,
    second_scale=None,
    weights_axis=0,
    weights=None,
    spread=False,
    output_scale=None,
    opset=17,
):
    """A convolution with pairs of some kind."""
    g = Shaped()
    steps = {None: np.float32(0.5), 0: np.full(4, 0.5, np.float32), 1: np.float32([0.5, 0.3, 0.7])}
    step = steps[weights_axis]
    if spread:
        step = np.float32([0.5, 0.3, 0.7, 0.011])
    shape = [-1 if one == weights_axis else 1 for one in range(4)]
    if weights is None:
        whole = np.random.default_rng(3).integers(-127, 128, (4, 3, 3, 3))
        weights = (whole * step.reshape(shape if weights_axis is not None else ())).astype(np.float32)
    x, w = "x", g.constant(weights)
    if pairs:
        x, w = pair(g, "x", scale, dtype, point, axis), pair(g, w, step, axis=weights_axis, stem="w")
    out = g.Conv("conv", x, w, kernel_shape=[3, 3])
    if second_scale is not None:
        other = g.Conv("other", pair(g, "x", second_scale, stem="x_second"), w, kernel_shape=[3, 3])
        out = g.Add("sum", out, other)
    if output_scale is not None:
        out = pair(g, out, output_scale, stem="out")
        # A name that the model without pairs has too.
        g.nodes[-1].output[0] = out = "y"
    elif not pairs:
        out = g.Identity("y", out)
        g.nodes[-1].output[0] = out = "y"
    model = g.model({"x": ["N", 3, 8, 8]}, out)
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", opset))
    return model


def weights_layer(integers, scale, opset=21, **attributes):
    g = Shaped()
    g.constants.append(integers)
    w = g.DequantizeLinear("w_dq", integers.name, g.constant(scale), **attributes)
    model = g.model({"x": ["N", 8]}, g.MatMul("product", pair(g, "x", 0.1), w))
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", opset))
    model.ir_version = 10
    return model


def blocks():
    integers = numpy_helper.from_array(
        np.random.default_rng(0).integers(-127, 128, (8, 4)).astype(np.int8), "w"
    )
    return weights_layer(integers, np.full((2, 4), 0.1, np.float32), axis=0, block_size=4)


def stored_weights(dtype):
    numbers = np.random.default_rng(0).integers(-7, 8, 32).astype(np.float32)
    return weights_layer(helper.make_tensor("w", dtype, (8, 4), numbers), np.float32(0.1))


def integer_input():
    g = Shaped()
    x = g.DequantizeLinear("x_dq", "x", g.constant(np.float32(0.1)), g.constant(np.int8(0)))
    w = pair(g, g.weights(4, 3, 3, 3), np.full(4, 0.01, np.float32), axis=0)
    model = g.model({"x": ["N", 3, 8, 8]}, g.Conv("conv", x, w, kernel_shape=[3, 3]))
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT8
    return model


def integer_product():
    g = Shaped()
    x = g.QuantizeLinear("x_q", "x", g.constant(np.float32(0.1)), g.constant(np.uint8(128)))
    w = g.constant(np.ones((4, 3, 3, 3), np.int8))
    sums = g.ConvInteger("conv", x, w, g.constant(np.uint8(128)), kernel_shape=[3, 3])
    out = g.Cast("y", sums, to=TensorProto.FLOAT)
    g.nodes[-1].output[0] = out = "y"
    return g.model({"x": ["N", 3, 8, 8]}, out)
