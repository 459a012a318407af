"""An execution context: binds an engine's inputs and outputs to memory, and runs the engine on one stream."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from calibrators.cuda import Device, DeviceBuffer, Graph, PinnedBuffer, Stream, capture
from calibrators.errors import EngineError
from calibrators.tensorrt.messages import shared_logger
from trtint8.engine.file import TensorSpec
from trtint8.engine.profiles import Profile
from trtint8.runtime.arrays import DeviceArray, DeviceInput, Feeds, HostArray, as_inputs
from trtint8.runtime.binding_shapes import choose_profile
from trtint8.runtime.output_allocator import new_output_allocator


@dataclass(frozen=True)
class Bindings:
    """The inputs and outputs of an engine.

    Attributes:
        inputs: The inputs; dynamic dimensions are None.
        outputs: The outputs; dynamic dimensions are None.
        host_inputs: Names of the inputs that TensorRT reads on the host, most of which are shapes.
        profiles: Input name to accepted shapes, for every optimization profile; empty where all inputs are
            static.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    host_inputs: frozenset[str]
    profiles: tuple[Profile, ...]


class ExecutionContext:
    """Runs an engine, one inference at a time, so use one context per thread. Made by ``Engine.new_context``.

    :meth:`infer` runs the engine once. Its steps (:meth:`bind`, :meth:`upload`, :meth:`enqueue`,
    :meth:`queue_download`, :meth:`download`, :meth:`synchronize`) can also be called one by one, within
    ``with context.device.active():``.

    Attributes:
        device: The GPU.
        stream: The stream on which everything is queued.
        profile: Index of the optimization profile in use; -1 where a new context has none.
    """

    def __init__(
        self,
        trt: Any,
        context: Any,
        owner: object,
        bindings: Bindings,
        device: Device,
        *,
        cuda_graph: bool,
    ) -> None:
        self.device = device
        # -1 where another context of the engine uses the profile already.
        self.profile: int = context.active_optimization_profile
        self._context, self._bindings, self._cuda_graph = context, bindings, cuda_graph
        self._owner = owner  # A reference, because the engine must not be deleted before its contexts.
        self._logger = shared_logger(trt)
        with device.active():
            self.stream: Stream = device.new_stream()
            self._memory = {spec.name: _Memory(device) for spec in (*bindings.inputs, *bindings.outputs)}
            self._allocators = {spec.name: new_output_allocator(trt, device) for spec in bindings.outputs}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._fed: dict[str, NDArray[Any] | DeviceInput] = {}
        self._output_shapes: dict[str, tuple[int, ...]] = {}
        self._graph: Graph | None = None
        self._graph_key: object = None

    @overload
    def infer(self, feeds: Feeds, *, on_device: Literal[False] = False) -> dict[str, HostArray]: ...

    @overload
    def infer(self, feeds: Feeds, *, on_device: Literal[True]) -> dict[str, DeviceArray]: ...

    def infer(
        self, feeds: Feeds, *, on_device: bool = False
    ) -> dict[str, HostArray] | dict[str, DeviceArray]:
        """Runs the engine once.

        Args:
            feeds: Input name to array, of the input's shape and dtype, on the host or (through
                ``__cuda_array_interface__``) on the GPU.
            on_device: Whether to return the outputs as :class:`~trtint8.runtime.arrays.DeviceArray`.

        Returns:
            Output name to a new array.

        Raises:
            CalibrationDataError: A name, dtype or shape is not one that the engine takes.
            EngineError: TensorRT fails.
            GpuMemoryError: The GPU has too little free memory for the inputs or outputs.
        """
        with self.device.active():
            self.bind(feeds)
            self.upload()
            self.enqueue()
            outputs = self._device_outputs() if on_device else self.download()
            # The owners of arrays on the GPU may free them from now on.
            self._fed = {}
        return outputs

    def bind(self, feeds: Feeds) -> None:
        """Gives TensorRT the shapes and addresses of a feed, and copies host arrays to page-locked memory.

        Args:
            feeds: Input name to array, see :meth:`infer`; arrays on the GPU must not be freed before the
                inference has finished.

        Raises:
            CalibrationDataError: A name, dtype or shape is not one that the engine takes.
            EngineError: TensorRT refuses a shape or an address, or the context is closed.
        """
        if self._context is None:
            raise EngineError("the execution context is closed; make a new one")
        self._fed = as_inputs(feeds, self._bindings.inputs, self._bindings.host_inputs)
        self._switch_profile({name: array.shape for name, array in self._fed.items()})
        for name, array in self._fed.items():
            self._bind_input(name, array)
        for spec in self._bindings.outputs:
            self._bind_output(spec)

    def upload(self) -> None:
        """Queues the copies of inputs that are on the host, or that TensorRT cannot read in place."""
        for name, array in self._fed.items():
            memory = self._memory[name]
            if isinstance(array, DeviceInput):
                if not array.aligned:
                    self.device.copy(memory.pointer, array.pointer, array.nbytes, self.stream)
            elif name not in self._bindings.host_inputs:
                self.device.upload(memory.pointer, memory.reserve_pinned(array.nbytes), self.stream)

    def enqueue(self) -> None:
        """Queues the inference itself, as a CUDA graph where that was asked for.

        Raises:
            EngineError: TensorRT cannot queue the inference.
        """
        if not self._cuda_graph or self._data_dependent():
            self._execute()
            return
        key = (self.profile, dict(self._shapes), dict(self._addresses), self._host_values())
        if self._graph is None or key != self._graph_key:
            self._free_graph()
            # TensorRT allocates memory in a first run, which is not allowed during a capture.
            self._execute()
            self.stream.synchronize()
            self._graph, self._graph_key = capture(self.stream, self._execute), key
        self._graph.launch(self.stream)

    def forget_graph(self) -> None:
        """Makes the next run capture its CUDA graph again."""
        self._graph_key = None

    def download(self) -> dict[str, HostArray]:
        """Queues the copies of the outputs to the host, waits, and returns them.

        Returns:
            Output name to a new array.
        """
        staged = self.queue_download()
        self.stream.synchronize()
        # Copied, because the next run uses the page-locked memory again.
        return {name: array.copy() for name, array in staged.items()}

    def queue_download(self) -> dict[str, HostArray]:
        """Queues the copies of the outputs to the host.

        Returns:
            Output name to an array in page-locked memory, which holds the output once the stream has
            finished, until the next run.
        """
        if self._data_dependent():
            # The sizes of the outputs are known only after the inference.
            self.stream.synchronize()
        staged: dict[str, HostArray] = {}
        for spec in self._bindings.outputs:
            shape, pointer = self._output(spec)
            nbytes = math.prod(shape) * np.dtype(spec.dtype).itemsize
            target = self._memory[spec.name].reserve_pinned(nbytes)
            self.device.download(target, pointer, self.stream)
            staged[spec.name] = target.view(spec.dtype).reshape(shape)
        return staged

    def synchronize(self) -> None:
        """Waits until everything that is queued has finished."""
        self.stream.synchronize()

    def close(self) -> None:
        """Frees the memory and the context; a second call does nothing."""
        with self.device.active():
            self._free_graph()
            for memory in self._memory.values():
                memory.free()
            for allocator in self._allocators.values():
                allocator.free()
            self._context = None
            self.stream.free()
        self._fed = {}

    def __del__(self) -> None:
        # When the interpreter exits, or where the constructor failed, there may be nothing to close.
        with contextlib.suppress(Exception):
            self.close()

    def _switch_profile(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        profiles = self._bindings.profiles
        wanted = choose_profile(shapes, profiles, self.profile) if profiles else 0
        if wanted != self.profile:
            self._check(
                self._context.set_optimization_profile_async(wanted, self.stream.handle),
                f"optimization profile {wanted}",
            )
            self.stream.synchronize()
            self.profile, self._shapes, self._addresses = wanted, {}, {}

    def _bind_input(self, name: str, array: NDArray[Any] | DeviceInput) -> None:
        memory = self._memory[name]
        if isinstance(array, DeviceInput):
            pointer = array.pointer if array.aligned else memory.reserve(array.nbytes)
        else:
            staged = memory.reserve_pinned(array.nbytes)
            staged.view(array.dtype).reshape(array.shape)[...] = array
            if name in self._bindings.host_inputs:
                pointer = staged.ctypes.data
                # Set again even where it is the same, because TensorRT may have read the former values
                # already.
                self._addresses.pop(name, None)
            else:
                pointer = memory.reserve(array.nbytes)
        if self._shapes.get(name) != array.shape:
            self._check(self._context.set_input_shape(name, array.shape), f"shape {array.shape} of '{name}'")
            self._shapes[name] = array.shape
        self._set_address(name, pointer)

    def _bind_output(self, spec: TensorSpec) -> None:
        shape = tuple(self._context.get_tensor_shape(spec.name))
        self._output_shapes[spec.name] = shape
        if any(dim < 0 for dim in shape):
            allocator = self._allocators[spec.name]
            self._check(
                self._context.set_output_allocator(spec.name, allocator), f"allocator of '{spec.name}'"
            )
            return
        nbytes = math.prod(shape) * np.dtype(spec.dtype).itemsize
        self._set_address(spec.name, self._memory[spec.name].reserve(nbytes))
        self._memory[spec.name].reserve_pinned(nbytes)

    def _set_address(self, name: str, pointer: int) -> None:
        if self._addresses.get(name) != pointer:
            self._check(self._context.set_tensor_address(name, pointer), f"address of '{name}'")
            self._addresses[name] = pointer

    def _execute(self) -> None:
        queued = self._context.execute_async_v3(self.stream.handle)
        for allocator in self._allocators.values():
            allocator.raise_failure()
        self._check(queued, "run")

    def _host_values(self) -> dict[str, bytes]:
        """Name to bytes of the inputs on the host, which decide shapes: a CUDA graph depends on them."""
        return {
            name: array.tobytes()
            for name, array in self._fed.items()
            if isinstance(array, np.ndarray) and name in self._bindings.host_inputs
        }

    def _data_dependent(self) -> bool:
        return any(dim < 0 for shape in self._output_shapes.values() for dim in shape)

    def _output(self, spec: TensorSpec) -> tuple[tuple[int, ...], int]:
        """The shape and the device address of an output after a run."""
        shape = self._output_shapes[spec.name]
        if all(dim >= 0 for dim in shape):
            return shape, self._memory[spec.name].pointer
        allocator = self._allocators[spec.name]
        if allocator.shape is None or allocator.buffer is None:
            raise EngineError(f"TensorRT did not report the shape of output '{spec.name}'; report this model")
        self._memory[spec.name].reserve_pinned(math.prod(allocator.shape) * np.dtype(spec.dtype).itemsize)
        return allocator.shape, allocator.buffer.pointer

    def _device_outputs(self) -> dict[str, DeviceArray]:
        if self._data_dependent():
            self.stream.synchronize()
        arrays = {}
        for spec in self._bindings.outputs:
            shape, pointer = self._output(spec)
            dtype = np.dtype(spec.dtype)
            buffer = self.device.allocate(math.prod(shape) * dtype.itemsize)
            arrays[spec.name] = DeviceArray(shape, dtype, buffer, self.device)
            self.device.copy(buffer.pointer, pointer, buffer.nbytes, self.stream)
        self.stream.synchronize()
        return arrays

    def _free_graph(self) -> None:
        if self._graph is not None:
            self._graph.free()
            self._graph = None

    def _check(self, accepted: bool, request: str) -> None:
        """Raises an error where TensorRT did not accept a request."""
        if not accepted:
            raise EngineError(f"TensorRT refuses the {request}: {self._logger.last_error}")


@dataclass
class _Memory:
    """The memory of a tensor, on the GPU and page-locked on the host; it grows where needed."""

    device: Device
    _buffer: DeviceBuffer | None = field(default=None, repr=False)
    _pinned: PinnedBuffer | None = field(default=None, repr=False)

    @property
    def pointer(self) -> int:
        """The device address; 0 before :meth:`reserve`."""
        return self._buffer.pointer if self._buffer else 0

    def reserve(self, nbytes: int) -> int:
        """Reserves at least ``nbytes`` bytes on the GPU; returns the device address."""
        # TensorRT needs an address for empty tensors, too.
        nbytes = max(1, nbytes)
        if self._buffer is None or self._buffer.nbytes < nbytes:
            if self._buffer:
                self._buffer.free()
            self._buffer = None
            self._buffer = self.device.allocate(nbytes)
        return self._buffer.pointer

    def reserve_pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Reserves page-locked memory; returns its first ``nbytes`` bytes."""
        if self._pinned is None or self._pinned.array.nbytes < nbytes:
            if self._pinned:
                self._pinned.free()
            self._pinned = None
            self._pinned = self.device.allocate_pinned(max(1, nbytes))
        return self._pinned.array[:nbytes]

    def free(self) -> None:
        """Frees the memory on the GPU and on the host."""
        for memory in (self._buffer, self._pinned):
            if memory:
                memory.free()
        self._buffer = self._pinned = None
