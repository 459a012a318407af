"""What TensorRT refuses, in forms that compute the same and that it takes."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import trtint8
from calibrators.host.onnx_session import open_session
from tests.trtint8.onnx_models import Graph
from trtint8.builder.equal_forms import with_equal_forms

X = np.random.default_rng(1).standard_normal((2, 4, 8, 8)).astype(np.float32)


def rewritten(model):
    return ir.to_proto(with_equal_forms(ir.from_proto(model)))


def outputs(model):
    return open_session(model.SerializeToString(), optimize=False).run(None, {"x": X})[0]


def scales(model):
    constants = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    pairs = [node for node in model.graph.node if node.op_type.endswith("izeLinear")]
    return [constants[node.input[1]] for node in pairs]


def convolution(*, scale=(0.01,) * 4, weights=None, stored=False, point=0):
    """A quantized convolution of 4 channels whose weights have these scales."""
    g = Graph()
    if weights is None:
        weights = np.where(np.reshape(scale, (-1, 1, 1, 1)) == 0, 0, 0.5) * np.ones((4, 4, 3, 3))
    kernel, scale = np.asarray(weights, np.float32), np.asarray(scale, np.float32)
    names = [g.constant(scale), g.constant(np.full(scale.shape, point, np.int8))]
    if stored:
        divided = kernel / np.where(scale == 0, 1, scale).reshape(-1, 1, 1, 1)
        source = g.constant((np.rint(divided) + point).astype(np.int8))
    else:
        source = g.op("QuantizeLinear", [g.constant(kernel), *names], "w_q", axis=0)
    dequantized = g.op("DequantizeLinear", [source, *names], "w_dq", axis=0)
    return g, g.op("Conv", [g.qdq("x"), dequantized], "conv", kernel_shape=[3, 3], pads=[1] * 4)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("point", [0, 3])
def test_weights_that_are_zero_get_a_positive_scale(stored, point):
    g, y = convolution(scale=(0.01, 0, 0.02, 0), stored=stored, point=point)
    given = g.model({"x": ["n", 4, 8, 8]}, y)
    found = rewritten(given)
    assert all((scale > 0).all() for scale in scales(found))
    assert next(one.tolist() for one in scales(found) if one.ndim) == pytest.approx([0.01, 1, 0.02, 1])
    exact = convolution(
        scale=(0.01, 1, 0.02, 1), weights=np.reshape([0.5, 0, 0.5, 0], (4, 1, 1, 1)) * np.ones((4, 4, 3, 3))
    )
    np.testing.assert_array_equal(outputs(found), outputs(exact[0].model({"x": ["n", 4, 8, 8]}, exact[1])))
    assert not all((scale > 0).all() for scale in scales(given))


@pytest.mark.parametrize("stored", [False, True])
def test_a_scale_of_zero_for_other_weights_stays(stored):
    g, y = convolution(scale=(0.01, 0, 0.01, 0.01), weights=np.ones((4, 4, 3, 3)), stored=stored)
    given = ir.from_proto(g.model({"x": ["n", 4, 8, 8]}, y))
    assert with_equal_forms(given) is given


def test_a_scale_of_zero_for_an_activation_stays():
    g = Graph()
    names = [g.constant(np.float32(0)), g.constant(np.int8(0))]
    y = g.op("DequantizeLinear", [g.op("QuantizeLinear", ["x", *names], "q"), *names], "dq")
    given = ir.from_proto(g.model({"x": ["n", 4, 8, 8]}, y))
    assert with_equal_forms(given) is given


def scaled(operator="Conv", *, rank=4, factor=0.5, first=False, group=1, identity=False):
    """A quantized convolution with 8 channels whose output one number multiplies."""
    g, shape = Graph(), [2, 4, *[8] * (rank - 2)]
    weights = g.weights(*((8, 4 // group) if operator == "Conv" else (4, 8 // group)), *[3] * (rank - 2))
    attributes = {"kernel_shape": [3] * (rank - 2), "pads": [1] * 2 * (rank - 2), "group": group}
    y = g.op(operator, [g.qdq("x"), g.qdq(weights)], "conv", **attributes)
    if identity:
        y = g.op("Identity", [y], "identity")
    factor = g.constant(np.asarray(factor, np.float32))
    return g.model({"x": shape}, g.op("Mul", [factor, y] if first else [y, factor], "mul"))


def factor_shape(model):
    node = next(node for node in model.graph.node if node.op_type == "Mul")
    return next(tuple(one.dims) for one in model.graph.initializer if one.name in node.input)


FORMS = [
    {},
    {"first": True},
    {"factor": [[[[0.3]]]]},
    {"factor": [0.3]},
    {"group": 2},
    {"identity": True},
    {"operator": "ConvTranspose"},
    {"operator": "ConvTranspose", "group": 2},
]


@pytest.mark.parametrize("form", FORMS)
def test_a_number_that_multiplies_a_convolution_becomes_one_per_channel(form):
    given = scaled(**form)
    found = rewritten(given)
    assert factor_shape(found) == (8, 1, 1)
    np.testing.assert_array_equal(outputs(found), outputs(given))


def test_other_factors_stay():
    for factor in (np.full((8, 1, 1), 0.5), np.full((1, 1, 1, 1, 1), 0.5)):
        given = ir.from_proto(scaled(factor=factor))
        assert with_equal_forms(given) is given
    plain = Graph(quantized=False)
    y = plain.op("Conv", ["x", plain.weights(8, 4, 3, 3)], "conv")
    given = ir.from_proto(
        plain.model({"x": [2, 4, 8, 8]}, plain.op("Mul", [y, plain.constant(np.float32(2))], "mul"))
    )
    assert with_equal_forms(given) is given


@pytest.mark.slow
@pytest.mark.parametrize("form", [{}, {"first": True}, {"rank": 5}])
def test_tensorrt_builds_what_it_refused(form, rtx, tmp_path):
    del rtx
    onnx.save(scaled(**form), tmp_path / "m.onnx")
    result = trtint8.build_int8_engine(
        tmp_path / "m.onnx", None, tmp_path / "m.engine", target="rtx", progress=False
    )
    assert result.info.int8_layers == (1, 1)


@pytest.mark.parametrize("stored", [False, True])
def test_a_pruned_channel_is_built_in_int8(stored, rtx, tmp_path):
    del rtx
    g, y = convolution(scale=(0.01, 0, 0.02, 0.01), stored=stored)
    onnx.save(g.model({"x": [2, 4, 8, 8]}, y), tmp_path / "m.onnx")
    result = trtint8.build_int8_engine(
        tmp_path / "m.onnx", None, tmp_path / "m.engine", target="rtx", progress=False
    )
    assert result.info.int8_layers == (1, 1)
    # The model beside the engine is the user's.
    assert result.qdq_model is not None
    assert any((scale == 0).any() for scale in scales(onnx.load(result.qdq_model)))
