"""What INT8 costs, by kind, of kernels with given times."""

import json

import pytest

from tests.trtint8.auditing.kernels import CACHING_GPU, GPU, attention, product, report, requantization
from trtint8.auditing.audit import estimate_engine
from trtint8.auditing.costs import costs_of, read_measured
from trtint8.auditing.results import AuditedKernel


def kernel(part, seconds, *nodes, cached=None):
    return AuditedKernel("k", part, None, nodes, None, 0, seconds, None, cached)


def found(half, int8, work):
    return {cost.kind: (cost.kernels, cost.layers, cost.seconds) for cost in costs_of(half, int8, work)}


def test_requantization_and_reformats_beyond_those_of_fp16():
    half = [kernel("float compute", 8.0, "a"), kernel("reformat", 1.0, "a")]
    int8 = [
        kernel("INT8 compute", 2.0, "a"),
        kernel("requantization", 4.0, "a"),
        kernel("reformat", 2.0, "a"),
        kernel("reformat", 3.0, "b"),
    ]
    assert found(half, int8, {"a"}) == {
        "requantization": (1, ("a",), 4.0),
        "reformat": (2, ("b", "a"), 4.0),
    }
    assert [cost.seconds for cost in costs_of(half, int8, {"a"})] == [4.0, 4.0]


def test_products_that_take_longer():
    half = [kernel("float compute", 1.0, "a"), kernel("float compute", 5.0, "b"), kernel("other", 1.0, "c")]
    int8 = [kernel("INT8 compute", 1.5, "a"), kernel("INT8 compute", 2.0, "b"), kernel("other", 9.0, "c")]
    assert found(half, int8, {"a", "b", "c"}) == {"small products": (1, ("a",), 0.5)}
    # A node without a kernel of its own in FP16 is compared with nothing.
    assert found(half[1:], int8, {"a", "b"}) == {}


def test_attention_that_is_no_longer_fused():
    half = [kernel("attention", 3.0, "scores", "mixed"), kernel("float compute", 1.0, "a")]
    int8 = [
        kernel("INT8 compute", 2.0, "scores"),
        kernel("requantization", 1.0, "scores"),
        kernel("pointwise", 1.0, "mixed"),
        kernel("INT8 compute", 1.0, "a"),
    ]
    assert found(half, int8, {"scores", "mixed", "a"}) == {"lost fusion": (3, ("scores", "mixed"), 1.0)}
    assert found(half, half, {"scores", "mixed", "a"}) == {}


def test_times_are_halfway_between_the_ends():
    int8 = [kernel("requantization", 4.0, "a", cached=2.0)]
    assert found([], int8, {"a"})["requantization"] == (1, ("a",), 3.0)


def test_nothing_is_said_where_a_time_is_not_known():
    assert costs_of([kernel("float compute", None, "a")], [kernel("requantization", 1.0, "a")], {"a"}) == ()


@pytest.mark.parametrize("gpu", [GPU, CACHING_GPU])
def test_of_estimated_engines(gpu):
    work = {"a": 1000, "scores": 10, "mixed": 10}
    half = estimate_engine("FP16", report(product("a", "Half", "Half", 1000), attention(100)), work, gpu)
    int8 = estimate_engine(
        "INT8",
        report(product("a", "Int8", "Float", 1000), requantization("a", 1000), attention(100)),
        work,
        gpu,
    )
    costs = costs_of(half.kernels, int8.kernels, work)
    assert "requantization" in {cost.kind for cost in costs}
    assert all(cost.source == "estimated" for cost in costs)


def test_layers_of_an_inspected_engine_have_parts(tmp_path):
    profile, layers = tmp_path / "x.profile.json", tmp_path / "x.layers.json"
    profile.write_text(json.dumps([{"count": 1}, {"name": "fused_1", "averageMs": 2.0}]))
    tensor = {"Name": "t", "Dimensions": [1, 8], "Format/Datatype": "Row major Int8 format"}
    layer = {
        "Name": "fused_1",
        "LayerType": "CaskConvolution",
        "Inputs": [tensor],
        "Outputs": [tensor],
        "Metadata": "[ONNX Layer: a]\x1e[ONNX Layer: b]",
    }
    layers.write_text(json.dumps({"Layers": [layer], "Bindings": []}))
    (kernels,) = read_measured({"INT8": profile}, ("INT8",), {"a": 1}).values()
    (one,) = kernels
    assert ({*one.onnx_nodes}, one.part) == ({"a", "b"}, "INT8 compute")
    assert (one.seconds, one.precision) == (pytest.approx(2e-3), "INT8")
