"""Warnings of ranges that lose too much: of their tensors' values, or of the network's outputs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from calibrators.display.counts import enumerated
from calibrators.histograms.losses import RangeLoss
from calibrators.tables.choice import POOR_DB, RangeChoice

#: How many tensors are named.
_NAMED = 3


def loss_warning(losses: Mapping[str, RangeLoss], method: str) -> str | None:
    """A sentence about ranges that lose more than they should.

    Args:
        losses: Tensor name to loss, the worst first.
        method: How the ranges were chosen.

    Returns:
        The sentence; None where no range loses too much.
    """
    if not losses:
        return None
    named = enumerated(itertools.starmap(_described, losses.items()), _NAMED)
    # The least squared error is that of the few values that are far larger than the others.
    better = "entropy" if any(loss.most for loss in losses.values()) else "mse"
    others = "auto" if method == better else f"auto or {better}"
    advice = (
        "the network's outputs were best so; validate"
        if method == "auto"
        else f"choose the method {others}, or set these ranges by hand"
    )
    count = (
        "1 range loses much of the tensor's values"
        if len(losses) == 1
        else f"{len(losses)} ranges lose much of the tensors' values"
    )
    return f"{count}: {named}; {advice}"


def noise_warning(choice: RangeChoice | None) -> str | None:
    """A sentence about ranges that leave the network's outputs noisy, and are the best of those tried.

    Args:
        choice: How the ranges were chosen; None where they were not compared.

    Returns:
        The sentence; None where the outputs are good enough, or are not known.
    """
    if choice is None or not choice.samples or (level := choice.sqnr_db[choice.rule]) >= POOR_DB:
        return None
    return (
        f"with every layer in INT8 the network's outputs have an SQNR of only {level:.1f} dB "
        f"{choice.judged_by}, and no range that was tried is clearly better; 'trtint8 validate' measures "
        "what that costs, and 'trtint8 tune' restores accuracy"
    )


def _described(name: str, loss: RangeLoss) -> str:
    shown = loss.most or loss
    levels = f"{shown.sqnr_db:.1f} dB where {shown.best_db:.1f} dB are possible"
    levels += " without its few huge values" if loss.most else ""
    return f"'{name}' ({loss.clipped:.2%} clipped, {levels})"
