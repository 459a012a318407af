"""Makes a context current for the length of a block, at the cost of the two calls that this takes."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class Active:
    """A context manager that keeps no state, so that one object serves all blocks of all threads.

    Args:
        push: Makes the context current in this thread.
        pop: Makes the context current that was before.
    """

    __slots__ = ("_pop", "_push")

    def __init__(self, push: Callable[[], object], pop: Callable[[], object]) -> None:
        self._push, self._pop = push, pop

    def __enter__(self) -> None:
        self._push()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._pop()
