"""What ONNX Runtime's quantizers write in their other formats, mended and judged beside the original."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from calibrators.errors import ModelError
from tests.trtint8.integer_models import ABOVE_ZERO, operators, run
from tests.trtint8.interop.dynamic_models import conv
from tests.trtint8.onnx_models import normal, parsed
from trtint8 import build_int8_engine, calibrate, quantize
from trtint8.cli.main import main
from trtint8.interop.integer_models import expand_static
from trtint8.interop.lint import lint, mend
from trtint8.models.model import load_model
from trtint8.models.serialization import save_model, to_proto

quantization = pytest.importorskip("onnxruntime.quantization")

X = np.random.default_rng(5).uniform(-1, 1, (64, 3, 16, 16)).astype(np.float32)


def network():
    """Every operator that ONNX Runtime's QOperator format has a form for, and some that move data."""
    body = """[first] a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1) r = Relu (a)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
        [branch] b = Conv <pads = [1, 1, 1, 1]> (p, w2, b2) leaky = LeakyRelu <alpha = 0.1> (b)
        add = Add (leaky, p) s = Relu (add) [gate] g = Conv <pads = [1, 1, 1, 1]> (s, w3, b3)
        gate = Sigmoid (g) m = Mul (s, gate) c = Concat <axis = 1> (m, leaky)
        average = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (c)
        [wide] w = Conv <pads = [1, 1, 1, 1]> (average, w4, b4) global = GlobalAveragePool (w)
        f = Flatten (global) [gemm] h = Gemm (f, w5, b5) [matmul] i = MatMul (h, w6) y = Softmax (i)"""
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "b2": (8,), "w3": (8, 8, 3, 3), "b3": (8,)}
    shapes |= {"w4": (12, 16, 3, 3), "b4": (12,), "w5": (12, 10), "b5": (10,), "w6": (10, 6)}
    # Weights large enough that outputs differ between samples.
    random = np.random.default_rng(0)
    weights = {name: np.float32(0.3 * random.standard_normal(shape)) for name, shape in shapes.items()}
    return parsed("float[N, 3, 16, 16] x", "float[N, 6] y", body, **weights)


