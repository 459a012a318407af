"""Models as messages and files, for ONNX Runtime, TensorRT and users, and the values that lie in other files.

Identifies a model by everything that decides what it computes, wherever its weights are stored.

Whoever wrote a model decides what it names, and may have been anyone. So what a tensor says of its values is
checked and read once, here. Everything after that has the values, and no reader sees what the model said.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import Message
from numpy.typing import NDArray

from calibrators.checks import FilePath
from calibrators.data.feeds import Array, NamedArrays
from calibrators.errors import ModelError
from calibrators.files import temporary_folder, write_atomically, written_together
from calibrators.host.session import map_arrays
from calibrators.host.weights import LARGE, LOCATION, LightModel
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph import weight_bytes

_ConvertedT = TypeVar("_ConvertedT", bytes, LightModel)

#: Bytes of weights that are stored in the model itself. Protobuf cannot serialize 2 GiB.
_LARGEST_INLINE = 1_800_000_000


def to_proto(graph_model: ir.Model) -> onnx.ModelProto:
    """Converts a model to one protobuf message, weights included.

    Raises:
        ModelError: The model is larger than protobuf's limit of 2 GiB.
    """
    if not fits_message(graph_model):
        raise ModelError(
            "the model is larger than 2 GiB and does not fit one message; save it to a file instead"
        )
    return ir.to_proto(graph_model)


@pause_garbage_collection()
def to_light(graph_model: ir.Model, *, used_up: bool = False) -> LightModel:
    """Converts a model for ONNX Runtime, without copying large weights.

    Args:
        graph_model: A model that fits a message (:func:`fits_message`). The result refers to its weights, so
            they must not change.
        used_up: Whether the model is needed no longer: it has no large weights afterwards.
    """
    graph_model, weights = graph_model if used_up else graph_model.clone(), {}
    for name, value in graph_model.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and tensor.dtype == ir.DataType.FLOAT and tensor.nbytes >= LARGE:
            weights[name] = np.ascontiguousarray(tensor.numpy())
            value.const_value = ir.ExternalTensor(
                LOCATION,
                None,
                None,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=name,
                doc_string=tensor.doc_string,
                metadata_props=dict(tensor.metadata_props),
            )
    return LightModel(ir.to_proto(graph_model), weights)


def fits_message(graph_model: ir.Model) -> bool:
    """Whether the model, weights included, can be one protobuf message."""
    return weight_bytes(graph_model) <= _LARGEST_INLINE


@pause_garbage_collection()
def save_model(graph_model: ir.Model, path: FilePath) -> Path:
    """Writes a model atomically; where it exceeds 2 GiB, its weights go to ``<path>.data`` beside it.

    Args:
        graph_model: The model.
        path: The file to write.

    Returns:
        ``path``.

    Raises:
        OutputError: The file cannot be written.
    """
    path = Path(path)
    if fits_message(graph_model):
        return write_atomically(path, to_light(graph_model).pieces())
    with written_together(path) as staged:
        ir.save(graph_model, staged(path), external_data=f"{path.name}.data")
    return path


def runnable(graph_model: ir.Model) -> contextlib.AbstractContextManager[bytes | Path]:
    """Serializes a model for ONNX Runtime and TensorRT; beyond 2 GiB, to a temporary folder.

    Args:
        graph_model: The model to run.

    Returns:
        What gives the serialized model, or the path of a file that exists until the block ends.
    """
    return _or_file(graph_model, lambda: to_proto(graph_model).SerializeToString())


def light_or_file(
    graph_model: ir.Model, *, used_up: bool = False
) -> contextlib.AbstractContextManager[LightModel | Path]:
    """Converts a model for ONNX Runtime as :func:`runnable` does, but without copying large weights.

    Args:
        graph_model: The model to run, to whose weights the result refers.
        used_up: Whether the model is needed no longer: it may have no large weights afterwards.
    """
    return _or_file(graph_model, lambda: to_light(graph_model, used_up=used_up))


@contextlib.contextmanager
def _or_file(graph_model: ir.Model, convert: Callable[[], _ConvertedT]) -> Iterator[_ConvertedT | Path]:
    """Gives the converted model; beyond 2 GiB, the path of a file that exists until the block ends."""
    if fits_message(graph_model):
        yield convert()
        return
    with temporary_folder("trtint8-model") as folder:
        yield save_model(graph_model, folder / "model.onnx")


def fingerprint(graph_model: ir.Model) -> str:
    """Computes the fingerprint of a graph and its weights.

    Args:
        graph_model: Any model.

    Returns:
        The SHA-256 of both, as 64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    graph, tensors = graph_model.graph, list[ir.TensorProtocol]()

    def add(*parts: object) -> None:
        digest.update("\x1f".join(map(str, parts)).encode() + b"\x1e")

    add(*(f"{domain}:{version}" for domain, version in sorted(graph_model.opset_imports.items())))
    for value in (*graph.inputs, *graph.outputs):
        add(value.name, value.dtype, value.shape)

    def add_nodes(container: ir.Graph | ir.Function) -> None:
        for node in ir.traversal.RecursiveGraphIterator(container):
            add(
                node.domain,
                node.op_type,
                *(v.name if v else "" for v in node.inputs),
                "->",
                *(v.name for v in node.outputs),
            )
            for name, attribute in sorted(node.attributes.items()):
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    add(name)
                    tensors.append(attribute.as_tensor())
                elif attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                    add_weights(attribute.as_graph())
                elif attribute.type != ir.AttributeType.GRAPHS:
                    add(name, attribute.value)

    def add_weights(part: ir.Graph) -> None:
        for name, value in sorted(part.initializers.items()):
            add(name, value.const_value is not None)
            if value.const_value is not None:
                tensors.append(value.const_value)

    add_nodes(graph)
    add_weights(graph)
    for identifier, function in sorted(graph_model.functions.items()):
        add(*identifier, *(value.name for value in (*function.inputs, *function.outputs)))
        add_nodes(function)
    # Most of the time goes into the weights, and hashing lets other threads run.
    for tensor_digest in map_arrays(_digest, tensors, sum(tensor.nbytes for tensor in tensors)):
        digest.update(tensor_digest)
    return digest.hexdigest()


