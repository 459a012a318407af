"""Networks with a fixed number of samples that take any number, and others."""

import numpy as np
import onnx
import pytest

from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.models.samples.open_batch import with_open_batch
from trtint8.models.serialization import to_proto
from trtint8.models.session import open_graph_model

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
