"""Ranges of channels, measured on samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict, pieces
from calibrators.errors import CalibrationDataError
from calibrators.host.onnx_session import first_line, run_in_place
from trtint8.equalization.following.channel_classes import Channels
from trtint8.models.activation_memory import FittingBatchSize
from trtint8.models.separate_samples import computes_samples_separately
from trtint8.models.session import open_graph_model

#: The most values of one tensor that are kept.
_MOST_VALUES = 1 << 18


@dataclass(frozen=True)
class Observations:
    """What was measured of tensors.

    Attributes:
        peaks: Tensor name to the largest magnitudes, float64 of the shape of the tensor's labels. Tensors
            whose shape did not fit their labels are left out.
        powers: Tensor name to the mean squares, of the same shape.
        values: Tensor name to some of its values: of shape (rows, channels) where the channels are the last
            axis, else of shape (samples, ...) with the tensor's axes.
    """

    peaks: Mapping[str, NDArray[np.float64]]
    powers: Mapping[str, NDArray[np.float64]]
    values: Mapping[str, NDArray[np.float32]]


def observe(
    model: ir.Model, labels: Mapping[str, Channels], kept: Iterable[str], feeds: Iterable[FeedDict]
) -> Observations:
    """Runs the float network and measures tensors.

    Args:
        model: From :func:`trtint8.models.model.prepare`; not changed.
        labels: Tensor name to its channels, as a compact label array; along its axes of size 1 the largest
            magnitude is taken.
        kept: Names of the tensors of which values are kept; among those of ``labels``.
        feeds: The samples, batch by batch.

    Raises:
        CalibrationDataError: The model fails on a batch.
    """
    names = list(labels)
    copy = model.clone()
    present = {value.name for value in copy.graph.outputs}
    computed = [value for node in copy.graph for value in node.outputs]
    copy.graph.outputs.extend(
        value for value in computed if value.name in labels and value.name not in present
    )
    session = open_graph_model(copy).session
    outputs = [name for name in names if name in {value.name for value in copy.graph.outputs}]
    peaks = {name: np.zeros(array.shape) for name, array in labels.items()}
    squares = {name: np.zeros(array.shape) for name, array in labels.items()}
    counts = dict.fromkeys(names, 0)
    values: dict[str, list[NDArray[np.float32]]] = {name: [] for name in kept}
    unfit: set[str] = set()
    for feed in _in_pieces(model, outputs, feeds):
        try:
            found = dict(zip(outputs, run_in_place(session, outputs, feed), strict=True))
        except Exception as error:
            raise CalibrationDataError(f"the model fails on a batch: {first_line(error)}") from error
        for name in names:
            array = found[name] if name in found else feed[name]
            shape = labels[name].shape
            if array.ndim != len(shape) or any(
                one not in (1, size) for one, size in zip(shape, array.shape, strict=True)
            ):
                unfit.add(name)
                continue
            axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
            for bound in (array.max(axis=axes, keepdims=True), -array.min(axis=axes, keepdims=True)):
                np.maximum(peaks[name], bound, out=peaks[name])
            squares[name] += np.square(array).sum(axis=axes, keepdims=True, dtype=np.float64)
            counts[name] += array.size // max(labels[name].size, 1)
            if name in values:
                _keep(values[name], _rows(array) if shape[-1] > 1 else array)
    fitting = [name for name in names if name not in unfit]
    return Observations(
        {name: peaks[name] for name in fitting},
        {name: squares[name] / max(counts[name], 1) for name in fitting},
        {name: np.concatenate(arrays) for name, arrays in values.items() if arrays and name not in unfit},
    )


def _in_pieces(model: ir.Model, tensors: list[str], feeds: Iterable[FeedDict]) -> Iterator[FeedDict]:
    """The feeds; those of networks that compute each sample by itself in pieces of little memory."""
    if not computes_samples_separately(model):
        return iter(feeds)
    size = FittingBatchSize(model, tensors)
    return chain.from_iterable(pieces(feed, size(feed)) for feed in feeds)


def _rows(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Some rows of a tensor whose channels are its last axis, evenly spaced, of shape (rows, channels)."""
    rows = values.reshape(-1, values.shape[-1])
    return rows[:: -(-rows.size // _MOST_VALUES) or 1]


def _keep(kept: list[NDArray[np.float32]], values: NDArray[np.float32]) -> None:
    """Keeps as many samples of a batch as there is room for; the first one always."""
    if kept and kept[0].shape[1:] != values.shape[1:]:
        return
    size = int(np.prod(values.shape[1:]))
    room = _MOST_VALUES // max(size, 1) - sum(len(array) for array in kept)
    if room > 0 or not kept:
        kept.append(values[: max(room, 1)].copy())
