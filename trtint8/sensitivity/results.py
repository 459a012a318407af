"""What a measurement of sensitivity found, and its file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from calibrators import records
from calibrators.errors import TableError
from calibrators.files import write_atomically
from calibrators.records import PositiveCount
from trtint8.sensitivity.effects import Effect
from trtint8.sensitivity.suspects import Suspect
from trtint8.validation.significance import Share

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
            samples.
        without: The network with every layer in INT8 but this one. Where gradients predict, it is what
            remains of the whole network's noise, and no classes are known.
        weights_db: SQNR of the layer's own output with its weights alone quantized; None without weights.
        activations_db: SQNR of the layer's own output with its activations alone quantized; None where none
            is.
        cumulative_db: SQNR of what leaves the layer, and the operators after it up to the next layer, in the
            network with every layer in INT8: where the error enters, and where it grows.
        noise_share: This layer's part of the noise that all layers make, each alone.
        suspects: Properties of the layer that are known to cost accuracy.
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
        tolerance_db: Half the width of the intervals that was asked for, in decibels.
        quantized: The network with every layer in INT8.
        reference_top1: The float network's share of right classes; None without labels.
        layers: One entry per layer, in the order in which they run.
        model_fingerprint: Identifies the model.
        table_fingerprint: Identifies the calibration table.
        data_fingerprint: Identifies the samples.
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

    @property
    def worst_first(self) -> tuple[LayerSensitivity, ...]:
        """The layers, beginning with the one that costs most when it alone is in INT8."""
        return tuple(sorted(self.layers, key=lambda layer: layer.only.sqnr_db))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the result as JSON, atomically.

        Raises:
            OutputError: The file cannot be written.
        """
        return write_atomically(path, records.render(self, FORMAT))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Sensitivity:
        """Reads what :meth:`save` wrote.

        Raises:
            TableError: The file is missing, or is something else.
        """
        try:
            document = records.read(path)
            if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
                raise records.RecordError(f'it has no "format": "{FORMAT}"')
            return records.to_record(document, cls, exact=True, numbers_as_text=True)
        except OSError as error:
            raise TableError(f"cannot read '{path}': {error.strerror or error}") from error
        except records.RecordError as error:
            raise TableError(
                f"'{path}' is no result of 'trtint8 sensitivity' ({error}); measure again, or give its output"
            ) from error
