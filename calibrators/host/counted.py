"""How far a calibration has come, and how that stands in a checkpoint."""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from calibrators.display.counts import counted
from calibrators.errors import CalibrationDataError, TableError
from calibrators.histograms.histogram import BINS, Histogram

_FORMAT = "trtint8-calibration-checkpoint"
_VERSION = 1


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


class CountedFormat:
    """An .npz: counts of each histogram as an array, and all else as JSON."""

    def encode(self, identity: Mapping[str, object], progress: Counted) -> bytes:
        """The content of a file."""
        fields = {
            "format": _FORMAT,
            "version": _VERSION,
            "identity": dict(identity),
            "samples": progress.samples,
            "data": progress.data,
            # JSON writes a float's shortest form that reads back as the same float.
            "histograms": [
                [name, found.bin_width, found.amax, found.zeros, found.nans, found.infs]
                for name, found in progress.histograms.items()
            ],
        }
        stream = io.BytesIO()
        counts = {f"counts{i}": found.counts for i, found in enumerate(progress.histograms.values())}
        encoded = np.frombuffer(json.dumps(fields).encode(), np.uint8)
        np.savez(stream, allow_pickle=False, fields=encoded, **counts)
        return stream.getvalue()

    def decode(self, content: bytes) -> tuple[Mapping[str, object], Counted]:
        """Identity and progress of a file."""
        if not zipfile.is_zipfile(io.BytesIO(content)):
            raise ValueError("it is no archive of arrays")  # NumPy would take it for a pickle
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            fields = json.loads(arrays["fields"].tobytes())
            if (fields["format"], fields["version"]) != (_FORMAT, _VERSION):
                raise ValueError(f"format {fields['format']} {fields['version']}")
            if not isinstance(fields["samples"], int) or fields["samples"] < 0:
                raise ValueError(f"its number of samples is {fields['samples']!r}")
            histograms = {
                name: _checked(name, Histogram(arrays[f"counts{i}"], *numbers))
                for i, (name, *numbers) in enumerate(fields["histograms"])
            }
        return fields["identity"], Counted(fields["samples"], fields["data"], histograms)


def _checked(name: str, histogram: Histogram) -> Histogram:
    """Refuses what no calibration counts: other counts would continue to another table without a word."""
    counts = histogram.counts
    others = (histogram.zeros, histogram.nans, histogram.infs)
    widths = (histogram.bin_width, histogram.amax)
    if (
        counts.dtype != np.int64
        or counts.shape != (BINS,)
        or counts.min() < 0
        or any(type(number) is not int or number < 0 for number in others)
        or any(not isinstance(width, float) or not 0 <= width < math.inf for width in widths)
        or (histogram.amax > 0 and histogram.bin_width == 0)
    ):
        raise ValueError(f"the histogram of '{name}' holds numbers that no calibration counts")
    return histogram
