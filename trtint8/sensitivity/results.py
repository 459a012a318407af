"""What a measurement of sensitivity found, its file, and its sums in a checkpoint while it is unfinished.

Layers that lose accuracy have suspects: reasons in their ranges, their weights and their neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import onnx_ir as ir

from calibrators import records
from calibrators.checks import FilePath, check_ending, check_path
from calibrators.data.feeds import Float32s, Floats
from calibrators.display.cards import Cell, bar, html_table
from calibrators.display.picture import Picture, data_frame, plot_levels
from calibrators.errors import TableError, counted, titled
from calibrators.files import write_atomically
from calibrators.histograms.histogram import Histogram
from calibrators.histograms.thresholds import LEVELS
from calibrators.host.checkpoint import Checkpoint, Kind, check_place
from calibrators.operators import operator_of
from calibrators.records import Count, Positive, PositiveCount
from calibrators.tables.table import CalibrationTable
from trtint8.models.model import Model
from trtint8.sensitivity.effects import (
    ALL,
    COLUMN,
    COLUMNS,
    COUNTED,
    HITS,
    SIGNED,
    Effect,
    EffectMeter,
    Variant,
)
from trtint8.sensitivity.local import LocalMeter
from trtint8.validation.fidelity import PickCounts, PicksChanged, PicksMeter, picks_note
from trtint8.validation.significance import Share

#: With a range more than eight times that of 99.9 % of the values, these have fewer than 16 of 127 steps.
_OUTLIERS = 8.0
_NEARLY_ALL = 0.999

#: The share of values beyond the range from which clipping is reported.
_CLIPPED = 0.01

#: The ratios from which channels with one common scale are reported: for weights the largest channel over the
#: smallest, for activations the largest over the median channel, which then has 8 of the 127 steps.
_UNEVEN_WEIGHTS, _UNEVEN_ACTIVATIONS = 100.0, 16.0

#: Channels of weights that are smaller than the largest by this factor are as good as zero.
_NOTHING = 1e-5


@dataclass(frozen=True)
class Suspect:
    """A property of a layer that is known to cost accuracy.

    Attributes:
        kind: ``never-activated``, ``outliers``, ``clipped``, ``uneven-channels`` or ``delicate-neighbour``.
        message: What was found, in words.
    """

    kind: str
    message: str


def range_suspects(tensor: str, amax: float, histogram: Histogram | None) -> list[Suspect]:
    """What is suspicious about the range of an activation.

    Args:
        tensor: The name of the activation.
        amax: The range that it is quantized with.
        histogram: The histogram of its magnitudes; None where the table has none.

    Returns:
        The findings: ``never-activated``, or any of ``outliers`` and ``clipped``.
    """
    if histogram is None:
        return []
    if histogram.amax == 0:
        return [
            Suspect(
                "never-activated", f"'{tensor}' was zero in all calibration samples: its range is a guess"
            )
        ]
    found = []
    bulk = quantile(histogram, _NEARLY_ALL)
    if bulk and amax / bulk > _OUTLIERS:
        steps = max(1, round(127 * bulk / amax))
        found.append(
            Suspect(
                "outliers",
                f"{100 * _NEARLY_ALL:g} % of '{tensor}' lies below {bulk:.3g}, but its range reaches "
                f"{amax:.3g}: nearly all values share {steps} of 127 steps",
            )
        )
    # What is less than half a step beyond is rounded to the last step.
    clipped = histogram.above(amax * (1 + 0.5 / (LEVELS - 1))) / histogram.total
    if clipped > _CLIPPED:
        message = f"{100 * clipped:.1f} % of '{tensor}' lies beyond its range of {amax:.3g} and is cut off"
        found.append(Suspect("clipped", message))
    return found


def weight_suspects(tensor: str, weights: Float32s, axis: int | None) -> list[Suspect]:
    """What is suspicious about a layer's weights.

    Args:
        tensor: The name of the weights.
        weights: The weights, float32 of any shape.
        axis: The axis with one scale per index; None for one scale per tensor.

    Returns:
        At most one finding, ``uneven-channels``. Channels of zeros cost nothing.
    """
    if axis is not None:  # with one scale per channel, differences between channels cost nothing
        return []
    channels = np.abs(weights).max(axis=tuple(range(1, weights.ndim)))
    # What is left of a sine of pi is no channel that needs a finer scale.
    alive = channels[channels > channels.max() * _NOTHING]
    if not len(alive) or alive.max() / alive.min() <= _UNEVEN_WEIGHTS:
        return []
    times = f"{alive.max() / alive.min():.0f}x"
    message = f"the channels of '{tensor}' differ by {times} in range, and one scale serves them all"
    return [Suspect("uneven-channels", message)]


def channel_suspects(tensor: str, channels: Floats) -> list[Suspect]:
    """What is suspicious about the channels of an activation.

    Args:
        tensor: The name of the activation.
        channels: The largest magnitude of each channel, float64 of shape (channels,).

    Returns:
        At most one finding, ``uneven-channels``. Channels of zeros, or with infinities, do not count.
    """
    alive = channels[(channels > 0) & np.isfinite(channels)]
    if not len(alive) or alive.max() / np.median(alive) <= _UNEVEN_ACTIVATIONS:
        return []
    reach = f"one channel of '{tensor}' reaches {alive.max():.3g}, the median one {np.median(alive):.3g}"
    cure = "`trtint8 quantize --equalize` helps where the float network allows it"
    return [Suspect("uneven-channels", f"{reach}, and one scale serves them all: {cure}")]


def neighbour_suspects(value: ir.Value) -> list[Suspect]:
    """What is suspicious about the operator that produces an activation.

    Args:
        value: The activation.

    Returns:
        At most one finding, ``delicate-neighbour``.
    """
    producer = value.producer()
    if producer is None or not operator_of(producer).few_large:
        return []
    message = (
        f"'{value.name}' comes from the {producer.op_type} '{producer.name}': few large values among many "
        "small ones, which one scale serves badly"
    )
    return [Suspect("delicate-neighbour", message)]


def quantile(histogram: Histogram, share: float) -> float:
    """The magnitude below which a share of the nonzero values lies, to the width of a bin.

    Args:
        histogram: A histogram of magnitudes.
        share: The share of the values that are not zero, in [0, 1].

    Returns:
        The upper edge of the bin in which the share is reached; 0 for a histogram without values.
    """
    bins = histogram.filled()
    counts = np.cumsum(bins.counts)
    if not len(counts):
        return 0.0
    return min(float(bins.high[np.searchsorted(counts, share * counts[-1])]), histogram.amax)


#: How many remarks on layers are shown below a table.
_MOST_NOTES = 10

#: Value of the field ``format``, by which the file is recognized.
FORMAT = "trtint8-sensitivity"


@dataclass(frozen=True)
class LayerSensitivity:
    """What one layer's quantization costs.

    Attributes:
        node: Name of the layer's node.
        operator: The node's operator.
        only: The network with this layer alone in INT8, beside the float network. Predicted by gradients
            where these are known for the network's operators; classes are then judged with one of eight
            samples, or one of 16 where some samples were drawn. The shares have their numbers.
        without: The network with every layer in INT8 but this one. Where gradients predict, it is what
            remains of the whole network's noise, and no classes are known.
        weights_db: SQNR of the layer's own output with its weights alone quantized; None without weights.
        activations_db: SQNR of the layer's own output with its activations alone quantized; None where none
            is.
        cumulative_db: SQNR of what leaves the layer, and the operators after it up to the next layer, in the
            network with every layer in INT8: where the error enters, and where it grows.
        noise_share: This layer's part of the noise that all layers make, each alone.
        suspects: Properties of the layer that are known to cost accuracy.
        copies: Names of the Concats in INT8 whose copies the layer reads. They round the same values on the
            same grid, so their noise is counted here and they have no entries of their own.
        module: The path of the module of PyTorch that the layer comes from; empty where it is not known.
    """

    node: str
    operator: str
    only: Effect
    without: Effect
    weights_db: float | None
    activations_db: float | None
    cumulative_db: float | None
    noise_share: float
    suspects: tuple[Suspect, ...]
    copies: tuple[str, ...] = ()
    module: str = ""

    @property
    def title(self) -> str:
        """The name of the node, and its module."""
        return titled(self.node, self.module)


@dataclass(frozen=True, repr=False)
class Sensitivity(records.Result):
    """The cost of quantizing each layer.

    Attributes:
        samples: How many samples were fed.
        converged: Whether the intervals are as narrow as ``tolerance_db``. If that is 0, whether all samples
            were taken.
        tolerance_db: Half the width of the intervals, as it was requested, in decibels; 0 requests all
            samples.
        quantized: The network with all these layers in INT8.
        reference_top1: The float network's share of right classes; None without labels.
        layers: One entry per layer, in the order in which they run.
        model_fingerprint: Identifies the model.
        table_fingerprint: Identifies the calibration table.
        data_fingerprint: Identifies the samples.
        shown: The number of samples that measured single layers. The others measured only all layers
            together. None if the file does not have it.
        warnings: What the calibration and the measurement warned of; empty in files of version 0.2 and older.
        picks_changed: How many picks of the network, such as those of ArgMax and TopK, differ with every
            layer in INT8. Empty if it picks nothing.
        in_float: Names of the layers that the table keeps in float for accuracy. They have no entry.
    """

    samples: PositiveCount
    converged: bool
    tolerance_db: float
    quantized: Effect
    reference_top1: Share | None
    layers: tuple[LayerSensitivity, ...]
    model_fingerprint: str
    table_fingerprint: str
    data_fingerprint: str
    shown: PositiveCount | None = None
    warnings: tuple[str, ...] = ()
    picks_changed: tuple[PicksChanged, ...] = ()
    in_float: tuple[str, ...] = ()

    def __repr__(self) -> str:
        worst = f", worst '{self.worst_first[0].title}'" if self.layers else ""
        return f"<Sensitivity: {self._summary}{worst}>"

    def _repr_html_(self) -> str:
        columns = (
            "layer",
            "operator",
            "share of the noise",
            "beside the largest",
            "alone",
            "without",
            "here",
        )
        suspects = [
            f"{layer.title}: {suspect.message}" for layer in self.worst_first for suspect in layer.suspects
        ]
        notes = [*map(picks_note, self.picks_changed), *suspects]
        largest = max((layer.noise_share for layer in self.layers), default=0.0) or 1.0
        return html_table(
            self._summary, columns, (_row(layer, largest) for layer in self.worst_first), notes[:_MOST_NOTES]
        )

    def plot(self) -> Picture:
        """Draws the SQNR behind each layer with every layer in INT8, in the order in which they run.

        Returns:
            A picture that a notebook shows, and whose ``save`` writes an SVG or PNG file.

        Raises:
            UnsupportedError: Matplotlib is not installed.

        Examples:
            >>> sensitivity = trtint8.measure_sensitivity("model.onnx", "table.json", "heldout.npz")
            >>> sensitivity.plot().save("sensitivity.svg")
            PosixPath('sensitivity.svg')
        """
        known = ((layer.title, layer.cumulative_db) for layer in self.layers)
        levels = [(title, math.nan if level is None else level) for title, level in known]
        return plot_levels(levels, f"SQNR from layer to layer, {counted(len(levels), 'layer')} in INT8")

    def to_pandas(self) -> Any:
        """The layers as a data frame.

        Returns:
            A ``pandas.DataFrame`` with one row per layer, in the order in which they run, and the columns
            ``node``, ``module``, ``operator``, ``noise_share`` (in [0, 1]), and in decibels ``alone_db``,
            ``without_db``, ``weights_db``, ``activations_db`` and ``cumulative_db``; see
            :class:`LayerSensitivity`.

        Raises:
            UnsupportedError: pandas is not installed.
        """
        names = ("node", "module", "operator", "noise_share", "weights_db", "activations_db", "cumulative_db")
        columns = {name: [getattr(layer, name) for layer in self.layers] for name in names}
        columns["alone_db"] = [layer.only.sqnr_db for layer in self.layers]
        columns["without_db"] = [layer.without.sqnr_db for layer in self.layers]
        return data_frame(columns)

    @property
    def samples_text(self) -> str:
        """The number of samples, and of those that measured single layers, in words."""
        some = self.shown is not None and self.shown < self.samples
        drawn = f"; {self.shown:,} of them show the effect of a single layer" if some else ""
        return f"{counted(self.samples, 'sample', ',')}{drawn}"

    @property
    def in_int8_text(self) -> str:
        """Which layers are in INT8 in the whole network, in words."""
        but = f" but {len(self.in_float)} in float for accuracy" if self.in_float else ""
        return f"all layers in INT8{but}"

    @property
    def _summary(self) -> str:
        level = level_text(self.quantized.sqnr_db)
        return f"{counted(len(self.layers), 'layer')}, {self.in_int8_text} {level}, {self.samples_text}"

    @property
    def worst_first(self) -> tuple[LayerSensitivity, ...]:
        """The layers. The first is the one that costs most if only this layer is in INT8."""
        return tuple(sorted(self.layers, key=lambda layer: layer.only.sqnr_db))

    def save(self, path: FilePath) -> Path:
        """Writes the result as JSON, atomically.

        Raises:
            OutputError: The file cannot be written, or its name does not end in .json.
        """
        return write_atomically(check_sensitivity_name(path), records.render(self, FORMAT))

    @classmethod
    def load(cls, path: FilePath) -> Sensitivity:
        """Reads what :meth:`save` wrote.

        Raises:
            TableError: The file is missing, or is not such a file.
        """
        check_path("the sensitivity", path, TableError)
        wrong = f"'{path}' is no result of 'trtint8 sensitivity'"
        with (
            records.reading(f"'{path}'", TableError),
            records.decoding(wrong, TableError, "measure again, or give its output"),
        ):
            document = records.read(path)
            if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
                raise records.RecordError(f'it has no "format": "{FORMAT}"')
            return records.to_record(document, cls, exact=True, numbers_as_text=True)


def _row(layer: LayerSensitivity, largest_share: float) -> list[Cell]:
    return [
        layer.title,
        layer.operator,
        f"{100 * layer.noise_share:.1f} %",
        bar(layer.noise_share / largest_share),
        *map(level_text, (layer.only.sqnr_db, layer.without.sqnr_db, layer.cumulative_db)),
    ]


def check_sensitivity_name(path: FilePath) -> Path:
    """Refuses a name for a result that does not end as that of JSON, before any work is done for it.

    Raises:
        OutputError: The name is empty, does not end in .json, or is that ending alone.
    """
    return check_ending(path, "a JSON file", (".json",))


def level_text(decibels: float | None, spread: str = "") -> str:
    """An SQNR as text, with how far it may be off; empty where it is not known."""
    if decibels is None:
        return ""
    return f"{decibels:.1f}{spread} dB" if math.isfinite(decibels) else "exact"


#: The most samples: numbers up to this are exact in float64.
_MOST_SAMPLES = 1 << 53

#: How far sums of products are off by rounding, relative to them.
_ROUNDING = 1e-6

#: Seconds between two writes.
_SECONDS = 5.0


@dataclass(frozen=True)
class Measured:
    """What a measurement has summed up.

    Attributes:
        samples: How many samples were measured: the first ones of the data.
        data: Fingerprint of these samples.
        labels: Fingerprint of their labels; see :class:`trtint8.sensitivity.measure.BatchEffects`.
        effects: What each variant costs.
        local: Errors at every layer.
        picks: Name of each tensor that shows picks to its counts; see
            :class:`trtint8.validation.fidelity.PicksMeter`.
    """

    samples: int
    data: str
    labels: str
    effects: EffectMeter
    local: LocalMeter
    picks: Mapping[str, PickCounts | None] = field(default_factory=dict)

    def check_layers(self, names: Sequence[str], variants: Iterable[Variant]) -> None:
        """Refuses to continue with other layers.

        Args:
            names: Names of the model's layers.
            variants: The variants that are measured, in order.

        Raises:
            TableError: They are not those that were measured.
        """
        if set(self.local.names) != set(names) or self.effects.variants != tuple(variants):
            raise TableError(
                "the checkpoint is of other layers than those of the model; remove it to begin anew"
            )

    def check_picks(self, picks: PicksMeter) -> None:
        """Refuses to continue without the counts of the first samples.

        Raises:
            TableError: Other picks were counted.
        """
        if self.picks.keys() != picks.counts.keys():
            raise TableError(
                "the checkpoint has no counts of what the model picks, or those of another one; remove it to "
                "begin anew"
            )


@dataclass(frozen=True)
class _Effects:
    """What :meth:`EffectMeter.state` gives."""

    variants: tuple[tuple[str, str], ...]
    scales: Annotated[Mapping[str, Positive], msgspec.Meta(min_length=1)]
    classes: bool
    labelled: bool
    predicted: bool
    sums: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class _Local:
    """What :meth:`LocalMeter.state` gives."""

    samples: Count
    sums: Mapping[str, tuple[float, float, float, float, float]]
    channels: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class _Record:
    """The sums as a file holds them."""

    samples: Count
    data: str
    labels: str
    meter: _Effects
    local: _Local
    picks: Mapping[str, tuple[Count, Count, Count, Count] | None] = field(default_factory=dict)


def _pack(progress: Measured) -> _Record:
    effects, local = _Effects(**progress.effects.state()), _Local(**progress.local.state())
    return _Record(progress.samples, progress.data, progress.labels, effects, local, progress.picks)


def _unpack(record: _Record) -> Measured:
    effects = EffectMeter(**vars(record.meter))
    _check_sums(effects.sums, len(record.meter.variants))
    _check_meanings(effects.sums, record.meter)
    _check_local(record.local)
    _check_counts(record.picks)
    local = LocalMeter(**vars(record.local))
    return Measured(record.samples, record.data, record.labels, effects, local, dict(record.picks))


#: The checkpoint of a measurement of sensitivity.
SENSITIVITY = Kind("sensitivity", _Record, _pack, _unpack)


def _check_sums(sums: Floats, variants: int) -> None:
    """Refuses sums that no measurement makes: others would lead to another result without a word."""
    if sums.shape != (variants, COLUMNS):
        raise ValueError(f"its sums have the shape {sums.shape} instead of {(variants, COLUMNS)}")
    counts = sums[:, COUNTED]
    if not ((counts >= 0) & (counts <= _MOST_SAMPLES) & (counts == np.rint(counts))).all():
        raise ValueError("a number of samples in it is none")
    if not np.isfinite(sums).all() or (np.delete(sums, SIGNED, axis=1) < 0).any():
        raise ValueError("a sum of squares in it is negative, or not finite")


def _check_meanings(sums: Floats, effects: _Effects) -> None:
    """Refuses sums that contradict each other: shares of more than all samples, or a cosine above 1."""
    column = {name: sums[:, index] for name, index in COLUMN.items()}
    if len(set(effects.variants)) < len(effects.variants) or ALL not in effects.variants:
        raise ValueError("a variant stands twice in it, or that of all layers is missing")
    if effects.labelled and not effects.classes:
        raise ValueError("it has labels without classes")
    judged = sum(column[name] for name in HITS) if effects.labelled else column["agree"]
    if (np.maximum(judged, column["agree"]) > column["judged"]).any():
        raise ValueError("more samples in it have a class than were judged")
    if effects.labelled and ((judged == 0) & (column["judged"] > 0)).any():
        raise ValueError("samples in it were judged, and none has a class")
    if (column["shown"] > column["samples"]).any():
        raise ValueError("more samples in it show the noise than there are")
    both = np.sqrt(column["signal"]) * np.sqrt(column["got2"])
    if (np.abs(column["product"]) > (1 + _ROUNDING) * both).any():
        raise ValueError("a product of outputs in it is larger than both")


def _check_local(local: _Local) -> None:
    """Refuses errors at layers that no measurement makes; they are not finite where a tensor is not."""
    if not local.sums.keys() >= local.channels.keys():
        raise ValueError("it has channels of a layer without sums")
    found = (*local.sums.values(), *local.channels.values())
    if any(number < 0 for numbers in found for number in numbers):
        raise ValueError("a sum of squares, or a magnitude of a channel, in it is negative")


def _check_counts(picks: Mapping[str, PickCounts | None]) -> None:
    """Refuses counts of picks that no measurement makes."""
    for made, changed, lost, gained in filter(None, picks.values()):
        if lost > made or not max(lost, gained) <= changed <= lost + gained:
            raise ValueError("the numbers of picks in it contradict each other")


def measurement_checkpoint(
    path: FilePath,
    prepared: Model,
    table: CalibrationTable,
    keep_float: Sequence[str],
    batch_size: int | None,
) -> Checkpoint[Measured]:
    """Where a measurement keeps its sums, and what these depend on besides the data.

    Args:
        path: The file. Where there is one already, it is continued.
        prepared: The model.
        table: The ranges.
        keep_float: Names of nodes, or patterns, that stay in float in every variant.
        batch_size: Samples per batch; None where the data decides it.

    Raises:
        OutputError: The file cannot be written.
    """
    identity = {
        "model": prepared.fingerprint,
        "table": table.fingerprint,
        "keep_float": list(keep_float),
        "batch_size": batch_size,
    }
    return Checkpoint(check_place(path), identity, SENSITIVITY, resume=True, seconds=_SECONDS)
