"""Polygraphy's TrtRunner on the same kind of recorded GPU: its own code from a feed dict to output arrays."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from infer_bench.recording import Buffer, RecordingContext
from trtint8.engine.file import TensorSpec

os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1"  # the TensorRT that can be imported without a GPU


class _Wrapper:
    """The part of Polygraphy's CUDA wrapper that an inference uses."""

    def __init__(self) -> None:
        self._kept: list[Buffer] = []

    def malloc(self, nbytes: int) -> int:
        self._kept.append(Buffer(max(1, nbytes)))
        return self._kept[-1].pointer

    def memcpy(self, **_arguments: Any) -> None:
        """Copies nothing."""

    def free(self, _pointer: int) -> None:
        """Frees nothing."""


class _Stream:
    ptr = 0x5EED

    def synchronize(self) -> None:
        """Does not wait."""


class _Engine:
    def __init__(self, trt: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self._names = [spec.name for spec in (*inputs, *outputs)]
        self._modes = dict.fromkeys((spec.name for spec in inputs), trt.TensorIOMode.INPUT)
        self._trt = trt
        self.num_io_tensors = len(self._names)

    def get_tensor_name(self, index: int) -> str:
        return self._names[index]

    def get_tensor_mode(self, name: str) -> Any:
        return self._modes.get(name, self._trt.TensorIOMode.OUTPUT)

    def is_shape_inference_io(self, _name: str) -> bool:
        return False

    def get_tensor_dtype(self, _name: str) -> Any:
        return self._trt.float32

    def get_tensor_format(self, *_arguments: Any) -> Any:
        return self._trt.TensorFormat.LINEAR

    def get_aliased_input_tensor(self, _name: str) -> None:
        return None


class _Context(RecordingContext):
    active_optimization_profile = 0

    def __init__(self, flavor: Any, engine: _Engine, outputs: Sequence[TensorSpec]) -> None:
        super().__init__(flavor, outputs)
        self.engine, self._inputs, self._addresses = engine, dict[str, Any](), dict[str, int]()
        self._allocators: dict[str, Any] = {}

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        self._inputs[name] = self._dims(list(shape))
        return super().set_input_shape(name, shape)

    def get_tensor_shape(self, name: str) -> Any:
        return self._inputs.get(name, ()) if name not in self._outputs else super().get_tensor_shape(name)

    def get_tensor_address(self, name: str) -> int:
        return self._addresses.get(name, 0)

    def set_tensor_address(self, name: str, pointer: int) -> bool:
        self._addresses[name] = pointer
        return True

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self._allocators[name] = allocator
        return True

    def execute_async_v3(self, stream: int) -> bool:
        for name, allocator in self._allocators.items():
            shape = self.get_tensor_shape(name)
            allocator.reallocate_output(name, 0, 4 * shape[0] * shape[1], 256)
            allocator.notify_shape(name, shape)
        return super().execute_async_v3(stream)


def polygraphy_call(
    flavor: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> Callable[[Mapping[str, Any]], Any]:
    """A function that runs Polygraphy's inference on a feed dict.

    Args:
        flavor: TensorRT for RTX.
        inputs: The inputs, float32.
        outputs: The outputs, float32 of two dimensions.

    Raises:
        ModuleNotFoundError: Polygraphy is not installed.
    """
    from polygraphy.backend.trt import runner as module
    from polygraphy.cuda import cuda

    wrapper = _Wrapper()
    cuda.wrapper = lambda: wrapper
    module.cuda.wrapper = cuda.wrapper
    engine = _Engine(flavor.module, inputs, outputs)
    runner = module.TrtRunner(lambda: None)
    # What activate() does with an engine of TensorRT's own.
    runner.engine, runner.context = engine, _Context(flavor, engine, outputs)
    runner.device_input_buffers, runner.host_output_buffers = OrderedDict(), OrderedDict()
    runner.stream, runner.context_memory_buffer = _Stream(), None
    runner.output_allocator = module._make_output_allocator()
    runner.input_tensor_addresses, runner._active_debug_listener = OrderedDict(), None
    return lambda feeds: runner._infer_impl(feeds, copy_outputs_to_host=True, return_raw_buffers=False)
