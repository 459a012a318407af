"""By which file names models are told from engines."""

from __future__ import annotations

import os
from pathlib import Path

from calibrators.errors import OutputError

_SUFFIX = ".onnx"


def names_model(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name is that of a model; where either is given, every other file is an engine."""
    return Path(path).suffix.lower() == _SUFFIX


def check_model_name(path: str | os.PathLike[str]) -> Path:
    """Refuses a name for a model by which it would be taken for an engine, before any work is done for it.

    Raises:
        OutputError: The name does not end in .onnx, or is that ending alone.
    """
    if names_model(path) or not os.fspath(path):
        return Path(path)
    if Path(path).name.lower() == _SUFFIX:
        raise OutputError(f"the name '{path}' is an ending alone; put a name before it")
    raise OutputError(
        f"the model's name '{path}' does not end in .onnx, by which models are told from engines; add .onnx"
    )
