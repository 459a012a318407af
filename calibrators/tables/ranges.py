"""Ranges as users give them, by hand, as a table or its file, and warnings of ranges that lose too much."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias, TypeGuard

from calibrators import records
from calibrators.checks import PATH_TYPES, FilePath, check_mapping, warn_user
from calibrators.errors import TableError, enumerated
from calibrators.histograms.rules import RangeLoss, excessive_losses
from calibrators.tables.choice import POOR_DB, FloatLayers, RangeChoice
from calibrators.tables.files import is_table_name
from calibrators.tables.formats.common import warn_widened
from calibrators.tables.formats.plain import TEXT
from calibrators.tables.table import CalibrationTable

#: Tensor name to amax or to (min, max); or the path of a table of any format, or of a text file.
DynamicRanges = Mapping[str, float | tuple[float, float]] | FilePath


def read_ranges(ranges: DynamicRanges) -> dict[str, float]:
    """Brings dynamic ranges to one positive number per tensor.

    Args:
        ranges: Tensor name to amax or to TensorRT's (min, max); or a file that
            :meth:`CalibrationTable.load` reads; or any other file as text, with one line ``tensor: amax`` or
            ``tensor: min, max`` per tensor.

    Returns:
        Tensor name to amax.

    Raises:
        TableError: The file cannot be read or is malformed, or a range is not positive and finite.

    Warns:
        UserWarning: A (min, max) is not symmetric. INT8 is, so its amax becomes the larger of |min| and
            |max|.
    """
    given = _read(Path(ranges)) if isinstance(ranges, PATH_TYPES) else ranges
    check_mapping("dynamic_ranges", given, "from tensor name to range, or a file", TableError)
    result = {name: _amax(name, value) for name, value in given.items()}
    warn_widened({name: value for name, value in given.items() if isinstance(value, tuple)})
    return result


def _read(path: Path) -> Mapping[str, float]:
    if is_table_name(path):
        return CalibrationTable.load(path).amax
    with records.reading(f"the dynamic ranges '{path}'", TableError):
        return TEXT.parse(records.read_bytes(path), str(path))


def _amax(name: str, value: float | tuple[float, float]) -> float:
    try:
        low, high = value if isinstance(value, tuple) else (-value, value)
        amax = float(max(abs(low), abs(high)))
        valid = 0 < amax < math.inf and low <= high
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise TableError(
            f"the dynamic range of '{name}' is {value!r}; give a positive number, or (min, max) with min "
            "below max"
        )
    return amax


#: How many tensors are named.
_NAMED = 3


def warn_of_losses(table: CalibrationTable, quantized: Iterable[str]) -> None:
    """Warns of ranges that lose more than they should. A result does not keep that: the figures are right.

    Args:
        table: The table.
        quantized: Names of the tensors that are quantized with its ranges.
    """
    found = table.amax.keys() & set(quantized) - table.overridden
    losses = excessive_losses(table.histograms, {name: table.amax[name] for name in sorted(found)})
    if warning := loss_warning(losses, table.method):
        warn_user(warning, kept=False)


def loss_warning(losses: Mapping[str, RangeLoss], method: str) -> str | None:
    """A sentence about ranges that lose more than they should.

    Args:
        losses: Tensor name to loss, the worst first.
        method: How the ranges were chosen.

    Returns:
        The sentence; None where no range loses too much.
    """
    if not losses:
        return None
    named = enumerated(itertools.starmap(_described, losses.items()), _NAMED)
    # The least squared error is that of the few values that are far larger than the others.
    better = "entropy" if any(loss.most for loss in losses.values()) else "mse"
    others = "auto" if method == better else f"auto or {better}"
    advice = (
        "the network's outputs were best so; validate"
        if method == "auto"
        else f"choose the method {others}, or set these ranges by hand"
    )
    count = (
        "1 range loses much of the tensor's values"
        if len(losses) == 1
        else f"{len(losses)} ranges lose much of the tensors' values"
    )
    return f"{count}: {named}; {advice}"


def noise_warning(choice: RangeChoice | None, layers: FloatLayers | None = None) -> str | None:
    """A sentence about ranges that leave the network's outputs noisy, and are the best of those tried.

    Args:
        choice: How the ranges were chosen; None where they were not compared.
        layers: The layers that stay in float for accuracy; None where none were looked for.

    Returns:
        The sentence; None where the outputs are good enough, or are not known.
    """
    if choice is None or not choice.samples or (level := choice.sqnr_db[choice.rule]) >= POOR_DB:
        return None
    if layers and layers.sqnr_db >= POOR_DB:
        return None
    worst = next(iter(choice.outputs), None)
    outputs = "the network's outputs have" if worst is None else f"the network's output '{worst}' has"
    return (
        f"with every layer in INT8 {outputs} an SQNR of only {level:.1f} dB "
        f"{choice.judged_by}, and no range that was tried is clearly better; 'trtint8 validate' measures "
        "what that costs, and 'trtint8 tune' restores accuracy"
    )


def _described(name: str, loss: RangeLoss) -> str:
    shown = loss.most or loss
    levels = f"{shown.sqnr_db:.1f} dB where {shown.best_db:.1f} dB are possible"
    levels += " without its few huge values" if loss.most else ""
    return f"'{name}' ({loss.clipped:.2%} clipped, {levels})"


#: What a table may be given as.
TableSource: TypeAlias = CalibrationTable | FilePath


def as_table(source: TableSource) -> CalibrationTable:
    """A table, read where it is given as a file.

    Raises:
        TableError: The file is no table, or it is neither a table nor a file.
    """
    if isinstance(source, CalibrationTable):
        return source
    if not isinstance(source, PATH_TYPES):
        raise TableError(
            f"a calibration table is given as {type(source).__name__}; give a CalibrationTable, which can be "
            "made of a dict of ranges, or the path of a table"
        )
    return CalibrationTable.load(source)


def is_table(source: object) -> TypeGuard[TableSource]:
    """Whether an argument is a table, or the path of a table or of a TensorRT calibration cache."""
    return isinstance(source, CalibrationTable) or (isinstance(source, PATH_TYPES) and is_table_name(source))


def table_among(source: object) -> CalibrationTable | None:
    """The table that a calibration argument is or names; None where it is something else, like samples.

    Args:
        source: A table, the path of a table or of a TensorRT calibration cache, or anything else.

    Raises:
        TableError: The file is no table.
    """
    return as_table(source) if is_table(source) else None
