"""Which layers would be slower in INT8; that compiled engines agree is shown with TensorRT for RTX."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import trtint8
from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.quantization.targets import TARGETS


def conv(g, source, name, inputs, outputs, size=3, **attributes):
    weights = g.weights(outputs, inputs // attributes.get("group", 1), size, size)
    made = g.op("Conv", [source, weights], name, pads=[size // 2] * 4, **attributes)
    return g.op("Relu", [made], f"{name}_relu")


def thin():
    """Convolutions of few channels, of which memory is the limit."""
    g = Shaped()
    y = conv(g, conv(g, conv(g, "x", "a", 16, 16), "b", 16, 16), "c", 16, 16)
    return g.model({"x": ["N", 16, 32, 32]}, y)


def wide():
    """Convolutions of many channels, of which arithmetic is the limit."""
    g = Shaped()
    y = conv(g, conv(g, "x", "a", 256, 256), "b", 256, 256)
    return g.model({"x": ["N", 256, 16, 16]}, y)


def separable():
    """A depthwise convolution between two that mix channels."""
    g = Shaped()
    y = conv(g, conv(g, "x", "a", 16, 96, 1), "deep", 96, 96, group=96)
    return g.model({"x": ["N", 16, 32, 32]}, conv(g, y, "b", 96, 16, 1))


def squeezed():
    """A convolution whose input is much larger than its output, between generated kernels."""
    g = Shaped()
    y = conv(g, g.op("Erf", ["x"], "before"), "a", 256, 16, 1)
    return g.model({"x": ["N", 256, 16, 16]}, g.op("Softmax", [y], "after"))


def linear():
    """Layers of four dimensions between generated kernels, which take rounding and scaling in."""
    g = Shaped()
    y = g.op("Erf", [g.op("MatMul", [g.op("Erf", ["x"], "e"), g.weights(64, 256)], "a")], "f")
    y = g.op("Erf", [g.op("MatMul", [y, g.weights(256, 64)], "b")], "g")
    return g.model({"x": ["N", 8, 16, 64]}, y)


CASES = {
    thin: {"a", "b", "c"},
    wide: set(),
    separable: {"a", "deep", "b"},
    squeezed: set(),
    linear: set(),
}


def placed(form, **options):
    model = prepare(load_model(form().SerializeToString())).graph_model
    return place(model, target=TARGETS["rtx"], **{"float16": True} | options)


@pytest.mark.parametrize("form", CASES)
def test_what_stays_in_fp16(form):
    found = placed(form)
    assert set(found.slower) == CASES[form]
    assert not set(found.slower) & set(found.quantized_nodes)


@pytest.mark.slow
@pytest.mark.parametrize("form", CASES)
def test_compiled_engines_agree(rtx, form):
    """The choice takes no longer than FP16, and no longer than all layers in INT8."""
    model = form()
    sizes = [size.dim_value or 8 for size in model.graph.input[0].type.tensor_type.shape.dim]
    samples = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
    table = trtint8.calibrate(model, samples, progress=False)
    options = {"target": "rtx", "progress": False}
    chosen = trtint8.audit(model, table, "A10", **options)
    everywhere = trtint8.audit(model, table, "A10", keep_int8=["*"], **options).engine("INT8+FP16").seconds
    half, mixed = (chosen.engine(name).seconds for name in ("FP16", "INT8+FP16"))
    assert mixed <= 1.0001 * half
    assert mixed <= 1.0001 * everywhere
    assert (mixed < 0.9 * half) == (not CASES[form])


def test_reasons():
    reasons = {found.node: found.reason for found in placed(separable).decisions}
    assert reasons["deep"] == "INT8 would be slower: groups of 1 input channel are padded to 4"
    assert reasons["a"] == (
        "INT8 would be slower: to requantize its output takes longer than its products save"
    )


def test_without_fp16_and_for_other_targets_nothing_is_left():
    model = prepare(load_model(thin().SerializeToString())).graph_model
    assert placed(thin, float16=False).slower == ()
    for name in TARGETS.keys() - {"rtx"}:
        assert place(model, target=TARGETS[name], float16=True).slower == ()


def test_layers_can_be_kept_in_int8():
    assert placed(thin, keep_int8=["*"]).quantized_nodes == ("a", "b", "c")
    assert "a" in placed(thin, keep_int8=["a"]).quantized_nodes
    with pytest.raises(trtint8.ModelError, match="keep_int8: 'z' matches no node"):
        placed(thin, keep_int8=["z"])


def test_keep_float_comes_first():
    found = placed(wide, keep_float=["a"], keep_int8=["*"])
    assert found.quantized_nodes == ("b",)
    assert found.slower == ()


def test_what_has_no_known_size_is_in_int8():
    g = Shaped()
    y = conv(g, g.op("Reshape", ["x", "sizes"], "reshape"), "a", 16, 16)
    model = g.model({"x": ["N", 16, 32, 32]}, y)
    model.graph.input.append(helper.make_tensor_value_info("sizes", TensorProto.INT64, [4]))
    graph = prepare(load_model(model.SerializeToString())).graph_model
    assert place(graph, target=TARGETS["rtx"], float16=True).quantized_nodes == ("a",)
