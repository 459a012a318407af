"""Measures what each layer's quantization costs, batch by batch until the figures are certain enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from calibrators.data.batches import Batches
from calibrators.progress import progress_bar
from calibrators.tables.table import CalibrationTable
from trtint8.models.model import Model
from trtint8.quantization.placement import Placement, place
from trtint8.sensitivity.checkpoint import Checkpoint
from trtint8.sensitivity.measurement import Measurement
from trtint8.sensitivity.probe import Glimpse, Probe
from trtint8.sensitivity.results import Sensitivity
from trtint8.sensitivity.segments import Quantizer, cut


@dataclass(frozen=True)
class Plan:
    """What a measurement will cost.

    Attributes:
        layers: How many layers are looked at.
        samples: The most samples that will be fed; None where the data does not tell.
        seconds_a_sample: How long one takes, told from the first batch.
    """

    layers: int
    samples: int | None
    seconds_a_sample: float


def measure(
    prepared: Model,
    table: CalibrationTable,
    batches: Batches,
    *,
    keep_float: Sequence[str] = (),
    tolerance_db: float = 1.0,
    checkpoint: Path | None = None,
    threads: int | None = None,
    on_plan: Callable[[Plan], None] = lambda _plan: None,
    progress: bool = True,
) -> Sensitivity:
    """Quantizes one layer alone, and all but one, for every layer, and compares with the float network.

    Stops before the data ends once the SQNR of every layer alone is known to within the tolerance (95 %
    interval) from 64 samples or more; layers that make less than 2 % of the noise may stay uncertain.

    Args:
        prepared: From :func:`trtint8.models.model.prepare`; not changed.
        table: The ranges.
        batches: Samples; labels, where there are some, are class indices.
        keep_float: Names of nodes, or patterns, that stay in float in every variant.
        tolerance_db: Half the width of the intervals, in decibels.
        checkpoint: Where the sums are kept while they grow: what is there already is gone on from, and the
            file is removed at the end.
        threads: Threads within an operator; ONNX Runtime's choice where None.
        on_plan: Told what it will cost, before it starts.
        progress: Show a progress bar on a terminal.

    Returns:
        What was found.

    Raises:
        CalibrationDataError: There is no data, or it does not fit the model or the checkpoint.
        TableError: The table does not fit the model, or the checkpoint is of another measurement.
    """
    placement = checked_placement(prepared, table, keep_float)
    network = cut(prepared.graph_model, Quantizer.of(placement, table.amax), threads=threads)
    kept = checkpoint_of(checkpoint, prepared, table, keep_float, batches.batch_size)
    measurement = Measurement(prepared, network.layers, tolerance_db, kept)
    probe = Probe(network, prepared.inputs, measurement.skip, measurement.effects)

    def glimpses() -> Iterator[Glimpse]:
        first, labels, announced = 0, batches.labels, False
        for feed in batches:
            if not announced and first >= measurement.skip:
                seconds = probe.begin(feed, first, labelled=labels is not None)
                on_plan(Plan(len(network.layers), batches.num_samples, seconds))
                announced = True
            glimpse = probe.look(feed, None if labels is None else labels[first:], first)
            first += glimpse.samples
            advance(glimpse.samples)
            yield glimpse

    with progress_bar("Measuring", batches.num_samples, enabled=progress) as advance:
        measurement.run(glimpses())
    return measurement.result(table)


def checked_placement(prepared: Model, table: CalibrationTable, keep_float: Sequence[str]) -> Placement:
    """Where pairs go, with a range for each.

    Raises:
        TableError: The table does not fit the model.
    """
    placement = place(prepared.graph_model, keep_float)
    table.check_model(prepared.fingerprint, placement.tensors)
    return placement


def checkpoint_of(
    path: Path | None,
    prepared: Model,
    table: CalibrationTable,
    keep_float: Sequence[str],
    batch_size: int | None,
) -> Checkpoint:
    """Where a measurement keeps its sums, and what these depend on besides the data."""
    identity = {
        "model": prepared.fingerprint,
        "table": table.fingerprint,
        "keep_float": list(keep_float),
        "batch_size": batch_size,
    }
    return Checkpoint(path, identity)
