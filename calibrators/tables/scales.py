"""Scales of symmetric INT8."""

from __future__ import annotations

import numpy as np

#: The largest magnitude of symmetric INT8.
QMAX = 127


def scale_of(amax: float) -> np.float32:
    """The scale of a range: ``amax / 127`` as float32.

    Args:
        amax: The positive end of the symmetric range.
    """
    return np.float32(amax / QMAX)
