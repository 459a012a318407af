"""Integer inference: by hand, against plain loops, and against fake quantization in ONNX Runtime."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from calibrators.data.batches import open_batches
from calibrators.data.preprocessing import Preprocessing
from calibrators.errors import ModelError
from calibrators.host.onnx_session import open_session
from tests.trtint8.onnx_models import Shaped
from tests.trtint8.quantization.integer.exact_models import pair
from trtint8 import calibrate, model_inputs, quantize
from trtint8.data import DEMO_MODEL, load_digits_split
from trtint8.quantization.integer.inference import compare_quantized, run_integer
from trtint8.quantization.integer.rounding import Rounding

pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'trtint8[demo]')")

NORMALIZED = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def linear(weights, bias, scale=0.5, weight_scale=0.25, rounding=Rounding.HALF_EVEN, x=((1.0, -2.0),)):
    g = Shaped()
    weight = g.constant(np.asarray(weights, np.float32))
    inputs = [
        pair(g, "x", scale),
        pair(g, weight, weight_scale, axis=None if np.ndim(weight_scale) == 0 else 0),
    ]
    inputs += [g.constant(np.asarray(bias, np.float32))] if bias is not None else []
    model = g.model({"x": ["N", 2]}, g.op("Gemm", inputs, "gemm", transB=1))
    return run_integer(model, {"x": np.asarray(x, np.float32)}, rounding=rounding)


def test_the_bias_is_added_after_dequantization():
    # x = [2, -4] * 0.5, w = [[4, 8], [-8, 0]] * 0.25; sums [-24, -16]; * 0.125 = [-3, -2]; + bias.
    run = linear([[1.0, 2.0], [-2.0, 0.0]], [0.1, 10.0])
    assert run.outputs["gemm_out"].tolist() == [[np.float32(-2.9), 8.0]]
    assert run.largest_sums == {"gemm": 24}
    assert run.quantized["x_pair_q_out"].tolist() == [[2, -4]]


def test_every_output_channel_has_its_own_scale():
    # w = [[4, 8] * 0.25, [-4, 0] * 0.5]; sums [-24, -8]; * [0.125, 0.25].
    run = linear([[1.0, 2.0], [-2.0, 0.0]], None, weight_scale=[0.25, 0.5])
    assert run.outputs["gemm_out"].tolist() == [[-3.0, -2.0]]


@pytest.mark.parametrize(
    ("rounding", "wanted"), [(Rounding.HALF_EVEN, [[2, -2]]), (Rounding.HALF_AWAY_FROM_ZERO, [[3, -3]])]
)
def test_ties_go_as_the_target_rounds(rounding, wanted):
    run = linear([[1.0, 2.0]], None, rounding=rounding, x=((1.25, -1.25),))
    assert run.quantized["x_pair_q_out"].tolist() == wanted


def test_functions_of_the_model_are_computed():
    g = Shaped()
    weight = pair(g, g.constant(np.asarray([[1.0, 2.0]], np.float32)), 0.25)
    g.op("Gemm", [pair(g, "x", 0.5), weight], "gemm", transB=1)
    model = g.model({"x": ["N", 2]}, "gemm_out")
    body = [helper.make_node("Neg", ["a"], ["b"])]
    model.functions.append(
        helper.make_function("own", "Turned", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    )
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node.append(helper.make_node("Turned", ["gemm_out"], ["turned"], domain="own"))
    model.graph.output[0].name = "turned"
    run = run_integer(model, {"x": np.asarray([[1.0, -2.0]], np.float32)})
    assert run.outputs["turned"].tolist() == [[3.0]]


def test_overflow_of_the_accumulator():
    g = Shaped()
    count = 140_000  # 127 * 127 * 140,000 is above 2^31
    weights = g.constant(np.full((1, count), 127, np.float32))
    inputs = [pair(g, "x", 1.0), pair(g, weights, 1.0)]
    model = g.model({"x": ["N", count]}, g.op("Gemm", inputs, "wide", transB=1))
    with pytest.raises(ModelError, match="a sum in node 'wide' reaches 2258060000, which an accumulator"):
        run_integer(model, {"x": np.full((1, count), 127, np.float32)})


def test_agreement_is_measured():
    first = {
        "a": np.array([1, 2, 3, 4], np.int8),
        "b": np.array([0], np.int8),
        "only": np.array([1], np.int8),
    }
    second = {"a": np.array([1, 2, 4, 2], np.int8), "b": np.array([0], np.int8)}
    found = compare_quantized(first, second)
    assert [(a.tensor, a.largest, a.share) for a in found] == [("a", 2, 0.5), ("b", 0, 0.0)]


def simulated(model, feeds):
    """Every quantized tensor as ONNX Runtime computes it, without integer fusions."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    names = [node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"]
    watched.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    session = open_session(watched.SerializeToString(), optimize=False)
    return dict(zip(names, session.run(names, feeds), strict=True))


def agreements(model, feeds):
    """Tensor by tensor with the simulation's own inputs, and with the differences that add up."""
    wanted = simulated(model, feeds)
    own = run_integer(model, feeds, follow=wanted)
    assert max(own.largest_sums.values()) < 2**31
    free = run_integer(model, feeds)
    return compare_quantized(own.quantized, wanted), compare_quantized(free.quantized, wanted)


@pytest.mark.slow
def test_the_digits_model_agrees_to_one_step():
    images = load_digits_split().heldout_images[:100]
    table = calibrate(DEMO_MODEL, images, progress=False)
    own, free = agreements(quantize(DEMO_MODEL, table), {"images": images})
    assert len(own) == 18  # nine activations, nine weights
    assert own[0].largest <= 1
    # Only values within a rounding error of a tie can differ.
    assert max(one.share for one in own) < 1e-4
    assert free[0].largest <= 2


def test_resnet20_agrees_to_one_step():
    folder = Path(os.environ.get("TRTINT8_CIFAR10", "missing"))
    if not (folder / "resnet20.onnx").is_file():
        pytest.skip("the environment variable TRTINT8_CIFAR10 names no folder with resnet20.onnx")
    model, options = folder / "resnet20.onnx", {"preprocessing": NORMALIZED}
    table = calibrate(model, folder / "calibration.npz", limit=100, progress=False, **options)
    batches = open_batches(folder / "heldout.npz", model_inputs(model), batch_size=100, **options)
    own, _ = agreements(quantize(model, table), next(iter(batches)))
    assert own[0].largest <= 1
    assert max(one.share for one in own) < 1e-4
