"""Measurement over Ray: workers look at batches, and the driver adds up and stops where one process would."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrators.data.inputs import InputSpec
from calibrators.ray.executor import WORKER_THREADS, RayExecutor
from calibrators.ray.fan_out import check_sees
from calibrators.ray.in_order import look_at, seen_in_turn
from calibrators.ray.shards import Reader, Shard, Shards, labelled_feeds
from calibrators.tables.table import CalibrationTable
from trtint8.models.model import Model, load_model, runnable
from trtint8.quantization.placement import place
from trtint8.sensitivity.effects import EffectMeter
from trtint8.sensitivity.measure import Plan, checked_placement, checkpoint_of
from trtint8.sensitivity.measurement import Measurement, no_samples
from trtint8.sensitivity.probe import Probe
from trtint8.sensitivity.results import Sensitivity
from trtint8.sensitivity.segments import Quantizer, cut


def measure_over_ray(
    prepared: Model,
    table: CalibrationTable,
    shards: Shards,
    executor: RayExecutor,
    *,
    keep_float: Sequence[str] = (),
    tolerance_db: float = 1.0,
    checkpoint: Path | None = None,
    threads: int | None = None,
    on_plan: Callable[[Plan], None] = lambda _plan: None,
    progress: bool = True,
) -> Sensitivity:
    """What :func:`trtint8.sensitivity.measure.measure` finds, by workers of a Ray cluster.

    The first batch is looked at here as well: it decides how outputs are weighed, and what is announced.

    Args:
        prepared: As there.
        table: As there.
        shards: The data.
        executor: Where to run.
        keep_float: As there.
        tolerance_db: As there.
        checkpoint: As there; one of one process can be gone on from, and the other way round.
        threads: Threads, and processors, of each worker; 1 where None.
        on_plan: Told what it will cost, in the time of one worker, before it starts.
        progress: Show a progress bar on a terminal.

    Returns:
        What was found.

    Raises:
        TrtInt8Error: As one process would; or of Ray and its workers.
    """
    threads = threads or WORKER_THREADS
    placement = checked_placement(prepared, table, keep_float)
    quantizer = Quantizer.of(placement, table.amax)
    network = cut(prepared.graph_model, quantizer, threads=threads)
    kept = checkpoint_of(checkpoint, prepared, table, keep_float, shards.batch_size)
    measurement = Measurement(prepared, network.layers, tolerance_db, kept)
    head, shards = shards.begun()
    if head is None:
        raise no_samples()
    feed, labels = next(labelled_feeds(shards.reader, head))
    probe = Probe(network, prepared.inputs, measurement.skip, measurement.effects)
    seconds = probe.begin(feed, 0, labelled=labels is not None)
    on_plan(Plan(len(network.layers), shards.samples, seconds))
    effects = probe.effects
    assert effects is not None
    del network, probe  # and what they have opened
    with runnable(prepared.graph_model) as model:
        amax = {name: table.amax[name] for name in placement.tensors}
        task = _Task(
            model, prepared.inputs, amax, tuple(keep_float), measurement.skip, effects, threads, shards.reader
        )
        with seen_in_turn(
            SensitivityWorker,
            task,
            shards,
            executor,
            threads,
            description="Measuring",
            progress=progress,
        ) as glimpses:
            measurement.run(glimpses)
    return measurement.result(table)


@dataclass(frozen=True)
class _Task:
    """What every worker is sent once.

    Attributes:
        model: The prepared model: serialized or, beyond 2 GiB, a path.
        inputs: Its inputs.
        amax: The ranges that placement needs.
        keep_float: Names of nodes, or patterns, that stay in float.
        skip: So many samples at the start are passed over.
        effects: A meter without data.
        threads: Threads within an operator.
        reader: Makes feeds of the shards.
    """

    model: bytes | Path
    inputs: tuple[InputSpec, ...]
    amax: Mapping[str, float]
    keep_float: tuple[str, ...]
    skip: int
    effects: EffectMeter
    threads: int
    reader: Reader


class SensitivityWorker:
    """Runs in a process of its own."""

    def __init__(self, task: _Task) -> None:
        self._task = task
        self._probe: Probe | None = None

    def open(self) -> None:
        """Cuts the model; its parts are opened when they are first used."""
        task = self._task
        check_sees(task.model)
        graph_model = load_model(task.model).graph_model
        quantizer = Quantizer.of(place(graph_model, task.keep_float), task.amax)
        network = cut(graph_model, quantizer, threads=task.threads)
        self._probe = Probe(network, task.inputs, task.skip, task.effects)

    def work(self, shard: Shard) -> Any:
        """Runs all variants on the batches of a shard."""
        assert self._probe is not None
        return look_at(shard, self._task.reader, self._probe.look)
