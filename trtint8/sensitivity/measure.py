"""Measures what each layer's quantization costs, batch by batch until the figures are certain enough.

Each batch is measured by itself, in any process, by workers as well. Sums grow batch by batch, and say when
they are enough.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from calibrators.checks import FilePath, is_number, several
from calibrators.data.batches import Batches
from calibrators.data.feeds import Array, FeedDict, batch_rows
from calibrators.data.inputs import InputSpec, shape_text
from calibrators.data.samples import DataFingerprint, check_feed, numbered
from calibrators.data.sources.arrays import first_labels, is_class_indices
from calibrators.errors import Argument, CalibrationDataError, TableError
from calibrators.host.checkpoint import Checkpoint, Timer
from calibrators.host.work import BatchFunction, check_sees, results_here
from calibrators.progress import MEASURING
from calibrators.run import Executor, RunOptions
from calibrators.tables.table import CalibrationTable
from trtint8.models.graph import made_by, module_of
from trtint8.models.model import Model, load_model
from trtint8.models.outputs.joined import compared_tensors, giving
from trtint8.models.outputs.picked import (
    ShownPicks,
    before_picks,
    find_shown_picks,
    giving_picks,
    runnable_part,
)
from trtint8.models.samples.joining import with_open_batch
from trtint8.models.serialization import runnable
from trtint8.models.session import open_graph_model
from trtint8.quantization.operators import commutes_with_quantization
from trtint8.quantization.placement import only_read_by, place
from trtint8.quantization.quantize import tensor_names
from trtint8.sensitivity.effects import ALL, ONLY, WITHOUT, EffectMeter, output_scales, variants_of
from trtint8.sensitivity.gradients.rule import NoGradientError
from trtint8.sensitivity.local import LocalMeter
from trtint8.sensitivity.quick_probe import QuickNetwork
from trtint8.sensitivity.results import (
    LayerSensitivity,
    Measured,
    Sensitivity,
    Suspect,
    channel_suspects,
    measurement_checkpoint,
    neighbour_suspects,
    range_suspects,
    weight_suspects,
)
from trtint8.simulation.networks import Layer, Quantizer, find_layers, quantized_network
from trtint8.simulation.segments import Tensors, cut, propagate
from trtint8.validation.batch import BatchForm
from trtint8.validation.fidelity import PicksMeter


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
    checkpoint: FilePath | None = None,
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
    many, with some that are drawn from them (:mod:`trtint8.sensitivity.effects`). Where the data does not say
    how many samples it has, each of them shows what layers cost.

    Where the network picks elements at its end, such as boxes, noise is that of the tensors that they are
    picked from (:mod:`trtint8.models.outputs.picked`). Outputs that hold what it caches, and what INT8 cannot
    change, have no part in it (:mod:`trtint8.models.outputs.joined`). How many picks change with every layer
    in INT8 is counted beside the noise, by running both networks up to what shows them.

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
    # Of the whole model, also what is cut off.
    given, known = set(_output_names(prepared)), frozenset(tensor_names(prepared.graph_model))
    prepared = runnable_part(prepared)
    shown = find_shown_picks(prepared.graph_model)
    picking = with_open_batch(giving_picks(prepared.graph_model, shown)) if shown else None
    prepared = prepared.part(before_picks(prepared.graph_model))
    picked_from = tuple(name for name in _output_names(prepared) if name not in given)
    in_float = table.layers_in_float
    placement = place(prepared.graph_model, keep_float, float_layers=in_float)
    table.check_model(prepared.fingerprint, placement.tensors, known)
    compared = giving(prepared.graph_model, compared_tensors(prepared.graph_model, placement.reading_pairs))
    prepared = prepared.part(with_open_batch(compared))
    kept = None
    if checkpoint is not None:
        kept = measurement_checkpoint(
            checkpoint, prepared, table, (*several(keep_float), *in_float), batches.batch_size
        )
    run = RunOptions(threads, executor, progress=progress)
    quantizer = _rounding_once(prepared.graph_model.graph, Quantizer.of(placement, table.amax))
    layers = find_layers(prepared.graph_model.graph, quantizer.placement)
    copies = _copied_inputs(layers, find_layers(prepared.graph_model.graph, placement))
    measurement = Measurement(prepared, layers, tolerance_db, kept, copies, shown)
    make = partial(
        Probe,
        inputs=prepared.inputs,
        skip=measurement.skip,
        samples=batches.num_samples,
        every_sample=tolerance_db == 0,
        threads=threads if run.is_local else run.worker_threads,
        shown=shown,
    )
    probe = make(prepared.graph_model, quantizer, effects=measurement.effects, picking=picking)
    head, batches = batches.begun()
    if head is None:
        raise _no_samples()
    first = next(Batches.of_shard(head, batches.source).labelled())
    labelled = is_class_indices(first.labels)
    seconds = probe.begin(first.feed, 0, labelled=labelled, name_of=batches.name_of)
    on_plan(Plan(len(layers), batches.num_samples, seconds, picked_from))
    with contextlib.ExitStack() as stack:
        if run.is_local:
            results = stack.enter_context(
                results_here(probe.run, batches, description=MEASURING, progress=progress)
            )
        else:
            sent = _SensitivityWork(
                partial(make, effects=probe.effects),
                {name: table.amax[name] for name in placement.tensors},
                several(keep_float),
                in_float,
                stack.enter_context(runnable(prepared.graph_model)),
                stack.enter_context(runnable(picking)) if picking else None,
            )
            del probe  # and what it has opened
            results = stack.enter_context(run.results(sent, batches, description=MEASURING))
        measurement.run(results)
    accurate = (one.node for one in placement.decisions if one.cause == "accuracy")
    return replace(measurement.result(table), in_float=tuple(accurate))


def _output_names(prepared: Model) -> list[str]:
    return [value.name or "" for value in prepared.graph_model.graph.outputs]


def _rounding_once(graph: ir.Graph, quantizer: Quantizer) -> Quantizer:
    """A quantizer without the pairs that round the same values on the same grid as another pair does.

    Such a pair changes nothing in the whole network. By itself it would show the other one's noise once more.
    What a Concat copies is rounded by those that read it, if all of them do. What another operator copies is
    rounded by that operator, if it is.
    """
    placement = quantizer.placement
    edges = {(edge.node, edge.index) for edge in placement.activations}
    nodes = {node.name: node for node in graph}
    copying = {
        name for name, node in nodes.items() if _is_concat(node) and only_read_by(node.outputs[0], edges)
    }
    once = tuple(
        edge
        for edge in placement.activations
        if edge.node not in copying and not _is_rounded_before(nodes[edge.node].inputs[edge.index], edges)
    )
    return replace(quantizer, placement=replace(placement, activations=once))


def _is_concat(node: ir.Node) -> bool:
    return node.op_type == "Concat" and not node.domain


def _is_rounded_before(value: ir.Value | None, edges: Collection[tuple[str, int]]) -> bool:
    """Whether an operator that moved a value rounded it, such as one behind an attention."""
    while value is not None and (node := value.producer()) is not None and commutes_with_quantization(node):
        if (node.name or "", 0) in edges:
            return True
        value = node.inputs[0]
    return False


def _copied_inputs(layers: Iterable[Layer], placed: Iterable[Layer]) -> dict[str, tuple[Layer, ...]]:
    """The Concats whose copies each layer reads.

    Args:
        layers: The layers that are measured.
        placed: All layers of the placement, of the same graph.

    Returns:
        Name of a layer to those Concats of ``placed`` that are not measured and whose output it reads,
        possibly through others and through operators that round nothing; in the order in which they run.
    """
    measured = {layer.name for layer in layers}
    joining = {layer.node: layer for layer in placed if _is_concat(layer.node) and layer.name not in measured}
    found = {}
    for layer in layers:
        met: set[ir.Node] = set()
        values = [layer.node.inputs[edge.index] for edge in layer.activations]
        while values:
            value = values.pop()
            node = made_by(value)
            if node is None or node in met:
                continue
            if node in joining:
                met.add(node)
                values += node.inputs
            elif commutes_with_quantization(node):
                values.append(node.inputs[0])
        found[layer.name] = tuple(one for node, one in joining.items() if node in met)
    return found


#: Layers that make less than this share of the noise may stay uncertain.
_MATTERING = 0.02

#: The fewest samples before a figure counts as certain.
_FEWEST_SAMPLES = 64


class Measurement:
    """The sums so far.

    Args:
        prepared: The model.
        layers: The model's layers.
        tolerance_db: Half the width of the intervals that are wanted, in decibels; 0 takes all samples.
        checkpoint: Where the sums are kept while they grow, and where they are continued from; None keeps
            nothing.
        copies: Name of a layer to the Concats whose copies it reads.
        shown: The tensors that show what the network picks.

    Attributes:
        skip: How many of the first samples are in the checkpoint. They are only compared with those that it
            has seen.

    Raises:
        CalibrationDataError: The tolerance is no number, or negative.
        TableError: The checkpoint is of another measurement.
    """

    def __init__(
        self,
        prepared: Model,
        layers: Sequence[Layer],
        tolerance_db: float,
        checkpoint: Checkpoint[Measured] | None,
        copies: Mapping[str, Sequence[Layer]] | None = None,
        shown: Sequence[ShownPicks] = (),
    ) -> None:
        if not (is_number(tolerance_db) and tolerance_db >= 0):
            raise CalibrationDataError(
                f"{Argument('tolerance_db')} is {tolerance_db!r}; give a number of decibels, 0 or more"
            )
        self._prepared, self._layers, self._tolerance_db = prepared, tuple(layers), float(tolerance_db)
        self._names = tuple(layer.name for layer in layers)
        self._checkpoint, self._copies = checkpoint, copies or {}
        self._saved = checkpoint.load() if checkpoint else None
        self._timer = Timer(checkpoint.seconds if checkpoint else 0.0)
        self._fingerprint, self._labels = DataFingerprint(), DataFingerprint()
        self._effects: EffectMeter | None = None
        self._local = LocalMeter(self._names)
        self._picks = PicksMeter(shown)
        self._converged = False
        self.skip = 0
        if self._saved is not None:
            variants = variants_of(self._names, predicted=self._saved.effects.predicted)
            self._saved.check_layers(self._names, variants)
            self._saved.check_picks(self._picks)
            self._picks = PicksMeter(shown, self._saved.picks)
            self.skip = self._saved.samples
            self._effects, self._local = self._saved.effects, self._saved.local

    @property
    def effects(self) -> EffectMeter | None:
        """A meter like that of the checkpoint, without data; None where nothing was kept."""
        return None if self._saved is None else self._saved.effects.fresh()

    def run(self, results: Iterable[BatchEffects]) -> None:
        """Takes batches in the order of the data until the figures are certain, or there are no more.

        Raises:
            CalibrationDataError: There are no samples, not those that the checkpoint has seen, or not with
                the same labels.
        """
        for result in results:
            self._fingerprint = self._fingerprint.merge(result.fingerprint)
            self._labels = self._labels.merge(result.labels)
            if result.effects is None or result.local is None:
                self._check_same_data(ended=False)
                continue
            if self._effects is None:
                self._effects = result.effects.fresh()
            self._effects.merge(result.effects)
            self._local.merge(result.local)
            if result.picks is not None:
                self._picks.merge(result.picks)
            if self._checkpoint and self._timer.due():
                self._checkpoint.save(self._progress(self._effects))
            self._converged = self._tolerance_db > 0 and self._is_certain()
            if self._converged:
                break
        if self._effects is None:
            raise _no_samples()
        # All samples were asked for, whatever they show.
        self._converged = self._converged or self._tolerance_db == 0
        self._check_same_data(ended=True)
        if self._checkpoint:
            self._checkpoint.remove()

    def _progress(self, effects: EffectMeter) -> Measured:
        """What a checkpoint keeps."""
        seen = self._fingerprint
        digests = seen.hexdigest(), self._labels.hexdigest()
        return Measured(seen.samples, *digests, effects, self._local, self._picks.counts)

    def _check_same_data(self, *, ended: bool) -> None:
        """Compares skipped samples, and their labels, with those that the checkpoint has seen."""
        if self._saved is None:
            return
        seen = self._fingerprint
        other = seen.samples == self.skip and seen.hexdigest() != self._saved.data
        beyond = seen.samples > self.skip and not ended
        if other or beyond or (ended and seen.samples < self.skip):
            raise CalibrationDataError(
                "the checkpoint was made with other samples, or in another order; give those, or remove the "
                "checkpoint to begin anew"
            )
        if seen.samples == self.skip and self._labels.hexdigest() != self._saved.labels:
            raise CalibrationDataError(
                "the checkpoint was made with other labels, or without any; give the same, or remove the "
                "checkpoint to begin anew"
            )

    def _is_certain(self) -> bool:
        assert self._effects is not None
        if self._fingerprint.samples < _FEWEST_SAMPLES:
            return False
        noise = {name: self._effects.noise((ONLY, name)) for name in self._names}
        least = _MATTERING * sum(noise.values())
        effects = self._effects.effects((ONLY, name) for name, power in noise.items() if power > least)
        return all(one.interval_db[1] - one.sqnr_db <= self._tolerance_db for one in effects)

    def result(self, table: CalibrationTable) -> Sensitivity:
        """What the sums say."""
        meter = self._effects
        assert meter is not None
        alone = [(ONLY, name) for name in self._names]
        noise = [meter.noise(variant) for variant in alone]
        total = sum(noise)
        shares = [power / total if total else 0.0 for power in noise]
        without = (
            meter.remaining_effects(self._names)
            if meter.predicted
            else meter.effects((WITHOUT, name) for name in self._names)
        )
        layers = []
        for layer, own, others, share in zip(
            self._layers, meter.effects(alone), without, shares, strict=True
        ):
            weights_db, activations_db, cumulative_db = self._local.levels(layer.name)
            layers.append(
                LayerSensitivity(
                    layer.name,
                    layer.node.op_type,
                    own,
                    others,
                    weights_db if layer.weights else None,
                    activations_db if layer.activations else None,
                    cumulative_db,
                    share,
                    tuple(self._suspects(layer, table, noisy=share > 1 / len(self._layers))),
                    tuple(copy.name for copy in self._copies.get(layer.name, ())),
                    module_of(layer.node),
                )
            )
        return Sensitivity(
            self._fingerprint.samples,
            self._converged,
            self._tolerance_db,
            meter.effect(ALL),
            meter.reference_top1(),
            tuple(layers),
            self._prepared.fingerprint,
            table.fingerprint,
            self._fingerprint.hexdigest(),
            meter.shown(alone) or self._fingerprint.samples,
            picks_changed=self._picks.value(),
        )

    def _suspects(self, layer: Layer, table: CalibrationTable, *, noisy: bool) -> list[Suspect]:
        """What is suspicious about a layer; ``noisy`` says whether it makes more noise than the mean one."""
        rounded: dict[str, ir.Value] = {}
        for one in (layer, *self._copies.get(layer.name, ())):
            for edge in one.activations:
                value = one.node.inputs[edge.index]
                assert value is not None
                rounded[edge.tensor] = value
        found: list[Suspect] = []
        for tensor, value in rounded.items():
            found += range_suspects(tensor, table.amax[tensor], table.histograms.get(tensor))
            if noisy:  # most layers behind such operators do well
                found += neighbour_suspects(value)
        channels = self._local.channels(layer.name)
        if layer.activations and channels is not None:
            found += channel_suspects(layer.activations[0].tensor, channels)
        for edge in layer.weights:
            constant = layer.node.inputs[edge.index]
            assert constant is not None and constant.const_value is not None
            weights = np.asarray(constant.const_value.numpy(), np.float32)
            found += weight_suspects(edge.tensor, weights, edge.axis)
        return found


def _no_samples() -> CalibrationDataError:
    """The error of a measurement without data."""
    return CalibrationDataError("the data holds no samples; give some")


_logger = logging.getLogger(__name__)

#: Samples with which layers are measured by themselves: their errors hardly differ from sample to sample.
_LOCAL_SAMPLES = 32


@dataclass(frozen=True)
class BatchEffects:
    """What one batch showed.

    Attributes:
        fingerprint: Fingerprint of the batch's samples.
        effects: What each variant costs; None where the batch was skipped.
        local: Errors at every layer; None where the batch was skipped.
        labels: Fingerprint of the labels, each with its sample; empty where there are none that the network's
            classes are compared with.
        picks: The picks that change; None where the batch was skipped, or the network picks nothing.
    """

    fingerprint: DataFingerprint
    effects: EffectMeter | None = None
    local: LocalMeter | None = None
    labels: DataFingerprint = field(default_factory=DataFingerprint)
    picks: PicksMeter | None = None

    @property
    def samples(self) -> int:
        """How many samples the batch has."""
        return self.fingerprint.samples


class _PickRuns:
    """The float network and the one with every layer in INT8, both run up to what shows their picks.

    Args:
        graph_model: The network that gives the tensors that show what it picks; not changed.
        quantizer: How its tensors are quantized; it may name nodes that the network has no more.
        shown: These tensors.
        threads: Threads per operator; ONNX Runtime's choice where None.
    """

    def __init__(
        self,
        graph_model: ir.Model,
        quantizer: Quantizer,
        shown: Sequence[ShownPicks],
        threads: int | None,
    ) -> None:
        self._shown = tuple(shown)
        self._float = open_graph_model(graph_model, threads=threads)
        there = quantizer.only({node.name or "" for node in graph_model.graph})
        quantized = quantized_network(graph_model, there)
        self._int8 = open_graph_model(quantized, threads=threads, used_up=True)

    def count(self, feed: FeedDict) -> PicksMeter:
        """Counts the picks of one batch that change.

        Raises:
            CalibrationDataError: ONNX Runtime fails on the batch.
        """
        wanted, got = (
            dict(zip(session.output_names, session.run(feed), strict=True))
            for session in (self._float, self._int8)
        )
        meter = PicksMeter(self._shown)
        meter.add(got, wanted, batch_rows(feed) or 1)
        return meter


class Probe:
    """A network that is ready to be fed.

    Effects of single layers are predicted by gradients where these are known for all operators of the
    network. Elsewhere every layer is run alone and left out alone.

    Args:
        graph_model: From :func:`trtint8.models.model.prepare`; not changed.
        quantizer: How the model's tensors are quantized.
        inputs: The network's inputs.
        skip: How many of the first samples are checked and not run.
        effects: A meter without data, whose scales hold, and which says whether effects are predicted; None
            decides by the first batch, see :meth:`begin`.
        samples: How many samples the data has, where that is known.
        every_sample: Whether each of them shows what the layers cost, where gradients predict it; see
            :class:`trtint8.sensitivity.quick_probe.QuickNetwork`.
        threads: Threads per operator; ONNX Runtime's choice where None.
        shown: The tensors that show what the network picks.
        picking: The network that gives these tensors; None where it picks nothing.

    Raises:
        TableError: The meter is of other outputs than the network's.

    Attributes:
        effects: A meter without data, whose scales hold; None before they are known.
        layers: The network's layers, in the order in which they run.
    """

    def __init__(
        self,
        graph_model: ir.Model,
        quantizer: Quantizer,
        *,
        inputs: Sequence[InputSpec],
        skip: int = 0,
        effects: EffectMeter | None = None,
        samples: int | None = None,
        every_sample: bool = False,
        threads: int | None = None,
        shown: Sequence[ShownPicks] = (),
        picking: ir.Model | None = None,
    ) -> None:
        self.effects = effects
        self._pick_runs = _PickRuns(picking, quantizer, shown, threads) if picking else None
        self._network = cut(graph_model, quantizer, threads=threads)
        self._inputs, self._skip = tuple(inputs), skip
        if effects and not set(effects.scales).issubset(part.name for part in self._network.parts):
            raise TableError(
                f"the checkpoint is of the outputs {', '.join(effects.scales)}, which are not those of the "
                "model; remove it to begin anew"
            )
        self.layers = self._network.layers
        self._names = tuple(layer.name for layer in self.layers)
        self._quick: QuickNetwork | None = None
        if self.layers and (effects is None or effects.predicted):
            try:
                self._quick = QuickNetwork(
                    graph_model,
                    quantizer,
                    self._network,
                    samples=samples,
                    every_sample=every_sample,
                    threads=threads,
                )
            except NoGradientError as error:
                _logger.info("every layer is run by itself: %s", error)

    def begin(
        self, feed: FeedDict, first: int, *, labelled: bool, name_of: Callable[[int], str] = numbered
    ) -> float:
        """Takes the scales of the outputs from a batch, where they are not known yet, and estimates the time.

        Args:
            feed: The batch.
            first: How many samples come before it, for messages.
            labelled: Whether the data has class indices as labels.
            name_of: Returns the name of a sample in messages, by its number in the order of iteration.

        Returns:
            Seconds per sample.
        """
        check_feed(feed, self._inputs, first, name_of)
        reference, samples, seconds = self._begin(feed)
        if self.effects is None:
            self.effects = self._new_effects(reference, samples, labelled=labelled)
        return seconds / (batch_rows(feed) or 1)

    def _begin(self, feed: FeedDict) -> tuple[Tensors, int, float]:
        """The float network's outputs for some samples, how many they are, and seconds for the batch."""
        if self._quick is not None:
            try:
                return self._quick.begin(feed)
            except (CalibrationDataError, NoGradientError) as error:
                # Where it is the batch that does not fit, the network itself fails as well.
                _logger.info("every layer is run by itself: %s", error)
                self._quick = None
        reference = self._network.run_float(feed)
        start = time.perf_counter()  # the first run also opens the sessions
        self._network.run_float(feed)
        # On average half of a network is computed once more for each of its layers, in float and in INT8.
        seconds = (time.perf_counter() - start) * (2 + len(self.layers))
        return reference, batch_rows(feed) or 1, seconds

    def run(
        self,
        feed: FeedDict,
        labels: Array | None,
        first: int,
        name_of: Callable[[int], str] = numbered,
    ) -> BatchEffects:
        """Measures all layers with a batch.

        Args:
            feed: The batch.
            labels: Labels from the batch's first sample on; None without labels.
            first: How many samples of the data come before it.
            name_of: Returns the name of a sample in messages, by its number in the order of iteration.

        Raises:
            CalibrationDataError: The batch does not fit the model, or there are too few labels.
        """
        check_feed(feed, self._inputs, first, name_of)
        assert self.effects is not None
        fingerprint = DataFingerprint()
        digests = fingerprint.observe(feed)
        own_labels = first_labels(labels, fingerprint.samples, first)
        seen_labels = _seen_labels(digests, own_labels if self.effects.classes else None)
        if first < self._skip:
            return BatchEffects(fingerprint, labels=seen_labels)
        effects = self.effects.fresh()
        picks = None if self._pick_runs is None else self._pick_runs.count(feed)
        if self._quick is not None:
            try:
                local = self._quick.measure(feed, own_labels, first, effects)
            except NoGradientError as error:
                shapes = ", ".join(f"'{name}' {shape_text(array.shape)}" for name, array in feed.items())
                raise CalibrationDataError(
                    f"a batch of other shapes than the first one, {shapes}, cannot be measured like it "
                    f"({error}); give samples of one shape"
                ) from error
            return BatchEffects(fingerprint, effects, local, seen_labels, picks)
        local = LocalMeter(self._names)
        watch = local.watch(fingerprint.samples, alone=first < _LOCAL_SAMPLES)
        found = propagate(self._network, feed, watch)
        reference = self._network.split(found.reference)
        effects.add(ALL, self._network.split(found.quantized), reference, own_labels, first)
        for word, variants in ((ONLY, found.only), (WITHOUT, found.without)):
            for name, outputs in variants.items():
                effects.add((word, name), self._network.split(outputs), reference, own_labels, first)
        return BatchEffects(fingerprint, effects, local, seen_labels, picks)

    def _new_effects(self, reference: Tensors, samples: int, *, labelled: bool) -> EffectMeter:
        first = self._network.outputs[0]
        labels = np.zeros(samples, np.int64) if labelled else None
        form = BatchForm.of({first: reference[first]}, labels, samples)
        predicted = self._quick is not None
        variants = variants_of(self._names, predicted=predicted)
        return EffectMeter(
            variants,
            output_scales(self._network.split(reference)),
            classes=bool(form.class_outputs),
            labelled=labelled,
            predicted=predicted,
        )


