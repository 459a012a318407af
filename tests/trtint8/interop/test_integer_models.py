"""What ONNX Runtime's quantizers write in their other formats, mended and judged beside the original."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from calibrators.errors import ModelError
from tests.trtint8.integer_models import ABOVE_ZERO, MICROSOFT, Integers, operators, run
from tests.trtint8.interop.dynamic_models import conv
from tests.trtint8.onnx_models import Graph
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
    g = Graph()

    def conv_of(source, name, channels, filters):
        weights = [g.weights(filters, channels, 3, 3), g.weights(filters)]
        return g.op("Conv", [source, *weights], name, pads=[1] * 4)

    x = g.op("Relu", [conv_of("x", "first", 3, 8)], "relu")
    x = g.op("MaxPool", [x], "maxpool", kernel_shape=[2, 2], strides=[2, 2])
    branch = g.op("LeakyRelu", [conv_of(x, "branch", 8, 8)], "leaky", alpha=0.1)
    x = g.op("Relu", [g.op("Add", [branch, x], "add")], "relu_add")
    gate = g.op("Sigmoid", [conv_of(x, "gate", 8, 8)], "sigmoid")
    x = g.op("Concat", [g.op("Mul", [x, gate], "mul"), branch], "concat", axis=1)
    x = g.op("AveragePool", [x], "average", kernel_shape=[2, 2], strides=[2, 2])
    x = g.op("GlobalAveragePool", [conv_of(x, "wide", 16, 12)], "global")
    x = g.op("Flatten", [x], "flatten")
    x = g.op("Gemm", [x, g.weights(12, 10), g.weights(10)], "gemm")
    x = g.op("MatMul", [x, g.weights(10, 6)], "matmul")
    model = g.model({"x": ["N", 3, 16, 16]}, g.op("Softmax", [x], "softmax"))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("softmax_out", TensorProto.FLOAT, ["N", 6]))
    return model


class Reader(quantization.CalibrationDataReader):
    def __init__(self):
        self._batches = iter([{"x": X}])

    def get_next(self):
        return next(self._batches, None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("foreign")
    model = network()
    # Weights large enough that outputs differ between samples.
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 3, tensor.name))
    save_model(load_model(model).graph_model, folder / "float.onnx")
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
    g = Graph()
    ids = g.op("Cast", ["x"], "ids", to=7)
    rows = g.op("Tanh", [g.op("Gather", [g.weights(20, 8), ids], "embedding")], "tanh")
    y = g.op("MatMul", [rows, g.weights(8, 4)], "matmul")
    source = g.model({"x": ["N", 5]}, y)
    source.graph.output[0].CopyFrom(helper.make_tensor_value_info(y, TensorProto.FLOAT, ["N", 5, 4]))
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
        ("steps", "quantize0"),
        ("weight-steps", "node"),
    ]
    mended = mend(model)
    assert mended.quantized_nodes == ("node",)
    assert mended.unquantized.ranges == {"x_clip": pytest.approx(135 * 0.05)}
    proto = to_proto(mended.graph_model)
    assert operators(proto) == ["Clip", *["QuantizeLinear", "DequantizeLinear"] * 2, "Conv", "Relu"]
    stored = [numpy_helper.to_array(t) for t in proto.graph.initializer if list(t.dims) == [5, 4, 3, 3]]
    np.testing.assert_allclose(stored[0], weights, rtol=1e-6)


@pytest.mark.parametrize("opset", [10, 12, 13])
def test_one_scale_per_channel_before_opset_13(opset):
    # DequantizeLinear has an axis since opset 13.
    g = Integers()
    scales = np.linspace(0.001, 0.002, 8)
    weights = [g.random_integers(8, 3, 1, 1), *g.parameters(scales, np.zeros(8, np.int8))]
    result = g.parameters(0.05, ABOVE_ZERO)
    y = g.op("QLinearConv", [*g.quantize("x"), *weights, *result], "conv")
    model = g.proto({"x": ["N", 3, 4, 4]}, g.dequantize(y, result), 4, opset=opset)
    for node in model.graph.node if opset == 12 else ():
        node.name = ""  # as other tools write them
    expanded = to_proto(expand_static(load_model(model).graph_model, "model"))
    onnx.checker.check_model(expanded, full_check=True)
    assert "Conv" in operators(expanded) and "QLinearConv" not in operators(expanded)
    x = X[:2, :, :4, :4]
    np.testing.assert_allclose(run(expanded, x=x), run(model, x=x), atol=1e-5)


def test_mixed_models_keep_their_dynamic_nodes_float():
    g = Integers()
    pair = g.quantize("x", 0.05, np.int8(0))
    weights = [g.random_integers(4, 4, 3, 3), *g.parameters(0.01, np.int8(0))]
    operands = [g.dequantize(pair[0], pair[1:]), g.dequantize(weights[0], weights[1:])]
    y = g.op("Conv", operands, "static", kernel_shape=(3, 3))
    g.nodes.append(helper.make_node("DynamicQuantizeLinear", [y], ["q", "s", "z"], name="dynamic"))
    y = g.op(
        "Cast",
        [g.op("ConvInteger", ["q", g.random_integers(4, 4, 1, 1, dtype=np.uint8), "z"], "integer")],
        "c",
        to=1,
    )
    y = g.op("Mul", [y, g.op("Mul", ["s", g.constant(np.float32(0.01))], "scales")], "scaled")
    model = load_model(g.proto({"x": ["N", 4, 8, 8]}, y, 4))
    found = lint(model)
    assert [(f.rule, f.node) for f in found] == [("dynamic-scale", "integer")]
    assert found[0].message.endswith("for INT8, quantize the float model that it was made from")
    mended = mend(model)
    assert mended.quantized_nodes == ("static",) and mended.unquantized.kept_float == ["integer"]


def test_obstacles_are_told_of_the_operator_that_has_them(tmp_path, capsys):
    g = Integers()
    result = g.parameters(0.05)
    y = g.op("QLinearGlobalAveragePool", [*g.quantize("x"), *result], "pool", channels_last=1, **MICROSOFT)
    model = g.proto({"x": ["N", 4, 8, 8]}, g.dequantize(y, result), 4)
    found = {(finding.rule, finding.node) for finding in lint(load_model(model)) if not finding.mendable}
    assert ("integer-operator", "pool") in found
    path = save_model(load_model(model).graph_model, tmp_path / "last.onnx")
    assert main(["lint", str(path), "--fix", "-o", str(tmp_path / "mended.onnx")]) == 2
    error = capsys.readouterr().err
    assert "TensorRT has no QLinearGlobalAveragePool, and its data is channels_last" in error
    assert not (tmp_path / "mended.onnx").exists()


def test_operators_between_different_scales_are_told():
    g = Integers()
    result, others = g.parameters(0.05), g.parameters(0.06)
    y = g.op("QLinearSigmoid", [*g.quantize("x"), *result], "first", **MICROSOFT)
    y = g.op("QLinearSigmoid", [y, *others, *result], "second", **MICROSOFT)
    model = load_model(g.proto({"x": ["N", 4]}, g.dequantize(y, result), 2))
    found = [finding for finding in lint(model) if not finding.mendable]
    assert [(finding.rule, finding.node) for finding in found] == [("integer-operator", "second")]
    with pytest.raises(ModelError, match="its scale or zero point is not that of 'first_out_quantize'"):
        mend(model)


@pytest.mark.parametrize("zero", [ABOVE_ZERO, np.int8(0), np.int8(7)])
def test_outputs_of_integers_stay_integers(zero):
    g = Integers()
    result = g.parameters(0.01, zero)
    y = g.op("QLinearSigmoid", [*g.quantize("x", 0.05, zero), *result], "node", **MICROSOFT)
    element = TensorProto.INT8 if zero.dtype == np.int8 else TensorProto.UINT8
    source = g.proto({"x": ["N", 4]}, y, 2, dtype=element)
    mended = mend(load_model(source))
    assert "QuantizeLinear" in operators(to_proto(mended.graph_model)) or zero != 0
    x = np.random.default_rng(0).uniform(-9, 9, (16, 4)).astype(np.float32)
    wanted, found = (run(model, x=x).astype(int) for model in (source, to_proto(mended.graph_model)))
    assert np.abs(wanted - found).max() <= 1 and (wanted == found).mean() > 0.8


def test_a_model_without_weighted_nodes_keeps_the_ends_of_its_pairs():
    g = Integers()
    result = g.parameters(0.05)
    y = g.op("QLinearSigmoid", [*g.quantize("x"), *result], "node", **MICROSOFT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mended = mend(load_model(g.proto({"x": ["N", 4]}, g.dequantize(y, result), 2)))
    assert mended.quantized_nodes == ()
    # What comes out of the Sigmoid is within its pair's ends, 100 to -120 steps.
    assert operators(to_proto(mended.graph_model)) == [
        "Clip",
        "Sigmoid",
        "QuantizeLinear",
        "DequantizeLinear",
    ]
