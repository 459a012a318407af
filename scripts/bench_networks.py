"""Which networks trtint8 and other tools bring into INT8 or FP16 by their defaults, and how exactly.

pip install torch torchvision timm transformers diffusers onnxscript efficientnet-lite-pytorch
TRTINT8_CIFAR10=FOLDER python scripts/bench_networks.py NETWORKS --export  # writes those that are missing
python scripts/bench_networks.py NETWORKS --peers FOLDER  # Model Optimizer too, installed there
python scripts/bench_networks.py NETWORKS MORE --only resnet18 --tools trtint8 "ONNX Runtime"
python scripts/bench_networks.py NETWORKS --peers FOLDER --to fp16

NETWORKS has a folder per network with `model.onnx`, `calib.npz` and `held.npz`. What `--export` writes has 32
calibration samples and 64 others. It names the packages of trained networks that are missing; their samples
contain the images of CIFAR-10 (see bench_tools.py), or noise without these.

Each tool gets one sample at a time, in a process of its own. SQNR in dB is that of the worst output, or of
the worst quantity in an output (docs/metrics.md), on the samples that no tool has seen: ONNX Runtime on the
CPU runs the float model and the quantized model, with float arithmetic between the Q/DQ pairs. What a model
holds in FP16 is rounded to it, and what is beyond it becomes infinite. INT8 is the number of convolutions and
matrix products whose two operands are dequantized, of all, and FP16 that of those that give out FP16. Seconds
are processor time (user and system), and MiB is the peak of the process. Both contain the import of the tool.

Results are lines of NETWORKS/results.jsonl. What is there is not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from calibration_bench.tools import install
from networks_bench.tools import (
    ENVIRONMENTS,
    Job,
    Tools,
    feeds_of,
    run,
    with_autocast,
    with_model_optimizer,
    with_onnx_runtime,
    with_onnxconverter,
    with_trtint8,
    work,
)

#: Type to the tools that bring networks into it.
_TOOLS_TO: Mapping[str, Tools] = {
    "int8": {
        "trtint8": with_trtint8,
        "Model Optimizer": with_model_optimizer,
        "ONNX Runtime": with_onnx_runtime,
    },
    "fp16": {
        "trtint8 FP16": partial(with_trtint8, float16=True, keep_float=["*"]),
        "AutoCast": with_autocast,
        "AutoCast, samples": partial(with_autocast, with_samples=True),
        "onnxconverter": with_onnxconverter,
    },
}
TOOLS: Tools = {name: tool for tools in _TOOLS_TO.values() for name, tool in tools.items()}

#: The most seconds that a tool may take for one network.
_SECONDS = 1200

#: Operators that count as layers, and those that may stand between a layer and its dequantized operand.
_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_PASSED = ("Cast", "Reshape", "Squeeze", "Transpose", "Unsqueeze")

#: Key of each figure of a result to its heading in a table, and the form that the table has it in.
_FIGURES = {
    "sqnr_db": ("SQNR", "{:.1f}"),
    "int8": ("INT8", "{}"),
    "fp16": ("FP16", "{}"),
    "processor": ("s", "{:.1f}"),
    "peak": ("MiB", "{:.0f}"),
    "size": ("file MiB", "{:.1f}"),
}

#: Those that are numbers of layers.
_COUNTS = ("int8", "fp16")

#: One result: the figures, or what failed.
Result = dict[str, Any]

#: Name of each network to the results of the tools.
Results = dict[str, dict[str, Result]]


def measure(network: Path, tool: str, peers: Path | None) -> Result:
    """Quantizes a network with a tool, and judges the result."""
    from networks_bench.float16 import half_layers, round_every_tensor  # which other tools cannot import

    model, held_out = (os.fspath(network / name) for name in ("model.onnx", "held.npz"))
    with tempfile.TemporaryDirectory() as folder:
        job = Job(model, os.fspath(network / "calib.npz"), 1, os.fspath(Path(folder) / "int8.onnx"))
        cost = run(__file__, tool, job, peers, _SECONDS)
        if isinstance(cost, str):
            return {"failed": cost}
        try:
            int8, layers = int8_layers(job.output)
            half, judged = half_layers(job.output, _LAYERS), job.output
            if half is not None:
                round_every_tensor(job.output, judged := os.fspath(Path(folder) / "judged.onnx"))
            found = sqnr_db(model, judged, held_out)
            if math.isnan(found):
                return {"failed": "judged: an output is not a number"}
            return {
                "sqnr_db": found,
                "int8": int8,
                **({} if half is None else {"fp16": half}),
                "layers": layers,
                "processor": cost.processor,
                "peak": cost.peak,
                "size": Path(job.output).stat().st_size / 2**20,
            }
        except Exception as error:  # noqa: BLE001  # a model that cannot be run is a result, too
            return {"failed": f"judged: {type(error).__name__}: {str(error).splitlines()[0][:300]}"}


def sqnr_db(model: str, quantized: str, samples: str) -> float:
    """SQNR in dB of the worst output of a quantized model."""
    import trtint8

    accuracy = trtint8.validate(
        quantized, lambda: feeds_of(model, samples), reference=model, metrics=["sqnr"], progress=False
    )
    return min(output.sqnr_db for output in accuracy.outputs)


def int8_layers(path: str) -> tuple[int, int]:
    """How many layers of a model have two dequantized operands, and how many there are."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    makers = {output: node for node in graph.node for output in node.output}

    def dequantized(name: str) -> bool:
        node = makers.get(name)
        while node is not None and node.op_type in _PASSED:
            node = makers.get(node.input[0])
        return node is not None and node.op_type == "DequantizeLinear"

    layers = [node for node in graph.node if node.op_type in _LAYERS]
    return sum(all(map(dequantized, node.input[:2])) for node in layers), len(layers)


