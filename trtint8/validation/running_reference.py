"""The reference opens, and runs on the first batches, while other models are read, checked and opened."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict
from calibrators.errors import CalibrationDataError
from calibrators.host.threads import in_thread
from trtint8.models.session import ModelSession, StoppableRuns

#: Outputs of so many bytes are made before they are asked for; those of the first batch in any case.
_KEPT = 16 << 20


class RunningReference:
    """A reference that runs in another thread until others are ready to be compared with it.

    It is a context manager, and ends that run where the comparison fails before it has begun.

    Args:
        open_session: Opens the model; called at once.
    """

    def __init__(self, open_session: Callable[[], ModelSession]) -> None:
        self._opening = in_thread(open_session)
        self._runs: StoppableRuns | None = None
        self._ahead: Future[None] | None = None
        self._is_asked = False
        self._feeds: dict[int, FeedDict] = {}
        self._outputs: dict[int, list[NDArray[Any]]] = {}

    def __enter__(self) -> RunningReference:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_asked = True
        if kind is not None and self._runs is not None:
            self._runs.stop()

    def session(self) -> ModelSession:
        """The open model.

        Raises:
            ModelError: ONNX Runtime refuses the model.
        """
        return self._opening.result()

    def run_ahead(self, feeds: Sequence[FeedDict]) -> None:
        """Begins to run the model on the first batches, in their order.

        Args:
            feeds: The batches, which the same objects will ask for again. What is wrong with them is said
                then.
        """
        self._feeds = {id(feed): feed for feed in feeds}
        self._ahead = in_thread(self._run_ahead)

    def run(self, feed: FeedDict) -> list[NDArray[Any]]:
        """Runs the model on a batch, if that was not done ahead. Nothing is run ahead from then on.

        Args:
            feed: Input name to array.

        Returns:
            The outputs.

        Raises:
            CalibrationDataError: ONNX Runtime fails on the batch.
        """
        if self._ahead is not None:
            self._is_asked = True
            self._ahead.result()
        self._feeds.pop(id(feed), None)
        outputs = self._outputs.pop(id(feed), None)
        return self.session().run(feed) if outputs is None else outputs

    def _run_ahead(self) -> None:
        session, made = self.session(), 0
        self._runs = StoppableRuns()
        for key, feed in self._feeds.items():
            if self._is_asked or made > _KEPT:
                return
            with contextlib.suppress(CalibrationDataError):
                self._outputs[key] = outputs = session.run(feed, stoppable=self._runs)
                made += sum(output.nbytes for output in outputs)
