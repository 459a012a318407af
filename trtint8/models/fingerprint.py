"""Identifies a model by everything that decides what it computes, wherever its weights are stored."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx_ir as ir

from calibrators.host.threads import map_arrays


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
