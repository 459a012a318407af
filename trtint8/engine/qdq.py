"""The Q/DQ model beside an engine, and models described as engines are.

Who only runs engines loads nothing that reads models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from calibrators.data.inputs import InputSpec
from calibrators.errors import EngineError
from trtint8.engine.file import EngineInfo, TensorSpec
from trtint8.engine.profiles import Profile
from trtint8.models.model import Model, load_model
from trtint8.models.shapes import open_shape


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


def tensor_specs(
    values: Sequence[ir.Value], dtypes: Mapping[str, np.dtype[Any]] | None = None
) -> tuple[TensorSpec, ...]:
    """Inputs or outputs with the model's names of dimensions and the engine's types.

    Args:
        values: The model's inputs or outputs; initializers that are listed among them are left out.
        dtypes: The engine's types by name; what it lacks keeps the model's type.
    """
    known = dtypes or {}
    return tuple(
        TensorSpec(
            value.name or "",
            known.get(value.name or "", _model_dtype(value)).name,
            open_shape(value) or (),
        )
        for value in values
        if not value.is_initializer()
    )


def _model_dtype(value: ir.Value) -> np.dtype[Any]:
    return value.dtype.numpy() if value.dtype is not None else np.dtype(np.float32)


def tried_shapes(profiles: Sequence[Profile], inputs: Sequence[InputSpec]) -> dict[str, tuple[int, ...]]:
    """Shapes to try a network with: those that the first profile is tuned for.

    Open sizes of 1 become 2 where the engine takes that, because an axis of 1 shows nothing.
    """
    profile = profiles[0] if profiles else {}
    return {
        spec.name: tuple(
            2 if optimal == 1 < largest and not isinstance(size, int) else optimal
            for size, optimal, largest in zip(
                spec.shape or (), profile[spec.name].opt, profile[spec.name].max, strict=False
            )
        )
        for spec in inputs
        if spec.name in profile
    }
