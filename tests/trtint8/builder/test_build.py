"""Models that cannot be read, and nodes that the parser refuses."""

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from traceback import walk_tb

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.testing import assert_array_equal
from onnx import TensorProto, helper

import trtint8
from calibrators import cuda
from calibrators.data.inputs import InputSpec
from calibrators.errors import Advice, Argument, BuildError, GpuUnavailableError, ModelError
from calibrators.host.session import open_session
from calibrators.interruption import deferred_interrupt
from calibrators.tensorrt import calibrator as foreign
from calibrators.tensorrt import flavor
from calibrators.tensorrt.calibrator import Calibrator
from tests.host_device import HostDevice
from tests.trtint8.builder.building import Bar, build
from tests.trtint8.engines import build_rtx
from tests.trtint8.onnx_models import (
    Graph,
    Shaped,
    constants_of,
    conv_relu_conv,
    normal,
    save_external,
    specs,
)
from trtint8.builder import build as builder
from trtint8.builder.build import (
    Build,
    _context,
    count_int8_layers,
    with_equal_forms,
)
from trtint8.builder.config import BuildOptions
from trtint8.builder.implicit import ImplicitInt8
from trtint8.engine.profiles import ShapeRange
from trtint8.models.model import load_model

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
    model = g.model({"x": [2, 64]}, g.MatMul("product", g.qdq("x"), g.qdq(g.weights(64, 32), 1, 32)))
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
    quantized = g.QuantizeLinear("q", "x", scale, zero)
    model = g.model({"x": ["N", 8]}, g.Relu("relu", g.DequantizeLinear("dq", quantized, scale, zero)))
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
        engine = Build(rtx, specs(model)).run(form)
        assert engine.report.precision_of("second") == "INT8"


def test_missing_model(rtx, tmp_path):
    with pytest.raises(
        ModelError, match=r"^there is no model '.*nope\.onnx'; give the path of an ONNX file$"
    ):
        Build(rtx, []).run(tmp_path / "nope.onnx")


def test_failed_build_gives_the_reason(rtx):
    g = Graph()
    scalar = g.DequantizeLinear("scalar", g.constant(np.int8(3)), g.constant(np.float32(0.1)))
    with pytest.raises(BuildError) as caught:
        build(g.model({"x": ["N", 8]}, g.Mul("scaled", "x", scalar)), rtx)
    assert str(caught.value).startswith(
        f"{rtx} could not build the engine: Quantized constant (constant0) is only"
    )
    assert ".cpp" not in str(caught.value)


def test_profiles_that_contradict_each_other(rtx):
    g = Graph()
    model = g.model({"a": ["N", 3], "b": ["N", 3]}, g.Add("sum", "a", "b"))
    apart = {"a": ShapeRange((1, 3), (2, 3), (4, 3)), "b": ShapeRange((5, 3), (6, 3), (7, 3))}
    with pytest.raises(BuildError, match="contradictory"):
        build(model, rtx, profiles=[apart])


def test_wrong_profile_is_found_before_building(rtx):
    with pytest.raises(
        BuildError, match="the profile names an input 'nope' that the model lacks; it has 'images'"
    ):
        build(conv_relu_conv(), rtx, profiles=[{"nope": ShapeRange((1,), (2,), (3,))}])


def test_the_graph_decides_what_is_in_fp16(rtx):
    given, *others = (
        build(conv_relu_conv(quantized=False), rtx, options=BuildOptions(fp16=fp16))
        for fp16 in (None, True, False)
    )
    assert given.report.weighted_summary(["first", "second"]) == {"FP32": ["first", "second"]}
    assert [built.report for built in others] == [given.report] * 2


