"""Which float model each of the models that a report's files name was made from."""

from __future__ import annotations

import numpy as np

from calibrators.tables.scales import QMAX
from calibrators.tables.table import CalibrationTable
from trtint8.models.graph_constants import is_constant, read_constant
from trtint8.models.model import Model
from trtint8.models.origin import FLOAT_MODEL, calibration_of
from trtint8.report.files import ReportFiles

#: By how much a scale may differ from that of its range: float16 resolves half a thousandth.
_TOLERANCE = 1e-3


def find_origins(files: ReportFiles, model: Model | None, qdq: Model | None) -> dict[str, str | None]:
    """Finds what the models that the files name were made from: with Q/DQ pairs, or with changed weights.

    Args:
        files: The files to report on, with their contents.
        model: The FP32 model; None where it was not given.
        qdq: The Q/DQ model; None where there is none.

    Returns:
        Fingerprints of models to those of the float models that they were made from; None where that is not
        known.
    """
    engine, table = files.engine, files.table
    float_model = qdq.graph_model.metadata_props.get(FLOAT_MODEL) if qdq else None
    origins: dict[str, str | None] = {}
    if qdq:
        origins[qdq.fingerprint] = float_model
    if model:
        origins[model.fingerprint] = model.graph_model.metadata_props.get(FLOAT_MODEL, model.fingerprint)
    if engine:
        was_qdq = engine.model_fingerprint == engine.qdq_fingerprint
        origins[engine.model_fingerprint] = float_model or (None if was_qdq else engine.model_fingerprint)
    # The table may be of changed weights, as `trtint8 tune` writes it.
    if table and table.provenance.model and qdq and _is_of(table, qdq):
        origins[table.provenance.model] = float_model
    return origins


def _is_of(table: CalibrationTable, qdq: Model) -> bool:
    """Whether a Q/DQ model has its ranges from a table.

    The same samples alone do not tell: several networks are often calibrated with them.
    """
    data, samples = table.provenance.data, table.provenance.samples
    calibration = (data, samples) if data and samples else None
    return calibration_of(qdq.graph_model) == calibration and _has_scales_of(table, qdq)


def _has_scales_of(table: CalibrationTable, qdq: Model) -> bool:
    """Whether most of a model's activations have scales of a table; some ranges may be set by hand since.

    The input has the same scale in every network that was calibrated with the same samples.
    """
    # What is zero in all samples has the scale of the range 1.
    ranges = np.array([amax or 1.0 for amax in table.amax.values()], np.float64)
    found = [
        read_constant(node.inputs[1])
        for node in qdq.graph_model.graph
        if node.op_type == "QuantizeLinear" and not is_constant(node.inputs[0])
    ]
    scales = np.array([scale.item() for scale in found if scale is not None and scale.size == 1], np.float64)
    known = np.isclose(scales[:, None] * QMAX, ranges, rtol=_TOLERANCE, atol=0).any(axis=1)
    return not scales.size or bool(known.mean() > 0.5)
