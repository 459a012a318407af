"""How many samples a batch may have so that the activations that are observed stay small."""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx_ir as ir

from calibrators.data.options import DEFAULT_BATCH_SIZE

#: Bytes of observed activations a batch. A ResNet-50 is no quicker with more than 2 samples a batch.
_BUDGET = 256 << 20


def calibration_batch_size(graph_model: ir.Model, tensors: Iterable[str]) -> int:
    """Samples a batch where neither model nor user say: as many as fit the budget.

    Args:
        graph_model: With inferred shapes; dimensions that are not known count as 1.
        tensors: Names of float32 tensors that are kept until the batch is over.

    Returns:
        A power of two, at most the usual batch size.
    """
    graph, wanted = graph_model.graph, set(tensors)
    values = (value for node in graph for value in node.outputs if value.name in wanted)
    sample = 4 * sum(_elements(value) for value in values)
    fitting = max(1, _BUDGET // max(sample, 1))
    return min(DEFAULT_BATCH_SIZE, 1 << (fitting.bit_length() - 1))


def _elements(value: ir.Value) -> int:
    dims = () if value.shape is None else tuple(value.shape)[1:]
    return math.prod(dim for dim in dims if isinstance(dim, int))
