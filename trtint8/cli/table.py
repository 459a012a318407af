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
from collections.abc import Mapping
from pathlib import Path

from calibrators import records
from calibrators.errors import TableError, counted, such_as, titled
from calibrators.files import check_writable, write_atomically
from calibrators.histograms.thresholds import METHODS
from calibrators.tables.cache_origin import origin_path, read_origin
from calibrators.tables.files import FORMATS, SUFFIXES, check_table_name
from calibrators.tables.formats.plain import TEXT
from calibrators.tables.formats.tensorrt_cache import looks_like_cache, parse
from calibrators.tables.ranges import loss_warning, noise_warning
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.calibration_cache import portability
from trtint8.cli.output import named_values, print_json, print_line, print_table, say, say_method_in_cache
from trtint8.cli.verbs import refuse_overwriting_arguments, spellings_of
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
    "  trtint8 table edit resnet50.table.json -o edited.json\n"
    "  trtint8 table set resnet50.table.json --method mse -o mse.json\n"
    "  trtint8 table convert resnet50.cache resnet50.json --format ppq\n"
    "  trtint8 table extract resnet50.qdq.onnx -o resnet50.cache"
)


#: The actions: what they do, and what their arguments are called in Python and in the help.
_ACTIONS = {
    "show": ("list a table's ranges", {"table": "TABLE"}),
    "diff": ("tensors whose ranges differ, the largest ratio first", {"table": "A", "other": "B"}),
    "convert": ("write a table in the format that the ending names", {"table": "FROM", "output": "TO"}),
    "drop": ("leave tensors out", {"table": "TABLE", "patterns": "TENSOR_OR_PATTERN"}),
    "merge": ("ranges of B over those of A", {"table": "A", "other": "B"}),
    "extract": ("the table that a Q/DQ model contains", {"table": "MODEL.onnx"}),
    "set": ("set ranges by hand, or apply another method", {"table": "TABLE", "ranges": "TENSOR=AMAX"}),
    "edit": ("change ranges as text, in the editor that EDITOR names", {"table": "TABLE"}),
}

#: What the arguments are.
_MEANINGS = {
    "table": "the table, in any of the formats that trtint8 reads",
    "other": "the other table, in any of these formats",
    "output": "the file to write, whose ending names its format",
    "patterns": "names of tensors, or patterns with * and ?",
    "ranges": "the name of a tensor, and the positive end of its range",
}

#: How many values there are of the arguments that take several.
_SEVERAL = {"patterns": "+", "ranges": "*"}

#: The actions that print, and those that write a file of a name that is no argument.
_PRINTING, _WRITING = ("show", "diff"), ("drop", "merge", "extract", "set", "edit")


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    parsers = {}
    for name, (text, arguments) in _ACTIONS.items():
        action = parsers[name] = actions.add_parser(name, help=text)
        for argument, metavar in arguments.items():
            text = "the model with Q/DQ pairs" if name == "extract" else _MEANINGS[argument]
            action.add_argument(argument, metavar=metavar, nargs=_SEVERAL.get(argument), help=text)
        if name in _WRITING:
            action.add_argument("-o", "--output", required=True, metavar="OUT", help="the table to write")
        if name in _PRINTING:
            action.add_argument("--json", action="store_true", help="print it as JSON")
    _add_formats(parsers["convert"])
    parsers["set"].add_argument(
        "--method", choices=tuple(METHODS), help="choose ranges anew, from the stored histograms"
    )
    for name, action in parsers.items():
        spelled = spellings_of(action)
        if name == "extract":
            spelled["model"] = spelled.pop("table")
        action.set_defaults(files=["table", "other", "network"], spelled=spelled)


def _add_formats(convert: argparse.ArgumentParser) -> None:
    """Adds what says which format is written, and what reading and writing it takes."""
    convert.add_argument(
        "--tensorrt-version",
        metavar="DIGITS",
        default=_VERSION,
        help=f"for .cache: the version in the cache's header; default {_VERSION}",
    )
    convert.add_argument(
        "--format",
        choices=tuple(FORMATS),
        help="write this format: ppq or onnxruntime-json in place of trtint8's own in a .json, or under an "
        "ending that names none; the others under their own endings",
    )
    convert.add_argument(
        "--network",
        metavar="FILE",
        help="for ncnn's .table: the network's .param or ONNX file, which says what its layers read",
    )


def run(options: argparse.Namespace) -> None:
    """Runs one action."""
    if options.action == "extract":
        output = check_writable(check_table_name(options.output))
        refuse_overwriting_arguments([output], options)
        extract_table(load_model(options.table)).save(output)
        return
    if options.action == "convert":
        _convert(options)
        return
    table = CalibrationTable.load(options.table)
    if options.action == "show":
        _show(table, options.json, _cache_facts(options.table))
    elif options.action == "diff":
        _diff(table, CalibrationTable.load(options.other), options.json)
    elif options.action == "edit":
        _edit(table, options.output)
    elif options.action == "drop":
        table.without(options.patterns).save(check_writable(options.output))
    elif options.action == "merge":
        table.merged(CalibrationTable.load(options.other)).save(check_writable(options.output))
    else:
        ranges = _ranges(options.ranges)
        if not (ranges or options.method):
            raise TableError("there is nothing to set; give TENSOR=AMAX, such as images=2.64, or --method")
        if options.method:
            table = table.with_method(options.method)
        changed = table.override(ranges)
        _warn_of_new(ranges, table)
        changed.save(check_writable(options.output))


def _edit(table: CalibrationTable, output: str) -> None:
    path = check_writable(check_table_name(output))
    edited = edit(table)
    if edited is None:
        say("nothing was changed")
        return
    edited.save(path)
    differing = len(table.diff(edited))
    say(f"{differing} range{'s' if differing > 1 else ''} changed in '{path}'")


