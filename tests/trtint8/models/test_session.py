"""Models opened in ONNX Runtime: Q/DQ pairs round as they stand."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from calibrators.errors import CalibrationDataError, ModelError
from tests.trtint8.onnx_models import parsed
from trtint8.models.model import load_model
from trtint8.models.passes.simplify import InferShapesPass
from trtint8.models.session import ModelSession, StoppableRuns, open_graph_model, open_model

X = np.linspace(-1.3, 1.3, 64 * 64, dtype=np.float32).reshape(64, 64)


def product(scales=(0.01,)):
    """The input through one Q/DQ pair per scale, times the identity, which is kept apart."""
    tensors = ["x", *(f"d{number}" for number in range(len(scales)))]
    pairs = [
        f"q{n} = QuantizeLinear ({tensors[n]}, s{n}, zero) d{n} = DequantizeLinear (q{n}, s{n}, zero)"
        for n in range(len(scales))
    ]
    constants = {"zero": np.int8(0), "identity": np.eye(64, dtype=np.float32)}
    constants |= {f"s{number}": np.float32(scale) for number, scale in enumerate(scales)}
    body = f"{' '.join(pairs)} y = MatMul ({tensors[-1]}, identity)"
    return ir.from_proto(parsed("float[N, 64] x", "float[N, 64] y", body, **constants))


def rounded(values, scale):
    return (np.clip(np.round(values / np.float32(scale)), -128, 127) * np.float32(scale)).astype(np.float32)


def reshaped_to_one():
    """A network that was traced with a batch of 1, though it leaves the size of the batch open."""
    body = "y = Reshape (x, sizes)"
    return ir.from_proto(parsed("float[n, 2, 4] x", "float[] y", body, sizes=np.array([1, 8])))


def assert_fails(opened, x, **options):
    with pytest.raises(CalibrationDataError, match="fails on a batch"):
        opened.run({"x": x}, **options)


def test_a_model_that_takes_one_sample_is_run_on_each_unless_it_was_stopped():
    x = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    opened = open_graph_model(reshaped_to_one())
    with pytest.warns(UserWarning, match="one sample"):
        (output,) = opened.run({"x": x})
    np.testing.assert_array_equal(output, x.reshape(3, 8))
    np.testing.assert_array_equal(opened.run({"x": x[:2]})[0], x[:2].reshape(2, 8))  # said once
    assert_fails(open_graph_model(reshaped_to_one()), x[:, :1])
    runs = StoppableRuns()
    runs.stop()
    assert_fails(open_graph_model(reshaped_to_one()), x, stoppable=runs)


@pytest.mark.parametrize("scales", [(0.01,), (0.01, 0.0137)])
def test_every_pair_rounds(scales):
    """ONNX Runtime by itself makes one pair, with a scale of its own, of two in a row."""
    opened = open_graph_model(product(scales), threads=1)
    wanted = X
    for scale in scales:
        wanted = rounded(wanted, scale)
    (output,) = opened.run({"x": X})
    np.testing.assert_array_equal(output, wanted)
    assert opened.output_names == ["y"]


def test_a_model_that_is_used_up_is_not_copied():
    kept, used_up = product([0.01]), product([0.01])
    found = [
        open_graph_model(model, threads=1, used_up=model is used_up).run({"x": X})[0]
        for model in (kept, used_up)
    ]
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(kept.graph.initializers["identity"].const_value.numpy(), np.eye(64))
    assert isinstance(used_up.graph.initializers["identity"].const_value, ir.ExternalTensor)


def test_the_session_outlives_the_weights():
    model, weights = product(), np.eye(64, dtype=np.float32)
    model.graph.initializers["identity"].const_value = ir.tensor(weights)
    opened = open_graph_model(model)
    (before,) = opened.run({"x": X})
    weights[:] = 0
    np.testing.assert_array_equal(opened.run({"x": X})[0], before)


def test_a_model_too_large_for_a_message_goes_through_a_file(monkeypatch):
    wanted = open_graph_model(product()).run({"x": X})
    monkeypatch.setattr("trtint8.models.serialization._LARGEST_INLINE", 0)
    np.testing.assert_array_equal(open_graph_model(product()).run({"x": X}), wanted)


def test_a_model_that_onnx_runtime_refuses():
    model = product()
    next(node for node in model.graph if node.op_type == "MatMul").op_type = "NoSuchOperator"
    with pytest.raises(ModelError, match="NoSuchOperator"):
        open_graph_model(model)


def test_a_model_is_opened_as_it_was_read(tmp_path):
    graph_model = product()
    weights = ir.tensor(np.eye(64, dtype=np.float32), name="identity")
    graph_model.graph.initializers["identity"].const_value = weights
    ir.save(graph_model, tmp_path / "model.onnx")
    ir.save(graph_model, tmp_path / "external.onnx", external_data="external.data", size_threshold_bytes=0)
    (wanted,) = open_graph_model(graph_model).run({"x": X})
    inside, outside = load_model(tmp_path / "model.onnx"), load_model(tmp_path / "external.onnx")
    assert inside.light is not None and outside.light is None
    for model in (inside, outside):
        opened = open_model(model, threads=1)
        np.testing.assert_array_equal(opened.run({"x": X})[0], wanted)
        np.testing.assert_array_equal(opened.run({"x": X}, ["y"])[0], wanted)
    # The shapes that a file leaves out are inferred: without them nothing would be known of an activation.
    assert all(value.shape is None for node in inside.graph_model.graph for value in node.outputs[:-1])
    opened = open_model(inside, threads=2, rows=64)
    assert opened.runs_at_once == 2
    np.testing.assert_array_equal(opened.run({"x": X})[0], rounded(X, 0.01))


def inferred():
    """A model with the shapes of all tensors, as models are prepared."""
    return InferShapesPass()(product()).model


class Watched:
    """A session that keeps the batches that it is run with."""

    def __init__(self, session):
        self.session, self.batches = session, []

    def run(self, names, feed, run_options=None):
        self.batches.append(len(feed["x"]))
        return self.session.run(names, feed, run_options)


@pytest.mark.parametrize(
    ("threads", "rows", "batch", "parts"),
    [
        (1, 64, 64, [64]),
        (2, 64, 64, [32, 32]),
        (2, 64, 63, [31, 32]),
        (2, 64, 1, [1]),
        (3, 64, 64, [21, 21, 22]),
        (9, 64, 64, [16, 16, 16, 16]),
        (9, 2, 64, [32, 32]),
        (2, 1, 64, [64]),
    ],
)
def test_threads_run_parts_of_a_batch(threads, rows, batch, parts):
    opened = open_graph_model(inferred(), threads=threads, rows=rows)
    # Each run brings the thread that it is called in.
    own = opened.session.get_session_options().intra_op_num_threads
    assert own == threads - (opened.runs_at_once - 1)
    watched = Watched(opened.session)
    (output,) = ModelSession(watched, opened.runs_at_once).run({"x": X[:batch]})
    assert sorted(watched.batches) == parts
    np.testing.assert_array_equal(output, rounded(X[:batch], 0.01))


def test_samples_that_depend_on_others_are_run_together():
    body = "m = ReduceMean <axes = [0]> (x) y = Sub (x, m)"
    model = ir.from_proto(onnx.shape_inference.infer_shapes(parsed("float[N, 64] x", "float[] y", body)))
    opened = open_graph_model(model, threads=2, rows=64)
    assert opened.runs_at_once == 1
    np.testing.assert_allclose(opened.run({"x": X})[0], X - X.mean(axis=0), atol=1e-6)
    # Further outputs may be of any shape.
    assert open_graph_model(inferred(), ["q0"], threads=2, rows=64).runs_at_once == 1


def test_a_run_in_parts_is_refused_as_a_batch_is_and_can_be_stopped():
    assert_fails(open_graph_model(product()), X[:, :3])
    opened, stoppable = open_graph_model(inferred(), threads=2, rows=64), StoppableRuns()
    assert opened.runs_at_once == 2
    assert_fails(opened, X[:, :3])
    np.testing.assert_array_equal(opened.run({"x": X}, stoppable=stoppable)[0], rounded(X, 0.01))
    stoppable.stop()
    assert_fails(opened, X, stoppable=stoppable)
