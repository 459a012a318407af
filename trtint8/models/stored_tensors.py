"""Checks that a model's file holds what its tensors declare: nothing reads values before that is sure."""

from __future__ import annotations

import math
import re
from pathlib import Path

import onnx
import onnx_ir as ir

from calibrators.errors import ModelError
from calibrators.host.weights import LightModel

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
        if external and tensor.name in light.weights:
            continue
        place = f"the tensor '{tensor.name}' of '{name}'"
        needed = _bytes_needed(tensor, place)
        if external:
            has_external_data = True
            _check_external(tensor, needed, place, name, path)
        elif needed is not None:
            _check_inline(tensor, needed, place)
    return has_external_data


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
    location = entries.get("location", "")
    if path is None:
        raise ModelError(
            f"'{name}' keeps weights in the file '{location}'; give the model's path, not its bytes"
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
