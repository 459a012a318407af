"""What a model wants to be fed: the one description that data sources are checked against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

#: A shape: a name or None in place of a size that is not fixed; None where the rank is not known.
OpenShape: TypeAlias = tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class InputSpec:
    """One input of a model.

    Attributes:
        name: The input's name in the graph.
        dtype: The input's element type.
        shape: The input's dimensions: an int where static, a str (or None, unnamed) where dynamic. None where
            even the rank is unknown.
        bound: Of an integer input, the least integer above all values that the model takes, such as the
            number of rows of the table that it is an index of; values begin at 0. None where that is not
            known. It decides nothing but which random values are drawn.
        hides_scores: Whether the input is only added to what a softmax reads, where minus infinity hides a
            score.
    """

    name: str
    dtype: np.dtype[Any]
    shape: OpenShape
    bound: int | None = field(default=None, compare=False)
    hides_scores: bool = field(default=False, compare=False, repr=False)

    @property
    def static_batch(self) -> int | None:
        """The first dimension where it is fixed, else None."""
        return self.shape[0] if self.shape and isinstance(self.shape[0], int) else None

    @property
    def has_open_sizes(self) -> bool:
        """Whether the model leaves sizes of the input open besides that of its first axis."""
        return any(not isinstance(size, int) for size in (self.shape or ())[1:])

    def __str__(self) -> str:
        dims = "unknown shape" if self.shape is None else shape_text(self.shape)
        return f"'{self.name}' ({self.dtype}, {dims})"


def shape_text(shape: Sequence[int | str | None], times: str = "x") -> str:
    """A shape as text for a message: ``2x3x?x32``, or ``scalar``; ``times`` stands between two sizes."""
    return times.join("?" if dim is None else str(dim) for dim in shape) or "scalar"


def has_fixed_batch(inputs: Sequence[InputSpec]) -> bool:
    """Whether a model takes batches of one size only, which is more than one sample.

    Args:
        inputs: The model's inputs.
    """
    return any((spec.static_batch or 1) > 1 for spec in inputs)


def named_sizes(inputs: Sequence[InputSpec], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The sizes of dynamic dimensions by their names, such as that of a text's tokens.

    Args:
        inputs: The model's inputs.
        shapes: Input name to the shape of one sample, without the batch axis; may lack inputs.
    """
    known: dict[str, int] = {}
    for spec in inputs:
        declared, given = (spec.shape or ())[1:], shapes.get(spec.name, ())
        if len(declared) == len(given):
            known |= {dim: size for dim, size in zip(declared, given, strict=True) if isinstance(dim, str)}
    return known
