"""Models whose large weights are kept beside the message that declares them.

Protobuf copies every byte whenever a message is parsed, changed or serialized. Without its weights a message
costs next to nothing to copy; the weights are copied once, out of the file, and ONNX Runtime uses them in the
memory that they were copied to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from calibrators import records
from calibrators.data.feeds import Float32s

#: What the message says of a weight's values: they are external, in a file that does not exist.
LOCATION = "in memory"

#: Bytes from which a weight is worth being kept apart.
LARGE = 1 << 12

_GRAPH = onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_INITIALIZER = onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number
_PROPERTIES = onnx.ModelProto.DESCRIPTOR.fields_by_name["metadata_props"].number
_RAW_DATA = onnx.TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number

#: A part of a serialized message.
_Piece: TypeAlias = bytes | memoryview


@dataclass(frozen=True, eq=False)
class LightModel:
    """A model in two parts.

    Attributes:
        message: The model; its large float32 initializers have type and shape, but no values.
        weights: The values by name, read-only.
    """

    message: onnx.ModelProto
    weights: Mapping[str, Float32s]

    @classmethod
    def read(cls, path: Path) -> LightModel:
        """Reads a model's file.

        Raises:
            OSError: The file cannot be read.
            google.protobuf.message.DecodeError: It holds no model, or is truncated.
        """
        with records.open_file(path) as file:
            return cls.parse(file.read())

    @classmethod
    def parse(cls, data: bytes) -> LightModel:
        """Reads a serialized model.

        Args:
            data: The model; not needed any more afterwards.

        Raises:
            google.protobuf.message.DecodeError: It is no such thing, or is truncated.
        """
        weights: dict[str, Float32s] = {}

        def light_graph(graph: memoryview) -> list[_Piece]:
            return _rewritten(graph, _INITIALIZER, lambda tensor: [_declared(tensor, weights)])

        message = onnx.ModelProto()
        message.ParseFromString(b"".join(_rewritten(memoryview(data), _GRAPH, light_graph)))
        return cls(message, weights)

    def pieces(self) -> list[_Piece]:
        """Serializes the model, weights included, without copying these.

        Returns:
            The pieces of the serialized model, in order; some lie in the memory of the weights.
        """

        def whole_graph(graph: memoryview) -> list[_Piece]:
            return _rewritten(graph, _INITIALIZER, lambda tensor: _filled(tensor, self.weights))

        return _rewritten(memoryview(self.message.SerializeToString()), _GRAPH, whole_graph)

    def used(self) -> LightModel:
        """The model without the weights that nothing reads.

        ONNX Runtime removes them before it takes their values, and misses them then.
        """
        graph = self.message.graph
        # One that is listed as an input stays, with its value.
        unused = self.weights.keys() - {value.name for value in (*graph.input, *graph.output)}
        for node in graph.node:
            unused.difference_update(node.input)
        # Few models have any left, and only of these all attributes are looked at.
        if not unused or not (unused := unused.difference(*map(names_read, graph.node))):
            return self
        message = onnx.ModelProto()
        message.CopyFrom(self.message)
        kept = [one for one in message.graph.initializer if one.name not in unused]
        del message.graph.initializer[:]
        message.graph.initializer.extend(kept)
        return LightModel(message, {name: self.weights[name] for name in self.weights if name not in unused})


#: The longest property that is read, in bytes.
_LONGEST_PROPERTY = 1 << 20


def properties(stream: BinaryIO) -> Iterator[onnx.StringStringEntryProto]:
    """Gives the properties of a serialized model, past all other fields.

    Raises:
        google.protobuf.message.DecodeError: It is no model, or is truncated.
    """
    for key, value, end in _fields(_Stored(stream)):
        stream.seek(key)
        if stream.read(1) == bytes([_PROPERTIES << 3 | _LENGTH]) and end - value <= _LONGEST_PROPERTY:
            stream.seek(value)
            yield onnx.StringStringEntryProto.FromString(stream.read(end - value))


class _Stored:
    """The bytes of a file, which are read one by one."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._size = stream, stream.seek(0, os.SEEK_END)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int) -> int:
        self._stream.seek(place)
        return self._stream.read(1)[0]


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node and the graphs in it read; some may be of those graphs themselves."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            yield from (output.name for output in graph.output)
            for inner in graph.node:
                yield from names_read(inner)


