"""How far a calibration has come, and how that stands in a checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

from calibrators.display.counts import counted
from calibrators.errors import CalibrationDataError, TableError
from calibrators.histograms.histogram import BINS, Histogram
from calibrators.host.checkpoint import Kind
from calibrators.records import Count
from calibrators.tables.formats.json import HistogramRecord, packed

#: The most tensors: their counts take a gigabyte.
_MOST_TENSORS = 1 << 16

#: The bytes that the counts of a histogram unpack to.
_MOST_BYTES = 8 * BINS

#: The most values that a tensor may have for one sample: far more than memory holds.
_MOST_VALUES_PER_SAMPLE = 1 << 40


@dataclass(frozen=True)
class Counted:
    """What a calibration has counted.

    Attributes:
        samples: How many samples were counted: the first ones of the data.
        data: Fingerprint of these samples.
        histograms: Tensor name to the histogram of these samples.
    """

    samples: int
    data: str
    histograms: Mapping[str, Histogram]

    def check_tensors(self, tensors: Iterable[str]) -> None:
        """Refuses to continue with other tensors.

        Args:
            tensors: Names of the tensors that are observed.

        Raises:
            TableError: They are not those that were counted.
        """
        if set(tensors) != set(self.histograms):
            raise TableError(
                "the checkpoint is of another set of tensors; calibrate the same ones, or begin anew without "
                "resume"
            )

    def check_data(self, data: str) -> None:
        """Refuses to continue with other data.

        Args:
            data: The fingerprint of as many samples, read again.

        Raises:
            CalibrationDataError: It is not that of the samples that were counted.
        """
        if data != self.data:
            raise CalibrationDataError(
                f"the first {counted(self.samples, 'sample')} of the data are not those that the checkpoint "
                "has seen; give the same data in the same order, or begin anew without resume"
            )


@dataclass(frozen=True)
class _Stored:
    """A histogram as a table holds it, with the number of NaNs, which a table does not keep."""

    histogram: HistogramRecord
    nans: Count

    @classmethod
    def of(cls, found: Histogram) -> _Stored:
        """The record of a histogram."""
        return cls(HistogramRecord.of(found), found.nans)


@dataclass(frozen=True)
class _Record:
    """What a calibration has counted, as a file holds it."""

    samples: Count
    data: str
    histograms: Annotated[Mapping[str, _Stored], msgspec.Meta(max_length=_MOST_TENSORS)]


def _pack(progress: Counted) -> _Record:
    stored = packed(_Stored.of, progress.histograms)
    return _Record(progress.samples, progress.data, stored)


def _unpack(record: _Record) -> Counted:
    histograms = {
        name: _histogram(name, stored, record.samples) for name, stored in record.histograms.items()
    }
    return Counted(record.samples, record.data, histograms)


def _histogram(name: str, stored: _Stored, samples: int) -> Histogram:
    """Refuses what no calibration counts: other counts would continue to another table without a word."""
    try:
        histogram = replace(stored.histogram.histogram(_MOST_BYTES), nans=stored.nans)
        histogram.check()
    except (ValueError, zlib.error) as error:
        raise ValueError(
            f"the histogram of '{name}' holds numbers that no calibration counts: {error}"
        ) from error
    if len(histogram.counts) != BINS:
        raise ValueError(f"the histogram of '{name}' has {len(histogram.counts)} bins")
    if histogram.total + histogram.nans + histogram.infs > samples * _MOST_VALUES_PER_SAMPLE:
        raise ValueError(f"the histogram of '{name}' holds more values than {samples} samples can have")
    return histogram


#: The checkpoint of a calibration.
CALIBRATION = Kind("calibration", _Record, _pack, _unpack)
