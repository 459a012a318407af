"""Progress of a long run on disk, so that what was interrupted need not begin again.

How far a calibration has come, and how that stands in a checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from calibrators import records
from calibrators.checks import FilePath, check_path, warn_user
from calibrators.errors import Argument, CalibrationDataError, OutputError, TableError, counted
from calibrators.files import check_writable, remove_litter, write_atomically
from calibrators.histograms.binning import OCTAVES, PER_OCTAVE
from calibrators.histograms.histogram import BINS, Histogram
from calibrators.records import Count
from calibrators.tables.formats.json import HistogramRecord, packed

#: Seconds between two writes.
SECONDS = 30.0

Progress = TypeVar("Progress")

#: By these a file is recognized.
_FORMAT = "trtint8-checkpoint"
_VERSION = 1


@dataclass(frozen=True)
class Kind(Generic[Progress]):
    """What runs of one kind keep, and how it stands in a file.

    Attributes:
        name: The kind in words; a file of another kind is refused.
        record: The data class, with limits, that a file is read into.
        pack: Makes such a record of progress.
        unpack: Makes progress of a record. It raises a ValueError where no run has written the record.
    """

    name: str
    record: type[Any]
    pack: Callable[[Progress], Any]
    unpack: Callable[[Any], Progress]


@dataclass(frozen=True)
class _File:
    """The content of a file, whatever its kind."""

    format: str
    version: int
    kind: str
    identity: Mapping[str, Any]
    progress: Mapping[str, Any]


def check_place(path: FilePath) -> Path:
    """Fails now, rather than after minutes of work, where a checkpoint cannot be written.

    Commands choose its name themselves. So it is never a symbolic link, which anyone may have put there.

    Args:
        path: The file.

    Returns:
        ``path`` as a :class:`~pathlib.Path`.

    Raises:
        OutputError: The file cannot be written, or is a symbolic link.
    """
    check_path("a checkpoint", path, OutputError)
    return check_writable(path, named=False)


def check_resume(resume: bool, path: object) -> None:
    """Refuses to continue where no checkpoint is named.

    Raises:
        CalibrationDataError: ``resume`` is given without a path.
    """
    if resume and path is None:
        raise CalibrationDataError(
            f"{Argument('resume')} continues from a checkpoint, and none is given; add "
            f"{Argument('checkpoint', 'FILE')}"
        )


@dataclass(frozen=True)
class Checkpoint(Generic[Progress]):
    """Where progress is kept, and how often.

    Attributes:
        path: The file. It is replaced atomically, and removed once the result is safe.
        identity: What progress depends on besides the data, by name; a file of another identity is refused.
        kind: What progress consists of, and how it stands in the file.
        resume: Continue from the file where there is one; else it is overwritten.
        seconds: The least time between two writes, in seconds.
    """

    path: Path
    identity: Mapping[str, object]
    kind: Kind[Progress]
    resume: bool = False
    seconds: float = SECONDS

    def load(self) -> Progress | None:
        """The progress to continue from; None where there is none or it is not wanted.

        Raises:
            TableError: The file is damaged, of another kind, version or identity.
            OutputError: It is no checkpoint, and would be lost.
        """
        if not os.path.lexists(self.path):
            return None
        if not self.resume:
            self._refuse_losing()
            return None
        try:
            file = _read(records.read_bytes(self.path, follow_link=False))
            if file.kind != self.kind.name:
                raise ValueError(f"it is of a {file.kind!r:.40}, and not of a {self.kind.name}")
            self._refuse_others(file.identity)
            record = records.to_record(file.progress, self.kind.record, exact=True, numbers_as_text=True)
            return self.kind.unpack(record)
        except (OSError, ValueError) as error:
            raise TableError(
                f"cannot read the checkpoint '{self.path}' ({error}); remove it to begin anew, or give "
                "another name where it is something else"
            ) from error

    def _refuse_others(self, identity: Mapping[str, object]) -> None:
        """Refuses a file of another identity."""
        for key in dict.fromkeys([*self.identity, *identity]):
            then, now = identity.get(key), self.identity.get(key)
            if then != now:
                name = key.replace("_", " ")
                raise TableError(
                    f"the checkpoint '{self.path}' was made with another {name} ({then} then, {now} now), so "
                    "continuing would mix two runs; restore that, or remove the checkpoint to begin anew"
                )

    def _refuse_losing(self) -> None:
        """Refuses to overwrite, and to remove at the end, a file that is something else."""
        with contextlib.suppress(OSError, records.RecordError):
            if _is_checkpoint(self.path):
                return
        raise OutputError(
            f"cannot write the checkpoint '{self.path}': the file is something else, which would be lost; "
            "give another name, or move it away"
        )

    def save(self, progress: Progress) -> None:
        """Replaces the file, unless it would be too large to be read again.

        Raises:
            OutputError: The file cannot be written, or is a symbolic link.

        Warns:
            UserWarning: It would be too large.
        """
        packed_progress = self.kind.pack(progress)
        written = records.render(_File(_FORMAT, _VERSION, self.kind.name, self.identity, packed_progress))
        sealed = written + _CHECKSUM + _digest(written)
        if not records.is_readable(sealed):
            warn_user(
                f"the checkpoint '{self.path}' is not written, as it would be too large to be read again; if "
                "this run is interrupted, it begins anew",
                note=True,
            )
            return
        write_atomically(self.path, sealed, named=False)

    def remove(self) -> None:
        """Deletes the file, and what killed runs have left of it: what it held is in a safe place now.

        Raises:
            OutputError: The file cannot be removed.
        """
        remove_checkpoint(self.path)


def remove_checkpoint(path: Path) -> None:
    """Deletes a checkpoint where there is one, and what killed runs have left of it.

    Raises:
        OutputError: The file cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
        remove_litter(path)
    except OSError as error:
        raise OutputError(f"cannot remove the checkpoint '{path}': {error.strerror}; remove it") from error


#: What stands between the content of a file and its checksum, which is the last of the file.
_CHECKSUM = b"\nsha256:"

#: Characters of a checksum.
_DIGEST_LENGTH = 64


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _is_checkpoint(path: Path) -> bool:
    """Whether a file ends as a checkpoint does, whatever it holds; only its end is read."""
    length = len(_CHECKSUM) + _DIGEST_LENGTH
    with records.open_file(path, follow_link=False) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - length))
        end = file.read(length)
    return len(end) == length and end.startswith(_CHECKSUM)


def _read(data: bytes) -> _File:
    """The content of a file; raises ValueError where no run of this version has written it."""
    content, mark, digest = data.rpartition(_CHECKSUM)
    if not mark:
        raise ValueError("it has no checksum at its end")
    if digest != _digest(content):
        raise ValueError("its checksum is not that of its content")
    try:
        file = records.to_record(records.parse(content), _File, exact=True)
    except records.RecordError as error:
        raise ValueError(f"another version of trtint8 has written it: {error}") from error
    if (file.format, file.version) != (_FORMAT, _VERSION):
        raise ValueError(f"another version of trtint8 has written it, as {file.format} {file.version}")
    return file


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


#: The most tensors: their counts take a gigabyte.
_MOST_TENSORS = 1 << 16

#: The most bytes that the counts of a histogram unpack to, of one kind or the other.
_MOST_BYTES = 8 * max(BINS, OCTAVES * PER_OCTAVE)

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
