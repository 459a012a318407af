"""`trtint8 sensitivity`."""

from __future__ import annotations

import argparse
import math

from calibrators.errors import counted
from calibrators.files import check_writable
from calibrators.host.checkpoint import check_place
from trtint8.api.accuracy import SENSITIVITY_SAMPLES, measure_sensitivity
from trtint8.cli.output import print_json, print_line, print_table, say, saying_what_is_kept
from trtint8.cli.verbs import Way, add_arguments, refuse_overwriting_arguments, values_of
from trtint8.sensitivity.measure import Plan
from trtint8.sensitivity.results import (
    LayerSensitivity,
    Sensitivity,
    check_sensitivity_name,
    level_text,
)
from trtint8.validation.accuracy import percent
from trtint8.validation.fidelity import picks_note

EXAMPLE = (
    "example:\n  trtint8 sensitivity resnet50.onnx resnet50.table.json heldout.npz -o sensitivity.json\n\n"
    f"Uses {SENSITIVITY_SAMPLES} samples at most where --limit does not say otherwise."
)

#: Layers that make more than this share of the noise are coloured.
_COLOURED_SHARE = 0.1

#: Length of the longest bar, in characters.
_LONGEST_BAR = 12


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


def run(options: argparse.Namespace) -> None:
    """Measures, and prints the layers, the worst first."""
    output = None
    if options.output is not None:
        output = check_writable(check_sensitivity_name(options.output))
    if output:
        refuse_overwriting_arguments([output], options)
    partial = check_place(f"{output}.partial") if output else None
    with saying_what_is_kept(partial, "the same command"):
        sensitivity = measure_sensitivity(
            **values_of(measure_sensitivity, options), checkpoint=partial, on_plan=_announce
        )
    if output:
        sensitivity.save(output)
    if options.json:
        print_json(sensitivity)
    else:
        _print(sensitivity)


def _announce(plan: Plan) -> None:
    samples = "all samples" if plan.samples is None else f"at most {counted(plan.samples, 'sample')}"
    seconds = "" if plan.samples is None else f"about {plan.samples * plan.seconds_per_sample:.0f} s, "
    say(f"{counted(plan.layers, 'layer')}, {samples}: {seconds}{1000 * plan.seconds_per_sample:.0f} ms each")
    if plan.picked_from:
        listed = ", ".join(f"'{name}'" for name in plan.picked_from)
        say(f"noise is that of {listed}, from which the network picks what it gives")


def _print(sensitivity: Sensitivity) -> None:
    largest = max((layer.noise_share for layer in sensitivity.layers), default=0.0) or 1.0
    rows = [_row(layer, largest) for layer in sensitivity.worst_first]
    styles = ["red" if layer.noise_share > _COLOURED_SHARE else None for layer in sensitivity.worst_first]
    columns = ("layer", "noise", "alone", "without", "weights", "activations", "here", "same class")
    certain = "" if sensitivity.converged else "; the figures are less certain than asked for"
    level = level_text(sensitivity.quantized.sqnr_db)
    title = f"{sensitivity.samples_text}: all layers in INT8 {level}{certain}"
    print_table(title, columns, rows, styles)
    for picks in sensitivity.picks_changed:
        print_line(picks_note(picks))
    for layer in sensitivity.worst_first:
        for suspect in layer.suspects:
            print_line(f"{layer.node}: {suspect.message}")


def _row(layer: LayerSensitivity, largest: float) -> tuple[str, ...]:
    half = layer.only.interval_db[1] - layer.only.sqnr_db
    spread = f" ± {half:.1f}" if math.isfinite(half) else ""
    of = f" of {layer.only.agreement.total:,}" if layer.only.agreement else ""
    copies = f" (and {counted(len(layer.copies), 'Concat')})" if layer.copies else ""
    return (
        layer.node + copies,
        f"{100 * layer.noise_share:5.1f} % " + "█" * math.ceil(_LONGEST_BAR * layer.noise_share / largest),
        level_text(layer.only.sqnr_db, spread),
        level_text(layer.without.sqnr_db),
        level_text(layer.weights_db),
        level_text(layer.activations_db),
        level_text(layer.cumulative_db),
        percent(layer.only.agreement) + of,
    )
