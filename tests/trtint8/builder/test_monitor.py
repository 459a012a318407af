"""Progress of a build, and Ctrl-C and SIGTERM during it."""

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref

import pytest

from tests.trtint8.builder.building import Bar, build
from tests.trtint8.onnx_models import conv_relu_conv
from trtint8.builder import build as builder
from trtint8.builder.monitor import deferred_interrupt


class Stopped(BaseException):
    """What a program's handler of a signal raises."""


@pytest.fixture(autouse=True)
def handlers():
    """As in a program in the foreground that reacts to SIGTERM; the suite may run in the background."""

    def raise_stopped(_number, _frame):
        raise Stopped

    before = [
        (signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)),
        (signal.SIGTERM, signal.signal(signal.SIGTERM, raise_stopped)),
    ]
    yield
    for number, handler in before:
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
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
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
