"""The Q/DQ model beside an engine. Who only runs engines loads nothing that reads models."""

from __future__ import annotations

from pathlib import Path

from calibrators.errors import EngineError
from trtint8.engine.file import EngineInfo
from trtint8.models.model import Model, load_model


def load_engine_qdq(path: Path, info: EngineInfo) -> Model:
    """Loads the Q/DQ model that an engine was built from.

    Args:
        path: Where it stands beside the engine.
        info: What the engine's sidecar says.

    Raises:
        EngineError: The file holds another model.
        ModelError: The model is unusable.
    """
    model = load_model(path)
    if info.qdq_fingerprint is not None and model.fingerprint != info.qdq_fingerprint:
        raise EngineError(
            f"'{path}' is not the Q/DQ model that the engine was built from; put that one there, or build "
            "the engine again"
        )
    return model
