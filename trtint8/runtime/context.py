"""One of TensorRT's contexts with the memory of its inputs and outputs, bound to the shapes of a feed.

While shapes repeat, nothing is asked of TensorRT but the run itself: what has to be copied where is listed
when shapes change. Each input and output has memory on the GPU and page-locked memory on the host. Memory for
outputs whose size is known only after the inference is allocated when TensorRT asks for it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import numpy as np

from calibrators.cuda import Device, Graph, Stream, TensorMemory, capture
from calibrators.data.feeds import Array
from calibrators.data.inputs import Shape
from calibrators.errors import CalibrationDataError, EngineError
from calibrators.tensorrt.messages import shared_logger
from trtint8.runtime.arrays import DeviceInput, HostArray, is_aligned
from trtint8.runtime.bindings import Bindings, choose_profile

#: Of a copy: where to, where from, how many bytes, and the handle of the stream.
CopyArguments: TypeAlias = tuple[int, int, int, int]

#: Input name to an array on the host or on the GPU.
Arrays = Mapping[str, Array | DeviceInput]


class BoundContext:
    """A TensorRT context and its memory.

    Attributes:
        staged: Name and page-locked array of every input that is on the host.
        uploads: Arguments of the copies to the GPU, for those of them that TensorRT reads there.
        copies: Arguments of the copies of inputs on the GPU that TensorRT does not read in place.
        downloads: Arguments of the copies of all outputs to the host; empty where sizes are unknown.
        outputs: Output name to the page-locked array that it is copied to.
        context: TensorRT's context.
    """

    def __init__(
        self,
        context: TensorrtContext,
        bindings: Bindings,
        device: Device,
        stream: Stream,
        *,
        cuda_graph: bool,
    ) -> None:
        self.context = context
        self._bindings, self._device, self._stream, self._cuda_graph = bindings, device, stream, cuda_graph
        self._memory = {spec.name: TensorMemory(device) for spec in (*bindings.inputs, *bindings.outputs)}
        self._dtypes = {spec.name: np.dtype(spec.dtype) for spec in bindings.outputs}
        self._shapes: dict[str, Shape] | None = None
        self._host_values: dict[str, bytes] = {}
        self._on_host: frozenset[str] = frozenset()
        self._graph: Graph | None = None
        self._checked: dict[str, int] = {}
        self.staged: tuple[tuple[str, Array], ...] = ()
        self.uploads: tuple[CopyArguments, ...] = ()
        self.copies: tuple[CopyArguments, ...] = ()
        self.downloads: tuple[CopyArguments, ...] = ()
        self.outputs: dict[str, HostArray] = {}

    def bind(self, arrays: Arrays) -> None:
        """Takes a feed: host arrays are copied to page-locked memory, others are read where they are.

        Args:
            arrays: Checked arrays; those on the GPU must stay allocated until the inference is done.

        Raises:
            CalibrationDataError: No profile accepts the shapes, or an address is not of this GPU.
            EngineError: TensorRT refuses a shape or an address.
        """
        shapes = {name: array.shape for name, array in arrays.items()}
        on_host = frozenset(name for name, array in arrays.items() if not isinstance(array, DeviceInput))
        values = {
            name: array.tobytes()
            for name, array in arrays.items()
            if name in self._bindings.host_inputs and isinstance(array, np.ndarray)
        }
        if (shapes, on_host, values) != (self._shapes, self._on_host, self._host_values):
            self._shapes = None  # so that a failure below is not taken for success
            self._prepare(arrays)
            self._shapes, self._on_host, self._host_values = shapes, on_host, values
        for name, staged in self.staged:
            staged[...] = arrays[name]
        if len(on_host) < len(arrays):
            self._bind_device_inputs(arrays)
        else:
            self.copies = ()

    def takes(self, feeds: Mapping[str, Any]) -> bool:
        """Copies a feed to page-locked memory if it is like the last one; returns whether it was.

        Args:
            feeds: Input name to array, not checked yet.
        """
        staged = self.staged
        if (
            not staged
            or self._host_values
            or len(feeds) != len(staged)
            or self._shapes is None
            or self.copies
        ):
            return False
        for name, target in staged:
            value = feeds.get(name)
            if (
                value.__class__ is not np.ndarray
                or value.shape != target.shape
                or value.dtype is not target.dtype
            ):
                return False
        for name, target in staged:
            target[...] = feeds[name]
        return True

    def upload(self) -> None:
        """Queues the copies of inputs that are on the host, or that TensorRT does not read in place."""
        for arguments in self.uploads:
            self._device.upload(*arguments)
        for arguments in self.copies:
            self._device.copy(*arguments)

    def place_outputs(self, pointers: Mapping[str, int]) -> Collection[str]:
        """Lets TensorRT write outputs to addresses of the caller, and all others to this context's memory.

        Args:
            pointers: Output name to a device address.

        Returns:
            The outputs that go to the caller. Those of unknown size, of a CUDA graph, and those whose address
            is not aligned are written to this context's memory.
        """
        if self._cuda_graph or self.context.data_dependent:
            return ()
        placed = {name: pointer for name, pointer in pointers.items() if is_aligned(pointer)}
        for spec in self._bindings.outputs:
            self.context.set_address(spec.name, placed.get(spec.name) or self._memory[spec.name].pointer)
        return placed

    def copies_of(self, pointers: Mapping[str, int], placed: Collection[str]) -> tuple[CopyArguments, ...]:
        """Arguments of the copies that bring outputs from this context's memory to addresses of the caller.

        Args:
            pointers: Output name to a device address.
            placed: The outputs that TensorRT writes there.
        """
        return tuple(
            (pointer, source, self.nbytes(name, shape), self._stream.handle)
            for name, pointer in pointers.items()
            for shape, source in (self.output(name),)
            if name not in placed
        )

    def nbytes(self, name: str, shape: Shape) -> int:
        """The size of an output in bytes."""
        return math.prod(shape) * self._dtypes[name].itemsize

    def enqueue(self) -> None:
        """Queues the inference itself, as a CUDA graph where that was asked for.

        Raises:
            EngineError: TensorRT cannot queue the inference.
        """
        if not self._cuda_graph or self.context.data_dependent:
            self.context.execute(self._stream.handle)
            return
        if self._graph is None:
            # TensorRT allocates memory in a first run, which is not allowed during a capture.
            self.context.execute(self._stream.handle)
            self._stream.synchronize()
            self._graph = capture(self._stream, lambda: self.context.execute(self._stream.handle))
        self._graph.launch(self._stream)

    def queue_download(self, names: Collection[str] | None = None) -> dict[str, HostArray]:
        """Queues the copies of the outputs to the host.

        Args:
            names: The outputs that are copied; None copies all.

        Returns:
            Output name to an array in page-locked memory, which holds the output once the stream has
            finished, until the next run.
        """
        if self.context.data_dependent:
            self._find_outputs()
        for name, arguments in zip(self.outputs, self.downloads, strict=True):
            if names is None or name in names:
                self._device.download(*arguments)
        return self.outputs

    def output(self, name: str) -> tuple[Shape, int]:
        """The shape and the device address of an output in this context's memory, after a run."""
        shape = self.context.output_shapes[name]
        if min(shape, default=0) >= 0:
            return shape, self._memory[name].pointer
        allocator = self.context.allocators[name]
        if allocator.shape is None:
            raise EngineError(f"TensorRT did not report the shape of output '{name}'; report this model")
        return allocator.shape, allocator.memory.pointer

    def forget_graph(self) -> None:
        """Makes the next run capture its CUDA graph again."""
        if self._graph is not None:
            self._graph.free()
            self._graph = None

    def free(self) -> None:
        """Frees the memory, the graph and TensorRT's context."""
        self.forget_graph()
        for memory in self._memory.values():
            memory.free()
        self.context.free()
        self.staged, self.uploads, self.copies, self.downloads, self.outputs = (), (), (), (), {}

    def _prepare(self, arrays: Arrays) -> None:
        """Gives TensorRT the shapes, and lists what is to be copied where."""
        # What a graph has recorded belongs to the former shapes.
        self.forget_graph()
        stream, host_inputs = self._stream.handle, self._bindings.host_inputs
        staged, uploads, host_addresses = [], [], {}
        for name, array in arrays.items():
            if isinstance(array, DeviceInput):
                continue
            memory = self._memory[name]
            target = memory.reserve_pinned(array.shape, array.dtype)
            staged.append((name, target))
            target[...] = array
            if name in host_inputs:
                host_addresses[name] = memory.address
            else:
                uploads.append((memory.reserve(array.nbytes), memory.address, array.nbytes, stream))
        self.staged, self.uploads = tuple(staged), tuple(uploads)
        self.context.set_shapes(
            {name: array.shape for name, array in arrays.items()}, host_addresses, self._stream
        )
        for name, array in arrays.items():
            if not isinstance(array, DeviceInput) and name not in host_inputs:
                self.context.set_address(name, self._memory[name].pointer)
        for name, shape in self.context.output_shapes.items():
            if min(shape, default=0) >= 0:
                self.context.set_address(name, self._memory[name].reserve(self.nbytes(name, shape)))
        self.downloads, self.outputs = (), {}
        if not self.context.data_dependent:
            self._find_outputs()

    def _find_outputs(self) -> None:
        """Lists the outputs and where they are; for unknown sizes, once the inference is done."""
        if self.context.data_dependent:
            self._stream.synchronize()
        downloads, outputs = [], {}
        for name, dtype in self._dtypes.items():
            shape, pointer = self.output(name)
            outputs[name] = self._memory[name].reserve_pinned(shape, dtype)
            downloads.append((self._memory[name].address, pointer, outputs[name].nbytes, self._stream.handle))
        self.downloads, self.outputs = tuple(downloads), outputs

    def _bind_device_inputs(self, arrays: Arrays) -> None:
        copies = []
        for name, array in arrays.items():
            if not isinstance(array, DeviceInput):
                continue
            if array.nbytes and self._checked.get(name) != array.pointer:
                problem = self._device.pointer_problem(array.pointer)
                if problem:
                    raise CalibrationDataError(
                        f"the GPU array for input '{name}' is {problem}; give an array of the engine's GPU"
                    )
                self._checked[name] = array.pointer
            if array.aligned and not self._cuda_graph:
                self.context.set_address(name, array.pointer)
                continue
            # A graph reads from the addresses that it was captured with, whatever the caller's are.
            target = self._memory[name].reserve(array.nbytes)
            self.context.set_address(name, target)
            copies.append((target, array.pointer, array.nbytes, self._stream.handle))
        self.copies = tuple(copies)


