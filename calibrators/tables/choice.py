"""How the ranges of a table were chosen by what they cost the network.

Scales of symmetric INT8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from calibrators.checks import is_number
from calibrators.errors import Argument, CalibrationDataError, enumerated, titled
from calibrators.histograms.rules import MEANINGS
from calibrators.records import Count

#: An SQNR of a network's outputs in decibels, below which INT8 may have made them useless.
POOR_DB = 15.0

#: How many outputs are named.
_NAMED = 3


@dataclass(frozen=True)
class RangeChoice:
    """The rule that was taken, and what each rule cost.

    Attributes:
        rule: The rule that the ranges follow, one of :data:`calibrators.histograms.rules.MEANINGS`.
        sqnr_db: Rule to the SQNR of the network's output in decibels, of the one where it is lowest, for a
            typical one of the samples that it was tried on. Over all of them it is lower where few make most
            of the noise.
        samples: Rule to the number of these samples. Rules that did badly on the first were not tried on the
            others.
        outputs: Name of an output to its SQNR with the rule that was taken, the lowest first; empty where one
            alone was compared.

    Raises:
        ValueError: The rules of the three attributes differ.
    """

    rule: str
    sqnr_db: Mapping[str, float]
    samples: Mapping[str, Count]
    outputs: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.samples.keys() != self.sqnr_db.keys() or (self.samples and self.rule not in self.samples):
            raise ValueError("the rules that were tried are not those that have an SQNR")

    @property
    def reason(self) -> str:
        """Why the rule was taken, in words."""
        meaning = f" ({MEANINGS[self.rule]})" if self.rule in MEANINGS else ""
        rule = f"'{self.rule}'{meaning} for every tensor"
        if not self.samples:
            return f"{rule}, as the network's outputs could not be compared"
        tried = max(self.samples.values())
        finalists = [rule for rule, count in self.samples.items() if count == tried and rule != self.rule]
        others = ", ".join(f"{rule} {self.sqnr_db[rule]:.1f} dB" for rule in finalists)
        return (
            f"{rule}: {self._levels} {self.judged_by}"
            + (f" ({others})" if others else "")
            + f", of {len(self.sqnr_db)} rules tried"
        )

    @property
    def _levels(self) -> str:
        """The SQNR of the rule that was taken, at each output, in words."""
        if not self.outputs:
            return f"{self.sqnr_db[self.rule]:.1f} dB at the network's outputs"
        return enumerated((f"{level:.1f} dB at '{name}'" for name, level in self.outputs.items()), _NAMED)

    @property
    def judged_by(self) -> str:
        """Which samples the SQNR of the rule that was taken is of, in words."""
        tried = self.samples[self.rule]
        return f"for a typical one of {tried} samples" if tried > 1 else "on 1 sample"


#: The share of the estimated time that layers in float may take, unless it is said.
SPEND = 0.01


def check_spend(spend: float | None) -> None:
    """Refuses what is no share of the time.

    Raises:
        CalibrationDataError: It is no number in [0, 1].
    """
    if spend is not None and not (is_number(spend) and 0 <= spend <= 1):
        raise CalibrationDataError(
            f"{Argument('spend')} is {spend!r:.80}; give a share of the time, from 0 to 1, such as 0.01"
        )


@dataclass(frozen=True)
class FloatLayers:
    """Layers that stay in float because they make much of the noise there and take next to no time.

    Attributes:
        layers: Names of the layers, in graph order; empty where nothing was worth it.
        allowed: The share of the estimated time that they were allowed to take, in [0, 1].
        share: The share that they take.
        of: How many layers the network has that can be in INT8.
        int8_db: The SQNR of the network's outputs with all of them in INT8, for a typical sample.
        sqnr_db: The same with these layers in float.
        samples: How many samples that is of, which they were not chosen with.
        reason: Why there are none.
        modules: Name of a layer to the module of PyTorch that it comes from, where that is known.

    Raises:
        ValueError: A share is not in [0, 1].
    """

    layers: tuple[str, ...]
    allowed: float
    share: float = 0.0
    of: Count = 0
    int8_db: float = 0.0
    sqnr_db: float = 0.0
    samples: Count = 0
    reason: str = ""
    modules: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (0 <= self.allowed <= 1 and self.share <= 1):
            raise ValueError("a share of the time is not from 0 to 1")

    @staticmethod
    def allowance(layers: FloatLayers | None) -> float:
        """The share of the time that layers were allowed to take; 0 where none were looked for."""
        return layers.allowed if layers is not None else 0.0

    def unmeasured(self) -> FloatLayers:
        """Returns the same without what they gain, for other ranges."""
        return replace(self, int8_db=0.0, sqnr_db=0.0, samples=0)

    def __bool__(self) -> bool:
        return bool(self.layers)

    def __str__(self) -> str:
        if not self:
            return f"none: {self.reason}"
        titles = (titled(f"'{name}'", self.modules.get(name, "")) for name in self.layers)
        named = enumerated(titles, _NAMED)
        if not self.samples:
            return named
        return (
            f"{named}: {len(self.layers)} of {self.of} layers, for {self.share:.1%} of the time; "
            f"{self.int8_db:.1f} -> {self.sqnr_db:.1f} dB for a typical one of {self.samples} other samples"
        )


#: The largest magnitude of symmetric INT8.
QMAX = 127


def scale_of(amax: float) -> np.float32:
    """The scale of a range: ``amax / 127`` as float32.

    Args:
        amax: The positive end of the symmetric range.
    """
    return np.float32(amax / QMAX)
