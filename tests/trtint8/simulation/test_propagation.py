"""Variants of a network against the same variants quantized and run as whole models."""

import itertools
import weakref
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.host.session import open_session
from tests.trtint8.onnx_models import tied
from tests.trtint8.simulation.opened import parsed
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.simulation.networks import Quantizer
from trtint8.simulation.segments import cut, propagate

RNG = np.random.default_rng(3)


def conv(name, source):
    return f"{name} = Conv <pads = [1, 1, 1, 1]> ({source}, {name}_w, {name}_b)"


def convs(*names, channels=4):
    return ", ".join(f"float[4, {channels}, 3, 3] {name}_w, float[4] {name}_b" for name in names)


IMAGES = "float[N, 4, 6, 6] x"

#: Inputs, nodes and outputs.
MODELS = {
    "residual": (
        IMAGES,
        f"{conv('a', 'x')} trunk = Relu (a) {conv('b', 'trunk')} inner = Relu (b) {conv('c', 'inner')} "
        f"add = Add (c, trunk) out = Relu (add) {conv('d', 'out')} pool = GlobalAveragePool (d) "
        f"flat = Flatten (pool) y = Gemm (flat, w, b5) where {convs(*'abcd')}, float[4, 5] w, float[5] b5",
    ),
    "two branches that run in turns": (
        IMAGES,
        f"{conv('l1', 'x')} {conv('r1', 'x')} {conv('l2', 'l1')} {conv('r2', 'r1')} "
        f"join = Concat <axis = 1> (l2, r2) {conv('y', 'join')} "
        f"where {convs('l1', 'r1', 'l2', 'r2')}, {convs('y', channels=8)}",
    ),
    "attention": (
        "float[N, 6, 8] x",
        "query = MatMul (x, q) key = MatMul (x, k) turned = Transpose <perm = [0, 2, 1]> (key) "
        "scores = MatMul (query, turned) weights = Softmax <axis = -1> (scores) y = MatMul (weights, query) "
        "where float[8, 8] q, float[8, 8] k",
    ),
    "before the first layer": (
        IMAGES,
        f"doubled = Mul (x, two) {conv('first', 'doubled')} {conv('second', 'first')} "
        f"y = Add (second, doubled) where float two = {{2}}, {convs('first', 'second')}",
    ),
    # One is read by a later layer as well, the other leaves early.
    "two outputs": (
        IMAGES,
        f"{conv('first', 'x')} relu = Relu (first) {conv('y', 'relu')} where {convs('first', 'y')}",
        "float[N, 4, 6, 6] y, float[N, 4, 6, 6] first",
    ),
    # An If that reads tensors of the graph around it, one of them from long before.
    "holds a graph": (
        IMAGES,
        f"{conv('early', 'x')} relu = Relu (early) {conv('middle', 'relu')} {conv('late', 'middle')} "
        "most = ReduceMax <keepdims = 0> (late) flag = Greater (most, low) chosen = If (flag) "
        "<then_branch = yes () => (float[N, 4, 6, 6] one) { one = Neg (early) }, "
        "else_branch = no () => (float[N, 4, 6, 6] other) { other = Neg (late) }> y = Add (chosen, late) "
        f"where float low = {{-1e9}}, {convs('early', 'middle', 'late')}",
    ),
    "tied": None,
}


def cut_with_ranges(model, feed):
    table = trtint8.calibrate(model, feed, method="minmax", tensors="placed", progress=False)
    graph_model = prepare(load_model(model)).graph_model
    return table, cut(graph_model, Quantizer.of(place(graph_model), table.amax))


@pytest.fixture(params=MODELS)
def case(request):
    text = MODELS[request.param]
    model = tied() if text is None else parsed(*text, scale=0.1)
    shape = [size.dim_value or 3 for size in model.graph.input[0].type.tensor_type.shape.dim]
    feed = {"x": RNG.standard_normal(shape).astype(np.float32)}
    return model, feed, *cut_with_ranges(model, feed)


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
    assert_same(
        propagate(network, feed, lambda *_: None).quantized, run(trtint8.quantize(model, table), feed)
    )


def test_each_layer_alone_and_all_but_one(case):
    model, feed, table, network = case
    found = propagate(network, feed, lambda *_: None)
    names = [layer.name for layer in network.layers]
    assert list(found.only) == list(found.without) == names
    full = trtint8.quantize(model, table)
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
    layers, mebibyte = 24, 1 << 20
    names = ["x", *(f"layer{number}" for number in range(layers - 1)), "y"]
    nodes = " ".join(f"{name} = MatMul ({before}, {name}_w)" for before, name in itertools.pairwise(names))
    constants = ", ".join(f"float[32, 32] {name}_w" for name in names[1:])
    model = parsed("float[N, 32] x", f"{nodes} where {constants}", scale=0.1)
    feed = {"x": RNG.standard_normal((8192, 32)).astype(np.float32)}
    _, network = cut_with_ranges(model, feed)
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
