import contextlib

import numpy as np
import pytest

import trtint8
from calibrators.errors import ModelError
from tests.trtint8.integer_models import MICROSOFT, ZERO, Integers
from tests.trtint8.interop.dynamic_models import Dynamic
from tests.trtint8.validation.small_models import scaled
from trtint8.engine.file import TensorSpec
from trtint8.validation import opening

DATA = np.eye(4, dtype=np.float32) + np.float32(1 / 3)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("z", "y"), "the inputs of INT8 are z, the reference's x; compare with the model"),
        (("x", "z"), "the outputs of INT8 are z, the reference's y; compare with the model"),
    ],
)
def test_models_that_do_not_belong_together(names, message):
    with pytest.raises(ModelError, match=message):
        trtint8.validate(scaled(1.0, names=names), DATA, reference=scaled(1.0), progress=False)


class HalfEngine:
    """What is used of an engine, on a GPU that is not there."""

    inputs = (TensorSpec("x", "float16", (None, 4)),)
    outputs = (TensorSpec("z", "float32", (None, 4)), TensorSpec("y", "float32", (None, 4)))

    @staticmethod
    @contextlib.contextmanager
    def load(path, plugins, allow_host_code):
        yield HalfEngine()

    def infer(self, feeds):
        assert feeds["x"].dtype == np.float16
        return {"y": feeds["x"].astype(np.float32), "z": feeds["x"].astype(np.float32) * 2}


def test_an_engine_is_fed_its_own_type_and_gives_outputs_in_order(monkeypatch):
    monkeypatch.setattr(opening, "gpu_problem", lambda: None)
    monkeypatch.setattr(opening, "gpu_names", lambda: ["NVIDIA T1000"])
    monkeypatch.setattr(opening, "Engine", HalfEngine)
    inputs = trtint8.model_inputs(scaled(1.0))
    with opening.open_validated("INT8", "m.engine", inputs, ["z", "y"]) as judged:
        twice, once = judged.run({"x": DATA})
    assert judged.description == "the engine on NVIDIA T1000"
    assert np.array_equal(twice, 2 * once) and np.array_equal(once, DATA.astype(np.float16))


# Models with operators that compute on integers.
def saturating():
    """Quantized rows, and weights whose pairs of products with them do not fit int16: 255 * 127 * 2."""
    rows = np.full((2, 8), 255, np.float32)
    weights = np.full((8, 3), 127, np.int8)
    return rows, weights


def integer_product():
    g = Integers()
    _, weights = saturating()
    operands = [*g.quantize("x", 1, ZERO), g.constant(weights), *g.parameters(1, np.int8(0))]
    output = g.parameters(2048, ZERO)
    y = g.op("QLinearMatMul", [*operands, *output], "node")
    return g.proto({"x": ["N", 8]}, g.dequantize(y, output), 2)


def dynamic_product():
    g = Dynamic()
    _, weights = saturating()
    data, scale, zero = g.quantize_dynamic("x")
    y = g.op("MatMulInteger", [data, g.constant(weights), zero, g.constant(np.int8(0))], "node")
    return g.proto({"x": ["N", 8]}, g.scaled(y, [scale, g.constant(np.float32(1))]), 2)


def fused_dynamic_product():
    """The same product as ONNX Runtime's optimizer fuses it."""
    g = Integers()
    _, weights = saturating()
    operands = ["x", g.constant(weights), *g.parameters(1, np.int8(0))]
    y = g.op("DynamicQuantizeMatMul", operands, "node", **MICROSOFT)
    return g.proto({"x": ["N", 8]}, y, 2)


@pytest.mark.parametrize(
    ("model", "step", "description"),
    [
        (
            integer_product(),
            2048,
            "the model with QLinearMatMul expanded to Q/DQ pairs, as fake quantization, in ONNX Runtime",
        ),
        (dynamic_product(), 1, "the model with MatMulInteger in integer kernels, in ONNX Runtime"),
        (
            fused_dynamic_product(),
            1,
            "the model with DynamicQuantizeMatMul in integer kernels, in ONNX Runtime",
        ),
    ],
)
def test_integer_operators_are_judged_by_exact_sums(model, step, description):
    rows, weights = saturating()
    inputs = trtint8.model_inputs(model)
    output = model.graph.output[0].name
    with opening.open_validated("INT8", model, inputs, [output]) as judged:
        (result,) = judged.run({"x": rows})
    exact = rows @ weights.astype(np.float32)
    assert exact[0, 0] == 8 * 255 * 127
    # With sums in int16 it would be 8 / 2 * 32767, half of that.
    np.testing.assert_array_equal(result, np.round(exact / step) * step)
    assert judged.description == description
