"""Arrays that go into an inference and come out of it, on the host or on the GPU, from any library.

Outputs may stay on the GPU, for any library to take without a copy, or go into arrays that the caller gives.
Streams may be those of other libraries.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from calibrators.cuda import Buffer, Device
from calibrators.cuda.dlpack import CUDA, Dlpack, give, is_contiguous, on_gpu, take
from calibrators.data.feeds import Array, NamedArrays, fits
from calibrators.data.inputs import Shape, shape_text
from calibrators.errors import CalibrationDataError, in_one_line, such_as
from trtint8.engine.file import TensorSpec

#: The alignment of GPU addresses that TensorRT needs, in bytes.
_ALIGNMENT = 256

# The first version of the array interface that tells a stream.
_TELLS_STREAM = 3

#: An array on the host, of any shape and element type.
HostArray: TypeAlias = np.ndarray[Shape, np.dtype[np.generic]]


class CudaArray(Protocol):
    """An array on the GPU of any library, such as a tensor of PyTorch or an array of CuPy."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, object]:
        """Address, shape and element type (Numba documentation, "CUDA Array Interface")."""
        ...


#: What an engine is fed: input name to array.
Feeds: TypeAlias = Mapping[str, HostArray | CudaArray | Dlpack]


@dataclass(frozen=True)
class DeviceInput:
    """An array on the GPU that another library owns.

    Attributes:
        pointer: The device address of the array.
        shape: The dimensions of the array.
        dtype: The element type.
        owner: The object that keeps the memory allocated.
        producer: Handle of the stream whose work has to be done before the values are complete; None where
            they are complete, or where the stream that reads them waits already.
        told: Whether the array itself told its stream, so that results are expected on it.
        source: The other library's array where it tells no stream, but makes the one that reads it wait
            whenever it is asked for a capsule (DLPack); None otherwise.
    """

    pointer: int
    shape: Shape
    dtype: np.dtype[Any]
    owner: object
    producer: int | None = None
    told: bool = False
    source: Dlpack | None = None

    @property
    def nbytes(self) -> int:
        """The size of the array in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def aligned(self) -> bool:
        """Whether TensorRT can read the array in place: it is not empty, and its address is aligned."""
        return is_aligned(self.pointer)


def is_aligned(pointer: int) -> bool:
    """Whether TensorRT can use a device address; 0 is that of an empty array."""
    return pointer != 0 and pointer % _ALIGNMENT == 0


def as_inputs(
    feeds: Mapping[str, Any], inputs: Sequence[TensorSpec], host_inputs: Set[str], stream: int
) -> dict[str, Array | DeviceInput]:
    """Checks and converts one array per input, see :func:`as_input`.

    Args:
        feeds: Input name to array.
        inputs: The engine's inputs.
        host_inputs: Names of the inputs that TensorRT reads on the host.
        stream: Handle of the stream that reads the arrays.

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
        raise CalibrationDataError(f"the engine {problem}; it takes {such_as(wanted)}")
    arrays = {spec.name: as_input(feeds[spec.name], spec, stream) for spec in inputs}
    for name, array in arrays.items():
        if name in host_inputs and isinstance(array, DeviceInput):
            raise CalibrationDataError(
                f"input '{name}' decides shapes and is read on the host, but was given on the GPU; give a "
                "NumPy array"
            )
    return arrays


def as_input(value: Any, spec: TensorSpec, stream: int, *, kind: str = "input") -> Array | DeviceInput:
    """Checks an array for an input; copies it where it is not contiguous, and never casts it.

    Args:
        value: A NumPy array, anything that ``numpy.asarray`` takes, or an array on the GPU: an object with
            ``__dlpack__``, as PyTorch and CuPy have it, or with ``__cuda_array_interface__``.
        spec: The input.
        stream: Handle of the stream that reads the array. By ``__dlpack__`` the other library makes it wait
            for the values.
        kind: What errors call it: ``input`` or ``output``.

    Returns:
        The array, C-contiguous.

    Raises:
        CalibrationDataError: The array's dtype, rank or a static dimension is not that of the input, it does
            not become a NumPy array, or an array on the GPU is not contiguous or cannot be taken.
    """
    if getattr(value, "requires_grad", False):
        value = value.detach()
    array: Array | DeviceInput
    place = f"{kind} '{spec.name}'"
    if isinstance(value, np.ndarray):
        array = np.require(value, requirements="C")
    else:
        array = _of_other_library(value, place, stream)
    if array.dtype != np.dtype(spec.dtype):
        raise CalibrationDataError(
            f"{place} takes {spec.dtype} but was given {array.dtype}; convert it with astype('{spec.dtype}')"
        )
    if len(array.shape) != len(spec.shape) or not fits(array.shape, spec.shape):
        wanted = shape_text([dim if isinstance(dim, int) else None for dim in spec.shape])
        raise CalibrationDataError(
            f"{place} takes shape {wanted} but was given {shape_text(array.shape)}; reshape it"
        )
    return array


