"""What a float ONNX model costs to bring into INT8 with trtint8 and with other tools, in one run.

python scripts/bench_tools.py --peers FOLDER                        # Model Optimizer too, installed there
TRTINT8_CIFAR10=FOLDER python scripts/bench_tools.py --peers FOLDER # and trained networks, with their top-1

Every tool gets the same file and the same calibration samples, and writes a model with Q/DQ pairs by its
defaults, but for what TensorRT needs. It does so in a process of its own, and tools take turns. Seconds are
processor time (user and system), which other programs disturb less: the median, the least and the most. The
wall clock stands behind. MiB is the peak of the process. All contain the import of the tool. Each model is
judged by `trtint8.validate` on samples that it was not calibrated with, and built with TensorRT for RTX,
which says how many weighted layers run in INT8.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from calibration_bench.cases import MEAN, STD, Case, cases
from calibration_bench.tools import install
from networks_bench.tools import (
    ENVIRONMENTS,
    Cost,
    Job,
    Tools,
    run,
    with_model_optimizer,
    with_onnx_runtime,
    with_trtint8,
    work,
)

#: Options of the others are those that TensorRT needs, and float32 for what is not in INT8, as with ours.
_TOOLS: Tools = {
    "trtint8": with_trtint8,
    "ONNX Runtime": partial(
        with_onnx_runtime,
        per_channel=True,
        extra_options={"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False},
    ),
    "Model Optimizer": partial(with_model_optimizer, high_precision_dtype="fp32"),
}

#: Calibration samples of each network.
_IMAGES = {"resnet50": 64, "resnet20": 500, "vit": 500}

#: Random images that a network with random weights is judged by.
_HELD_OUT = 32


def judged(case: Case, model: Path, held_out: Path | None) -> str:
    """Top-1 where there are labels, and the SQNR in dB of a quantized model."""
    from gpu_checks.resnet50 import random_images

    import trtint8

    labelled = held_out is not None
    accuracy = trtint8.validate(
        model,
        held_out if held_out else {case.input: random_images(_IMAGES[case.name] + _HELD_OUT)[-_HELD_OUT:]},
        reference=case.model,
        preprocessing=trtint8.Preprocessing(mean=MEAN, std=STD) if labelled else None,
        progress=False,
    )
    share, plain = accuracy.top1, accuracy.reference_top1
    top1 = f"{100 * share.value:.2f} % of {100 * plain.value:.2f} %, " if share and plain else ""
    return f"{top1}{accuracy.outputs[0].sqnr_db:.1f} dB"


def coverage(model: Path) -> str:
    """How many of the weighted layers run in INT8 in an engine of TensorRT for RTX."""
    import trtint8

    try:
        result = trtint8.build_int8_engine(
            model, None, model.with_suffix(".engine"), target="rtx", progress=False
        )
    except trtint8.TrtInt8Error as error:
        return str(error)
    return "not listed" if result.info.int8_layers is None else "{} of {}".format(*result.info.int8_layers)


def bench(case: Case, held_out: Path | None, tools: Sequence[str], repeat: int, peers: Path | None) -> None:
    """Prints the rows of one network."""
    images = _IMAGES[case.name]
    outputs = {tool: case.folder / f"{case.name}.{tool.replace(' ', '-')}.onnx" for tool in tools}
    samples = case.folder / f"{case.name}.npz"
    np.savez(samples, **{case.input: np.load(case.pool)[:images]})
    costs: dict[str, list[Cost]] = {tool: [] for tool in tools}
    for _ in range(repeat):
        for tool in tools:
            job = Job(os.fspath(case.model), os.fspath(samples), case.batch, os.fspath(outputs[tool]))
            cost = run(__file__, tool, job, peers)
            if isinstance(cost, str):
                print(f"  {tool}: failed ({cost[:150]})")
            else:
                costs[tool].append(cost)
    print(f"\n{case.name}, {images} calibration samples, medians of {repeat}")
    print(f"{'':18}{'processor s':>22}{'s':>8}{'MiB':>8}  {'layers in INT8':18}accuracy")
    for tool in tools:
        if not costs[tool]:
            continue
        processor, seconds, peak = (
            statistics.median(getattr(cost, field) for cost in costs[tool])
            for field in ("processor", "seconds", "peak")
        )
        each = [cost.processor for cost in costs[tool]]
        spent = f"{processor:.1f} ({min(each):.1f} to {max(each):.1f})"
        accuracy, built = judged(case, outputs[tool], held_out), coverage(outputs[tool])
        print(f"{tool:18}{spent:>22}{seconds:8.1f}{peak:8.0f}  {built:18}{accuracy}", flush=True)


def main() -> None:
    """Prints a table for every network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(_IMAGES), choices=list(_IMAGES))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peers", type=Path, help="a folder for an environment with Model Optimizer")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        work(_TOOLS, *options.child)
        return
    there = install(options.peers, ["modelopt"]) if options.peers else []
    tools = [tool for tool in _TOOLS if ENVIRONMENTS.get(tool) in (None, *there)]
    with tempfile.TemporaryDirectory() as name:
        for case, held_out in cases(Path(name), options.cases):
            bench(case, held_out, tools, options.repeat, options.peers)


if __name__ == "__main__":
    main()
