"""Chooses the number of samples per batch so that a model's observed activations stay small."""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir

from calibrators.data.options import fitting_batch_size

#: Bytes of observed activations per batch. A ResNet-50 is hardly faster with more than 4 samples per batch,
#: which take 160 MB; and memory that is used for the first time takes time.
_BUDGET = 192 << 20

_BYTES_PER_ELEMENT = 4


def calibration_batch_size(graph_model: ir.Model, tensors: Iterable[str]) -> int:
    """The number of samples per batch where neither the model nor the user fixes it.

    Args:
        graph_model: A model with inferred shapes; unknown dimensions count as 1.
        tensors: Names of the float32 tensors that are kept until the batch is over.

    Returns:
        Samples per batch: a power of two, at most the usual batch size.
    """
    graph, wanted = graph_model.graph, set(tensors)
    values = (value for node in graph for value in node.outputs if value.name in wanted)
    bytes_per_sample = _BYTES_PER_ELEMENT * sum(_elements_per_sample(value) for value in values)
    return fitting_batch_size(_BUDGET, bytes_per_sample)


def _elements_per_sample(value: ir.Value) -> int:
    dims = () if value.shape is None else tuple(value.shape)[1:]
    return math.prod(dim for dim in dims if isinstance(dim, int))
