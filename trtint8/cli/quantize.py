"""`trtint8 quantize`."""

from __future__ import annotations

import argparse

from calibrators.errors import ModelError
from calibrators.files import check_writable
from calibrators.table import CalibrationTable
from trtint8 import api
from trtint8.cli.output import print_json, print_table
from trtint8.model import load_model, prepare, save_model

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
    parser.add_argument("--explain", action="store_true", help="print the reason of every decision")
    parser.add_argument("--json", action="store_true", help="print the decisions as JSON")


def run(options: argparse.Namespace) -> None:
    """Quantizes and writes the model."""
    output = check_writable(options.output)
    model = load_model(options.model)
    if model.is_quantized:
        raise ModelError(
            f"'{model.name}' holds Q/DQ pairs already; build it as it is, or give the float model"
        )
    graph_model, placement = api.quantize_graph(
        prepare(model), CalibrationTable.load(options.table), options.keep_float
    )
    save_model(graph_model, output)
    if options.json:
        configs = placement.configs
        tensors = {
            name: {"state": configs[name].state.value, "dominator": configs.dominator(name)}
            for name in configs
        }
        print_json(
            {
                "model": str(output),
                "decisions": placement.decisions,
                "shared_scales": placement.shared,
                "tensors": tensors,
            }
        )
        return
    if options.explain:
        rows = [
            (d.node, d.operator, "INT8" if d.quantized else "float", d.reason) for d in placement.decisions
        ]
        print_table("Decisions", ("node", "operator", "runs in", "why"), rows)
        for group in placement.shared:
            print_table("These share one scale", ("tensor",), [(name,) for name in group])
    print_table(
        "Quantized",
        ("", ""),
        [
            ("model", str(output)),
            ("nodes in INT8", str(len(placement.quantized_nodes))),
            ("kept in float", str(sum(not d.quantized for d in placement.decisions))),
            ("activations with a scale", str(len(placement.tensors))),
        ],
    )
