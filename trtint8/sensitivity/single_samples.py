"""Whether a network may be run sample by sample, found out by running it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict
from trtint8.models.session import open_graph_model
from trtint8.models.static_shapes import declared_sizes

#: How far the values of single samples may lie from those of a batch, as a share of the largest of them: ONNX
#: Runtime adds up in another order.
_TOLERANCE = 1e-3


def may_run_one_by_one(graph_model: ir.Model, feed: FeedDict, threads: int | None) -> bool:
    """Whether a network gives the same for two samples as for each of them by itself.

    Args:
        graph_model: From :func:`trtint8.models.model.prepare`; not changed.
        feed: A batch of two samples or more, along the first axis of all inputs.
        threads: Threads per operator; ONNX Runtime's choice where None.

    Returns:
        True where it leaves the number of samples open and every output for both samples consists of those
        for each, along any axis, which may hold more than samples, such as the steps of all sequences.

    Raises:
        CalibrationDataError: ONNX Runtime fails on the samples.
    """
    if any((declared_sizes(value) or (None,))[0] is not None for value in graph_model.graph.inputs):
        return False
    session = open_graph_model(graph_model, threads=threads)
    parts = (slice(0, 2), slice(0, 1), slice(1, 2))
    runs = [session.run({name: array[part] for name, array in feed.items()}) for part in parts]
    return all(_consists_of(both, first, second) for both, first, second in zip(*runs, strict=True))


def _consists_of(both: NDArray[np.generic], first: NDArray[np.generic], second: NDArray[np.generic]) -> bool:
    """Whether an array is two others of one shape, one behind the other along one of the axes."""
    if first.shape != second.shape:
        return False
    joined = (np.concatenate([first, second], axis) for axis in range(first.ndim))
    atol = _TOLERANCE * float(np.abs(both).max(initial=0))
    return any(one.shape == both.shape and np.allclose(one, both, rtol=0, atol=atol) for one in joined)
