"""By which file names models are told from engines."""

from __future__ import annotations

import os
from pathlib import Path

from calibrators.checks import check_ending

_SUFFIX = ".onnx"


def names_model(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name is that of a model; where either is given, every other file is an engine."""
    return Path(path).suffix.lower() == _SUFFIX


def check_model_name(path: str | os.PathLike[str]) -> Path:
    """Refuses a name for a model by which it would be taken for an engine, before any work is done for it.

    Raises:
        OutputError: The name is empty, does not end in .onnx, or is that ending alone.
    """
    return check_ending(path, "a model", (_SUFFIX,))
