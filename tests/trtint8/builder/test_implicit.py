"""The implicit route's preparation: on networks that TensorRT for RTX parsed, and on plain values."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from calibrators.errors import BuildError, UnsupportedError
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.calibrator import Calibrator, ForeignCalibrator
from calibrators.tensorrt.flavor import Flavor
from calibrators.tensorrt.messages import shared_logger
from tests.host_device import HostDevice
from tests.trtint8.builder.networks import (
    Noting,
    NotingConfig,
    add_residual,
    implicit_module,
    named,
    new_network,
)
from tests.trtint8.onnx_models import prepared_graph
from trtint8.builder.config import BuildOptions
from trtint8.builder.implicit import (
    ImplicitInt8,
    apply_ranges,
    calibration_profile,
    check_device,
    data_type,
    finish_calibration,
    io_dtypes,
    match_layers,
    set_io,
    set_network_ranges,
)
from trtint8.calibration import model_inputs
from trtint8.data import DEMO_MODEL
from trtint8.engine.profiles import ShapeRange
from trtint8.models.serialization import runnable

IMAGES = np.random.default_rng(0).random((10, 1, 8, 8), np.float32)
PROFILE = {"images": ShapeRange((1, 1, 8, 8), (8, 1, 8, 8), (32, 1, 8, 8))}


@pytest.fixture
def calibrator():
    """Ours without TensorRT's base, which only the bindings need."""
    return Calibrator(IMAGES, model_inputs(DEMO_MODEL), batch_size=5, device=HostDevice())