def _digest(tensor: ir.TensorProtocol) -> bytes:
    digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape.numpy())}".encode())
    if tensor.dtype == ir.DataType.FLOAT:  # hashed in place, because ``tobytes`` copies
        digest.update(np.ascontiguousarray(tensor.numpy(), "<f4").reshape(-1).view(np.uint8).data)
    else:
        digest.update(tensor.tobytes())
    return digest.digest()


#: Field of a TensorProto with values of a type, for the types that do not stand in ``int32_data``.
_TYPED_FIELDS = {
    ir.DataType.FLOAT: "float_data",
    ir.DataType.COMPLEX64: "float_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.COMPLEX128: "double_data",
    ir.DataType.INT64: "int64_data",
    ir.DataType.UINT32: "uint64_data",
    ir.DataType.UINT64: "uint64_data",
}

#: Every field of a TensorProto that holds values.
_VALUE_FIELDS = ("raw_data", "int32_data", "string_data", *sorted(set(_TYPED_FIELDS.values())))

_COMPLEX = (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)

#: How a file with weights is opened: a named pipe does not wait for a writer, and a link in its place fails.
_OPEN = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


#: What the tensors of a model may come to that lie in files, in bytes: this, and so many times what the files
#: hold. Each byte of a file is part of one tensor, unless a model is made to fill memory.
_ROOM, _ROOM_GROWTH = 1 << 20, 4


@dataclass(frozen=True)
class _StoredValues:
    """Where the values of a tensor lie in a file.

    Attributes:
        path: The file, without links.
        offset: The first byte.
        length: How many bytes there are.
    """

    path: Path
    offset: int
    length: int


@dataclass(frozen=True, eq=False)
class StoredTensors:
    """The tensors of a model whose values lie in other files.

    Attributes:
        weights: The large ones of the main graph that NumPy has a type for: name to array. Those whose values
            lie at one place of a file have the same memory.
        others: Other large ones, which are few, and their bytes.
        files: The files.
    """

    weights: NamedArrays
    others: tuple[tuple[onnx.TensorProto, NDArray[np.uint8]], ...]
    files: tuple[Path, ...]

    def fill(self) -> None:
        """Writes the values of all tensors but the weights into the model's message."""
        for tensor, values in self.others:
            _fill(tensor, values)


