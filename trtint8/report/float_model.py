"""The float model that a report sets a quantized one beside."""

from __future__ import annotations

import os

from calibrators.errors import Argument, ModelError
from trtint8.models.model import Model, load_model


def load_original(path: str | os.PathLike[str]) -> Model:
    """Reads the model that a report calls FP32.

    Args:
        path: The file that was given as float model.

    Raises:
        ModelError: The model is unusable, or holds Q/DQ pairs.
    """
    model = load_model(path)
    if model.is_quantized:
        raise ModelError(
            f"'{model.name}' holds Q/DQ pairs, and a report shows it as FP32; give the float model as "
            f"{Argument('model')}, and the quantized one among the files to report on"
        )
    return model
