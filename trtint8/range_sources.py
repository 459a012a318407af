"""Where the ranges of an engine come from: samples, a table, a calibrator, or set by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

from calibrators.data.inputs import DataOptions
from calibrators.data.opening import DataSource
from calibrators.errors import Argument, CalibrationDataError
from calibrators.histograms.thresholds import Method
from calibrators.run import RunOptions
from calibrators.tables.loss_warning import loss_warning
from calibrators.tables.source import is_table, table_among
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.calibrator import Calibrator
from calibrators.user_warnings import warn_user
from trtint8.calibration import CalibrationOptions, Observed, calibrate_model
from trtint8.models.model import Model

#: Methods to TensorRT's calibrators; the others are calibrated on the CPU. TensorRT has no choice by what
#: ranges cost the network, so there ``auto`` is the calibrator that NVIDIA recommends for convolutions.
_CALIBRATORS = {
    "auto": "EntropyCalibrator2",
    "entropy": "EntropyCalibrator2",
    "minmax": "MinMaxCalibrator",
    "percentile": "LegacyCalibrator",
}


class TensorRtCalibrator(Protocol):
    """A calibrator of TensorRT's own interface, which a user has written."""

    def get_batch_size(self) -> int:
        """Samples per batch."""
        ...

    def read_calibration_cache(self) -> bytes | None:
        """The calibration cache, where there is one."""
        ...


#: What ranges are calibrated from.
CalibrationSource: TypeAlias = DataSource | CalibrationTable | Calibrator | TensorRtCalibrator


@dataclass(frozen=True)
class RangeSources:
    """Where ranges come from.

    Attributes:
        calibration: Sample inputs, a table, the path of a table or of a TensorRT calibration cache, or a
            calibrator; None where ``manual`` covers what is needed.
        manual: Tensor name to amax; overrides what was calibrated.
        method: How ranges are chosen from sample inputs.
        data: How sample inputs are read.
        progress: Whether progress is shown on a terminal.
    """

    calibration: CalibrationSource | None
    manual: Mapping[str, float]
    method: Method
    data: DataOptions
    progress: bool

    @property
    def calibrates(self) -> bool:
        """Whether ranges are to be calibrated, which takes long."""
        return self.calibration is not None and not is_table(self.calibration)

    @property
    def calibrator(self) -> str | None:
        """TensorRT's calibrator for sample inputs; None where ranges are known, or found on the CPU."""
        return _CALIBRATORS.get(self.method) if self.calibrates else None

    def table(self, prepared: Model, tensors: Observed) -> CalibrationTable:
        """The ranges from a table, from calibration on the CPU, or set by hand."""
        table = table_among(self.calibration)
        if table is not None:
            return self._given(table)
        if self.calibration is not None:
            # It is no calibrator: with one the route is implicit, and this is not called.
            data = cast("DataSource", self.calibration)
            options = CalibrationOptions(self.method, tensors)
            table = calibrate_model(prepared, data, options, self.data, RunOptions(progress=self.progress))
        elif self.manual:
            table = CalibrationTable({})
        else:
            raise CalibrationDataError(
                f"nothing to take ranges from: give sample inputs, a table or {Argument('dynamic_ranges')}"
            )
        return table.override(self.manual) if self.manual else table

    def _given(self, table: CalibrationTable) -> CalibrationTable:
        """A table that was there, with the ranges set by hand; warns of the others that lose too much."""
        table = table.override(self.manual) if self.manual else table
        if warning := loss_warning(table.excessive_losses, table.method):
            warn_user(warning)
        return table
