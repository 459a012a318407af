"""`trtint8 quantize`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibrators.errors import ModelError, titled
from trtint8.api.quantization import QuantizedFiles, write_quantized
from trtint8.cli.output import named_nodes, print_facts, print_json, print_line, print_table
from trtint8.cli.verbs import Way, add_arguments, refuse_overwriting_arguments, values_of
from trtint8.models.graph import module_of
from trtint8.quantization.quantize import Quantized
from trtint8.quantization.tensor_configs import JointConfigs

if TYPE_CHECKING:
    from trtint8.equalization.equalize import Equalized
    from trtint8.quantization.config import TensorQuantConfig

EXAMPLE = (
    "example:\n  trtint8 quantize resnet50.onnx resnet50.table.json -o resnet50.int8.onnx "
    "--keep-float '/fc/*' --explain"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_arguments(
        parser,
        write_quantized,
        json="the decisions",
        model=Way(help="a float ONNX model"),
        target=Way(metavar="NAME", choices=()),
        output=Way(metavar="OUT.onnx"),
        equalize=Way(
            help="calibration samples. Channels get similar ranges, and the model is calibrated anew by "
            "the table's method. OUT.float.onnx and OUT.table.json are written as well"
        ),
        rounding=Way(
            ("--round",),
            help="calibration samples. Biases are corrected and weights rounded up or down, if that gains on "
            "samples that it was not made with",
        ),
    )
    parser.add_argument("--explain", action="store_true", help="print the reason of every decision")
    parser.add_argument(
        "--configs",
        action="store_true",
        help="with --explain or --json, print how every tensor is quantized; as JSON in PPQ's forms",
    )


def run(options: argparse.Namespace) -> None:
    """Quantizes and writes the model."""
    if options.configs and not (options.explain or options.json):
        raise ModelError(
            "--configs says what --explain and --json print of every tensor; add one of them, or leave it out"
        )
    refuse_overwriting_arguments([Path(options.output)], options)
    files = write_quantized(**values_of(write_quantized, options))
    if options.json:
        print_json(files.to_json(configs=options.configs))
        return
    if options.explain:
        _explain(files.quantized)
        if options.configs:
            _show_configs(files.quantized.configs)
        if files.equalized is not None:
            _explain_equalization(files.equalized)
    print_facts("Quantized", _facts(options, files))


def _facts(options: argparse.Namespace, files: QuantizedFiles) -> list[tuple[str, object]]:
    quantized, equalized = files.quantized, files.equalized
    placement, hint = quantized.placement, "" if options.explain else ", see --explain"
    channels = equalized and sum(form.channels for form in equalized.forms)
    return [
        ("model", options.output),
        ("target", files.target),
        ("changed weights", files.rounded),
        ("nodes in INT8", f"{len(placement.quantized_nodes)} of {placement.multiplying}"),
        ("kept in float", sum(not d.quantized for d in placement.decisions)),
        ("in float for accuracy", _for_accuracy(files)),
        ("slower in INT8, so in FP16", len(placement.slower) or None),
        ("activations with a scale", len(placement.tensors)),
        ("not calibrated", named_nodes(quantized.left_out) if quantized.left_out else None),
        ("kept in FP32 amid FP16", len(quantized.float32) if options.float16 else None),
        ("equalized channels", channels),
        ("outputs that keep their values", equalized and f"{len(equalized.skipped)}{hint}"),
        ("equalized float model", equalized and files.float_model),
        ("its table", files.table),
        ("the rest, in float", files.tail),
    ]


def _for_accuracy(files: QuantizedFiles) -> object:
    """The layers in float for accuracy, where the model has some."""
    decisions = files.quantized.placement.decisions
    return files.float_layers if any(one.cause == "accuracy" for one in decisions) else None


def _explain(quantized: Quantized) -> None:
    placement = quantized.placement
    decisions = placement.decisions
    rows = [(d.title, d.operator, "INT8" if d.quantized else "float", d.reason) for d in decisions]
    print_table("Decisions", ("node", "operator", "runs in", "why"), rows)
    if quantized.float32:
        titles = {node.name: titled(node.name or "", module_of(node)) for node in quantized.graph_model.graph}
        kept = [(titles.get(name, name), why) for name, why in quantized.float32.items()]
        print_table("Kept in FP32", ("node", "why"), kept)
    for group in placement.shared:
        print_table("These share one scale", ("tensor",), [(name,) for name in group])


def _show_configs(configs: JointConfigs) -> None:
    """Prints how every tensor is quantized."""
    rows = []
    for tensor in configs:
        config, dominator = configs.effective(tensor), configs.dominator(tensor)
        row = [tensor, configs[tensor].state.value, dominator if dominator != tensor else ""]
        if config.scale is None:
            row += [""] * 5
        else:
            integers = f"{config.quant_min} to {config.quant_max}"
            row += [
                integers,
                _scales(config),
                str(config.offset),
                config.rounding.value,
                config.observer or "",
            ]
        rows.append(row)
    columns = ("tensor", "state", "scale of", "integers", "scale", "offset", "rounded", "range by")
    print_table("Configs", columns, rows)


def _scales(config: TensorQuantConfig) -> str:
    low, high = np.min(config.scale), np.max(config.scale)  # type: ignore[arg-type]  # there is one
    if config.axis is None:
        return f"{low:.4g}"
    return f"{low:.4g} to {high:.4g} along axis {config.axis}"


def _explain_equalization(equalized: Equalized) -> None:
    rows = [
        (
            form.description,
            str(form.channels),
            f"{form.strength:.1f}",
            f"{form.smallest:.3g} to {form.largest:.3g}",
        )
        for form in equalized.forms
    ]
    print_table("Equalized", ("from the channels of", "factors", "strength", "range"), rows)
    for description in equalized.unchanged:
        print_line(f"Left as it was, because it would not become better: {description}")
    if equalized.skipped:
        print_table("Outputs that keep their values", ("node", "why"), list(equalized.skipped.items()))
