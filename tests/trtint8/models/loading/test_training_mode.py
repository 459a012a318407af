"""Models that were exported in training mode compute as in inference."""

import warnings

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.host.weights import LightModel
from trtint8.models.loading.training_mode import switch_to_inference
from trtint8.models.model import load_model

X = np.random.default_rng(0).standard_normal((32, 3, 8, 8)).astype(np.float32)


def model(*, trains=True, as_node=False, outputs=("y",), statistics=False):
    """A convolution, a normalization and a Dropout, which a second convolution reads."""
    random = np.random.default_rng(1)
    constants = {
        "w": 0.2 * random.standard_normal((4, 3, 3, 3)),
        "v": 0.2 * random.standard_normal((4, 4, 1, 1)),
        "scale": np.arange(1, 5),
        "shift": np.zeros(4),
        "mean": np.full(4, 0.1),
        "variance": np.full(4, 2.0),
        "share": np.array(0.5),
    }
    tensors = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()]
    mode = numpy_helper.from_array(np.array(trains), "trains")
    normalized = ["n", "new_mean", "new_variance"] if trains else ["n"]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node(
            "BatchNormalization",
            ["c", "scale", "shift", "mean", "variance"],
            normalized,
            name="norm",
            training_mode=int(trains),
        ),
        helper.make_node("Dropout", ["n", "share", "trains"], ["d"], name="drop"),
        helper.make_node("Conv", ["d", "v"], ["y"]),
    ]
    if as_node:
        nodes.insert(0, helper.make_node("Constant", [], ["trains"], value=mode))
    else:
        tensors.append(mode)
    info = helper.make_tensor_value_info
    declared = [info(name, TensorProto.FLOAT, ["N", 4, 6, 6] if name == "y" else [4]) for name in outputs]
    graph = helper.make_graph(nodes, "g", [info("x", TensorProto.FLOAT, ["N", 3, 8, 8])], declared, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def switched(message, weights=None):
    return switch_to_inference(LightModel(message, weights or {}))


def node(message, name):
    return next(node for node in message.graph.node if node.name == name)


@pytest.mark.parametrize("as_node", [False, True])
def test_nodes_in_training_mode_are_switched(as_node):
    message = model(as_node=as_node)
    assert switched(message) == ["BatchNormalization", "Dropout"]
    assert list(node(message, "drop").input) == ["n", "share"]
    assert list(node(message, "norm").output) == ["n"]
    assert not node(message, "norm").attribute
    wanted = onnxruntime.InferenceSession(model(trains=False).SerializeToString()).run(None, {"x": X})
    found = onnxruntime.InferenceSession(message.SerializeToString()).run(None, {"x": X})
    np.testing.assert_array_equal(found[0], wanted[0])


def test_a_model_in_inference_mode_stays_as_it_is():
    message = model(trains=False)
    before = message.SerializeToString()
    assert switched(message) == []
    assert message.SerializeToString() == before


def test_what_is_computed_or_read_stays():
    message = model(outputs=("y", "new_mean"))
    node(message, "drop").input[2] = "asked"
    message.graph.input.append(helper.make_tensor_value_info("asked", TensorProto.BOOL, []))
    assert switched(message) == []


def test_a_normalization_without_statistics_of_its_own_stays():
    message = model()
    for tensor in message.graph.initializer:
        if tensor.name in ("mean", "variance"):
            array = np.full(4, tensor.name == "variance", np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    assert switched(message) == ["Dropout"]
    assert list(node(message, "norm").output) == ["n", "new_mean", "new_variance"]


@pytest.mark.parametrize(("mean", "found"), [(0.1, ["BatchNormalization", "Dropout"]), (0.0, ["Dropout"])])
def test_statistics_that_lie_apart_from_the_message(mean, found):
    light = LightModel.parse(model().SerializeToString())
    weights = {"mean": np.full(4, mean, np.float32), "variance": np.ones(4, np.float32)}
    for tensor in light.message.graph.initializer:
        if tensor.name in weights:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
    assert switched(light.message, weights) == found


def test_statistics_in_another_file_are_not_read():
    message = model()
    for tensor in message.graph.initializer:
        if tensor.name == "mean":
            tensor.data_location = TensorProto.EXTERNAL
    assert switched(message) == ["Dropout"]


def test_ranges_are_those_of_inference_and_a_warning_says_so():
    with pytest.warns(UserWarning, match="'model' was exported in training mode, and 1 BatchNormalization "):
        table = trtint8.calibrate(model(), X, method="minmax", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = trtint8.calibrate(model(trains=False), X, method="minmax", progress=False)
    # The second convolution reads the tensor that the Dropout passes on.
    assert table.amax == wanted.amax


def test_the_warning_names_each_operator_once():
    message = model()
    message.graph.node.append(helper.make_node("Dropout", ["y", "share", "trains"], ["z"], name="last"))
    message.graph.output[0].name = "z"
    with pytest.warns(UserWarning, match="1 BatchNormalization and 2 Dropout nodes compute as in inference"):
        load_model(message)


def in_functions(trains, *, calls=1, nested=False, inside=False):
    """A Dropout in a function, which gets its mode from each call, or from within."""
    drop = helper.make_node("Dropout", ["a", "share", "mode"], ["b"], name="drop")
    nodes = [drop]
    if inside:
        mode = numpy_helper.from_array(np.array(trains), "mode")
        nodes.insert(0, helper.make_node("Constant", [], ["mode"], value=mode))
    parameters = ["a", "share"] if inside else ["a", "share", "mode"]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    functions = [helper.make_function("my", "Drop", parameters, ["b"], nodes, opsets)]
    called = "Drop"
    if nested:
        call = helper.make_node("Drop", parameters, ["b"], domain="my")
        functions.append(helper.make_function("my", "Outer", parameters, ["b"], [call], opsets))
        called = "Outer"
    last, body = "x", []
    for number in range(calls):
        arguments = [last, "share"] if inside else [last, "share", "computed" if trains is None else "trains"]
        last = f"d{number}"
        body.append(helper.make_node(called, arguments, [last], domain="my"))
    if trains is None:
        body.insert(0, helper.make_node("Not", ["trains"], ["computed"]))
    body.append(helper.make_node("MatMul", [last, "w"], ["y"]))
    constants = {"w": np.eye(8, dtype=np.float32), "share": np.float32(0.5), "trains": np.array(bool(trains))}
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 8]) for name in "xy"]
    graph = helper.make_graph(body, "g", info[:1], info[1:], tensors)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions)


@pytest.mark.parametrize(
    "options", [{}, {"calls": 3}, {"nested": True}, {"nested": True, "calls": 2}, {"inside": True}]
)
def test_a_dropout_in_a_function_drops_nothing(options):
    source = in_functions(True, **options)
    assert switched(source) == ["Dropout"]
    x = np.ones((4, 8), np.float32)
    session = onnxruntime.InferenceSession(source.SerializeToString())
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x)
    with pytest.warns(UserWarning, match="exported in training mode, and 1 Dropout"):
        trtint8.model_inputs(in_functions(True, **options))


@pytest.mark.parametrize("trains", [False, None])
def test_a_dropout_in_a_function_whose_mode_is_off_or_computed_stays(trains):
    source = in_functions(trains)
    before = source.SerializeToString()
    assert switched(source) == [] and source.SerializeToString() == before


def test_functions_that_call_each_other_end():
    source = in_functions(True, nested=True)
    source.functions[0].node.append(helper.make_node("Outer", ["b", "share", "mode"], ["more"], domain="my"))
    assert switched(source) == ["Dropout"]
