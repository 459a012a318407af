"""The sums of an unfinished measurement, and how they stand in a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from calibrators.errors import TableError
from calibrators.host.checkpoint import Checkpoint, Kind, check_place
from calibrators.records import Count, Positive
from calibrators.tables.table import CalibrationTable
from trtint8.models.model import Model
from trtint8.sensitivity.effects import ALL, EffectMeter, Variant
from trtint8.sensitivity.local import LocalMeter
from trtint8.sensitivity.noise_sums import COLUMN, COLUMNS, COUNTED, HITS, SIGNED

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
        labels: Fingerprint of their labels; see :class:`trtint8.sensitivity.probe.BatchEffects`.
        effects: What each variant costs.
        local: Errors at every layer.
    """

    samples: int
    data: str
    labels: str
    effects: EffectMeter
    local: LocalMeter

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
    forms: Mapping[str, tuple[bool, bool]]


@dataclass(frozen=True)
class _Record:
    """The sums as a file holds them."""

    samples: Count
    data: str
    labels: str
    meter: _Effects
    local: _Local


def _pack(progress: Measured) -> _Record:
    effects, local = _Effects(**progress.effects.state()), _Local(**progress.local.state())
    return _Record(progress.samples, progress.data, progress.labels, effects, local)


def _unpack(record: _Record) -> Measured:
    effects = EffectMeter.from_state(vars(record.meter))
    _check_sums(effects.sums, len(record.meter.variants))
    _check_meanings(effects.sums, record.meter)
    _check_local(record.local)
    local = LocalMeter.from_state(vars(record.local))
    return Measured(record.samples, record.data, record.labels, effects, local)


#: The checkpoint of a measurement of sensitivity.
SENSITIVITY = Kind("sensitivity", _Record, _pack, _unpack)


def _check_sums(sums: NDArray[np.float64], variants: int) -> None:
    """Refuses sums that no measurement makes: others would lead to another result without a word."""
    if sums.shape != (variants, COLUMNS):
        raise ValueError(f"its sums have the shape {sums.shape} instead of {(variants, COLUMNS)}")
    counts = sums[:, COUNTED]
    if not ((counts >= 0) & (counts <= _MOST_SAMPLES) & (counts == np.rint(counts))).all():
        raise ValueError("a number of samples in it is none")
    if not np.isfinite(sums).all() or (np.delete(sums, SIGNED, axis=1) < 0).any():
        raise ValueError("a sum of squares in it is negative, or not finite")


def _check_meanings(sums: NDArray[np.float64], effects: _Effects) -> None:
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
    if not local.sums.keys() >= {*local.channels, *local.forms}:
        raise ValueError("it has channels or forms of a layer without sums")
    found = (*local.sums.values(), *local.channels.values())
    if any(number < 0 for numbers in found for number in numbers):
        raise ValueError("a sum of squares, or a magnitude of a channel, in it is negative")


def measurement_checkpoint(
    path: str | os.PathLike[str],
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
