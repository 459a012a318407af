"""DLPack: arrays on the GPU taken from other libraries and given to them, without a copy and in stream order.

The structures are those of dlpack.h, version 0, which every library takes and gives.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import ml_dtypes
import numpy as np

_NAME = b"dltensor"
#: DLDeviceType.kDLCUDA; memory of :class:`Dlpack` objects with other types is no GPU memory.
CUDA = 2
# kDLCUDA and kDLCUDAManaged. Not kDLCUDAHost: page-locked memory is on the host, where arrays have no stream.
_ON_GPU = (CUDA, 13)

# DLDataTypeCode: signed and unsigned integer, floating point, bfloat16, bool; and FP8 E4M3.
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_BFLOAT16, _FLOAT8_E4M3FN = 4, 10


@runtime_checkable
class Dlpack(Protocol):
    """An array of any library that has DLPack's two methods."""

    def __dlpack__(self, *, stream: int | None = None) -> object:
        """A capsule, whose values are complete for what is queued on ``stream`` from now on."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """Type and index of the device."""
        ...


@dataclass(frozen=True)
class Imported:
    """An array that another library gave.

    Attributes:
        pointer: The device address of the first element.
        shape: The dimensions.
        dtype: The element type.
        contiguous: Whether the elements stand one after another.
        capsule: What keeps the memory allocated.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    contiguous: bool
    capsule: object


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("index", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_ManagedTensor))
_ManagedTensor._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_api = ctypes.pythonapi
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(
    ("PyCapsule_New", _api)
)
# The same functions for a capsule that is being destroyed, of which no reference may be made any more.
_is_valid_raw = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_get_pointer_raw = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)


def on_gpu(value: object) -> bool:
    """Whether a value is an array in a GPU's memory that DLPack can give."""
    return isinstance(value, Dlpack) and value.__dlpack_device__()[0] in _ON_GPU


def take(value: Dlpack, stream: int) -> Imported:
    """Takes an array of another library.

    Args:
        value: An array that :func:`on_gpu` is true for.
        stream: Handle of the stream that reads it; the other library makes it wait for the values.

    Returns:
        The array. Its capsule is not consumed: it gives the memory back when it is deleted.

    Raises:
        TypeError: NumPy has no such element type.
    """
    capsule = value.__dlpack__(stream=stream)
    if not _is_valid(capsule, _NAME):
        raise TypeError(f"the capsule of a {type(value).__name__} is of another version of DLPack")
    tensor = ctypes.cast(_get_pointer(capsule, _NAME), ctypes.POINTER(_ManagedTensor)).contents.tensor
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = [tensor.strides[axis] for axis in range(tensor.ndim)] if tensor.strides else None
    contiguous = is_contiguous(shape, strides)
    pointer = (tensor.data or 0) + tensor.byte_offset
    return Imported(pointer, shape, _numpy_dtype(tensor.dtype), contiguous, capsule)


def is_contiguous(shape: Sequence[int], strides: Sequence[int] | None, unit: int = 1) -> bool:
    """Whether the elements of an array stand one after another.

    Args:
        shape: The dimensions.
        strides: From one element to the next along each of them; None where the elements stand so.
        unit: What an element counts in ``strides``.
    """
    if strides is None or not math.prod(shape):
        return True
    pairs = enumerate(zip(shape, strides, strict=True))
    return all(size == 1 or stride == unit * math.prod(shape[axis + 1 :]) for axis, (size, stride) in pairs)


def give(pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: int, owner: object) -> object:
    """Makes a capsule of an array on the GPU.

    Args:
        pointer: The device address.
        shape: The dimensions of a C-contiguous array.
        dtype: The element type.
        device: Index of the GPU.
        owner: What keeps the memory allocated; it is held until the consumer, or the capsule, lets go.

    Returns:
        The capsule.

    Raises:
        BufferError: DLPack has no such element type.
    """
    key = next(_keys)
    sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    tensor = _Tensor(
        pointer, _Device(CUDA, device), len(shape), _data_type(dtype), ctypes.cast(sizes, _Sizes), None, 0
    )
    managed = _ManagedTensor(tensor, key, _delete)
    _given[key] = (managed, sizes, owner)
    capsule: object = _new(ctypes.addressof(managed), _NAME, _destroy)
    return capsule


_Sizes = ctypes.POINTER(ctypes.c_int64)
_keys = itertools.count(1)
#: What was given and not let go: key to the structures and what owns the memory.
_given: dict[int, tuple[_ManagedTensor, Any, object]] = {}


def _let_go(managed: Any) -> None:
    _given.pop(managed.contents.context, None)


def _destroyed(capsule: int) -> None:
    # A consumer renames the capsule, and calls the deleter itself.
    if _is_valid_raw(capsule, _NAME):
        pointer = _get_pointer_raw(capsule, _NAME)
        _let_go(ctypes.cast(pointer, ctypes.POINTER(_ManagedTensor)))


_delete = _Deleter(_let_go)
_destroy: Callable[[int], None] = _Destructor(_destroyed)
# References that nobody gives back, so that both and what they use outlast every capsule and every consumer's
# array: when the interpreter exits, the garbage collector may clear them first.
for _callback in (_delete, _destroy):
    _api.Py_IncRef(ctypes.py_object(_callback))


def _numpy_dtype(found: _DataType) -> np.dtype[Any]:
    code, bits, lanes = found.code, found.bits, found.lanes
    kinds = {number: kind for kind, number in _CODES.items()}
    dtype: np.dtype[Any]
    if (code, bits, lanes) == (_BFLOAT16, 16, 1):
        dtype = np.dtype(ml_dtypes.bfloat16)
    elif (code, bits, lanes) == (_FLOAT8_E4M3FN, 8, 1):
        dtype = np.dtype(ml_dtypes.float8_e4m3fn)
    elif lanes != 1 or code not in kinds or bits % 8:
        raise TypeError(f"NumPy has no type for DLPack's type {code} of {bits} bits and {lanes} lanes")
    else:
        dtype = np.dtype("?" if kinds[code] == "b" else f"{kinds[code]}{bits // 8}")
    return dtype


def _data_type(dtype: np.dtype[Any]) -> _DataType:
    special = {"bfloat16": _BFLOAT16, "float8_e4m3fn": _FLOAT8_E4M3FN}
    code = special.get(dtype.name, _CODES.get(dtype.kind))
    if code is None:
        raise BufferError(f"DLPack has no type for {dtype}")
    return _DataType(code, 8 * dtype.itemsize, 1)