@pytest.mark.parametrize(("half", "advised"), [(TensorProto.FLOAT16, False), (TensorProto.BFLOAT16, True)])
def test_fp16_is_advised_only_where_the_graph_has_none(half, advised, rtx):
    with pytest.raises(BuildError) as caught:
        build(scaled(half=half), rtx)
    (ways,) = (part for part in caught.value.parts if isinstance(part, Advice))
    named = [str(part) for way in ways.ways for part in way if isinstance(part, Argument)]
    assert named == (["fp16=True"] if advised else []) + ["keep_float"]


def test_tensorrt_asks_for_a_gpu_before_it_is_touched(monkeypatch):
    monkeypatch.setattr("calibrators.cuda.driver.gpu_problem", lambda: "there is none")
    with pytest.raises(
        GpuUnavailableError, match=r"^building with TensorRT 10\.1 needs an NVIDIA GPU, but there is none"
    ) as refused:
        build(conv_relu_conv(), flavor.Flavor("tensorrt", "10.1"))
    assert "'trtint8 quantize'" in refused.value.template


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
    return Calibrator(np.zeros((4, 2), np.float32), inputs, device=device)


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
    model = g.model({"x": ["N", 8]}, g.Foo("custom", "x"))
    with pytest.raises(BuildError) as caught:
        build(model, rtx)
    assert not BUILDERS & held_by(caught.value)
    assert caught.value.__context__ is None
    # Nor does anything else: a second logger would draw a warning while the first one's builder lives.
    assert build(conv_relu_conv(), rtx).warnings == ()


def test_nor_does_a_kept_failure_of_a_calibrator(rtx, monkeypatch):
    """Which holds the error of the build that it ended."""
    calibrator = calibrator_on(HostDevice())
    monkeypatch.setattr(builder, "check_calibrator", lambda *_: None)
    monkeypatch.setattr(
        calibrator, "bind", lambda _build: setattr(calibrator, "failure", ConnectionError("the disk is gone"))
    )
    g = Graph()
    model = g.model({"x": ["N", 8]}, g.Foo("custom", "x")).SerializeToString()
    with pytest.raises(ConnectionError) as caught:
        Build(rtx, [InputSpec("x", np.dtype(np.float32), (1, 8))]).run(model, ImplicitInt8(calibrator))
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


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_external_data_that_is_not_there(rtx, tmp_path, damage):
    path = save_external(conv_relu_conv(), tmp_path)
    weights = tmp_path / "weights.bin"
    weights.unlink() if damage == "missing" else os.truncate(weights, 10)
    with pytest.raises(ModelError) as caught:
        Build(rtx, specs(conv_relu_conv())).run(path)
    assert str(caught.value) == (
        f"'{path}' keeps weights in '{weights}', which is missing or too short; put the whole file beside "
        f"the model, and give the model's path"
    )