def read(path: Path) -> Results:
    """The results of a file; later lines replace earlier ones."""
    results: Results = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        results.setdefault(row["network"], {}).update(row["results"])
    return results


def markdown(results: Results, tools: Sequence[str]) -> str:
    """A table with one line per network, medians, and a list of what failed."""
    shown = [row[tool] for row in results.values() for tool in tools if tool in row]
    figures = [key for key in _FIGURES if any(key in result for result in shown)]
    table = [["network", *(f"{tool} {_FIGURES[key][0]}" for key in figures for tool in tools)]]
    table.append(["---"] * len(table[0]))
    for network, row in sorted(results.items()):
        table.append([network, *_cells(row, tools, figures)])
    everywhere = [row for row in results.values() if all("sqnr_db" in row.get(tool, {}) for tool in tools)]
    counts = {tool: sum("sqnr_db" in row.get(tool, {}) for row in results.values()) for tool in tools}
    table.append([f"succeeded, of {len(results)}", *(str(counts[tool]) for tool in tools)])
    medians = _medians(everywhere, tools)
    table.append([f"median of {len(everywhere)} with all", *_cells(medians, tools, figures)])
    width = len(table[0])
    lines = [f"| {' | '.join(line + [''] * (width - len(line)))} |" for line in table]
    failed = [
        f"- {network}, {tool}: {row[tool]['failed']}"
        for network, row in sorted(results.items())
        for tool in tools
        if "failed" in row.get(tool, {})
    ]
    return "\n".join([*lines, "", *failed])


def _cells(row: Mapping[str, Result], tools: Sequence[str], figures: Sequence[str]) -> list[str]:
    """The figures of all tools, figure by figure."""
    cells = []
    for key in figures:
        for tool in tools:
            result = row.get(tool, {})
            of_all = f" of {result['layers']}" if key in _COUNTS and "layers" in result else ""
            shown = _FIGURES[key][1].format(result[key]) + of_all if key in result else ""
            cells.append("fails" if key == "sqnr_db" and "failed" in result else shown)
    return cells


def _medians(rows: Sequence[Mapping[str, Result]], tools: Sequence[str]) -> dict[str, Result]:
    """The median of every figure of every tool over the networks where it succeeds."""
    medians: dict[str, Result] = {}
    for tool in tools:
        done = [row[tool] for row in rows if "sqnr_db" in row.get(tool, {})]
        keys = [key for key in _FIGURES if key not in _COUNTS and all(key in result for result in done)]
        medians[tool] = {key: statistics.median(result[key] for result in done) for key in keys if done}
    return medians


def main() -> None:
    """Measures what is not measured yet, and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "networks", type=Path, nargs="*", help="folders with networks; results go to the first"
    )
    parser.add_argument("--only", nargs="+", help="names of networks")
    parser.add_argument("--to", choices=list(_TOOLS_TO), default="int8", help="the type; default int8")
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), help="by default all for that type")
    parser.add_argument("--peers", type=Path, help="a folder for an environment with Model Optimizer")
    parser.add_argument("--export", action="store_true", help="write the networks, with PyTorch")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        work(TOOLS, *options.child)
        return
    if not options.networks:
        parser.error("name a folder with networks")
    if options.export:
        from networks_bench.networks import export_all

        export_all(options.networks[0], options.only)
        return
    asked = options.tools or list(_TOOLS_TO[options.to])
    needed = {ENVIRONMENTS[tool] for tool in asked if tool in ENVIRONMENTS}
    there = install(options.peers, sorted(needed)) if options.peers else []
    tools = [tool for tool in asked if ENVIRONMENTS.get(tool) in (None, *there)]
    file = options.networks[0] / "results.jsonl"
    for path in (path for folder in options.networks for path in sorted(folder.glob("*/model.onnx"))):
        name = path.parent.name
        if options.only and name not in options.only:
            continue
        missing = [tool for tool in tools if tool not in read(file).get(name, {})]
        row = {tool: measure(path.parent, tool, options.peers) for tool in missing}
        if row:
            with file.open("a") as lines:
                lines.write(json.dumps({"network": name, "results": row}) + "\n")
            print(name, *(f"{tool}: {result}" for tool, result in row.items()), sep="\n  ", flush=True)
    results = {name: row for name, row in read(file).items() if not options.only or name in options.only}
    print(markdown(results, tools))


if __name__ == "__main__":
    main()
