"""A measurement on any data, in this process or over Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from calibrators.data.batches import DataSource, open_data
from calibrators.data.options import DataOptions
from calibrators.ray.run_options import RunOptions
from calibrators.tables.table import CalibrationTable
from trtint8.models.model import Model
from trtint8.sensitivity.measure import Plan, measure
from trtint8.sensitivity.results import Sensitivity


def measure_on(
    prepared: Model,
    table: CalibrationTable,
    data: DataSource,
    *,
    data_options: DataOptions,
    run: RunOptions,
    keep_float: Sequence[str],
    tolerance_db: float,
    checkpoint: str | os.PathLike[str] | None,
    on_plan: Callable[[Plan], None],
) -> Sensitivity:
    """Opens the data and measures: see :func:`trtint8.sensitivity.measure.measure`."""
    return measure(
        prepared,
        table,
        open_data(data, prepared.inputs, data_options),
        keep_float=keep_float,
        tolerance_db=tolerance_db,
        checkpoint=checkpoint,
        threads=run.threads,
        executor=run.ray,
        on_plan=on_plan,
        progress=run.progress,
    )
