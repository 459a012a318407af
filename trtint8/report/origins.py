"""Which float model each of the models that a report's files name was made from."""

from __future__ import annotations

from trtint8.models.model import Model
from trtint8.models.origin import FLOAT_MODEL
from trtint8.report.files import ReportFiles
from trtint8.report.own_table import has_ranges_of


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
    if table and table.provenance.model and qdq and has_ranges_of(qdq, table):
        origins[table.provenance.model] = float_model
    return origins
