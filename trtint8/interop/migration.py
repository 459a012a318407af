"""Assigns the ranges of a TensorRT calibration cache to the tensors that get Q/DQ pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calibrators.tables.table import ROUNDING
from trtint8.quantization.config import State
from trtint8.quantization.placement import Placement


@dataclass(frozen=True)
class Proposal:
    """A range for a tensor that the cache lacks.

    Attributes:
        tensor: The name of the tensor.
        source: The name of the tensor in the cache whose range is proposed.
        amax: The proposed amax.
        reason: Why the tensor may have the range of the other one, in words for the user.
    """

    tensor: str
    source: str
    amax: float
    reason: str


@dataclass(frozen=True)
class Migration:
    """How a cache and a graph fit together.

    Attributes:
        missing: Tensors that need a range and have none in the cache.
        unused: Tensors of the cache that the graph lacks, because they were renamed, fused or folded.
        proposals: Ranges for missing tensors, where one follows from the cache.
        widened: Name of a tensor whose scale becomes larger than in the cache, because it shares the scale of
            another tensor, to the factor.
    """

    missing: tuple[str, ...]
    unused: tuple[str, ...]
    proposals: tuple[Proposal, ...]
    widened: Mapping[str, float]

    @property
    def unsolved(self) -> tuple[str, ...]:
        """Missing tensors without a proposal."""
        solved = {proposal.tensor for proposal in self.proposals}
        return tuple(tensor for tensor in self.missing if tensor not in solved)

    @property
    def fills(self) -> dict[str, float]:
        """Tensor name to proposed amax."""
        return {proposal.tensor: proposal.amax for proposal in self.proposals}


def plan_migration(placement: Placement, amax: Mapping[str, float]) -> Migration:
    """Compares a cache with what a placement needs.

    Args:
        placement: The placement for the prepared model.
        amax: Tensor name to amax in the cache.

    Returns:
        The tensors that lack a range, those that are not used, and proposals.
    """
    configs = placement.configs
    missing = tuple(tensor for tensor in placement.tensors if tensor not in amax)
    unused = tuple(name for name in amax if name not in configs)
    dominated: dict[str, list[str]] = {}
    for name in amax:
        if name in configs:
            dominated.setdefault(configs.dominator(name), []).append(name)
    proposals = []
    for tensor in missing:
        relatives = dominated.get(configs.dominator(tensor), [])
        if relatives:
            source = max(relatives, key=lambda name: amax[name])
            reason = "fused with it" if configs[source].state is State.OVERLAPPED else "shares its scale"
            proposals.append(Proposal(tensor, source, amax[source], reason))
    known = {**amax, **{proposal.tensor: proposal.amax for proposal in proposals}}
    return Migration(missing, unused, tuple(proposals), _widened(placement, known, amax))


def _widened(
    placement: Placement, known: Mapping[str, float], cache: Mapping[str, float]
) -> dict[str, float]:
    widened = {}
    for group in placement.shared:
        widest = max((known[tensor] for tensor in group if tensor in known), default=0.0)
        for tensor in group:
            if cache.get(tensor, 0.0) > 0 and widest > ROUNDING * cache[tensor]:
                widened[tensor] = widest / cache[tensor]
    return widened
