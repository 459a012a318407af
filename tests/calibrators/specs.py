"""Inputs of models, in few words."""

import os

import numpy as np

from calibrators.data.inputs import InputSpec

#: Make at a path what no reader may follow or wait for.
NO_FILES = (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.mkdir())


def floats(name, *shape):
    """An input of float32."""
    return InputSpec(name, np.dtype(np.float32), shape)


def integers(name, *shape):
    """An input of int64."""
    return InputSpec(name, np.dtype(np.int64), shape)


def normal(seed, *shape):
    """Normal values in float32, the same for the same seed and shape."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