class Reader(quantization.CalibrationDataReader):
    def __init__(self):
        self._batches = iter([{"x": X}])

    def get_next(self):
        return next(self._batches, None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("foreign")
    save_model(load_model(network()).graph_model, folder / "float.onnx")
    symmetric = {"ActivationSymmetric": True}
    for name, options in {
        "uint8": {"activation_type": quantization.QuantType.QUInt8},
        "int8": {},
        "symmetric": {"extra_options": symmetric, "per_channel": True},
    }.items():
        quantization.quantize_static(
            folder / "float.onnx",
            folder / f"{name}.onnx",
            Reader(),
            quant_format=quantization.QuantFormat.QOperator,
            **options,
        )
    quantization.quantize_dynamic(
        folder / "float.onnx", folder / "dynamic.onnx", weight_type=quantization.QuantType.QUInt8
    )
    return folder


@pytest.mark.parametrize("name", ["uint8", "int8", "symmetric"])
def test_qoperator_models_are_mended(folder, name):
    original = load_model(folder / f"{name}.onnx")
    found = lint(original)
    rules = {finding.rule for finding in found}
    # Older versions of ONNX Runtime leave some operators that move data in float.
    others = {"integer-data", "zero-point", "concat-scales", "type", "steps"}
    assert "qlinear" in rules and rules <= {"qlinear", *others}
    assert all(finding.mendable for finding in found)
    assert {"QLinearAdd", "QGemm", "QLinearConcat", "QLinearSoftmax"} <= {
        node.op_type for node in original.graph_model.graph
    }
    mended = mend(original)
    assert len(mended.quantized_nodes) == 6 and not mended.unquantized.kept_float
    proto = to_proto(mended.graph_model)
    assert not lint(load_model(proto))
    assert [entry.domain for entry in proto.opset_import] == [""]
    assert all(finding.rule == "steps" for finding in mended.changes)
    theirs, ours, exact = (
        # ONNX Runtime cannot optimize a QGemm of int8 with int8.
        run(model, optimize=False, x=X)
        for model in (to_proto(original.graph_model), proto, network_of(folder))
    )
    assert np.ptp(exact, axis=0).max() > 0.1
    assert np.abs(ours - theirs).max() < 0.05
    # The mended model quantizes less, so it should not be further from the float one than the original is.
    assert np.abs(ours - exact).mean() <= np.abs(theirs - exact).mean() * 1.1


def network_of(folder):
    return to_proto(load_model(folder / "float.onnx").graph_model)


def test_qoperator_models_build_in_int8(folder, tmp_path):
    mended = tmp_path / "mended.onnx"
    assert main(["lint", str(folder / "int8.onnx"), "--fix", "-o", str(mended)]) == 0
    built = build_int8_engine(mended, None, tmp_path / "x.engine", target="rtx", progress=False)
    summary = built.info.layers.weighted_summary(built.info.quantized_nodes)
    assert {precision: len(nodes) for precision, nodes in summary.items()} == {"INT8": 6}


@pytest.mark.slow
def test_dynamically_quantized_models_become_float(folder, tmp_path):
    original = load_model(folder / "dynamic.onnx")
    found = lint(original)
    assert [finding.rule for finding in found] == ["dynamic-scale"] * 6
    assert all(f.mendable and "run `trtint8 calibrate` and `trtint8 quantize`" in f.message for f in found)
    mended = mend(original)
    assert mended.quantized_nodes == () and len(mended.unquantized.kept_float) == 6
    proto = to_proto(mended.graph_model)
    whole = (
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "ConvInteger",
        "MatMulInteger",
        "Cast",
    )
    assert not set(operators(proto)) & set(whole)
    assert operators(proto).count("Conv") == 4
    assert [entry.domain for entry in proto.opset_import] == [""]
    weights = {
        (t.dims[0], t.dims[1]): numpy_helper.to_array(t) for t in proto.graph.initializer if len(t.dims) == 4
    }
    floats = numpy_helper.to_array(network_of(folder).graph.initializer[0])
    assert np.abs(weights[(8, 3)] - floats).max() <= np.ptp(floats) / 255 * 0.51
    assert len(np.unique(weights[(8, 3)])) <= 256
    np.testing.assert_allclose(run(proto, x=X), run(network_of(folder), x=X), atol=0.05)
    np.testing.assert_allclose(run(proto, x=X), run(to_proto(original.graph_model), x=X), atol=0.05)
    # The mended model goes the ordinary way.
    path = save_model(mended.graph_model, tmp_path / "mended.onnx")
    table = calibrate(path, {"x": X}, progress=False)
    assert operators(quantize(path, table)).count("Conv") == 4


def test_a_dynamically_quantized_embedding_becomes_float(tmp_path):
    body = "ids = Cast <to = 7> (x) rows = Gather (table, ids) t = Tanh (rows) y = MatMul (t, w)"
    weights = {"table": 0.1 * normal(20, 8), "w": 0.1 * normal(8, 4, seed=1)}
    source = parsed("float[N, 5] x", "float[N, 5, 4] y", body, **weights)
    save_model(load_model(source).graph_model, tmp_path / "float.onnx")
    quantization.quantize_dynamic(tmp_path / "float.onnx", tmp_path / "dynamic.onnx")
    model = load_model(tmp_path / "dynamic.onnx")
    found = [finding for finding in lint(model) if finding.rule == "dynamic-scale"]
    assert len(found) == 1 and "`trtint8 quantize` on the mended model" in found[0].message
    proto = to_proto(mend(model).graph_model)
    assert operators(proto) == ["Cast", "Gather", "Tanh", "MatMul"]
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    np.testing.assert_allclose(run(proto, x=x), run(source, x=x), atol=0.01)
    assert np.ptp(run(source, x=x)) > 0.1


@pytest.mark.parametrize("per_channel", [False, True])
def test_integer_operators_with_a_known_scale_become_pairs(per_channel):
    source, weights = conv(static=True, per_channel=per_channel)
    model = load_model(source)
    assert [(f.rule, f.node) for f in lint(model) if f.rule != "zero-point" and f.rule != "type"] == [
        ("integer-operator", "node"),
        ("steps", "q"),
        ("weight-steps", "node"),
    ]
    mended = mend(model)
    assert mended.quantized_nodes == ("node",)
    assert mended.unquantized.ranges == {"x_clip": pytest.approx(135 * 0.05)}
    proto = to_proto(mended.graph_model)
    assert operators(proto) == ["Clip", *["QuantizeLinear", "DequantizeLinear"] * 2, "Conv", "Relu"]
    stored = [numpy_helper.to_array(t) for t in proto.graph.initializer if list(t.dims) == [5, 4, 3, 3]]
    np.testing.assert_allclose(stored[0], weights, rtol=1e-6)


def integers(body, inputs="float[N, 4, 8, 8] x", output="float[o0, o1, o2, o3] y", **constants):
    """A model of quantized images."""
    parameters = {"s": np.float32(0.05), "z": ABOVE_ZERO} | constants
    body = f"[quantize] q = QuantizeLinear (x, s, z) {body}"
    return parsed(inputs, output, body, domains=["com.microsoft"], **parameters)


@pytest.mark.parametrize("opset", [10, 12, 13])
def test_one_scale_per_channel_before_opset_13(opset):
    # DequantizeLinear has an axis since opset 13.
    stored = np.random.default_rng(0).integers(-128, 128, (8, 3, 1, 1)).astype(np.int8)
    scales = {"k": np.linspace(0.001, 0.002, 8, dtype=np.float32), "o": np.zeros(8, np.int8)}
    body = "[conv] node = QLinearConv (q, s, z, w, k, o, s, z) y = DequantizeLinear (node, s, z)"
    model = integers(body, "float[N, 3, 4, 4] x", w=stored, opset=opset, **scales)
    for node in model.graph.node if opset == 12 else ():
        node.name = ""  # as other tools write them
    expanded = to_proto(expand_static(load_model(model).graph_model, "model"))
    onnx.checker.check_model(expanded, full_check=True)
    assert "Conv" in operators(expanded) and "QLinearConv" not in operators(expanded)
    x = X[:2, :, :4, :4]
    np.testing.assert_allclose(run(expanded, x=x), run(model, x=x), atol=1e-5)


def test_mixed_models_keep_their_dynamic_nodes_float():
    random = np.random.default_rng(0)
    weights = {"w": random.integers(-128, 128, (4, 4, 3, 3)).astype(np.int8)}
    weights["u"] = random.integers(0, 256, (4, 4, 1, 1)).astype(np.uint8)
    body = """d = DequantizeLinear (q, s, z) v = DequantizeLinear (w, k, z)
        [static] f = Conv <kernel_shape = [3, 3]> (d, v) r, c, o = DynamicQuantizeLinear (f)
        [integer] i = ConvInteger (r, u, o) j = Cast <to = 1> (i) scales = Mul (c, k) y = Mul (j, scales)"""
    model = load_model(integers(body, z=np.int8(0), k=np.float32(0.01), **weights))
    found = lint(model)
    assert [(f.rule, f.node) for f in found] == [("dynamic-scale", "integer")]
    assert found[0].message.endswith("for INT8, quantize the float model that it was made from")
    mended = mend(model)
    assert mended.quantized_nodes == ("static",) and mended.unquantized.kept_float == ["integer"]


def test_obstacles_are_told_of_the_operator_that_has_them(tmp_path, capsys):
    body = "[pool] n = com.microsoft.QLinearGlobalAveragePool <channels_last = 1> (q, s, z, s, z)"
    model = integers(body + " y = DequantizeLinear (n, s, z)")
    found = {(finding.rule, finding.node) for finding in lint(load_model(model)) if not finding.mendable}
    assert ("integer-operator", "pool") in found
    path = save_model(load_model(model).graph_model, tmp_path / "last.onnx")
    assert main(["lint", str(path), "--fix", "-o", str(tmp_path / "mended.onnx")]) == 2
    error = capsys.readouterr().err
    assert "TensorRT has no QLinearGlobalAveragePool, and its data is channels_last" in error
    assert not (tmp_path / "mended.onnx").exists()


def test_operators_between_different_scales_are_told():
    body = """[first] a = com.microsoft.QLinearSigmoid (q, s, z, s, z)
        [second] b = com.microsoft.QLinearSigmoid (a, t, z, s, z) y = DequantizeLinear (b, s, z)"""
    model = load_model(integers(body, t=np.float32(0.06)))
    found = [finding for finding in lint(model) if not finding.mendable]
    assert [(finding.rule, finding.node) for finding in found] == [("integer-operator", "second")]
    with pytest.raises(ModelError, match="its scale or zero point is not that of 'a_quantize'"):
        mend(model)


@pytest.mark.parametrize("zero", [ABOVE_ZERO, np.int8(0), np.int8(7)])
def test_outputs_of_integers_stay_integers(zero):
    body = "[node] y = com.microsoft.QLinearSigmoid (q, s, z, t, z)"
    source = integers(body, output=f"{zero.dtype}[o0, o1, o2, o3] y", z=zero, t=np.float32(0.01))
    mended = mend(load_model(source))
    assert "QuantizeLinear" in operators(to_proto(mended.graph_model)) or zero != 0
    x = np.random.default_rng(0).uniform(-9, 9, (2, 4, 8, 8)).astype(np.float32)
    wanted, found = (run(model, x=x).astype(int) for model in (source, to_proto(mended.graph_model)))
    assert np.abs(wanted - found).max() <= 1 and (wanted == found).mean() > 0.8


def test_a_model_without_weighted_nodes_keeps_the_ends_of_its_pairs():
    body = "[node] n = com.microsoft.QLinearSigmoid (q, s, z, s, z) y = DequantizeLinear (n, s, z)"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mended = mend(load_model(integers(body)))
    assert mended.quantized_nodes == ()
    # What comes out of the Sigmoid is within its pair's ends, 100 to -120 steps.
    assert operators(to_proto(mended.graph_model)) == [
        "Clip",
        "Sigmoid",
        "QuantizeLinear",
        "DequantizeLinear",
    ]
