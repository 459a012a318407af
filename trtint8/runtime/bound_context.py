"""One of TensorRT's contexts with the memory of its inputs and outputs, bound to the shapes of a feed.

While shapes repeat, nothing is asked of TensorRT but the run itself: what has to be copied where is listed
when shapes change.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.cuda import Device, Graph, Stream, capture
from calibrators.errors import CalibrationDataError, EngineError
from trtint8.runtime.arrays import DeviceInput, HostArray
from trtint8.runtime.bindings import Bindings
from trtint8.runtime.memory import TensorMemory
from trtint8.runtime.tensorrt_context import TensorrtContext

#: Input name to an array on the host or on the GPU.
Arrays = Mapping[str, NDArray[Any] | DeviceInput]


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
        self._shapes: dict[str, tuple[int, ...]] | None = None
        self._host_values: dict[str, bytes] = {}
        self._on_host: frozenset[str] = frozenset()
        self._graph: Graph | None = None
        self._checked: dict[str, int] = {}
        self.staged: tuple[tuple[str, NDArray[Any]], ...] = ()
        self.uploads: tuple[tuple[int, int, int, int], ...] = ()
        self.copies: tuple[tuple[int, int, int, int], ...] = ()
        self.downloads: tuple[tuple[int, int, int, int], ...] = ()
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

    def place_outputs(self, pointers: Mapping[str, int]) -> bool:
        """Lets TensorRT write outputs to addresses of the caller, and all others to this context's memory.

        Args:
            pointers: Output name to an aligned device address.

        Returns:
            Whether it will. A CUDA graph, and outputs of unknown size, are written to this context's memory.
        """
        if self._cuda_graph or self.context.data_dependent:
            return not pointers
        for spec in self._bindings.outputs:
            self.context.set_address(spec.name, pointers.get(spec.name) or self._memory[spec.name].pointer)
        return True

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

    def output(self, name: str) -> tuple[tuple[int, ...], int]:
        """The shape and the device address of an output in this context's memory, after a run."""
        shape = self.context.output_shapes[name]
        if min(shape, default=0) >= 0:
            return shape, self._memory[name].pointer
        allocator = self.context.allocators[name]
        if allocator.shape is None or allocator.buffer is None:
            raise EngineError(f"TensorRT did not report the shape of output '{name}'; report this model")
        return allocator.shape, allocator.buffer.pointer

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
                nbytes = math.prod(shape) * self._dtypes[name].itemsize
                self.context.set_address(name, self._memory[name].reserve(nbytes))
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