def test_external_data_needs_a_path(rtx, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    path = save_external(conv_relu_conv(), tmp_path / "elsewhere")
    with pytest.raises(
        ModelError, match=r"^the model keeps weights in 'weights\.bin', .* give the model's path$"
    ):
        Build(rtx, specs(conv_relu_conv())).run(path.read_bytes())


def test_empty_and_garbage_models(rtx, tmp_path):
    with pytest.raises(ModelError, match=r"^the model holds no nodes; give"):
        Build(rtx, []).run(b"")
    path = tmp_path / "empty.onnx"
    path.touch()
    with pytest.raises(ModelError, match=r"empty\.onnx' holds no nodes; give"):
        Build(rtx, []).run(path)
    with pytest.raises(
        ModelError, match=r"cannot read the model as an ONNX model: Failed to parse the ONNX model$"
    ):
        Build(rtx, []).run(b"garbage" * 100)


def unsupported(g):
    return {"x": ["N", 8]}, g.Foo("custom", "x")


def qlinear(g):
    return {"x": ["N", 3, 8, 8]}, g.QLinearConv("integer", *["x"] * 8)


def zero_point(g):
    return {"x": ["N", 8]}, g.Relu("relu", g.qdq("x", zero_point=3))


def int32_bias(g):
    bias = [g.constant(np.zeros(16, np.int32)), g.constant(np.full(16, 0.1, np.float32))]
    bias = g.DequantizeLinear("bias_dq", *bias, axis=0)
    return {"x": ["N", 3, 8, 8]}, g.Conv("conv", "x", g.weights(16, 3, 3, 3), bias)


def shapes(g):
    return {"x": ["N", 8], "y": ["N", 9]}, g.Add("sum", "x", "y")


NO_OPERATOR = "TensorRT does not support this operator; replace the node by operators that TensorRT has"


NO_INT32 = (
    "bias_dq: input has type Int32 but must have type FP8, FP4, Int4, Int8, or UInt8; leave the bias in float"
)


NO_ZERO_POINT = "Non-zero zero point is not supported; quantize symmetrically, with zero point 0"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (unsupported, f"node 'custom' (Foo) of the model: {NO_OPERATOR}"),
        (qlinear, f"node 'integer' (QLinearConv) of the model: {NO_OPERATOR}"),
        (zero_point, f"node 'x_0_q' (QuantizeLinear) of the model: {NO_ZERO_POINT}"),
        (int32_bias, f"node 'bias_dq' (DequantizeLinear) of the model: {NO_INT32}"),
        (shapes, "node 'sum' (Add) of the model: broadcast dimensions must be conformable"),
    ],
)
def test_refused_nodes(rtx, make, message):
    g = Graph()
    with pytest.raises(BuildError) as caught:
        build(g.model(*make(g)), rtx)
    assert str(caught.value) == f"{rtx} cannot take {message}"


class Stopped(BaseException):
    """What a program's handler of a signal raises."""


@pytest.fixture(autouse=True)
def handlers():
    """As in a program that reacts to SIGTERM."""

    def raise_stopped(_number, _frame):
        raise Stopped

    before = signal.getsignal(signal.SIGINT), signal.signal(signal.SIGTERM, raise_stopped)
    yield
    for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
        signal.signal(number, handler)


SIGNALS = pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Stopped)]
)


def test_progress_counts_steps(rtx, monkeypatch):
    seen = []
    monkeypatch.setattr(builder, "progress_bar", Bar(seen.append))
    build(conv_relu_conv(), rtx)
    assert len(seen) > 10
    assert set(seen) == {1}


def test_a_broken_progress_bar_does_not_stop_the_build(rtx, monkeypatch, capfd):
    monkeypatch.setattr(builder, "progress_bar", Bar(lambda _steps: 1 / 0))
    assert build(conv_relu_conv(), rtx).plan
    assert capfd.readouterr().err == ""


@SIGNALS
def test_a_signal_cancels_the_build(number, error, rtx, monkeypatch, capfd):
    before = signal.getsignal(number)
    steps = []

    def press_once(_steps):
        """After the first step that the builder reports: a later signal could reach the next test."""
        steps.append(1)
        if len(steps) == 1:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(builder, "progress_bar", Bar(press_once))
    with pytest.raises(error):
        build(conv_relu_conv(), rtx)
    assert signal.getsignal(number) is before
    assert capfd.readouterr().err == ""
    monkeypatch.undo()
    # Nothing of the cancelled build is left behind.
    assert build(conv_relu_conv(), rtx).report.precision_of("second") == "INT8"


#: Builds a model; after the first step it says so, and waits for a line.
PROGRAM = """
import sys
from tests.trtint8.builder.building import Bar, build
from tests.trtint8.onnx_models import conv_relu_conv
from calibrators.tensorrt import flavor
from trtint8.builder import build as builder

def wait(_steps):
    print("building", flush=True)
    sys.stdin.readline()

builder.progress_bar = Bar(wait)
build(conv_relu_conv(), flavor.load("rtx"))
"""


@pytest.mark.slow
def test_ctrl_c_in_a_program(rtx):
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "building\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate("go on\n" * 1000)
    assert process.returncode == -signal.SIGINT
    assert errors.strip().endswith("KeyboardInterrupt")
    assert "During handling" not in errors


