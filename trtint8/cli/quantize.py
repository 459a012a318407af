"""`trtint8 quantize`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from calibrators.data.options import DataOptions
from calibrators.errors import ModelError
from calibrators.files import check_writable, refuse_losing, written_together
from calibrators.tables.table import CalibrationTable
from trtint8.cli.arguments import (
    add_keep_float_option,
    add_keep_int8_option,
    refuse_overwriting_arguments,
)
from trtint8.cli.cutting import FLOAT, TAIL, add_cut_option, cut_from, files_of_cut
from trtint8.cli.data_options import add_data_options, data_options_from
from trtint8.cli.output import named_nodes, print_json, print_line, print_table
from trtint8.cli.own_data import data_from
from trtint8.models.file_names import check_model_name
from trtint8.models.model import load_float_model, prepare
from trtint8.models.serialization import save_model
from trtint8.quantization.quantize import (
    Quantized,
    QuantizeOptions,
    quantized_model,
    refuse_without_float16,
)
from trtint8.quantization.targets import Target, target_named

if TYPE_CHECKING:
    from trtint8.equalization.equalize import Equalized

EXAMPLE = (
    "example:\n  trtint8 quantize resnet50.onnx resnet50.table.json -o resnet50.int8.onnx "
    "--keep-float '/fc/*' --explain"
)

_FLOAT_MODEL, _TABLE = _BESIDE = ("float.onnx", "table.json")


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    parser.add_argument("model", metavar="MODEL", help="a float ONNX model")
    parser.add_argument("table", metavar="TABLE", help="a calibration table or TensorRT calibration cache")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.onnx")
    add_keep_float_option(parser)
    add_keep_int8_option(parser)
    parser.add_argument(
        "--target",
        metavar="NAME",
        help="what the model is built for: rtx, tensorrt-8.6, tensorrt-10, tensorrt-11 or dla; what it does "
        "not run in INT8 stays in float. Without it, what one of them runs in INT8 is quantized",
    )
    parser.add_argument(
        "--compute-capability",
        metavar="X.Y",
        help="with --target: the GPU's, like 8.6; refused where the target has no INT8 on it",
    )
    parser.add_argument(
        "--float16",
        action="store_true",
        help="convert what is outside INT8 to FP16, where that is safe; with --target rtx, layers that are "
        "estimated to be faster in FP16 are outside INT8 (--keep-int8 '*' leaves them in INT8)",
    )
    parser.add_argument(
        "--float32-io", action="store_true", help="with --float16: inputs and outputs stay FP32"
    )
    add_cut_option(parser, "; OUT.tail.onnx, the rest, and OUT.float.onnx are written as well")
    parser.add_argument(
        "--equalize",
        metavar="DATA",
        help="calibration samples: give channels similar ranges, calibrate anew with the table's method, and "
        "write OUT.float.onnx and OUT.table.json as well",
    )
    parser.add_argument("--explain", action="store_true", help="print the reason of every decision")
    parser.add_argument("--json", action="store_true", help="print the decisions as JSON")
    add_data_options(parser)


def run(options: argparse.Namespace) -> None:
    """Quantizes and writes the model."""
    refuse_without_float16(options.float16, options.float32_io, options.keep_int8)
    data_options = _data_options(options)
    target = target_named(
        "tensorrt" if options.target is None else options.target, options.compute_capability
    )
    output = check_writable(check_model_name(options.output))
    refuse_overwriting_arguments([output], options)
    files = {} if options.equalize is None else _files_beside(output, options)
    cut = cut_from(options.model, options)
    prepared = cut.head if cut else prepare(load_float_model(options.model))
    cut_files = files_of_cut(output, options) if cut else {}
    refuse_losing(output, [*files.values(), *cut_files.values()])
    table = CalibrationTable.load(options.table)
    remade = None
    if options.equalize is not None:
        # Imported late: only this option needs what runs models.
        from trtint8.calibration import tensors_needed
        from trtint8.equalization.recalibration import equalize_and_calibrate

        data, needed = data_from(options.equalize, options), tensors_needed(options.float16)
        remade = equalize_and_calibrate(prepared, table, data, data_options, needed)
        prepared, table = remade.model, remade.table
    asked = QuantizeOptions(
        options.keep_float, options.keep_int8, target, options.float16, options.float32_io
    )
    quantized = quantized_model(prepared, table, asked)
    with written_together(output) as staged:
        if cut is not None:
            save_model(cut.tail, staged(cut_files[TAIL]))
            if remade is None:
                save_model(prepared.graph_model, staged(cut_files[FLOAT]))
        if remade is not None:
            save_model(remade.model.graph_model, staged(files[_FLOAT_MODEL]))
            remade.table.save(staged(files[_TABLE]))
        save_model(quantized.graph_model, staged(output))
    equalized = None if remade is None else remade.equalized
    if options.json:
        _print_json(options, target, quantized, equalized, files)
        return
    if options.explain:
        _explain(quantized)
        if equalized is not None:
            _explain_equalization(equalized)
    rows = _rows(options, target, quantized, equalized, files)
    if cut is not None:
        rows.append(("the rest, in float", str(cut_files[TAIL])))
    print_table("Quantized", ("", ""), rows)


def _data_options(options: argparse.Namespace) -> DataOptions:
    """How the samples of ``--equalize`` are read; refuses options that say so where there are none."""
    data_options = data_options_from(options)
    read = (data_options.batch_size, data_options.limit, data_options.preprocessing)
    if options.equalize is None and any((*read, options.batch_axis, options.state)):
        raise ModelError("options of data say how the samples of --equalize are read; add --equalize DATA")
    return data_options


def _files_beside(output: Path, options: argparse.Namespace) -> dict[str, Path]:
    """The files that are written beside the output; refuses those that are read."""
    files = {end: check_writable(output.with_name(f"{output.stem}.{end}"), named=False) for end in _BESIDE}
    refuse_overwriting_arguments(files.values(), options)
    return files


def _print_json(
    options: argparse.Namespace,
    target: Target,
    quantized: Quantized,
    equalized: Equalized | None,
    files: Mapping[str, Path],
) -> None:
    placement = quantized.placement
    configs = placement.configs
    tensors = {
        name: {"state": configs[name].state.value, "dominator": configs.dominator(name)} for name in configs
    }
    print_json(
        {
            "model": options.output,
            "target": target.name,
            "nodes_in_int8": len(placement.quantized_nodes),
            "nodes_that_multiply": placement.multiplying,
            "decisions": placement.decisions,
            "left_out": quantized.left_out,
            "shared_scales": placement.shared,
            "tensors": tensors,
            "float32": quantized.float32 if options.float16 else None,
            "equalization": equalized
            and {
                "forms": equalized.forms,
                "unchanged": equalized.unchanged,
                "skipped": equalized.skipped,
                "float_model": files[_FLOAT_MODEL],
                "table": files[_TABLE],
            },
        }
    )


def _rows(
    options: argparse.Namespace,
    target: Target,
    quantized: Quantized,
    equalized: Equalized | None,
    files: Mapping[str, Path],
) -> list[tuple[str, str]]:
    placement = quantized.placement
    rows = [
        ("model", options.output),
        ("target", target.name),
        ("nodes in INT8", f"{len(placement.quantized_nodes)} of {placement.multiplying}"),
        ("kept in float", str(sum(not d.quantized for d in placement.decisions))),
        *([("slower in INT8, so in FP16", str(len(placement.slower)))] if placement.slower else []),
        ("activations with a scale", str(len(placement.tensors))),
        *([("not calibrated", named_nodes(quantized.left_out))] if quantized.left_out else []),
    ]
    if options.float16:
        rows.append(("kept in FP32 amid FP16", str(len(quantized.float32))))
    if equalized is not None:
        rows.append(("equalized channels", str(sum(form.channels for form in equalized.forms))))
        kept = len(equalized.skipped)
        rows.append(
            ("outputs that keep their values", f"{kept}{'' if options.explain else ', see --explain'}")
        )
        rows += [("equalized float model", str(files[_FLOAT_MODEL])), ("its table", str(files[_TABLE]))]
    return rows


def _explain(quantized: Quantized) -> None:
    placement = quantized.placement
    rows = [(d.node, d.operator, "INT8" if d.quantized else "float", d.reason) for d in placement.decisions]
    print_table("Decisions", ("node", "operator", "runs in", "why"), rows)
    if quantized.float32:
        print_table("Kept in FP32", ("node", "why"), list(quantized.float32.items()))
    for group in placement.shared:
        print_table("These share one scale", ("tensor",), [(name,) for name in group])


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
