"""How far a calibration has come, and how that stands in a checkpoint."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators import records
from calibrators.data.sources.archives import read_archive
from calibrators.display.counts import counted
from calibrators.errors import CalibrationDataError, TableError
from calibrators.histograms.binning import Octaves
from calibrators.histograms.histogram import BINS, Histogram
from calibrators.records import Count

_FORMAT = "trtint8-calibration-checkpoint"

#: Version 1 has no octaves. It is read as well: what was counted goes on without them.
_VERSION = 2

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


class CountedFormat:
    """An .npz: counts and octaves of each histogram as arrays, and all else as JSON."""

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
            "octaves": [
                found.octaves.first if found.octaves else None for found in progress.histograms.values()
            ],
        }
        stream = io.BytesIO()
        counts: dict[str, NDArray[np.integer]] = {}
        for index, found in enumerate(progress.histograms.values()):
            counts[f"counts{index}"] = found.counts
            if found.octaves:
                counts[f"octaves{index}"] = found.octaves.counts
        encoded = np.frombuffer(json.dumps(fields).encode(), np.uint8)
        np.savez(stream, allow_pickle=False, fields=encoded, **counts)
        return stream.getvalue()

    def decode(self, content: bytes) -> tuple[Mapping[str, object], Counted]:
        """Identity and progress of a file; raises ValueError where no calibration has written it."""
        arrays = _arrays(content)
        fields = records.to_record(records.parse(arrays.pop("fields").tobytes()), _Fields, exact=True)
        if fields.format != _FORMAT or fields.version not in (1, _VERSION):
            raise ValueError(f"format {fields.format} {fields.version}")
        firsts = fields.octaves if fields.version > 1 else (None,) * len(fields.histograms)
        if len(firsts) != len(fields.histograms):
            raise ValueError("its octaves are not those of its histograms")
        histograms = {
            name: _checked(name, fields.samples, _histogram(arrays, index, first, numbers))
            for index, ((name, *numbers), first) in enumerate(zip(fields.histograms, firsts, strict=True))
        }
        if arrays:
            raise ValueError("its arrays are not those of its histograms")
        if len(histograms) < len(fields.histograms):
            raise ValueError("a tensor stands twice")
        return fields.identity, Counted(fields.samples, fields.data, histograms)


@dataclass(frozen=True)
class _Fields:
    """What the archive holds beside arrays; of each histogram all but its counts, which it checks itself."""

    format: str
    version: int
    identity: Mapping[str, Any]
    samples: Count
    data: str
    histograms: tuple[tuple[str, Any, Any, Any, Any, Any], ...]
    octaves: tuple[Count | None, ...] = ()


def _histogram(
    arrays: dict[str, NDArray[Any]], index: int, octave: int | None, numbers: Sequence[Any]
) -> Histogram:
    """One of the histograms, whose arrays are taken away."""
    found = Histogram(arrays.pop(f"counts{index}"), *numbers)
    if octave is None:
        return found
    return replace(found, octaves=Octaves(octave, arrays.pop(f"octaves{index}")))


def _arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of an archive, in its order."""
    stream = io.BytesIO(content)
    if not zipfile.is_zipfile(stream):
        raise ValueError("it is no archive of arrays")  # NumPy would take it for a pickle
    with zipfile.ZipFile(stream) as archive:
        # A calibration packs nothing. Where members are packed, or overlap, a small file may fill memory.
        if sum(member.file_size for member in archive.infolist()) > len(content):
            raise ValueError("its arrays are packed")
    return dict(read_archive(stream).arrays)


def _checked(name: str, samples: int, histogram: Histogram) -> Histogram:
    """Refuses what no calibration counts: other counts would continue to another table without a word."""
    try:
        histogram.check()
    except ValueError as error:
        raise ValueError(
            f"the histogram of '{name}' holds numbers that no calibration counts: {error}"
        ) from error
    if len(histogram.counts) != BINS:
        raise ValueError(f"the histogram of '{name}' has {len(histogram.counts)} bins")
    if histogram.total + histogram.nans + histogram.infs > samples * _MOST_VALUES_PER_SAMPLE:
        raise ValueError(f"the histogram of '{name}' holds more values than {samples} samples can have")
    return histogram
