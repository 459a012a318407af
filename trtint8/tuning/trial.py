"""What a search tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from calibrators.records import Count, NonNegative
from trtint8.validation.scores import Score


@dataclass(frozen=True)
class Trial:
    """A candidate that the search tried.

    Attributes:
        what: What was tried, in words.
        score: The candidate's score on the samples that are tuned on.
        taken: Whether the search continued from this candidate.
        keep_float: Number of layers in float.
        float_cost: The share of the network's arithmetic that these layers take, in [0, 1].
        seconds: How long the candidate took to score.
        seconds_left: About how long the rest of the search takes if all of it is tried; None where a version
            before 0.2 has not written it.
    """

    what: str
    score: Score
    taken: bool
    keep_float: Count
    float_cost: Annotated[float, msgspec.Meta(ge=0, le=1.001)]  # a sum of shares, which are rounded
    seconds: NonNegative
    seconds_left: NonNegative | None = None
