"""An execution context on a GPU that is host memory, with an engine that doubles its input."""

import threading

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from calibrators.errors import CalibrationDataError, EngineError
from calibrators.tensorrt.messages import shared_logger
from tests.host_device import HostDevice, read
from tests.trtint8.runtime.doubling import PROFILES, OnGpu, Trt, assert_doubled, batch
from trtint8.runtime.arrays import DeviceArray
from trtint8.runtime.execution import InferenceFuture

OTHER, THIRD = 0x7F00, 0x7F01  # streams of other libraries


@pytest.mark.parametrize("data_dependent", [False, True])
def test_outputs_of_one_run_after_another(make, device, data_dependent):
    (raw,), context = make(data_dependent=data_dependent)
    kept = []
    for rows in (2, 4, 4, 1):
        found = context.infer({"x": batch(rows)})
        assert_array_equal(found["y"], 2 * batch(rows))
        kept.append(found["y"])
    # They are the caller's own: later runs left them alone.
    assert_array_equal(kept[1], 2 * batch(4))
    assert raw.calls.count("run") == 4
    context.close()
    context.close()
    assert not device.live


def test_nothing_is_asked_of_tensorrt_while_feeds_are_alike(make, device):
    (raw,), context = make(PROFILES)
    context.infer({"x": batch(2)})
    asked, live = len(raw.calls), len(device.live)
    for start in range(5):
        found = context.infer({"x": batch(2, start)})["y"]
        assert_array_equal(found, 2 * batch(2, start))
    assert raw.calls[asked:] == ["run"] * 5
    assert len(device.live) == live


def test_arrays_that_are_not_contiguous_are_alike_too(make):
    (raw,), context = make()
    context.infer({"x": batch(2)})
    asked = len(raw.calls)
    turned = np.asfortranarray(batch(2, 7))
    assert_doubled(context, turned)
    assert raw.calls[asked:] == ["run"]


def test_a_shape_is_set_only_where_it_changes(make):
    (raw,), context = make()
    for rows in (2, 2, 3):
        context.infer({"x": batch(rows)})
    assert raw.asked("shape") == [("shape", "x", (2, 3)), ("shape", "x", (3, 3))]


def test_the_profile_follows_the_batch(make):
    (raw,), context = make(PROFILES)
    for rows in (2, 8, 9, 1):
        assert_doubled(context, batch(rows))
    assert raw.asked("profile") == [("profile", 1), ("profile", 0)]
    with pytest.raises(CalibrationDataError, match="and the data has 'x' 64x3"):
        context.infer({"x": batch(64)})
    assert context.profile == 0


def test_the_allocator_is_set_once(make):
    (raw,), context = make(data_dependent=True)
    for rows in (2, 3, 3):
        context.infer({"x": batch(rows)})
    assert raw.asked("allocator") == [("allocator", "y")]


# Arrays on the GPU.


def test_arrays_on_the_gpu_are_read_in_place(make, device):
    (raw,), context = make()
    arrays = [OnGpu(device, batch(2, start)) for start in (0, 10)]
    for turn in (0, 1, 1, 0):
        found = context.infer({"x": arrays[turn]})["y"]
        assert_array_equal(found, 2 * arrays[turn].read())
        assert raw.addresses["x"] == arrays[turn].pointer
    assert_doubled(context, batch(2, 5))


def test_an_address_of_another_gpu_is_refused(make, device):
    _, context = make()
    array = OnGpu(device, batch(2))
    device.problems[array.pointer] = "on GPU 1 and the engine on GPU 0"
    with pytest.raises(CalibrationDataError, match=r"'x'.*GPU 1"):
        context.infer({"x": array})
    with pytest.raises(CalibrationDataError, match=r"'y'.*GPU 1"):
        context.infer({"x": batch(2)}, outputs={"y": array})


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_empty_arrays_on_the_gpu_need_no_memory(make, device, graphs, cuda_graph):
    (raw,), context = make(cuda_graph=cuda_graph)
    empty = OnGpu(device, batch(0))
    empty.pointer = 0
    device.problems[0] = "no memory that the GPU can use"
    assert context.infer({"x": empty}, outputs={"y": empty}) == {}
    assert "run" in raw.calls and raw.addresses["x"] and raw.addresses["y"]


@pytest.mark.parametrize("data_dependent", [False, True])
def test_outputs_can_stay_on_the_device(make, device, data_dependent):
    (raw,), context = make(data_dependent=data_dependent)
    found = context.infer({"x": batch(2)}, on_device=True)["y"]
    assert isinstance(found, DeviceArray) and found.shape == (2, 3)
    assert found.stream is None
    assert_array_equal(read(found.buffer.pointer, np.float32, (2, 3)), 2 * batch(2))
    # Where the size is known, TensorRT wrote to it without a copy.
    assert data_dependent or raw.addresses["y"] == found.buffer.pointer
    assert_doubled(context, batch(2, 9))
    assert_array_equal(found.numpy(), 2 * batch(2))
    del found
    context.close()
    assert not device.live


