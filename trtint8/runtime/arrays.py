"""Arrays that go into and come out of an engine: NumPy's on the host, anybody's on the GPU."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.cuda import Device, DeviceBuffer, synchronize_stream
from calibrators.errors import CalibrationDataError, UnsupportedError
from trtint8.engine.file import TensorSpec

_NUMPY = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
    "BOOL": "bool",
}
#: NumPy's names of the element types that both sides have.
DTYPES = tuple(_NUMPY.values())

# What TensorRT asks of addresses on the GPU, in bytes.
_ALIGNMENT = 256

# Streams of the array interface: our own streams wait for the legacy default stream by themselves.
_LEGACY_DEFAULT_STREAM = 1


def numpy_dtype(trt: Any, data_type: Any, name: str) -> np.dtype[Any]:
    """NumPy's element type for TensorRT's.

    Args:
        trt: The TensorRT module.
        data_type: A ``DataType``.
        name: The tensor's name, for the message.

    Raises:
        UnsupportedError: NumPy has no such type.
    """
    for member, ours in _NUMPY.items():
        if data_type == getattr(trt.DataType, member, None):
            return np.dtype(ours)
    raise UnsupportedError(
        f"tensor '{name}' is {data_type.name} in the engine, which NumPy has no type for; build the engine "
        "with FP32 or FP16 inputs and outputs"
    )


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """An array on the GPU, which ``torch.as_tensor`` and ``cupy.asarray`` take without a copy.

    Attributes:
        shape: Its dimensions.
        dtype: Its element type.
        buffer: Its memory, C-contiguous, freed with it.
        device: Where it is.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    buffer: DeviceBuffer
    device: Device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of Numba's CUDA array interface; the values are there already, so no stream."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.buffer.pointer, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }

    def numpy(self) -> NDArray[Any]:
        """A copy on the host."""
        array = np.empty(self.shape, self.dtype)
        with self.device.active():
            stream = self.device.new_stream()
            self.device.download(array, self.buffer.pointer, stream)
            stream.synchronize()
            stream.free()
        return array

    def free(self) -> None:
        """Gives the memory back now rather than when the array is collected."""
        with self.device.active():
            self.buffer.free()

    def __del__(self) -> None:
        # At the interpreter's end the driver may be gone already.
        with contextlib.suppress(Exception):
            self.free()


@dataclass(frozen=True)
class DeviceInput:
    """Somebody else's array on the GPU.

    Attributes:
        pointer: Its device address.
        shape: Its dimensions.
        dtype: Its element type.
        owner: What keeps the memory alive.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: object

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def aligned(self) -> bool:
        """Whether TensorRT can read it where it is; slices often start between, empty arrays nowhere."""
        return self.pointer != 0 and self.pointer % _ALIGNMENT == 0


def as_inputs(
    feeds: Mapping[str, Any], inputs: Sequence[TensorSpec], host_inputs: Set[str]
) -> dict[str, NDArray[Any] | DeviceInput]:
    """Takes an array for every input, see :func:`as_input`.

    Args:
        feeds: Input name to array.
        inputs: The engine's inputs.
        host_inputs: Names of those that TensorRT reads on the host.

    Returns:
        Input name to array, in the order of ``inputs``.

    Raises:
        CalibrationDataError: A name is unknown or missing, or an array does not fit its input.
    """
    wanted = [spec.name for spec in inputs]
    unknown = [name for name in feeds if name not in wanted]
    missing = [name for name in wanted if name not in feeds]
    if unknown or missing:
        problem = f"has no input '{unknown[0]}'" if unknown else f"needs the input '{missing[0]}'"
        raise CalibrationDataError(f"the engine {problem}; it takes {', '.join(map(repr, wanted))}")
    arrays = {spec.name: as_input(feeds[spec.name], spec) for spec in inputs}
    for name, array in arrays.items():
        if name in host_inputs and isinstance(array, DeviceInput):
            raise CalibrationDataError(
                f"input '{name}' decides shapes and is read on the host, but was given on the GPU; give a "
                "NumPy array"
            )
    return arrays


def as_input(value: Any, spec: TensorSpec) -> NDArray[Any] | DeviceInput:
    """Takes an array for an input, without a copy where it is contiguous, and never with a cast.

    Args:
        value: A NumPy array, what ``numpy.asarray`` takes, or an object with ``__cuda_array_interface__``.
            PyTorch's says nothing of its stream: work on a stream other than the default one must be done.
        spec: The input.

    Returns:
        The array, C-contiguous.

    Raises:
        CalibrationDataError: Type, rank or a fixed dimension is not the input's, or an array on the GPU is
            not contiguous.
    """
    interface = getattr(value, "__cuda_array_interface__", None)
    array: NDArray[Any] | DeviceInput
    if interface is not None:
        array = _device_input(value, interface, spec.name)
    else:
        array = np.require(value, requirements="C")
    if array.dtype != np.dtype(spec.dtype):
        raise CalibrationDataError(
            f"input '{spec.name}' takes {spec.dtype} but was given {array.dtype}; convert it with "
            f"astype('{spec.dtype}')"
        )
    if len(array.shape) != len(spec.shape) or any(
        isinstance(dim, int) and dim != size for dim, size in zip(spec.shape, array.shape, strict=True)
    ):
        wanted = "x".join("?" if not isinstance(dim, int) else str(dim) for dim in spec.shape) or "scalar"
        given = "x".join(map(str, array.shape)) or "scalar"
        raise CalibrationDataError(
            f"input '{spec.name}' takes shape {wanted} but was given {given}; reshape it"
        )
    return array


def _device_input(value: object, interface: Mapping[str, Any], name: str) -> DeviceInput:
    if interface.get("mask") is not None:
        raise CalibrationDataError(f"the GPU array for input '{name}' has a mask; give it without one")
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    strides = interface.get("strides")
    if (
        strides is not None
        and math.prod(shape)
        and tuple(strides) != _contiguous_strides(shape, dtype.itemsize)
    ):
        raise CalibrationDataError(
            f"the GPU array for input '{name}' is not contiguous; call its contiguous() or ascontiguousarray"
        )
    stream = interface.get("stream")
    if stream is not None and stream > _LEGACY_DEFAULT_STREAM:
        synchronize_stream(stream)
    return DeviceInput(int(interface["data"][0]), shape, dtype, value)


def _contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
