"""Shapes of a model for one sample per batch, where exporters compute them at run time."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from trtint8.models.graph_constants import add_initializer
from trtint8.models.passes.fold_constants import FoldConstantsPass

#: How many times shapes are inferred and constants folded. Each time gets as far as the next shape that is
#: computed from another by operators that shape inference does not follow.
_MOST_ROUNDS = 64


class StaticShapes:
    """The shapes of a model's tensors.

    PyTorch writes the sizes of a Reshape as computations on the sizes of its input, and ONNX's shape
    inference does not follow all of them. With one sample per batch most of them are constant, and then they
    are computed.

    Args:
        model: A prepared model; not changed.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    def of(self, value: ir.Value | None) -> tuple[int | None, ...] | None:
        """The shape of a tensor.

        Args:
            value: A value of the model. Where all its dimensions but the first are known, nothing is
                computed.

        Returns:
            The sizes; None in place of one that is not fixed. None where not even the rank is known.
        """
        if value is None:
            return None
        known = _sizes(value)
        if known is not None and None not in known[1:]:
            return known
        return self._computed.get(value.name or "", known)

    @cached_property
    def _computed(self) -> dict[str, tuple[int | None, ...]]:
        copy = self._model.clone()
        for value in copy.graph.inputs:
            if value.shape is not None and len(value.shape) > 1 and not isinstance(value.shape[0], int):
                value.shape = ir.Shape([1, *tuple(value.shape)[1:]])
        for node in copy.graph:
            for value in node.outputs:
                value.shape = None
        infer = common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)
        for _ in range(_MOST_ROUNDS):
            infer(copy)
            folded = [_fold_shape(copy.graph, node) for node in list(copy.graph)]
            if not any(folded):
                break
            FoldConstantsPass()(copy)
        values = (value for node in copy.graph for value in node.outputs)
        return {value.name: sizes for value in values if value.name and (sizes := _sizes(value)) is not None}


def _fold_shape(graph: ir.Graph, node: ir.Node) -> bool:
    """Replaces a Shape of a tensor whose sizes are known by a constant; returns whether it did."""
    output = node.outputs[0] if node.outputs else None
    source = node.inputs[0] if node.op_type == "Shape" and node.domain == "" else None
    sizes = _sizes(source) if source is not None else None
    if output is None or output.is_graph_output() or sizes is None or None in sizes:
        return False
    start = node.attributes.get_int("start", 0)
    end = node.attributes.get_int("end", len(sizes))
    array = np.asarray(sizes[start:end], np.int64)
    name, output.name = output.name, None
    output.replace_all_uses_with(add_initializer(graph, name or "", array))
    graph.remove(node, safe=True)
    return True


def _sizes(value: ir.Value) -> tuple[int | None, ...] | None:
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else None for dim in value.shape)