@pytest.mark.parametrize("data_dependent", [False, True])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_outputs_go_where_the_caller_says(make, device, data_dependent, on_gpu):
    (raw,), context = make(data_dependent=data_dependent)
    target = OnGpu(device, np.zeros((2, 3), np.float32)) if on_gpu else np.zeros((2, 3), np.float32)
    assert context.infer({"x": batch(2)}, outputs={"y": target}) == {}
    assert_array_equal(target.read() if on_gpu else target, 2 * batch(2))
    if on_gpu and not data_dependent:
        assert raw.addresses["y"] == target.pointer
    with pytest.raises(CalibrationDataError, match=r"'y'.*shape 4x3.*it 2x3"):
        context.infer({"x": batch(4)}, outputs={"y": target})


def test_what_goes_to_the_gpu_is_not_copied_to_the_host(make, device, monkeypatch):
    _, context = make()
    downloads = []
    monkeypatch.setattr(device, "download", lambda *arguments: downloads.append(arguments))
    target = OnGpu(device, np.zeros((2, 3), np.float32))
    assert context.infer({"x": batch(2)}, outputs={"y": target}, stream=OTHER) == {}
    assert downloads == []
    # Nor did the host wait: the target is ordered in the caller's stream.
    assert context.stream.queue and device.waits[-1] == (OTHER, context.stream.handle)
    context.infer({"x": batch(2)}, outputs={"y": target})
    assert_array_equal(target.read(), 2 * batch(2))


def test_a_host_array_among_outputs_on_the_device(make, device):
    _, context = make()
    target = np.zeros((2, 3), np.float32)
    assert context.infer({"x": batch(2)}, outputs={"y": target}, on_device=True) == {}
    assert_array_equal(target, 2 * batch(2))


# Streams.


def test_the_callers_stream_comes_before_and_after(make, device):
    _, context = make()
    own = context.stream.handle
    found = context.infer({"x": batch(2)}, stream=OTHER, on_device=True)["y"]
    assert device.waits == [(own, OTHER), (OTHER, own)]
    # The call did not wait; whoever reads the array does.
    assert context.stream.queue
    assert found.stream == OTHER
    device.waits.clear()
    # The next run uses the same memory, so it waits for this one.
    context.infer({"x": batch(2, 4)})
    assert_array_equal(read(found.buffer.pointer, np.float32, (2, 3)), 2 * batch(2))
    assert device.waits == []


def test_the_stream_that_an_array_tells_is_the_callers(make, device):
    _, context = make()
    own, array = context.stream.handle, OnGpu(device, batch(2), stream=OTHER)
    found = context.infer({"x": array}, on_device=True)["y"]
    assert (found.stream, device.waits) == (OTHER, [(own, OTHER), (OTHER, own)])
    device.waits.clear()
    found = context.infer({"x": array}, on_device=True, stream=THIRD)["y"]
    assert (found.stream, device.waits) == (THIRD, [(own, THIRD), (own, OTHER), (THIRD, own)])
    device.waits.clear()
    assert_array_equal(context.infer({"x": array})["y"], 2 * batch(2))
    assert device.waits == [(own, OTHER)]


def test_an_array_interface_without_streams_is_ordered_after_the_default_one(make, device):
    _, context = make()
    array = OnGpu(device, batch(2), version=2)
    found = context.infer({"x": array}, on_device=True)["y"]
    # Nobody told where results are expected: they are complete.
    assert (found.stream, device.waits) == (None, [(context.stream.handle, 1)])
    assert not context.stream.queue


# Asynchronously.


@pytest.mark.parametrize("data_dependent", [False, True])
def test_a_future_has_the_outputs_of_its_own_run(make, data_dependent):
    (raw,), context = make(data_dependent=data_dependent)
    feed = batch(2)
    first = context.infer_async({"x": feed})
    assert raw.calls.count("run") == 1 and not first.done()
    feed[:] = -1  # the caller's again
    second = context.infer_async({"x": batch(2, 6)})
    assert first.done()  # the memory is used again
    assert_array_equal(first.result()["y"], 2 * batch(2))
    assert_array_equal(second.result()["y"], 2 * batch(2, 6))
    assert_doubled(context, batch(4))
    assert_array_equal(second.result()["y"], 2 * batch(2, 6))


def test_a_future_in_the_order_of_the_callers_stream(make, device):
    _, context = make()
    context.infer_async({"x": batch(2)}, stream=OTHER).result()
    assert device.waits == [(context.stream.handle, OTHER), (OTHER, context.stream.handle)]


def test_closing_waits_for_a_future(make, device):
    _, context = make()
    future = context.infer_async({"x": batch(2)})
    context.close()
    assert not device.live
    assert_array_equal(future.result()["y"], 2 * batch(2))


def test_closing_waits_for_single_steps(make, device):
    _, context = make()
    with device.active():
        context.bind({"x": batch(2)})
        context.upload()
        context.enqueue()
    assert context.stream.queue
    context.close()
    assert not context.stream.queue