@SIGNALS
def test_a_signal_is_held_back_until_the_block_is_left(number, error):
    before = signal.getsignal(number)
    reached = []
    with pytest.raises(error) as caught, deferred_interrupt() as pressed:
        reached.append(pressed())
        os.kill(os.getpid(), number)
        reached.append(pressed())
        raise ZeroDivisionError
    assert reached == [False, True]
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    assert signal.getsignal(number) is before


@SIGNALS
def test_what_the_frames_of_the_block_hold_goes_with_the_exception(number, error):
    """A builder of TensorRT, for example, which is hundreds of megabytes of a GPU's memory."""
    held = []

    def interrupted():
        builder = Stopped()
        held.append(weakref.ref(builder))
        with deferred_interrupt():
            os.kill(os.getpid(), number)
            raise ZeroDivisionError

    gc.disable()
    try:
        interrupted()
    except error:
        assert held[0]() is not None
    finally:
        gc.enable()
    assert held[0]() is None


def test_what_a_program_ignores_or_only_notes_stops_nothing():
    noted = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _frame: noted.append(number))
    with deferred_interrupt() as pressed:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert not pressed()
    assert noted == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_in_another_thread_signals_are_left_alone():
    handlers = []

    def work():
        with deferred_interrupt() as pressed:
            handlers.append((signal.getsignal(signal.SIGINT), pressed()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [(signal.getsignal(signal.SIGINT), False)]


def test_layers_are_counted(rtx):
    g = Shaped()
    first = g.MatMul("first", g.qdq("x"), g.qdq(g.weights(64, 64), 1, 64))
    model = load_model(g.model({"x": [4, 64]}, g.MatMul("second", first, g.weights(64, 32))))
    assert count_int8_layers(model.graph_model, model.inputs, ["first"]) == 1
    assert count_int8_layers(model.graph_model, model.inputs, ["first", "second"]) == 1


def resized():
    """A Resize whose size is an input."""
    g = Graph()
    output = g.Resize("resize", "x", "", "", "size", mode="nearest")
    model = g.model({"x": [1, 3, 8, 8], "size": [4]}, output)
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    return model


SIZES = ShapeRange((1, 3, 4, 4), (1, 3, 8, 8), (1, 3, 16, 16))


def build_resized(rtx, values):
    model, options = resized(), BuildOptions(shape_values=values)
    return Build(rtx, specs(model), options=options).run(model.SerializeToString())


def test_values_of_an_input_that_decides_shapes(rtx):
    engine = build_resized(rtx, {"size": SIZES})
    assert engine.plan
    # No shape of an input is dynamic.
    assert engine.profiles == ()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"x": SIZES}, "shape_values has 'x', which is no input that decides shapes; the network has 'size'"),
        ({"y": SIZES}, "shape_values has 'y', which is no input that decides shapes; the network has 'size'"),
        (
            {"size": ShapeRange((4, 4), (8, 8), (16, 16))},
            "input 'size' has 4 elements, and shape_values",
        ),
        ({"size": ShapeRange(SIZES.max, SIZES.opt, SIZES.min)}, "values must grow from min over opt to max"),
    ],
)
def test_values_that_do_not_fit(rtx, values, message):
    with pytest.raises(BuildError, match=message):
        build_resized(rtx, values)


def test_without_values_tensorrt_says_what_is_missing(rtx):
    with pytest.raises(BuildError, match=r"could not build the engine: .*[Pp]rofile"):
        build_resized(rtx, {})


ZERO = np.int8(0)
X = normal(2, 4, 8, 8, seed=1)


def rewritten(model):
    return ir.to_proto(with_equal_forms(ir.from_proto(model)))


def outputs(model):
    return open_session(model.SerializeToString(), optimize=False).run(None, {"x": X})[0]


