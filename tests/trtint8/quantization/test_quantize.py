"""A float model and a table become a model with Q/DQ pairs."""

import gc

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.testing import assert_allclose
from onnx import helper

from calibrators.errors import TableError
from calibrators.host.session import open_session
from calibrators.tables.table import CalibrationTable, Provenance
from tests.trtint8.onnx_models import Shaped, constants_of
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model, prepare
from trtint8.quantization.quantize import quantize_graph


@pytest.fixture(scope="module")
def prepared():
    g = Shaped(quantized=False)
    x = g.Conv("first", "x", g.weights(4, 4, 1, 1))
    return prepare(load_model(g.model({"x": ["N", 4, 8, 8]}, g.Conv("second", x, g.weights(4, 4, 1, 1)))))


TABLE = CalibrationTable({"x": 1.0, "first_out": 2.0})


def test_every_weighted_node_gets_pairs_and_the_model_stays_as_it_is(prepared):
    model, placement = quantize_graph(prepared, TABLE)
    assert placement.quantized_nodes == ("first", "second")
    found = [node.op_type for node in model.graph]
    assert (found.count("QuantizeLinear"), found.count("DequantizeLinear")) == (4, 4)
    assert [node.op_type for node in prepared.graph_model.graph] == ["Conv", "Conv"]
    assert gc.isenabled()


def test_a_table_must_be_of_the_model_and_cover_it(prepared):
    with pytest.raises(TableError, match="no range for 1 tensor"):
        quantize_graph(prepared, CalibrationTable({"x": 1.0}))
    stale = CalibrationTable(TABLE.amax, provenance=Provenance(model="another"))
    with pytest.raises(TableError, match="stale"):
        quantize_graph(prepared, stale)


def every_tensor(model, feeds):
    """Every tensor of a Q/DQ model, computed without integers."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    names = [name for node in model.graph.node for name in node.output]
    watched.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    tensors = open_session(watched.SerializeToString(), optimize=False).run(names, feeds)
    stored = constants_of(model)
    return {**stored, **dict(zip(names, tensors, strict=True))}


def product(node, values, weights):
    """A weighted node's output for whole numbers, without its bias."""
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    del alone.input[:]
    alone.input.extend(["values", "weights"])
    shapes = {"values": values.shape, "weights": weights.shape}
    graph = helper.make_graph(
        [alone],
        "alone",
        [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()],
        [helper.make_empty_tensor_value_info(node.output[0])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"values": values.astype(np.float32), "weights": weights.astype(np.float32)}
    return open_session(made.SerializeToString(), optimize=False).run(None, feeds)[0]


def test_layers_compute_what_integers_give(table, split):
    """As TensorRT does it: sums of products of integers, times both scales, and the bias added in float."""
    quantized, _ = quantize_graph(prepare(load_model(DEMO_MODEL)), table)
    model = ir.to_proto(quantized)
    tensors = every_tensor(model, {"images": split.heldout_images[:20]})
    producers = {node.output[0]: node for node in model.graph.node}
    layers = [node for node in model.graph.node if node.op_type in ("Conv", "Gemm")]
    assert len(layers) == 9
    for layer in layers:
        pairs = [producers[name] for name in layer.input[:2]]
        values, weights = (tensors[pair.input[0]] for pair in pairs)
        assert values.dtype == weights.dtype == np.int8
        sums = product(layer, values, weights)
        assert np.abs(sums).max() < 2**24  # so float32 holds them exactly, and accumulators of 32 bits
        channels = (-1, *[1] * (sums.ndim - 2))
        bias = tensors[layer.input[2]].reshape(channels) if len(layer.input) > 2 else 0
        wanted = sums * tensors[pairs[0].input[1]] * tensors[pairs[1].input[1]].reshape(channels) + bias
        assert_allclose(tensors[layer.output[0]], wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
