"""`trtint8 lint`: checks a Q/DQ model made elsewhere against TensorRT's rules, and mends it."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from calibrators.errors import ModelError, counted
from calibrators.files import check_writable
from trtint8.cli.output import print_facts, print_json, print_line, print_table
from trtint8.cli.verbs import Way, add_arguments, refuse_overwriting_arguments
from trtint8.interop.lint import Finding, Mended, lint, mend
from trtint8.models.model import check_model_name, load_model

EXAMPLE = """examples:
  trtint8 lint qat.onnx --strict
  trtint8 lint qat.onnx --fix -o mended.onnx"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add_arguments(
        parser, lint, json="the findings", model=Way(help="an ONNX model with Q/DQ pairs, made by any tool")
    )
    parser.add_argument("--fix", action="store_true", help="write a model with pairs as TensorRT wants them")
    parser.add_argument("-o", "--output", metavar="OUT.onnx", help="the file to write, with --fix")
    parser.add_argument(
        "--strict", action="store_true", help="end with status 1 where there are findings on MODEL"
    )


def run(options: argparse.Namespace) -> int:
    """Checks, and mends where asked.

    Returns:
        The exit status: 1 where there are findings and ``--strict`` was given.
    """
    if options.fix != (options.output is not None):
        raise ModelError("give --fix and --output together, or neither")
    output = check_writable(check_model_name(options.output)) if options.output else None
    if output:
        refuse_overwriting_arguments([output], options)
    model = load_model(options.model)
    findings = lint(model)
    mended = mend(model) if output else None
    if output and mended:
        mended.save(output)
    if options.json:
        changed = mended.to_json() if mended else dict.fromkeys(("quantized_nodes", "restored", "filled"))
        print_json({"findings": findings, **changed})
    else:
        _print(findings, mended, output)
    return int(options.strict and bool(findings))


def _print(findings: Sequence[Finding], mended: Mended | None, output: Path | None) -> None:
    rows = [(f.node, f.rule, f.message, "yes" if f.mendable else "no") for f in findings]
    counts = ", ".join(f"{count} {rule}" for rule, count in Counter(f.rule for f in findings).items())
    if findings:
        title = f"{counted(len(findings), 'finding')}: {counts}"
        print_table(title, ("node", "rule", "what", "mendable"), rows)
    else:
        print_line("no findings: TensorRT takes the Q/DQ pairs as they are")
    if mended:
        facts: list[tuple[str, object]] = [
            ("model", output),
            ("nodes in INT8", len(mended.quantized_nodes)),
            ("kept in float", len(mended.unquantized.kept_float)),
            ("Relu and Clip restored", len(mended.unquantized.restored)),
            ("ranges filled in", len(mended.filled)),
        ]
        print_facts("Mended", facts)
