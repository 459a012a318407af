import numpy as np
import onnx
import pytest

from calibrators.errors import BuildError, TableError
from calibrators.tensorrt.messages import shared_logger
from tests.trtint8.builder.networks import Noting, add_residual, named, new_network
from tests.trtint8.onnx_models import parsed
from trtint8.builder.dynamic_ranges import (
    OWN_PROPERTIES,
    MissingRange,
    NetworkLayer,
    NetworkTensors,
    check_ranges,
    layer_type,
    missing_ranges,
    propagate,
    read_network,
    set_ranges,
)
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import runnable
from trtint8.quantization.quantize import tensor_names

CONV1 = "(Unnamed Layer* 0) [Convolution]"


def layer(kind, inputs, outputs, name=None, constant=None):
    return NetworkLayer(name or kind, kind, tuple(inputs), tuple(outputs), constant)


def tensors(*layers, inputs="", outputs=""):
    return NetworkTensors(tuple(inputs), tuple(outputs), layers)


@pytest.fixture
def residual(rtx):
    with new_network(rtx.module) as network:
        add_residual(rtx.module, network)
        yield network


@pytest.mark.parametrize(
    "kind",
    [
        *("SHUFFLE", "SLICE", "GATHER", "POOLING", "IDENTITY", "CAST", "SQUEEZE", "RELU"),
        *("AVG", "NEAREST", "LINEAR"),
    ],
)
def test_ranges_pass_forward(kind):
    assert propagate(tensors(layer(kind, "a", "b")), {"a": 2.0}) == {"a": 2.0, "b": 2.0}


@pytest.mark.parametrize("kind", ["SHUFFLE", "IDENTITY", "CAST", "UNSQUEEZE", "RELU"])
def test_some_pass_backward(kind):
    assert propagate(tensors(layer(kind, "a", "b")), {"b": 2.0}) == {"a": 2.0, "b": 2.0}


@pytest.mark.parametrize(
    "kind", ["SLICE", "POOLING", "CONCATENATION", "CONVOLUTION", "SIGMOID", "NEAREST", "CUBIC", "AVG"]
)
def test_others_do_not(kind):
    assert "a" not in propagate(tensors(layer(kind, "a", "b")), {"b": 2.0})


def test_what_relu_drops_may_be_read_by_others():
    relu = layer("RELU", "a", "b")
    assert "a" not in propagate(tensors(relu, layer("SUM", "ab", "c")), {"b": 2.0})
    assert "a" not in propagate(tensors(relu, outputs="a"), {"b": 2.0})
    assert propagate(tensors(relu, layer("RELU", "a", "c")), {"b": 2.0})["a"] == 2.0


def test_concatenation_takes_the_widest():
    concatenation = tensors(layer("CONCATENATION", "ab", "c"))
    assert propagate(concatenation, {"a": 1.0, "b": 3.0})["c"] == 3.0
    assert "c" not in propagate(concatenation, {"a": 1.0})


@pytest.mark.parametrize("kind", ["SELECT", "CONCATENATION"])
def test_no_range_follows_in_which_an_input_would_be_zeros(kind):
    both = layer(kind, "ab", "c")
    assert "c" not in propagate(tensors(both), {"a": 1.0, "b": 1e9})
    zeros = layer("CONSTANT", "", "b", constant=0.0)
    assert propagate(tensors(zeros, both), {"a": 2.0}) == {"a": 2.0, "b": 1.0, "c": 2.0}


def test_bounded_functions_and_constants():
    found = tensors(layer("SOFTMAX", "a", "b"), layer("CONSTANT", "", "c", constant=7.0))
    assert propagate(found, {}) == {"b": 1.0, "c": 7.0}


def test_known_ranges_are_never_changed():
    found = tensors(layer("SHUFFLE", "a", "b"), layer("SOFTMAX", "b", "c"))
    assert propagate(found, {"a": 5.0, "b": 2.0, "c": 0.5}) == {"a": 5.0, "b": 2.0, "c": 0.5}


def test_chains_in_any_order():
    found = tensors(layer("SHUFFLE", "c", "d"), layer("SHUFFLE", "b", "c"), layer("SHUFFLE", "a", "b"))
    assert propagate(found, {"d": 4.0}) == dict.fromkeys("abcd", 4.0)
    assert propagate(found, {"a": 4.0}) == dict.fromkeys("abcd", 4.0)