#: TensorRT 8.6 makes a context while it holds Python's lock. The first run of another context loads kernels
#: under a lock of TensorRT's own and may log, which needs Python's: so neither happens during the other.
FIRST_RUNS = threading.Lock()


class TensorrtContext:
    """Shapes, addresses and runs of one ``IExecutionContext``.

    Attributes:
        profile: Index of the optimization profile in use; -1 where a new context has none.
        output_shapes: Output name to its shape for the shapes that are set; dimensions that are known only
            after the run are negative.
        data_dependent: Whether an output's shape is known only after the run.
        allocators: Output name to the allocator of such an output.
    """

    def __init__(self, trt: Any, raw: Any, bindings: Bindings, device: Device) -> None:
        self._trt, self._raw, self._bindings, self._device = trt, raw, bindings, device
        # -1 where another context of the engine uses the profile already.
        self.profile: int = raw.active_optimization_profile
        self._logger = shared_logger(trt)
        self._shapes: dict[str, Shape] = {}
        self._addresses: dict[str, int] = {}
        self.output_shapes: dict[str, Shape] = {}
        self.data_dependent = False
        self.allocators: dict[str, Any] = {}
        self._profiler: Any = None
        self._has_run = False

    def set_shapes(
        self, shapes: Mapping[str, Shape], host_addresses: Mapping[str, int], stream: Stream
    ) -> None:
        """Gives TensorRT the shapes of a feed, and asks for those of the outputs.

        Args:
            shapes: Input name to its shape.
            host_addresses: Name of an input on the host to the address of its values, which decide shapes.
            stream: The stream on which a profile is switched.

        Raises:
            CalibrationDataError: No profile accepts the shapes.
            EngineError: TensorRT refuses a shape.
        """
        self._switch_profile(shapes, stream)
        for name, shape in shapes.items():
            if self._shapes.get(name) != shape:
                self._check(self._raw.set_input_shape(name, shape), f"shape {shape} of '{name}'")
                self._shapes[name] = shape
        for name, address in host_addresses.items():
            # Again even where it is the same, because TensorRT may have read the former values already.
            self._addresses.pop(name, None)
            self.set_address(name, address)
        self.output_shapes = {
            spec.name: tuple(self._raw.get_tensor_shape(spec.name)) for spec in self._bindings.outputs
        }
        unknown = [name for name, shape in self.output_shapes.items() if min(shape, default=0) < 0]
        self.data_dependent = bool(unknown)
        for name in unknown:
            # The bindings keep one more reference to an allocator with each call.
            if name not in self.allocators:
                self.allocators[name] = new_output_allocator(self._trt, self._device)
                accepted = self._raw.set_output_allocator(name, self.allocators[name])
                self._check(accepted, f"allocator of '{name}'")

    def set_address(self, name: str, pointer: int) -> None:
        """Sets the address of an input or output where it is another than before."""
        if self._addresses.get(name) != pointer:
            self._check(self._raw.set_tensor_address(name, pointer), f"address of '{name}'")
            self._addresses[name] = pointer

    def execute(self, stream: int) -> None:
        """Queues the inference on a stream, given by its handle.

        Raises:
            EngineError: TensorRT cannot queue it.
            GpuMemoryError: There is no memory for an output.
        """
        if self._has_run:
            queued = self._raw.execute_async_v3(stream)
        else:
            with FIRST_RUNS:
                queued = self._raw.execute_async_v3(stream)
            self._has_run = True
        if self.allocators:
            for allocator in self.allocators.values():
                allocator.raise_failure()
        if not queued:
            self._check(queued, "run")

    def report_layers(self, times: dict[str, list[float]]) -> None:
        """Lets TensorRT say what every layer of the runs that follow takes, which makes them slower.

        Args:
            times: Gets, for the name of each layer, the milliseconds of every run.
        """
        self._profiler = new_profiler(self._trt, times)  # TensorRT keeps no reference
        self._raw.profiler = self._profiler

    def free(self) -> None:
        """Frees the context and the memory of its outputs."""
        for allocator in self.allocators.values():
            allocator.memory.free()
        self._raw = None

    def _switch_profile(self, shapes: Mapping[str, Shape], stream: Stream) -> None:
        profiles = self._bindings.profiles
        wanted = choose_profile(shapes, profiles, self.profile) if profiles else 0
        if wanted != self.profile:
            if not self._raw.set_optimization_profile_async(wanted, stream.handle):
                raise EngineError(
                    f"TensorRT refuses the optimization profile {wanted}: {self._logger.last_error}; where "
                    "another context uses it and the engine was built without profile sharing, use that "
                    "context, or build the engine with trtint8"
                )
            stream.synchronize()
            self.profile, self._shapes, self._addresses = wanted, {}, {}

    def _check(self, accepted: bool, request: str) -> None:
        """Raises an error where TensorRT did not accept a request."""
        if not accepted:
            raise EngineError(f"TensorRT refuses the {request}: {self._logger.last_error}")


