"""Nodes that have the name of another."""

import numpy as np
import onnx
import pytest

import trtint8
from tests.trtint8.quantization.float16.half_models import run
from trtint8.models.loading.node_names import name_graphs, name_nodes_apart
from trtint8.models.model import load_model, prepare

MODEL = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[N, 4] x, bool keep) => (float[N, 4] y)
    <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}>
    {
        [product] a = MatMul(x, w)
        [MatMul_c] b = MatMul(a, w)
        [product] c = MatMul(b, w)
        d = Relu(c)
        e = Relu(d)
        [choice] y = If(keep) <
            then_branch = then () => (float[N, 4] t) { [product] s = Relu(e) [product] t = Relu(s) },
            else_branch = other () => (float[N, 4] o) { [product] o = Relu(e) }
        >
    }
"""


def names(graph):
    return [node.name for node in graph.node]


def test_later_nodes_are_named_after_their_operator_and_output():
    message = onnx.parser.parse_model(MODEL)
    name_nodes_apart(message)
    assert names(message.graph) == ["product", "MatMul_c", "MatMul_c_1", "", "", "choice"]
    branches = {attribute.name: names(attribute.g) for attribute in message.graph.node[-1].attribute}
    assert branches == {"then_branch": ["product", "Relu_t"], "else_branch": ["product"]}


def test_names_that_are_unique_stay():
    message = onnx.parser.parse_model(MODEL)
    name_nodes_apart(message)
    before = message.SerializeToString()
    name_nodes_apart(message)
    assert message.SerializeToString() == before


def test_a_model_with_such_nodes_is_its_own_reference():
    """ONNX Runtime refuses two nodes of one name, and calibration worked with others."""
    source = onnx.parser.parse_model(MODEL)
    data = {"x": np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32), "keep": np.array(True)}
    prepared = [node.name for node in prepare(load_model(source)).graph_model.graph]
    assert prepared[:3] == ["product", "MatMul_c", "MatMul_c_1"]
    quantized = trtint8.quantize(source, trtint8.calibrate(source, [data], progress=False))
    accuracy = trtint8.validate(quantized, [data], reference=source, progress=False)
    assert accuracy.outputs[0].sqnr_db > 30


def test_nodes_of_functions_as_well():
    body = [
        onnx.helper.make_node("MatMul", ["a", "b"], ["t"], "same"),
        onnx.helper.make_node("Relu", ["t"], ["c"], "same"),
    ]
    opset = onnx.helper.make_opsetid("", 17)
    message = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17, "my": 1]> '
        "g (float[N, 4] x) => (float[N, 4] y) <float[4, 4] w = "
        "{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}> { y = my.Layer(x, w) }"
    )
    message.functions.append(onnx.helper.make_function("my", "Layer", ["a", "b"], ["c"], body, [opset]))
    data = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    quantized = trtint8.quantize(message, trtint8.calibrate(message, data, progress=False), progress=False)
    (result,) = trtint8.validate(quantized, data, reference=message, progress=False).outputs
    assert result.sqnr_db > 30


def test_graphs_without_a_name():
    message = onnx.parser.parse_model(MODEL)
    message.graph.name = message.graph.node[-1].attribute[0].g.name = ""
    name_graphs(message)
    assert message.graph.name and message.graph.node[-1].attribute[0].g.name
    message.graph.name = ""
    assert load_model(message).graph_model.graph.name


@pytest.mark.parametrize("nested", [False, True])
def test_outputs_that_are_left_out_amid_a_list_are_named(nested):
    """ONNX Runtime ends the process with such a Split."""
    random = np.random.default_rng(0)
    weights, last = (random.standard_normal(shape).astype(np.float32) for shape in ((8, 8), (3, 4)))
    split = [
        onnx.helper.make_node("Split", ["m", "sizes"], ["a", "", "b"], "split", axis=1),
        onnx.helper.make_node("Sub", ["a", "b"], ["d"], "difference"),
    ]
    if nested:
        value = onnx.helper.make_tensor_value_info("d", onnx.TensorProto.FLOAT, None)
        branch = onnx.helper.make_graph(split, "branch", [], [value])
        split = [onnx.helper.make_node("If", ["c"], ["d_"], "if", then_branch=branch, else_branch=branch)]
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "weights"], ["m"], "layer"),
        *split,
        onnx.helper.make_node("MatMul", [split[-1].output[0], "last"], ["y"], "last"),
    ]
    constants = {
        "weights": weights,
        "last": last,
        "sizes": np.array([3, 2, 3]),
        "c": np.array(True),
    }
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 8])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 4])],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    x = random.standard_normal((16, 8)).astype(np.float32)
    table = trtint8.calibrate(model, {"x": x}, method="minmax", progress=False)
    quantized = trtint8.quantize(model, table, progress=False)
    wanted = ((x @ weights)[:, :3] - (x @ weights)[:, 5:]) @ last
    assert np.abs(run(quantized, {"x": x}) - wanted).max() < 0.05 * np.abs(wanted).max()