def _of_other_library(value: Any, place: str, stream: int) -> Array | DeviceInput:
    try:
        interface = getattr(value, "__cuda_array_interface__", None)
    except Exception:  # noqa: BLE001 - of any library, for types that the interface cannot name
        interface = None
    if interface is not None and interface.get("stream") is not None:
        # The array tells its stream, on which the caller expects the results as well. DLPack does not.
        return _device_input(value, interface, place)
    if on_gpu(value):
        return _taken(value, place, stream)
    if interface is not None:
        return _device_input(value, interface, place)
    try:
        array: Array = np.require(value, requirements="C")
    except Exception as error:  # of any library, as for tensors of PyTorch in BF16
        raise CalibrationDataError(
            f"a {type(value).__name__} for {place} does not become a NumPy array "
            f"({in_one_line(error)}); give a NumPy array"
        ) from error
    return array


def _taken(value: Dlpack, place: str, stream: int) -> DeviceInput:
    try:
        taken = take(value, stream)
    except (TypeError, BufferError, RuntimeError) as error:
        raise CalibrationDataError(
            f"the GPU array for {place} cannot be taken ({error}); give one that DLPack can describe"
        ) from error
    if not taken.contiguous:
        raise _not_contiguous(place)
    return DeviceInput(taken.pointer, taken.shape, taken.dtype, taken.capsule, source=value)


def _device_input(value: object, interface: Mapping[str, Any], place: str) -> DeviceInput:
    if interface.get("mask") is not None:
        raise CalibrationDataError(f"the GPU array for {place} has a mask; give it without one")
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    if not is_contiguous(shape, interface.get("strides"), dtype.itemsize):
        raise _not_contiguous(place)
    stream = interface.get("stream")
    told = stream is not None
    if interface.get("version", 0) < _TELLS_STREAM and not told:
        # What was queued last may be on any stream; the default one is what libraries use unless asked.
        stream = _LEGACY_DEFAULT
    return DeviceInput(int(interface["data"][0]), shape, dtype, value, stream, told)


def _not_contiguous(place: str) -> CalibrationDataError:
    return CalibrationDataError(
        f"the GPU array for {place} is not contiguous; call its contiguous() or ascontiguousarray"
    )


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """An array on the GPU, which ``torch.from_dlpack`` and ``cupy.asarray`` take without a copy.

    Attributes:
        shape: The dimensions of the array.
        dtype: The element type.
        buffer: The C-contiguous memory, which is freed with the array.
        device: The GPU that holds the memory.
        stream: Handle of the stream whose work, up to the inference, has to be done before the values are
            complete; None where they are complete.
    """

    shape: Shape
    dtype: np.dtype[Any]
    buffer: Buffer
    device: Device
    stream: int | None = None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of Numba's CUDA array interface.

        Raises:
            AttributeError: The element type is BF16 or FP8, which that interface cannot name; DLPack can.
        """
        if self.dtype.kind == "V":
            raise AttributeError(f"the CUDA array interface has no type for {self.dtype}; use DLPack")
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.buffer.pointer, False),
            "strides": None,
            "stream": self.stream,
            "version": 3,
        }

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
        **_options: object,
    ) -> object:
        """A DLPack capsule of this memory; ``stream``, on which it is going to be used, waits for the values.

        Raises:
            BufferError: A copy is asked for, or an array on another device.
        """
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(
                "an output on the GPU gives its own memory and no copy; take it without copy and device, and "
                "copy it then, or call its numpy()"
            )
        # -1 says that the consumer takes care of the order itself.
        if self.stream is not None and stream not in (-1, self.stream):
            with self.device.active():
                self.device.wait_for_stream(stream or _LEGACY_DEFAULT, self.stream)
        return give(self.buffer.pointer, self.shape, self.dtype, self.device.ordinal, self)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's type of device, CUDA, and the GPU's index."""
        return CUDA, self.device.ordinal

    def numpy(self) -> Array:
        """Copies the array to the host."""
        array = np.empty(self.shape, self.dtype)
        with self.device.active():
            stream = self.device.new_stream()
            if self.stream is not None:
                self.device.wait_for_stream(stream.handle, self.stream)
            self.device.download(array.ctypes.data, self.buffer.pointer, array.nbytes, stream.handle)
            stream.synchronize()
            stream.free()
        return array

    def free(self) -> None:
        """Frees the memory now rather than when the array is garbage-collected."""
        with self.device.active():
            self.buffer.free()

    def __del__(self) -> None:
        # When the interpreter exits, the driver may have been unloaded already.
        with contextlib.suppress(Exception):
            self.free()


