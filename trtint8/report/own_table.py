"""Whether a calibration table is the one whose ranges an engine or its Q/DQ model has."""

from __future__ import annotations

import numpy as np

from calibrators.tables.scales import QMAX
from calibrators.tables.table import CalibrationTable
from trtint8.engine.file import EngineInfo
from trtint8.models.graph_constants import is_constant, read_constant
from trtint8.models.model import Model
from trtint8.models.origin import calibration_of

#: By how much a scale may differ from that of its range: float16 resolves half a thousandth.
_TOLERANCE = 1e-3


def was_not_used(table: CalibrationTable | None, engine: EngineInfo | None, qdq: Model | None) -> bool:
    """Whether an engine was built without a table, and its Q/DQ model was not made with it, either.

    A table of an earlier build may still stand beside an engine that was built again, from a Q/DQ model.

    Args:
        table: The table; None where there is none.
        engine: What the engine's sidecar says; None where there is no engine.
        qdq: The Q/DQ model; None where there is none.
    """
    if table is None or engine is None or engine.table_fingerprint is not None:
        return False
    return qdq is None or not has_ranges_of(qdq, table)


def has_ranges_of(qdq: Model, table: CalibrationTable) -> bool:
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
