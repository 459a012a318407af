"""The calibration table: the range of every tensor, and where it came from.

How the ranges of a calibration table show themselves in a notebook and as a data frame.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from calibrators import records
from calibrators.checks import FilePath, check_mapping, is_number, located, several, warn_user
from calibrators.data.inputs import CalibratedInputs
from calibrators.data.samples import SampleSizes
from calibrators.display.cards import Cell, card_of, html_table, sparkline
from calibrators.display.picture import Picture, data_frame, plot_histogram
from calibrators.errors import Argument, TableError, advice, counted, enumerated, such_as, titled
from calibrators.histograms.histogram import Histogram
from calibrators.histograms.rules import RangeLoss, excessive_losses
from calibrators.histograms.thresholds import METHODS
from calibrators.records import Line, Result, Text, as_json
from calibrators.tables import files
from calibrators.tables.choice import QMAX, FloatLayers, RangeChoice, check_spend, scale_of
from calibrators.tables.formats.json import TableRecord, decode_histograms
from calibrators.tables.formats.tensorrt_cache import TensorrtCache

#: The largest ratio of two ranges that only rounding to float32 sets apart: two roundings of either.
ROUNDING = 1 + 2.0**-22


@dataclass(frozen=True)
class Provenance:
    """Where a table came from. A field is None or empty where that is not known.

    Attributes:
        model: Fingerprint of the model that was calibrated.
        data: Fingerprint of the samples, which depends neither on their order nor on the batch size.
        samples: How many samples the model was run on.
        versions: Name of a tool to its version.
        input_sizes: Input name to the sizes of its samples, for inputs that leave some open besides the
            number of samples.
        left_out: The nodes at the end of the model that were not run, name to operator: plugins of TensorRT,
            which ONNX Runtime does not know, and all that follows them.
        inputs: What the model was fed: how images were preprocessed, and how large values were; None where
            that is not known, as in files of version 0.2.
        cut_from: Fingerprint of the model that the calibrated model was cut from; None if it was not cut.
        modules: Tensor name to the path of the module of PyTorch that computes it, for tensors of which that
            is known.

    Raises:
        TableError: A fingerprint, a tool or a version is no text of one line and at most 200 characters.
    """

    model: str | None = None
    data: str | None = None
    samples: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    input_sizes: Mapping[str, SampleSizes] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    inputs: CalibratedInputs | None = None
    cut_from: str | None = None
    modules: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fingerprints = (one for one in (self.model, self.data, self.cut_from) if one is not None)
        for text in (*fingerprints, *self.versions, *self.versions.values()):
            if not records.fits(text, Line):
                raise TableError(
                    f"the provenance of a table holds {text!r:.80}, which is no text of one line and at most "
                    "200 characters; give the fingerprint of the model or of the samples, or a tool and its "
                    "version"
                )


#: The fields that a file has beside the ranges.
_OF_PROVENANCE = tuple(one.name for one in dataclasses.fields(Provenance))


@dataclass(frozen=True)
class Difference:
    """One tensor's range in two tables.

    Attributes:
        name: The tensor's name.
        first: Its amax in the first table; None where that table lacks the tensor.
        second: Its amax in the second table; None where that table lacks the tensor.
    """

    name: str
    first: float | None
    second: float | None

    @property
    def ratio(self) -> float:
        """The larger range over the smaller one; infinite where one is missing or zero."""
        if self.first == self.second:
            return 1.0
        low, high = sorted((self.first or 0.0, self.second or 0.0))
        return high / low if low else math.inf


@dataclass(frozen=True, repr=False)
class CalibrationTable(Result):
    """The range of each tensor, for both the implicit and the explicit route.

    Tables are not changed in place: :meth:`override` and :meth:`with_method` return new ones.

    Attributes:
        amax: Tensor name to the positive end of the tensor's symmetric range, in the graph's order.
        method: How the ranges were chosen, a key of :data:`calibrators.histograms.thresholds.METHODS`,
            ``auto``, or ``manual``.
        provenance: What the ranges were computed from, and with which tools.
        overridden: Names of the tensors whose range was set by hand.
        histograms: Tensor name to the histogram that its range was computed from; empty where the table was
            imported.
        choice: How ``auto`` chose the ranges; None for other methods.
        float_layers: The layers that stay in float because that gains accuracy; None where none were looked
            for.
        warnings: What the calibration warned of.

    Examples:
        >>> table = trtint8.CalibrationTable.load("table.json").override({"images": 2.0})
        >>> table.save("corrected.json")
        PosixPath('corrected.json')
    """

    amax: Mapping[str, float]
    method: str = "manual"
    provenance: Provenance = field(default_factory=Provenance)
    overridden: frozenset[str] = frozenset()
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    choice: RangeChoice | None = None
    warnings: tuple[str, ...] = ()
    float_layers: FloatLayers | None = None

    def __repr__(self) -> str:
        return f"<CalibrationTable: {self._summary}>"

    def _repr_html_(self) -> str:
        columns = ["tensor", "amax", "scale", "method"]
        columns += ["largest", "clipped", "magnitudes"] if self.histograms else []
        return html_table(self._summary, columns, map(self._cells, self.amax))

    def _cells(self, name: str) -> list[Cell]:
        """What a notebook shows of a tensor, with a small histogram where there is one."""
        title, amax, scale, largest, _, clipped, method = texts_of(self, name)
        histogram = self.histograms.get(name)
        drawn = sparkline(histogram, self.amax[name]) if histogram else ""
        return [title, amax, scale, method, *([largest, clipped, drawn] if self.histograms else [])]

    def __post_init__(self) -> None:
        for name in (*self.amax, self.method):
            if not (isinstance(name, str) and records.fits(str(name), Text)):
                raise TableError(f"the name {name!r:.80} is no text, or has a lone surrogate; name tensors")
        _refuse(
            {name: value for name, value in self.amax.items() if not _is_range(value)},
            "a range must be a number that is not negative, and no larger than a float32 holds",
        )
        # Files and fingerprints are made of Python's numbers.
        object.__setattr__(self, "amax", {name: float(value) for name, value in self.amax.items()})

    @classmethod
    def from_histograms(
        cls, histograms: Mapping[str, Histogram], method: str, provenance: Provenance
    ) -> CalibrationTable:
        """Computes every range from its histogram.

        Args:
            histograms: Tensor name to the histogram of the tensor's magnitudes.
            method: A key of :data:`calibrators.histograms.thresholds.METHODS`.
            provenance: Where the histograms came from.

        Returns:
            The table, which contains the histograms.

        Raises:
            TableError: The method is unknown.
        """
        threshold = _threshold(method)
        amax = {name: threshold(histogram) for name, histogram in histograms.items()}
        kept = {name: histogram.kept() for name, histogram in histograms.items()}
        return cls(amax, method, provenance, histograms=kept)

    @classmethod
    def load(cls, path: FilePath) -> CalibrationTable:
        """Reads a table of any format, which is recognized by the file's content and ending.

        The formats are trtint8's own (JSON), TensorRT's calibration cache, ONNX Runtime's tables (JSON,
        FlatBuffers, plain lines), PPQ's, text and CSV. ncnn's tables are not among them: they name layers
        instead of tensors.

        Args:
            path: The file.

        Returns:
            The table. For a calibration cache, ``amax / 127`` in float32 is exactly the file's scale, and the
            provenance is that of the cache's sidecar.

        Raises:
            TableError: The file cannot be read or is malformed, or is a cache with the sidecar of another; or
                what is given is no path.
        """
        return cls._from_record(files.read_table(path), os.fspath(path))

    @classmethod
    def from_cache(cls, cache: TensorrtCache, provenance: Provenance) -> CalibrationTable:
        """Returns the contents of a TensorRT calibration cache as a table.

        Args:
            cache: The contents of the cache.
            provenance: Where the cache came from.

        Returns:
            The table; ``amax / 127`` in float32 is exactly the cache's scale.
        """
        record = files.record_of_cache(cache)
        return cls(record.amax, record.method, provenance)

    def save(
        self,
        path: FilePath,
        *,
        format_name: str | None = None,
        tensorrt_version: str = "8601",
    ) -> Path:
        """Writes the table atomically, in the format that the file's ending names.

        Args:
            path: The file: ``*.json`` for trtint8's own format, ``*.cache`` for TensorRT's calibration cache,
                which gets a sidecar, ``*.txt``, ``*.csv``, ``*.flatbuffers`` for ONNX Runtime's.
            format_name: A key of :data:`calibrators.tables.files.FORMATS`; by default the ending decides.
                ``ppq`` and ``onnxruntime-json`` are recognized by their content, and may have the ending
                ``*.json`` or one that names no format. The other formats need their own endings.
            tensorrt_version: The version that the header of a cache names, in digits; TensorRT compares it
                with its own.

        Returns:
            ``path``.

        Raises:
            TableError: There is no such format, the ending names no format or another one, the format cannot
                hold the name of a tensor, a cache would hold only ranges of 0, or the table has no ranges,
                which only trtint8's own format can hold.
            OutputError: The file cannot be written.

        Warns:
            UserWarning: The format cannot hold which layers stay in float.
        """
        if self.float_layers and (format_name is not None or Path(path).suffix.lower() != ".json"):
            warn_user(
                f"'{os.fspath(path)}' cannot hold which layers stay in float: give a .json, or name them "
                f"where you quantize: {', '.join(self.layers_in_float)}",
                note=True,
            )
        return files.write_table(
            path,
            self._record(),
            self.histograms,
            format_name=format_name,
            tensorrt_version=tensorrt_version,
        )

    def scale(self, name: str) -> np.float32:
        """Returns the scale of one tensor: ``amax / 127`` as float32.

        Raises:
            TableError: The table has no such tensor.
        """
        self._check_name(name)
        return scale_of(self.amax[name])

    def signed_range(self, name: str) -> tuple[float, float] | None:
        """Returns the ends of one tensor's range, for backends with asymmetric ranges.

        On the side of its larger magnitudes a range ends at amax. On the other side it ends at the smallest
        or largest value that was observed, or at amax if that is nearer to zero. A range that was set by hand
        without any observation is the same on both sides.

        Args:
            name: The tensor's name.

        Returns:
            The lower end, at most 0, and the upper end, at least 0. None if the table does not have the
            smallest and largest values, because it was imported, or written by a version before 0.3.

        Raises:
            TableError: The table has no such tensor.
        """
        self._check_name(name)
        amax, histogram = self.amax[name], self.histograms.get(name)
        if histogram is None or histogram.ends is None:
            return (-amax, amax) if name in self.overridden else None
        low, high = histogram.ends
        return (
            max(low, -amax) if -low < high else -amax,
            min(high, amax) if high < -low else amax,
        )

    @property
    def method_in_cache(self) -> str:
        """The method of the table after it was written to a calibration cache and read from it.

        A cache names an algorithm of TensorRT. Only some methods have one.
        """
        return files.method_in_cache(self.method)

    @property
    def fingerprint(self) -> str:
        """A hexadecimal SHA-256 hash of the ranges, whatever their order."""
        text = "".join(f"{name}\0{value!r}\n" for name, value in sorted(self.amax.items()))
        return hashlib.sha256(text.encode()).hexdigest()

    def override(self, ranges: Mapping[str, float]) -> CalibrationTable:
        """Returns a table with some ranges set by hand; new names are added.

        Args:
            ranges: Tensor name to amax, each a positive number.

        Returns:
            The new table.

        Raises:
            TableError: A value is not a positive float32, or ``ranges`` is not a dict.
        """
        check_mapping("what is set by hand", ranges, "from tensor name to range", TableError)
        _refuse(
            {
                name: value
                for name, value in ranges.items()
                if not (_is_range(value) and np.float32(float(value) / QMAX) > 0)
            },
            "a range set by hand must be a positive number, neither too small nor too large for a float32",
        )
        amax = {**self.amax, **ranges}
        return dataclasses.replace(self, amax=amax, overridden=self.overridden | set(ranges))

    @property
    def peaks(self) -> dict[str, float]:
        """The largest magnitude of each tensor, if it is known.

        Without a histogram it is the amax, except for methods that may clip values.
        """
        cuts_off = self.method not in ("manual", "minmax")
        return {
            name: self.histograms[name].amax if name in self.histograms else amax
            for name, amax in self.amax.items()
            if name in self.histograms or name in self.overridden or not cuts_off
        }

    def with_method(self, method: str) -> CalibrationTable:
        """Returns a table of the same data with another method; ranges that were set by hand are kept.

        Args:
            method: A key of :data:`calibrators.histograms.thresholds.METHODS`.

        Returns:
            The new table.

        Raises:
            TableError: The method is unknown, or a tensor has no histogram.

        Examples:
            >>> table = trtint8.CalibrationTable.load("table.json")
            >>> table.amax["images"] < table.with_method("minmax").amax["images"]
            True
        """
        threshold = _threshold(method)
        without = [name for name in self.amax if name not in self.histograms and name not in self.overridden]
        if without or not self.histograms:
            raise TableError(
                f"the table has no histograms to apply the method '{method}' to"
                + (f" (for '{without[0]}')" if without else "")
                + "; calibrate again with that method"
            )
        amax = {
            name: value if name in self.overridden else threshold(self.histograms[name])
            for name, value in self.amax.items()
        }
        layers = self.float_layers and self.float_layers.unmeasured()
        return dataclasses.replace(self, amax=amax, method=method, choice=None, float_layers=layers)

    def with_choice(self, ranges: Mapping[str, float], choice: RangeChoice) -> CalibrationTable:
        """Returns a table with ranges that ``auto`` has chosen.

        Args:
            ranges: Tensor name to amax; ranges that were set by hand are kept.
            choice: How they were chosen.

        Returns:
            The new table, whose method is ``auto``.
        """
        chosen = {name: value for name, value in ranges.items() if name not in self.overridden}
        return dataclasses.replace(self, amax={**self.amax, **chosen}, method="auto", choice=choice)

    def method_of(self, name: str) -> str:
        """Returns how the range of one tensor was chosen.

        Args:
            name: The tensor's name.

        Returns:
            ``by hand``, or the rule of the choice if the method is ``auto``, or else the method.

        Raises:
            TableError: The table has no such tensor.
        """
        self._check_name(name)
        if name in self.overridden:
            return "by hand"
        return self.rule

    def spending(self, spend: float | None) -> CalibrationTable:
        """Returns a table whose layers stay in float as far as that is wanted.

        Args:
            spend: The share of the time that they may take, in [0, 1]; None leaves what the table says.

        Returns:
            This table; for 0 one without layers in float.

        Raises:
            CalibrationDataError: It is no share.

        Warns:
            UserWarning: It is another share than the table was made with, which has no effect.
        """
        check_spend(spend)
        if spend == 0:
            return dataclasses.replace(self, float_layers=None)
        made = FloatLayers.allowance(self.float_layers)
        if spend is not None and spend != made:
            warn_user(
                f"{Argument('spend', f'{spend:g}')} has no effect, because samples show which layers are "
                f"worth it; the table was calibrated with {made:g}",
                note=True,
            )
        return self

    @property
    def layers_in_float(self) -> tuple[str, ...]:
        """Names of the layers that stay in float because that gains accuracy."""
        return self.float_layers.layers if self.float_layers else ()

    @property
    def rule(self) -> str:
        """How ranges not set by hand were chosen: the method, or for ``auto`` the rule of the choice."""
        return self.choice.rule if self.choice else self.method

    def plot(self, name: str) -> Picture:
        """Draws the histogram of one tensor, with its range and those of the other methods.

        Args:
            name: The tensor's name.

        Returns:
            A picture that a notebook shows, and whose ``save`` writes an SVG or PNG file.

        Raises:
            TableError: The table has no such tensor, or no histogram of it.
            UnsupportedError: Matplotlib is not installed.

        Examples:
            >>> table = trtint8.CalibrationTable.load("table.json")
            >>> table.plot("images").save("images.svg")
            PosixPath('images.svg')
        """
        self._check_name(name)
        histogram = self.histograms.get(name)
        if histogram is None or not histogram.amax:
            raise TableError(f"the table has no histogram of '{name}' with values other than zero to draw")
        index = list(self.amax).index(name)
        return plot_histogram(card_of(index, name, histogram, self.amax[name], self.method_of(name)))

    def to_json(self) -> dict[str, Any]:
        """Returns the ranges and where they came from, as ``trtint8 table show --json`` prints them.

        Histograms are not included; :meth:`save` writes them.
        """
        return {
            "method": self.method,
            "choice": as_json(self.choice),
            "float_layers": as_json(self.float_layers),
            "losses": as_json(self.excessive_losses),
            "provenance": as_json(self.provenance),
            "cache": None,
            "amax": dict(self.amax),
            "warnings": list(self.warnings),
        }

    def to_pandas(self) -> Any:
        """Returns the ranges as a data frame.

        Returns:
            A ``pandas.DataFrame`` with one row per tensor and the columns ``tensor``, ``amax``, ``scale`` and
            ``method``, and ``largest``, ``zeros`` and ``clipped`` (the last two in [0, 1]), which are empty
            if the table has no histogram of the tensor.

        Raises:
            UnsupportedError: pandas is not installed.
        """
        columns = ("tensor", "amax", "scale", "method", "largest", "zeros", "clipped")
        rows = [
            (name, amax, amax / QMAX, self.method_of(name), *observed(self, name))
            for name, amax in self.amax.items()
        ]
        return data_frame({column: [row[place] for row in rows] for place, column in enumerate(columns)})

    def _check_name(self, name: str) -> None:
        if name not in self.amax:
            raise TableError(f"the table has no tensor '{name}'; it has {such_as(self.amax)}")

    @property
    def _summary(self) -> str:
        rule = f" ({self.choice.rule})" if self.choice else ""
        samples = "" if self.provenance.samples is None else f", {counted(self.provenance.samples, 'sample')}"
        return f"{counted(len(self.amax), 'tensor')}, {self.method}{rule}{samples}"

    @property
    def excessive_losses(self) -> dict[str, RangeLoss]:
        """Returns tensors whose range loses more of their values than it should, whatever the method.

        Returns:
            Tensor name to loss, the worst first; ranges that were set by hand are left out.
        """
        amax = {name: value for name, value in self.amax.items() if name not in self.overridden}
        return excessive_losses(self.histograms, amax)

    def without(self, patterns: str | Iterable[str]) -> CalibrationTable:
        """Returns a table without some tensors.

        Args:
            patterns: Names, or patterns with ``*`` and ``?``.

        Returns:
            The new table.

        Raises:
            TableError: A pattern matches no tensor, or no tensor would be left.
        """
        given = several(patterns)
        dropped: set[str] = set()
        for pattern in given:
            matched = [name for name in self.amax if name == pattern] or fnmatch.filter(self.amax, pattern)
            if not matched:
                raise TableError(f"'{pattern}' matches no tensor of the table; it has {such_as(self.amax)}")
            dropped.update(matched)
        if dropped and len(dropped) == len(self.amax):
            shown = enumerated(f"'{pattern}'" for pattern in given)
            raise TableError(f"without {shown} no tensor is left in the table; keep at least one")
        return dataclasses.replace(
            self,
            amax={name: amax for name, amax in self.amax.items() if name not in dropped},
            overridden=self.overridden - dropped,
            histograms={name: kept for name, kept in self.histograms.items() if name not in dropped},
        )

    def merged(self, other: CalibrationTable) -> CalibrationTable:
        """Returns a table with what two tables have. For shared tensors the other counts.

        Args:
            other: A table of the same model. That is checked if both tables name their models.

        Returns:
            The new table, with the method of this table. If the other table has another method, or another
            rule of ``auto``, its ranges count as set by hand.

        Raises:
            TableError: The two tables are of different models.
        """
        mine, theirs = self.provenance.model, other.provenance.model
        if None not in (mine, theirs) and mine != theirs:
            raise TableError(f"the tables are of different models ({mine} and {theirs}); merge none of these")
        ways = {(table.method, table.rule) for table in (self, other)}
        by_hand = set(other.amax) if len(ways) > 1 else set(other.overridden)
        kept = {name: found for name, found in self.histograms.items() if name not in other.amax}
        return dataclasses.replace(
            self,
            amax={**self.amax, **other.amax},
            overridden=(self.overridden - set(other.amax)) | by_hand,
            histograms={**kept, **other.histograms},
            warnings=tuple(dict.fromkeys((*self.warnings, *other.warnings))),
            float_layers=self.float_layers or other.float_layers,
        )

    def diff(self, other: CalibrationTable) -> list[Difference]:
        """Returns tensors whose ranges differ by more than rounding to float32, the largest ratio first."""
        names = dict.fromkeys([*self.amax, *other.amax])
        pairs = (Difference(name, self.amax.get(name), other.amax.get(name)) for name in names)
        return sorted((pair for pair in pairs if pair.ratio > ROUNDING), key=lambda pair: -pair.ratio)

    def of_part(self, fingerprint: str, cut_from: str | None) -> CalibrationTable:
        """Returns the table for a model that was cut; ranges up to a cut are those of the whole model.

        Args:
            fingerprint: Fingerprint of the part.
            cut_from: Fingerprint of the whole model; None if it was not cut.

        Returns:
            A table for the part if this one is of the whole model, or of another part of it; else this one.
        """
        if cut_from is None or cut_from not in (self.provenance.model, self.provenance.cut_from):
            return self
        provenance = dataclasses.replace(self.provenance, model=fingerprint, cut_from=cut_from)
        return dataclasses.replace(self, provenance=provenance)

    def check_model(self, fingerprint: str, tensors: Iterable[str], known: Iterable[str] = ()) -> None:
        """Refuses a model that the table was not made for.

        Args:
            fingerprint: The model's fingerprint.
            tensors: Names of the tensors whose ranges are needed.
            known: Names of all tensors of the model, with which the table's names are compared where the
                table was made for another one or does not say for which; without any, nothing is compared.

        Raises:
            TableError: The table was made for another model, is stale, or lacks a range.

        Warns:
            UserWarning: The table does not say which model it was made for, and has names of other tensors.
        """
        missing = [name for name in tensors if name not in self.amax]
        shown = enumerated(f"'{name}'" for name in missing)
        model, cut_from = self.provenance.model, self.provenance.cut_from
        made_for_other = model is not None and fingerprint not in (model, cut_from)
        if made_for_other and missing:
            raise TableError(
                f"the table was made for another model: it has no range for {shown}; calibrate this one"
            )
        of_model = frozenset(known)
        strange = [name for name in self.amax if of_model and name not in of_model]
        if made_for_other and strange:
            raise TableError(
                f"the table was made for another model: {len(strange)} of its "
                f"{counted(len(self.amax), 'tensor')} ('{strange[0]}' among them) are not in this one; "
                "calibrate this one"
            )
        if made_for_other:
            state = (
                "is stale: the model has the same tensors but its"
                if of_model
                else "is stale, or of another model:"
            )
            raise TableError(
                f"the table {state} weights or nodes have changed since it was calibrated "
                f"(fingerprint {model} then, {fingerprint} now); calibrate again, or if tuning "
                "or equalization changed the weights, give the .float.onnx beside the table"
            )
        if missing:
            what, instead = "the table", "calibrate this model"
            if cut_from == fingerprint:
                what = "the table is of the model up to a cut, and"
                same = f"cut the model at the same tensors ({Argument('cut_at')})"
                instead = advice(same, "calibrate the whole model")
            elif cut_from is not None:
                same = f"calibrate the model up to the same cut ({Argument('cut_at')})"
                instead = advice(same, instead)
            count = counted(len(missing), "tensor")
            raise TableError(f"{what} has no range for {count}: {shown}; {instead}, or set them by hand")
        if model is None:
            self._compare_names([name for name in strange if name not in self.overridden])

    def _compare_names(self, strange: list[str]) -> None:
        """Warns of tensors that a model lacks, and refuses a table without a single tensor of the model."""
        if strange and len(strange) == len(self.amax):
            raise TableError(
                f"none of the table's {counted(len(strange), 'tensor')} ('{strange[0]}' among them) is in "
                "the model; give the table of this model, or calibrate it"
            )
        imported = len(self.amax.keys() - self.overridden)
        if strange := [name for name in strange if not _TENSORRTS_OWN.search(name)]:
            warn_user(
                f"{len(strange)} of the table's {counted(imported, 'tensor')} ('{strange[0]}' among them) "
                "are not in the model, and the table does not say which model it was made for; make sure "
                "that it was this one"
            )

    def _record(self) -> TableRecord:
        """What a file holds of the table beside its histograms."""
        known: dict[str, Any] = {name: getattr(self.provenance, name) for name in _OF_PROVENANCE}
        known |= {name: dict(value) for name, value in known.items() if isinstance(value, Mapping)}
        return TableRecord(
            **known,
            method=self.method,
            warnings=self.warnings,
            overridden=tuple(sorted(self.overridden)),
            amax=dict(self.amax),
            choice=self.choice,
            float_layers=self.float_layers,
        )

    @classmethod
    def _from_record(cls, record: TableRecord, source: str) -> CalibrationTable:
        provenance = Provenance(**{name: getattr(record, name) for name in _OF_PROVENANCE})
        histograms = decode_histograms(record, source)
        with located(f"'{source}'", TableError):
            return cls(
                record.amax,
                record.method,
                provenance,
                frozenset(record.overridden),
                histograms,
                record.choice,
                record.warnings,
                record.float_layers,
            )


#: The largest range whose scale, of symmetric INT8, is a float32.
_LARGEST_AMAX = QMAX * float(np.finfo(np.float32).max)

#: Names that TensorRT gives to tensors that a model does not have, such as weights and the product in a Gemm:
#: "(Unnamed Layer* 26) [Constant]_output" in caches of 8.6, "fc.weight_output" by the parser of later ones.
_TENSORRTS_OWN = re.compile(r"^\(Unnamed Layer\* |_output$")


def _is_range(value: Any) -> bool:
    if isinstance(value, np.generic):
        value = value.item()
    return is_number(value) and 0 <= value <= _LARGEST_AMAX


def _refuse(bad: Mapping[str, object], rule: str) -> None:
    if bad:
        shown = enumerated(f"'{name}' ({value!r:.80})" for name, value in bad.items())
        raise TableError(f"{rule}: {shown}")


def _threshold(method: str) -> Callable[[Histogram], float]:
    if method not in METHODS:
        raise TableError(f"unknown calibration method '{method}'; use one of {', '.join(METHODS)}")
    return METHODS[method]


def observed(table: CalibrationTable, name: str) -> tuple[float, float, float]:
    """Returns a tensor's largest magnitude, and the shares of its values that are zero and that are clipped.

    All are NaN if the table has no histogram of the tensor, and the shares if that has no values.
    """
    if (histogram := table.histograms.get(name)) is None:
        return math.nan, math.nan, math.nan
    total = histogram.total or math.nan
    return histogram.amax, histogram.zeros / total, histogram.above(table.amax[name]) / total


def texts_of(table: CalibrationTable, name: str) -> tuple[str, ...]:
    """Returns what is shown of a tensor: name, range, scale, largest value, zeros, clipped, method."""
    largest, zeros, clipped = observed(table, name)
    figures = (f"{largest:.6g}", f"{100 * zeros:.1f} %", f"{100 * clipped:.3f} %")
    return (
        titled(name, table.provenance.modules.get(name, "")),
        f"{table.amax[name]:.6g}",
        f"{table.scale(name):.6g}",
        *("" if text.startswith("nan") else text for text in figures),
        table.method_of(name),
    )
