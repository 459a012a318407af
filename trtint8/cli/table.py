"""`trtint8 table`: show, diff, convert, edit, set, drop, merge, extract.

`trtint8 table edit`: a table as text in the user's editor.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from calibrators import records
from calibrators.errors import TableError, counted, such_as
from calibrators.files import check_writable, refuse_overwriting, write_atomically
from calibrators.histograms.thresholds import METHODS
from calibrators.tables.cache_origin import origin_path, read_origin
from calibrators.tables.files import FORMATS, SUFFIXES, check_table_name
from calibrators.tables.formats.plain import TEXT
from calibrators.tables.formats.tensorrt_cache import looks_like_cache, parse
from calibrators.tables.ranges import loss_warning, noise_warning
from calibrators.tables.table import CalibrationTable, observed, texts_of
from calibrators.tensorrt.calibration_cache import portability
from trtint8.cli.output import named_values, print_json, print_line, print_table, say, say_method_in_cache
from trtint8.cli.verbs import File, Way, add_arguments, values_of
from trtint8.interop.migrate import read_ncnn_table, render_ncnn_table
from trtint8.interop.unquantize import extract_table
from trtint8.models.model import load_model

_NCNN = ".table"

#: The version of TensorRT in a cache's header where none is given.
_VERSION = "8601"

#: Shares from which a row is coloured.
_MANY_ZEROS, _MUCH_CLIPPED = 0.99, 0.01

EXAMPLE = (
    "examples:\n  trtint8 table show resnet50.table.json\n  trtint8 table diff a.json b.cache\n"
    "  trtint8 table convert resnet50.table.json resnet50.cache\n"
    "  trtint8 table set resnet50.table.json images=2.64 -o edited.json\n"
    "  trtint8 table merge resnet50.cache by-hand.txt -o both.cache\n"
    "  trtint8 table edit resnet50.table.json -o edited.json\n"
    "  trtint8 table set resnet50.table.json --method mse -o mse.json\n"
    "  trtint8 table convert resnet50.cache resnet50.json --format ppq\n"
    "  trtint8 table extract resnet50.qdq.onnx -o resnet50.cache"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (perform, text, ways) in _ACTIONS.items():
        action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        add_arguments(action, perform, **ways)
        action.set_defaults(perform=perform)
        if name == "extract":
            action.set_defaults(spelled={"model": "MODEL.onnx", "output": "--output"})


def run(options: argparse.Namespace) -> None:
    """Runs one action."""
    options.perform(**values_of(options.perform, options))


def _show(table: File, *, json: bool = False) -> None:
    """Prints a table.

    Args:
        table: The table, in any of the formats that trtint8 reads.
        json: Print it as JSON.
    """
    found, cache = CalibrationTable.load(table), _cache_facts(table)
    if json:
        print_json({**found.to_json(), "cache": cache or None})
        return
    if cache:
        print_table("TensorRT calibration cache", ("entry", "value"), list(cache.items()))
    samples = f", {counted(found.provenance.samples, 'sample')}" if found.provenance.samples else ""
    rows = [_row(found, name) for name in found.amax]
    columns = ("tensor", "amax", "scale", "largest", "zeros", "clipped", "method")
    title = f"{counted(len(rows), 'tensor')}, {found.method}{samples}"
    print_table(title, columns, [row for row, _ in rows], [style for _, style in rows])
    if found.choice:
        say(f"chosen: {found.choice.reason}")
    if found.float_layers is not None:
        say(f"layers in float: {found.float_layers}")
    for warning in (
        loss_warning(found.excessive_losses, found.method),
        noise_warning(found.choice, found.float_layers),
    ):
        if warning:
            say(f"warning: {warning}")


def _diff(table: File, other: File, *, json: bool = False) -> None:
    """Prints in what two tables differ.

    Args:
        table: The table, in any of the formats that trtint8 reads.
        other: The other table, in any of these formats.
        json: Print it as JSON.
    """
    first, second = CalibrationTable.load(table), CalibrationTable.load(other)
    differences = first.diff(second)
    if json:
        print_json(
            [{"tensor": d.name, "first": d.first, "second": d.second, "ratio": d.ratio} for d in differences]
        )
        return
    rows = [
        (
            d.name,
            "missing" if d.first is None else f"{d.first:.6g}",
            "missing" if d.second is None else f"{d.second:.6g}",
            f"{d.ratio:.3f}" if math.isfinite(d.ratio) else "",
        )
        for d in differences
    ]
    tensors = counted(len(first.amax.keys() | second.amax.keys()), "tensor")
    if rows:
        print_table(f"A is '{table}', B is '{other}'", ("tensor", "A", "B", "ratio"), rows)
    lacking = [sum(row[index] == "missing" for row in rows) for index in (1, 2)]
    missing = "; {} missing in A, {} in B".format(*lacking) if any(lacking) else ""
    print_line(f"{len(rows)} of {tensors} differ{missing}")


def _convert(
    table: File,
    output: str,
    *,
    tensorrt_version: str = _VERSION,
    format_name: str | None = None,
    network: File | None = None,
) -> None:
    """Writes a table in another format.

    Args:
        table: The table, in any of the formats that trtint8 reads.
        output: The file to write, whose ending names its format.
        tensorrt_version: For .cache: the version in the cache's header.
        format_name: Write this format: ppq or onnxruntime-json in place of trtint8's own in a .json, or under
            an ending that names none; the others under their own endings.
        network: For ncnn's .table: the network's .param or ONNX file, which says what its layers read.
    """
    path = check_writable(output)
    cache = format_name is None and path.suffix.lower() == ".cache"
    if tensorrt_version != _VERSION and not cache:
        raise TableError(
            "--tensorrt-version has no effect: only a calibration cache (.cache) names a version; leave it "
            "out"
        )
    refuse_overwriting([path, *([origin_path(path)] if cache else [])], [table, network])
    if network is not None and path.suffix.lower() == _NCNN:
        if format_name:
            raise TableError(
                f"--format {format_name} does not fit '{path}': with --network, a .table is ncnn's; "
                "leave --format out, or give the file another ending"
            )
        read = CalibrationTable.load(table)
        write_atomically(path, render_ncnn_table(read, network))
    else:
        read, winograd = (
            (CalibrationTable.load(table), ()) if network is None else read_ncnn_table(table, network)
        )
        if winograd:
            say(
                f"the weights of {counted(len(winograd), 'layer')}, '{winograd[0]}' among them, have ranges "
                "for a Winograd transformation (31 instead of 127); they are left out, as TensorRT quantizes "
                "weights itself"
            )
        read.save(path, format_name=format_name, tensorrt_version=tensorrt_version)
    _say_written(read, path, cache=cache)
    if format_name is None and path.suffix.lower() not in (*SUFFIXES, _NCNN):
        say_method_in_cache(read, path)
    elif read.provenance.model is not None:
        say(
            f"'{path}' holds ranges alone: it does not say which model they are of, so it can no longer be "
            "refused for another one"
        )


def _drop(table: File, patterns: Sequence[str], *, output: str) -> None:
    """Writes a table without some tensors.

    Args:
        table: The table, in any of the formats that trtint8 reads.
        patterns: Names of tensors, or patterns with * and ?.
        output: The table to write.
    """
    before = CalibrationTable.load(table)
    left = before.without(patterns)
    _save(left, output, f"; {len(before.amax) - len(left.amax)} left out")


def _merge(table: File, other: File, *, output: str) -> None:
    """Writes what two tables have.

    Args:
        table: The table, in any of the formats that trtint8 reads.
        other: The other table, in any of these formats.
        output: The table to write.
    """
    first, second = CalibrationTable.load(table), CalibrationTable.load(other)
    _save(first.merged(second), output, f", {len(second.amax)} of them from '{other}'")


def _extract(table: File, *, output: str) -> None:
    """Writes the table that a model contains.

    Args:
        table: The model with Q/DQ pairs.
        output: The table to write.
    """
    path = check_writable(check_table_name(output))
    refuse_overwriting([path], [table])
    _save(extract_table(load_model(table)), path)


def _set(
    table: File,
    ranges: Sequence[str],
    *,
    method: str | None = None,
    output: str,
) -> None:
    """Writes a table with other ranges.

    Args:
        table: The table, in any of the formats that trtint8 reads.
        ranges: The name of a tensor, and the positive end of its range.
        method: Choose ranges anew, from the stored histograms.
        output: The table to write.
    """
    before, example = CalibrationTable.load(table), "write for example images=2.64"
    by_hand = named_values("TENSOR=AMAX", ranges, "a name and a number", example, read=float)
    if not (by_hand or method):
        raise TableError("there is nothing to set; give TENSOR=AMAX, such as images=2.64, or --method")
    changed = before.with_method(method) if method else before
    edited = changed.override(by_hand)
    if new := sorted(set(by_hand) - set(changed.amax)):  # their names may be misspelt
        say(
            f"warning: the table had no range of {such_as(new)}, which counts only if the model has such a "
            f"tensor; the table has {such_as(changed.amax)}"
        )
    _save(edited, output, f", {len(before.diff(edited))} of them changed")


def _edit(table: File, *, output: str) -> None:
    """Writes a table as a user changes it in an editor.

    Args:
        table: The table, in any of the formats that trtint8 reads.
        output: The table to write.
    """
    before, path = CalibrationTable.load(table), check_writable(check_table_name(output))
    edited = edit(before)
    if edited is None:
        say("nothing was changed")
        return
    _save(edited, path, f"; {counted(len(before.diff(edited)), 'range')} changed")


def _save(table: CalibrationTable, output: str | Path, done: str = "") -> None:
    """Writes a table, and says what it has and what was done."""
    path = table.save(check_writable(output))
    _say_written(table, path, done, cache=path.suffix.lower() == ".cache")


def _say_written(table: CalibrationTable, path: Path, done: str = "", *, cache: bool) -> None:
    beside = f"; its sidecar is '{origin_path(path)}'" if cache else ""
    print_line(f"'{path}' has {counted(len(table.amax), 'tensor')}{done}{beside}")


_A, _B, _OUT = Way(metavar="A"), Way(metavar="B"), Way(("-o", "--output"), "OUT")

#: The actions: their functions, what they do, and how their parameters are given.
_ACTIONS: dict[str, tuple[Callable[..., None], str, dict[str, Any]]] = {
    "show": (_show, "list a table's ranges", {}),
    "diff": (_diff, "tensors whose ranges differ, the largest ratio first", {"table": _A, "other": _B}),
    "convert": (
        _convert,
        "write a table in the format that the ending names",
        {
            "table": Way(metavar="FROM"),
            "output": Way((), "TO"),
            "tensorrt_version": Way(metavar="DIGITS"),
            "format_name": Way(("--format",), choices=tuple(FORMATS)),
        },
    ),
    "drop": (_drop, "leave tensors out", {"patterns": Way(metavar="TENSOR_OR_PATTERN"), "output": _OUT}),
    "merge": (
        _merge,
        "write the ranges of A and B; where both have one, that of B counts",
        {"table": _A, "other": _B, "output": _OUT},
    ),
    "extract": (
        _extract,
        "the table that a Q/DQ model contains",
        {"table": Way(metavar="MODEL.onnx"), "output": _OUT},
    ),
    "set": (
        _set,
        "set ranges by hand, or apply another method",
        {
            "ranges": Way(metavar="TENSOR=AMAX", nargs="*"),
            "method": Way(choices=tuple(METHODS)),
            "output": _OUT,
        },
    ),
    "edit": (_edit, "change ranges as text, in the editor that EDITOR names", {"output": _OUT}),
}


def _cache_facts(path: str) -> dict[str, str]:
    """What is known only of a calibration cache of TensorRT; empty for another file."""
    data = records.read_bytes(path)
    if not looks_like_cache(data):
        return {}
    algorithm, origin = parse(data, path).algorithm, read_origin(path, data)
    facts = {"algorithm": algorithm, "portability": portability(algorithm, origin)}
    if origin is not None:
        facts["made by"] = f"TensorRT {origin.tensorrt}"
        if origin.batch_size is not None and origin.samples is not None:
            facts["from"] = f"{counted(origin.samples, 'sample')} in batches of {origin.batch_size}"
    return facts


def _row(table: CalibrationTable, name: str) -> tuple[tuple[str, ...], str | None]:
    """The figures of one tensor, and the colour of their row; None for no colour."""
    _, zeros, clipped = observed(table, name)
    style = "cyan" if name in table.overridden else None
    style = "yellow" if zeros > _MANY_ZEROS else "red" if clipped > _MUCH_CLIPPED else style
    return texts_of(table, name), style if table.amax[name] else "yellow"


_HEADER = (
    "# One tensor and its range (amax) per line. Change numbers, add lines, delete lines; histograms stay.\n"
    "# Lines that begin with # are ignored. The file is read when the editor ends.\n"
)


def edit(table: CalibrationTable) -> CalibrationTable | None:
    """Opens a table in the editor that ``VISUAL`` or ``EDITOR`` names, else vi.

    Args:
        table: The table to edit.

    Returns:
        The table with the changes, whose ranges count as set by hand; None where nothing was changed.

    Raises:
        TableError: The editor fails, or what it left is no table; the text is kept and named.
    """
    named = (os.environ.get(name, "").strip() for name in ("VISUAL", "EDITOR"))
    editor = next(filter(None, named), "vi")
    try:
        command = shlex.split(editor)
    except ValueError as error:
        raise TableError(
            f"the editor '{editor}' is no command ({error}); set the environment variable EDITOR"
        ) from error
    handle, name = tempfile.mkstemp(prefix="trtint8-", suffix=".txt")
    with os.fdopen(handle, "wb") as stream:
        stream.write(_HEADER.encode() + TEXT.render(table.amax))
    try:
        status = subprocess.run([*command, name], check=False).returncode
    except OSError as error:
        Path(name).unlink()
        raise TableError(
            f"cannot start the editor '{command[0]}': {error.strerror}; set the environment variable EDITOR"
        ) from error
    if status != 0:
        raise TableError(f"the editor '{command[0]}' failed with status {status}; your text is in '{name}'")
    try:
        with records.reading("the edited text", TableError, "make it shorter"):
            edited = _changed(table, TEXT.parse(records.read_bytes(name), name))
    except TableError as error:
        raise TableError(f"{error.template}; nothing was changed, and your text is in '{name}'") from error
    Path(name).unlink()
    return edited


def _changed(table: CalibrationTable, ranges: dict[str, float]) -> CalibrationTable | None:
    changed = {name: amax for name, amax in ranges.items() if table.amax.get(name) != amax}
    removed = [name for name in table.amax if name not in ranges]
    if not (changed or removed):
        return None
    edited = table.override(changed)
    return edited.without(removed) if removed else edited
