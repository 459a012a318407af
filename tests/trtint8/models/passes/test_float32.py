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
from trtint8.models.model import load_model, prepare
from trtint8.models.passes.float32 import ComputeInFloat32Pass, QuantizeInFloat32Pass, quantizes_half
from trtint8.models.serialization import to_proto
from trtint8.models.session import open_graph_model, open_model
from trtint8.quantization.placement import place

HALF, BRAIN = TensorProto.FLOAT16, TensorProto.BFLOAT16


def half_model():
    """Two convolutions with a Cast, a constant, and an input that is given out as it is."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(0.2 * random.standard_normal(shape).astype(np.float16), name)
        for name, shape in (("w", (8, 3, 3, 3)), ("v", (4, 8, 3, 3)))
    ]
    half = numpy_helper.from_array(np.array([0.5], np.float16))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Cast", ["c"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Relu", ["wide"], ["r"]),
        helper.make_node("Cast", ["r"], ["narrow"], to=HALF),
        helper.make_node("Constant", [], ["half"], value=half),
        helper.make_node("Mul", ["narrow", "half"], ["m"]),
        helper.make_node("Conv", ["m", "v"], ["y"], pads=[1] * 4),
        helper.make_node("Identity", ["x"], ["again"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", HALF, ["n", 3, 8, 8])],
        [info("y", HALF, ["n", 4, 8, 8]), info("again", HALF, ["n", 3, 8, 8])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def brain_model(outside):
    """A convolution in BF16, between inputs and outputs of a type."""
    random = np.random.default_rng(0)
    values = 0.2 * random.standard_normal((8, 3, 3, 3))
    weights = helper.make_tensor(
        "w", BRAIN, values.shape, values.astype(ml_dtypes.bfloat16).tobytes(), raw=True
    )
    first = "x" if outside == BRAIN else "narrow"
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=BRAIN),
        helper.make_node("Conv", [first, "w"], ["c"], pads=[1] * 4),
        helper.make_node("Cast", ["c"], ["y"], to=outside),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", outside, ["n", 3, 8, 8])], [info("y", outside, ["n", 8, 8, 8])], [weights]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(1).standard_normal((16, 3, 8, 8)).astype(np.float16)


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
    accuracy = trtint8.validate(quantized, images, reference=half_model(), progress=False)
    assert accuracy.outputs[0].sqnr_db > 30


@pytest.mark.parametrize("outside", [TensorProto.FLOAT, BRAIN])
def test_bf16_is_calibrated_and_quantized_as_fp32(outside, images):
    loaded = load_model(brain_model(outside))
    assert [spec.dtype for spec in loaded.inputs] == [np.float32]
    prepared = to_proto(prepare(loaded).graph_model)
    assert [value.type.tensor_type.elem_type for value in prepared.graph.input] == [TensorProto.FLOAT]
    assert [value.type.tensor_type.elem_type for value in prepared.graph.output] == [TensorProto.FLOAT]
    data = images.astype(np.float32)
    table = trtint8.calibrate(brain_model(outside), data, progress=False)
    assert table.amax["x"] == pytest.approx(np.abs(data).max(), rel=0.2)
    quantized = trtint8.quantize(brain_model(outside), table)
    accuracy = trtint8.validate(quantized, data, reference=brain_model(outside), progress=False)
    assert accuracy.outputs[0].sqnr_db > 35


def test_a_model_that_mixes_fp16_and_fp32_is_run_in_fp32(images):
    # The division of FP32 by FP16 is what PyTorch's older exporter writes of the scale of attention.
    model = half_model()
    model.graph.node[5].CopyFrom(helper.make_node("Div", ["narrow", "two"], ["m"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array([2], np.float32), "two"))
    (mixed, _), (wanted, _) = (
        open_model(load_model(one)).run({"x": images}) for one in (model, half_model())
    )
    np.testing.assert_allclose(mixed, wanted, rtol=4e-3, atol=4e-3)
    table = trtint8.calibrate(model, images, progress=False)
    accuracy = trtint8.validate(trtint8.quantize(model, table), images, reference=model, progress=False)
    assert accuracy.outputs[0].sqnr_db > 30


def tensor(name, *shape, kind=HALF):
    return helper.make_tensor_value_info(name, kind, shape)


def loop():
    """A loop whose state, and whose body, are FP16."""
    body = [helper.make_node("MatMul", ["s", "w"], ["t"]), helper.make_node("Identity", ["go"], ["on"])]
    inside = [tensor("i", kind=TensorProto.INT64), tensor("go", kind=TensorProto.BOOL), tensor("s", 4, 4)]
    outside = [tensor("on", kind=TensorProto.BOOL), tensor("t", 4, 4)]
    return [
        helper.make_node("Loop", ["n", "", "a"], ["b"], body=helper.make_graph(body, "b", inside, outside))
    ]


def scan():
    body = [helper.make_node("MatMul", ["s", "w"], ["q"]), helper.make_node("Add", ["q", "row"], ["t"])]
    body.append(helper.make_node("Identity", ["t"], ["o"]))
    graph = helper.make_graph(
        body, "b", [tensor("s", 4, 4), tensor("row", 4)], [tensor("t", 4, 4), tensor("o", 4, 4)]
    )
    return [helper.make_node("Scan", ["a", "a"], ["b", "all"], body=graph, num_scan_inputs=1)]


def sequence():
    nodes = [helper.make_node("SequenceConstruct", ["a", "a"], ["two"])]
    return [*nodes, helper.make_node("ConcatFromSequence", ["two"], ["b"], axis=0)]


def typed_sequence():
    nodes = [
        helper.make_node("SequenceEmpty", [], ["none"], dtype=HALF),
        helper.make_node("SequenceInsert", ["none", "a"], ["one"]),
        helper.make_node("SequenceInsert", ["one", "a"], ["two"]),
    ]
    return [*nodes, helper.make_node("ConcatFromSequence", ["two"], ["b"], axis=0)]


def calls():
    return [helper.make_node("Halved", ["a"], ["b"], domain="own")]


def halved(**cast):
    """A function that computes in FP16, and that names the type."""
    nodes = [
        helper.make_node("Constant", [], ["half"], value=numpy_helper.from_array(np.float16(0.5))),
        helper.make_node("Cast", ["x"], ["narrow"], **cast),
        helper.make_node("Mul", ["narrow", "half"], ["y"]),
    ]
    if not cast:
        reference = nodes[1].attribute.add()
        reference.name, reference.ref_attr_name, reference.type = "to", "kind", reference.INT
    attributes = [] if cast else ["kind"]
    return helper.make_function(
        "own", "Halved", ["x"], ["y"], nodes, [helper.make_opsetid("", 17)], attributes
    )


def around(nodes, function=None, kind=HALF):
    """Products with weights before and behind nodes that make ``b`` of ``a``."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    random = np.random.default_rng(0)
    weights = [numpy_helper.from_array((0.5 * random.standard_normal((4, 4))).astype(dtype), n) for n in "wv"]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        *nodes,
        helper.make_node("MatMul", ["b", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [tensor("x", 4, 4, kind=kind)],
        [tensor("y", "rows", 4, kind=kind)],
        [*weights, numpy_helper.from_array(np.int64(3), "n")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = [function or halved(to=HALF)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)


@pytest.mark.parametrize("nodes", [loop, scan, sequence, typed_sequence, calls])
def test_graphs_in_nodes_sequences_and_functions_compute_in_fp32(nodes):
    model = around(nodes())
    x = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float16)
    (wanted,) = outputs(model, x)
    (found,) = outputs(to_proto(prepare(load_model(model)).graph_model), x)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-2)
    table = trtint8.calibrate(model, [{"x": x}], progress=False)
    assert {"x_float32", "b"} <= set(table.amax)
    # Not by integer kernels, which saturate on processors without VNNI.
    (quantized,) = open_model(load_model(trtint8.quantize(model, table))).run({"x": x})
    np.testing.assert_allclose(quantized, wanted, atol=0.1)


def test_a_function_of_which_the_caller_chooses_the_type_is_refused_unless_its_nodes_take_its_place():
    nodes = calls()
    nodes[0].attribute.append(helper.make_attribute("kind", HALF))
    loaded = load_model(around(nodes, halved()))
    with pytest.raises(
        ModelError, match="function 'own:Halved' of a model in 16 bits takes the attribute 'to'"
    ):
        ComputeInFloat32Pass()(loaded.graph_model.clone())
    prepared = prepare(loaded).graph_model
    assert not prepared.functions
    narrowed = [node.outputs[0] for node in prepared.graph if node.attributes.get_int("to", 0) == HALF]
    assert narrowed == list(prepared.graph.outputs)  # as the model gives them out


def test_a_sequence_as_output_of_the_model_is_refused():
    model = around(sequence())
    model.graph.output.append(helper.make_tensor_sequence_value_info("two", HALF, None))
    with pytest.raises(ModelError, match="output 'two' of 'model' is a sequence"):
        load_model(model)


def fp32_outside(stored_as):
    """A product in FP16 between FP32 inputs and outputs, as torch.autocast and keep_io_types write it."""
    values = (0.5 * np.random.default_rng(0).standard_normal((4, 4))).astype(np.float16)
    nodes, stored, weight = [], [], "w"
    if stored_as == "Constant":
        nodes.append(helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(values)))
    else:
        stored, weight = [numpy_helper.from_array(values.astype(np.float32), "w")], "narrow"
        nodes.append(helper.make_node("Cast", ["w"], ["narrow"], to=HALF))
    nodes += [
        helper.make_node("Cast", ["x"], ["a"], to=HALF),
        helper.make_node("MatMul", ["a", weight], ["b"], name="product"),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    inside, outside = (tensor(name, 4, 4, kind=TensorProto.FLOAT) for name in "xy")
    graph = helper.make_graph(nodes, "g", [inside], [outside], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("stored_as", ["Constant", "Cast"])
def test_fp16_between_fp32_inputs_and_outputs_becomes_fp32(stored_as):
    prepared = prepare(load_model(fp32_outside(stored_as)))
    assert place(prepared.graph_model).quantized_nodes == ("product",)
    x = np.random.default_rng(1).standard_normal((4, 4), np.float32)
    (wanted,), (found,) = (
        outputs(one, x) for one in (fp32_outside(stored_as), to_proto(prepared.graph_model))
    )
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(
    ("operator", "inputs", "attribute", "opset"),
    [
        ("DequantizeLinear", [np.int8([2, -4]), np.float16(0.5)], "output_dtype", 23),
        ("HannWindow", [np.int64(4)], "output_datatype", 17),
    ],
)
def test_operators_that_name_the_type_of_their_output_give_fp32(operator, inputs, attribute, opset):
    names = [f"constant{index}" for index in range(len(inputs))]
    nodes = [
        helper.make_node(operator, names, ["made"], **{attribute: HALF}),
        helper.make_node("Mul", ["x", "made"], ["y"]),
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in zip(names, inputs, strict=True)]
    size = 2 if operator == "DequantizeLinear" else 4
    graph = helper.make_graph(nodes, "g", [tensor("x", size)], [tensor("y", size)], constants)
    imports = [helper.make_opsetid("", opset)]
    model, _ = applied(ComputeInFloat32Pass(), helper.make_model(graph, opset_imports=imports, ir_version=10))
    (made,) = (node for node in model.graph.node if node.op_type == operator)
    assert {one.name: one.i for one in made.attribute} == {attribute: TensorProto.FLOAT}
    onnx.checker.check_model(model, full_check=True)


def test_a_float_model_stays_as_it_is():
    nodes = [helper.make_node("Cast", ["x"], ["c"], to=TensorProto.INT64)]
    nodes.append(helper.make_node("Cast", ["c"], ["y"], to=TensorProto.FLOAT))
    inside, outside = (tensor(name, 4, 4, kind=TensorProto.FLOAT) for name in "xy")
    graph = helper.make_graph(nodes, "g", [inside], [outside])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert not applied(ComputeInFloat32Pass(), model)[1]


def test_the_loaded_model_is_not_changed():
    model = load_model(half_model())
    first, again = (to_proto(prepare(model).graph_model) for _ in range(2))
    assert first == again
    assert {value.dtype.name for value in model.graph_model.graph.initializers.values()} == {"FLOAT16"}


X = np.random.default_rng(0).uniform(-1.7, 1.7, (64, 3)).astype(np.float16)


def quantizer(scale, *, as_node=False, **attributes):
    """The input as integers, and as the numbers that these stand for."""
    scale = np.asarray(scale)
    tensors = {"zero": np.zeros(scale.shape, np.int8), "scale": scale}
    nodes = []
    if as_node:
        value = numpy_helper.from_array(tensors.pop("scale"), "value")
        nodes.append(helper.make_node("Constant", [], ["scale"], value=value))
    nodes += [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], "quantize", axis=1, **attributes),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], axis=1),
    ]
    dtype = helper.np_dtype_to_tensor_dtype(scale.dtype)
    x, y = (helper.make_tensor_value_info(name, dtype, ["N", 3]) for name in "xy")
    q = helper.make_tensor_value_info("q", TensorProto.INT8, ["N", 3])
    initializers = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "g", [x], [q, y], initializers)
    opset = helper.make_opsetid("", 23 if attributes else 19)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10)


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
    model = ir.from_proto(quantizer(np.float16(0.5), precision=TensorProto.FLOAT16))
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
