"""An execution context: runs an engine on one stream, in the order of the streams of its inputs.

An inference that was queued and may not be done yet.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Literal, overload

import numpy as np

from calibrators.cuda import Device, Event, Stream
from calibrators.errors import CalibrationDataError, EngineError
from trtint8.runtime.arrays import (
    DeviceArray,
    DeviceInput,
    Feeds,
    HostArray,
    Outputs,
    StreamLike,
    Targets,
    addresses,
    as_inputs,
    as_targets,
    stream_handle,
)
from trtint8.runtime.bindings import Bindings
from trtint8.runtime.context import Arrays, BoundContext, TensorrtContext

#: How many CUDA graphs are kept, each with one of TensorRT's contexts and its memory.
_GRAPHS = 4


class ExecutionContext:
    """Runs an engine, one inference at a time, so use one context per thread. Made by ``Engine.new_context``.

    :meth:`infer` runs the engine once. Its steps (:meth:`bind`, :meth:`upload`, :meth:`enqueue`,
    :meth:`queue_download`, :meth:`download`, :meth:`synchronize`) can also be called one by one, within
    ``with context.device.active():``.

    Attributes:
        device: The GPU.
        stream: The stream on which everything is queued.
        closed: Whether memory and context are freed.
    """

    def __init__(
        self,
        trt: Any,
        new_raw: Callable[[], Any],
        owner: object,
        bindings: Bindings,
        device: Device,
        *,
        cuda_graph: bool,
    ) -> None:
        self.device = device
        self._trt, self._new_raw, self._bindings, self._cuda_graph = trt, new_raw, bindings, cuda_graph
        self._owner = owner  # A reference, because the engine must not be deleted before its contexts.
        self._bound: OrderedDict[object, BoundContext] = OrderedDict()
        self._pending: InferenceFuture | None = None
        self._fed: Arrays = {}
        self._unfinished = self.closed = False
        with device.active():
            self.stream: Stream = device.new_stream()
            # Made here, so that a lack of memory is found here.
            self._current = self._new_bound()

    @property
    def profile(self) -> int:
        """Index of the optimization profile in use; -1 where a new context has none."""
        return self._current.context.profile

    @property
    def data_dependent(self) -> bool:
        """Whether the shape of an output of the last feed is known only after the inference."""
        return self._current.context.data_dependent

    @property
    def bound(self) -> BoundContext:
        """What the last feed was bound to."""
        return self._current

    @overload
    def infer(
        self,
        feeds: Feeds,
        *,
        outputs: Outputs | None = None,
        stream: StreamLike | None = None,
        on_device: Literal[False] = False,
    ) -> dict[str, HostArray]: ...

    @overload
    def infer(
        self,
        feeds: Feeds,
        *,
        outputs: Outputs | None = None,
        stream: StreamLike | None = None,
        on_device: Literal[True],
    ) -> dict[str, DeviceArray]: ...

    def infer(
        self,
        feeds: Feeds,
        *,
        outputs: Outputs | None = None,
        stream: StreamLike | None = None,
        on_device: bool = False,
    ) -> dict[str, HostArray] | dict[str, DeviceArray]:
        """Runs the engine once.

        Args:
            feeds: Input name to array, of the input's shape and dtype, on the host or (through ``__dlpack__``
                or ``__cuda_array_interface__``) on the GPU.
            outputs: Output name to an array, on the host or on the GPU, that it is written to.
            stream: The caller's stream: the inference begins after what is queued there, and what is queued
                there afterwards waits for its outputs. By default the one that an input array tells.
            on_device: Whether to return the other outputs as
                :class:`~trtint8.runtime.arrays.DeviceArray`. With a stream the call does not wait for
                the inference: whoever reads them is ordered after it.

        Returns:
            Output name to a new array, for outputs that are not in ``outputs``.

        Raises:
            CalibrationDataError: A name, dtype or shape is not one that the engine takes.
            EngineError: TensorRT fails.
            GpuMemoryError: The GPU has too little free memory for the inputs or outputs.
        """
        with self.device.active():
            self.bind(feeds)
            if stream is None and not (outputs or on_device or self._fed):
                self._run()
                return self.download()
            return self._infer(outputs or {}, stream, on_device=on_device)

    def infer_async(self, feeds: Feeds, *, stream: StreamLike | None = None) -> InferenceFuture:
        """Queues an inference and returns without waiting for it.

        The context has room for one inference: the next call waits for this one first.

        Args:
            feeds: Input name to array, see :meth:`infer`. Arrays on the host may be changed afterwards; those
                on the GPU are kept until the inference is done.
            stream: The caller's stream, after whose work the inference begins.

        Returns:
            The future outputs, on the host.

        Raises:
            TrtInt8Error: See :meth:`infer`.
        """
        with self.device.active():
            self.bind(feeds)
            caller = self.order(stream)
            self._run()
            if caller is not None:
                # What the caller queues next may write to the inputs.
                self.device.wait_for_stream(caller, self.stream.handle)
            current, event = self._current, self.device.new_event()
            if not self.data_dependent:
                current.queue_download()
            event.record(self.stream)
            fed = self._fed

            def collect() -> dict[str, HostArray]:
                nonlocal fed
                if current.context.data_dependent:
                    current.queue_download()
                    self.stream.synchronize()
                fed = {}
                return {name: array.copy() for name, array in current.outputs.items()}

            self._pending = InferenceFuture(self.device, event, collect)
        return self._pending

    def bind(self, feeds: Feeds) -> None:
        """Takes a feed: TensorRT gets shapes and addresses where they changed, page-locked memory the values.

        Args:
            feeds: Input name to array, see :meth:`infer`; arrays on the GPU must not be freed before the
                inference has finished.

        Raises:
            CalibrationDataError: A name, dtype or shape is not one that the engine takes.
            EngineError: TensorRT refuses a shape or an address, or the context is closed.
        """
        if self._pending is not None or self._unfinished:
            self._finish()
        if self._current.takes(feeds):
            return
        if self.closed:
            raise EngineError("the execution context is closed; make a new one")
        arrays = as_inputs(feeds, self._bindings.inputs, self._bindings.host_inputs, self.stream.handle)
        if self._cuda_graph:
            self._choose(arrays)
        self._fed = arrays if any(isinstance(array, DeviceInput) for array in arrays.values()) else {}
        self._current.bind(arrays)

    def upload(self) -> None:
        """Queues the copies of inputs that are on the host, or that TensorRT cannot read in place."""
        self._current.upload()

    def enqueue(self) -> None:
        """Queues the inference itself, as a CUDA graph where that was asked for.

        Raises:
            EngineError: TensorRT cannot queue the inference.
        """
        # An earlier call may have placed outputs in arrays of the caller.
        self._current.place_outputs({})
        self._current.enqueue()

    def layer_seconds(self, feeds: Feeds, runs: int = 20) -> dict[str, float]:
        """Runs the engine again and again, and returns what each of its layers takes.

        The context must not launch CUDA graphs, and times layers from then on.

        Args:
            feeds: Input name to array, see :meth:`infer`.
            runs: How many runs the times are of; a first one does not count.

        Returns:
            The engine's name of each layer to its median time in seconds.

        Raises:
            TrtInt8Error: See :meth:`infer`.
        """
        times: dict[str, list[float]] = {}
        with self.device.active():
            self.bind(feeds)
            self.upload()
            self.enqueue()
            self.stream.synchronize()
            self._current.context.report_layers(times)
            for _ in range(runs):
                self.enqueue()
                self.stream.synchronize()
        return {name: statistics.median(milliseconds) / 1e3 for name, milliseconds in times.items()}

    def forget_graph(self) -> None:
        """Makes the next run of any shape capture its CUDA graph again."""
        for bound in self._bound.values():
            bound.forget_graph()

    def download(self) -> dict[str, HostArray]:
        """Queues the copies of the outputs to the host, waits, and returns them.

        Returns:
            Output name to a new array.
        """
        outputs = self._current.queue_download()
        self.stream.synchronize()
        # The next run uses the page-locked memory again.
        return {name: array.copy() for name, array in outputs.items()}

    def queue_download(self) -> dict[str, HostArray]:
        """Queues the copies of the outputs to the host.

        Returns:
            Output name to an array in page-locked memory, which holds the output once the stream has
            finished, until the next run.
        """
        return self._current.queue_download()

    def synchronize(self) -> None:
        """Waits until everything that is queued has finished."""
        self.stream.synchronize()

    def close(self) -> None:
        """Waits for what is queued, then frees the memory and the context; a second call does nothing."""
        if self.closed:
            return
        with self.device.active():
            self._finish()
            # Bound calls and single steps queue work that nobody else waits for.
            self.stream.synchronize()
            self.closed = True
            for bound in self._bound.values():
                bound.free()
            self.stream.free()
        self._fed = {}

    def __del__(self) -> None:
        # When the interpreter exits, or where the constructor failed, there may be nothing to close.
        with contextlib.suppress(Exception):
            self.close()

    def _new_bound(self, key: object = None) -> BoundContext:
        raw = TensorrtContext(self._trt, self._new_raw(), self._bindings, self.device)
        bound = BoundContext(raw, self._bindings, self.device, self.stream, cuda_graph=self._cuda_graph)
        self._bound[key] = bound
        return bound

    def _choose(self, arrays: Arrays) -> None:
        """Takes the context of these shapes: a graph holds for the context and the shapes of its capture."""
        key = tuple(
            (name, array.shape, array.tobytes() if name in self._bindings.host_inputs else None)
            if isinstance(array, np.ndarray)
            else (name, array.shape)
            for name, array in arrays.items()
        )
        if None in self._bound:  # the first one, not used yet
            self._bound[key] = self._bound.pop(None)
        if key not in self._bound:
            if len(self._bound) == _GRAPHS:
                self.stream.synchronize()  # it may still be running
                self._bound.popitem(last=False)[1].free()
            self._new_bound(key)
        self._bound.move_to_end(key)
        self._current = self._bound[key]

    def _run(self) -> None:
        self.upload()
        self.enqueue()

    def _infer(
        self, outputs: Outputs, stream: StreamLike | None, *, on_device: bool
    ) -> dict[str, HostArray] | dict[str, DeviceArray]:
        """Runs the engine on a feed that is bound, with outputs or streams of the caller."""
        current = self._current
        targets = self.take_targets(outputs)
        caller = self.order(stream, targets.device.values())
        made: dict[str, DeviceArray] = {}
        if on_device and not self.data_dependent:
            made = self.new_arrays(outputs, caller)
        current.upload()
        placed = current.place_outputs(addresses(made, targets.device))
        current.enqueue()
        if on_device and self.data_dependent:
            self.stream.synchronize()
            made = self.new_arrays(outputs, caller)
        on_gpu = addresses(made, targets.device)
        for name in on_gpu if self.data_dependent else ():
            targets.check(name, current.output(name)[0])
        for copy in current.copies_of(on_gpu, placed):
            self.device.copy(*copy)
        to_host = [spec.name for spec in self._bindings.outputs if spec.name not in on_gpu]
        found: dict[str, HostArray] = {}
        if to_host:
            staged = current.queue_download(to_host)
            self.stream.synchronize()
            for name, target in targets.host.items():
                targets.check(name, staged[name].shape)
                target[...] = staged[name]
            found = {name: staged[name].copy() for name in to_host if name not in targets.host}
        elif caller is None:
            self.stream.synchronize()
        else:
            self.device.wait_for_stream(caller, self.stream.handle)
            self._unfinished = True
            return made if on_device else found
        self._fed = {}  # the owners of arrays on the GPU may free them from now on
        return made if on_device else found

    def take_targets(self, outputs: Outputs) -> Targets:
        """Checks arrays that outputs of the bound feed are to be written to.

        Args:
            outputs: Output name to array.

        Raises:
            CalibrationDataError: An array does not fit its output, or is not of this GPU.
        """
        targets = as_targets(outputs, self._bindings.outputs, self.stream.handle)
        if not self.data_dependent:
            for name, shape in self._current.context.output_shapes.items():
                targets.check(name, shape)
        for name, target in targets.device.items():
            # An empty array may have no memory.
            problem = self.device.pointer_problem(target.pointer) if target.nbytes else None
            if problem:
                raise CalibrationDataError(
                    f"the GPU array for output '{name}' is {problem}; give an array of the engine's GPU"
                )
        return targets

    def new_arrays(self, outputs: Outputs, stream: int | None) -> dict[str, DeviceArray]:
        """Allocates arrays for the outputs of the bound feed.

        Args:
            outputs: The outputs that have arrays already.
            stream: Handle of the stream on which the values are going to be complete.

        Raises:
            GpuMemoryError: The GPU has too little free memory.
        """
        arrays = {}
        for spec in self._bindings.outputs:
            if spec.name in outputs:
                continue
            shape, _ = self._current.output(spec.name)
            dtype = np.dtype(spec.dtype)
            buffer = self.device.allocate(self._current.nbytes(spec.name, shape))
            arrays[spec.name] = DeviceArray(shape, dtype, buffer, self.device, stream)
        return arrays

    def order(self, stream: StreamLike | None, targets: Iterable[DeviceInput] = ()) -> int | None:
        """Orders the context's stream after those of the caller.

        Args:
            stream: The stream that the caller names.
            targets: Arrays that outputs are written to.

        Returns:
            Handle of the stream that results are expected on; None where nothing tells one.
        """
        caller = stream_handle(stream) if stream is not None else None
        given = self.given(targets)
        if caller is None:
            caller = next((array.producer for array in given if array.told), None)
        producers = [array.producer for array in given if array.producer is not None]
        for producer in dict.fromkeys([*([caller] if caller is not None else []), *producers]):
            self.device.wait_for_stream(self.stream.handle, producer)
        return caller

    def given(self, targets: Iterable[DeviceInput]) -> list[DeviceInput]:
        """The arrays on the GPU of the bound feed, and those that its outputs are written to."""
        return [array for array in (*self._fed.values(), *targets) if isinstance(array, DeviceInput)]

    def _finish(self) -> None:
        """Waits for what is still queued, because its memory is used again."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.finish()
        if self._unfinished:
            self.stream.synchronize()
            self._unfinished = False


