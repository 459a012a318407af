"""Layers that decide, and have no gradient."""

import numpy as np
import pytest
from onnx import TensorProto

from calibrators.data.inputs import InputSpec
from tests.trtint8.onnx_models import Shaped
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place
from trtint8.sensitivity.decisions import deciding_operators
from trtint8.sensitivity.effects import ALL, ONLY, EffectMeter, variants_of
from trtint8.sensitivity.error_network import ErrorNetwork
from trtint8.sensitivity.gradients.rule import NoGradientError
from trtint8.sensitivity.probe import Probe
from trtint8.simulation.layers import Quantizer, find_layers
from trtint8.simulation.segments import cut, propagate

ROWS, PICKED = 6, 2
INPUTS = (InputSpec("x", np.dtype(np.float32), ("N", ROWS, 4)),)
X = np.random.default_rng(3).standard_normal((64, ROWS, 4)).astype(np.float32)


def picking(heads=1):
    """Values of the rows with the largest scores; each of ``heads`` picks by scores of its own."""
    g = Shaped(quantized=False)
    values = g.op("MatMul", ["x", g.constant(g.random.standard_normal((4, 3)).astype(np.float32))], "values")
    parts = []
    for head in range(heads):
        weights = g.constant(g.random.standard_normal((4, 1)).astype(np.float32))
        scores = g.op("MatMul", ["x", weights], f"scores{head}")
        flat = g.op("Squeeze", [scores, g.constant(np.int64([2]))], f"flat{head}")
        g.op("TopK", [flat, g.constant(np.int64([PICKED]))], f"largest{head}", axis=1)
        g.nodes[-1].output.append(f"places{head}")
        rows = g.op("Unsqueeze", [f"places{head}", g.constant(np.int64([2]))], f"rows{head}")
        wide = g.op("Expand", [rows, g.constant(np.int64([1, 1, 3]))], f"wide{head}")
        parts.append(g.op("GatherElements", [values, wide], f"picked{head}", axis=1))
    output = parts[0] if heads == 1 else g.op("Sum", parts, "all")
    return g.model({"x": ["N", ROWS, 4]}, output)


def threshold():
    """Values that are kept where a score, which nothing else reads, is positive."""
    g = Shaped(quantized=False)
    values, scores = (
        g.op("MatMul", ["x", g.constant(g.random.standard_normal((4, 4)).astype(np.float32))], name)
        for name in ("values", "scores")
    )
    positive = g.op("Greater", [scores, g.constant(np.float32(0))], "positive")
    kept = g.op("Cast", [positive], "kept", to=TensorProto.FLOAT)
    return g.model({"x": ["N", ROWS, 4]}, g.op("Mul", [values, kept], "masked"))


def opened(model):
    graph_model = prepare(load_model(model)).graph_model
    placement = place(graph_model)
    return graph_model, Quantizer.of(placement, dict.fromkeys(placement.tensors, 3.0))


def deciding(model):
    graph_model, quantizer = opened(model)
    graph = graph_model.graph
    layers = [layer for layer in find_layers(graph, quantizer.placement) if layer.name != "values"]
    return deciding_operators(list(graph), graph.outputs, layers)


def test_operators_that_decide():
    assert deciding(picking()) == {"scores0": {"TopK"}}
    assert deciding(threshold()) == {"scores": {"Greater"}}


def test_what_no_output_depends_on_decides_nothing():
    model = threshold()
    model.graph.node[-1].input[1] = "x"
    assert deciding(model) == {}


def test_what_only_decides_what_is_picked_is_run_by_itself():
    graph_model, quantizer = opened(picking())
    layers = ("values", "scores0")
    variants, scales = variants_of(layers, predicted=True), {"picked0_out": 1.0}
    meter = EffectMeter(variants, scales, classes=False, labelled=False, predicted=True)
    effects = Probe(graph_model, quantizer, INPUTS, 0, meter).run({"x": X}, None, 0).effects
    found = propagate(cut(graph_model, quantizer), {"x": X}, lambda *_: None)

    def noise(outputs):
        error = outputs["picked0_out"].astype(np.float64) - found.reference["picked0_out"]
        return np.square(error).sum()

    assert effects.noise((ONLY, "scores0")) == pytest.approx(noise(found.only["scores0"])) != 0
    assert effects.noise((ONLY, "values")) == pytest.approx(noise(found.only["values"]), rel=0.3)
    assert effects.noise(ALL) == pytest.approx(noise(found.quantized))
    assert effects.sums[:, 0].tolist() == [64, 64, 64]


def test_gradients_do_not_show_what_a_threshold_decides():
    with pytest.raises(NoGradientError, match="layer 'scores' decides something by Greater alone"):
        ErrorNetwork(*opened(threshold()))


def test_many_layers_that_decide_what_is_picked():
    assert len(ErrorNetwork(*opened(picking(4))).picking) == 4
    with pytest.raises(NoGradientError, match="5 layers only decide which elements a TopK picks"):
        ErrorNetwork(*opened(picking(5)))