def scales(model):
    constants = constants_of(model)
    pairs = [node for node in model.graph.node if node.op_type.endswith("izeLinear")]
    return [constants[node.input[1]] for node in pairs]


def convolution(*, scale=(0.01,) * 4, weights=None, stored=False, point=0):
    """A quantized convolution of 4 channels whose weights have these scales."""
    g = Graph()
    if weights is None:
        weights = np.where(np.reshape(scale, (-1, 1, 1, 1)) == 0, 0, 0.5) * np.ones((4, 4, 3, 3))
    kernel, scale = np.asarray(weights, np.float32), np.asarray(scale, np.float32)
    names = [g.constant(scale), g.constant(np.full(scale.shape, point, np.int8))]
    if stored:
        divided = kernel / np.where(scale == 0, 1, scale).reshape(-1, 1, 1, 1)
        source = g.constant((np.rint(divided) + point).astype(np.int8))
    else:
        source = g.QuantizeLinear("w_q", g.constant(kernel), *names, axis=0)
    dequantized = g.DequantizeLinear("w_dq", source, *names, axis=0)
    return g, g.Conv("conv", g.qdq("x"), dequantized, kernel_shape=[3, 3], pads=[1] * 4)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("point", [0, 3])
def test_weights_that_are_zero_get_a_positive_scale(stored, point):
    g, y = convolution(scale=(0.01, 0, 0.02, 0), stored=stored, point=point)
    given = g.model({"x": ["n", 4, 8, 8]}, y)
    found = rewritten(given)
    assert all((scale > 0).all() for scale in scales(found))
    assert next(one.tolist() for one in scales(found) if one.ndim) == pytest.approx([0.01, 1, 0.02, 1])
    exact = convolution(
        scale=(0.01, 1, 0.02, 1), weights=np.reshape([0.5, 0, 0.5, 0], (4, 1, 1, 1)) * np.ones((4, 4, 3, 3))
    )
    assert_array_equal(outputs(found), outputs(exact[0].model({"x": ["n", 4, 8, 8]}, exact[1])))
    assert not all((scale > 0).all() for scale in scales(given))


@pytest.mark.parametrize("stored", [False, True])
def test_a_scale_of_zero_for_other_weights_stays(stored):
    g, y = convolution(scale=(0.01, 0, 0.01, 0.01), weights=np.ones((4, 4, 3, 3)), stored=stored)
    given = ir.from_proto(g.model({"x": ["n", 4, 8, 8]}, y))
    assert with_equal_forms(given) is given


def test_a_scale_of_zero_for_an_activation_stays():
    g = Graph()
    names = [g.constant(np.float32(0)), g.constant(np.int8(0))]
    y = g.DequantizeLinear("dq", g.QuantizeLinear("q", "x", *names), *names)
    given = ir.from_proto(g.model({"x": ["n", 4, 8, 8]}, y))
    assert with_equal_forms(given) is given


