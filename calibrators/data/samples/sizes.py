"""The sizes that the samples of an input have where the model leaves them open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibrators.records import Count


@dataclass(frozen=True)
class SampleSizes:
    """How large samples are along each axis of an input but the first, along which samples lie.

    Attributes:
        smallest: The smallest size along each axis.
        largest: The largest size along each axis.

    Raises:
        ValueError: The two have different lengths, or a smallest size is larger than the largest.
    """

    smallest: tuple[Count, ...]
    largest: tuple[Count, ...]

    def __post_init__(self) -> None:
        if len(self.smallest) != len(self.largest):
            raise ValueError(f"{self.smallest} and {self.largest} are sizes along different axes")
        if any(low > high for low, high in zip(self.smallest, self.largest, strict=True)):
            raise ValueError(f"the smallest sizes {self.smallest} are above the largest {self.largest}")

    @classmethod
    def of(cls, shape: Sequence[int]) -> SampleSizes:
        """The sizes in one batch.

        Args:
            shape: The batch's shape, whose first axis has the samples.
        """
        sizes = tuple(int(size) for size in shape[1:])
        return cls(sizes, sizes)

    def merge(self, other: SampleSizes) -> SampleSizes:
        """The sizes of both."""
        return SampleSizes(
            tuple(map(min, self.smallest, other.smallest)), tuple(map(max, self.largest, other.largest))
        )
