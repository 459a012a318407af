"""The shapes of a network's tensors as far as they do not depend on the data, and where its samples lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from trtint8.models.passes.fold_constants import FoldConstantsPass
from trtint8.sensitivity.gradients.writer import attributes_of, static_shape

#: The name of an axis along which the samples of a batch lie.
BATCH = "trtint8_batch"

#: Two batch sizes with which shapes are inferred: what differs depends on the batch.
_SIZES = (3, 5)


def batch_is_free(graph_model: ir.Model) -> bool:
    """Whether every input takes any number of samples along its first axis."""
    graph = graph_model.graph
    inputs = [value for value in graph.inputs if value.name not in graph.initializers]
    return all((static_shape(value) or [0])[:1] and not _first_size(value) for value in inputs)


def infer_shapes(graph_model: ir.Model, sizes: Mapping[str, Sequence[int]] | None = None) -> None:
    """Sets the shapes of all tensors; a first axis of samples is named ``BATCH``.

    Shapes are inferred for two batch sizes. A dimension that is the same in both is a number; one that is the
    batch size is named ``BATCH``, and others that differ stay unknown.

    Args:
        graph_model: The model; shapes in it are replaced. Where its batch size is fixed, nothing is changed.
        sizes: Input name to the shape of a batch, whose first size does not count, for inputs that leave
            other sizes open.
    """
    if not batch_is_free(graph_model):
        return
    inferred = [_inferred(graph_model, size, sizes or {}) for size in _SIZES]
    graph = graph_model.graph
    for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
        shapes = [shapes.get(value.name or "") for shapes in inferred]
        if any(shape is None for shape in shapes) or len({len(shape or []) for shape in shapes}) != 1:
            value.shape = None
            continue
        pairs = zip(*(shape or [] for shape in shapes), strict=True)
        value.shape = ir.Shape([_dimension(*pair) for pair in pairs])


def _first_size(value: ir.Value) -> bool:
    shape = static_shape(value)
    return bool(shape) and isinstance((shape or [0])[0], int)


def _inferred(
    graph_model: ir.Model, size: int, sizes: Mapping[str, Sequence[int]]
) -> dict[str, list[int | str | None] | None]:
    copy = graph_model.clone()
    graph = copy.graph
    for node in graph:
        for output in node.outputs:
            output.shape = None
    for value in graph.inputs:
        if value.name not in graph.initializers and value.shape is not None:
            shape = sizes.get(value.name or "", list(value.shape))
            value.shape = ir.Shape([size, *shape[1:]])
    infer = common.ShapeInferencePass(check_type=False, strict_mode=False)
    infer(copy)
    # Exporters compute shapes of later tensors from those of earlier ones.
    while _fold_shapes(copy):
        infer(copy)
    made = (output for node in graph for output in node.outputs)
    values = (*graph.inputs, *graph.initializers.values(), *made)
    return {value.name or "": static_shape(value) for value in values}


def _fold_shapes(graph_model: ir.Model) -> bool:
    """Replaces shapes that are known by constants, and what is computed from them; False where none is."""
    graph, found = graph_model.graph, False
    for node in list(graph):
        shape = static_shape(node.inputs[0]) if node.op_type == "Shape" and node.domain == "" else None
        if shape is None or not all(isinstance(size, int) for size in shape):
            continue
        attributes = attributes_of(node)
        part = shape[attributes.get("start", 0) : attributes.get("end", len(shape))]
        name = node.outputs[0].name or ""
        constant = ir.tensor(np.array(part, np.int64), name=name)
        replacement = ir.node("Constant", [], {"value": constant}, name=node.name)
        replacement.outputs[0].name = name
        ir.convenience.replace_nodes_and_values(
            graph, node, [node], [replacement], node.outputs, replacement.outputs
        )
        found = True
    if found:
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(graph_model)
        FoldConstantsPass()(graph_model)
    return found


def _dimension(first: int | str | None, second: int | str | None) -> int | str | None:
    if (first, second) == _SIZES:
        return BATCH
    return first if first == second else None
