"""`trtint8 migrate`: the calibration cache of an implicit engine becomes a Q/DQ model."""

from __future__ import annotations

import argparse

from calibrators.files import check_writable
from trtint8.api.elsewhere import migrate
from trtint8.builder.build import count_int8_layers
from trtint8.cli.output import print_facts, print_json, print_table, say
from trtint8.cli.verbs import Way, add_arguments, refuse_overwriting_arguments, values_of
from trtint8.interop.migrate import Migrated
from trtint8.models.model import check_model_name, load_float_model

EXAMPLE = "example:\n  trtint8 migrate resnet50.onnx resnet50.cache -o resnet50.int8.onnx --fill"

#: How many unused tensors and float nodes the printed table names; the JSON names all of them.
_NAMED = 5


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_arguments(
        parser,
        migrate,
        json="the findings",
        model=Way(help="the float ONNX model that was calibrated"),
        target=Way(metavar="NAME", choices=()),
    )
    parser.add_argument("-o", "--output", required=True, metavar="OUT.onnx", help="the Q/DQ model to write")
    parser.add_argument("--no-proof", action="store_true", help="do not build with TensorRT for RTX")


def run(options: argparse.Namespace) -> None:
    """Places Q/DQ pairs, proves by a build that the model runs in INT8, and writes it."""
    output = check_writable(check_model_name(options.output))
    refuse_overwriting_arguments([output], options)
    model = load_float_model(options.model)
    migrated = migrate(**values_of(migrate, options) | {"model": model})
    in_int8 = None
    open_inputs = [spec.name for spec in model.inputs if spec.has_open_sizes]
    if not options.no_proof and open_inputs:
        say(
            f"that it runs in INT8 is not proved, because input '{open_inputs[0]}' leaves sizes open; "
            "'trtint8 build --profile' builds the model with sizes"
        )
    elif not options.no_proof:
        quantized = migrated.placement.quantized_nodes
        in_int8 = count_int8_layers(migrated.graph_model, model.inputs, quantized)
    migrated.save(output)
    _report(options, migrated, in_int8)


def _report(options: argparse.Namespace, migrated: Migrated, in_int8: int | None) -> None:
    plan, placement = migrated.plan, migrated.placement
    if options.json:
        print_json({"model": options.output, **migrated.to_json(), "in_int8": in_int8})
        return
    for tensor, factor in plan.widened.items():
        say(f"'{tensor}' shares its scale with others, which makes it {_compared(factor)} the cache's")
    facts: list[tuple[str, object]] = [
        ("model", options.output),
        ("scales from the cache", len(placement.tensors) - len(plan.missing)),
        ("filled in", len(plan.missing)),
        ("in the cache and not in the graph", len(plan.unused)),
        *((f"  '{name}'", "") for name in plan.unused[:_NAMED]),
        ("weighted layers in INT8", None if in_int8 is None else f"{in_int8} of {placement.multiplying}"),
        ("nodes that stay in float", len(placement.float_nodes) or None),
        *((f"  '{name}'", reason) for name, reason in placement.float_nodes[:_NAMED]),
    ]
    print_facts("Migrated", facts)
    if plan.proposals:
        filled = [(p.tensor, p.source, f"{p.amax:.6g}", p.reason) for p in plan.proposals]
        print_table("Filled in", ("tensor", "from", "amax", "why"), filled)


def _compared(factor: float) -> str:
    """A factor above 1 in words, which a factor near 1 is too short for as a number."""
    return f"{factor:.3g} times" if factor >= 1.5 else f"{100 * (factor - 1):.2g} % larger than"
