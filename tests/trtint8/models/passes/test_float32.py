"""Models that compute in FP16 and BF16."""

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.errors import ModelError
from tests.trtint8.models.passes.applying import applied
from tests.trtint8.onnx_models import function, normal, parsed, sqnr_in_int8
from trtint8.models.model import load_model, prepare
from trtint8.models.passes.float32 import ComputeInFloat32Pass, QuantizeInFloat32Pass, quantizes_half
from trtint8.models.serialization import to_proto
from trtint8.models.session import open_graph_model, open_model
from trtint8.quantization.placement import place

HALF, BRAIN = TensorProto.FLOAT16, TensorProto.BFLOAT16


def half_model(middle="half = Constant <value = float16[1] {14336}> () m = Mul (narrow, half)", **constants):
    """Two convolutions with a Cast, a constant (0.5, as bits), and an input that is given out as it is."""
    return parsed(
        "float16[n, 3, 8, 8] x",
        "float16[n, 4, 8, 8] y, float16[n, 3, 8, 8] again",
        f"""c = Conv <pads = [1, 1, 1, 1]> (x, w) wide = Cast <to = 1> (c) r = Relu (wide)
        narrow = Cast <to = 10> (r) {middle} y = Conv <pads = [1, 1, 1, 1]> (m, v) again = Identity (x)""",
        w=(0.2 * normal(8, 3, 3, 3)).astype(np.float16),
        v=(0.2 * normal(4, 8, 3, 3, seed=1)).astype(np.float16),
        **constants,
    )


def brain_model(outside):
    """A convolution in BF16, between inputs and outputs of a type."""
    kind = {BRAIN: "bfloat16", TensorProto.FLOAT: "float"}[outside]
    made = parsed(
        f"{kind}[n, 3, 8, 8] x",
        f"{kind}[n, 8, 8, 8] y",
        f"""narrow = Cast <to = {BRAIN}> (x)
        c = Conv <pads = [1, 1, 1, 1]> ({"x" if outside == BRAIN else "narrow"}, w)
        y = Cast <to = {outside}> (c)""",
        opset=22,
        ir_version=10,
    )
    values = (0.2 * normal(8, 3, 3, 3)).astype(ml_dtypes.bfloat16)
    made.graph.initializer.append(helper.make_tensor("w", BRAIN, values.shape, values.tobytes(), raw=True))
    return made


@pytest.fixture(scope="module")
def images():
    return normal(16, 3, 8, 8, seed=1).astype(np.float16)


def outputs(model, images):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": images})


def test_it_computes_the_same_in_fp32(images):
    prepared = to_proto(prepare(load_model(half_model())).graph_model)
    types = {tensor.data_type for tensor in prepared.graph.initializer}
    assert HALF not in types
    assert [value.type.tensor_type.elem_type for value in prepared.graph.input] == [HALF]
    assert [value.name for value in prepared.graph.output] == ["y", "again"]
    for wanted, found in zip(outputs(half_model(), images), outputs(prepared, images), strict=True):
        assert wanted.dtype == found.dtype == np.float16
        np.testing.assert_allclose(found, wanted, rtol=4e-3, atol=4e-3)


def test_it_is_quantized(images):
    table = trtint8.calibrate(half_model(), images, progress=False)
    quantized = trtint8.quantize(half_model(), table)
    assert sum(node.op_type == "DequantizeLinear" for node in quantized.graph.node) == 4
    assert sqnr_in_int8(half_model(), images) > 30


@pytest.mark.parametrize("outside", [TensorProto.FLOAT, BRAIN])
def test_bf16_is_calibrated_and_quantized_as_fp32(outside, images):
    loaded, data = load_model(brain_model(outside)), images.astype(np.float32)
    assert [spec.dtype for spec in loaded.inputs] == [np.float32]
    prepared = to_proto(prepare(loaded).graph_model)
    for value in (*prepared.graph.input, *prepared.graph.output):
        assert value.type.tensor_type.elem_type == TensorProto.FLOAT
    table = trtint8.calibrate(brain_model(outside), data, progress=False)
    assert table.amax["x"] == pytest.approx(np.abs(data).max(), rel=0.2)
    assert sqnr_in_int8(brain_model(outside), data) > 35


def test_a_model_that_mixes_fp16_and_fp32_is_run_in_fp32(images):
    # The division of FP32 by FP16 is what PyTorch's older exporter writes of the scale of attention.
    model = half_model("m = Div (narrow, two)", two=np.float32([2]))
    (mixed, _), (wanted, _) = (
        open_model(load_model(one)).run({"x": images}) for one in (model, half_model())
    )
    np.testing.assert_allclose(mixed, wanted, rtol=4e-3, atol=4e-3)
    assert sqnr_in_int8(model, images) > 30


