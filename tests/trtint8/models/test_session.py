"""Models opened in ONNX Runtime: Q/DQ pairs round as they stand."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from calibrators.errors import CalibrationDataError, ModelError
from tests.trtint8.onnx_models import Graph
from trtint8.models.model import load_model
from trtint8.models.passes.simplify import InferShapesPass
from trtint8.models.session import ModelSession, StoppableRuns, open_graph_model, open_model

X = np.linspace(-1.3, 1.3, 64 * 64, dtype=np.float32).reshape(64, 64)


def product(scales):
    """The input through one Q/DQ pair per scale, times the identity, which is kept apart."""
    nodes, last = [], "x"
    constants = {"zero": np.int8(0), "identity": np.eye(64, dtype=np.float32)}
    for number, scale in enumerate(scales):
        constants[f"scale{number}"] = np.float32(scale)
        parameters = [f"scale{number}", "zero"]
        nodes.append(helper.make_node("QuantizeLinear", [last, *parameters], [f"q{number}"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"q{number}", *parameters], [f"d{number}"]))
        last = f"d{number}"
    nodes.append(helper.make_node("MatMul", [last, "identity"], ["y"]))
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 64]) for name in "xy"]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], tensors)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def rounded(values, scale):
    return (np.clip(np.round(values / np.float32(scale)), -128, 127) * np.float32(scale)).astype(np.float32)


def reshaped_to_one():
    """A network that was traced with a batch of 1, though it leaves the size of the batch open."""
    graph = Graph()
    output = graph.op("Reshape", ["x", graph.constant(np.array([1, 8]))], "y")
    return ir.from_proto(graph.model({"x": ["n", 2, 4]}, output))


def test_a_model_that_takes_one_sample_is_run_on_each():
    x = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    opened = open_graph_model(reshaped_to_one())
    with pytest.warns(UserWarning, match="takes one sample at a time"):
        (output,) = opened.run({"x": x})
    np.testing.assert_array_equal(output, x.reshape(3, 8))
    np.testing.assert_array_equal(opened.run({"x": x[:2]})[0], x[:2].reshape(2, 8))  # said once
    with pytest.raises(CalibrationDataError, match="the model fails on a batch"):
        open_graph_model(reshaped_to_one()).run({"x": x[:, :1]})


def test_nothing_is_run_again_that_was_stopped():
    runs = StoppableRuns()
    runs.stop()
    with pytest.raises(CalibrationDataError, match="the model fails on a batch"):
        open_graph_model(reshaped_to_one()).run({"x": np.ones((3, 2, 4), np.float32)}, stoppable=runs)


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
    model = product((0.01,))
    weights = np.eye(64, dtype=np.float32)
    model.graph.initializers["identity"].const_value = ir.tensor(weights)
    opened = open_graph_model(model)
    (before,) = opened.run({"x": X})
    weights[:] = 0
    np.testing.assert_array_equal(opened.run({"x": X})[0], before)


def test_a_model_too_large_for_a_message_goes_through_a_file(monkeypatch):
    wanted = open_graph_model(product((0.01,))).run({"x": X})
    monkeypatch.setattr("trtint8.models.serialization._LARGEST_INLINE", 0)
    np.testing.assert_array_equal(open_graph_model(product((0.01,))).run({"x": X}), wanted)


def test_a_batch_that_does_not_fit():
    with pytest.raises(CalibrationDataError, match="the model fails on a batch: "):
        open_graph_model(product((0.01,))).run({"x": X[:, :3]})


def test_a_model_that_onnx_runtime_refuses():
    model = product((0.01,))
    next(node for node in model.graph if node.op_type == "MatMul").op_type = "NoSuchOperator"
    with pytest.raises(ModelError, match=r"ONNX Runtime cannot run the model: .*NoSuchOperator"):
        open_graph_model(model)


def test_a_model_is_opened_as_it_was_read(tmp_path):
    graph_model = product((0.01,))
    weights = ir.tensor(np.eye(64, dtype=np.float32), name="identity")
    graph_model.graph.initializers["identity"].const_value = weights
    path = tmp_path / "model.onnx"
    ir.save(graph_model, path)
    ir.save(graph_model, tmp_path / "external.onnx", external_data="external.data", size_threshold_bytes=0)
    (wanted,) = open_graph_model(graph_model).run({"x": X})
    inside, outside = load_model(path), load_model(tmp_path / "external.onnx")
    assert inside.light is not None and outside.light is None
    for model in (inside, outside):
        opened = open_model(model, threads=1)
        np.testing.assert_array_equal(opened.run({"x": X})[0], wanted)
        np.testing.assert_array_equal(opened.run({"x": X}, ["y"])[0], wanted)


def inferred():
    """A model with the shapes of all tensors, as models are prepared."""
    return InferShapesPass()(product((0.01,))).model


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
    g = Graph(quantized=False)
    centred = g.op("Sub", ["x", g.op("ReduceMean", ["x"], "mean", axes=[0])], "y")
    model = ir.from_proto(onnx.shape_inference.infer_shapes(g.model({"x": ["N", 64]}, centred)))
    opened = open_graph_model(model, threads=2, rows=64)
    assert opened.runs_at_once == 1
    np.testing.assert_allclose(opened.run({"x": X})[0], X - X.mean(axis=0), atol=1e-6)


def test_further_outputs_may_be_of_any_shape():
    assert open_graph_model(inferred(), ["q0"], threads=2, rows=64).runs_at_once == 1
    assert open_graph_model(inferred(), threads=2, rows=64).runs_at_once == 2


def test_a_part_that_does_not_fit_is_said_as_a_batch_is():
    opened = open_graph_model(inferred(), threads=2, rows=64)
    assert opened.runs_at_once == 2
    with pytest.raises(CalibrationDataError, match="the model fails on a batch: "):
        opened.run({"x": X[:, :3]})


def test_a_run_in_parts_can_be_stopped():
    opened, stoppable = open_graph_model(inferred(), threads=2, rows=64), StoppableRuns()
    np.testing.assert_array_equal(opened.run({"x": X}, stoppable=stoppable)[0], rounded(X, 0.01))
    stoppable.stop()
    with pytest.raises(CalibrationDataError, match="the model fails on a batch: "):
        opened.run({"x": X}, stoppable=stoppable)


def test_the_shapes_that_a_file_leaves_out_are_inferred(tmp_path):
    """Without them nothing would be known of an activation, nor of a product."""
    path = tmp_path / "model.onnx"
    ir.save(product((0.01,)), path)
    model = load_model(path)
    assert all(value.shape is None for node in model.graph_model.graph for value in node.outputs[:-1])
    opened = open_model(model, threads=2, rows=64)
    assert opened.runs_at_once == 2
    np.testing.assert_array_equal(opened.run({"x": X})[0], rounded(X, 0.01))