#: Output name to the array that it is written to.
Outputs: TypeAlias = Mapping[str, HostArray | CudaArray | Dlpack]


@dataclass(frozen=True)
class Targets:
    """Checked arrays that outputs are written to.

    Attributes:
        host: Output name to a NumPy array.
        device: Output name to an array on the GPU.
    """

    host: NamedArrays
    device: Mapping[str, DeviceInput]

    def check(self, name: str, shape: Shape) -> None:
        """Refuses an array that has not the shape of its output.

        Raises:
            CalibrationDataError: The shapes differ.
        """
        target = self.host.get(name, self.device.get(name))
        if target is not None and target.shape != shape:
            raise CalibrationDataError(
                f"output '{name}' has shape {shape_text(shape)} and the array for it "
                f"{shape_text(target.shape)}; give an array of the output's shape"
            )


def as_targets(outputs: Mapping[str, Any], specs: Sequence[TensorSpec], stream: int) -> Targets:
    """Checks arrays that outputs are to be written to.

    Args:
        outputs: Output name to array, writable and C-contiguous.
        specs: The engine's outputs.
        stream: Handle of the stream that writes.

    Returns:
        The arrays.

    Raises:
        CalibrationDataError: The engine has no such output, or an array has another dtype or rank, cannot be
            written to, or is not contiguous.
    """
    known = {spec.name: spec for spec in specs}
    host: dict[str, Array] = {}
    device: dict[str, DeviceInput] = {}
    for name, value in outputs.items():
        if name not in known:
            raise CalibrationDataError(f"the engine has no output '{name}'; it has {such_as(known)}")
        if isinstance(value, np.ndarray) and not (value.flags.c_contiguous and value.flags.writeable):
            raise CalibrationDataError(
                f"the array for output '{name}' is read-only or not contiguous; give one from numpy.empty"
            )
        array = as_input(value, known[name], stream, kind="output")
        if isinstance(array, DeviceInput):
            device[name] = array
        elif array is value:
            host[name] = array
        else:
            raise CalibrationDataError(
                f"a {type(value).__name__} for output '{name}' cannot be written to; give a NumPy array or "
                "an array on the GPU"
            )
    return Targets(host, device)


def addresses(made: Mapping[str, DeviceArray], given: Mapping[str, DeviceInput]) -> dict[str, int]:
    """Output name to device address, of arrays that were made for outputs and of those that were given."""
    return {
        **{name: array.buffer.pointer for name, array in made.items()},
        **{name: target.pointer for name, target in given.items()},
    }


@runtime_checkable
class CudaStream(Protocol):
    """A stream that follows the protocol of cuda.core, as those of new CuPy do."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """The version of the protocol, 0, and the handle."""
        ...


@runtime_checkable
class TorchStream(Protocol):
    """A stream of PyTorch."""

    @property
    def cuda_stream(self) -> int:
        """The handle."""
        ...


@runtime_checkable
class CupyStream(Protocol):
    """A stream of CuPy."""

    @property
    def ptr(self) -> int:
        """The handle."""
        ...


@runtime_checkable
class PycudaStream(Protocol):
    """A stream of PyCUDA, or of :mod:`calibrators.cuda`."""

    @property
    def handle(self) -> int:
        """The handle."""
        ...


#: A stream of any library, or its handle; 0 and 1 are the legacy default stream.
StreamLike: TypeAlias = int | CudaStream | TorchStream | CupyStream | PycudaStream

#: Number of the legacy default stream in the array interface, and its handle in the driver.
_LEGACY_DEFAULT = 1


def stream_handle(stream: StreamLike) -> int:
    """The handle of a stream of any library.

    Args:
        stream: A stream or its handle.

    Raises:
        CalibrationDataError: It is none.
    """
    handle: object
    if isinstance(stream, int):
        handle = stream
    elif isinstance(stream, CudaStream):
        handle = stream.__cuda_stream__()[1]
    else:
        names = ("cuda_stream", "ptr", "handle")
        handle = next((getattr(stream, name) for name in names if hasattr(stream, name)), None)
    if not isinstance(handle, int) or handle < 0:
        raise CalibrationDataError(
            f"a {type(stream).__name__} is no CUDA stream; give one of PyTorch, CuPy or PyCUDA, or a handle"
        )
    return handle or _LEGACY_DEFAULT
