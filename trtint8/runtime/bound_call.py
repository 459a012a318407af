"""A call that is prepared once for feeds of one kind, and then costs only the copies and the run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np

from calibrators.errors import CalibrationDataError, EngineError, UnsupportedError
from trtint8.runtime.arrays import Feeds, HostArray
from trtint8.runtime.execution import ExecutionContext


class BoundCall:
    """An inference on host arrays of fixed shapes and dtypes. Made by ``Engine.bind``; for one thread.

    ``call(feeds)`` runs the engine on a feed of these shapes. Values that were written into ``inputs`` need
    no feed: ``call()`` takes what stands there. The arrays of ``outputs`` are the same for every call, so
    copy what has to outlast the next one.

    Attributes:
        inputs: Input name to a page-locked array that is uploaded with every call.
        outputs: Output name to a page-locked array that every call writes to.
    """

    def __init__(self, context: ExecutionContext, feeds: Feeds) -> None:
        self._context = context
        self._active = context.device.active()
        with self._active:
            context.bind(feeds)
            bound = context.bound
            if context.data_dependent:
                raise UnsupportedError(
                    "the size of an output is known only after the inference, so nothing can be bound "
                    "beforehand; call infer"
                )
            if len(bound.staged) != len(feeds):
                raise CalibrationDataError(
                    "a bound call takes arrays on the host, and an input is on the GPU; call infer"
                )
            bound.place_outputs({})
        self.inputs: dict[str, HostArray] = dict(bound.staged)
        self.outputs: Mapping[str, HostArray] = dict(bound.outputs)
        self._staged, self._uploads, self._downloads = bound.staged, bound.uploads, bound.downloads
        self._enqueue = bound.enqueue
        self._upload, self._download = context.device.upload, context.device.download
        self._synchronize = context.stream.synchronize

    def __call__(self, feeds: Feeds | None = None) -> Mapping[str, HostArray]:
        """Runs the engine once.

        Args:
            feeds: Input name to a NumPy array of the bound shape and dtype; None takes what stands in
                ``inputs``.

        Returns:
            ``outputs``, which hold the result until the next call.

        Raises:
            CalibrationDataError: An input is missing, or an array has another shape or dtype.
            EngineError: TensorRT or the GPU fails, or the call is closed.
        """
        if feeds is not None:
            self._stage(feeds)
        upload, download = self._upload, self._download
        with self._active:
            for arguments in self._uploads:
                upload(*arguments)
            self._enqueue()
            for arguments in self._downloads:
                download(*arguments)
            self._synchronize()
        return self.outputs

    def close(self) -> None:
        """Frees the memory and the context; a second call does nothing."""
        self._context.close()
        self._uploads, self._downloads, self.inputs, self.outputs = (), (), {}, {}
        self._enqueue = self._refuse

    def __enter__(self) -> BoundCall:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _stage(self, feeds: Mapping[str, Any]) -> None:
        staged = self._staged
        if len(feeds) != len(staged):
            self._explain(feeds)
        for name, target in staged:
            value = feeds.get(name)
            if (
                value.__class__ is not np.ndarray
                or value.shape != target.shape
                or (value.dtype is not target.dtype and value.dtype != target.dtype)
            ):
                self._explain(feeds)
            target[...] = value

    def _explain(self, feeds: Mapping[str, Any]) -> None:
        """Raises the error that says what does not fit."""
        for name, target in self._staged:
            value = feeds.get(name)
            if _described(value) != _described(target):
                raise CalibrationDataError(
                    f"input '{name}' is bound to {_described(target)} and was given {_described(value)}; "
                    "bind another call, or call infer"
                )
        unknown = next(name for name in feeds if name not in self.inputs)
        raise CalibrationDataError(
            f"the engine has no input '{unknown}'; it takes {', '.join(map(repr, self.inputs))}"
        )

    def _refuse(self) -> None:
        raise EngineError("the bound call is closed; bind another one")


def _described(value: object) -> str:
    if value is None:
        return "nothing"
    if type(value) is not np.ndarray:
        return f"a {type(value).__name__}"
    return f"a NumPy array of {value.dtype} {'x'.join(map(str, value.shape)) or 'scalar'}"
