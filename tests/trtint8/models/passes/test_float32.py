"""Models that compute in FP16."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from trtint8.models.model import load_model, prepare, to_proto

HALF = TensorProto.FLOAT16


def half_model():
    """Two convolutions with a Cast, a constant, and an input that is given out as it is."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(0.2 * random.standard_normal(shape).astype(np.float16), name)
        for name, shape in (("w", (8, 3, 3, 3)), ("v", (4, 8, 3, 3)))
    ]
    half = numpy_helper.from_array(np.array([0.5], np.float16))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Cast", ["c"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Relu", ["wide"], ["r"]),
        helper.make_node("Cast", ["r"], ["narrow"], to=HALF),
        helper.make_node("Constant", [], ["half"], value=half),
        helper.make_node("Mul", ["narrow", "half"], ["m"]),
        helper.make_node("Conv", ["m", "v"], ["y"], pads=[1] * 4),
        helper.make_node("Identity", ["x"], ["again"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", HALF, ["n", 3, 8, 8])],
        [info("y", HALF, ["n", 4, 8, 8]), info("again", HALF, ["n", 3, 8, 8])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(1).standard_normal((16, 3, 8, 8)).astype(np.float16)


def outputs(model, images):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": images})


def test_it_computes_the_same_in_fp32(images):
    prepared = to_proto(prepare(load_model(half_model())).graph_model)
    types = {tensor.data_type for tensor in prepared.graph.initializer}
    assert HALF not in types
    assert [value.type.tensor_type.elem_type for value in prepared.graph.input] == [HALF]
    assert [value.name for value in prepared.graph.output] == ["y", "again"]
    for wanted, found in zip(outputs(half_model(), images), outputs(prepared, images), strict=True):
        assert wanted.dtype == found.dtype == np.float16
        np.testing.assert_allclose(found, wanted, rtol=4e-3, atol=4e-3)


def test_it_is_quantized(images):
    table = trtint8.calibrate(half_model(), images, progress=False)
    quantized = trtint8.quantize(half_model(), table)
    assert sum(node.op_type == "DequantizeLinear" for node in quantized.graph.node) == 4
    accuracy = trtint8.validate(quantized, images, reference=half_model(), progress=False)
    assert accuracy.outputs[0].sqnr_db > 30


def test_a_float_model_stays_as_it_is():
    nodes = [helper.make_node("Cast", ["x"], ["c"], to=HALF), helper.make_node("Cast", ["c"], ["y"], to=1)]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info("x", 1, ["n"])], [info("y", 1, ["n"])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    prepared = to_proto(prepare(load_model(model)).graph_model)
    assert [node.attribute[0].i for node in prepared.graph.node] == [HALF, TensorProto.FLOAT]


def test_the_loaded_model_is_not_changed():
    model = load_model(half_model())
    first, again = (to_proto(prepare(model).graph_model) for _ in range(2))
    assert first == again
    assert {value.dtype.name for value in model.graph_model.graph.initializers.values()} == {"FLOAT16"}
