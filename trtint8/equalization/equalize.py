"""Equalizes the channels of a network; the network computes the same function as before."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from calibrators.data.feeds import FeedDict
from trtint8.equalization.choice import choose_strength
from trtint8.equalization.factor_choice import FactorChoice
from trtint8.equalization.following.follow import follow_channels
from trtint8.equalization.following.shapes import measure_shapes
from trtint8.equalization.forms import find_forms, from_last_to_first
from trtint8.equalization.rewriting import apply_factors
from trtint8.equalization.shared_scales import match_shared_scales
from trtint8.quantization.placement import place


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
    """

    model: ir.Model
    forms: tuple[EqualizedForm, ...]
    unchanged: tuple[str, ...]
    skipped: Mapping[str, str]


def equalize(model: ir.Model, feeds: Iterable[FeedDict], method: str = "mse") -> Equalized:
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
    shapes = measure_shapes(model, first)
    channels = follow_channels(model, shapes)
    positions = {node.name or "": position for position, node in enumerate(model.graph)}
    forms = from_last_to_first(find_forms(channels), positions)
    if not forms:
        return Equalized(copy, (), (), channels.skipped)
    samples = itertools.chain([first], batches)
    choice = FactorChoice.begin(model, placement, channels, shapes, forms, samples, method)
    strengths = [choose_strength(choice, form) for form in forms]
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
    return Equalized(copy, tuple(equalized), tuple(unchanged), channels.skipped)
