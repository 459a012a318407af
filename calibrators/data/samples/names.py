"""What samples are called in messages."""

from __future__ import annotations

from collections.abc import Sequence
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
