"""What TensorRT is asked: only what changes."""

import dataclasses
import threading

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError, EngineError, GpuMemoryError
from tests.host_device import HostDevice
from tests.trtint8.runtime.doubling import BINDINGS, PROFILES, Doubling, Trt
from trtint8.runtime.tensorrt_context import FIRST_RUNS, TensorrtContext


@pytest.fixture
def stream(device):
    with device.active():
        yield device.new_stream()


def test_shapes_and_addresses_are_set_once(tensorrt_context, stream):
    raw, context = tensorrt_context()
    for _ in range(3):
        context.set_shapes({"x": (2, 3)}, {}, stream)
        context.set_address("x", 4096)
    assert raw.calls == [("shape", "x", (2, 3)), ("address", "x", 4096)]
    assert context.output_shapes == {"y": (2, 3)} and not context.data_dependent
    context.set_shapes({"x": (4, 3)}, {}, stream)
    assert context.output_shapes == {"y": (4, 3)}


def test_values_on_the_host_are_set_again(tensorrt_context, stream):
    raw, context = tensorrt_context()
    for _ in range(2):
        context.set_shapes({"x": (2, 3)}, {"x": 4096}, stream)
    assert raw.asked("address") == [("address", "x", 4096)] * 2


def test_a_profile_that_is_switched_forgets_what_was_set(tensorrt_context, stream):
    raw, context = tensorrt_context(dataclasses.replace(BINDINGS, profiles=PROFILES))
    for rows in (2, 8):
        context.set_shapes({"x": (rows, 3)}, {}, stream)
        context.set_address("x", 4096)
    assert raw.asked("profile") == [("profile", 1)]
    assert len(raw.asked("address")) == 2
    assert context.profile == 1
    with pytest.raises(CalibrationDataError, match="and the data has 'x' 64x3"):
        context.set_shapes({"x": (64, 3)}, {}, stream)


def test_only_the_first_run_waits_for_contexts_that_are_made(tensorrt_context, stream):
    _, context = tensorrt_context()
    context.set_shapes({"x": (2, 3)}, {}, stream)
    context.set_address("x", stream.device.allocate(64).pointer)
    context.set_address("y", stream.device.allocate(64).pointer)
    thread = threading.Thread(target=context.execute, args=(stream.handle,))
    with FIRST_RUNS:
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
    thread.join(30)
    assert not thread.is_alive()
    with FIRST_RUNS:
        context.execute(stream.handle)


def test_an_output_without_memory_is_an_error_of_ours(stream):
    device = HostDevice(room=8)
    raw = Doubling(device, data_dependent=True)
    context = TensorrtContext(Trt, raw, BINDINGS, device)
    with device.active():
        own = device.new_stream()
        context.set_shapes({"x": (2, 3)}, {}, own)
        assert context.data_dependent
        context.set_address("x", np.zeros(6, np.float32).ctypes.data)
        with pytest.raises(GpuMemoryError):
            context.execute(own.handle)


def test_a_run_that_is_refused(tensorrt_context, stream):
    raw, context = tensorrt_context()
    context.set_shapes({"x": (2, 3)}, {}, stream)
    context.set_address("x", 4096)
    raw.works = False
    with pytest.raises(EngineError, match=r"^TensorRT refuses the run: "):
        context.execute(stream.handle)


def test_a_profile_that_another_context_holds(tensorrt_context, stream, monkeypatch):
    raw, context = tensorrt_context(dataclasses.replace(BINDINGS, profiles=PROFILES))
    monkeypatch.setattr(raw, "set_optimization_profile_async", lambda _index, _stream: False)
    with pytest.raises(
        EngineError, match=r"^TensorRT refuses the optimization profile 1: .*; where another c"
    ):
        context.set_shapes({"x": (8, 3)}, {}, stream)