def _declared(tensor: memoryview, weights: dict[str, Float32s]) -> bytes | memoryview:
    """A serialized initializer without its values, which are added to the weights, where that is worth it."""
    if len(tensor) < LARGE:
        return tensor
    values: list[memoryview] = []

    def take(raw: memoryview) -> list[_Piece]:
        values.append(raw)
        return []

    declared = onnx.TensorProto.FromString(b"".join(_rewritten(tensor, _RAW_DATA, take)))
    floats = declared.data_type == onnx.TensorProto.FLOAT and len(values) == 1 and len(values[0]) >= LARGE
    elsewhere = declared.data_location == onnx.TensorProto.EXTERNAL or len(declared.external_data) > 0
    # What is invalid stays as it is: whoever reads it will say so.
    size = 4 * np.prod(declared.dims, dtype=np.int64)
    if not floats or elsewhere or len(values[0]) != size or declared.name in weights:
        return tensor
    # Copied to where floats may lie: a message has no alignment.
    array = np.frombuffer(values[0], "<f4").reshape(tuple(declared.dims)).copy()
    array.flags.writeable = False
    weights[declared.name] = array
    declared.ClearField("raw_data")
    declared.data_location = onnx.TensorProto.EXTERNAL
    declared.external_data.add(key="location", value=LOCATION)
    found: bytes = declared.SerializeToString()
    return found


def _filled(tensor: memoryview, weights: Mapping[str, Float32s]) -> list[_Piece]:
    """A serialized initializer with its values, in pieces: the reverse of :func:`_declared`."""
    declared = onnx.TensorProto.FromString(bytes(tensor))
    if declared.name not in weights or declared.data_location != onnx.TensorProto.EXTERNAL:
        return [tensor]
    declared.ClearField("data_location")
    declared.ClearField("external_data")
    values = weights[declared.name].data.cast("B")
    return [declared.SerializeToString(), bytes([_RAW_DATA << 3 | _LENGTH]), _varint(len(values)), values]


# Protobuf's wire format: https://protobuf.dev/programming-guides/encoding. A message is a sequence of fields,
# each a key (field number and how the value is written) and a value. ------------------------------------

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


def _rewritten(
    message: memoryview, number: int, change: Callable[[memoryview], list[_Piece]]
) -> list[_Piece]:
    """A serialized message with other contents in all fields of a number, in pieces."""
    pieces: list[_Piece] = []
    for key, value, end in _fields(message):
        if message[key] == number << 3 | _LENGTH:  # numbers below 16 have a key of one byte
            contents = change(message[value:end])
            pieces += [message[key : key + 1], _varint(sum(map(len, contents))), *contents]
        else:
            pieces.append(message[key:end])
    return pieces


def _fields(message: memoryview | _Stored) -> Iterator[tuple[int, int, int]]:
    """Where each field begins, where its value does (its contents, where it has a length) and ends."""
    position = 0
    while position < len(message):
        key, value = _read_varint(message, position)
        kind = key & 7
        if kind == _LENGTH:
            length, value = _read_varint(message, value)
            end = value + length
        elif kind == _VARINT:
            _, end = _read_varint(message, value)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            end = value + (8 if kind == _EIGHT_BYTES else 4)
        else:
            raise DecodeError(f"a field of kind {kind}")
        if end > len(message):
            raise DecodeError("a field reaches beyond the end")
        yield position, value, end
        position = end


def _read_varint(message: memoryview | _Stored, position: int) -> tuple[int, int]:
    """A number of seven bits per byte, the lowest first, and where it ends."""
    number = shift = 0
    while position < len(message) and shift < 64:
        byte = message[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number, position
    raise DecodeError("a number without an end")


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
