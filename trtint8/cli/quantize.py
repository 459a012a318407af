"""`trtint8 quantize`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from calibrators.errors import ModelError
from calibrators.files import check_writable
from calibrators.tables.table import CalibrationTable
from trtint8.cli.output import print_json, print_table
from trtint8.models.model import load_float_model, prepare, save_model
from trtint8.quantization.float16.convert import to_float16
from trtint8.quantization.placement import Placement
from trtint8.quantization.quantize import quantize_graph

EXAMPLE = (
    "example:\n  trtint8 quantize resnet50.onnx resnet50.table.json -o resnet50.qdq.onnx "
    "--keep-float '/fc/*' --explain"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("model", metavar="MODEL", help="a float ONNX model")
    parser.add_argument("table", metavar="TABLE", help="a calibration table or TensorRT calibration cache")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.onnx")
    parser.add_argument(
        "--keep-float",
        action="append",
        default=[],
        metavar="PATTERN",
        help="nodes that stay in float; repeatable",
    )
    parser.add_argument(
        "--float16", action="store_true", help="convert what is outside INT8 to FP16, where that is safe"
    )
    parser.add_argument(
        "--float32-io", action="store_true", help="with --float16: inputs and outputs stay FP32"
    )
    parser.add_argument("--explain", action="store_true", help="print the reason of every decision")
    parser.add_argument("--json", action="store_true", help="print the decisions as JSON")


def run(options: argparse.Namespace) -> None:
    """Quantizes and writes the model."""
    if options.float32_io and not options.float16:
        raise ModelError("--float32-io says what stays FP32 when the rest becomes FP16; add --float16")
    output = check_writable(options.output)
    model = load_float_model(options.model)
    table = CalibrationTable.load(options.table)
    graph_model, placement = quantize_graph(prepare(model), table, options.keep_float)
    float32: dict[str, str] = {}
    if options.float16:
        graph_model, float32 = to_float16(
            graph_model, float32_io=options.float32_io, peaks=table.peaks, name=model.name
        )
    save_model(graph_model, output)
    if options.json:
        _print_json(options, placement, float32)
        return
    if options.explain:
        _explain(placement, float32)
    rows = [
        ("model", options.output),
        ("nodes in INT8", str(len(placement.quantized_nodes))),
        ("kept in float", str(sum(not d.quantized for d in placement.decisions))),
        ("activations with a scale", str(len(placement.tensors))),
    ]
    if options.float16:
        rows.append(("kept in FP32 amid FP16", str(len(float32))))
    print_table("Quantized", ("", ""), rows)


def _print_json(options: argparse.Namespace, placement: Placement, float32: Mapping[str, str]) -> None:
    configs = placement.configs
    tensors = {
        name: {"state": configs[name].state.value, "dominator": configs.dominator(name)} for name in configs
    }
    print_json(
        {
            "model": options.output,
            "decisions": placement.decisions,
            "shared_scales": placement.shared,
            "tensors": tensors,
            "float32": float32 if options.float16 else None,
        }
    )


def _explain(placement: Placement, float32: Mapping[str, str]) -> None:
    rows = [(d.node, d.operator, "INT8" if d.quantized else "float", d.reason) for d in placement.decisions]
    print_table("Decisions", ("node", "operator", "runs in", "why"), rows)
    if float32:
        print_table("Kept in FP32", ("node", "why"), list(float32.items()))
    for group in placement.shared:
        print_table("These share one scale", ("tensor",), [(name,) for name in group])
