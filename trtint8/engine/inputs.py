"""The inputs of an engine in the form that data sources need."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from calibrators.data.inputs import InputSpec
from trtint8.engine.file import TensorSpec


def input_specs(specs: Iterable[TensorSpec]) -> tuple[InputSpec, ...]:
    """Converts the inputs of an engine to the form that data sources need.

    Args:
        specs: The engine's inputs.

    Returns:
        Name, dtype and shape of every input.
    """
    return tuple(InputSpec(spec.name, np.dtype(spec.dtype), spec.shape) for spec in specs)