def _seen_labels(digests: Sequence[int], labels: Array | None) -> DataFingerprint:
    """The fingerprint of class indices; empty for other labels, which are not used.

    Args:
        digests: The digest of each sample: the same labels for other samples are not the same.
        labels: One label per sample, or None.
    """
    seen = DataFingerprint()
    if is_class_indices(labels):
        samples = np.array([f"{digest:064x}" for digest in digests])
        seen.observe({"sample": samples, "label": labels.astype(np.int64)})
    return seen


@dataclass(frozen=True)
class _SensitivityWork:
    """Runs all variants of a network on single batches, in another process.

    Attributes:
        make: Makes the probe of a network.
        amax: The ranges that placement needs.
        keep_float: Names of nodes, or patterns, that stay in float.
        float_layers: Names of nodes that stay in float for accuracy.
        model: The prepared model, serialized; or, beyond 2 GiB, its path.
        picking: The same of the network that gives what shows its picks; None where it picks nothing.
    """

    make: Callable[..., Probe]
    amax: Mapping[str, float]
    keep_float: Sequence[str]
    float_layers: tuple[str, ...]
    model: bytes | Path
    picking: bytes | Path | None

    def open(self) -> BatchFunction[BatchEffects]:
        """Opens the model."""
        graph_model, picking = _loaded(self.model), self.picking and _loaded(self.picking)
        placement = place(graph_model, self.keep_float, float_layers=self.float_layers)
        quantizer = _rounding_once(graph_model.graph, Quantizer.of(placement, self.amax))
        return self.make(graph_model, quantizer, picking=picking).run


def _loaded(model: bytes | Path) -> ir.Model:
    check_sees(model)
    return load_model(model).graph_model
