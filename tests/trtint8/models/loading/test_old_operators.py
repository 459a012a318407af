"""Operators of old opsets compute the same in a newer one."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.errors import ModelError
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto

DOUBLED, HALVED, SHRUNK, UNEVEN = ([1, 1, 2, 2], [1, 1, 0.5, 0.5], [1, 1, 1 / 3, 0.6], [1, 1, 1.3, 1.7])
RESHAPED = ["Shape", "Flatten", "Hardmax", "Reshape"]


def model(opset, operator, constants=(), outputs=1, branch=False, **attributes):
    """The operator on the absolute values of images, also as the branch of an If."""
    names = [f"constant{index}" for index in range(len(constants))]
    results = ["y", "z"][:outputs]
    nodes = [
        helper.make_node("Abs", ["x"], ["a"], "abs"),
        helper.make_node(operator, ["a", *names], results, "op", **attributes),
    ]
    initializers = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in zip(names, constants, strict=True)
    ]
    if branch:
        inside = [helper.make_node(operator, ["a", *names], ["inside"], "op", **attributes)]
        result = [helper.make_tensor_value_info("inside", TensorProto.FLOAT, None)]
        graphs = [helper.make_graph(inside, f"branch{index}", [], result) for index in range(2)]
        initializers.append(numpy_helper.from_array(np.asarray(True), "choice"))
        nodes[1] = helper.make_node("If", ["choice"], ["y"], then_branch=graphs[0], else_branch=graphs[1])
    shape = [2, 4, 5, 6]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6)


def run(proto):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.random.default_rng(0).standard_normal((2, 4, 5, 6)).astype(np.float32)})


def converted(proto):
    new = to_proto(prepare(load_model(proto)).graph_model)
    onnx.checker.check_model(new, full_check=True)
    assert new.opset_import[0].version == 17
    return new


def check(proto):
    """Compares with ONNX Runtime on the model as it was; returns the operators of the new one."""
    new = converted(proto)
    for got, wanted in zip(run(new), run(proto), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    return [node.op_type for node in new.graph.node[1:]]


def scales(*values):
    return [np.array(*values, np.float32)]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("factors", [DOUBLED, UNEVEN, [1, 1, 2.5, 1]])
def test_upsample(mode, factors):
    for opset in (7, 8):
        assert check(model(opset, "Upsample", mode=mode, scales=[float(each) for each in factors])) == [
            "Resize"
        ]
    assert check(model(9, "Upsample", scales(factors), mode=mode)) == ["Resize"]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("factors", [DOUBLED, HALVED, SHRUNK, UNEVEN, [1, 1, 2.5, 1]])
def test_resize_of_opset_10(mode, factors):
    assert check(model(10, "Resize", scales(factors), mode=mode)) == ["Resize"]


def test_upsample_and_resize_choose_the_nearest_element_by_default():
    check(model(9, "Upsample", scales(UNEVEN)))
    check(model(10, "Resize", scales(SHRUNK)))


def test_a_resize_of_opset_10_that_enlarges_and_shrinks():
    mixed = [1, 1, 2.3, 0.6]
    check(model(10, "Resize", scales(mixed), mode="linear"))
    with pytest.raises(ModelError, match="that makes 'y' enlarges one axis and shrinks another one"):
        converted(model(10, "Resize", scales(mixed)))


def test_a_resize_of_opset_11_keeps_its_coordinates():
    empty = np.zeros(0, np.float32)
    for coordinates in ("half_pixel", "align_corners", "asymmetric"):
        given = model(
            11, "Resize", [empty, *scales(UNEVEN)], mode="linear", coordinate_transformation_mode=coordinates
        )
        assert check(given) == ["Resize"]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_hardmax_among_the_elements_of_several_axes(axis):
    for opset in (7, 12):
        assert check(model(opset, "Hardmax", axis=axis)) == RESHAPED


def test_hardmax_along_the_last_axis_or_along_none_that_is_named():
    assert check(model(7, "Hardmax", axis=3)) == ["Hardmax"]
    assert check(model(11, "Hardmax", axis=-1)) == ["Hardmax"]
    assert check(model(11, "Hardmax", axis=-2)) == RESHAPED
    assert check(model(9, "Hardmax")) == RESHAPED


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad_with_a_value(mode):
    for opset in (7, 10):
        assert check(model(opset, "Pad", mode=mode, pads=[0, 0, 1, 1, 0, 0, 2, 2], value=0.3)) == ["Pad"]


def test_operators_in_branches():
    for given in (
        model(9, "Upsample", scales(DOUBLED), branch=True, mode="linear"),
        model(10, "Resize", scales(HALVED), branch=True, mode="linear"),
        model(9, "Hardmax", branch=True, axis=1),
    ):
        check(given)


@pytest.mark.parametrize(
    ("opset", "operator", "constants", "outputs", "attributes"),
    [
        (7, "Softmax", [], 1, {"axis": 1}),
        (12, "LogSoftmax", [], 1, {"axis": 2}),
        (7, "Clip", [], 1, {"max": 0.5}),
        (9, "Slice", [], 1, {"starts": [1, -3], "ends": [3, 1000], "axes": [1, 2]}),
        (9, "Dropout", [], 1, {"ratio": 0.3}),
        (11, "Unsqueeze", [], 1, {"axes": [0, -1]}),
        (7, "Split", [], 2, {"axis": 1, "split": [1, 3]}),
        (11, "ReduceSum", [], 1, {"axes": [1, -1], "keepdims": 0}),
        (8, "BatchNormalization", [np.full(4, each, np.float32) for each in (2, 1, 0.5, 3)], 1, {}),
        (8, "Flatten", [], 1, {"axis": 2}),
        (9, "Cast", [], 1, {"to": TensorProto.FLOAT}),
        (7, "Pow", [np.float32(1.7)], 1, {}),
        (10, "Mod", [np.float32(0.3)], 1, {"fmod": 1}),
    ],
)
def test_operators_that_the_converter_mends_itself(opset, operator, constants, outputs, attributes):
    check(model(opset, operator, constants, outputs, **attributes))


@pytest.mark.parametrize("opset", [7, 8])
def test_statistics_for_each_position_are_refused(opset):
    statistics = [np.ones((4, 5, 6), np.float32)] * 4
    attributes = {"spatial": 0}
    old = model(opset, "BatchNormalization", statistics, **attributes)
    with pytest.raises(
        ModelError, match=r"BatchNormalization of 'model' that makes 'y' has statistics for each"
    ):
        prepare(load_model(old))


def _scan(states, sequences, lengths, directions, *, nested=False, dtype=TensorProto.FLOAT, sizes=(3, 5)):
    """A Scan of opset 8: sums of what it reads and of a value around it, after operators of old opsets."""
    dims = ["n", "t", 4] if nested else [*sizes, 4]
    names = [f"s{index}" for index in range(states)], [f"x{index}" for index in range(sequences)]
    inner = [helper.make_tensor_value_info(f"{name}_in", dtype, [4]) for group in names for name in group]
    body = [
        helper.make_node("Unsqueeze", ["x0_in"], ["row"], axes=[0]),
        helper.make_node("Squeeze", ["row"], ["flat"], axes=[0]),
        helper.make_node("Sum", ["flat", "around", *(value.name for value in inner)], ["sum"]),
        *(helper.make_node("Add", [f"{name}_in", "sum"], [f"{name}_out"]) for name in names[0]),
        helper.make_node("Mul", ["sum", "sum"], ["square"]),
    ]
    made = [*(f"{name}_out" for name in names[0]), "sum", "square"]
    values = [helper.make_tensor_value_info(name, dtype, [4]) for name in made]
    attributes = {"num_scan_inputs": sequences, "body": helper.make_graph(body, "body", inner, values)}
    if directions:
        attributes["directions"] = directions
    read = ["lengths" if lengths else "", *names[0], *names[1]]
    outputs = [*(f"{name}_last" for name in names[0]), "sums", "squares"]
    nodes = [helper.make_node("Scan", read, outputs, "scan", **attributes)]
    results = [helper.make_tensor_value_info(name, dtype, None) for name in outputs]
    if nested:
        branch = [helper.make_graph(nodes, f"branch{index}", [], results) for index in range(2)]
        copy = [f"{name}_chosen" for name in outputs]
        nodes = [helper.make_node("If", ["choice"], copy, then_branch=branch[0], else_branch=branch[1])]
        results = [helper.make_tensor_value_info(name, dtype, None) for name in copy]
    inputs = [helper.make_tensor_value_info(name, dtype, [dims[0], 4]) for name in names[0]]
    inputs += [helper.make_tensor_value_info(name, dtype, dims) for name in names[1]]
    if lengths:
        inputs.append(helper.make_tensor_value_info("lengths", TensorProto.INT64, [dims[0]]))
    constants = [
        numpy_helper.from_array(np.arange(4, dtype=helper.tensor_dtype_to_np_dtype(dtype)), "around"),
        numpy_helper.from_array(np.array(True), "choice"),
    ]
    graph = helper.make_graph(nodes, "g", inputs, results, constants)
    random, element = np.random.default_rng(0), helper.tensor_dtype_to_np_dtype(dtype)
    feed = {name: random.integers(-3, 4, (sizes[0], 4)).astype(element) for name in names[0]}
    feed |= {name: random.integers(-3, 4, (*sizes, 4)).astype(element) for name in names[1]}
    if lengths:
        feed["lengths"] = np.array(lengths)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4), feed


@pytest.mark.parametrize(
    ("states", "sequences", "lengths", "directions"),
    [
        (1, 1, None, None),
        (0, 1, None, [1]),
        (2, 2, None, [0, 1]),
        (1, 2, [5, 2, 1], None),
        (2, 1, [1, 5, 3], [1]),
        (0, 2, [4, 4, 2], [1, 0]),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.DOUBLE])
def test_scan_of_opset_8_runs_along_the_samples(states, sequences, lengths, directions, nested, dtype):
    model, feed = _scan(states, sequences, lengths, directions, nested=nested, dtype=dtype)
    found = ort.InferenceSession(converted(model).SerializeToString()).run(None, feed)
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, feed)
    assert len(found) == states + 2
    for mine, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, right)


def test_a_scan_of_opset_8_is_calibrated_and_quantized_with_its_sequences():
    random = np.random.default_rng(0)
    model, feed = _scan(1, 1, None, None)
    weights = numpy_helper.from_array(np.eye(4, dtype=np.float32), "weights")
    model.graph.initializer.append(weights)
    model.graph.node.append(helper.make_node("MatMul", ["sums", "weights"], ["y"], "layer"))
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 5, 4]))
    feed = {name: random.standard_normal(array.shape).astype(np.float32) for name, array in feed.items()}
    table = trtint8.calibrate(model, [feed], method="minmax", progress=False)
    quantized = trtint8.quantize(model, table, progress=False)
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, feed)
    found = ort.InferenceSession(quantized.SerializeToString()).run(None, feed)
    for mine, right in zip(found, wanted, strict=True):
        assert np.abs(mine - right).max() < 0.02 * np.abs(right).max()