#: Nodes that make b of a, with graphs inside, sequences, and a function, all in FP16.
SEQUENCE = "two = SequenceConstruct (a, a) b = ConcatFromSequence <axis = 0> (two)"
AROUND = {
    "loop": """b = Loop <body = l (int64 i, bool go, float16[4, 4] s) => (bool on, float16[4, 4] t) {
        t = MatMul (s, w) on = Identity (go) }> (n, , a)""",
    "scan": """b, all = Scan <num_scan_inputs = 1,
        body = s (float16[4, 4] s, float16[4] row) => (float16[4, 4] t, float16[4, 4] o) {
        q = MatMul (s, w) t = Add (q, row) o = Identity (t) }> (a, a)""",
    "sequence": SEQUENCE,
    "typed sequence": """none = SequenceEmpty <dtype = 10> () one = SequenceInsert (none, a)
        two = SequenceInsert (one, a) b = ConcatFromSequence <axis = 0> (two)""",
    "call": "b = own.Halved (a)",
}


def halved(attribute="to = 10", parameters=""):
    """A function that computes in FP16, and that names the type."""
    body = f"""half = Constant <value = float16 {{14336}}> () narrow = Cast <{attribute}> (x)
        y = Mul (narrow, half)"""
    return function(f"Halved{parameters}", "x", "y", body)


def around(nodes, functions=None):
    """Products with weights before and behind nodes that make ``b`` of ``a``."""
    w, v = ((0.5 * normal(4, 4, seed=seed)).astype(np.float16) for seed in (0, 1))
    body = f"a = MatMul (x, w) {nodes} y = MatMul (b, v)"
    ends = "float16[4, 4] x", "float16[rows, 4] y"
    return parsed(*ends, body, functions or halved(), domains=["own"], w=w, v=v, n=np.int64(3))


@pytest.mark.parametrize("kind", AROUND)
def test_graphs_in_nodes_sequences_and_functions_compute_in_fp32(kind):
    model, x = around(AROUND[kind]), normal(4, 4, seed=2).astype(np.float16)
    (wanted,) = outputs(model, x)
    (found,) = outputs(to_proto(prepare(load_model(model)).graph_model), x)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-2)
    table = trtint8.calibrate(model, [{"x": x}], progress=False)
    assert {"x_float32", "b"} <= set(table.amax)
    # Not by integer kernels, which saturate on processors without VNNI.
    (quantized,) = open_model(load_model(trtint8.quantize(model, table))).run({"x": x})
    np.testing.assert_allclose(quantized, wanted, atol=0.1)


def test_a_function_of_which_the_caller_chooses_the_type():
    chosen = halved("to: int = @kind", "<kind>")
    prepared = prepare(load_model(around("b = own.Halved <kind = 10> (a)", chosen))).graph_model
    narrowed = [node.outputs[0] for node in prepared.graph if node.attributes.get_int("to", 0) == HALF]
    assert narrowed == list(prepared.graph.outputs)  # as the model gives them out


def test_a_sequence_as_output_of_the_model_is_refused():
    model = around(SEQUENCE)
    model.graph.output.append(helper.make_tensor_sequence_value_info("two", HALF, None))
    with pytest.raises(ModelError, match="'two' of 'model' is a sequence"):
        load_model(model)


def fp32_outside(stored_as):
    """A product in FP16 between FP32 inputs and outputs, as torch.autocast and keep_io_types write it."""
    values = (0.5 * normal(4, 4)).astype(np.float16)
    first = "narrow = Cast <to = 10> (w)" if stored_as == "Cast" else "narrow = Constant ()"
    body = f"{first} a = Cast <to = 10> (x) [product] b = MatMul (a, narrow) y = Cast <to = 1> (b)"
    made = parsed("float[4, 4] x", "float[4, 4] y", body, w=values.astype(np.float32))
    if stored_as == "Constant":
        made.graph.node[0].attribute.append(helper.make_attribute("value", numpy_helper.from_array(values)))
    return made


