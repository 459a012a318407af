import pytest

from tests.trtint8.auditing.kernels import CACHING_GPU, GPU, attention, product, report, requantization
from tests.trtint8.engine.ifs import IfGraph, absolute, relu
from trtint8.auditing.results import AuditedPart
from trtint8.auditing.roofline import estimate_engine, seconds_per_node
from trtint8.engine.layers import Layer
from trtint8.engine.traffic import Traffic


def test_a_kernel_takes_as_long_as_its_bytes_or_its_products():
    layers = report(product("narrow", "Half", "Half", 1000, 50), product("wide", "Half", "Half", 1000))
    engine = estimate_engine("FP16", layers, {"narrow": 1000, "wide": 10_000}, GPU, 100)
    narrow, wide = engine.kernels
    assert narrow.traffic == Traffic(2100, 2000)
    # 4100 bytes at 1 GB/s; 2 operations for each of 1000 multiply-adds at 2 per nanosecond.
    assert (narrow.seconds, narrow.bound) == (pytest.approx(4.1e-6), "memory")
    assert (wide.seconds, wide.bound) == (pytest.approx(1e-5), "compute")
    assert engine.seconds == pytest.approx(1.41e-5)
    assert engine.traffic == Traffic(4100, 4000)
    assert engine.multiply_adds == {"FP16": 11_000}
    assert engine.parts == (AuditedPart("float compute", 2, Traffic(4100, 4000), engine.seconds),)
    assert engine.weights_bytes == 100


def test_int8_products_and_their_requantization():
    layers = report(product("a", "Int8", "Float", 1000), requantization("a", 1000))
    engine = estimate_engine("INT8", layers, {"a": 1000}, GPU)
    assert [kernel.part for kernel in engine.kernels] == ["INT8 compute", "requantization"]
    # The kernel beside the product computes none of it.
    assert [kernel.multiply_adds for kernel in engine.kernels] == [1000, 0]
    assert engine.part("requantization").traffic == Traffic(4000, 1000)
    assert engine.part("reformat") == AuditedPart("reformat", 0, Traffic(0, 0), 0.0)


def test_attention_computes_both_of_its_products():
    engine = estimate_engine("FP16", report(attention(100)), {"scores": 30, "mixed": 70}, GPU)
    assert engine.multiply_adds == {"FP16": 100}
    assert engine.kernels[0].part == "attention"


def test_a_node_of_several_kernels_is_counted_once():
    halves = report(product("a", "Half", "Half", 10), product("a", "Half", "Half", 10))
    engine = estimate_engine("FP16", halves, {"a": 7}, GPU)
    assert [kernel.multiply_adds for kernel in engine.kernels] == [3, 4]


def test_a_product_that_became_pointwise():
    small = Layer("__myl_MulSum_myl0_1", "kgen", ("Float",), (), ("Float",), ("dot",), ((8,),), (), ((1,),))
    engine = estimate_engine("FP32", report(small), {"dot": 8, "gone": 3}, GPU)
    assert engine.multiply_adds == {"FP32": 8}
    assert engine.unplaced == ("gone",)


def test_what_is_not_known():
    dynamic = product("a", "Half", "Half", -1)
    engine = estimate_engine("FP16", report(dynamic, product("b", "Half", "Half", 1)), {"a": 1, "b": 1}, GPU)
    assert engine.kernels[0].seconds is engine.kernels[0].bound is engine.kernels[0].traffic is None
    assert engine.seconds is engine.traffic is None
    assert engine.part("float compute") == AuditedPart("float compute", 2, None, None)


def test_entries_without_a_kernel_are_left_out():
    engine = estimate_engine("FP16", report(Layer("s", "shape_call", (), (), (), ())), {}, GPU)
    assert (engine.kernels, engine.seconds) == ((), 0)


def test_what_may_stay_in_the_cache():
    # Half of the cache is 8 KiB: the activations of the first kernel, and the smaller ones of the second.
    layers = report(product("a", "Half", "Half", 4096, 9000), product("b", "Int8", "Float", 4096))
    engine = estimate_engine("INT8", layers, {}, CACHING_GPU)
    assert engine.cacheable == 2 * 8192 + 4096
    assert engine.traffic.total == 2 * 8192 + 2 * 9000 + 5 * 4096


def moving(read, written):
    """A kernel that selects ``written`` of ``read`` values in FP16."""
    name = "__myl_Slic_myl0_3"
    return Layer(name, "kgen", ("Half",), (), ("Half",), ("s",), ((read,),), (), ((written,),))


def test_what_is_not_read_is_not_in_the_cache():
    # Of 4096 values, as many as are written are read.
    engine = estimate_engine("INT8", report(moving(4096, 100)), {}, CACHING_GPU)
    assert (engine.cacheable, engine.traffic) == (400, Traffic(200, 200))
    # Nor is what is selected of a tensor that is larger than half of the cache.
    engine = estimate_engine("INT8", report(moving(4097, 100)), {}, CACHING_GPU)
    assert (engine.cacheable, engine.traffic) == (200, Traffic(200, 200))
    # A kernel whose bytes are not known counts for none.
    unknown = product("a", "Half", "Half", 10, -1)
    assert estimate_engine("INT8", report(unknown), {}, CACHING_GPU).cacheable == 0


def test_time_per_node():
    joined = Layer(
        "g", "gemm", ("Half",), ("Half",), ("Half",), ("q", "k", "dq"), ((500,),), ((0,),), ((500,),)
    )
    moved = Layer("__myl_Tran_myl0_1", "kgen", ("Half",), (), ("Half",), ("q",), ((9,),), (), ((9,),))
    layers = report(joined, moved, product("a", "Int8", "Float", 1000), requantization("a", 1000))
    work = {"q": 1, "k": 1, "a": 1}
    found = seconds_per_node(estimate_engine("INT8", layers, work, GPU), work)
    assert found == {"q": pytest.approx(1e-6), "k": pytest.approx(1e-6), "a": pytest.approx(1e-5)}


def test_products_behind_an_if_with_a_constant_condition(rtx):
    g = IfGraph()
    x = g.conv("x", "first")
    x = g.conv(g.choose(True, "if", relu(x), absolute(x)), "second")
    work = {"first": 100, "second": 200, "third": 400}
    layers = g.build(g.conv(x, "third"), rtx, batch=1)
    engine = estimate_engine("INT8", layers, work, GPU)
    assert engine.multiply_adds == {"INT8": 700}
    assert engine.unplaced == ()
    computing = [kernel for kernel in engine.kernels if kernel.part == "INT8 compute"]
    assert [(kernel.onnx_nodes[0], kernel.multiply_adds) for kernel in computing] == list(work.items())
    assert list(seconds_per_node(engine, work)) == ["first", "second", "third"]