def new_profiler(trt: Any, times: dict[str, list[float]]) -> Any:
    """A profiler of TensorRT that keeps what it is told.

    Args:
        trt: The TensorRT module.
        times: Gets, for the name of each layer, the milliseconds of every run.
    """

    class Profiler(trt.IProfiler):  # type: ignore[misc]  # the bindings have no types
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            times.setdefault(layer_name, []).append(ms)

    return Profiler()


def new_output_allocator(trt: Any, device: Device) -> Any:
    """Creates an output allocator for one output of one context.

    Args:
        trt: The TensorRT module.
        device: The GPU on which to allocate.

    Returns:
        An ``IOutputAllocator``, which must be kept as long as the context. Its attributes are ``memory`` (the
        output's) and ``shape`` (the output's shape in the last run, or None); its method ``raise_failure()``
        is to be called after each run.
    """

    class OutputAllocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.memory = TensorMemory(device)
            self.shape: Shape | None = None
            self._failure: BaseException | None = None

        def reallocate_output(self, _tensor_name: str, _memory: int, size: int, _alignment: int) -> int:
            # An exception would be lost in TensorRT; address 0 means that there is no memory.
            try:
                return self.memory.reserve(size)
            except BaseException as error:  # noqa: BLE001
                self._failure = error
                return 0

        def raise_failure(self) -> None:
            """Raises the exception of an allocation that failed, once."""
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

        def reallocate_output_async(
            self, tensor_name: str, memory: int, size: int, alignment: int, _stream: int
        ) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, _tensor_name: str, shape: Any) -> None:
            self.shape = tuple(shape)

    return OutputAllocator()
