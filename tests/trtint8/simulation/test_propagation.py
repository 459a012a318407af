"""Variants of a network against the same variants quantized and run as whole models."""

import weakref
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from calibrators.data.batches import Batches
from calibrators.host.observer import Observer
from calibrators.host.session import open_session
from calibrators.tables.table import CalibrationTable, Provenance
from tests.trtint8.onnx_models import Shaped, tied
from trtint8 import quantize
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto
from trtint8.quantization.placement import place
from trtint8.simulation.networks import Form, Quantizer
from trtint8.simulation.segments import cut, propagate

RNG = np.random.default_rng(3)


def conv(g, source, name, channels=4):
    return g.op("Conv", [source, g.weights(4, channels, 3, 3), g.weights(4)], name, pads=[1] * 4)


def residual():
    g = Shaped(quantized=False)
    trunk = g.op("Relu", [conv(g, "x", "a")], "trunk")
    inner = g.op("Relu", [conv(g, trunk, "b")], "inner")
    out = g.op("Relu", [g.op("Add", [conv(g, inner, "c"), trunk], "add")], "out")
    flat = g.op("Flatten", [g.op("GlobalAveragePool", [conv(g, out, "d")], "pool")], "flat")
    return g.model({"x": ["N", 4, 6, 6]}, g.op("Gemm", [flat, g.weights(4, 5), g.weights(5)], "head"))


def branches():
    """Two branches that run in turns, and meet in a Concat."""
    g = Shaped(quantized=False)
    left = conv(g, conv(g, "x", "l1"), "l2")
    right = conv(g, conv(g, "x", "r1"), "r2")
    joined = g.op("Concat", [left, right], "join", axis=1)
    return g.model({"x": ["N", 4, 6, 6]}, conv(g, joined, "last", channels=8))


def attention():
    g = Shaped(quantized=False)
    query, key = (g.op("MatMul", ["x", g.weights(8, 8)], name) for name in ("query", "key"))
    turned = g.op("Transpose", [key], "turned", perm=[0, 2, 1])
    weights = g.op("Softmax", [g.op("MatMul", [query, turned], "scores")], "weights", axis=-1)
    return g.model({"x": ["N", 6, 8]}, g.op("MatMul", [weights, query], "mixed"))


def before_the_first_layer():
    g = Shaped(quantized=False)
    doubled = g.op("Mul", ["x", g.constant(np.float32(2))], "doubled")
    first = conv(g, doubled, "first")
    return g.model({"x": ["N", 4, 6, 6]}, g.op("Add", [conv(g, first, "second"), doubled], "sum"))


def two_outputs():
    """One of them is read by a later layer as well, the other leaves early."""
    g = Shaped(quantized=False)
    first = conv(g, "x", "first")
    model = g.model({"x": ["N", 4, 6, 6]}, conv(g, g.op("Relu", [first], "relu"), "second"))
    model.graph.output.append(helper.make_tensor_value_info(first, TensorProto.FLOAT, ["N", 4, 6, 6]))
    return model


def holds_a_graph():
    """An If that reads tensors of the graph around it, one of them from long before."""

    def branch(name, source):
        made = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, ["N", 4, 6, 6])
        return helper.make_graph([helper.make_node("Neg", [source], [f"{name}_out"])], name, [], [made])

    g = Shaped(quantized=False)
    early = conv(g, "x", "early")
    late = conv(g, conv(g, g.op("Relu", [early], "relu"), "middle"), "late")
    flag = g.op(
        "Greater", [g.op("ReduceMax", [late], "max", keepdims=0), g.constant(np.float32(-1e9))], "flag"
    )
    chosen = g.op("If", [flag], "if", then_branch=branch("yes", early), else_branch=branch("no", late))
    return g.model({"x": ["N", 4, 6, 6]}, g.op("Add", [chosen, late], "sum"))


MODELS = [residual, branches, attention, before_the_first_layer, two_outputs, holds_a_graph, tied]


def shape_of(model):
    return [d.dim_value or 3 for d in model.graph.input[0].type.tensor_type.shape.dim]


def prepared_and_table(model, feed):
    prepared = prepare(load_model(model))
    tensors = place(prepared.graph_model).tensors
    serialized = to_proto(prepared.graph_model).SerializeToString()
    observer = Observer(serialized, prepared.inputs, tensors)
    seen = observer.observe(Batches.of_feeds(lambda: iter([feed])), progress=False)
    table = CalibrationTable.from_histograms(seen.histograms, "minmax", Provenance(prepared.fingerprint))
    return prepared, table


@pytest.fixture(params=MODELS, ids=lambda make: make.__name__)
def case(request):
    model = request.param()
    feed = {"x": RNG.standard_normal(shape_of(model)).astype(np.float32)}
    prepared, table = prepared_and_table(model, feed)
    placement = place(prepared.graph_model)
    network = cut(prepared.graph_model, Quantizer.of(placement, table.amax))
    return model, feed, table, network


def run(model, feed):
    session = open_session(model.SerializeToString(), optimize=False)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def assert_same(got, wanted):
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        # Up to the order of float additions: a step of a quantizer would be a hundred times as much.
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=2e-6)


