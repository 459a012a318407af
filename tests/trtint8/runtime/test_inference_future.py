import threading

import pytest

from calibrators.errors import EngineError
from tests.host_device import HostDevice
from trtint8.runtime.inference_future import InferenceFuture


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
