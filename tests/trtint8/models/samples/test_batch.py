"""Networks with a fixed number of samples that take any number, and others."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.trtint8.onnx_models import normal, parsed
from trtint8.models.model import load_model, prepare
from trtint8.models.samples.joining import with_open_batch
from trtint8.models.serialization import to_proto
from trtint8.models.session import open_graph_model
from trtint8.models.shapes import FittingBatchSize

X = np.random.default_rng(3).standard_normal((4, 6, 2)).astype(np.float32)


def network(batch=4, sizes=(4, 12), order=(0, 1), inputs=("x",)):
    """A product behind a Reshape to ``sizes``, whose axes are then put into an order."""
    shapes = [f"float[{size}, 6, 2] {name}" for name, size in zip(inputs, (batch, 1), strict=False)]
    body = f"""total = {"Add (x, z)" if "z" in inputs else "Identity (x)"} flat = Reshape (total, sizes)
        p = MatMul (flat, w) y = Transpose <perm = {list(order)}> (p)"""
    constants = {"sizes": np.array(sizes), "w": normal(sizes[-1], 5)}
    return prepare(load_model(parsed(", ".join(shapes), "float[] y", body, **constants))).graph_model


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
    made = parsed(f"float[{shape}] x", f"float[{shape}] y", f"a = Abs (x) y = {last} (a)")
    return ir.from_proto(onnx.shape_inference.infer_shapes(made))


@pytest.mark.parametrize(
    ("elements", "last", "tensors", "batch"),
    [
        (1_000, "Abs", "ay", 32),
        (3 << 18, "Abs", "ay", 32),
        ((3 << 18) + 1, "Abs", "ay", 16),
        ((3 << 18) + 1, "Abs", "y", 32),
        (3 << 20, "Abs", "ay", 8),
        (3 << 20, "Abs", "a", 16),
        (1 << 30, "Abs", "a", 1),
        # What a Relu gives is not kept beside its input.
        (3 << 20, "Relu", "ay", 16),
        (3 << 20, "Relu", "a", 16),
        (3 << 20, "Relu", "y", 16),
        # Unless the model is divided.
        (1 << 24, "Relu", "ay", 2),
        ((1 << 24) + 1, "Relu", "ay", 1),
    ],
)
def test_activations_of_a_batch_fit_192_mib(elements, last, tensors, batch):
    size = FittingBatchSize(_model(f"n, {elements}", last), tuple(tensors))
    assert size.for_all == size({}) == batch


@pytest.mark.parametrize(("elements", "batch"), [(1_000, 32), (3 << 18, 32), (3 << 20, 8), (1 << 26, 1)])
@pytest.mark.parametrize("samples", [1, 5])
def test_where_a_size_is_open_the_data_decides(elements, samples, batch):
    size = FittingBatchSize(_model("n, length"), ("a", "y"))
    feed = {"x": np.broadcast_to(np.float32(0), (samples, elements))}
    assert (size.for_all, size(feed), size({})) == (None, batch, 32)


def test_sizes_are_followed_through_computed_shapes():
    """The first half of a row: its size is that of the input, divided by two."""
    body = "shape = Shape <start = 1> (x) half = Div (shape, two) a = Slice (x, zero, half, one) y = Relu (a)"
    numbers = {name: np.array([i]) for i, name in enumerate(("zero", "one", "two"))}
    source = parsed("float[n, length] x", "float[n, shorter] y", body, **numbers)
    feed = {"x": np.broadcast_to(np.float32(0), (4, 12 << 20))}
    assert FittingBatchSize(prepare(load_model(source)).graph_model, ("y",))(feed) == 8
