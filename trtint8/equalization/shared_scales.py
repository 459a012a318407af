"""Levels of channels whose tensor shares one scale with other tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trtint8.equalization.factor_choice import FactorChoice
from trtint8.equalization.forms import Form


def match_shared_scales(choice: FactorChoice, forms: Sequence[Form]) -> None:
    """Gives channels that share a scale with other tensors the largest range of those tensors.

    The level of factors that weights make up for is free, because weights have one scale per output channel.
    It matters where the activation shares its scale with others, as the values of an attention do with the
    queries and keys that the same layer computes: the whole range of the scale should be used by each.

    Args:
        choice: The factors, all chosen; those of one form are multiplied by its level.
        forms: The forms.
    """
    numbers = np.full(len(choice.factors), -1)
    for number, form in enumerate(forms):
        numbers[form.representatives] = number
    for group in choice.placement.shared:
        if all(name in choice.observed.peaks for name in group):
            held = [numbers[choice.channels.representatives[choice.labels[name]]].ravel() for name in group]
            for number in np.unique(np.concatenate(held)).tolist():
                if number >= 0:
                    _match(choice, forms[number], group)


def _match(choice: FactorChoice, form: Form, group: Sequence[str]) -> None:
    if not form.readings or (choice.factors[form.representatives] == 1).all():
        return
    inside: list[float] = []
    outside: list[float] = []
    for name in group:
        held = np.isin(choice.channels.representatives[choice.labels[name]], form.representatives)
        if held.any() and not held.all():
            return
        (inside if held.all() else outside).append(_peak(choice, name))
    if inside and outside and min(max(inside), max(outside)) > 0:
        choice.factors[form.representatives] *= max(inside) / max(outside)


def _peak(choice: FactorChoice, tensor: str) -> float:
    """The largest magnitude of a tensor with the factors as they are now."""
    return float((choice.observed.peaks[tensor] / choice.factors_of(choice.labels[tensor])).max())
