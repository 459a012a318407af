"""Random directions in the space of a network's outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The largest rows of values whose principal axes are computed, and from how many rows; more take long.
_MOST_VALUES, _MOST_ROWS = 4096, 64


def random_signs(shape: tuple[int, ...], random: np.random.Generator) -> NDArray[np.float32]:
    """Draws 1 or -1 for every value of an output, float32 of a shape."""
    return np.asarray(2 * random.integers(0, 2, shape, np.int8) - 1, np.float32)


def draw_directions(values: NDArray[Any], count: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Draws directions for an estimate of the noise in an output.

    The mean of (v e)^2 over directions v is the square of the length of an error e, where the components of v
    are random signs, in any basis (Hutchinson's estimator of a trace). How far single squares lie from the
    mean depends on how much the components of the errors have in common in this basis. The errors of a
    network lie about where its outputs lie. So rows of up to 4,096 values, such as class scores, get signs
    along their principal axes, along which they have nothing in common: the sum of (v y)^2 over the rows y is
    then the same for every v. Other outputs get a sign for every value.

    The signs of a sample's directions are those of the first one times the rows of a Hadamard matrix, of
    which each component has one column, in turn. What two components with different columns have in common
    then adds nothing to the mean over the directions. Of independent signs, it would add something random.

    Args:
        values: The output, or a part of it, for a batch.
        count: How many directions: 1, 2, 4 or another power of two.
        random: Where the signs come from.

    Returns:
        float32 of shape (count, *values.shape).
    """
    signs = _opposed(random_signs(values.shape, random), count)
    if values.ndim != 2 or values.shape[1] > _MOST_VALUES or not np.isfinite(values).all():
        return signs
    rows = values[:_MOST_ROWS].astype(np.float64)
    axes = np.linalg.svd(rows, full_matrices=False)[2].astype(np.float32)
    along = _opposed(random_signs((len(values), len(axes)), random), count)
    # With fewer rows than columns there are directions in which no row lies: there, the signs stay.
    return np.asarray(signs + (along - signs @ axes.T) @ axes, np.float32)


def _opposed(signs: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """As many arrays of signs, each the given one times a row of a Hadamard matrix, over and over.

    Args:
        signs: Any signs, float32.
        count: How many, a power of two.

    Returns:
        float32 of shape (count, *signs.shape).
    """
    # Sylvester's matrix: -1 where row and column have an odd number of ones in common.
    matrix = [[(-1) ** (row & column).bit_count() for column in range(count)] for row in range(count)]
    return np.stack([signs * np.resize(np.array(row, np.float32), signs.shape) for row in matrix])
