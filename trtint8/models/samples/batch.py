"""Networks that take a fixed number of samples, as ones that take any number.

Chooses the number of samples per batch so that a model's observed activations stay small.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.inputs import fitting_batch_size
from calibrators.host.plan import BYTES_PER_PART
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph import constant_integers, set_constant_input
from trtint8.models.passes.simplify import InferShapesPass
from trtint8.models.samples.separate import joined_by_graph
from trtint8.models.shapes import StaticShapes, declared_sizes, open_inputs

#: What the first axis of every input is called.
_SAMPLES = "samples"


@pause_garbage_collection()
def with_open_batch(graph_model: ir.Model) -> ir.Model:
    """A model that computes the same for any number of samples.

    Args:
        graph_model: From :func:`trtint8.models.model.prepare`; not changed.

    Returns:
        A copy; the model itself where its inputs do not fix one number of samples above 1, or where samples
        may depend on each other.
    """
    batch = _fixed_batch(graph_model)
    if batch is None:
        return graph_model
    opened = graph_model.clone()
    for node in opened.graph:
        if node.op_type == "Reshape" and node.domain == "":
            _keep_samples(node, batch)
    for value in opened.graph.inputs:
        assert value.shape is not None
        value.shape = ir.Shape([_SAMPLES, *value.shape[1:]])
    for node in opened.graph:
        for output in node.outputs:
            output.shape = None  # declared for the fixed number
    InferShapesPass()(opened)
    return opened if joined_by_graph(opened).has_rows else graph_model


def _fixed_batch(graph_model: ir.Model) -> int | None:
    """The number of samples that all inputs fix; None where they do not, or where it is 1."""
    sizes = [declared_sizes(value) or (None,) for value in graph_model.graph.inputs]
    first = {size[0] for size in sizes}
    batch = first.pop() if len(first) == 1 else None
    return batch if batch is not None and batch > 1 else None


def _keep_samples(node: ir.Node, batch: int) -> None:
    """Has a Reshape that keeps the fixed number of samples take over whatever number there is."""
    data, target = node.inputs[0], constant_integers(node.inputs[1])
    sizes = declared_sizes(data) if data is not None else None
    if target and target[0] == batch and sizes and sizes[0] == batch:
        set_constant_input(node, 1, np.array([0, *target[1:]], np.int64))


#: Bytes of observed activations per batch. A ResNet-50 is hardly faster with more than 4 samples per batch,
#: which take 160 MB; and memory that is used for the first time takes time.
_BUDGET = 192 << 20

_BYTES_PER_ELEMENT = 4


class FittingBatchSize:
    """The number of samples per batch where neither the model nor the user fixes it.

    Args:
        graph_model: A prepared model. Its shapes must not change afterwards.
        tensors: Names of the float32 tensors that are kept until the batch is over.

    Attributes:
        for_all: The size for samples of every shape: a power of two, at most the usual batch size. None where
            it depends on the sizes of the inputs, which the model leaves open.
    """

    def __init__(self, graph_model: ir.Model, tensors: Iterable[str]) -> None:
        wanted = set(tensors)
        self._model = graph_model
        nodes = list(graph_model.graph)
        self._values = [value for node in nodes for value in node.outputs if value.name in wanted]
        #: Those of them that are counted with the input of their Relu, and not kept.
        self._rectified = {node.outputs[0].name for node in nodes if _is_seen_with_its_input(node, wanted)}
        self._known: dict[tuple[tuple[str, tuple[int, ...]], ...], int] = {}
        self._open = set(open_inputs(graph_model))
        self.for_all = None if self._open else self({})

    @property
    def rule(self) -> int | FittingBatchSize:
        """The size for all samples, or, where there is none, this object, which tells it from a sample."""
        return self.for_all or self

    def __call__(self, feed: Mapping[str, NDArray[Any]]) -> int:
        """The size for samples of the shapes in a feed.

        Args:
            feed: Input name to array, with one sample or more. Sizes that neither the feed nor the model has
                count as 1.
        """
        shapes = {
            value.name or "": _sample_shape(value, feed[value.name or ""].shape)
            for value in self._model.graph.inputs
            if value.name in feed and value.name in self._open
        }
        key = tuple(sorted(shapes.items()))
        if key not in self._known:
            found = StaticShapes(self._model, shapes)
            taken = {
                value.name: _BYTES_PER_ELEMENT
                * _elements_per_sample(found.of(value) if shapes else value.shape)
                for value in self._values
            }
            kept = sum(taken.values())
            if kept <= BYTES_PER_PART:  # else the model is divided, and shows what each Relu gives
                kept -= sum(taken[name] for name in self._rectified & taken.keys())
            self._known[key] = fitting_batch_size(_BUDGET, kept)
        return self._known[key]


def _is_seen_with_its_input(node: ir.Node, wanted: Collection[str]) -> bool:
    """Whether a node is a Relu whose input is observed: its output is counted with it, and not kept."""
    return (
        node.op_type == "Relu"
        and node.domain == ""
        and any(value and value.name in wanted for value in node.inputs)
    )


def _sample_shape(value: ir.Value, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one sample, where the model leaves the number of samples open."""
    fixed = value.shape is not None and len(value.shape) > 0 and isinstance(value.shape[0], int)
    return shape if fixed or not shape else (1, *shape[1:])


def _elements_per_sample(shape: Iterable[int | ir.SymbolicDim | None] | None) -> int:
    sizes = () if shape is None else tuple(shape)[1:]
    return math.prod(size for size in sizes if isinstance(size, int))
