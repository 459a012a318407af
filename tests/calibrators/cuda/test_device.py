"""Contexts and addresses, on a driver library that keeps a stack of contexts and knows two GPUs."""

from types import SimpleNamespace

import pytest

from calibrators.cuda import context_problem, current_device, pointer_problem, primary_context
from calibrators.cuda import device as module
from calibrators.cuda import driver as driver_module
from calibrators.cuda.device import Active, capture
from calibrators.errors import EngineError, GpuUnavailableError


def test_one_object_serves_blocks_inside_one_another():
    calls = []
    active = Active(lambda: calls.append("push"), lambda: calls.append("pop"))
    with active, active:
        calls.append("work")
    with pytest.raises(ZeroDivisionError), active:
        raise ZeroDivisionError
    assert calls == ["push", "push", "work", "pop", "pop", "push", "pop"]


PRIMARY = {0: 0x1000, 1: 0x1001}
OTHER = 0x2000  # of GPU 0, as pycuda.autoinit makes one

#: Address to the GPU and the context that it belongs to; None for memory of a pool.
MEMORY = {0xA000: (0, PRIMARY[0]), 0xB000: (1, PRIMARY[1]), 0xC000: (0, OTHER), 0xD000: (0, None)}


class Driver:
    def __init__(self):
        self.stack, self.retained, self.initialized = [], [], False

    def functions(self):
        def answer(pointer, value):
            pointer._obj.value = value
            return 0

        def retain(pointer, device):
            self.retained.append(device.value)
            return answer(pointer, PRIMARY[device.value])

        def push(context):
            self.stack.append(context)
            return 0

        def pop(pointer):
            return answer(pointer, self.stack.pop())

        def attribute(pointer, which, address):
            if address.value not in MEMORY:
                return 1
            owner, context = MEMORY[address.value]
            return answer(pointer, {9: owner, 1: context}[which.value])

        def init(_flags):
            self.initialized = True
            return 0

        def current(pointer):
            return answer(pointer, self.stack[-1] if self.stack else None) if self.initialized else 3

        return SimpleNamespace(
            cuInit=init,
            cuDeviceGet=lambda pointer, ordinal: answer(pointer, ordinal.value),
            cuDevicePrimaryCtxRetain=retain,
            cuCtxPushCurrent_v2=push,
            cuCtxPopCurrent_v2=pop,
            cuCtxGetCurrent=current,
            cuCtxGetDevice=lambda pointer: answer(pointer, self.stack[-1] & 1),
            cuPointerGetAttribute=attribute,
        )


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    functions = made.functions()
    monkeypatch.setattr(driver_module, "_loaded", lambda: functions)
    monkeypatch.setattr(module, "check_ordinal", lambda _ordinal: None)
    module.retained_context.cache_clear()
    yield made
    module.retained_context.cache_clear()


def test_the_primary_context_is_current_inside_and_the_one_before_afterwards(driver):
    driver.stack = [OTHER]
    with primary_context(1):
        assert driver.stack == [OTHER, PRIMARY[1]]
        assert current_device() == 1
    assert driver.stack == [OTHER]
    with pytest.raises(ZeroDivisionError), primary_context(0):
        raise ZeroDivisionError
    assert driver.stack == [OTHER]


def test_it_is_retained_once(driver):
    assert current_device() is None
    for _ in range(3):
        with primary_context(0):
            pass
    assert driver.retained == [0]


@pytest.mark.parametrize(
    ("pointer", "problem"),
    [
        (0xA000, None),
        (0xB000, "on GPU 1 and the engine on GPU 0"),
        (0xC000, "of another CUDA context than the primary one"),
        (0xD000, None),
        (0xE000, "no memory that the GPU can use"),
    ],
)
def test_addresses(driver, pointer, problem):
    with primary_context(0):
        found = pointer_problem(pointer, 0)
    assert (found or "").startswith(problem or "") and (found is None) == (problem is None)


@pytest.mark.parametrize(
    ("stack", "fits"), [([], True), ([PRIMARY[0]], True), ([OTHER], False), ([0x1001], False)]
)
def test_the_context_that_work_is_done_in(driver, stack, fits):
    driver.stack = stack
    words = "another CUDA context is current than the primary one of GPU 0, whose memory it cannot use"
    problem = context_problem(0)
    assert problem is None if fits else problem.startswith(words)


def test_an_index_that_is_not_there(monkeypatch):
    monkeypatch.setattr("calibrators.cuda.driver.gpu_problem", lambda: None)
    monkeypatch.setattr("calibrators.cuda.driver.gpu_names", lambda: ["a GPU"])
    with pytest.raises(GpuUnavailableError, match=r"index 3; .*1"), primary_context(3):
        pass


def test_values_are_those_of_cuda():
    bindings = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    attributes = bindings.CUpointer_attribute
    assert module._ATTRIBUTE_CONTEXT == attributes.CU_POINTER_ATTRIBUTE_CONTEXT
    assert module._ATTRIBUTE_DEVICE_ORDINAL == attributes.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL


STREAM = SimpleNamespace(handle=0x5EED)


class GraphDriver:
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
    driver = install(GraphDriver())
    graph = capture(STREAM, lambda: driver.calls.append("work"))
    assert graph.executable == 9
    assert driver.calls == RECORDED
    graph.launch(STREAM)
    graph.launch(STREAM)
    graph.free()
    graph.free()
    assert driver.calls == [*RECORDED, "cuGraphLaunch", "cuGraphLaunch", "cuGraphExecDestroy"]


@pytest.mark.parametrize(
    ("graph", "failing", "given_back"),
    [(7, None, ["cuGraphDestroy"]), (None, None, []), (7, "cuStreamEndCapture", [])],
)
def test_the_capture_ends_where_the_work_fails(install, graph, failing, given_back):
    driver = install(GraphDriver(graph, failing))
    with pytest.raises(ZeroDivisionError):
        capture(STREAM, lambda: 1 / 0)
    assert driver.calls[:2] == ["cuStreamBeginCapture_v2", "cuStreamEndCapture"]
    assert failing or driver.calls[2:] == given_back


def test_an_engine_that_cannot_be_captured_or_instantiated(install):
    install(GraphDriver(graph=None))
    with pytest.raises(EngineError, match="CUDA graph"):
        capture(STREAM, lambda: None)
    driver = install(GraphDriver(failing="cuGraphInstantiateWithFlags"))
    with pytest.raises(EngineError, match="cuGraphInstantiateWithFlags failed"):
        capture(STREAM, lambda: None)
    assert driver.calls[-1] == "cuGraphDestroy"