def test_a_product_before_its_bias():
    product, constant = layer("MATRIX_MULTIPLY", "ab", "p"), layer("CONSTANT", "", "c", constant=0.5)
    for inputs in ("pc", "cp"):
        found = tensors(product, constant, layer("SUM", inputs, "y"))
        assert propagate(found, {"y": 4.0}) == {"y": 4.0, "c": 0.5, "p": 4.5}
        assert propagate(found, {"y": 4.0, "p": 3.0})["p"] == 3.0
    # Neither of a difference, nor of what no product has made; nor is a sum too large for a float32 set.
    assert "p" not in propagate(tensors(product, constant, layer("SUB", "pc", "y")), {"y": 4.0})
    assert "a" not in propagate(tensors(constant, layer("SUM", "ac", "y")), {"y": 4.0})
    large = layer("CONSTANT", "", "c", constant=3e38)
    assert "p" not in propagate(tensors(product, large, layer("SUM", "pc", "y")), {"y": 3e38})


def test_every_layer_of_the_demo_model_has_its_ranges(rtx):
    """Its last layer is a Gemm, which TensorRT parses into a product, unnamed in the model, and a sum."""
    trt = rtx.module
    builder = trt.Builder(shared_logger(trt))
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, shared_logger(trt))
    prepared = prepare(load_model(DEMO_MODEL))
    with runnable(prepared.graph_model) as serialized:
        assert parser.parse(serialized)
    found = read_network(trt, network)
    known = propagate(found, dict.fromkeys(tensor_names(prepared.graph_model), 2.0))
    assert missing_ranges(found, known) == ()
    bias = onnx.numpy_helper.to_array(
        next(value for value in onnx.load(DEMO_MODEL).graph.initializer if value.name == "fc.bias")
    )
    assert max(known.values()) == pytest.approx(2 + np.abs(bias).max())


def test_missing_ranges_name_their_makers():
    found = tensors(layer("CONVOLUTION", "a", "b", "conv1"), layer("RELU", "b", "c", "relu1"), inputs="a")
    assert missing_ranges(found, {"b": 1.0}) == (MissingRange("a", "input"), MissingRange("c", "relu1"))


def test_what_is_between_layers_in_float_needs_no_range():
    layers = (
        layer("CONVOLUTION", "a", "b", "conv1"),
        layer("CONSTANT", "", "k", "constant"),
        layer("SUM", "bk", "c", "add"),
        layer("CONVOLUTION", "c", "d", "conv2"),
    )

    def missing(in_float, int8=()):
        found = NetworkTensors(("a",), ("d",), layers, frozenset(int8))
        return [missing.tensor for missing in missing_ranges(found, {}, frozenset(in_float))]

    assert missing([]) == ["a", "b", "k", "c", "d"]
    assert missing(["add"]) == ["a", "b", "c", "d"]
    assert missing(["conv1", "add"]) == ["c", "d"]
    assert missing(["conv1", "add", "conv2"]) == []
    assert missing(["conv1", "add", "conv2"], "ad") == ["a", "d"]


