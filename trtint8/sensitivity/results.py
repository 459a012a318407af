"""What a measurement of sensitivity found, and its file."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrators import records
from calibrators.checks import check_ending, check_path
from calibrators.display.counts import counted
from calibrators.display.frames import data_frame
from calibrators.display.html import Cell, bar, html_table
from calibrators.display.picture import Picture
from calibrators.display.plotting import plot_levels
from calibrators.errors import TableError
from calibrators.files import write_atomically
from calibrators.records import PositiveCount
from trtint8.sensitivity.effects import Effect
from trtint8.sensitivity.suspects import Suspect
from trtint8.validation.significance import Share

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


@dataclass(frozen=True, repr=False)
class Sensitivity:
    """What the quantization of every layer costs.

    Attributes:
        samples: How many samples were fed.
        converged: Whether the intervals are as narrow as was asked for, or all samples were taken where these
            were asked for.
        tolerance_db: Half the width of the intervals that was asked for, in decibels; 0 asks for all samples.
        quantized: The network with every layer in INT8.
        reference_top1: The float network's share of right classes; None without labels.
        layers: One entry per layer, in the order in which they run.
        model_fingerprint: Identifies the model.
        table_fingerprint: Identifies the calibration table.
        data_fingerprint: Identifies the samples.
        shown: How many of the samples showed what single layers cost; the others showed only what all layers
            cost together. None where the file does not say.
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

    def __repr__(self) -> str:
        worst = f", worst '{self.worst_first[0].node}'" if self.layers else ""
        return f"<Sensitivity: {self._summary}{worst}>"

    def _repr_html_(self) -> str:
        columns = ("layer", "operator", "share of the noise", "", "alone", "without", "here")
        notes = [
            f"{layer.node}: {suspect.message}" for layer in self.worst_first for suspect in layer.suspects
        ]
        largest = max((layer.noise_share for layer in self.layers), default=0.0) or 1.0
        return html_table(
            self._summary, columns, (_row(layer, largest) for layer in self.worst_first), notes[:_MOST_NOTES]
        )

    def plot(self) -> Picture:
        """Draws the SQNR behind each layer with every layer in INT8, in the order in which they run.

        Returns:
            A picture that a notebook shows, and whose ``save`` writes an SVG file.

        Raises:
            UnsupportedError: Matplotlib is not installed.
        """
        known = (layer.cumulative_db for layer in self.layers)
        levels = [math.nan if level is None else level for level in known]
        return plot_levels(levels, f"SQNR from layer to layer, {counted(len(levels), 'layer')}")

    def to_pandas(self) -> Any:
        """The layers as a data frame.

        Returns:
            A ``pandas.DataFrame`` with one row per layer, in the order in which they run, and the columns
            ``node``, ``operator``, ``noise_share`` (in [0, 1]), and in decibels ``alone_db``, ``without_db``,
            ``weights_db``, ``activations_db`` and ``cumulative_db``; see :class:`LayerSensitivity`.

        Raises:
            UnsupportedError: pandas is not installed.
        """
        names = ("node", "operator", "noise_share", "weights_db", "activations_db", "cumulative_db")
        columns = {name: [getattr(layer, name) for layer in self.layers] for name in names}
        columns["alone_db"] = [layer.only.sqnr_db for layer in self.layers]
        columns["without_db"] = [layer.without.sqnr_db for layer in self.layers]
        return data_frame(columns)

    @property
    def samples_text(self) -> str:
        """How many samples there were, and how many showed what single layers cost, in words."""
        some = self.shown is not None and self.shown < self.samples
        drawn = f", of which {self.shown:,} show single layers" if some else ""
        return f"{counted(self.samples, 'sample', ',')}{drawn}"

    @property
    def _summary(self) -> str:
        level = level_text(self.quantized.sqnr_db)
        return f"{counted(len(self.layers), 'layer')}, {self.samples_text}, all layers in INT8 {level}"

    @property
    def worst_first(self) -> tuple[LayerSensitivity, ...]:
        """The layers, beginning with the one that costs most when it alone is in INT8."""
        return tuple(sorted(self.layers, key=lambda layer: layer.only.sqnr_db))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the result as JSON, atomically.

        Raises:
            OutputError: The file cannot be written, or its name does not end in .json.
        """
        return write_atomically(check_sensitivity_name(path), records.render(self, FORMAT))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Sensitivity:
        """Reads what :meth:`save` wrote.

        Raises:
            TableError: The file is missing, or is something else, or what is given is no path.
        """
        check_path("the sensitivity", path, TableError)
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


def _row(layer: LayerSensitivity, largest_share: float) -> list[Cell]:
    return [
        layer.node,
        layer.operator,
        f"{100 * layer.noise_share:.1f} %",
        bar(layer.noise_share / largest_share),
        *map(level_text, (layer.only.sqnr_db, layer.without.sqnr_db, layer.cumulative_db)),
    ]


def check_sensitivity_name(path: str | os.PathLike[str]) -> Path:
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
