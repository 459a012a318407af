"""Models as messages and files, for ONNX Runtime, TensorRT and users.

Identifies a model by everything that decides what it computes, wherever its weights are stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from calibrators.errors import ModelError
from calibrators.files import temporary_folder, write_atomically, written_together
from calibrators.host.session import map_arrays
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
    with temporary_folder("trtint8-model") as folder:
        yield save_model(graph_model, folder / "model.onnx")


def weight_bytes(graph_model: ir.Model) -> int:
    """How many bytes the constants of a model's main graph have."""
    values = graph_model.graph.initializers.values()
    return sum(value.const_value.nbytes for value in values if value.const_value is not None)


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