@pytest.fixture
def parsed(rtx):
    trt = rtx.module
    logger = shared_logger(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    with runnable(prepared_graph(DEMO_MODEL)) as serialized:
        assert parser.parse(serialized)
    yield trt, network, builder.create_builder_config()
    del parser, network, builder


def apply(parsed, implicit):
    return apply_ranges(*parsed, implicit, BuildOptions())


def test_a_range_by_hand_for_an_input_that_is_int8(parsed):
    _, network, _ = parsed
    by_hand = ImplicitInt8(object(), {"int8": 1.0}, frozenset({"int8"}))
    with pytest.raises(BuildError, match="given for 'int8', which is no floating-point tensor"):
        apply(parsed, by_hand)
    network.add_input("int8", parsed[0].int8, (1, 4))
    assert apply(parsed, by_hand) == ()


def test_a_layer_to_keep_that_is_not_there(parsed):
    with pytest.raises(BuildError, match=r"the pattern '/nothing/\*' matches no layer of the network"):
        apply(parsed, ImplicitInt8(ranges={"images": 1.0}, keep_float=["/nothing/*"]))


def test_calibration_takes_the_shapes_of_the_batches(calibrator):
    fixed = (5, 1, 8, 8)
    assert calibration_profile(calibrator, [PROFILE]) == {"images": ShapeRange(fixed, fixed, fixed)}


def test_or_the_usual_shapes_where_they_are_not_known():
    usual = (8, 1, 8, 8)
    shapes = calibration_profile(ForeignCalibrator(object()), [PROFILE, {}])
    assert shapes == {"images": ShapeRange(usual, usual, usual)}


def test_static_inputs_need_none(calibrator):
    assert calibration_profile(calibrator, []) is None


def test_a_failure_of_the_calibrator_comes_before_the_builds(calibrator):
    calibrator.failure = ValueError("disk gone")
    error = BuildError("could not build")
    with pytest.raises(ValueError, match="disk gone") as raised:
        finish_calibration(calibrator, error)
    assert raised.value.__cause__ is error


def test_a_calibrator_that_was_never_asked(calibrator):
    with pytest.warns(UserWarning, match="TensorRT never asked the calibrator for data"):
        finish_calibration(calibrator, None)
    calibrator.table = CalibrationTable({"images": 1.0})  # from its cache
    finish_calibration(calibrator, None)
    finish_calibration(None, None)


def test_a_calibrator_must_upload_to_the_gpu_that_builds(calibrator, monkeypatch):
    check_device(calibrator, 0)
    with pytest.raises(BuildError, match="batches are on GPU 0, and the build is to run on GPU 1; give both"):
        check_device(calibrator, 1)
    # Of any other calibrator only the current context is known.
    for current in (None, 1):
        monkeypatch.setattr("calibrators.tensorrt.calibrator.current_device", lambda current=current: current)
        check_device(ForeignCalibrator(object()), 1)
    with pytest.raises(BuildError, match="batches are on GPU 1, and the build is to run on GPU 0"):
        check_device(ForeignCalibrator(object()), 0)


@pytest.fixture
def flavor(rtx, monkeypatch):
    """TensorRT 8.6, as far as networks of TensorRT for RTX can stand for it."""
    monkeypatch.setitem(sys.modules, "tensorrt", implicit_module(rtx))
    return Flavor("tensorrt", "8.6.1")


@pytest.fixture
def network(rtx):
    with new_network(rtx.module) as real:
        add_residual(rtx.module, real)
        yield Noting(real)


def set_own(flavor, network, ranges, config=None, keep_float=(), manual=()):
    return set_network_ranges(flavor, network, config, ranges, manual, keep_float)


RANGES = {"x": 2.0, "r": 4.0, "c2": 3.0, "y": 5.0, "z": 8.0}


def test_a_network_of_ones_own(flavor, network):
    config = NotingConfig()
    done = set_own(flavor, network, RANGES, config)
    assert done.missing == ()
    assert network.noted["ranges"] == {**done.given, **done.followed}
    assert (config.flags, network.noted["precisions"], network.noted["types"]) == (["INT8"], {}, {})


def test_flags_may_be_the_callers(flavor, network):
    assert set_own(flavor, network, RANGES).missing == ()
    with pytest.raises(BuildError, match="keep_float needs config"):
        set_own(flavor, network, RANGES, keep_float=["conv2"])


@pytest.mark.parametrize("pattern", ["conv2", ["c?nv2"], (name for name in ["conv2"])])
def test_layers_that_stay_in_float(flavor, network, pattern):
    config = NotingConfig()
    set_own(flavor, network, RANGES, config, pattern)
    assert set(config.flags) == {"INT8", "OBEY_PRECISION_CONSTRAINTS"}
    assert network.noted["precisions"] == {"conv2": "FLOAT"}
    assert network.noted["types"] == {("conv2", 0): "FLOAT"}


def test_layers_in_half_precision(flavor, network):
    config = NotingConfig()
    set_own(flavor, network, RANGES, config, {"relu*": "fp16", "relu2": "fp32"})
    assert set(config.flags) == {"INT8", "FP16", "OBEY_PRECISION_CONSTRAINTS"}
    assert network.noted["precisions"] == {"relu1": "HALF", "relu2": "FLOAT"}


def test_layers_by_the_names_that_tensorrt_gives(flavor, network):
    set_own(flavor, network, RANGES, NotingConfig(), ["(Unnamed Layer* 0) [Convolution]", "* [Conv*]"])
    assert list(network.noted["precisions"]) == ["(Unnamed Layer* 0) [Convolution]"]


def test_tensors_between_layers_in_float_are_not_missing(flavor, network):
    ranges = {"x": 2.0, "r": 4.0}
    assert [one.tensor for one in set_own(flavor, network, ranges).missing] == [
        "c2",
        "s",
        "y",
        "pooled",
        *REST,
    ]
    kept = ["conv2", "add", "relu?", "pool", "flatten"]
    missing = set_own(flavor, network, ranges, NotingConfig(), kept).missing
    assert [one.tensor for one in missing] == REST


#: What is missing from the flattened tensor on, which the matrix product reads.
REST = ["flat", "xw", "z"]


def test_the_outputs_of_a_network_keep_their_types(flavor, network):
    set_own(flavor, network, RANGES, NotingConfig(), {"fc": "fp16", "softmax": "fp16"})
    assert network.noted["precisions"] == {"fc": "HALF", "softmax": "HALF"}
    assert network.noted["types"] == {("fc", 0): "HALF"}


def test_an_output_that_is_int8_stays_so(flavor, rtx):
    """The layer that makes it may compute in float all the same."""
    trt = rtx.module
    with new_network(trt) as real:
        x = real.add_input("x", trt.int8, (1, 4))
        relu = named(real.add_activation(x, trt.ActivationType.RELU), "relu", "y")
        real.mark_output(relu.get_output(0))
        noting = Noting(real)
        done = set_own(flavor, noting, {"x": 2.0}, NotingConfig(), "relu")
        assert noting.noted == {"ranges": {"x": 2.0, "y": 2.0}, "precisions": {"relu": "FLOAT"}, "types": {}}
        assert done.missing == ()


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"ranges": {"x": 1.0, "other": 1.0}, "manual": ["other"]}, BuildError, "given for 'other'"),
        ({"ranges": {"other": 1.0}}, BuildError, "'other' for example"),
        ({"keep_float": "nothing"}, BuildError, "'nothing' matches no layer"),
        ({"keep_float": {"conv2": "int8"}}, UnsupportedError, "'int8'; use one of fp32, fp16, bf16"),
        ({"keep_float": 5}, UnsupportedError, "5 is given where names are expected"),
        ({"keep_float": [5]}, BuildError, "the pattern 5 is no text"),
        ({"ranges": {5: 1.0, "x": 1.0}, "manual": [5, "x", "other"]}, BuildError, "given for '5'"),
        ({"config": object()}, BuildError, "config is a object; give the IBuilderConfig"),
    ],
)
def test_nothing_is_set_where_something_is_wrong(flavor, network, given, error, words):
    config = NotingConfig()
    with pytest.raises(error, match=words):
        set_own(flavor, network, **{"ranges": RANGES, "config": config, **given})
    assert network.noted == {"ranges": {}, "precisions": {}, "types": {}}
    assert not config.flags


