"""Checks that a model's files hold what its tensors declare: nothing reads values before that is sure."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from calibrators.errors import ModelError
from calibrators.host.weights import LOCATION, LightModel

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

_COMPLEX = (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)


def check_stored_tensors(light: LightModel, name: str, path: Path | None) -> bool:
    """Checks the type of every constant tensor, and that as many bytes are stored as its shape needs.

    Args:
        light: The model. Its weights that are kept apart were checked when they were read.
        name: What to call the model in messages.
        path: The model's file, beside which files with weights lie; None where the model was not in a file.

    Returns:
        Whether weights are stored in other files.

    Raises:
        ModelError: A tensor is sparse, holds text or values of an unknown type, has too few or too many
            values, or its file is missing or too short; names the tensor.
    """
    graph = light.message.graph
    if graph.sparse_initializer:
        raise ModelError(
            f"the tensor '{graph.sparse_initializer[0].values.name}' of '{name}' is sparse, which is not "
            "supported; export the model with dense weights"
        )
    has_external_data = False
    for tensor in onnx.external_data_helper._get_all_tensors(light.message):
        external = tensor.data_location == onnx.TensorProto.EXTERNAL
        if external and tensor.name in light.weights and _location(tensor) == LOCATION:
            continue
        place = f"the tensor '{tensor.name}' of '{name}'"
        needed = _bytes_needed(tensor, place)
        if external:
            has_external_data = True
            _check_external(tensor, needed, place, name, path)
        elif needed is not None:
            _check_inline(tensor, needed, place)
    return has_external_data


def without_stored_tensors(message: onnx.ModelProto) -> onnx.ModelProto:
    """A message that ONNX's checker, which refuses files that are links, takes for the model.

    Args:
        message: The model; it is changed.

    Returns:
        The model, in which the tensors that lie in other files are empty.
    """
    for tensor in _stored(message):
        tensor.dims[:] = [0]
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    return message


def name_files(light: LightModel, folder: Path) -> None:
    """Has weights in other files name these by their real places, which onnx-ir reads without looking.

    It refuses links that lead out of the model's folder, and files with several hard links, as tools that
    share files between folders make them.

    Args:
        light: The model, checked by :func:`check_stored_tensors`; its message is changed.
        folder: The model's folder.
    """
    for tensor in _stored(light.message):
        if not (tensor.name in light.weights and _location(tensor) == LOCATION):
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = os.path.realpath(folder / entry.value)


def _stored(message: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The constant tensors of a model whose values are not in the message."""
    for tensor in onnx.external_data_helper._get_all_tensors(message):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor


def _location(tensor: onnx.TensorProto) -> str:
    """Which file a tensor names; empty where it names none."""
    return next((str(entry.value) for entry in tensor.external_data if entry.key == "location"), "")


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


def _check_external(
    tensor: onnx.TensorProto, needed: int | None, place: str, name: str, path: Path | None
) -> None:
    """Refuses a tensor whose values are not where it says that they are."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = _location(tensor)
    if path is None:
        raise ModelError(
            f"'{name}' keeps weights in the file '{location}'; give the model's path, not its bytes"
        )
    # Whoever wrote the model decides what it names, and may have been anyone: it must not have other files of
    # this machine read. A symbolic link in the folder is followed, wherever it leads, because a model cannot
    # make one: caches of downloads, such as Hugging Face's, consist of links.
    if Path(location).is_absolute() or ".." in Path(location).parts:
        raise ModelError(
            f"'{name}' keeps weights in '{location[:200]}', which is not inside the model's folder; save "
            "the model with its weights beside it"
        )
    data = path.parent / location
    try:
        size = data.stat().st_size if data.is_file() else None
    except (OSError, ValueError):  # a name that no file can have
        size = None
    if size is None:
        raise ModelError(
            f"'{name}' keeps weights in '{str(data)[:200]}', and there is no such file; put it beside "
            "the model"
        )
    offset = _external_number(entries, "offset", place)
    length = _external_number(entries, "length", place)
    if needed is not None and length is not None and length != needed:
        raise ModelError(
            f"{place} has a length of {length} bytes in '{data}', but its shape {list(tensor.dims)} needs "
            f"{needed}; export the model again"
        )
    end = (offset or 0) + (length if length is not None else needed or 0)
    if size < end:
        raise ModelError(
            f"'{data}' is truncated: {place} ends at byte {end}, the file at {size}; copy it again"
        )


def _external_number(entries: dict[str, str], key: str, place: str) -> int | None:
    """An offset or a length in bytes; None where it is left out."""
    text = entries.get(key)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ModelError(
            f"{place} has the {key} '{text[:40]}' in its external data, which is not a number of bytes; "
            "export the model again"
        )
    return int(text)
