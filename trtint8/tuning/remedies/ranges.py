"""Ranges chosen anew from the histograms of a table, by what they cost the network's outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from calibrators.data.feeds import FeedDict, pieces
from calibrators.data.inputs import has_fixed_batch
from calibrators.tables.table import CalibrationTable
from trtint8.models.model import Model
from trtint8.range_choice.auto import AutoRanges


def choose_ranges_anew(
    model: Model, table: CalibrationTable, names: Iterable[str], feeds: Iterable[FeedDict]
) -> CalibrationTable | None:
    """Applies the method ``auto`` to a table that was made with another one.

    Args:
        model: From :func:`trtint8.models.model.prepare`.
        table: The model's table.
        names: The tensors that are quantized.
        feeds: Batches to try ranges on.

    Returns:
        The table with the chosen ranges; ranges that were set by hand stay as they are. None where the table
        has the ranges of ``auto`` already, or no histograms of all tensors that are quantized.

    Raises:
        CalibrationDataError: The model fails on a sample.
    """
    if table.method == "auto" or not all(name in table.histograms for name in names):
        return None
    samples = list(single_samples(model, feeds))
    chooser = AutoRanges(model, threads=None, device="cpu")
    amax, choice = chooser.choose(table.histograms, samples, len(samples), progress=False)
    return table.with_choice(amax, choice)


def single_samples(model: Model, feeds: Iterable[FeedDict]) -> Iterator[FeedDict]:
    """One feed per sample; whole batches where the model takes no others.

    Args:
        model: From :func:`trtint8.models.model.prepare`.
        feeds: Batches.
    """
    rows = None if has_fixed_batch(model.inputs) else 1
    for feed in feeds:
        yield from pieces(feed, rows)
