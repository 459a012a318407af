"""The implicit route's preparation: on networks that TensorRT for RTX parsed, and on plain values."""

import numpy as np
import pytest

from calibrators.errors import BuildError, CalibrationDataError, UnsupportedError
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.calibrator import Calibrator
from calibrators.tensorrt.flavor import Flavor
from calibrators.tensorrt.foreign import ForeignCalibrator
from calibrators.tensorrt.messages import shared_logger
from tests.host_device import HostDevice
from trtint8.api.calibration import model_inputs
from trtint8.builder.build import build_engine
from trtint8.builder.dynamic_ranges import input_names, read_layers
from trtint8.builder.implicit import (
    ImplicitInt8,
    apply_ranges,
    calibration_profile,
    check_device,
    finish_calibration,
)
from trtint8.builder.options import BuildOptions
from trtint8.data import DEMO_MODEL
from trtint8.engine.profiles import ShapeRange
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import runnable

IMAGES = np.random.default_rng(0).random((10, 1, 8, 8), np.float32)
PROFILE = {"images": ShapeRange((1, 1, 8, 8), (8, 1, 8, 8), (32, 1, 8, 8))}


@pytest.fixture
def calibrator():
    """Ours without TensorRT's base, which only the bindings need."""
    return Calibrator(IMAGES, model_inputs(DEMO_MODEL), batch_size=5, device=HostDevice(), progress=False)


@pytest.fixture
def parsed(rtx):
    trt = rtx.module
    logger = shared_logger(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    with runnable(prepare(load_model(DEMO_MODEL)).graph_model) as serialized:
        assert parser.parse(serialized)
    yield trt, network, builder.create_builder_config()
    del parser, network, builder


def floats_of(parsed):
    trt, network, _ = parsed
    return read_layers(trt, network), input_names(trt, network)


def apply(parsed, implicit, floats=None):
    return apply_ranges(*parsed, implicit, BuildOptions(), *(floats or floats_of(parsed)))


def test_ranges_of_another_model(parsed):
    with pytest.raises(BuildError, match="none of the 2 tensors with a range is in the network, 'a' for"):
        apply(parsed, ImplicitInt8(ranges={"a": 1.0, "b": 2.0}))


def test_a_range_by_hand_for_no_tensor(parsed):
    ranges = ImplicitInt8(ranges={"images": 1.0, "pictures": 1.0}, manual=frozenset({"pictures"}))
    with pytest.raises(
        BuildError,
        match="given for 'pictures', which is no floating-point tensor of the network; it has for example "
        "'images', 'logits'",
    ):
        apply(parsed, ranges)


def test_a_range_by_hand_for_an_input_that_is_int8(parsed):
    """The names are those from before inputs got other types, whatever the network's types are now."""
    layers, _ = floats_of(parsed)
    by_hand = ImplicitInt8(object(), {"int8": 1.0}, frozenset({"int8"}))
    assert apply(parsed, by_hand, (layers, ("images", "int8"))) == ()
    with pytest.raises(BuildError, match="given for 'int8', which is no floating-point tensor"):
        apply(parsed, by_hand)


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


@pytest.mark.parametrize("name", ["rtx", "tensorrt"])
def test_tensorrt_without_an_implicit_route(name):
    model = load_model(DEMO_MODEL)
    with pytest.raises(UnsupportedError, match="has neither calibrators nor dynamic ranges"):
        build_engine(b"x", model.inputs, flavor=Flavor(name, "11.4.0"), implicit=ImplicitInt8())


def test_options_that_contradict_the_data():
    with pytest.raises(CalibrationDataError, match=r"the model's inputs are missing; give inputs="):
        Calibrator(IMAGES)
    with pytest.raises(CalibrationDataError, match="num_batches is 0"):
        Calibrator(IMAGES, model_inputs(DEMO_MODEL), num_batches=0)


def test_a_calibrator_must_upload_to_the_gpu_that_builds(calibrator, monkeypatch):
    check_device(calibrator, 0)
    with pytest.raises(BuildError, match="batches are on GPU 0, and the build is to run on GPU 1; give both"):
        check_device(calibrator, 1)
    # Of any other calibrator only the current context is known.
    for current in (None, 1):
        monkeypatch.setattr("calibrators.tensorrt.foreign.current_device", lambda current=current: current)
        check_device(ForeignCalibrator(object()), 1)
    with pytest.raises(BuildError, match="batches are on GPU 1, and the build is to run on GPU 0"):
        check_device(ForeignCalibrator(object()), 0)
