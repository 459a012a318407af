"""Networks with a fixed number of samples that take any number, and others."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.models.samples.joining import with_open_batch
from trtint8.models.serialization import to_proto
from trtint8.models.session import open_graph_model
from trtint8.models.shapes import FittingBatchSize

X = np.random.default_rng(3).standard_normal((4, 6, 2)).astype(np.float32)


def network(batch=4, sizes=(4, 12), order=(0, 1), inputs=("x",)):
    """A product behind a Reshape to ``sizes``, whose axes are then put into an order."""
    g = Shaped(quantized=False)
    total = inputs[0] if len(inputs) == 1 else g.op("Add", list(inputs), "total")
    flat = g.op("Reshape", [total, g.constant(np.array(sizes, np.int64))], "flat")
    weights = g.constant(g.random.standard_normal((sizes[-1], 5)).astype(np.float32))
    turned = g.op("Transpose", [g.op("MatMul", [flat, weights], "product")], "turned", perm=list(order))
    shapes = {name: [size, 6, 2] for name, size in zip(inputs, (batch, 1), strict=False)}
    return prepare(load_model(g.model(shapes, turned))).graph_model


def test_it_computes_the_same_for_any_number_of_samples():
    fixed = network()
    opened = with_open_batch(fixed)
    assert opened.graph.inputs[0].shape == ["samples", 6, 2]
    assert fixed.graph.inputs[0].shape == [4, 6, 2]
    onnx.checker.check_model(to_proto(opened), full_check=True)
    wanted = open_graph_model(fixed).run({"x": X})[0]
    session = open_graph_model(opened)
    assert (session.run({"x": X})[0] == wanted).all()
    for rows in (slice(0, 1), slice(1, 4)):
        np.testing.assert_allclose(session.run({"x": X[rows]})[0], wanted[rows], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "given",
    [
        {"batch": "N", "sizes": (-1, 12)},
        {"batch": 1, "sizes": (1, 12)},
        {"sizes": (2, 24)},
        {"sizes": (4, 12), "order": (1, 0)},
        {"inputs": ("x", "z")},
    ],
    ids=["open", "one", "joined", "turned", "two_numbers"],
)
def test_others_stay_as_they_are(given):
    graph_model = network(**given)
    assert with_open_batch(graph_model) is graph_model


def _model(shape, last="Abs"):
    graph = helper.make_graph(
        [helper.make_node("Abs", ["x"], ["a"]), helper.make_node(last, ["a"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        value_info=[helper.make_tensor_value_info("a", TensorProto.FLOAT, shape)],
    )
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


@pytest.mark.parametrize(
    ("elements", "tensors", "batch"),
    [
        (1_000, ("a", "y"), 32),
        (3 << 18, ("a", "y"), 32),
        ((3 << 18) + 1, ("a", "y"), 16),
        ((3 << 18) + 1, ("y",), 32),
        (3 << 20, ("a", "y"), 8),
        (1 << 30, ("a",), 1),
    ],
)
def test_activations_of_a_batch_fit_192_mib(elements, tensors, batch):
    size = FittingBatchSize(_model(["n", elements]), tensors)
    assert size.for_all == size({}) == batch


@pytest.mark.parametrize("tensors", [("a", "y"), ("a",), ("y",)])
def test_what_a_relu_gives_is_not_kept_beside_its_input(tensors):
    assert FittingBatchSize(_model(["n", 3 << 20], "Relu"), tensors).for_all == 16
    assert FittingBatchSize(_model(["n", 3 << 20]), tensors).for_all == 16 / len(tensors)


@pytest.mark.parametrize(("elements", "batch"), [(1 << 24, 2), ((1 << 24) + 1, 1)])
def test_a_model_that_is_divided_shows_what_a_relu_gives(elements, batch):
    assert FittingBatchSize(_model(["n", elements], "Relu"), ("a", "y")).for_all == batch


@pytest.mark.parametrize(("elements", "batch"), [(1_000, 32), (3 << 18, 32), (3 << 20, 8), (1 << 26, 1)])
@pytest.mark.parametrize("samples", [1, 5])
def test_where_a_size_is_open_the_data_decides(elements, samples, batch):
    size = FittingBatchSize(_model(["n", "length"]), ("a", "y"))
    feed = {"x": np.broadcast_to(np.float32(0), (samples, elements))}
    assert (size.for_all, size(feed), size({})) == (None, batch, 32)


def test_sizes_are_followed_through_computed_shapes():
    """The first half of a row: its size is that of the input, divided by two."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], start=1),
        helper.make_node("Div", ["shape", "two"], ["half"]),
        helper.make_node("Slice", ["x", "zero", "half", "one"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "shorter"])],
        [
            helper.make_tensor(name, TensorProto.INT64, [1], [i])
            for i, name in enumerate(("zero", "one", "two"))
        ],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    feed = {"x": np.broadcast_to(np.float32(0), (4, 12 << 20))}
    assert FittingBatchSize(prepare(load_model(source)).graph_model, ("y",))(feed) == 8
