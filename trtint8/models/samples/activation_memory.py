"""Chooses the number of samples per batch so that a model's observed activations stay small."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.inputs import fitting_batch_size
from calibrators.host.model_parts import BYTES_PER_PART
from trtint8.models.static_shapes import StaticShapes, open_inputs

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
