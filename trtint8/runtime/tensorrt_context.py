"""One of TensorRT's execution contexts, which is asked only for what changes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from calibrators.cuda import Device, Stream
from calibrators.errors import EngineError
from calibrators.tensorrt.messages import shared_logger
from trtint8.runtime.binding_shapes import choose_profile
from trtint8.runtime.bindings import Bindings
from trtint8.runtime.output_allocator import new_output_allocator

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
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self.output_shapes: dict[str, tuple[int, ...]] = {}
        self.data_dependent = False
        self.allocators: dict[str, Any] = {}
        self._has_run = False

    def set_shapes(
        self, shapes: Mapping[str, tuple[int, ...]], host_addresses: Mapping[str, int], stream: Stream
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

    def free(self) -> None:
        """Frees the context and the memory of its outputs."""
        for allocator in self.allocators.values():
            allocator.free()
        self._raw = None

    def _switch_profile(self, shapes: Mapping[str, tuple[int, ...]], stream: Stream) -> None:
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