def test_reading_a_real_network(rtx):
    """TensorRT for RTX parses without a GPU; its network has everything but the ranges themselves."""
    model = parsed(
        "float[1, 3, 4, 4] x",
        "float[1, 64] y",
        "c = Conv (x, w) r = Relu (c) f = Reshape (r, shape) y = Add (f, offset)",
        w=np.full((4, 3, 1, 1), -0.5, np.float32),
        shape=np.array([0, -1]),
        offset=np.array([[1.0, -3.0] * 32], np.float32),
    )
    trt = rtx.module
    logger = shared_logger(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(model.SerializeToString())
    found = read_network(trt, network)
    assert (found.inputs, found.outputs, found.int8) == (("x",), ("y",), frozenset())
    assert {"CONVOLUTION", "RELU", "SHUFFLE", "CONSTANT", "SUM"} <= {one.kind for one in found.layers}
    known = propagate(found, {"x": 1.0, "r": 2.0, "y": 5.0})
    assert known["c"] == known["f"] == 2.0
    assert 3.0 in known.values()  # the constant
    assert missing_ranges(found, known) == ()
    assert [m.tensor for m in missing_ranges(found, {"x": 1.0})][:2] == ["c", "r"]


def test_a_network_without_a_model(rtx, residual):
    found = read_network(rtx.module, residual)
    assert [one.kind for one in found.layers] == [
        *("CONVOLUTION", "RELU", "CONVOLUTION", "SUM", "RELU", "POOLING", "SHUFFLE", "CONSTANT"),
        *("MATRIX_MULTIPLY", "CONSTANT", "SUM", "SOFTMAX"),
    ]
    assert found.layers[0].name == CONV1
    assert found.layers[0].outputs == (f"{CONV1}_output",)
    assert found.names == {
        *("x", f"{CONV1}_output", "r", "c2", "s", "y", "pooled", "flat", "w", "xw", "b", "z", "p"),
    }
    assert [one.name for one in found.readers["r"]] == ["conv2", "add"]


def test_what_is_set_what_follows_and_what_is_missing(rtx, residual):
    noting = Noting(residual)
    found = read_network(rtx.module, residual)
    done = set_ranges(noting, found, {"x": 2.0, "r": 4.0, "y": 5.0, "z": 8.0, "of_another": 1.0, "c2": 0.0})
    assert done.given == {"x": 2.0, "r": 4.0, "y": 5.0, "z": 8.0}
    widest = float(max(np.abs(network_constant(rtx.module, residual, "weights"))))
    # s is read by the ReLU alone; the product is its sum less the bias, which is -3.
    assert done.followed == {
        **{f"{CONV1}_output": 4.0, "s": 5.0, "pooled": 5.0, "flat": 5.0},
        **{"w": widest, "xw": 11.0, "b": 3.0, "p": 1.0},
    }
    assert done.missing == (MissingRange("c2", "conv2"),)
    assert done.unused == ("of_another",)
    assert noting.noted["ranges"] == {**done.given, **done.followed}
    assert repr(done) == "<SetRanges: 4 given, 8 followed, 1 missing>"


def network_constant(trt, network, name):
    layers = map(network.get_layer, range(network.num_layers))
    constant = next(layer for layer in layers if layer.name == name)
    constant.__class__ = trt.IConstantLayer
    return np.asarray(constant.weights)


def test_a_range_that_tensorrt_refuses(rtx, residual, monkeypatch):
    monkeypatch.setattr(Noting, "set_dynamic_range", lambda *_: False)
    with pytest.raises(BuildError, match="TensorRT refuses the dynamic range 2 of tensor 'x'"):
        set_ranges(Noting(residual), read_network(rtx.module, residual), {"x": 2.0})


def test_names_of_other_networks(rtx, residual):
    found = read_network(rtx.module, residual)
    check_ranges(found, {"x": 1.0, "other": 1.0})
    check_ranges(found, {})
    with pytest.raises(BuildError, match=r"given for 'other', which is no .*; it has 'x', 'p'"):
        check_ranges(found, {"x": 1.0, "other": 1.0}, {"x", "other"})
    with pytest.raises(BuildError, match="none of the 2 tensors with a range is in the network, 'a' for"):
        check_ranges(found, {"a": 1.0, "c": 2.0})


@pytest.mark.parametrize(("amax", "words"), [(2.0**128, "large"), (1e-44, "small")])
def test_ranges_that_are_no_float32(rtx, residual, amax, words):
    found = read_network(rtx.module, residual)
    with pytest.raises(TableError, match=f"'x' is .*, which is too {words}"):
        check_ranges(found, {"x": amax})
    check_ranges(found, {"x": 1.0, "other": amax})


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_constants_that_are_not_finite_have_no_range(rtx, value):
    trt = rtx.module
    with new_network(trt) as network:
        add_residual(trt, network, offset=value)
        found = read_network(trt, network)
        assert MissingRange("b", "bias") in missing_ranges(found, propagate(found, {"z": 8.0}))


def test_constants_of_other_types(rtx):
    """Of half precision the values are known; what is INT8 already means other values than it holds."""
    trt = rtx.module
    with new_network(trt) as network:
        named(network.add_constant((2,), np.array([1, -9], np.float16)), "half", "h")
        named(network.add_constant((2,), np.array([1, -9], np.int8)), "int8", "q")
        named(network.add_constant((2,), np.array([1, -9], np.int32)), "shape", "n")
        named(network.add_constant((2,), np.zeros(2, np.float32)), "zeros", "o")
        found = read_network(trt, network)
        assert {one.name: one.constant_amax for one in found.layers} == {
            "half": 9.0,
            "int8": None,
            "zeros": 0,
        }
        assert propagate(found, {}) == {"h": 9.0, "o": 1.0}


def test_inputs_and_outputs_that_are_int8(rtx):
    trt = rtx.module
    with new_network(trt) as network:
        x = network.add_input("x", trt.int8, (1, 4))
        relu = named(network.add_activation(x, trt.ActivationType.RELU), "relu", "y")
        network.add_input("indices", trt.int32, (1, 4))
        network.mark_output(relu.get_output(0))
        found = read_network(trt, network)
        assert (found.inputs, found.int8) == (("x",), {"x", "y"})
        assert [one.tensor for one in missing_ranges(found, {}, frozenset({"relu"}))] == ["x", "y"]


def test_resizes_reductions_and_casts(rtx):
    trt = rtx.module
    with new_network(trt) as network:
        tensor = network.add_input("x", trt.float32, (1, 3, 8, 8))
        for mode in (trt.InterpolationMode.NEAREST, trt.InterpolationMode.CUBIC):
            resize = named(network.add_resize(tensor), mode.name, f"after {mode.name}")
            resize.scales, resize.resize_mode = (1, 1, 2, 2), mode
        cast = named(network.add_cast(resize.get_output(0), trt.float16), "cast", "half")
        mean = network.add_reduce(cast.get_output(0), trt.ReduceOperation.AVG, 12, keep_dims=False)
        total = network.add_reduce(cast.get_output(0), trt.ReduceOperation.SUM, 12, keep_dims=False)
        named(mean, "mean", "m")
        named(total, "sum", "s")
        found = read_network(trt, network)
        known = propagate(found, {"x": 2.0, "after CUBIC": 3.0})
        assert known == {"x": 2.0, "after NEAREST": 2.0, "after CUBIC": 3.0, "half": 3.0, "m": 3.0}


def test_branches_and_picked_values(rtx):
    trt = rtx.module
    with new_network(trt) as network:
        x = network.add_input("x", trt.float32, (4,))
        branch = network.add_if_conditional()
        branch.set_condition(network.add_input("condition", trt.bool, ()))
        inside = branch.add_input(x).get_output(0)
        copy = network.add_identity(inside).get_output(0)
        other = named(network.add_unary(inside, trt.UnaryOperation.EXP), "exp", "e").get_output(0)
        result = named(branch.add_output(copy, other), "result", "y").get_output(0)
        picked = named(network.add_topk(result, trt.TopKOperation.MAX, 2, 1), "top", "t", "indices")
        network.mark_output(picked.get_output(0))
        found = read_network(trt, network)
        assert set(propagate(found, {"x": 2.0}).values()) == {2.0} and "e" in found.names
        assert [one.tensor for one in missing_ranges(found, propagate(found, {"x": 2.0}))] == ["e", "y", "t"]
        known = propagate(found, {"x": 2.0, "e": 9.0})
        assert (known["y"], known["t"], "indices" in found.names) == (9.0, 9.0, False)


def test_objects_that_the_user_holds_keep_their_class(rtx, residual):
    """``get_layer`` gives the same object again while somebody holds it."""
    trt = rtx.module
    held = [residual.get_layer(index) for index in range(residual.num_layers)]
    held[4].__class__ = trt.IActivationLayer
    before = [type(one) for one in held]
    kinds = [one.kind for one in read_network(trt, residual).layers]
    assert kinds[1] == kinds[4] == "RELU"
    assert layer_type(trt, held[4]) == "ACTIVATION"
    assert [type(one) for one in held] == before


def test_the_properties_of_layers_are_there(rtx):
    for kind, (owner, name) in OWN_PROPERTIES.items():
        assert kind in rtx.module.LayerType.__members__
        assert isinstance(getattr(getattr(rtx.module, owner), name), property)
