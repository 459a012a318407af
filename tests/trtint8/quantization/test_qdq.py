"""Q/DQ pairs: scales, structure, and what the quantized model computes."""

import dataclasses
import warnings

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from calibrators.errors import ModelError
from tests.trtint8.onnx_models import Shaped, constants_of, normal, parsed, prepared_graph, tied
from trtint8.models.serialization import to_proto
from trtint8.quantization.config import TensorQuantConfig, fake_quantize
from trtint8.quantization.placement import Edge, Placement, place
from trtint8.quantization.qdq import activation_scales, insert_qdq, rounded_weights, weight_scale
from trtint8.quantization.tensor_configs import JointConfigs


def quantized(model, **amax):
    prepared = prepared_graph(model)
    insert_qdq(prepared, place(prepared), amax)
    return to_proto(prepared)


def constants(model):
    return constants_of(model)


def run(model, x):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"]).run(
        None, {"x": x}
    )[0]


def fake(x, scale):
    return (np.clip(np.rint(x / scale), -128, 127) * scale).astype(np.float32)


def gemm():
    g = Shaped()
    return g.model({"x": ["N", 4]}, g.Gemm("gemm", "x", g.weights(5, 4), g.weights(5), transB=1))


def branches():
    g = Shaped()
    left, right = (g.Conv(name, "x", g.weights(4, 4, 1, 1), g.weights(4)) for name in ("a", "b"))
    return g.model({"x": ["N", 4, 6, 6]}, g.Mul("mul", left, right))


def test_scales_and_zero_points():
    values = constants(quantized(gemm(), x=3.0))
    assert values["x_scale"].dtype == np.float32 and values["x_scale"] == np.float32(3.0 / 127)
    assert values["x_zero_point"].dtype == np.int8 and values["x_zero_point"] == 0
    expected = (np.abs(values["constant0"]).max(axis=1).astype(np.float64) / 127).astype(np.float32)
    assert_array_equal(values["constant0_scale"], expected)
    assert values["constant0_zero_point"].dtype == np.int8 and not values["constant0_zero_point"].any()


def test_a_channel_of_zeros_has_scale_one():
    assert_array_equal(weight_scale(np.array([[0, 0], [127, -254]], np.float32), 0), np.float32([1, 2]))


def test_a_tensor_with_several_readers_has_one_pair():
    model = quantized(branches(), x=2.0)
    pairs = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    assert [node.input[0] for node in pairs].count("x") == 1
    readers = {node.input[0] for node in model.graph.node if node.op_type == "Conv"}
    assert readers == {"x_dequantized"}


