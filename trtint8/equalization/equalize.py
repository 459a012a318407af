"""Equalizes the channels of a network; the network computes the same function as before.

A float model and its calibration table, equalized and calibrated anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import onnx_ir as ir

from calibrators.checks import warn_user
from calibrators.data.feeds import FeedDict, first_feeds
from calibrators.data.inputs import DataOptions, InputSpec
from calibrators.data.opening import DataSource, open_data
from calibrators.data.samples import Preflight
from calibrators.data.sources.random_samples import warn_of_random
from calibrators.errors import TableError
from calibrators.histograms.thresholds import Method
from calibrators.progress import job, progress_bar
from calibrators.run import RunOptions
from calibrators.tables.choice import FloatLayers
from calibrators.tables.table import CalibrationTable
from trtint8.calibration import CalibrationOptions, Observed, calibrate_model, float_tensors
from trtint8.equalization.factors import CLIP_MARGIN, FactorChoice, choose_strength, match_shared_scales
from trtint8.equalization.following.constants import shapes_of_samples
from trtint8.equalization.following.follow import follow_channels
from trtint8.equalization.forms import apply_factors, find_forms, from_last_to_first
from trtint8.models.model import Model, rebuilt
from trtint8.models.outputs.picked import runnable_part, with_plugins
from trtint8.models.shapes import FittingBatchSize
from trtint8.models.states import with_recorded_states
from trtint8.quantization.placement import place
from trtint8.quantization.quantize import tensor_names


@dataclass(frozen=True)
class EqualizedForm:
    """Channels that were equalized.

    Attributes:
        description: From which nodes to which.
        channels: Number of factors.
        strength: How much of the differences between channels was moved, from 0 to 1.
        smallest: The smallest factor.
        largest: The largest factor.
    """

    description: str
    channels: int
    strength: float
    smallest: float
    largest: float


@dataclass(frozen=True)
class Equalized:
    """A model with equalized activations.

    Attributes:
        model: The new model.
        forms: What was equalized, in graph order; empty where the model is as it was.
        unchanged: Descriptions of what could be equalized and would not become better.
        skipped: Name of each node whose output channels must keep their values, to the reason in words.
        headroom: Up to how many times its largest value in the samples each channel computes the same that a
            factor brought closer to a bound, such as a Relu6's, at least; beyond it, the bound cuts it off.
            None where there is no such channel.
    """

    model: ir.Model
    forms: tuple[EqualizedForm, ...]
    unchanged: tuple[str, ...]
    skipped: Mapping[str, str]
    headroom: float | None = None


def equalize(
    model: ir.Model, feeds: Iterable[FeedDict], method: str = "mse", *, through_clips: bool = False
) -> Equalized:
    """Divides channels of activations by factors, and changes the constants that read them.

    In TensorRT weights have one scale per output channel, but activations have one scale per tensor: a
    channel that is a hundred times smaller than another one is left with about one step. So channels are
    divided where they are produced (in the weights of a layer, or in the factors and offsets of a
    normalization) and multiplied in the weights that read them; or, where two activations are multiplied,
    divided on one side and multiplied on the other. Only operators lie between that leave such factors as
    they are, so the float network computes the same as before, up to rounding.

    How much of the differences moves into the weights is chosen for each form by the error at the output of
    the layers that read the channels, with both operands quantized. Channels for which that error would not
    become clearly smaller keep their values.

    Args:
        model: From :func:`trtint8.models.model.prepare`; not changed.
        feeds: Samples, batch by batch, which are iterated over once; the float network is run on them.
        method: The calibration method that the new model will be calibrated with.
        through_clips: Whether channels are also scaled between which a Clip, such as a Relu6, cuts values
            off. Such channels are only scaled up, and only so far that the bound is at four times the largest
            value of these samples or more. The network computes the same for all samples whose values stay
            below that, and cuts others off there.

    Returns:
        The new model, whose ranges have changed, so that it must be calibrated again.

    Raises:
        CalibrationDataError: The model fails on a batch.
        ModelError: The model has no weighted node.
    """
    copy, batches = model.clone(), iter(feeds)
    first = next(batches, None)
    if first is None:
        return Equalized(copy, (), (), {})
    placement = place(model)
    channels = follow_channels(model, shapes_of_samples(model, first), through_clips=through_clips)
    positions = {node.name or "": position for position, node in enumerate(model.graph)}
    forms = from_last_to_first(find_forms(channels), positions)
    if not forms:
        return Equalized(copy, (), (), channels.skipped)
    samples = itertools.chain([first], batches)
    choice = FactorChoice(model, placement, channels, forms, samples, method)
    with progress_bar("Choosing factors", len(forms), enabled=False) as advance:
        strengths = []
        for form in forms:
            strengths.append(choose_strength(choice, form))
            advance(1)
    match_shared_scales(choice, forms)
    apply_factors(copy, channels, choice.factors)
    equalized, unchanged = [], []
    for form, strength in zip(reversed(forms), reversed(strengths), strict=True):
        factors = choice.factors[form.representatives]
        if strength is None:
            unchanged.append(form.description)
        else:
            smallest, largest = float(factors.min()), float(factors.max())
            equalized.append(EqualizedForm(form.description, len(factors), strength, smallest, largest))
    scaled = (choice.least > 0) & (choice.factors < 1)
    headroom = (
        CLIP_MARGIN * float((choice.factors[scaled] / choice.least[scaled]).min()) if scaled.any() else None
    )
    return Equalized(copy, tuple(equalized), tuple(unchanged), channels.skipped, headroom)


#: Number of samples that factors are chosen with.
_SAMPLES = 128


@dataclass(frozen=True)
class EqualizedModel:
    """An equalized float model and its ranges; the model and the table as they were where nothing was done.

    Attributes:
        model: The prepared float model, whose function is that of the original.
        table: The calibration table of this model.
        equalized: What was equalized.
    """

    model: Model
    table: CalibrationTable
    equalized: Equalized


def equalize_and_calibrate(
    prepared: Model,
    table: CalibrationTable,
    data: DataSource,
    data_options: DataOptions,
    tensors: Observed = "placed",
    *,
    progress: bool = True,
) -> EqualizedModel:
    """Equalizes a float model, and calibrates it anew with the method of its table.

    Args:
        prepared: The float model, from :func:`trtint8.models.model.prepare`; not changed.
        table: The model's calibration table; its method is used again.
        data: Calibration samples, which are read twice.
        data_options: How the samples are read.
        tensors: Which tensors of the new model are observed: ``all`` where the rest is to become FP16.
        progress: Whether a progress bar is shown on a terminal.

    Raises:
        TableError: The table is of another model, its method is unknown here, or it has ranges set by hand.
        CalibrationDataError: The data does not fit the model, or can be read only once.

    Warns:
        UserWarning: Nothing in the model can be equalized, or nothing would become better.
    """
    placement = place(prepared.graph_model)
    table.check_model(prepared.fingerprint, placement.tensors, tensor_names(prepared.graph_model))
    spend = FloatLayers.allowance(table.float_layers)
    try:
        options = CalibrationOptions(cast(Method, table.method), tensors, spend)
    except TableError as error:
        raise TableError(f"equalization calibrates anew with the table's method: {error.template}") from error
    if table.overridden:
        raise TableError(
            f"the range of '{min(table.overridden)}' was set by hand, and equalization changes ranges; give "
            "a table without such ranges, and set them in the new table"
        )
    size = FittingBatchSize(prepared.graph_model, placement.tensors).rule
    data = with_recorded_states(data, prepared)
    batches = open_data(
        data, prepared.inputs, replace(data_options, default_batch_size=None, split="train")
    ).fitting(size)
    warn_of_random(data)
    part = runnable_part(prepared)
    with job(enabled=progress):
        equalized = equalize(
            part.graph_model, _checked(first_feeds(batches, _SAMPLES), part.inputs), table.method
        )
    run = RunOptions(progress=progress)
    if not equalized.forms:
        warn_user(_nothing_done(prepared.name, equalized), note=True)
        if tensors == "all" and not table.peaks.keys() >= set(float_tensors(part)):
            table = _completed(table, calibrate_model(prepared, batches, options, DataOptions(), run))
        return EqualizedModel(prepared, table, equalized)
    model = rebuilt(with_plugins(equalized.model, prepared.graph_model), prepared.name)
    new_table = calibrate_model(model, batches, options, DataOptions(), run)
    fed = new_table.provenance.inputs
    if fed is not None:  # by batches, which do not say what images go through
        fed = replace(fed, preprocessing=data_options.applied or "none")
    provenance = replace(new_table.provenance, inputs=fed)
    return EqualizedModel(model, replace(new_table, provenance=provenance), equalized)


def _completed(table: CalibrationTable, seen: CalibrationTable) -> CalibrationTable:
    """A table with the tensors, and the largest values, that it lacks and that another calibration has."""
    amax, histograms = {**seen.amax, **table.amax}, {**seen.histograms, **table.histograms}
    return replace(table, amax=amax, histograms=histograms)


def _checked(feeds: Iterable[FeedDict], inputs: Sequence[InputSpec]) -> Iterator[FeedDict]:
    """The same feeds; refuses those that the model cannot take or that hold values without meaning."""
    preflight = Preflight(inputs)
    for feed in feeds:
        preflight.observe(feed)
        yield feed


def _nothing_done(name: str, equalized: Equalized) -> str:
    if equalized.unchanged:
        return (
            f"the channels of '{name}' are even enough that equalization gains nothing; the model is "
            "quantized as it is"
        )
    reason = next(iter(equalized.skipped.values()), "no layer's output reaches another layer")
    return f"nothing in '{name}' can be equalized ({reason}); the model is quantized as it is"