def _fill(tensor: onnx.TensorProto, values: NDArray[np.uint8]) -> None:
    """Writes the values of a tensor into it."""
    tensor.ClearField("data_location")
    tensor.ClearField("external_data")
    tensor.raw_data = values.tobytes()


def check_stored_tensors(light: LightModel, name: str, path: Path | None) -> StoredTensors:
    """Checks the type of every constant tensor, and that as many bytes are stored as its shape needs.

    Args:
        light: The model. Its message is changed: no tensor names a file any longer, and those that are small
            hold their values. Its weights that are kept apart were checked when they were read.
        name: What to call the model in messages.
        path: The model's file, beside which files with weights lie; None where the model was not in a file.

    Returns:
        The large tensors whose values lie in other files.

    Raises:
        ModelError: A tensor is sparse, holds text or values of an unknown type, has too few or too many
            values, is there twice, or says in two ways where its values lie; or its file is missing, too
            short or not the model's. Names the tensor.
    """
    counts = Counter(tensor.name for tensor in light.message.graph.initializer)
    repeated = next((one for one, count in counts.items() if count > 1), None)
    if repeated is not None:
        raise ModelError(f"'{name}' holds the constant '{repeated}' twice; export the model again")
    with _Files(name, path) as files:
        return _read_stored(light, name, files)


def _read_stored(light: LightModel, name: str, files: _Files) -> StoredTensors:
    weights: dict[str, Array] = {}
    others: list[tuple[onnx.TensorProto, NDArray[np.uint8]]] = []
    for tensor, is_weight in _tensors(light.message, name):
        if is_weight and tensor.name in light.weights:
            continue
        place = f"the tensor '{tensor.name}' of '{name}'"
        record = _record(tensor, place)
        needed = _bytes_needed(tensor, place)
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            tensor.ClearField("external_data")
            if needed is not None:
                _check_inline(tensor, needed, place)
            continue
        stored = _stored_values(tensor, record, needed, place, files)
        is_weight = is_weight and ir.DataType(tensor.data_type).itemsize >= 1 and stored.length > LARGE
        values = files.read(stored, place, shared=is_weight)
        if len(values) <= LARGE:  # ONNX infers shapes from what such tensors hold
            _fill(tensor, values)
            continue
        del tensor.external_data[:]
        tensor.external_data.add(key="location", value=LOCATION)
        if is_weight:
            dtype = ir.DataType(tensor.data_type).numpy()
            weights[tensor.name] = values.view(dtype).reshape(tuple(tensor.dims))
        else:
            others.append((tensor, values))
    return StoredTensors(weights, tuple(others), files.paths)