@pytest.mark.parametrize("cuda_graph", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
def test_single_steps_leave_earlier_outputs_alone(make, device, graphs, on_device, cuda_graph):
    _, context = make(cuda_graph=cuda_graph)
    target = OnGpu(device, np.zeros((2, 3), np.float32))
    if on_device:
        earlier = context.infer({"x": batch(2)}, on_device=True)["y"]
    else:
        context.infer({"x": batch(2)}, outputs={"y": target})
    with device.active():
        context.bind({"x": batch(2, 100)})
        context.upload()
        context.enqueue()
        found = context.download()["y"]
    assert_array_equal(found, 2 * batch(2, 100))
    assert_array_equal(earlier.numpy() if on_device else target.read(), 2 * batch(2))
    assert graphs.made == int(cuda_graph)


# CUDA graphs.


def test_alternating_shapes_and_addresses_are_captured_once(make, device, graphs):
    raws, context = make(cuda_graph=True)
    arrays = {rows: [OnGpu(device, batch(rows, start)) for start in (0, 10)] for rows in (2, 4)}
    for rows, turn in ((2, 0), (2, 1), (4, 0), (2, 0), (4, 1), (2, 1)):
        array = arrays[rows][turn]
        assert_array_equal(context.infer({"x": array})["y"], 2 * array.read())
    assert graphs.made == 2
    # One of TensorRT's contexts for each shape; what was captured stays valid.
    assert [raw.asked("shape") for raw in raws] == [[("shape", "x", (rows, 3))] for rows in (2, 4)]


def test_host_arrays_and_arrays_on_the_gpu_have_a_graph_each(make, device, graphs):
    _, context = make(cuda_graph=True)
    array = OnGpu(device, batch(2))
    for _ in range(3):
        assert_array_equal(context.infer({"x": array})["y"], 2 * batch(2))
        assert_doubled(context, batch(2, 5))
        found = context.infer({"x": array}, on_device=True)["y"]
        assert_array_equal(found.numpy(), 2 * batch(2))
    assert graphs.made == 2


def test_graphs_that_were_not_used_lately_are_given_back(make, device, graphs):
    raws, context = make(cuda_graph=True)
    for rows in (1, 2, 3, 4, 1, 5, 1):
        assert_doubled(context, batch(rows))
    assert (graphs.made, len(raws)) == (5, 5)
    assert_doubled(context, batch(2))
    assert graphs.made == 6
    context.close()
    assert not device.live


def test_graphs_of_replaced_weights_are_captured_again(make, graphs):
    _, context = make(cuda_graph=True)
    for _ in range(2):
        context.infer({"x": batch(2)})
    with context.device.active():
        context.forget_graph()
    assert_doubled(context, batch(2, 3))
    assert graphs.made == 2


# What does not fit.


def test_a_refusal_says_what_tensorrt_said(make):
    (raw,), context = make()
    shared_logger(Trt).log(Trt.ILogger.Severity.ERROR, "no such shape")
    raw.works = False
    with pytest.raises(EngineError, match=r"2.*3.*'x'"):
        context.infer({"x": batch(2)})
    raw.works = True
    assert_doubled(context, batch(2))


def test_feeds_that_do_not_fit_and_a_closed_context(make):
    (raw,), context = make()
    with pytest.raises(CalibrationDataError, match="x"):
        context.infer({"z": batch(2)})
    assert raw.calls == []
    context.close()
    with pytest.raises(EngineError, match="the execution context is closed; make a new one"):
        context.infer({"x": batch(2)})


@pytest.fixture
def device():
    return HostDevice()


@pytest.fixture
def queued(device):
    """An event behind work that is not done yet."""
    with device.active():
        stream, event = device.new_stream(), device.new_event()
        done = []
        stream.queue.append(lambda: done.append("work"))
        event.record(stream)
    return event, done


def test_outputs_are_collected_once_the_event_is_reached(device, queued):
    event, done = queued
    collected = []

    def collect():
        assert done == ["work"]
        collected.append(1)
        return {"y": len(collected)}

    future = InferenceFuture(device, event, collect)
    assert not future.done() and not collected
    assert future.result() == future.result() == {"y": 1}
    assert future.done()


def test_a_failure_is_raised_by_every_result(device, queued):
    def collect():
        raise EngineError("the GPU failed")

    future = InferenceFuture(device, queued[0], collect)
    future.finish()
    assert future.done()
    for _ in range(2):
        with pytest.raises(EngineError, match="the GPU failed"):
            future.result()


def test_several_threads_may_ask(device, queued):
    future = InferenceFuture(device, queued[0], lambda: {"y": object()})
    found = []
    threads = [threading.Thread(target=lambda: found.append(future.result()["y"])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4 and len(set(map(id, found))) == 1


def test_what_collects_is_let_go(device, queued):
    future = InferenceFuture(device, queued[0], dict)
    future.finish()
    assert future._collect is None
