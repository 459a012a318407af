"""Progress of a long calibration on disk, so that what was interrupted need not begin again."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibrators.errors import CalibrationDataError, TableError
from calibrators.files import write_atomically
from calibrators.histograms.histogram import Histogram

#: Seconds between two writes.
SECONDS = 30.0

_FORMAT = "trtint8-calibration-checkpoint"
_VERSION = 1


@dataclass(frozen=True)
class Progress:
    """How far a calibration had come.

    Attributes:
        identity: What the histograms depend on besides the data, such as the model's fingerprint.
        samples: How many samples were counted: the first ones of the data.
        data: Their fingerprint.
        histograms: Theirs.
    """

    identity: Mapping[str, str]
    samples: int
    data: str
    histograms: Mapping[str, Histogram]

    def check(self, data: str) -> None:
        """Refuses to continue with other data.

        Args:
            data: The fingerprint of as many samples, read again.

        Raises:
            CalibrationDataError: It is not that of the samples that were counted.
        """
        if data != self.data:
            raise CalibrationDataError(
                f"the first {self.samples} samples of the data are not those that the checkpoint has seen; "
                "give the same data in the same order, or begin anew without resume"
            )


@dataclass(frozen=True)
class Checkpoint:
    """Where progress is kept, and how often.

    Attributes:
        path: The file. It is replaced atomically, and removed once the table is safe.
        identity: What the histograms depend on besides the data; a checkpoint of another is refused.
        resume: Continue from the file where there is one; else it is overwritten.
        seconds: The least time between two writes.
    """

    path: Path
    identity: Mapping[str, str]
    resume: bool = False
    seconds: float = SECONDS

    def load(self, tensors: Iterable[str]) -> Progress | None:
        """The progress to continue from; None where there is none or it is not wanted.

        Args:
            tensors: Names of the tensors that are observed.

        Raises:
            TableError: The file is damaged, or of another model, set of tensors or version of a tool.
        """
        if not (self.resume and self.path.exists()):
            return None
        progress = _read(self.path)
        for key in dict.fromkeys([*self.identity, *progress.identity]):
            then, now = progress.identity.get(key), self.identity.get(key)
            if then != now:
                raise TableError(
                    f"the checkpoint '{self.path}' was made with another {key} ({then} then, {now} now), so "
                    "continuing would mix two calibrations; restore that, or begin anew without resume"
                )
        if set(tensors) != set(progress.histograms):
            raise TableError(
                f"the checkpoint '{self.path}' is of another set of tensors; calibrate the same ones, or "
                "begin anew without resume"
            )
        return progress

    def save(self, samples: int, data: str, histograms: Mapping[str, Histogram]) -> None:
        """Replaces the file.

        Args:
            samples: How many samples were counted.
            data: Their fingerprint.
            histograms: Theirs.

        Raises:
            OutputError: The file cannot be written.
        """
        write_atomically(self.path, _render(Progress(self.identity, samples, data, histograms)))

    def remove(self) -> None:
        """Deletes the file where there is one: what it held is in a safe place now."""
        self.path.unlink(missing_ok=True)


class Timer:
    """Says when the next write is due."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    def due(self) -> bool:
        """Whether the time is over; then it begins anew."""
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


def _render(progress: Progress) -> bytes:
    fields = {
        "format": _FORMAT,
        "version": _VERSION,
        "identity": dict(progress.identity),
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


def _read(path: Path) -> Progress:
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            fields = json.loads(arrays["fields"].tobytes())
            if (fields["format"], fields["version"]) != (_FORMAT, _VERSION):
                raise ValueError(f"format {fields['format']} {fields['version']}")
            histograms = {
                name: Histogram(arrays[f"counts{i}"], *numbers)
                for i, (name, *numbers) in enumerate(fields["histograms"])
            }
        return Progress(fields["identity"], fields["samples"], fields["data"], histograms)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise TableError(
            f"cannot read the checkpoint '{path}' ({error}); delete it, or begin anew without resume"
        ) from error
