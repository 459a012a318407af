"""Measures what each layer's quantization costs, batch by batch until the figures are certain enough."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from calibrators.data.array_files import is_class_indices
from calibrators.data.batches import Batches
from calibrators.host.work import results_here
from calibrators.run import Executor, RunOptions
from calibrators.tables.table import CalibrationTable
from trtint8.models.graph_constants import is_constant
from trtint8.models.model import Model
from trtint8.models.outputs.cached import without_cached_outputs, without_outputs
from trtint8.models.outputs.picked import before_picks
from trtint8.models.outputs.runnable_part import runnable_part
from trtint8.models.samples.open_batch import with_open_batch
from trtint8.models.serialization import runnable
from trtint8.quantization.placement import Placement, place
from trtint8.quantization.quantize import tensor_names
from trtint8.sensitivity.checkpoint import measurement_checkpoint
from trtint8.sensitivity.measurement import Measurement, no_samples
from trtint8.sensitivity.probe import Probe
from trtint8.sensitivity.results import Sensitivity
from trtint8.sensitivity.workers import SensitivityWork
from trtint8.simulation.layers import Quantizer, find_layers


@dataclass(frozen=True)
class Plan:
    """What a measurement will cost.

    Attributes:
        layers: How many layers are measured.
        samples: The most samples that will be fed; None where the data does not say.
        seconds_per_sample: Seconds per sample, estimated with the first batch.
        picked_from: Names of the tensors whose noise is measured in place of outputs that hold what the
            network picks.
    """

    layers: int
    samples: int | None
    seconds_per_sample: float
    picked_from: tuple[str, ...] = ()


def measure(
    prepared: Model,
    table: CalibrationTable,
    batches: Batches,
    *,
    keep_float: Sequence[str] = (),
    tolerance_db: float = 1.0,
    checkpoint: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    executor: Executor = "local",
    on_plan: Callable[[Plan], None] = lambda _plan: None,
    progress: bool = True,
) -> Sensitivity:
    """Measures what every layer alone costs, and the network with all layers but one.

    Where the gradients of all operators of the network are known, they predict what the error of each layer
    does to the outputs (:class:`trtint8.sensitivity.error_network.ErrorNetwork`), and the noise of all layers
    but one is what remains of the whole network's. Elsewhere each layer is run alone and left out alone.

    The whole network's noise is measured with all samples, that of the layers, where samples are small and
    many, with some that are drawn from them (:mod:`trtint8.sensitivity.drawing`). Where the data does not say
    how many samples it has, each of them shows what layers cost.

    Where the network picks elements at its end, such as boxes, noise is that of the tensors that they are
    picked from (:mod:`trtint8.models.outputs.picked`). Outputs that hold what it caches have no part in it
    (:mod:`trtint8.models.outputs.cached`).

    Stops before the data ends once the SQNR of every layer alone is known to within the tolerance (95 %
    interval) from 64 samples or more; layers that make less than 2 % of the noise may stay uncertain.

    Args:
        prepared: From :func:`trtint8.models.model.prepare`; not changed.
        table: The ranges.
        batches: Samples; of labels only class indices are used.
        keep_float: Names of nodes, or patterns, that stay in float in every variant.
        tolerance_db: Half the width of the intervals, in decibels; 0 takes all samples, and each of them
            shows what layers cost.
        checkpoint: A file that keeps the sums while they grow. Where there is one already, it is continued,
            whether it was begun in one process or by workers. It is removed at the end.
        threads: Threads per operator; ONNX Runtime's choice where None. Of workers, threads and processors of
            each; 1 where None.
        executor: Where the network is run: see :class:`calibrators.run.RunOptions`.
        on_plan: Called with what the measurement will cost, in the time of one process, before it starts.
        progress: Show a progress bar on a terminal.

    Returns:
        The cost of each layer.

    Raises:
        CalibrationDataError: There is no data, it does not fit the model or the checkpoint, or the tolerance
            is no number or negative.
        TableError: The table does not fit the model, or the checkpoint is of another measurement.
        UnsupportedError: Workers cannot be reached or have no room.
        WorkerError: Workers died again and again.
    """
    given, known = set(_output_names(prepared)), frozenset(tensor_names(prepared.graph_model))
    prepared = runnable_part(prepared)
    prepared = prepared.part(before_picks(prepared.graph_model))
    picked_from = tuple(name for name in _output_names(prepared) if name not in given)
    placement = _checked_placement(prepared, table, known, keep_float)
    prepared = _with_noisy_outputs(prepared)
    kept = None
    if checkpoint is not None:
        kept = measurement_checkpoint(checkpoint, prepared, table, keep_float, batches.batch_size)
    run = RunOptions(threads, executor, progress=progress)
    if not run.is_local:
        threads = run.worker_threads
    every_sample = tolerance_db == 0
    quantizer = Quantizer.of(placement, table.amax)
    layers = find_layers(prepared.graph_model.graph, placement)
    measurement = Measurement(prepared, layers, tolerance_db, kept)
    probe = Probe(
        prepared.graph_model,
        quantizer,
        prepared.inputs,
        measurement.skip,
        measurement.effects,
        samples=batches.num_samples,
        every_sample=every_sample,
        threads=threads,
    )
    head, batches = batches.begun()
    if head is None:
        raise no_samples()
    first = next(Batches.of_shard(head, batches.source).labelled())
    labelled = is_class_indices(first.labels)
    seconds = probe.begin(first.feed, 0, labelled=labelled, name_of=batches.name_of)
    on_plan(Plan(len(layers), batches.num_samples, seconds, picked_from))
    if run.is_local:
        with results_here(probe.run, batches, description="Measuring", progress=progress) as results:
            measurement.run(results)
        return measurement.result(table)
    assert probe.effects is not None
    with runnable(prepared.graph_model) as model:
        work = SensitivityWork(
            model,
            prepared.inputs,
            {name: table.amax[name] for name in placement.tensors},
            tuple(keep_float),
            measurement.skip,
            probe.effects,
            batches.num_samples,
            every_sample,
            run.worker_threads,
        )
        del probe  # and what it has opened
        with run.results(work, batches, description="Measuring") as results:
            measurement.run(results)
    return measurement.result(table)


def _output_names(prepared: Model) -> list[str]:
    return [value.name or "" for value in prepared.graph_model.graph.outputs]


def _with_noisy_outputs(prepared: Model) -> Model:
    """A network of batches of any size, without the outputs in which no noise is to be seen.

    These are constants, and what the network caches.
    """
    constants = [value.name or "" for value in prepared.graph_model.graph.outputs if is_constant(value)]
    computed = without_outputs(without_cached_outputs(prepared.graph_model), constants)
    return prepared.part(with_open_batch(computed))


def _checked_placement(
    prepared: Model, table: CalibrationTable, known: Collection[str], keep_float: Sequence[str]
) -> Placement:
    """Where pairs go, with a range for each; ``known`` are all tensors of the whole model.

    Raises:
        TableError: The table does not fit the model.
    """
    placement = place(prepared.graph_model, keep_float)
    table.check_model(prepared.fingerprint, placement.tensors, known)
    return placement
