"""What a measurement of sensitivity found, and its file."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrators.errors import TableError
from calibrators.files import write_atomically
from trtint8.sensitivity.effects import Effect
from trtint8.sensitivity.suspects import Suspect
from trtint8.validation.significance import Comparison, Share

_FORMAT = "trtint8-sensitivity"


@dataclass(frozen=True)
class LayerSensitivity:
    """What one layer's quantization costs.

    Attributes:
        node: The layer.
        operator: Its operator.
        only: The network with this layer alone in INT8, beside the float network.
        without: The network with every layer in INT8 but this one.
        weights_db: SQNR of the layer's own output with its weights alone quantized; None without weights.
        activations_db: The same with its activations alone quantized; None without.
        cumulative_db: SQNR of what leaves the layer, and the operators after it up to the next layer, in the
            network with every layer in INT8: where the error enters, and where it grows.
        noise_share: This layer's part of the noise that all layers make, each alone.
        suspects: What about it is known to cost accuracy.
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


@dataclass(frozen=True)
class Sensitivity:
    """What the quantization of every layer costs.

    Attributes:
        samples: How many samples were fed.
        converged: Whether the intervals are as narrow as was asked for.
        tolerance_db: Half the width that was asked for.
        quantized: The network with every layer in INT8.
        reference_top1: The float network's share of right classes; None without labels.
        layers: In the order in which they run.
        model_fingerprint: Of the model.
        table_fingerprint: Of the table.
        data_fingerprint: Of the samples.
    """

    samples: int
    converged: bool
    tolerance_db: float
    quantized: Effect
    reference_top1: Share | None
    layers: tuple[LayerSensitivity, ...]
    model_fingerprint: str
    table_fingerprint: str
    data_fingerprint: str

    @property
    def worst_first(self) -> tuple[LayerSensitivity, ...]:
        """The layers, the one first that alone costs most."""
        return tuple(sorted(self.layers, key=lambda layer: layer.only.sqnr_db))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes it as JSON, atomically.

        Raises:
            OutputError: The file cannot be written.
        """
        document = {"format": _FORMAT, **_plain(dataclasses.asdict(self))}
        return write_atomically(path, json.dumps(document, indent=1).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Sensitivity:
        """Reads what :meth:`save` wrote.

        Raises:
            TableError: The file is missing, or is something else.
        """
        try:
            document = json.loads(Path(path).read_bytes())
            if document.pop("format") != _FORMAT:
                raise KeyError("format")
            layers = tuple(_layer(entry) for entry in document.pop("layers"))
            quantized = _effect(document.pop("quantized"))
            top1 = _share(document.pop("reference_top1"))
            return cls(layers=layers, quantized=quantized, reference_top1=top1, **document)
        except OSError as error:
            raise TableError(f"cannot read '{path}': {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TableError(
                f"'{path}' is no result of 'trtint8 sensitivity'; measure again, or give its output"
            ) from error


def _layer(entry: dict[str, Any]) -> LayerSensitivity:
    return LayerSensitivity(
        entry["node"],
        entry["operator"],
        _effect(entry["only"]),
        _effect(entry["without"]),
        _level(entry["weights_db"]),
        _level(entry["activations_db"]),
        _level(entry["cumulative_db"]),
        float(entry["noise_share"]),
        tuple(Suspect(**one) for one in entry["suspects"]),
    )


def _effect(entry: dict[str, Any]) -> Effect:
    low, high = (float(end) for end in entry["interval_db"])
    return Effect(
        float(entry["sqnr_db"]),
        (low, high),
        entry["cosine"],
        _share(entry["agreement"]),
        _share(entry["top1"]),
        None if entry["drop"] is None else Comparison.from_dict(entry["drop"]),
    )


def _share(entry: dict[str, int] | None) -> Share | None:
    return None if entry is None else Share.from_dict(entry)


def _level(value: float | str | None) -> float | None:
    return None if value is None else float(value)


def _plain(value: Any) -> Any:
    """Infinities as text: JSON has none."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
