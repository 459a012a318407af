"""`trtint8 migrate`: the calibration cache of an implicit engine becomes a Q/DQ model."""

from __future__ import annotations

import argparse

from calibrators.errors import TableError
from calibrators.files import check_writable
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt import flavor
from trtint8.builder.build import BuiltEngine, build_engine
from trtint8.cli.output import print_json, print_table, say
from trtint8.interop.migration import Migration, plan_migration
from trtint8.models.model import load_model, prepare, runnable, save_model
from trtint8.quantization.placement import Placement, place
from trtint8.quantization.quantize import quantize_graph

EXAMPLE = "example:\n  trtint8 migrate resnet50.onnx resnet50.cache -o resnet50.qdq.onnx --fill"

#: Names that a message lists; the JSON has all.
_NAMED = 5


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("model", metavar="MODEL", help="the float ONNX model that was calibrated")
    parser.add_argument("cache", metavar="CACHE", help="its TensorRT calibration cache, or any other table")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.onnx")
    parser.add_argument(
        "--fill", action="store_true", help="take the ranges that are proposed for tensors the cache lacks"
    )
    parser.add_argument("--keep-float", action="append", default=[], metavar="PATTERN", help="repeatable")
    parser.add_argument("--no-proof", action="store_true", help="do not build with TensorRT for RTX")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options: argparse.Namespace) -> None:
    """Places Q/DQ, writes the model and proves it."""
    output = check_writable(options.output)
    prepared = prepare(load_model(options.model))
    table = CalibrationTable.load(options.cache)
    placement = place(prepared.graph_model, options.keep_float)
    plan = plan_migration(placement, table.amax)
    if plan.unsolved or (plan.missing and not options.fill):
        raise TableError(_refusal(plan))
    graph_model, placement = quantize_graph(prepared, table.override(plan.fills), options.keep_float)
    save_model(graph_model, output)
    proof = None
    if not options.no_proof:
        with runnable(graph_model) as serialized:
            proof = build_engine(serialized, prepared.inputs, flavor=flavor.load("rtx"), int8=True)
    _report(options, plan, placement, proof)


def _refusal(plan: Migration) -> str:
    named = ", ".join(f"'{name}'" for name in (plan.unsolved or plan.missing)[:_NAMED])
    if plan.unsolved:
        advice = "calibrate the model, or add them with 'trtint8 table set'"
    else:
        first = plan.proposals[0]
        advice = (
            f"all of them follow from others, like '{first.tensor}' from '{first.source}': pass --fill to "
            "take those"
        )
    count = len(plan.unsolved or plan.missing)
    return f"the cache has no range for {count} tensors that need one: {named}; {advice}"


def _report(
    options: argparse.Namespace, plan: Migration, placement: Placement, proof: BuiltEngine | None
) -> None:
    summary = proof.report.weighted_summary(placement.quantized_nodes) if proof and proof.report else None
    in_int8 = None if summary is None else len(summary.get("INT8", []))
    if options.json:
        print_json(
            {
                "model": options.output,
                "missing": plan.missing,
                "unused": plan.unused,
                "proposals": plan.proposals,
                "widened": dict(plan.widened),
                "weighted_layers": len(placement.quantized_nodes),
                "in_int8": in_int8,
            }
        )
        return
    for tensor, factor in plan.widened.items():
        say(f"'{tensor}' shares its scale with others, which makes it {factor:.3g} times the cache's")
    rows = [
        ("model", options.output),
        ("scales from the cache", str(len(placement.tensors) - len(plan.missing))),
        ("filled in", str(len(plan.missing))),
        ("in the cache and not in the graph", str(len(plan.unused))),
    ]
    rows += [(f"  '{name}'", "") for name in plan.unused[:_NAMED]]
    if in_int8 is not None:
        rows.append(("weighted layers in INT8", f"{in_int8} of {len(placement.quantized_nodes)}"))
    print_table("Migrated", ("", ""), rows)
    if plan.proposals:
        filled = [(p.tensor, p.source, f"{p.amax:.6g}", p.reason) for p in plan.proposals]
        print_table("Filled in", ("tensor", "from", "amax", "why"), filled)
