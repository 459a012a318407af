"""The warning of ranges that lose more of their tensors' values than they should."""

from __future__ import annotations

from collections.abc import Mapping

from calibrators.histograms.losses import RangeLoss

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
    named = [_described(name, loss) for name, loss in list(losses.items())[:_NAMED]]
    more = f" and {len(losses) - _NAMED} more" if len(losses) > _NAMED else ""
    advice = (
        "the network's outputs were best so; validate"
        if method == "auto"
        else "choose the method auto or mse, or set these ranges by hand"
    )
    count = (
        "1 range loses much of the tensor's values"
        if len(losses) == 1
        else f"{len(losses)} ranges lose much of the tensors' values"
    )
    return f"{count}: {', '.join(named)}{more}; {advice}"


def _described(name: str, loss: RangeLoss) -> str:
    levels = f"{loss.sqnr_db:.1f} dB where {loss.best_db:.1f} dB are possible"
    return f"'{name}' ({loss.clipped:.2%} clipped, {levels})"
