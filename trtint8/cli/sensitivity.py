"""`trtint8 sensitivity`."""

from __future__ import annotations

import argparse
import math

from calibrators.errors import UnsupportedError, counted
from calibrators.files import check_writable
from calibrators.host.checkpoint import check_place
from trtint8.api.accuracy import SENSITIVITY_SAMPLES, measure_sensitivity
from trtint8.cli.output import print_json, print_line, print_table, say, saying_what_is_kept, table_width
from trtint8.cli.verbs import Way, add_arguments, command_to_continue, refuse_overwriting_arguments, values_of
from trtint8.report.layers import Bar, make_bars
from trtint8.sensitivity.measure import Plan
from trtint8.sensitivity.results import (
    Sensitivity,
    check_sensitivity_name,
    level_text,
)
from trtint8.validation.fidelity import picks_note

EXAMPLE = (
    "example:\n  trtint8 sensitivity resnet50.onnx resnet50.table.json heldout.npz -o sensitivity.json\n\n"
    f"Uses {SENSITIVITY_SAMPLES} samples at most where --limit does not say otherwise."
)

#: Layers that make more than this share of the noise are coloured.
_COLOURED_SHARE = 0.1

#: Length of the longest bar, in characters.
_LONGEST_BAR = 12

#: The width of a terminal from which there is room for bars, in characters.
_WIDE = 120


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_arguments(
        parser,
        measure_sensitivity,
        without=("checkpoint",),
        json="the result",
        model=Way(help="the float ONNX model"),
        data=Way(help="samples, with labels where there are some"),
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT.json",
        help="the file to write; progress is kept in OUT.json.partial, which an interrupted run continues",
    )

    parser.add_argument(
        "--top",
        type=int,
        metavar="N",
        help="print only the N layers that cost most; OUT.json and --json have all of them",
    )


def run(options: argparse.Namespace) -> None:
    """Measures, and prints the layers, the worst first."""
    if options.top is not None and options.top < 1:
        raise UnsupportedError(f"--top is {options.top}; give 1 or more layers")
    output = None
    if options.output is not None:
        output = check_writable(check_sensitivity_name(options.output))
    if output:
        refuse_overwriting_arguments([output], options)
    partial = check_place(f"{output}.partial") if output else None
    with saying_what_is_kept(partial, command_to_continue(options)):
        sensitivity = measure_sensitivity(
            **values_of(measure_sensitivity, options), checkpoint=partial, on_plan=_announce
        )
    if output:
        sensitivity.save(output)
    if options.json:
        print_json(sensitivity)
    else:
        _print(sensitivity, options.top)


def _announce(plan: Plan) -> None:
    samples = "all samples" if plan.samples is None else f"at most {counted(plan.samples, 'sample')}"
    seconds = "" if plan.samples is None else f"about {plan.samples * plan.seconds_per_sample:.0f} s, "
    say(f"{counted(plan.layers, 'layer')}, {samples}: {seconds}{1000 * plan.seconds_per_sample:.0f} ms each")
    if plan.picked_from:
        listed = ", ".join(f"'{name}'" for name in plan.picked_from)
        say(f"noise is that of {listed}, from which the network picks what it gives")


def _print(sensitivity: Sensitivity, most: int | None) -> None:
    bars = make_bars(sensitivity)
    listed = bars[:most]
    counts = {bar.layer.only.agreement.total for bar in bars if bar.layer.only.agreement}
    wide = table_width() >= _WIDE
    rows = [_row(bar, wide=wide, with_total=len(counts) > 1) for bar in listed]
    styles = ["red" if bar.layer.noise_share > _COLOURED_SHARE else None for bar in listed]
    columns: tuple[str, ...] = (
        "layer",
        "share of the noise",
        "alone",
        "without",
        "weights",
        "activations",
        "here",
        "same class",
    )
    level = level_text(sensitivity.quantized.sqnr_db)
    judged = f"; same class of {max(counts):,} samples" if len(counts) == 1 else ""
    in_int8 = sensitivity.in_int8_text.replace("all", "All", 1)
    title = f"{in_int8}: {level}; levels in dB; measured with {sensitivity.samples_text}{judged}"
    if not counts:  # no layer was judged by classes: a network without them, for example
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    print_table(title, columns, rows, styles)
    if not sensitivity.converged:
        print_line(
            "The figures are less certain than --tolerance asks for; more samples make them more certain."
        )
    for picks in sensitivity.picks_changed:
        print_line(picks_note(picks))
    for bar in listed:
        for suspect in bar.layer.suspects:
            print_line(f"{bar.layer.title}: {suspect.message}")
    if len(bars) > len(listed):
        say(f"{counted(len(bars) - len(listed), 'more layer')}; without --top all of them are listed")


def _row(bar: Bar, *, wide: bool, with_total: bool) -> tuple[str, ...]:
    layer = bar.layer
    spread = "" if bar.alone_half_db is None else f" ± {bar.alone_half_db:.1f}"
    drawn = " " + "█" * math.ceil(_LONGEST_BAR * bar.width) if wide else ""
    same = layer.only.agreement
    of = f" of {same.total:,}" if same and with_total else ""
    copies = f" (and {counted(len(layer.copies), 'Concat')})" if layer.copies else ""
    return (
        layer.title + copies,
        f"{100 * layer.noise_share:.1f} %{drawn.ljust(_LONGEST_BAR + 1) if wide else ''}",
        f"{_level(layer.only.sqnr_db)}{spread}",
        *map(_level, (layer.without.sqnr_db, layer.weights_db, layer.activations_db, layer.cumulative_db)),
        f"{100 * same.value:.1f} %{of}" if same else "-",
    )


def _level(decibels: float | None) -> str:
    """A level without its unit, which the title has; a dash where it is not known."""
    return level_text(decibels).removesuffix(" dB") or "-"
