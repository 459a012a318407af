"""What quantization tools write, linted and mended: real exports, and rebuilt forms of tools that are large.

The files in ``golden`` hold networks of three layers. NNCF 3.4.0 wrote one, with ``nncf.quantize`` of an ONNX
model. The exporters of PyTorch 2.14.1 wrote the others: of Brevitas (``export_onnx_qcdq``, weights with one
scale and with one per channel), of PT2E (XNNPACK's quantizer, ``fold_quantize=False``), and of fake
quantization with the settings for fbgemm.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest

from calibrators.host.session import open_session
from tests.trtint8.interop.pairs_by_hand import proto_of
from tests.trtint8.onnx_models import normal, parsed
from trtint8.interop.lint import lint, mend
from trtint8.models.model import load_model
from trtint8.models.serialization import to_proto

GOLDEN = Path(__file__).parent / "golden"

#: Rules whose findings say that steps are given up.
GIVEN_UP = {"steps", "weight-steps"}

SHAPE = (4, 4, 8, 8)


def sqnr(wanted, found):
    noise = float(np.square(wanted.astype(np.float64) - found).sum())
    return np.inf if noise == 0 else 10 * np.log10(float(np.square(wanted.astype(np.float64)).sum()) / noise)


def mended(proto, shape=SHAPE):
    """Mends a model, and checks that it computes the same, or that a finding says which steps are lost.

    Returns:
        The names of the findings' rules, and how many layers are in INT8.
    """
    model = load_model(proto)
    findings = lint(model)
    assert all(finding.mendable for finding in findings)
    result = mend(model)
    made = to_proto(result.graph_model)
    assert lint(load_model(made)) == []
    rules = {finding.rule for finding in findings}
    # As far as the ranges reach, and beyond them.
    least = 15 if rules & GIVEN_UP else 100
    for size in (0.5, 20.0):
        x = (np.random.default_rng(0).normal(size=shape) * size).astype(np.float32)
        wanted, found = (
            open_session(one.SerializeToString(), optimize=False).run(None, {"x": x})[0]
            for one in (to_proto(model.graph_model), made)
        )
        assert sqnr(wanted, found) > least
    return rules, len(result.quantized_nodes)


@pytest.mark.parametrize(
    ("name", "lost", "int8"),
    [
        # The ranges behind both Relus are uint8, and the pooled input of the last layer has no pair.
        ("brevitas_per_channel", True, 2),
        ("brevitas_per_tensor", True, 2),
        ("pt2e_xnnpack", True, 3),  # int8 with zero points
        ("fake_quantize_fbgemm", False, 3),  # uint8 of 128 steps
        ("nncf", True, 3),  # uint8 behind a Relu
    ],
)
def test_real_exports_compute_the_same_or_lose_steps_by_name(name, lost, int8):
    proto = onnx.load(GOLDEN / f"{name}.onnx")
    rules, count = mended(proto)
    assert (bool(rules & GIVEN_UP), count) == (lost, int8)


def network(opset):
    shapes = {"a": (8, 4, 3, 3), "b": (8,), "c": (8, 8, 3, 3), "d": (8,), "e": (8, 5)}
    arrays = {name: normal(*shape, seed=ord(name)) * np.float32(0.4) for name, shape in shapes.items()}
    body = """[first] c1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, a, b) r = Relu (c1)
        [second] c2 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r, c, d) s = Add (c2, r)
        g = GlobalAveragePool (s) f = Flatten (g) [product] y = MatMul (f, e)"""
    return parsed("float[N, 4, 8, 8] x", "float[N, 5] y", body, opset=opset, ir_version=10, **arrays)


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize(
    ("activations", "weights", "options", "lost"),
    [
        ("QInt8", "QInt8", {"extra_options": {"ActivationSymmetric": True}}, False),
        ("QInt8", "QInt8", {"extra_options": {"ActivationSymmetric": True}, "per_channel": True}, False),
        ("QInt8", "QInt4", {"extra_options": {"ActivationSymmetric": True}}, False),
        ("QInt8", "QInt8", {}, True),
        ("QUInt8", "QInt8", {"per_channel": True}, True),
        ("QUInt8", "QUInt8", {}, True),
        ("QUInt16", "QInt8", {}, True),
        ("QInt16", "QInt8", {"extra_options": {"ActivationSymmetric": True}}, True),
    ],
)
def test_onnxruntimes_pairs_of_every_type(opset, activations, weights, options, lost, tmp_path):
    quantization = pytest.importorskip("onnxruntime.quantization")
    types = [getattr(quantization.QuantType, name, None) for name in (activations, weights)]
    if None in types:
        pytest.skip("this ONNX Runtime lacks the type")

    class Reader(quantization.CalibrationDataReader):
        def __init__(self):
            x = (np.random.default_rng(1).normal(size=(16, *SHAPE[1:])) * 2).astype(np.float32)
            self._batches = iter([{"x": x}])

        def get_next(self):
            return next(self._batches, None)

    onnx.save(network(opset), tmp_path / "float.onnx")
    quantization.quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "quantized.onnx",
        Reader(),
        activation_type=types[0],
        weight_type=types[1],
        **options,
    )
    rules, count = mended(onnx.load(tmp_path / "quantized.onnx"))
    assert (bool(rules & GIVEN_UP), count) == (lost, 3)


@pytest.mark.parametrize(
    ("weights", "zero", "lost"),
    [
        # PyTorch's backend qnnpack: uint8 with a zero point, weights of one scale.
        ("Pair (f, one)", np.uint8(117), True),
        # AIMET's to_onnx_qdq(): uint8, int8 weights per channel; symmetric ones have the zero point 128.
        ("Pair <axis = 0> (f, many)", np.uint8(131), True),
        ("Pair <axis = 0> (f, many)", np.uint8(128), False),
        # Model Optimizer, and PT2E on x86: int8, float weights per channel, or stored ones.
        ("Pair <axis = 0> (f, many)", np.int8(0), False),
        ("Stored <axis = 0> (w, many)", np.int8(0), False),
    ],
)
def test_forms_of_tools_that_are_rebuilt(weights, zero, lost):
    """One convolution, with the pairs of a tool."""
    steps = np.random.default_rng(3).integers(-127, 128, (4, 4, 1, 1)).astype(np.int8)
    arrays = {"w": steps, "f": steps * np.float32(0.01), "b": np.linspace(-1, 1, 4, dtype=np.float32)}
    body = f"d = Pair (x, s) v = {weights} conv = Conv <kernel_shape = [1, 1]> (d, v, b)"
    rules, count = mended(proto_of(body, d_z=zero, s=0.05, one=0.01, many=[0.01] * 4, **arrays))
    assert (bool(rules & GIVEN_UP), count) == (lost, 1)