class InferenceFuture:
    """The outputs of ``infer_async``, once they are there. Any thread may ask for them.

    Attributes:
        event: The CUDA event that is reached when the inference is done; its ``raw`` is PyCUDA's
            object where PyCUDA is installed, else the ``CUevent`` as an integer.
    """

    def __init__(self, device: Device, event: Event, collect: Callable[[], dict[str, HostArray]]) -> None:
        self.event = event
        self._device = device
        self._collect: Callable[[], dict[str, HostArray]] | None = collect
        self._lock = threading.Lock()
        self._outputs: Future[dict[str, HostArray]] = Future()

    def done(self) -> bool:
        """Whether :meth:`result` returns without waiting.

        Raises:
            EngineError: The GPU failed.
        """
        if self._outputs.done():
            return True
        with self._device.active():
            return self.event.reached()

    def result(self) -> dict[str, HostArray]:
        """Waits for the inference.

        Returns:
            Output name to an array that is the caller's own.

        Raises:
            EngineError: TensorRT or the GPU failed.
        """
        self.finish()
        return self._outputs.result()

    def finish(self) -> None:
        """Waits for the inference and keeps its outputs, or what it failed with."""
        with self._lock:
            # Let go, so that the context is not kept.
            collect, self._collect = self._collect, None
            if collect is None:
                return
            try:
                with self._device.active():
                    self.event.synchronize()
                    self._outputs.set_result(collect())
            except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
                self._outputs.set_exception(error)
