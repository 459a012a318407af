"""trtint8's own table format: JSON that a person can read and correct, histograms included."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrators import records
from calibrators.checks import warn_user
from calibrators.data.inputs import CalibratedInputs
from calibrators.data.samples import SampleSizes
from calibrators.errors import Argument, TableError, advice
from calibrators.files import kind_by_ending
from calibrators.histograms.binning import PER_OCTAVE, Counts, Octaves
from calibrators.histograms.histogram import Histogram, bins_within
from calibrators.records import Count, Line, NonNegativeFloat32, NonPositiveFloat32, Text
from calibrators.tables.choice import FloatLayers, RangeChoice
from calibrators.tables.formats.common import refuse_large_parts, refuse_repeated_names

FORMAT = "trtint8-calibration-table"
_VERSION = 1

#: Of compression. Level 6 saves 3 % and takes twice as long, level 9 another 1 % and more than twenty times.
_LEVEL = 4

#: Histograms that are packed at once: zlib takes most of the time that writing a table takes.
_THREADS = 4

#: The most bytes that the counts of a histogram unpack to: a million bins, where ours have 2048.
_MOST_BYTES = 8 << 20

#: The most bytes of all counts that a table holds, unpacked: those of 12,800 histograms of 2048 bins, or of
#: more that have fewer bins.
MOST_BYTES_OF_COUNTS = 200 << 20


_Packed = TypeVar("_Packed")


@dataclass(frozen=True)
class HistogramRecord:
    """A histogram as a file holds it.

    Attributes:
        bin_width: Width of a bin; 0 where nothing was observed.
        amax: The largest finite magnitude.
        zeros: How many values were exactly zero.
        infs: How many values were infinite.
        counts: Values per bin as little-endian int64, packed by zlib; base64 in the file.
        octave: The exponent, as float32 stores it, of the first octave that ``octaves`` have.
        octaves: Values per octave bin, 256 an octave, in the form of ``counts``; None where the values are
            not crowded, and in files of version 0.2 and older.
        ends: The least value and the largest, 0 among them; None in files of version 0.2 and older.
    """

    bin_width: NonNegativeFloat32
    amax: NonNegativeFloat32
    zeros: Count
    infs: Count
    counts: bytes
    octave: Count | None = None
    octaves: bytes | None = None
    ends: tuple[NonPositiveFloat32, NonNegativeFloat32] | None = None

    @classmethod
    def of(cls, histogram: Histogram) -> HistogramRecord:
        """The record of a histogram."""
        octaves = histogram.octaves if histogram.amax else None
        return cls(
            histogram.bin_width,
            histogram.amax,
            histogram.zeros,
            histogram.infs,
            _packed(histogram.counts),
            octaves.first if octaves else None,
            _packed(octaves.counts) if octaves else None,
            histogram.ends,
        )

    def histogram(self, most_bytes: int = _MOST_BYTES) -> Histogram:
        """The histogram of a record; :meth:`Histogram.check` says whether it may be one.

        Args:
            most_bytes: The most bytes that the counts of each kind may unpack to.

        Raises:
            ValueError: The counts are too many or cut off.
            zlib.error: The counts cannot be unpacked.
        """
        octaves = None
        if self.octaves is not None:
            counts = _unpacked(self.octaves, most_bytes)
            if (counts < 0).any():
                raise ValueError("a count is negative")
            octaves = Octaves.of(self.octave or 0, counts.reshape(-1, PER_OCTAVE))
        counts = _unpacked(self.counts, most_bytes)
        return Histogram(
            counts,
            self.bin_width,
            self.amax,
            zeros=self.zeros,
            infs=self.infs,
            octaves=octaves,
            ends=self.ends,
        )


def _packed(counts: NDArray[np.integer]) -> bytes:
    return zlib.compress(counts.astype("<i8").tobytes(), _LEVEL)


def _unpacked(packed: bytes, most_bytes: int) -> Counts:
    unpacker = zlib.decompressobj()
    unpacked = unpacker.decompress(packed, most_bytes)
    if not unpacker.eof:
        raise ValueError(f"its counts are cut off, or more than {most_bytes:,} bytes")
    return np.frombuffer(unpacked, "<i8").astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class TableRecord:
    """A table as a file holds it; see :class:`calibrators.tables.table.CalibrationTable`.

    Attributes:
        format: The name by which the file is recognized.
        version: The version of the format.
        method: How the ranges were chosen.
        model: Fingerprint of the model; None where it is not known.
        data: Fingerprint of the samples; None where it is not known.
        samples: How many samples were fed; None where it is not known.
        versions: Tool name to version.
        input_sizes: Input name to the sizes of its samples, for inputs that leave some open besides the
            number of samples.
        left_out: Names of the nodes at the end of the model that were not run, to their operators.
        inputs: What the model was fed; None where it is not known, and in files of version 0.2 and older.
        cut_from: Fingerprint of the model that the calibrated model was cut from; None if it was not cut.
        modules: Tensor name to the path of the module that computes it, where that is known.
        warnings: What the calibration warned of; empty in files of version 0.2 and older.
        overridden: Names of the tensors whose range was set by hand.
        amax: Tensor name to range. A range that is negative or not finite is the table's to refuse, by the
            tensor's name.
        choice: How the ranges were chosen by what they cost the network; None where they were not.
        float_layers: The layers that stay in float because that gains accuracy; None where none were looked
            for.
        histograms: Tensor name to histogram.
    """

    format: str = FORMAT
    version: int = _VERSION
    method: str = "manual"
    model: Line | None = None
    data: Line | None = None
    samples: Count | None = None
    versions: Mapping[Line, Line] = field(default_factory=dict)
    input_sizes: Mapping[str, SampleSizes] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    inputs: CalibratedInputs | None = None
    cut_from: Line | None = None
    modules: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[Text, ...] = ()
    overridden: tuple[str, ...] = ()
    amax: Mapping[str, float]
    choice: RangeChoice | None = None
    float_layers: FloatLayers | None = None
    histograms: Mapping[str, HistogramRecord] = field(default_factory=dict)


#: What to do about a file that is no table, by what it holds.
_INSTEAD = {
    "arrays": "it holds arrays, of which 'trtint8 calibrate' makes a table",
    "model": "it is a model, so "
    + advice(f"give {Argument('model')} first and the table after it", "give a table in its place"),
}


def parse(data: bytes, source: str) -> TableRecord:
    """Reads a table.

    Args:
        data: The file's content.
        source: What to call it in messages.

    Raises:
        TableError: It is not JSON, not a table, of a newer version, has too many tensors, or a field is
            missing, stands twice, has the wrong type or exceeds its limits.
    """
    try:
        document = records.parse(data)
    except records.RecordError as error:
        forms = (
            "ranges as text end in .txt, .csv or (ONNX Runtime's) .cache, and ONNX Runtime's flatbuffers in "
            ".flatbuffers"
        )
        raise TableError(
            f"'{source}' is neither a JSON table nor a TensorRT calibration cache: {error}; "
            f"{_INSTEAD.get(kind_by_ending(source), forms)}"
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise TableError(
            f'\'{source}\' is JSON but not a calibration table: it has no "format": "{FORMAT}", and is '
            "none of PPQ or ONNX Runtime either"
        )
    if document.get("version") != _VERSION:
        raise TableError(
            f"'{source}' is a table of version {document.get('version')!r:.40}, and this trtint8 reads "
            f"version {_VERSION}; use the trtint8 that wrote it or calibrate again"
        )
    refuse_large_parts(document, source)
    wrong = f"the table '{source}' is damaged"
    with records.decoding(wrong, TableError, "correct it, or calibrate again"):
        refuse_repeated_names(data, source)
        return records.to_record(document, TableRecord)


def fitting_histograms(histograms: Mapping[str, Histogram]) -> Mapping[str, Histogram]:
    """The histograms as a table holds them: with fewer bins where the table would become too large.

    Args:
        histograms: Tensor name to histogram.
    """
    kept = {name: found.kept() for name, found in histograms.items()}
    if sum(map(_bytes_of, kept.values())) <= MOST_BYTES_OF_COUNTS:
        return kept
    return _with_bins(kept, bins_within(MOST_BYTES_OF_COUNTS, len(kept)))


def _bytes_of(histogram: Histogram) -> int:
    octaves = histogram.octaves
    return histogram.counts.nbytes + (octaves.counts.nbytes if octaves else 0)


def render(record: TableRecord, histograms: Mapping[str, Histogram], source: str) -> bytes:
    """Writes a table that :func:`parse` reads: its histograms get fewer bins, or are left out, where need be.

    Args:
        record: The table without its histograms.
        histograms: Tensor name to histogram.
        source: What to call the file in messages.

    Raises:
        TableError: There are too many tensors even without histograms, or a histogram is none.

    Warns:
        UserWarning: Histograms were left out, or have fewer bins than they had.
    """
    kept = fitting_histograms(histograms)
    data = _rendered(record, kept, source)
    bins = max((len(found.counts) for found in kept.values()), default=0)
    while kept and not records.is_readable(data):
        bins //= 2
        kept = _with_bins(kept, bins) if bins else {}
        data = _rendered(record, kept, source)
    if not records.is_readable(data):
        raise TableError(
            f"cannot write '{source}': a table of {len(record.amax):,} tensors would be larger than what is "
            "read again; leave tensors out"
        )
    if kept != {name: found.kept() for name, found in histograms.items()}:
        what = f"keeps histograms of {bins} bins" if kept else "keeps no histograms"
        warn_user(
            f"'{source}' has so many tensors that it {what}; other methods applied to it may differ",
            note=True,
        )
    return data


def _with_bins(histograms: Mapping[str, Histogram], bins: int) -> dict[str, Histogram]:
    """Histograms of which none has more bins, nor octave bins, which take more room than those."""
    return {
        name: replace(found.coarsened(bins) if len(found.counts) > bins else found, octaves=None)
        for name, found in histograms.items()
    }


def _rendered(record: TableRecord, histograms: Mapping[str, Histogram], source: str) -> bytes:
    for name, histogram in histograms.items():
        try:
            histogram.check()
        except ValueError as error:
            raise TableError(
                f"cannot write '{source}': the histogram of '{name}' is none that a calibration counts, as "
                f"{error}"
            ) from error
    return records.render(replace(record, histograms=packed(HistogramRecord.of, histograms)))


def packed(pack: Callable[[Histogram], _Packed], histograms: Mapping[str, Histogram]) -> dict[str, _Packed]:
    """Packs histograms, several at once.

    Args:
        pack: Makes of a histogram what a file holds: :meth:`HistogramRecord.of`, or what calls it.
        histograms: Tensor name to histogram.

    Returns:
        Tensor name to what ``pack`` returns.
    """
    with ThreadPoolExecutor(_THREADS, "trtint8-pack") as pool:
        return dict(zip(histograms, pool.map(pack, histograms.values()), strict=True))


def decode_histograms(record: TableRecord, source: str) -> dict[str, Histogram]:
    """The histograms of a table, by the tensors' names.

    Args:
        record: The table.
        source: What to call it in messages.

    Raises:
        TableError: A histogram cannot be decoded.
    """
    histograms, left = {}, MOST_BYTES_OF_COUNTS
    name = ""
    try:
        for name, encoded in record.histograms.items():
            if left <= 0:
                raise ValueError(f"all counts together are more than {MOST_BYTES_OF_COUNTS:,} bytes")
            histograms[name] = encoded.histogram(min(left, _MOST_BYTES))
            left -= _bytes_of(histograms[name])
        for name in histograms:
            histograms[name].check()
    except (ValueError, zlib.error) as error:
        raise TableError(
            f"'{source}': the histogram of '{name}' cannot be decoded ({error}); calibrate again"
        ) from error
    return histograms
