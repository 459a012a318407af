"""The shapes of a network's tensors as far as they do not depend on the data, and where its samples lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from trtint8.models.graph_writer import static_shape
from trtint8.models.inner_graphs import graph_values
from trtint8.models.static_shapes import StaticShapes

#: The name of an axis along which the samples of a batch lie.
BATCH = "trtint8_batch"

#: How the name of an axis begins along which every sample has several elements; their number follows.
_SEVERAL = f"{BATCH}_times_"

#: Two batch sizes with which shapes are inferred: what differs depends on the batch.
_SIZES = (3, 5)


def batch_is_free(graph_model: ir.Model) -> bool:
    """Whether every input takes any number of samples along its first axis."""
    return all((static_shape(value) or [0])[:1] and not _first_size(value) for value in _fed(graph_model))


def _batch_is_fixed(graph_model: ir.Model) -> bool:
    """Whether no input leaves the number of samples open."""
    return all(not static_shape(value) or _first_size(value) for value in _fed(graph_model))


def _fed(graph_model: ir.Model) -> list[ir.Value]:
    """The inputs that are no initializers."""
    graph = graph_model.graph
    return [value for value in graph.inputs if value.name not in graph.initializers]


def infer_shapes(graph_model: ir.Model, sizes: Mapping[str, Sequence[int]] | None = None) -> None:
    """Sets the shapes of all tensors; an axis of samples is named ``BATCH``.

    Where the batch size is free, shapes are inferred for two. A dimension that is the same in both is a
    number; one that is the batch size is named ``BATCH``; one that is a multiple of it, as where samples were
    flattened, has a name that tells the factor; and others that differ stay unknown.

    Args:
        graph_model: The model; shapes in it are replaced. Where some inputs fix the batch size and others
            leave it open, nothing is changed.
        sizes: Input name to the shape of a batch, whose first size does not count, for inputs that leave
            other sizes open.
    """
    is_free = batch_is_free(graph_model)
    if not (is_free or _batch_is_fixed(graph_model)):
        return
    batches: Sequence[int | None] = _SIZES if is_free else (None,)
    copy = graph_model.clone()
    for value in [output for node in copy.graph for output in node.outputs] if is_free else ():
        value.shape = None  # exporters declare shapes that do not hold for other batches
    inferred = [_inferred(copy, size, sizes or {}) for size in batches]
    for value, *shapes in zip(graph_values(graph_model.graph), *inferred, strict=True):
        first, second = shapes[0], shapes[-1]
        if first is None or second is None or len(first) != len(second):
            value.shape = None
        else:
            value.shape = ir.Shape([_dimension(*pair) for pair in zip(first, second, strict=True)])


def _first_size(value: ir.Value) -> bool:
    shape = static_shape(value)
    return bool(shape) and isinstance((shape or [0])[0], int)


def _inferred(
    graph_model: ir.Model, size: int | None, sizes: Mapping[str, Sequence[int]]
) -> list[tuple[int | None, ...] | None]:
    """The shapes of a graph's inputs and of what its nodes make, for so many samples; None: for its own."""
    given = {}
    for value in graph_model.graph.inputs:
        name, shape = value.name or "", static_shape(value)
        if name not in graph_model.graph.initializers and shape is not None:
            own = shape[:1] if size is None else [size]
            whole = [*own, *sizes.get(name, shape)[1:]]
            given[name] = [dim if isinstance(dim, int) else None for dim in whole]
    shapes = StaticShapes(graph_model, given)
    return [shapes.of(value) for value in graph_values(graph_model.graph)]


def _dimension(first: int | None, second: int | None) -> int | str | None:
    if first is None or second is None:
        return None
    if first == second:
        return first
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
