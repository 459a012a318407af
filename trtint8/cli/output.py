"""What the verbs print: tables for people, JSON for programs, messages on standard error."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from trtint8.engine.file import EngineInfo
from trtint8.validation.significance import Share

#: Tensors without a range that are named; the sidecar names all.
_MOST_MISSING = 20


def say(message: str) -> None:
    """One message on standard error."""
    sys.stderr.write(message + "\n")


def print_line(text: str) -> None:
    """One line of results on standard output."""
    sys.stdout.write(text + "\n")


def print_json(value: Any) -> None:
    """A value as JSON on standard output; what is not finite becomes null."""
    sys.stdout.write(json.dumps(_plain(value), indent=2, ensure_ascii=False) + "\n")


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    styles: Iterable[str | None] | None = None,
) -> None:
    """A table on standard output, the first column left and the others right.

    Args:
        title: Above it.
        columns: Their headings.
        rows: Texts.
        styles: A colour for each row, on a terminal; None for plain ones.
    """
    table = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row, style in zip(rows, itertools.repeat(None) if styles is None else styles, strict=False):
        table.add_row(*row, style=style)
    # A pipe has no width: let long tensor names stand on one line there.
    Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False).print(table)


def engine_rows(info: EngineInfo) -> list[tuple[str, str]]:
    """What the sidecar says, for a person."""
    counted = info.int8_layers
    rows = [
        ("TensorRT", f"{'for RTX ' if info.flavor == 'rtx' else ''}{info.tensorrt_version}"),
        ("built for", ", ".join(info.compute_capabilities)),
    ]
    for number, profile in enumerate(info.profiles):
        rows += [(f"profile {number}, '{name}'", str(shapes)) for name, shapes in profile.items()]
    if counted:
        rows.append(("weighted layers in INT8", f"{counted[0]} of {counted[1]}"))
        for precision, nodes in (
            info.layers.weighted_summary(info.quantized_nodes).items() if info.layers else ()
        ):
            if precision != "INT8" and nodes:
                rows.append((f"in {precision}", ", ".join(nodes)))
        if info.layers:
            counts = info.layers.counts().items()
            rows.append(("layers", ", ".join(f"{count} in {precision}" for precision, count in counts)))
        if info.layers and info.layers.reformats:
            rows.append(("reformatting layers", str(info.layers.reformats)))
    else:
        rows.append(("weighted layers in INT8", "this TensorRT does not list its layers"))
    if info.missing_ranges:
        rows.append(("tensors without a range", str(len(info.missing_ranges))))
        rows += [
            (f"  '{tensor}'", f"of layer '{layer}'") for tensor, layer in info.missing_ranges[:_MOST_MISSING]
        ]
    if info.weights_bytes is not None:
        rows.append(("weight memory", f"{info.weights_bytes / 1e3:,.1f} kB"))
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, Share):
        return {"value": value.value, "count": value.count, "total": value.total, "interval": value.interval}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)
