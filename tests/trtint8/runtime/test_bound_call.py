"""A call that is prepared once, on a GPU that is host memory."""

import gc
import weakref

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from calibrators.cuda.dlpack import give
from calibrators.errors import CalibrationDataError, EngineError, UnsupportedError
from tests.trtint8.runtime.doubling import OnGpu, batch
from trtint8.runtime.bound_call import BoundCall


def test_every_call_computes_into_the_same_arrays(make):
    (raw,), context = make()
    call = BoundCall(context, {"x": batch(2)})
    asked = len(raw.calls)
    outputs = call.outputs["y"]
    for start in range(4):
        assert call({"x": batch(2, start)})["y"] is outputs
        assert_array_equal(outputs, 2 * batch(2, start))
    assert raw.calls[asked:] == ["run"] * 4


def test_values_can_be_written_in_place(make):
    _, context = make()
    call = BoundCall(context, {"x": batch(2)})
    assert_array_equal(call()["y"], 2 * batch(2))  # the values that it was bound with
    call.inputs["x"][:] = 7
    assert_array_equal(call()["y"], np.full((2, 3), 14, np.float32))


def test_it_can_be_a_graph(make, graphs):
    _, context = make(cuda_graph=True)
    call = BoundCall(context, {"x": batch(2)})
    for start in range(4):
        assert_array_equal(call({"x": batch(2, start)})["y"], 2 * batch(2, start))
    assert graphs.made == 1


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        (
            {"x": batch(3)},
            "is bound to a NumPy array of float32 2x3 and was given a NumPy array of float32 3x3",
        ),
        ({"x": batch(2).astype(np.float64)}, "and was given a NumPy array of float64 2x3; bind another call"),
        ({"x": [[0.0] * 3] * 2}, "and was given a list; bind another call, or call infer"),
        ({"z": batch(2)}, "'x'.*2x3"),
        ({"x": batch(2), "z": batch(2)}, "'z'.*'x'"),
    ],
)
def test_feeds_of_another_kind(make, feeds, message):
    (raw,), context = make()
    call = BoundCall(context, {"x": batch(2)})
    with pytest.raises(CalibrationDataError, match=message):
        call(feeds)
    assert "run" not in raw.calls
    assert_array_equal(call({"x": batch(2, 1)})["y"], 2 * batch(2, 1))


def test_what_cannot_be_bound(make):
    _, context = make(data_dependent=True)
    with pytest.raises(UnsupportedError, match="the size of an output is known only after the inference"):
        BoundCall(context, {"x": batch(2)})
    _, context = make()
    with pytest.raises(CalibrationDataError, match="output 'y' of a bound call has a host array of its own"):
        BoundCall(context, {"x": batch(2)}, outputs={"y": np.zeros((2, 3), np.float32)})


OTHER = 0x7F00  # a stream of another library


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_arrays_on_the_gpu_are_read_and_written_where_they_are(make, device, graphs, cuda_graph):
    (raw,), context = make(cuda_graph=cuda_graph)
    source, target = (OnGpu(device, batch(2, start)) for start in (0, 50))
    call = BoundCall(context, {"x": source}, outputs={"y": target})
    assert call.inputs == {} and call.outputs == {"y": target}
    assert cuda_graph or (raw.addresses["x"], raw.addresses["y"]) == (source.pointer, target.pointer)
    uploads, asked, live = device.uploads, len(raw.calls), len(device.live)
    for start in (3, 4, 5):
        source.write(batch(2, start))
        call()
        assert_array_equal(target.read(), 2 * batch(2, start))
    assert (device.uploads, len(device.live)) == (uploads, live)
    assert [call for call in raw.calls[asked:] if call != "run"] == []


def test_empty_arrays_on_the_gpu_need_no_memory(make, device):
    (raw,), context = make()
    empty = OnGpu(device, batch(0))
    empty.pointer = 0
    device.problems[0] = "no memory that the GPU can use"
    call = BoundCall(context, {"x": empty}, outputs={"y": empty})
    assert call() == {"y": empty}
    assert raw.calls[-1] == "run" and raw.addresses["x"] and raw.addresses["y"]


def test_outputs_on_the_device_are_the_same_array(make, device):
    _, context = make()
    call = BoundCall(context, {"x": batch(2)}, on_device=True)
    array, live = call.outputs["y"], len(device.live)
    for start in range(3):
        assert call({"x": batch(2, start)})["y"] is array
        assert_array_equal(array.numpy(), 2 * batch(2, start))
    assert len(device.live) == live


def test_in_the_order_of_the_callers_stream_nothing_waits_on_the_host(make, device):
    _, context = make()
    own = context.stream.handle
    source, target = (OnGpu(device, batch(2, start)) for start in (0, 50))
    call = BoundCall(context, {"x": source}, outputs={"y": target}, stream=OTHER)
    device.waits.clear()
    call()
    assert device.waits == [(own, OTHER), (OTHER, own)]
    assert context.stream.queue
    with device.active():
        context.synchronize()
    assert_array_equal(target.read(), 2 * batch(2))


