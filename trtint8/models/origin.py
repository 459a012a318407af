"""What a model says of where it comes from: properties in its file, which runtimes ignore."""

from __future__ import annotations

import onnx_ir as ir

#: The fingerprint of the float model that a model was made from, also where weights were equalized since.
FLOAT_MODEL = "trtint8.float_model"

#: The fingerprint of the samples that a model's ranges were found on, and their number.
CALIBRATION_DATA, CALIBRATION_SAMPLES = "trtint8.calibration_data", "trtint8.calibration_samples"

#: Whether a model was quantized, and has no Q/DQ pairs all the same.
WITHOUT_PAIRS = "trtint8.without_pairs"


def record_float_model(graph_model: ir.Model, fingerprint: str) -> None:
    """Writes into a model which float model it was made from, unless it says so already."""
    graph_model.metadata_props.setdefault(FLOAT_MODEL, fingerprint)


def record_calibration(graph_model: ir.Model, data: str | None, samples: int | None) -> None:
    """Writes into a model which samples it was calibrated with, where that is known."""
    if data is not None and samples is not None:
        graph_model.metadata_props.update({CALIBRATION_DATA: data, CALIBRATION_SAMPLES: str(samples)})


def record_pairs(graph_model: ir.Model, pairs: bool) -> None:
    """Writes into a quantized model that it has no pairs, or removes that."""
    if pairs:
        graph_model.metadata_props.pop(WITHOUT_PAIRS, None)
    else:
        graph_model.metadata_props[WITHOUT_PAIRS] = "yes"


def calibration_of(graph_model: ir.Model) -> tuple[str, int] | None:
    """The fingerprint of the samples that a model was calibrated with, and their number; None if unknown."""
    data, samples = map(graph_model.metadata_props.get, (CALIBRATION_DATA, CALIBRATION_SAMPLES))
    return (data, int(samples)) if data and samples and samples.isdecimal() else None


def forget_origin(graph_model: ir.Model) -> None:
    """Removes what a model says of where it comes from."""
    for key in (FLOAT_MODEL, CALIBRATION_DATA, CALIBRATION_SAMPLES, WITHOUT_PAIRS):
        graph_model.metadata_props.pop(key, None)
