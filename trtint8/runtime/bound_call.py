"""A call that is prepared once for feeds of one kind, and then costs only the copies and the run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import numpy as np

from calibrators.cuda.device import Device, Event
from calibrators.data.inputs import shape_text
from calibrators.errors import CalibrationDataError, EngineError, UnsupportedError, such_as
from trtint8.runtime.arrays import DeviceInput, Feeds, HostArray, Outputs, StreamLike, addresses
from trtint8.runtime.execution import ExecutionContext

#: The arrays of a bound call's outputs: on the host, or on the GPU.
OutputT = TypeVar("OutputT")


class BoundCall(Generic[OutputT]):
    """An inference on fixed shapes and addresses. Made by ``Engine.bind``; for one thread.

    ``call(feeds)`` runs the engine on host arrays of these shapes. Values that were written into ``inputs``
    need no feed: ``call()`` takes what stands there. Inputs that were on the GPU are read again where they
    were, whatever stands there by then. The arrays of ``outputs`` are the same for every call, so copy what
    has to outlast the next one.

    Every call begins after what is queued on the stream that ``stream`` names. Without that, it begins after
    what is queued on the streams that arrays on the GPU told when they were bound, as CuPy's do, and asks
    arrays that tell none, such as PyTorch's, for the order (DLPack): it begins after what their library has
    queued by then. Asking takes some microseconds, which ``stream`` saves. Where outputs of ``on_device`` are
    read on a stream without waiting, give that as ``stream``, so that the next call begins after it.

    Attributes:
        inputs: Input name to a page-locked array that is uploaded with every call. It may be written again
            as soon as the call has returned.
        outputs: Output name to the array that every call writes to: page-locked, or on the GPU.
    """

    def __init__(
        self,
        context: ExecutionContext,
        feeds: Feeds,
        *,
        outputs: Outputs | None = None,
        stream: StreamLike | None = None,
        on_device: bool = False,
    ) -> None:
        device, own = context.device, context.stream
        self._context, self._feeds, self._active = context, feeds, device.active()
        with self._active:
            context.bind(feeds)
            bound = context.bound
            targets = _targets(context, outputs or {})
            self._stream = context.order(stream, targets.values())
            given = context.given(targets.values()) if stream is None else []
            self._orders = _orders(device, own.handle, self._stream, given)
            made = context.new_arrays(outputs or {}, self._stream) if on_device else {}
            pointers = addresses(made, targets)
            self._copies = bound.copies_of(pointers, bound.place_outputs(pointers))
        self.inputs: dict[str, HostArray] = dict(bound.staged)
        self.outputs: Mapping[str, OutputT] = {
            name: cast("OutputT", made.get(name, (outputs or {}).get(name, array)))
            for name, array in bound.outputs.items()
        }
        self._staged, self._enqueue = bound.staged, bound.enqueue
        self._uploads, self._input_copies = bound.uploads, bound.copies
        self._downloads = tuple(
            arguments
            for name, arguments in zip(bound.outputs, bound.downloads, strict=True)
            if name not in pointers
        )
        self._upload, self._download, self._copy = device.upload, device.download, device.copy
        self._own, self._synchronize, self._wait = own.handle, own.synchronize, device.wait_for_stream
        # Without a stream of the caller, or with outputs on the host, every call is complete when it returns.
        self._waits = self._stream is None or bool(self._downloads)
        self._running = False
        # Else a call returns before its inference is done, but not before its inputs are read, which the
        # caller may write anew.
        self._uploaded: Event | None = None
        if bound.uploads and not self._waits:
            with self._active:
                self._uploaded = device.new_event()

    def __call__(self, feeds: Mapping[str, HostArray] | None = None) -> Mapping[str, OutputT]:
        """Runs the engine once.

        Args:
            feeds: Name of every input on the host to a NumPy array of the bound shape and dtype; None takes
                what stands in ``inputs``.

        Returns:
            ``outputs``, which hold the result until the next call. Where all of them are on the GPU and the
            caller has a stream, they are complete for what is queued there from now on.

        Raises:
            CalibrationDataError: An input is missing, or an array has another shape or dtype.
            EngineError: TensorRT or the GPU fails, or the call is closed.
        """
        if self._context.closed:
            raise EngineError("the bound call is closed; bind another one")
        with self._active:
            if self._running:
                self._synchronize()
                self._running = False
            if feeds is not None:
                self._stage(feeds)
            for arguments in self._uploads:
                self._upload(*arguments)
            # Before it waits for the caller's stream, for which the host would wait with it.
            if self._uploaded is not None:
                self._uploaded.record(self._context.stream)
            for order in self._orders:
                order()
            for arguments in self._input_copies:
                self._copy(*arguments)
            self._enqueue()
            for arguments in self._copies:
                self._copy(*arguments)
            for arguments in self._downloads:
                self._download(*arguments)
            if self._stream is not None:
                self._wait(self._stream, self._own)
            if self._waits:
                self._synchronize()
            else:
                self._running = bool(self._staged)
                if self._uploaded is not None:
                    self._uploaded.synchronize()
        return self.outputs

    def close(self) -> None:
        """Waits for what is queued, then frees the memory and the context; a second call does nothing."""
        self._context.close()
        self._staged, self._copies, self._downloads, self._feeds, self._orders = (), (), (), {}, ()
        self._uploads, self._input_copies, self._uploaded = (), (), None
        self.inputs, self.outputs = {}, {}

    def __enter__(self) -> BoundCall[OutputT]:
        return self

    def __exit__(self, *_error: object) -> None:
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
        raise CalibrationDataError(f"the engine has no input '{unknown}'; it takes {such_as(self.inputs)}")


def _targets(context: ExecutionContext, outputs: Outputs) -> Mapping[str, DeviceInput]:
    """The caller's arrays on the GPU by the names of the outputs that are written to them.

    Raises:
        CalibrationDataError: An array does not fit its output, is on the host, or is not of this GPU.
        UnsupportedError: The size of an output is known only after the inference.
    """
    if context.data_dependent:
        raise UnsupportedError(
            "the size of an output is known only after the inference, so nothing can be bound "
            "beforehand; call infer"
        )
    targets = context.take_targets(outputs)
    if targets.host:
        raise CalibrationDataError(
            f"output '{next(iter(targets.host))}' of a bound call has a host array of its own; give "
            "arrays on the GPU, or call infer with outputs"
        )
    return targets.device


def _orders(
    device: Device, own: int, caller: int | None, given: Sequence[DeviceInput]
) -> tuple[Callable[[], object], ...]:
    """What makes the stream ``own`` wait for the caller's stream and for the given arrays."""
    streams = dict.fromkeys((caller, *(array.producer for array in given)))
    sources = [array.source for array in given if array.source is not None]
    return (
        *(functools.partial(device.wait_for_stream, own, handle) for handle in streams if handle is not None),
        *(functools.partial(source.__dlpack__, stream=own) for source in sources),
    )


def _described(value: object) -> str:
    if value is None:
        return "nothing"
    if type(value) is not np.ndarray:
        return f"a {type(value).__name__}"
    return f"a NumPy array of {value.dtype} {shape_text(value.shape)}"
