"""Warns of comparisons that do not say what they seem to say."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from calibrators.data.batches import Batches
from calibrators.data.fingerprint import DataFingerprint
from calibrators.errors import TrtInt8Error
from calibrators.files import is_file
from trtint8.engine.file import read_engine_info, sidecar_path
from trtint8.engine.table import read_engine_table
from trtint8.interop.integer_models import integer_operators
from trtint8.models.model import Model
from trtint8.models.origin import FLOAT_MODEL, calibration_of
from trtint8.validation.measure import VALIDATED

#: Types of models that are in half precision, which are worth comparing although they are not quantized.
_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def warn_of_mistakes(models: Mapping[str, Model | Path], reference: Model, batches: Batches) -> None:
    """Warns of models that are not what a comparison takes them for, as far as they say where they come from.

    Args:
        models: Models, and paths of engines, by their names in results.
        reference: The float model.
        batches: The samples; they are read here only where a model was calibrated with as many.

    Warns:
        UserWarning: The model called INT8 computes in float32; or a model was made from another float model
            than the reference, or calibrated with these samples.
    """
    validated = models[VALIDATED]
    if isinstance(validated, Model) and _is_float32(validated):
        _warn(
            f"'{validated.name}', {VALIDATED} in the results, holds neither Q/DQ pairs nor integer "
            "operators: what is compared is a float model; give the quantized one"
        )
    origins = [_of_model(one) if isinstance(one, Model) else _of_engine(one) for one in models.values()]
    for origin in origins:
        _warn_of_another_model(origin, reference)
    _warn_of_calibration_data(origins, batches)


@dataclass(frozen=True)
class _Origin:
    """Where a model comes from.

    Attributes:
        what: The model in words.
        it: How a message that has named it calls it.
        float_model: The fingerprint of the float model that it was made from; None where that is not known.
        calibration: The fingerprint of the samples that it was calibrated with, and their number; None where
            that is not known.
    """

    what: str
    it: str
    float_model: str | None = None
    calibration: tuple[str, int] | None = None


def _of_model(model: Model) -> _Origin:
    graph_model = model.graph_model
    made_from = graph_model.metadata_props.get(FLOAT_MODEL)
    return _Origin(f"the model '{model.name}'", "it", made_from, calibration_of(graph_model))


def _of_engine(plan: Path) -> _Origin:
    what = f"the engine '{plan}'"
    if not (is_file(plan) and is_file(sidecar_path(plan))):
        return _Origin(what, "the engine")
    info = read_engine_info(plan)
    # Without a table, the model that was built had Q/DQ pairs already or a calibrator of the user's.
    if info.table_fingerprint is None:
        return _Origin(what, "the engine")
    try:
        table = read_engine_table(plan, info)
    except TrtInt8Error:  # a table that is not needed for the comparison
        table = None
    provenance = table.provenance if table else None
    calibration = None
    if provenance and provenance.data is not None and provenance.samples is not None:
        calibration = provenance.data, provenance.samples
    return _Origin(what, "the engine", info.model_fingerprint, calibration)


def _is_float32(model: Model) -> bool:
    graph = model.graph_model.graph
    values = (*graph.inputs, *graph.outputs, *graph.initializers.values())
    is_quantized = any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in graph)
    is_half = any(value.dtype in _HALF for value in values)
    return not (is_quantized or is_half or integer_operators(model.graph_model))


def _warn_of_another_model(origin: _Origin, reference: Model) -> None:
    # The reference may be what another one was equalized to.
    known = reference.graph_model.metadata_props.get(FLOAT_MODEL)
    if origin.float_model is None or origin.float_model in (known, reference.fingerprint):
        return
    _warn(
        f"{origin.what} was not made from the reference '{reference.name}', but from a float model with the "
        f"fingerprint {origin.float_model[:12]} (the reference has {reference.fingerprint[:12]}); give the "
        f"model that {origin.it} was made from"
    )


def _warn_of_calibration_data(origins: list[_Origin], batches: Batches) -> None:
    alike = [one for one in origins if one.calibration and one.calibration[1] == batches.num_samples]
    if not alike:
        return
    seen = DataFingerprint()
    for feed in batches:
        seen.observe(feed)
    for origin in alike:
        if origin.calibration == (seen.hexdigest(), seen.samples):
            _warn(
                f"{origin.what} was calibrated with the samples that it is judged by, so that its accuracy "
                "may look better than it is; give held-out samples"
            )


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=5)
