"""Engines of the demo's network, built on this machine."""

import dataclasses

import numpy as np
import pytest
from onnx import helper

import trtint8
from calibrators.errors import BuildError, ModelError, UnsupportedError
from tests.trtint8.auditing.kernels import CACHING_GPU, GPU, attention, product, report, requantization
from tests.trtint8.onnx_models import conv_relu_conv
from trtint8.auditing.audit import estimate_engine, judge
from trtint8.data import DEMO_MODEL
from trtint8.engine.profiles import ShapeRange
from trtint8.models.model import load_model


@pytest.fixture(scope="module")
def audited(rtx, table):
    return trtint8.audit(DEMO_MODEL, table, "RTX 4090", target="rtx", keep_int8=["/fc/*"])


def test_engines_side_by_side(audited):
    assert [engine.precision for engine in audited.engines] == ["FP32", "FP16", "INT8", "INT8+FP16"]
    assert (audited.flavor, audited.compute_capability, audited.of_another_gpu) == ("rtx", "8.9", False)
    assert audited.shapes == {"images": (8, 1, 8, 8)}
    assert audited.model_fingerprint == load_model(DEMO_MODEL).fingerprint
    assert not audited.uncounted
    for engine in audited.engines:
        assert not engine.unplaced
        assert engine.traffic.total == sum(kernel.traffic.total for kernel in engine.kernels)
        assert engine.seconds == pytest.approx(sum(part.seconds for part in engine.parts))


@pytest.mark.filterwarnings("ignore:ONNX has no such operator:UserWarning")
def test_nodes_that_no_engine_has_are_named(rtx):
    model = conv_relu_conv(quantized=False)
    last = model.graph.output[0]
    model.graph.node.append(helper.make_node("Mine", [last.name], ["mine"], "unknown"))
    model.graph.output[0].name = "mine"
    data = np.random.default_rng(0).standard_normal((4, 3, 16, 16)).astype(np.float32)
    table = trtint8.calibrate(model, data, method="minmax")
    audited = trtint8.audit(model, table, "RTX 4090", target="rtx")
    assert audited.left_out == {"unknown": "Mine"}


def test_every_multiply_add_is_in_one_type(audited):
    fp32, fp16, int8, mixed = (engine.multiply_adds for engine in audited.engines)
    number = fp32["FP32"]
    assert fp32 == {"FP32": number}
    assert fp16 == {"FP16": number}
    assert int8 == {"INT8": number}
    assert set(mixed) == {"FP16", "INT8"} and sum(mixed.values()) == number


def test_layers_that_would_be_slower_are_fp16(audited, rtx, table):
    half = audited.engine("FP16")
    forced = trtint8.audit(DEMO_MODEL, table, "RTX 4090", target="rtx", keep_int8=["*"])
    everywhere = forced.engine("INT8+FP16")
    assert set(everywhere.multiply_adds) == {"INT8"}
    chosen = trtint8.audit(DEMO_MODEL, table, "RTX 4090", target="rtx").engine("INT8+FP16")
    assert set(chosen.multiply_adds) == {"FP16"}
    assert chosen.traffic.total == half.traffic.total < everywhere.traffic.total


def test_int8_requantizes(audited):
    assert audited.engine("FP16").part("requantization").kernels == 0
    assert audited.engine("INT8").part("requantization").kernels > 0
    assert audited.verdict.startswith("INT8") and "the bytes of FP16 here" in audited.verdict
    assert "with TensorRT for RTX expect" in audited.verdict


def test_the_shapes_of_a_profile(rtx, table):
    profile = {"images": ShapeRange((1, 1, 8, 8), (2, 1, 8, 8), (4, 1, 8, 8))}
    found = trtint8.audit(DEMO_MODEL, table, "H100", target="rtx", profile=profile)
    assert found.shapes == {"images": (2, 1, 8, 8)}
    assert (found.compute_capability, found.of_another_gpu) == ("8.9", True)
    assert "on an H100 with kernels like those of TensorRT for RTX expect " in found.verdict
    # It is in whatever shows the verdict, such as a report.
    assert "TensorRT for RTX has no INT8 for compute capability 9.0 of H100" in found.verdict
    # What is slower in INT8 with this TensorRT may be faster with the one that runs there.
    assert set(found.engine("INT8+FP16").multiply_adds) == {"INT8"}


