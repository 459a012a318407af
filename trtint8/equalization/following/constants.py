"""The constants of weighted nodes, and which channel each of their elements belongs to.

The shapes that a model's tensors have for one feed, and the integers that it computes them with.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict
from calibrators.errors import CalibrationDataError
from calibrators.operators import operator_of
from trtint8.models.graph import constant_input, holds_graphs, unused_name, value_names
from trtint8.models.session import open_graph_model


def is_linear(node: ir.Node) -> bool:
    """Whether a node multiplies its first input by constant float32 weights that have channels.

    These are convolutions, and products with a constant matrix that has elements.
    """
    if not operator_of(node).is_weighted:
        return False
    weights = constant_input(node, 1)
    if weights is None or weights.dtype != np.float32 or not weights.size:
        return False
    return is_convolution(node) or weights.ndim == 2


def is_convolution(node: ir.Node) -> bool:
    """Whether a weighted node is a convolution, whose channels are axis 1 of its input and output."""
    return operator_of(node).is_convolution


def has_constant_bias(node: ir.Node) -> bool:
    """Whether a weighted node has a constant bias, or none."""
    return len(node.inputs) < 3 or node.inputs[2] is None or constant_input(node, 2) is not None


def read_axis(node: ir.Node) -> int:
    """The axis of a linear node's input that its weights are multiplied along."""
    if is_convolution(node):
        return 1
    return 0 if node.op_type == "Gemm" and bool(node.attributes.get_int("transA", 0)) else -1


def channel_numbers(node: ir.Node, shape: tuple[int, ...]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The numbers of the output channel and of the input channel of every weight.

    Args:
        node: A linear node (:func:`is_linear`).
        shape: The shape of the node's weights.

    Returns:
        Two arrays that broadcast to ``shape``.
    """
    first, second = np.ix_(*(np.arange(size) for size in shape[:2]))
    if not is_convolution(node):
        transposed = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
        return (first, second) if transposed else (second, first)
    # Axis 0 counts the channels of all groups, axis 1 those of the other side within the group.
    group = first // (shape[0] // node.attributes.get_int("group", 1))
    within = group * shape[1] + second
    kernel = (1,) * (len(shape) - 2)
    first, within = first.reshape(*first.shape, *kernel), within.reshape(*within.shape, *kernel)
    return (first, within) if node.op_type == "Conv" else (within, first)


def input_ranges(node: ir.Node, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest magnitude among the weights that read each input channel, of shape (input channels,)."""
    peaks = np.abs(weights).max(axis=tuple(range(2, weights.ndim)), keepdims=True)
    _, inputs = channel_numbers(node, weights.shape)
    ranges = np.zeros(int(inputs.max()) + 1)
    np.maximum.at(ranges, np.broadcast_to(inputs, peaks.shape), peaks)
    return ranges


_logger = logging.getLogger(__name__)

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
        _logger.debug("the model does not take %d samples", _SAMPLES, exc_info=True)
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
