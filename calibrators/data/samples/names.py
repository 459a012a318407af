"""What samples are called in messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def numbered(sample: int) -> str:
    """A sample by its number, from 0."""
    return f"sample {sample}"


def in_data(files: Sequence[Path], order: NDArray[np.intp], sample: int) -> str:
    """A sample by where it is in the data, wherever it is in the order of iteration.

    Args:
        files: The file of each sample; empty where all samples are in one.
        order: The samples of the data in the order of iteration, shape (samples,).
        sample: The number in that order.
    """
    found = int(order[sample])
    return f"'{files[found]}'" if files else numbered(found)


@dataclass(frozen=True)
class NamesOfPart:
    """What the samples of a part of the data are called, for a process that has this part alone.

    Attributes:
        first: How many samples of the data come before it.
        names: What its samples are called.
    """

    first: int
    names: tuple[str, ...]

    @classmethod
    def of(cls, name_of: Callable[[int], str], first: int, samples: int) -> NamesOfPart:
        """The names of so many samples.

        Args:
            name_of: Gives what a sample of the data is called.
            first: How many samples of the data come before the part.
            samples: How many samples it has.
        """
        return cls(first, tuple(map(name_of, range(first, first + samples))))

    def __call__(self, sample: int) -> str:
        """What a sample is called, by its number in the data."""
        return self.names[sample - self.first]
