import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from tests.trtint8.onnx_models import Graph, Shaped
from trtint8.auditing.work import Work, at_shapes, count_work
from trtint8.models.model import load_model, prepare


def work(model, **shapes):
    return count_work(at_shapes(prepare(load_model(model.SerializeToString())), shapes).graph_model)


def counted(make, inputs, **shapes):
    g = Shaped(quantized=False)
    return work(g.model(inputs, make(g)), **shapes).multiply_adds


def matmul(g):
    return g.op("MatMul", ["x", g.weights(64, 32)], "node")


def test_shapes_that_the_graph_computes():
    """Heads of attention, split by a Reshape to a shape that Shape, Div and Concat compute."""
    g = Graph(quantized=False)
    batch = g.op("Shape", ["x"], "batch", start=0, end=1)
    width = g.op("Shape", ["x"], "width", start=2, end=3)
    head = g.op("Div", [width, g.constant(np.array([4], np.int64))], "head")
    middle = g.constant(np.array([10, 4], np.int64))
    heads = g.op("Reshape", ["x", g.op("Concat", [batch, middle, head], "shape", axis=0)], "heads")
    left = g.op("Transpose", [heads], "left", perm=[0, 2, 1, 3])
    right = g.op("Transpose", [heads], "right", perm=[0, 2, 3, 1])
    model = g.model({"x": ["N", 10, 64]}, g.op("MatMul", [left, right], "scores"))
    assert work(model, x=(3, 10, 64)) == Work({"scores": 3 * 4 * 10 * 10 * 16}, ())


def test_a_shape_that_is_not_known():
    assert counted(matmul, {"x": ["N", 10, 64]}) == {}
    g = Shaped(quantized=False)
    assert work(g.model({"x": ["N", 10, 64]}, matmul(g))).uncounted == ("node",)


def test_graphs_inside_nodes_are_not_counted():
    g = Shaped(quantized=False)
    inner = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "inner",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
    )
    flag = g.op("Equal", [g.op("ReduceSum", ["x"], "sum", keepdims=0), g.constant(np.float32(0))], "flag")
    model = g.model({"x": [2, 4]}, g.op("If", [flag], "choice", then_branch=inner, else_branch=inner))
    assert work(model) == Work({}, ("choice",))


def test_products_that_only_shapes_decide_are_not_counted():
    """As of an embedding of positions, which the builder computes."""
    g = Shaped(quantized=False)
    zeros = g.op("ConstantOfShape", [g.op("Shape", ["x"], "shape")], "zeros")
    positions = g.op("MatMul", [zeros, g.weights(64, 8)], "positions")
    product = g.op("MatMul", ["x", g.weights(64, 8)], "product")
    model = g.model({"x": ["N", 64]}, g.op("Add", [product, positions], "sum"))
    assert work(model, x=(5, 64)) == Work({"product": 5 * 64 * 8}, ())


def test_the_model_keeps_its_fingerprint_and_is_not_changed():
    g = Shaped(quantized=False)
    prepared = prepare(load_model(g.model({"x": ["N", 64]}, matmul(g)).SerializeToString()))
    fixed = at_shapes(prepared, {"x": (5, 64)})
    assert fixed.fingerprint == prepared.fingerprint
    assert [spec.shape for spec in fixed.inputs] == [(5, 64)]
    assert [spec.shape for spec in prepared.inputs] == [("N", 64)]


@pytest.mark.parametrize(("operator", "shape"), [("Gemm", [3]), ("MatMul", [])])
def test_products_of_too_few_dimensions_are_not_counted(operator, shape):
    nodes = [helper.make_node(operator, ["x", "w"], ["y"], name="product")]
    weights = helper.make_tensor("w", TensorProto.FLOAT, [3, 3], np.ones(9))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = ir.from_proto(helper.make_graph(nodes, "g", values[:1], values[1:], [weights]))
    assert count_work(ir.Model(graph, ir_version=8)) == Work({}, ("product",))