@pytest.mark.parametrize("shape", [(16, 8), (8, 8)])
def test_weights_that_are_read_along_two_axes_have_a_pair_for_each(shape):
    model = tied(*shape)
    float_model = prepared_graph(model)
    placement = place(float_model)
    weights = constants(model)["constant0"]
    new = quantized(model, x=3.0, relu_out=9.0)
    onnx.checker.check_model(new, full_check=True)
    names = [node.name for node in new.graph.node]
    assert len(set(names)) == len(names)
    ort.InferenceSession(new.SerializeToString(), providers=["CPUExecutionProvider"])
    by_output = {node.output[0]: node for node in new.graph.node}
    layers = {node.name: node for node in new.graph.node if node.op_type == "Gemm"}
    for edge, axis in zip(placement.weights, (1, 0), strict=True):
        scale = np.abs(weights).max(axis=1 - axis, keepdims=True) / np.float32(127)
        pair = by_output[layers[edge.node].input[1]]
        assert (edge.axis, pair.attribute[0].i) == (axis, axis)
        assert_allclose(constants(new)[pair.input[1]], scale.reshape(-1), rtol=1e-6)
        assert_allclose(rounded_weights(placement, edge, weights), fake(weights, scale), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("shape", [(7, 5), (7, 5, 3, 3)])
def test_weights_are_rounded_block_by_block_to_the_same_bits(monkeypatch, axis, shape):
    weights = normal(*shape)
    weights[2] = 0
    weights[3, 1] = -0.0
    config, configs = TensorQuantConfig().along(axis), JointConfigs()
    configs.add("w", config)
    placement = Placement((), (), configs, ())
    wanted = fake_quantize(weights, config.with_scale(weight_scale(weights, axis)))
    for block in (1, weights.size // 3, weights.size):
        monkeypatch.setattr("trtint8.quantization.qdq._BLOCK", block)
        found = rounded_weights(placement, Edge("node", 1, "w", axis), weights)
        assert (found.shape, found.dtype, found.tobytes()) == (shape, np.float32, wanted.tobytes())


@pytest.mark.parametrize("build", [gemm, branches])
def test_the_model_stays_valid_and_keeps_its_names_and_biases(build):
    before, after = build(), quantized(build(), x=2.0)
    onnx.checker.check_model(after, full_check=True)
    assert [v.name for v in after.graph.input] == ["x"]
    assert [v.name for v in after.graph.output] == [v.name for v in before.graph.output]
    assert after.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    assert {o for n in before.graph.node for o in n.output} <= {o for n in after.graph.node for o in n.output}
    values = constants(after)
    for name, value in constants(before).items():
        assert_array_equal(values[name], value)
    for old in before.graph.node:
        new = next(node for node in after.graph.node if node.name == old.name)
        assert list(new.input[2:]) == list(old.input[2:])


def test_it_computes_what_numpy_does():
    rng = np.random.default_rng(1)
    values = constants(gemm())
    weights = fake(values["constant0"], weight_scale(values["constant0"], 0)[:, None])
    x = rng.standard_normal((6, 4)).astype(np.float32) * 2
    expected = fake(x, np.float32(2 / 127)) @ weights.T + values["constant1"]
    assert_allclose(run(quantized(gemm(), x=2.0), x), expected, rtol=1e-5, atol=1e-5)


def test_convolutions_compute_what_numpy_does():
    values = constants(branches())
    x = normal(2, 4, 6, 6, seed=1) * 2
    image = fake(x, np.float32(2 / 127))
    results = []
    for weights, bias in (("constant0", "constant1"), ("constant2", "constant3")):
        scale = weight_scale(values[weights], 0)[:, None, None, None]
        kernel = fake(values[weights], scale)[:, :, 0, 0]
        results.append(np.einsum("oc,nchw->nohw", kernel, image) + values[bias][:, None, None])
    assert_allclose(run(quantized(branches(), x=2.0), x), results[0] * results[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("told", [{}, {"kernel_shape": (3, 2)}])
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_convolutions_tell_the_shape_of_their_kernel(operator, told):
    """The parser of TensorRT 8.6 looks for it nowhere else where weights have a pair."""
    g = Shaped()
    output = g.op(operator, ["x", g.weights(4, 4, 3, 2)], "conv", **told)
    model = quantized(g.model({"x": ["N", 4, 6, 6]}, output), x=1.0)
    (node,) = (node for node in model.graph.node if node.op_type == operator)
    (shape,) = (attribute.ints for attribute in node.attribute if attribute.name == "kernel_shape")
    assert list(shape) == [3, 2]


def placement(*tensors, shared=()):
    edges = tuple(Edge("node", index, tensor) for index, tensor in enumerate(tensors))
    configs = JointConfigs()
    for group in shared:
        for tensor in group[1:]:
            configs.join(tensor, group[0])
    for tensor in tensors:
        configs.add(tensor, TensorQuantConfig())
    return Placement(edges, (), configs, ())


def test_shared_groups_get_the_widest_range():
    scales = activation_scales(placement("a", "b", "c", shared=(("a", "b"),)), {"a": 0.0, "b": 4.0, "c": 2.0})
    assert scales == {"a": np.float32(4 / 127), "b": np.float32(4 / 127), "c": np.float32(2 / 127)}


@pytest.mark.parametrize("of_weights", [False, True])
def test_values_below_the_smallest_scale_are_named(of_weights):
    size = 1e-39 if of_weights else 1.0
    weights = np.full((8, 8), size, np.float32)
    model = parsed("float[N, 8] x", "float[N, 8] y", "y = MatMul (x, w)", w=weights)
    with pytest.warns(UserWarning, match="'w'" if of_weights else "'x'"):
        quantized(model, x=1.0 if of_weights else 1e-39)


def test_a_range_of_zero_warns_and_counts_as_one():
    with pytest.warns(
        UserWarning, match="the table has a range of 0 for tensor 'a', as for what is zero in all"
    ):
        scales = activation_scales(placement("a"), {"a": 0.0})
    assert scales == {"a": np.float32(1 / 127)}
    with pytest.warns(UserWarning, match="range of 0 for 2 tensors, such as 'a', as for") as caught:
        scales = activation_scales(placement("a", "b", "c"), {"a": 0.0, "b": 2.0, "c": 0.0})
    assert scales == {"a": np.float32(1 / 127), "b": np.float32(2 / 127), "c": np.float32(1 / 127)}
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        activation_scales(placement("a"), {"a": 1e-30})
        always_zero = dataclasses.replace(placement("a"), unchanging=frozenset("a"))
        assert activation_scales(always_zero, {"a": 0.0}) == {"a": np.float32(1 / 127)}


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FA00000, 0x7F800000, 0xFF800000])
def test_weights_that_are_not_finite_are_refused(bits):
    """As folding may make them of numbers that are."""
    prepared = prepared_graph(gemm())
    value = prepared.graph.initializers["constant0"]
    weights = value.const_value.numpy().copy()
    weights.reshape(-1).view(np.uint32)[3] = bits
    value.const_value = ir.tensor(weights, name="constant0")
    with pytest.raises(
        ModelError, match="the weights 'constant0' of node 'gemm' hold NaN or infinity; correct"
    ):
        insert_qdq(prepared, place(prepared), {"x": 1.0})
    with pytest.raises(ModelError, match="'constant0' of node 'gemm'"):
        rounded_weights(place(prepared), place(prepared).weights[0], weights)
