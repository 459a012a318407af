import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from traceback import walk_tb

import numpy as np
import pytest

from calibrators import cuda
from calibrators.data.inputs import InputSpec
from calibrators.errors import BuildError, GpuUnavailableError, ModelError, UnsupportedError
from calibrators.tensorrt import flavor, foreign
from calibrators.tensorrt.calibrator import Calibrator
from calibrators.tensorrt.messages import collected
from tests.host_device import HostDevice
from tests.trtint8.builder.building import Bar, build
from tests.trtint8.onnx_models import Graph, conv_relu_conv, save_external, specs
from trtint8.builder.build import _Build, _context, build_engine
from trtint8.builder.implicit import ImplicitInt8
from trtint8.builder.options import BuildOptions
from trtint8.engine.profiles import ShapeRange

AMPERE_ON = ("8.0", "8.6", "8.9", "12.0", "12.1")


def test_quantized_model_runs_in_int8_and_its_twin_in_float(rtx):
    quantized, plain_ = (build(conv_relu_conv(q, channels=64), rtx) for q in (True, False))
    assert quantized.report.weighted_summary(["first", "second"]) == {"INT8": ["first", "second"]}
    assert plain_.report.weighted_summary(["first", "second"]) == {"FP32": ["first", "second"]}
    # 38,592 weights and some scales.
    assert 154_000 < plain_.weights_bytes < 165_000
    assert 3.5 < plain_.weights_bytes / quantized.weights_bytes < 4


def test_what_is_known_of_a_build(rtx):
    engine = build(conv_relu_conv(), rtx)
    assert isinstance(engine.plan, bytes)
    assert len(engine.plan) > 10_000
    assert (engine.flavor, engine.version) == ("rtx", rtx.version)
    assert engine.profiles == ({"images": ShapeRange((1, 3, 16, 16), (8, 3, 16, 16), (32, 3, 16, 16))},)
    assert engine.warnings == ()
    assert engine.seconds > 0
    assert engine.compute_capabilities == (AMPERE_ON if cuda.gpu_problem() else ("current",))


def test_static_inputs_need_no_profile(rtx):
    g = Graph()
    model = g.model({"x": [2, 64]}, g.op("MatMul", [g.qdq("x"), g.qdq(g.weights(64, 32), 1, 32)], "product"))
    engine = build(model, rtx)
    assert engine.profiles == ()
    assert engine.report.precision_of("product") == "INT8"


def test_several_profiles(rtx):
    small, large = (
        ShapeRange((low, 3, 16, 16), (low, 3, 16, 16), (high, 3, 16, 16)) for low, high in ((1, 4), (8, 64))
    )
    engine = build(conv_relu_conv(), rtx, profiles=[{"images": small}, {"images": large}])
    assert engine.profiles == ({"images": small}, {"images": large})


def test_warnings_are_kept_in_plain_words(rtx, caplog):
    g = Graph()
    scale, zero = g.constant(np.float32(0.1)), g.constant(np.uint8(0))
    quantized = g.op("QuantizeLinear", ["x", scale, zero], "q")
    model = g.model(
        {"x": ["N", 8]}, g.op("Relu", [g.op("DequantizeLinear", [quantized, scale, zero], "dq")], "relu")
    )
    with caplog.at_level(logging.DEBUG, logger="trtint8"):
        (warning,) = build(model, rtx).warnings
    assert warning.startswith(
        "TensorRT supports QuantizeLinear/DequantizeLinear with UINT8 zero_point only on DLA"
    )
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    assert "UINT8 zero_point" in caplog.text


def test_path_with_external_data(rtx, tmp_path):
    model = conv_relu_conv()
    path = save_external(conv_relu_conv(), tmp_path)
    for form in (path, str(path)):
        engine = build_engine(form, specs(model), flavor=rtx)
        assert engine.report.precision_of("second") == "INT8"


def test_missing_model(rtx, tmp_path):
    with pytest.raises(
        ModelError, match=r"^there is no model '.*nope\.onnx'; give the path of an ONNX file$"
    ):
        build_engine(tmp_path / "nope.onnx", [], flavor=rtx)


def test_failed_build_gives_the_reason(rtx):
    g = Graph()
    scalar = g.op("DequantizeLinear", [g.constant(np.int8(3)), g.constant(np.float32(0.1))], "scalar")
    with pytest.raises(BuildError) as caught:
        build(g.model({"x": ["N", 8]}, g.op("Mul", ["x", scalar], "scaled")), rtx)
    assert str(caught.value).startswith(
        f"{rtx} could not build the engine: Quantized constant (constant0) is only"
    )
    assert ".cpp" not in str(caught.value)


def test_profiles_that_contradict_each_other(rtx):
    g = Graph()
    model = g.model({"a": ["N", 3], "b": ["N", 3]}, g.op("Add", ["a", "b"], "sum"))
    apart = {"a": ShapeRange((1, 3), (2, 3), (4, 3)), "b": ShapeRange((5, 3), (6, 3), (7, 3))}
    with pytest.raises(BuildError, match="contradictory"):
        build(model, rtx, profiles=[apart])