def test_what_is_kept_in_float(rtx, table):
    found = trtint8.audit(DEMO_MODEL, table, "A10", target="rtx", keep_float=["*"])
    assert found.engine("INT8").multiply_adds == found.engine("FP32").multiply_adds


def test_bad_input(rtx, table):
    with pytest.raises(UnsupportedError, match="there are no figures for a GPU 'x'"):
        trtint8.audit(DEMO_MODEL, table, "x")
    with pytest.raises(BuildError, match="the profile names an input 'y'"):
        one = ShapeRange((1,), (1,), (1,))
        trtint8.audit(DEMO_MODEL, table, "A10", target="rtx", profile={"y": one})
    with pytest.raises(ModelError, match="holds Q/DQ pairs already"):
        trtint8.audit(conv_relu_conv().SerializeToString(), table, "A10")


NODES = ("a", "b", "c", "d", "e")


def engine(precision, *layers, gpu=GPU):
    return estimate_engine(precision, report(*layers), dict.fromkeys(NODES, 1), gpu)


def verdict(*engines, gpu="RTX 4090"):
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
    said, reasons = verdict(half(1000, 10), int8(1000, 10))
    assert said == (
        "INT8 moves 2.5x the bytes of FP16 here, 50 % of them in requantization; on an RTX 4090 with "
        "TensorRT for RTX expect 0.43x the speed of FP16 (estimated 0.0141 beside 0.00604 ms); a and b "
        "take longer in INT8"
    )
    assert reasons == ("a", "b")


def test_many_layers_are_counted():
    assert verdict(half(5, 4, 3, 2, 1), int8(5, 4, 3, 2, 1))[0].endswith(
        "; a, b, c and 2 other layers take longer in INT8"
    )
    assert verdict(half(5, 4, 3, 2), int8(5, 4, 3, 2))[0].endswith(
        "; a, b, c and 1 other layer take longer in INT8"
    )
    assert verdict(half(5), int8(5))[0].endswith("; a takes longer in INT8")


def test_int8_that_gains():
    fused = engine("INT8+FP16", product("a", "Int8", "Int8", 1000))
    said, reasons = verdict(half(1000), int8(1000), fused, gpu="T4")
    assert said == (
        "INT8+FP16 moves 0.5x the bytes of FP16 here; on a T4 with TensorRT for RTX expect 1.7x the "
        "speed of FP16 (estimated 0.003 beside 0.005 ms)"
    )
    assert reasons == ()


def test_int8_that_gains_nothing():
    said, _ = verdict(half(1000), engine("INT8", product("a", "Int8", "Int8", 2000)))
    assert said == (
        "INT8 moves 1x the bytes of FP16 here; on an RTX 4090 with TensorRT for RTX expect no gain "
        "(estimated 0.005 beside 0.005 ms)"
    )


def test_lost_attention():
    before = engine("FP16", attention(100), attention(100))
    after = engine("INT8", attention(100, "Int8"), product("a", "Int8", "Float", 5000))
    assert "; 1 of 2 fused attentions are lost; a takes longer in INT8" in verdict(before, after)[0]


def test_a_span_where_the_two_ends_differ():
    # Half of the cache is 8 KiB, and it is four times as fast as the memory.
    gpu = dataclasses.replace(CACHING_GPU, cache_gbs=4 * CACHING_GPU.bandwidth_gbs)
    before = engine("FP16", product("a", "Half", "Half", 1000), gpu=gpu)
    kept, _ = verdict(before, engine("INT8", product("a", "Int8", "Int8", 4000, 1000), gpu=gpu))
    assert (
        "expect 0.5x the speed of FP16 (estimated 0.01 beside 0.005 ms with all bytes from memory, 0.004 "
        "beside 0.002 ms with what fits from the L2 cache)" in kept
    )
    large, _ = verdict(before, engine("INT8", product("a", "Int8", "Int8", 9000), gpu=gpu))
    assert "expect 0.11 to 0.26x the speed of FP16 (estimated 0.019 beside 0.005 ms" in large


@pytest.mark.parametrize("missing", ["FP16", "INT8"])
def test_what_cannot_be_compared(missing):
    unknown = engine(missing, product("a", "Half", "Half", -1))
    engines = [unknown, half(10) if missing == "INT8" else int8(10)]
    said, reasons = verdict(*engines)
    assert said == (
        "the builder does not list the shapes and types of all tensors, so INT8 and FP16 cannot be compared"
    )
    assert reasons == ()
