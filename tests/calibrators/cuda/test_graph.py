"""CUDA graphs: which calls the driver gets, and what is given back when something fails."""

from types import SimpleNamespace

import pytest

from calibrators.cuda import graph as module
from calibrators.cuda.graph import capture
from calibrators.errors import EngineError

STREAM = SimpleNamespace(handle=0x5EED)


class Driver:
    """Remembers the calls; hands out graph 7 and executable 9."""

    def __init__(self, graph=7, failing=None):
        self.graph, self.failing, self.calls = graph, failing, []

    def call(self, function, *arguments):
        self.calls.append(function)
        if function == self.failing:
            raise EngineError(f"{function} failed")
        if function == "cuStreamEndCapture":
            arguments[1]._obj.value = self.graph
        if function == "cuGraphInstantiateWithFlags":
            assert arguments[1].value == 7
            arguments[0]._obj.value = 9
        if function in ("cuGraphLaunch", "cuGraphExecDestroy"):
            assert arguments[0].value == 9


@pytest.fixture
def install(monkeypatch):
    def use(driver):
        monkeypatch.setattr(module, "call", driver.call)
        return driver

    return use


RECORDED = [
    "cuStreamBeginCapture_v2",
    "work",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphDestroy",
]


def test_work_is_recorded_launched_and_given_back_once(install):
    driver = install(Driver())
    graph = capture(STREAM, lambda: driver.calls.append("work"))
    assert graph.executable == 9
    assert driver.calls == RECORDED
    graph.launch(STREAM)
    graph.launch(STREAM)
    graph.free()
    graph.free()
    assert driver.calls == [*RECORDED, "cuGraphLaunch", "cuGraphLaunch", "cuGraphExecDestroy"]


@pytest.mark.parametrize(("graph", "given_back"), [(7, ["cuGraphDestroy"]), (None, [])])
def test_the_capture_ends_where_the_work_fails(install, graph, given_back):
    driver = install(Driver(graph))
    with pytest.raises(ZeroDivisionError):
        capture(STREAM, lambda: 1 / 0)
    assert driver.calls == ["cuStreamBeginCapture_v2", "cuStreamEndCapture", *given_back]


def test_the_error_of_the_work_is_the_one_that_is_raised(install):
    install(Driver(failing="cuStreamEndCapture"))
    with pytest.raises(ZeroDivisionError):
        capture(STREAM, lambda: 1 / 0)


def test_an_engine_that_cannot_be_captured(install):
    install(Driver(graph=None))
    with pytest.raises(EngineError, match=r"^the engine cannot be captured as a CUDA graph; run it without"):
        capture(STREAM, lambda: None)


def test_the_recording_is_given_back_where_it_cannot_be_instantiated(install):
    driver = install(Driver(failing="cuGraphInstantiateWithFlags"))
    with pytest.raises(EngineError, match="cuGraphInstantiateWithFlags failed"):
        capture(STREAM, lambda: None)
    assert driver.calls[-1] == "cuGraphDestroy"
