"""The shapes that a model's tensors have for one feed, and the integers that it computes them with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict
from calibrators.errors import CalibrationDataError
from calibrators.operators import operator_of
from trtint8.models.graph_constants import unused_name, value_names
from trtint8.models.inner_graphs import holds_graphs
from trtint8.models.session import open_graph_model

logger = logging.getLogger(__name__)

#: Number of samples in the feed that shapes are taken from. With one sample, labels that differ between
#: samples would not be noticed.
_SAMPLES = 2

_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL)


@dataclass(frozen=True)
class Shapes:
    """What is known of a model's tensors for one feed.

    Attributes:
        shapes: Tensor name to shape, for inputs and computed tensors.
        integers: Tensor name to value, for the tensors of integers and booleans that nodes compute from
            shapes and constants only; those that depend on the values of the feed are left out.
    """

    shapes: Mapping[str, tuple[int, ...]]
    integers: Mapping[str, NDArray[Any]]


def measure_shapes(model: ir.Model, feed: FeedDict) -> Shapes:
    """Runs a model in ONNX Runtime to find the shapes of its tensors.

    Args:
        model: From :func:`trtint8.models.model.prepare`; not changed.
        feed: One batch, of which the first samples are taken where the model computes with so few.

    Raises:
        CalibrationDataError: The model fails on the batch.
    """
    few = _first_samples(model, feed)
    if (known := _known_shapes(model.graph, few)) is not None:
        return Shapes(known, {})
    copy = model.clone()
    graph, taken = copy.graph, value_names(copy.graph)
    from_shapes = _computed_from_shapes(graph)
    outputs = {value.name for value in graph.outputs}
    shapes_of: dict[str, str] = {}
    integers: list[str] = []
    for value in [value for node in graph for value in node.outputs if value.name]:
        name = value.name or ""
        if value.dtype in _INTEGERS and name in from_shapes:
            integers.append(name)
            graph.outputs.extend([] if name in outputs else [value])
        if value.type is None or isinstance(value.type, ir.TensorType):
            node = ir.Node("", "Shape", [value], name=unused_name(f"{name}_shape_of", taken))
            node.outputs[0].name = unused_name(f"{name}_shape_of", taken)
            taken.add(node.outputs[0].name)
            node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
            graph.append(node)
            graph.outputs.append(node.outputs[0])
            shapes_of[name] = node.outputs[0].name
    session = open_graph_model(copy, optimize=False, used_up=True)
    names = [*shapes_of.values(), *integers]
    try:
        found = session.run(few, names)
    except CalibrationDataError:
        logger.debug("the model does not take %d samples", _SAMPLES, exc_info=True)
        few = feed
        found = session.run(few, names)
    results = dict(zip(names, found, strict=True))
    shapes = {name: tuple(results[shape].tolist()) for name, shape in shapes_of.items()}
    shapes |= {name: array.shape for name, array in few.items()}
    return Shapes(shapes, {name: results[name] for name in integers})


def _first_samples(model: ir.Model, feed: FeedDict) -> FeedDict:
    """The first samples of a feed, where the model takes any number of samples; else the feed as it is."""
    inputs = [value for value in model.graph.inputs if value.name in feed]
    dynamic = all(value.shape and not isinstance(value.shape[0], int) for value in inputs)
    return {name: array[:_SAMPLES] for name, array in feed.items()} if dynamic else feed


def _known_shapes(graph: ir.Graph, feed: FeedDict) -> dict[str, tuple[int, ...]] | None:
    """The shapes that follow from the feed's, where all do and no values are computed from shapes."""
    shapes = {name: array.shape for name, array in feed.items()}
    sizes: dict[str | None, int] = {}
    for value in graph.inputs:
        for size, own in zip(value.shape or (), shapes.get(value.name or "", ()), strict=False):
            if isinstance(size, ir.SymbolicDim) and size.value is not None:
                sizes[size.value] = own
    for value in (output for node in graph for output in node.outputs if output.name):
        if value.shape is None or value.dtype in _INTEGERS:
            return None
        found = [size if isinstance(size, int) else sizes.get(size.value) for size in value.shape]
        shape = tuple(size for size in found if size is not None)
        if len(shape) != len(found):
            return None
        shapes[value.name or ""] = shape
    return shapes


def _computed_from_shapes(graph: ir.Graph) -> set[str]:
    """Names of the values that are the same for all feeds of the same shapes."""
    known: set[str] = set(graph.initializers)
    for node in graph:
        read = {value.name for value in node.inputs if value is not None}
        if operator_of(node).reads_shape or (read <= known and not holds_graphs(node)):
            known |= {value.name for value in node.outputs if value.name}
    return known