class OfTorch(OnGpu):
    """A tensor as PyTorch has it: what is queued is done, at the latest, when another stream asks for it."""

    __cuda_array_interface__ = None

    def __init__(self, device, array):
        super().__init__(device, array)
        self.queued, self.asked = None, []

    def __dlpack__(self, *, stream=None):
        self.asked.append(stream)
        if self.queued is not None:
            self.write(self.queued)
        return give(self.pointer, self.shape, self.dtype, 0, self)

    def __dlpack_device__(self):
        return 2, 0


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_every_call_begins_after_the_work_of_arrays_that_tell_no_stream(make, device, graphs, cuda_graph):
    _, context = make(cuda_graph=cuda_graph)
    source, target = (OfTorch(device, batch(2, start)) for start in (0, 50))
    call = BoundCall(context, {"x": source}, outputs={"y": target})
    for start in (3, 4, 5):
        source.queued = batch(2, start)
        call()
        assert_array_equal(target.read(), 2 * batch(2, start))
    # What PyTorch still reads of the last output comes first, too.
    assert source.asked == target.asked == [context.stream.handle] * 4
    assert device.waits == []


def test_a_stream_of_the_caller_saves_asking(make, device):
    _, context = make()
    source = OfTorch(device, batch(2))
    call = BoundCall(context, {"x": source}, stream=OTHER)
    for _ in range(3):
        call()
    assert source.asked == [context.stream.handle]


THIRD = 0x7F01


@pytest.mark.parametrize(
    ("interface", "before"),
    [
        ({"stream": OTHER}, [OTHER, THIRD]),
        ({"stream": THIRD}, [THIRD]),
        ({"stream": None}, [THIRD]),
        ({"version": 2}, [THIRD, 1]),  # which has no stream: the default one
    ],
)
def test_every_call_begins_after_the_streams_that_arrays_tell(make, device, interface, before):
    _, context = make()
    source = OnGpu(device, batch(2), **interface)
    target = OnGpu(device, batch(2, 50), stream=THIRD)
    call = BoundCall(context, {"x": source}, outputs={"y": target})
    for _ in range(2):
        device.waits.clear()
        call()
        own = context.stream.handle
        assert device.waits == [*((own, stream) for stream in before), (before[0], own)]


def test_a_closed_call_lets_its_arrays_go(make, device):
    _, context = make()
    source = OfTorch(device, batch(2))
    kept = weakref.ref(source)
    call = BoundCall(context, {"x": source})
    call()
    call.close()
    del source
    gc.collect()
    assert kept() is None


def test_values_in_flight_are_not_overwritten(make, device):
    _, context = make()
    targets = [OnGpu(device, batch(2, 50))]
    call = BoundCall(context, {"x": batch(2)}, outputs={"y": targets[0]}, stream=OTHER)
    call({"x": batch(2, 1)})
    assert context.stream.queue
    call({"x": batch(2, 2)})  # uses the page-locked memory again, so the first call is done
    assert len(context.stream.queue) == 1  # the run
    with device.active():
        context.synchronize()
    assert_array_equal(targets[0].read(), 2 * batch(2, 2))


def test_inputs_may_be_written_again_once_a_call_has_returned(make, device):
    _, context = make()
    call = BoundCall(context, {"x": batch(2)}, stream=OTHER, on_device=True)
    device.waits.clear()
    call.inputs["x"][:] = 1
    outputs = call()
    assert context.stream.queue and device.waits == [
        (context.stream.handle, OTHER),
        (OTHER, context.stream.handle),
    ]
    call.inputs["x"][:] = 100
    with device.active():
        context.synchronize()
    assert_array_equal(outputs["y"].numpy(), np.full((2, 3), 2, np.float32))


def test_a_call_of_an_engine_that_is_closed(make):
    (raw,), context = make()
    call = BoundCall(context, {"x": batch(2)})
    context.close()  # as the engine does
    with pytest.raises(EngineError, match="the bound call is closed; bind another one"):
        call({"x": batch(2)})
    assert "run" not in raw.calls


def test_closing_gives_the_memory_back(make, device):
    _, context = make()
    with BoundCall(context, {"x": batch(2)}) as call:
        assert device.live
    assert not device.live
    for feeds in (None, {"x": batch(2)}):
        with pytest.raises(EngineError, match="the bound call is closed; bind another one"):
            call(feeds)
    call.close()


@pytest.mark.parametrize("on_host", [False, True])
def test_closing_waits_for_what_is_queued(make, device, on_host):
    _, context = make()
    source, target = (OnGpu(device, batch(2, start)) for start in (7, 50))
    feed = batch(2, 7) if on_host else source
    with BoundCall(context, {"x": feed}, outputs={"y": target}, stream=OTHER) as call:
        call()
        assert context.stream.queue
    assert not context.stream.queue
    assert_array_equal(target.read(), 2 * batch(2, 7))
