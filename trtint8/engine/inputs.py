"""An engine's inputs as data sources describe them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from calibrators.data.inputs import InputSpec
from trtint8.engine.file import TensorSpec


def input_specs(specs: Iterable[TensorSpec]) -> tuple[InputSpec, ...]:
    """What an engine must be fed.

    Args:
        specs: The engine's inputs.

    Returns:
        Name, dtype and shape of each.
    """
    return tuple(InputSpec(spec.name, np.dtype(spec.dtype), spec.shape) for spec in specs)