def test_wrong_profile_is_found_before_building(rtx):
    with pytest.raises(
        BuildError, match="the profile names an input 'nope' that the model lacks; it has 'images'"
    ):
        build(conv_relu_conv(), rtx, profiles=[{"nope": ShapeRange((1,), (2,), (3,))}])


def test_no_fp16_switch_where_the_graph_decides(rtx):
    with pytest.raises(
        UnsupportedError,
        match="has no FP16 switch; convert the model itself, as 'trtint8 quantize --float16' does",
    ):
        build(conv_relu_conv(), rtx, options=BuildOptions(fp16=True))
    build(conv_relu_conv(), rtx, options=BuildOptions(fp16=False))


def test_tensorrt_asks_for_a_gpu_before_it_is_touched(monkeypatch):
    monkeypatch.setattr("calibrators.cuda.driver.gpu_problem", lambda: "there is none")
    with pytest.raises(
        GpuUnavailableError, match=r"^building with TensorRT 10\.1 needs an NVIDIA GPU, but there is none"
    ):
        build(conv_relu_conv(), flavor.Flavor("tensorrt", "10.1"))


@pytest.fixture
def entered(monkeypatch):
    """The indices of GPUs whose primary context was entered, on a machine that has one."""
    entered = []
    monkeypatch.setattr("trtint8.builder.build.gpu_problem", lambda: None)
    monkeypatch.setattr(
        "trtint8.builder.build.primary_context", lambda index: entered.append(index) or nullcontext()
    )
    return entered


def calibrator_on(device):
    inputs = (InputSpec("x", np.dtype(np.float32), ("N", 2)),)
    return Calibrator(np.zeros((4, 2), np.float32), inputs, device=device, progress=False)


def test_a_build_runs_in_the_context_that_its_calibrator_enters(entered):
    device = HostDevice()
    with _context(calibrator_on(device), 0):
        device.check_active()
    assert device.depth == 0 and entered == []


def test_or_in_the_primary_one(entered, monkeypatch):
    monkeypatch.setattr(foreign, "current_device", lambda: None)
    for index, calibrator in enumerate((None, foreign.ForeignCalibrator(object()))):
        with _context(calibrator, index):
            pass
    assert entered == [0, 1]


#: What a build makes, and what is to go with it.
BUILDERS = {"Builder", "INetworkDefinition", "OnnxParser"}


def held_by(error):
    """The names of the classes of all that the frames of an error's traceback refer to."""
    held = set()
    for frame, _ in walk_tb(error.__traceback__):
        held.update(type(value).__name__ for value in frame.f_locals.values())
    return held


def test_a_kept_error_keeps_no_builder(rtx):
    """TensorRT hangs if a builder that a traceback kept is freed while another one is created."""
    g = Graph()
    model = g.model({"x": ["N", 8]}, g.op("Foo", ["x"], "custom"))
    with pytest.raises(BuildError) as caught:
        build(model, rtx)
    assert not BUILDERS & held_by(caught.value)
    assert caught.value.__context__ is None
    # Nor does anything else: a second logger would draw a warning while the first one's builder lives.
    assert build(conv_relu_conv(), rtx).warnings == ()


def test_nor_does_a_kept_failure_of_a_calibrator(rtx):
    """Which holds the error of the build that it ended."""
    calibrator = calibrator_on(HostDevice())
    calibrator.failure = ConnectionError("the disk is gone")
    g = Graph()
    model = g.model({"x": ["N", 8]}, g.op("Foo", ["x"], "custom")).SerializeToString()
    implicit = ImplicitInt8(calibrator)
    with collected(rtx.module) as log, pytest.raises(ConnectionError) as caught:
        _Build(rtx, log, (), (), BuildOptions(), True, implicit, None, None, {}).run(model)
    assert isinstance(caught.value.__cause__, BuildError)
    assert not BUILDERS & (held_by(caught.value) | held_by(caught.value.__cause__))


def test_builds_in_several_threads(rtx):
    models = [conv_relu_conv(quantized) for quantized in (True, False)] * 2
    with ThreadPoolExecutor(len(models)) as pool:
        engines = list(pool.map(lambda model: build(model, rtx), models))
    # Every thread got the messages of its own build.
    assert [engine.report.precision_of("first") for engine in engines] == ["INT8", "FP32"] * 2


def test_a_build_inside_the_callback_of_another(rtx, monkeypatch):
    """Code of the user runs during a build, in a data source for example, and may use TensorRT itself."""
    inner = []

    def build_too(_steps):
        if not inner:
            inner.append(None)
            with ThreadPoolExecutor(1) as pool:
                inner[0] = pool.submit(build, conv_relu_conv(quantized=False), rtx).result(60)

    monkeypatch.setattr("trtint8.builder.build.progress_bar", Bar(build_too))
    outer = build(conv_relu_conv(), rtx)
    assert outer.report.precision_of("first") == "INT8"
    assert inner[0].report.precision_of("first") == "FP32"