@pytest.mark.parametrize("stored_as", ["Constant", "Cast"])
def test_fp16_between_fp32_inputs_and_outputs_becomes_fp32(stored_as):
    model, x = fp32_outside(stored_as), normal(4, 4, seed=1)
    prepared = prepare(load_model(model))
    assert place(prepared.graph_model).quantized_nodes == ("product",)
    (wanted,), (found,) = outputs(model, x), outputs(to_proto(prepared.graph_model), x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(
    ("operator", "constants", "attribute", "size", "opset"),
    [
        ("DequantizeLinear", {"q": np.int8([2, -4]), "s": np.float16(0.5)}, "output_dtype", 2, 23),
        ("HannWindow", {"s": np.int64(4)}, "output_datatype", 4, 17),
    ],
)
def test_operators_that_name_the_type_of_their_output_give_fp32(operator, constants, attribute, size, opset):
    body = f"made = {operator} <{attribute} = 10> ({', '.join(constants)}) y = Mul (x, made)"
    ends = f"float16[{size}] x", f"float16[{size}] y"
    model, _ = applied(ComputeInFloat32Pass(), parsed(*ends, body, opset=opset, ir_version=10, **constants))
    (made,) = (node for node in model.graph.node if node.op_type == operator)
    assert {one.name: one.i for one in made.attribute} == {attribute: TensorProto.FLOAT}
    onnx.checker.check_model(model, full_check=True)


def test_a_float_model_stays_as_it_is():
    model = parsed("float[4, 4] x", "float[4, 4] y", "c = Cast <to = 7> (x) y = Cast <to = 1> (c)")
    assert not applied(ComputeInFloat32Pass(), model)[1]


def test_the_loaded_model_is_not_changed():
    model = load_model(half_model())
    first, again = (to_proto(prepare(model).graph_model) for _ in range(2))
    assert first == again
    assert {value.dtype.name for value in model.graph_model.graph.initializers.values()} == {"FLOAT16"}


X = np.random.default_rng(0).uniform(-1.7, 1.7, (64, 3)).astype(np.float16)


def quantizer(scale, *, as_node=False, more=""):
    """The input as integers, and as the numbers that these stand for."""
    scale = np.asarray(scale)
    kind = {np.float16: "float16", np.float32: "float"}[scale.dtype.type]
    made = parsed(
        f"{kind}[N, 3] x",
        f"int8[N, 3] q, {kind}[N, 3] y",
        f"""{"scale = Constant ()" if as_node else ""}
        [quantize] q = QuantizeLinear <axis = 1{more}> (x, scale, zero)
        y = DequantizeLinear <axis = 1> (q, scale, zero)""",
        opset=23 if more else 19,
        ir_version=10,
        zero=np.zeros(scale.shape, np.int8),
        **({} if as_node else {"scale": scale}),
    )
    if as_node:
        made.graph.node[0].attribute.append(helper.make_attribute("value", numpy_helper.from_array(scale)))
    return made


@pytest.mark.parametrize("as_node", [False, True])
@pytest.mark.parametrize("scale", [np.float16(0.0123), np.array([0.0123, 0.5, 0.02], np.float16)])
def test_integers_are_the_nearest(scale, as_node):
    model = load_model(quantizer(scale, as_node=as_node))
    nearest = np.clip(np.rint(X.astype(np.float32) / scale.astype(np.float32)), -128, 127)
    for opened in (open_model(model, threads=1), open_graph_model(model.graph_model, threads=1)):
        integers, values = opened.run({"x": X})
        np.testing.assert_array_equal(integers, nearest)
        assert values.dtype == np.float16
        np.testing.assert_array_equal(values, (nearest * scale.astype(np.float32)).astype(np.float16))
    assert [node.op_type for node in model.graph_model.graph][-2:] == ["QuantizeLinear", "DequantizeLinear"]


def test_the_nodes():
    model = ir.from_proto(quantizer(np.float16(0.5), more=", precision = 10"))
    assert quantizes_half(model)
    result = QuantizeInFloat32Pass()(model)
    assert result.modified and not quantizes_half(model)
    node = next(node for node in model.graph if node.op_type == "QuantizeLinear")
    assert [value.name for value in node.inputs] == ["x_float32", "scale_float32", "zero"]
    assert [value.dtype for value in node.inputs[:2]] == [ir.DataType.FLOAT] * 2
    assert set(node.attributes) == {"axis"}
    back = next(node for node in model.graph if node.op_type == "DequantizeLinear")
    assert back.inputs[1].name == "scale"


def test_float32_is_left_alone():
    model = ir.from_proto(quantizer(np.float32(0.5)))
    assert not quantizes_half(model)
    assert not QuantizeInFloat32Pass()(model).modified
    assert len(list(model.graph)) == 2