def test_a_precision_that_this_tensorrt_lacks(flavor, network, monkeypatch):
    types = {name: kind for name, kind in flavor.module.DataType.__members__.items() if name != "BF16"}
    monkeypatch.setattr(flavor.module, "DataType", type("DataType", (), {**types, "__members__": types}))
    config = NotingConfig()
    with pytest.raises(UnsupportedError, match="there is no precision 'bf16' here"):
        set_own(flavor, network, RANGES, config, {"conv2": "fp32", "relu1": "bf16"})
    assert not network.noted["precisions"] and not config.flags


def test_ranges_beside_a_calibrator(flavor, network):
    config = NotingConfig()
    config.int8_calibrator = object()
    with pytest.raises(BuildError, match="config has an int8_calibrator"):
        set_own(flavor, network, RANGES, config)


def test_a_network_that_is_strongly_typed(flavor, network):
    """As all are in TensorRT for RTX, whatever they are created with."""
    with pytest.raises(UnsupportedError, match="the network is strongly typed"):
        set_own(Flavor("tensorrt", "10.16.1"), network, RANGES)
    assert set_own(flavor, network, RANGES).missing == ()


def test_a_network_without_layers(flavor, rtx):
    with new_network(rtx.module) as network, pytest.raises(BuildError, match="the network has no layers"):
        set_own(flavor, network, RANGES)


def test_a_network_with_pairs(flavor, rtx):
    trt = rtx.module
    with new_network(trt) as network:
        x = network.add_input("x", trt.float32, (1, 4))
        scale = network.add_constant((), np.array(0.5, np.float32)).get_output(0)
        named(network.add_quantize(x, scale, trt.int8), "first pair")
        with pytest.raises(
            UnsupportedError, match="Q/DQ layers, such as 'first pair', so its INT8 is explicit"
        ):
            set_own(flavor, network, {"x": 1.0})


def test_patterns_of_layers():
    names = ["/a/Conv", "/b/Conv", "/b/Relu"]
    assert match_layers(names, {"*": "fp16", "/b/*": "fp32", "/b/Relu": "int8"}) == {
        "/a/Conv": "fp16",
        "/b/Conv": "fp32",
        "/b/Relu": "int8",
    }
    with pytest.raises(BuildError, match=r"the pattern '/c/\*' matches no layer of the network; it has "):
        match_layers(names, {"/c/*": "fp16"})


def test_brackets_stand_for_themselves():
    """TensorRT gives them to layers that a network's author has given no name."""
    names = [f"(Unnamed Layer* {index}) [{kind}]" for index, kind in enumerate(["Pooling", "Convolution"])]
    assert match_layers(names, {"*[Conv*]": "fp32"}) == {names[1]: "fp32"}
    assert match_layers(names, {names[0]: "fp16"}) == {names[0]: "fp16"}
    with pytest.raises(BuildError, match="matches no layer"):
        match_layers(names, {"*[PC]*": "fp32"})


def test_precision_names(rtx):
    assert data_type(rtx.module, "fp16") == rtx.module.DataType.HALF
    with pytest.raises(
        UnsupportedError, match="there is no precision 'fp12' here; use one of fp32, fp16, bf16"
    ):
        data_type(rtx.module, "fp12")


def test_types_at_the_ends_are_those_that_were_set(rtx):
    types = rtx.module.DataType
    tensors = {
        "ids": SimpleNamespace(name="ids", dtype=types.INT32),  # as before version 10, where ONNX has INT64
        "images": SimpleNamespace(name="images", dtype=types.FLOAT),
        "packed": SimpleNamespace(name="packed", dtype=types.INT4),
        "y": SimpleNamespace(name="y", dtype=types.FLOAT),
    }
    names = list(tensors)
    network = SimpleNamespace(
        num_inputs=3,
        num_outputs=1,
        get_input=lambda index: tensors[names[index]],
        get_output=lambda index: tensors[names[3 + index]],
    )
    set_io(rtx.module, network, BuildOptions(io_types={"images": "int8", "y": "fp16"}))
    assert io_dtypes(rtx.module, network) == {
        "ids": np.dtype(np.int32),
        "images": np.dtype(np.int8),
        "y": np.dtype(np.float16),
    }
