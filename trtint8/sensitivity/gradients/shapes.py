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

#: How the name of an axis begins along which every sample has several elements; their number follows.
_SEVERAL = f"{BATCH}_times_"

#: Two batch sizes with which shapes are inferred: what differs depends on the batch.
_SIZES = (3, 5)


def batch_is_free(graph_model: ir.Model) -> bool:
    """Whether every input takes any number of samples along its first axis."""
    graph = graph_model.graph
    inputs = [value for value in graph.inputs if value.name not in graph.initializers]
    return all((static_shape(value) or [0])[:1] and not _first_size(value) for value in inputs)


def infer_shapes(graph_model: ir.Model, sizes: Mapping[str, Sequence[int]] | None = None) -> None:
    """Sets the shapes of all tensors; an axis of samples is named ``BATCH``.

    Shapes are inferred for two batch sizes. A dimension that is the same in both is a number; one that is the
    batch size is named ``BATCH``; one that is a multiple of it, as where samples were flattened, has a name
    that tells the factor; and others that differ stay unknown.

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
    if first == second:
        return first
    if not (isinstance(first, int) and isinstance(second, int)):
        return None
    factor = first // _SIZES[0]
    if (first, second) != (factor * _SIZES[0], factor * _SIZES[1]):
        return None
    return BATCH if factor == 1 else f"{_SEVERAL}{factor}"


def elements_per_sample(value: ir.Value) -> int:
    """How many elements a tensor has for one sample, where :func:`infer_shapes` knows; at least that many."""
    count = 1
    for size in static_shape(value) or []:
        if isinstance(size, str):
            size = int(size.removeprefix(_SEVERAL)) if size.startswith(_SEVERAL) else 1
        count *= 1 if size is None else size
    return count