def scaled(operator="Conv", *, rank=4, factor=0.5, first=False, group=1, identity=False, half=None):
    """A quantized convolution with 8 channels whose output one number multiplies; then a type of 16 bits."""
    g, shape = Graph(), [2, 4, *[8] * (rank - 2)]
    weights = g.weights(*((8, 4 // group) if operator == "Conv" else (4, 8 // group)), *[3] * (rank - 2))
    attributes = {"kernel_shape": [3] * (rank - 2), "pads": [1] * 2 * (rank - 2), "group": group}
    y = g.op(operator, [g.qdq("x"), g.qdq(weights)], "conv", **attributes)
    if identity:
        y = g.Identity("identity", y)
    factor = g.constant(np.asarray(factor, np.float32))
    y = g.Mul("mul", *[factor, y] if first else [y, factor])
    for to in (half, TensorProto.FLOAT) if half else ():
        y = g.Cast(f"cast{to}", y, to=to)
    return g.model({"x": shape}, y)


def factor_shape(model):
    node = next(node for node in model.graph.node if node.op_type == "Mul")
    return next(tuple(one.dims) for one in model.graph.initializer if one.name in node.input)


FORMS = [
    {},
    {"first": True},
    {"factor": [[[[0.3]]]]},
    {"factor": [0.3]},
    {"group": 2},
    {"identity": True},
    {"operator": "ConvTranspose"},
    {"operator": "ConvTranspose", "group": 2},
]


@pytest.mark.parametrize("form", FORMS)
def test_a_number_that_multiplies_a_convolution_becomes_one_per_channel(form):
    given = scaled(**form)
    found = rewritten(given)
    assert factor_shape(found) == (8, 1, 1)
    assert_array_equal(outputs(found), outputs(given))


def test_other_factors_stay():
    for factor in (np.full((8, 1, 1), 0.5), np.full((1, 1, 1, 1, 1), 0.5)):
        given = ir.from_proto(scaled(factor=factor))
        assert with_equal_forms(given) is given
    plain = Graph(quantized=False)
    y = plain.Conv("conv", "x", plain.weights(8, 4, 3, 3))
    given = ir.from_proto(
        plain.model({"x": [2, 4, 8, 8]}, plain.Mul("mul", y, plain.constant(np.float32(2))))
    )
    assert with_equal_forms(given) is given


@pytest.mark.slow
@pytest.mark.parametrize("form", [{}, {"first": True}, {"rank": 5}])
def test_tensorrt_builds_what_it_refused(form, rtx, tmp_path):
    del rtx
    onnx.save(scaled(**form), tmp_path / "m.onnx")
    result = build_rtx(None, tmp_path / "m.engine", model=tmp_path / "m.onnx")
    assert result.info.int8_layers == (1, 1)


@pytest.mark.parametrize("stored", [False, True])
def test_a_pruned_channel_is_built_in_int8(stored, rtx, tmp_path):
    del rtx
    g, y = convolution(scale=(0.01, 0, 0.02, 0.01), stored=stored)
    onnx.save(g.model({"x": [2, 4, 8, 8]}, y), tmp_path / "m.onnx")
    result = build_rtx(None, tmp_path / "m.engine", model=tmp_path / "m.onnx")
    assert result.info.int8_layers == (1, 1)
    # The model beside the engine is the user's.
    assert result.qdq_model is not None
    assert any((scale == 0).any() for scale in scales(onnx.load(result.qdq_model)))


@pytest.mark.parametrize("nodes", [False, True], ids=["initializers", "Constant nodes"])
@pytest.mark.parametrize(
    ("scale", "point", "weights_point"),
    [((1,), (1,), (4,)), ((1,), (), (4,)), ((1, 1, 1, 1), (1, 1, 1, 1), (4,)), ((), (), ())],
)
def test_one_scale_of_any_shape_is_built_in_int8(scale, point, weights_point, nodes, rtx, tmp_path):
    del rtx
    g = Graph()
    names = [g.constant(np.full(shape, value)) for shape, value in ((scale, np.float32(0.1)), (point, ZERO))]
    x = g.DequantizeLinear("dq", g.QuantizeLinear("q", "x", *names), *names)
    stored = [g.constant(one) for one in (np.ones((4, 4, 1, 1), np.int8), np.ones(4, np.float32))]
    weights = g.DequantizeLinear("w", *stored, g.constant(np.full(weights_point, ZERO)), axis=0)
    model = g.model({"x": [2, 4, 8, 8]}, g.Conv("conv", x, weights, kernel_shape=[1, 1]))
    if nodes:
        for tensor in model.graph.initializer:
            model.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
        del model.graph.initializer[:]
    assert {finding.rule for finding in trtint8.lint(model)} == {"scale-shape"}
    result = build_rtx(None, tmp_path / "m.engine", model=model)
    assert result.info.int8_layers == (1, 1)
