"""Graph rewrites: what they change, what they leave, and that results stay the same."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from tests.trtint8.onnx_models import Graph
from trtint8.models.passes.fold_batchnorm import FoldBatchNormPass
from trtint8.models.passes.fold_constants import FoldConstantsPass
from trtint8.models.passes.name_nodes import NameNodesPass

IMAGES = {"x": ["N", 4, 6, 6]}


def run(model, **feeds):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def applied(graph_pass, model):
    graph_model = ir.from_proto(model)
    result = graph_pass(graph_model)
    return ir.to_proto(graph_model), result.modified


def operators(model):
    return [node.op_type for node in model.graph.node]


def normalized(operator="Conv", bias=True):
    g = Graph()
    shape = (5, 4, 3, 3) if operator == "Conv" else (4, 5, 3, 3)
    x = g.op(operator, ["x", g.weights(*shape), *([g.weights(5)] if bias else [])], "conv")
    parameters = [g.weights(5), g.weights(5), g.weights(5), g.constant(np.full(5, 0.7, np.float32))]
    return g, g.op("BatchNormalization", [x, *parameters], "norm")


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_is_folded(operator, bias):
    g, y = normalized(operator, bias)
    model = g.model(IMAGES, y)
    folded, modified = applied(FoldBatchNormPass(), model)
    assert modified and operators(folded) == [operator]
    assert folded.graph.output[0].name == "norm_out"
    x = np.random.default_rng(1).standard_normal((2, 4, 6, 6)).astype(np.float32)
    np.testing.assert_allclose(run(folded, x=x)[0], run(model, x=x)[0], rtol=1e-5, atol=1e-5)


def test_batch_norm_stays_when_the_conv_has_a_second_reader():
    g, y = normalized()
    model = g.model(IMAGES, g.op("Add", [y, "conv_out"], "add"))
    folded, modified = applied(FoldBatchNormPass(), model)
    assert not modified and operators(folded) == operators(model)


def test_batch_norm_stays_when_the_conv_is_a_graph_output():
    g, y = normalized()
    model = g.model(IMAGES, y)
    model.graph.output.append(onnx.helper.make_tensor_value_info("conv_out", 1, None))
    folded, modified = applied(FoldBatchNormPass(), model)
    assert not modified and operators(folded) == operators(model)


def test_transposed_weights_are_folded():
    g = Graph()
    weights = g.op("Transpose", [g.weights(5, 4)], "transpose", perm=[1, 0])
    model = g.model({"x": ["N", 4]}, g.op("MatMul", ["x", weights], "matmul"))
    folded, modified = applied(FoldConstantsPass(), model)
    assert modified and operators(folded) == ["MatMul"]
    assert "transpose_out" in [tensor.name for tensor in folded.graph.initializer]
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_allclose(run(folded, x=x)[0], run(model, x=x)[0], rtol=1e-5, atol=1e-5)


def test_a_constant_that_would_inflate_the_model_is_not_folded():
    g = Graph()
    huge = g.op("ConstantOfShape", [g.constant(np.array([1024, 1024]))], "huge")
    folded, modified = applied(
        FoldConstantsPass(), g.model({"x": [1024, 1024]}, g.op("Add", ["x", huge], "a"))
    )
    assert not modified and operators(folded) == ["ConstantOfShape", "Add"]


def test_nodes_get_unique_names_and_keep_those_they_have():
    g = Graph()
    x = "x"
    for name in ("a", "b", "c", "d"):
        x = g.op("Relu", [x], name)
    model = g.model(IMAGES, x)
    for node, name in zip(model.graph.node, ("same", "same", "", "own"), strict=True):
        node.name = name
    named, modified = applied(NameNodesPass(), model)
    assert modified
    assert [node.name for node in named.graph.node] == ["same", "Relu_b_out", "Relu_c_out", "own"]
    again, modified = applied(NameNodesPass(), named)
    assert not modified and again.graph.node == named.graph.node


def test_a_made_up_name_leaves_a_later_nodes_own_name_alone():
    g = Graph()
    model = g.model(IMAGES, g.op("Relu", [g.op("Relu", ["x"], "a")], "b"))
    model.graph.node[0].name, model.graph.node[1].name = "", "Relu_a_out"
    named, _ = applied(NameNodesPass(), model)
    names = [node.name for node in named.graph.node]
    assert names[1] == "Relu_a_out" and len(set(names)) == 2