def without_stored_tensors(message: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """A message that ONNX's checker, which would look for external data in files, takes for the model.

    Args:
        message: The model.
        name: What to call the model in messages.

    Returns:
        A copy, in which the tensors that do not lie in the message are empty.
    """
    found = onnx.ModelProto()
    found.CopyFrom(message)
    for tensor, _ in _tensors(found, name):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.dims[:] = [0]
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    return found


def _tensors(message: onnx.ModelProto, name: str) -> Iterator[tuple[onnx.TensorProto, bool]]:
    """Every tensor that stands anywhere in a model, and whether it is a constant of the main graph."""
    waiting: list[Any] = [message]
    while waiting:
        current = waiting.pop()
        if isinstance(current, onnx.TensorProto):
            yield current, False
            continue
        if isinstance(current, onnx.SparseTensorProto):
            raise ModelError(
                f"the tensor '{current.values.name}' of '{name}' is sparse, which is not supported; export "
                "the model with dense weights"
            )
        for field, value in current.ListFields():
            if current is message.graph and field.name == "initializer":
                yield from ((tensor, True) for tensor in value)
            elif field.message_type is not None:
                waiting.extend([value] if isinstance(value, Message) else value)


def _record(tensor: onnx.TensorProto, place: str) -> dict[str, str]:
    """What a tensor says of where its values lie.

    Of a key that is there twice, some readers take the first and others the last: what was checked would not
    be what is read.
    """
    found: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key in found:
            raise ModelError(
                f"{place} has the key '{entry.key[:80]}' twice in its external data; export the model again"
            )
        found[entry.key] = entry.value
    return found


def _bytes_needed(tensor: onnx.TensorProto, place: str) -> int | None:
    """Bytes of a tensor by its shape and type; None where ONNX's own checker refuses these."""
    if tensor.data_type == onnx.TensorProto.STRING:
        raise ModelError(f"{place} holds text, which TensorRT does not take; remove it from the model")
    try:
        bits = round(ir.DataType(tensor.data_type).itemsize * 8)
    except (ValueError, TypeError) as error:
        if tensor.data_type == onnx.TensorProto.UNDEFINED:
            return None
        raise ModelError(
            f"{place} has the element type {tensor.data_type}, which this installation does not know; update "
            "onnx, or export the model again"
        ) from error
    if any(dim < 0 for dim in tensor.dims):
        raise ModelError(
            f"{place} has the shape {list(tensor.dims)}, which no tensor has; export the model again"
        )
    return -(-math.prod(map(int, tensor.dims)) * bits // 8)


def _check_inline(tensor: onnx.TensorProto, needed: int, place: str) -> None:
    """Refuses a tensor in the message with more or fewer values than its shape has."""
    if tensor.HasField("raw_data"):
        if len(tensor.raw_data) != needed:
            raise ModelError(
                f"{place} holds {len(tensor.raw_data)} bytes, but its shape {list(tensor.dims)} needs "
                f"{needed}; export the model again"
            )
        return
    data_type = ir.DataType(tensor.data_type)
    stored = len(getattr(tensor, _TYPED_FIELDS.get(data_type, "int32_data")))
    # Types of fewer than 8 bits are packed into bytes.
    wanted = needed if data_type.itemsize < 1 else math.prod(tensor.dims)
    wanted *= 2 if data_type in _COMPLEX else 1
    if stored != wanted:
        raise ModelError(
            f"{place} holds {stored} values, but its shape {list(tensor.dims)} needs {wanted}; export the "
            "model again"
        )


def _stored_values(
    tensor: onnx.TensorProto, record: Mapping[str, str], needed: int | None, place: str, files: _Files
) -> _StoredValues:
    """Where the values of a tensor lie, after everything about that was checked."""
    if needed is None:
        raise ModelError(f"{place} has no element type; export the model again")
    if any(len(getattr(tensor, field)) for field in _VALUE_FIELDS):
        raise ModelError(f"{place} holds values, and says that they lie in a file; export the model again")
    path, size = files.find(record.get("location", ""))
    offset = _number(record, "offset", place) or 0
    length = _number(record, "length", place)
    if length is not None and length != needed:
        raise ModelError(
            f"{place} has a length of {length} bytes in '{path}', but its shape {list(tensor.dims)} needs "
            f"{needed}; export the model again"
        )
    stored = _StoredValues(path, offset, needed)
    if size < offset + needed:
        raise _truncated(stored, place, size)
    return stored


def _truncated(stored: _StoredValues, place: str, size: int) -> ModelError:
    return ModelError(
        f"'{stored.path}' is truncated: {place} ends at byte {stored.offset + stored.length}, the file at "
        f"{size}; copy it again"
    )


def _number(record: Mapping[str, str], key: str, place: str) -> int | None:
    """An offset or a length in bytes; None where it is left out."""
    text = record.get(key)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ModelError(
            f"{place} has the {key} '{text[:40]}' in its external data, which is not a number of bytes; "
            "export the model again"
        )
    return int(text)


class _Files(contextlib.ExitStack):
    """The files with a model's weights: each is opened once, and what was opened is checked.

    They are read, not mapped: who shortens a mapped file ends the process that uses it.

    Args:
        name: What to call the model in messages.
        path: The model's file; None where the model was not in a file.
    """

    def __init__(self, name: str, path: Path | None) -> None:
        super().__init__()
        self._name, self._path = name, path
        self._opened: dict[Path, tuple[BufferedReader, int]] = {}
        self._shared: dict[_StoredValues, NDArray[np.uint8]] = {}
        self._bytes = 0

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that were opened."""
        return tuple(self._opened)

    def find(self, location: str) -> tuple[Path, int]:
        """Opens the file that a tensor names.

        A model must not have other files of this machine read. Links are followed inside the model's folder.
        Where the model is a link itself, as in caches of downloads such as Hugging Face's, the folder that it
        leads to is the model's folder as well.

        Args:
            location: What the model says.

        Returns:
            The file, without links, and how many bytes it has.

        Raises:
            ModelError: There is no such file, or it is not in the model's folder.
        """
        if self._path is None:
            raise ModelError(
                f"'{self._name}' keeps weights in the file '{location[:200]}'; give the model's path, not "
                "its bytes"
            )
        named = Path(location)
        if "\\" in location or named.root or named.drive or ".." in named.parts:
            raise ModelError(
                f"'{self._name}' keeps weights in '{location[:200]}', which is not inside the model's "
                "folder; save the model with its weights beside it"
            )
        data = self._path.parent / location
        try:
            real = Path(os.path.realpath(data))
            if not any(real.is_relative_to(folder) for folder in self._folders):
                raise ModelError(
                    f"'{self._name}' keeps weights in '{location[:200]}', a link to '{real}' outside of the "
                    "model's folder; put a copy of that file in the link's place, or give the path of a "
                    "model that lies beside it"
                )
            if real not in self._opened:
                stream = self.enter_context(_opened(real))
                self._opened[real] = stream, os.fstat(stream.fileno()).st_size
        except PermissionError as error:
            raise ModelError(
                f"'{self._name}' keeps weights in '{data}', which cannot be read: {error.strerror}"
            ) from error
        except (OSError, ValueError) as error:  # also of a name that no file can have
            raise ModelError(
                f"'{self._name}' keeps weights in '{str(data)[:200]}', and there is no such file; put it "
                "beside the model"
            ) from error
        return real, self._opened[real][1]

    @cached_property
    def _folders(self) -> tuple[str, ...]:
        """The folder that the user named, and the one in which the model lies, both without links."""
        assert self._path is not None
        return os.path.realpath(self._path.parent), str(Path(os.path.realpath(self._path)).parent)

    def read(self, stored: _StoredValues, place: str, *, shared: bool) -> NDArray[np.uint8]:
        """Reads the bytes of a tensor.

        Args:
            stored: Where they are.
            place: What to call the tensor in messages.
            shared: Whether all that are read of this place so may have the same memory.

        Raises:
            ModelError: The file has become shorter, or the tensors come to much more than their files hold.
        """
        if shared and stored in self._shared:
            return self._shared[stored]
        self._bytes += stored.length
        most = _ROOM + _ROOM_GROWTH * sum(size for _, size in self._opened.values())
        if self._bytes > most:
            raise ModelError(
                f"the tensors of '{self._name}' lie on each other in '{stored.path}', and come to more than "
                f"{most:,} bytes; export the model again"
            )
        stream, _ = self._opened[stored.path]
        values = np.empty(stored.length, np.uint8)
        stream.seek(stored.offset)
        count = stream.readinto(values.data)
        if count < stored.length:
            raise _truncated(stored, place, stored.offset + count)
        values.flags.writeable = False
        if shared:
            self._shared[stored] = values
        return values


def _opened(path: Path) -> BufferedReader:
    """Opens a file with weights.

    Raises:
        OSError: There is no such file, or a link has taken the place of something on the way to it.
    """
    stream = os.fdopen(os.open(path, _OPEN), "rb")
    opened = os.fstat(stream.fileno())
    # What was opened is looked at, and not only what was there before.
    if (
        not stat.S_ISREG(opened.st_mode)
        or os.path.realpath(path) != str(path)
        or not os.path.samestat(opened, path.lstat())
    ):
        stream.close()
        raise FileNotFoundError
    return stream