def test_the_float_network_is_the_model(case):
    model, feed, _, network = case
    assert_same(propagate(network, feed, lambda *_: None).reference, run(model, feed))


def test_the_quantized_network_is_the_qdq_model(case):
    model, feed, table, network = case
    assert_same(propagate(network, feed, lambda *_: None).quantized, run(quantize(model, table), feed))


def test_each_layer_alone_and_all_but_one(case):
    model, feed, table, network = case
    found = propagate(network, feed, lambda *_: None)
    names = [layer.name for layer in network.layers]
    assert list(found.only) == list(found.without) == names
    full = quantize(model, table)
    for name in names:
        assert_same(found.only[name], run(bypassed(full, set(names) - {name}), feed))
        assert_same(found.without[name], run(bypassed(full, {name}), feed))
        assert any((found.only[name][output] != found.reference[output]).any() for output in network.outputs)


def bypassed(model, layers):
    """The Q/DQ model without the pairs before some layers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    pairs = ("QuantizeLinear", "DequantizeLinear")
    sources = {node.output[0]: node.input[0] for node in copy.graph.node if node.op_type in pairs}
    for node in copy.graph.node:
        if node.name in layers:
            node.input[:] = [sources.get(sources.get(name), name) for name in node.input]
    return copy


def test_a_layer_alone_in_each_form():
    g = Shaped(quantized=False)
    weights = g.constant(np.array([[1.0, 0.3], [0.6, -0.26]], np.float32))
    model = g.model({"x": ["N", 2]}, g.op("MatMul", ["x", weights], "layer"))
    prepared = prepare(load_model(model))
    network = cut(prepared.graph_model, Quantizer.of(place(prepared.graph_model), {"x": 127.0}))
    (segment,) = network.segments
    feed = {"x": np.array([[10.4, -3.6]], np.float32)}
    rounded = np.array(
        [[127 * (1 / 127), 127 * (0.3 / 127)], [76 * (1 / 127), -110 * (0.3 / 127)]], np.float32
    )
    exact = feed["x"] @ np.array([[1.0, 0.3], [0.6, -0.26]], np.float32)
    np.testing.assert_allclose(segment.run_layer(Form.FLOAT, feed), exact, rtol=1e-6)
    np.testing.assert_allclose(segment.run_layer(Form.WEIGHTS, feed), feed["x"] @ rounded, rtol=1e-6)
    np.testing.assert_allclose(
        segment.run_layer(Form.ACTIVATIONS, feed), [[10 - 4 * 0.6, 3 + 4 * 0.26]], rtol=1e-6
    )
    np.testing.assert_allclose(
        segment.run_layer(Form.INT8, feed), np.array([[10.0, -4.0]]) @ rounded, rtol=1e-6
    )


def test_what_every_layer_gives_is_watched(case):
    _, feed, _, network = case
    seen = {}

    def watch(segment, floats, quantized):
        dependents = segment.dependents[segment.layer.output]
        seen[segment.layer.name] = all((floats[name] != quantized[name]).any() for name in dependents)
        assert set(segment.inputs) <= set(floats)

    propagate(network, feed, watch)
    assert list(seen) == [layer.name for layer in network.layers]
    assert all(seen.values())


def test_without_room_for_all_variants_some_wait(case, monkeypatch):
    _, feed, _, network = case
    wanted = propagate(network, feed, lambda *_: None)
    monkeypatch.setattr("trtint8.simulation.segments._ROOM", 1)  # one variant at a time
    watched = []
    found = propagate(network, feed, lambda segment, *_: watched.append(segment.layer.name))
    assert watched == [layer.name for layer in network.layers]  # once each
    for kind in ("only", "without"):
        got, variants = getattr(found, kind), getattr(wanted, kind)
        assert list(got) == list(variants)
        for name, outputs in variants.items():
            for output, array in outputs.items():
                np.testing.assert_array_equal(got[name][output], array)


def test_memory_does_not_grow_with_the_number_of_layers(monkeypatch):
    g, layers = Shaped(quantized=False), 24
    value, mebibyte = "x", 1 << 20
    for number in range(layers):
        value = g.op("MatMul", [value, g.weights(32, 32)], f"layer{number}")
    model, feed = g.model({"x": ["N", 32]}, value), {"x": np.ones((8192, 32), np.float32)}
    prepared, table = prepared_and_table(model, feed)
    network = cut(prepared.graph_model, Quantizer.of(place(prepared.graph_model), table.amax))
    alive: set[int] = set()
    most = 0

    def run_and_count(original, form, tensors):
        nonlocal most
        outputs = original(form, tensors)
        for array in outputs.values():
            assert array.nbytes == mebibyte
            alive.add(id(array))
            weakref.finalize(array, alive.discard, id(array))
        most = max(most, len(alive))
        return outputs

    for segment in network.segments:
        segment.run = partial(run_and_count, segment.run)
    monkeypatch.setattr("trtint8.simulation.segments._ROOM", 4 * mebibyte)
    propagate(replace(network, outputs=()), feed, lambda *_: None)
    # The tensors of both networks, of their variants, and of the one that runs.
    assert most <= 2 * 4 + 4 < 2 * layers