def _cache_facts(path: str) -> dict[str, str]:
    """What is known only of a calibration cache of TensorRT; empty for another file."""
    data = records.read_bytes(path)
    if not looks_like_cache(data):
        return {}
    algorithm, origin = parse(data, path).algorithm, read_origin(path, data)
    facts = {
        "algorithm": algorithm,
        "portability": portability(algorithm, origin),
    }
    if origin is not None:
        facts["made by"] = f"TensorRT {origin.tensorrt}"
        if origin.batch_size is not None and origin.samples is not None:
            facts["from"] = f"{counted(origin.samples, 'sample')} in batches of {origin.batch_size}"
    return facts


def _say_what_is_lost(table: CalibrationTable, output: Path) -> None:
    """Says that a file holds ranges alone, where the table says which model it was made for."""
    if table.provenance.model is not None:
        say(
            f"'{output}' holds ranges alone: it does not say which model they are of, so it can no longer be "
            "refused for another one"
        )


def _convert(options: argparse.Namespace) -> None:
    """Converts to another format, which the output's ending decides where none is asked for."""
    output = check_writable(options.output)
    cache = options.format is None and output.suffix.lower() == ".cache"
    if options.tensorrt_version != _VERSION and not cache:
        raise TableError(
            "--tensorrt-version has no effect: only a calibration cache (.cache) names a version; leave it "
            "out"
        )
    refuse_overwriting_arguments([output, *([origin_path(output)] if cache else [])], options)
    if options.network:
        _convert_with_network(options, output)
        return
    table = CalibrationTable.load(options.table)
    table.save(output, format_name=options.format, tensorrt_version=options.tensorrt_version)
    if options.format or output.suffix.lower() in SUFFIXES:
        _say_what_is_lost(table, output)
    else:
        say_method_in_cache(table, output)


def _convert_with_network(options: argparse.Namespace, output: Path) -> None:
    """Converts from or to ncnn's table, which the ending of the output's name decides."""
    if output.suffix.lower() == _NCNN:
        if options.format:
            raise TableError(
                f"--format {options.format} does not fit '{output}': with --network, a .table is ncnn's; "
                "leave --format out, or give the file another ending"
            )
        table = CalibrationTable.load(options.table)
        write_atomically(output, render_ncnn_table(table, options.network))
        _say_what_is_lost(table, output)
        return
    table, winograd = read_ncnn_table(options.table, options.network)
    if winograd:
        say(
            f"the weights of {counted(len(winograd), 'layer')}, '{winograd[0]}' among them, have ranges for "
            "a Winograd transformation (31 instead of 127); they are left out, as TensorRT quantizes weights "
            "itself"
        )
    table.save(output, format_name=options.format, tensorrt_version=options.tensorrt_version)


def _show(table: CalibrationTable, as_json: bool, cache: dict[str, str]) -> None:
    if as_json:
        print_json({**table.to_json(), "cache": cache or None})
        return
    if cache:
        print_table("TensorRT calibration cache", ("entry", "value"), list(cache.items()))
    samples = f", {counted(table.provenance.samples, 'sample')}" if table.provenance.samples else ""
    listing = [_row(table, name) for name in table.amax]
    columns = ("tensor", "amax", "scale", "largest", "zeros", "clipped", "method")
    print_table(
        f"{counted(len(listing), 'tensor')}, {table.method}{samples}",
        columns,
        [row for row, _ in listing],
        [style for _, style in listing],
    )
    if table.choice:
        say(f"chosen: {table.choice.reason}")
    for warning in (loss_warning(table.excessive_losses, table.method), noise_warning(table.choice)):
        if warning:
            say(f"warning: {warning}")


def _row(table: CalibrationTable, name: str) -> tuple[tuple[str, ...], str | None]:
    """The figures of one tensor, and the colour of their row; None for no colour."""
    amax, histogram = table.amax[name], table.histograms.get(name)
    known = histogram is not None and histogram.total > 0
    zeros = histogram.zeros / histogram.total if histogram and known else 0.0
    clipped = histogram.above(amax) / histogram.total if histogram and known else 0.0
    by_hand = name in table.overridden
    style = None
    if not amax or zeros > _MANY_ZEROS:
        style = "yellow"
    elif clipped > _MUCH_CLIPPED:
        style = "red"
    elif by_hand:
        style = "cyan"
    row = (
        titled(name, table.provenance.modules.get(name, "")),
        f"{amax:.6g}",
        f"{table.scale(name):.6g}",
        f"{histogram.amax:.6g}" if histogram else "",
        f"{100 * zeros:.1f} %" if known else "",
        f"{100 * clipped:.3f} %" if known else "",
        table.method_of(name),
    )
    return row, style


def _diff(first: CalibrationTable, second: CalibrationTable, as_json: bool) -> None:
    differences = first.diff(second)
    if as_json:
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
    title = f"{len(rows)} of {tensors} differ"
    if rows:
        print_table(title, ("tensor", "A", "B", "ratio"), rows)
    else:
        print_line(title)


def _ranges(texts: list[str]) -> dict[str, float]:
    example = "write for example images=2.64"
    return named_values("TENSOR=AMAX", texts, "a name and a number", example, read=float)


def _warn_of_new(ranges: Mapping[str, float], table: CalibrationTable) -> None:
    """Says which tensors a table gets by hand that it did not have: their names may be misspelt."""
    if new := sorted(set(ranges) - set(table.amax)):
        say(
            f"warning: the table had no range of {such_as(new)}, which counts only if the model has such a "
            f"tensor; the table has {such_as(table.amax)}"
        )


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
        with records.reading("the edited text", TableError):
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
