"""CUDA graphs, through the driver itself: PyCUDA has no calls for them."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field

from calibrators.cuda.device import Stream
from calibrators.cuda.driver import call
from calibrators.errors import EngineError

# Only calls of the capturing thread are judged: other threads may allocate meanwhile.
_CAPTURE_MODE_THREAD_LOCAL = 1


@dataclass
class Graph:
    """A recorded sequence of work that one call launches.

    Attributes:
        executable: The ``CUgraphExec``.
    """

    executable: int
    _alive: bool = field(default=True, repr=False)

    def launch(self, stream: Stream) -> None:
        """Queues the recorded work."""
        call("cuGraphLaunch", ctypes.c_void_p(self.executable), ctypes.c_void_p(stream.handle))

    def free(self) -> None:
        """Gives it back; a second time does nothing."""
        if self._alive:
            self._alive = False
            call("cuGraphExecDestroy", ctypes.c_void_p(self.executable))


def capture(stream: Stream, work: Callable[[], None]) -> Graph:
    """Records what ``work`` queues, without running it.

    Args:
        stream: The stream that ``work`` queues on.
        work: Queues the work; it must not wait or allocate.

    Returns:
        The graph; its addresses are those that were recorded.

    Raises:
        EngineError: The work cannot be captured.
    """
    handle = ctypes.c_void_p(stream.handle)
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuStreamBeginCapture_v2", handle, ctypes.c_int(_CAPTURE_MODE_THREAD_LOCAL))
    try:
        work()
    except BaseException:
        # The stream stays unusable until the capture ends, whatever became of it.
        with contextlib.suppress(EngineError):
            call("cuStreamEndCapture", handle, ctypes.byref(graph))
            if graph.value:
                call("cuGraphDestroy", graph)
        raise
    call("cuStreamEndCapture", handle, ctypes.byref(graph))
    if not graph.value:
        raise EngineError("the engine cannot be captured as a CUDA graph; run it without one")
    try:
        call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    finally:
        call("cuGraphDestroy", graph)
    return Graph(executable.value or 0)
