import pytest

from tests.trtint8.auditing.kernels import CACHING_GPU, GPU, attention, product, report, requantization
from trtint8.auditing.roofline import estimate_engine
from trtint8.auditing.verdict import judge
from trtint8.engine.layers import Layer

NODES = ("a", "b", "c", "d", "e")


def engine(precision, *layers, gpu=GPU):
    return estimate_engine(precision, report(*layers), dict.fromkeys(NODES, 1), gpu)


def sentence(*engines, gpu="RTX 4090"):
    return judge(engines, gpu, "TensorRT for RTX", dict.fromkeys(NODES, 1))


def half(*sizes):
    return engine("FP16", *(product(n, "Half", "Half", size) for n, size in zip(NODES, sizes, strict=False)))


def int8(*sizes, precision="INT8"):
    pairs = [
        (product(n, "Int8", "Float", size), requantization(n, size))
        for n, size in zip(NODES, sizes, strict=False)
    ]
    return engine(precision, *(layer for pair in pairs for layer in pair))


def test_int8_that_moves_more_bytes():
    verdict = sentence(half(1000, 10), int8(1000, 10))
    assert verdict.sentence == (
        "INT8 moves 2.5x the bytes of FP16 here, 50 % of them in requantization; on an RTX 4090 with "
        "TensorRT for RTX expect 0.4x the speed of FP16 (estimated 0.0101 beside 0.00404 ms); a and b are "
        "the reason"
    )
    assert verdict.reasons == ("a", "b")


def test_many_layers_are_counted():
    assert sentence(half(5, 4, 3, 2, 1), int8(5, 4, 3, 2, 1)).sentence.endswith(
        "; a, b, c and 2 other layers are the reason"
    )
    assert sentence(half(5, 4, 3, 2), int8(5, 4, 3, 2)).sentence.endswith(
        "; a, b, c and 1 other layer are the reason"
    )
    assert sentence(half(5), int8(5)).sentence.endswith("; a is the reason")


def test_int8_that_gains():
    fused = engine("INT8+FP16", product("a", "Int8", "Int8", 1000))
    verdict = sentence(half(1000), int8(1000), fused, gpu="T4")
    assert verdict.sentence == (
        "INT8+FP16 moves 0.5x the bytes of FP16 here; on a T4 with TensorRT for RTX expect up to 2x "
        "the speed of FP16 (estimated 0.002 beside 0.004 ms)"
    )
    assert verdict.reasons == ()


def test_int8_that_gains_nothing():
    verdict = sentence(half(1000), engine("INT8", product("a", "Int8", "Int8", 2000)))
    assert verdict.sentence == (
        "INT8 moves 1x the bytes of FP16 here; on an RTX 4090 with TensorRT for RTX expect no gain "
        "(estimated 0.004 beside 0.004 ms)"
    )


def test_lost_attention():
    before = engine("FP16", attention(100), attention(100))
    after = engine("INT8", attention(100, "Int8"), product("a", "Int8", "Float", 5000))
    assert "; 1 of 2 fused attentions are lost; a is the reason" in sentence(before, after).sentence


def test_a_cache_that_holds_most_of_the_bytes():
    # Half of the cache is 8 KiB.
    kept = sentence(half(1000), engine("INT8", product("a", "Int8", "Int8", 4000, 1000), gpu=CACHING_GPU))
    assert "(estimated 0.009 beside 0.004 ms without the L2 cache, which may hold 89 % of these bytes)" in (
        kept.sentence
    )
    sliced = Layer("__myl_Slic_myl0_3", "kgen", ("Int8",), (), ("Int8",), ("s",), ((8000,),), (), ((9,),))
    whole = sentence(half(1000), engine("INT8", product("a", "Int8", "Int8", 4000), sliced, gpu=CACHING_GPU))
    assert "which may hold 100 % of these bytes)" in whole.sentence
    large = sentence(half(1000), engine("INT8", product("a", "Int8", "Int8", 9000), gpu=CACHING_GPU))
    assert "(estimated 0.018 beside 0.004 ms)" in large.sentence


@pytest.mark.parametrize("missing", ["FP16", "INT8"])
def test_what_cannot_be_compared(missing):
    unknown = engine(missing, product("a", "Half", "Half", -1))
    engines = [unknown, half(10) if missing == "INT8" else int8(10)]
    verdict = sentence(*engines)
    assert verdict.sentence == (
        "the builder does not list the shapes and types of all tensors, so INT8 and FP16 cannot be compared"
    )
    assert verdict.reasons == ()
