"""Models as messages and files, for ONNX Runtime, TensorRT and users."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from calibrators.errors import ModelError
from calibrators.files import write_atomically, written_together
from calibrators.host.weights import LARGE, LOCATION, LightModel
from trtint8.models.garbage_collection import pause_garbage_collection

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
def save_model(graph_model: ir.Model, path: str | os.PathLike[str]) -> Path:
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


@contextlib.contextmanager
def runnable(graph_model: ir.Model) -> Iterator[bytes | Path]:
    """Serializes a model for ONNX Runtime and TensorRT; beyond 2 GiB, to a temporary folder.

    Args:
        graph_model: The model to run.

    Yields:
        The serialized model, or the path of a file that exists until the block ends.
    """
    if fits_message(graph_model):
        yield to_proto(graph_model).SerializeToString()
        return
    with _temporary_file(graph_model) as path:
        yield path


@contextlib.contextmanager
def light_or_file(graph_model: ir.Model, *, used_up: bool = False) -> Iterator[LightModel | Path]:
    """Converts a model for ONNX Runtime as :func:`runnable` does, but without copying large weights.

    Args:
        graph_model: The model to run.
        used_up: Whether the model is needed no longer: it may have no large weights afterwards.

    Yields:
        The model, which refers to the weights of ``graph_model``; beyond 2 GiB, the path of a file that
        exists until the block ends.
    """
    if fits_message(graph_model):
        yield to_light(graph_model, used_up=used_up)
        return
    with _temporary_file(graph_model) as path:
        yield path


@contextlib.contextmanager
def _temporary_file(graph_model: ir.Model) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="trtint8-") as folder:
        yield save_model(graph_model, Path(folder) / "model.onnx")


def weight_bytes(graph_model: ir.Model) -> int:
    """How many bytes the constants of a model's main graph have."""
    values = graph_model.graph.initializers.values()
    return sum(value.const_value.nbytes for value in values if value.const_value is not None)
