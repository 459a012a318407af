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


def along_principal_axes(
    signs: NDArray[np.float32], values: NDArray[Any], random: np.random.Generator
) -> NDArray[np.float32]:
    """Makes of random signs directions for an estimate of the noise in an output.

    The mean of (v e)^2 over directions v is the square of the length of an error e, where the components of v
    are random signs, in any basis (Hutchinson's estimator of a trace). How far single squares lie from the
    mean depends on how much the components of the errors have in common in this basis. The errors of a
    network lie about where its outputs lie. So rows of values, such as class scores, get signs along their
    principal axes, along which they have nothing in common: the sum of (v y)^2 over the rows y is then the
    same for every v.

    Args:
        signs: A random sign for every value.
        values: The output, or a part of it, for a batch.
        random: Where the signs along the axes come from.

    Returns:
        float32, of the same shape: directions for rows of up to 4,096 values; ``signs`` for other outputs.
    """
    if values.ndim != 2 or values.shape[1] > _MOST_VALUES or not np.isfinite(values).all():
        return signs
    rows = values[:_MOST_ROWS].astype(np.float64)
    axes = np.linalg.svd(rows, full_matrices=False)[2].astype(np.float32)
    along = random_signs((len(signs), len(axes)), random)
    # With fewer rows than columns there are directions in which no row lies: there, the signs stay.
    return np.asarray(signs + (along - signs @ axes.T) @ axes, np.float32)
