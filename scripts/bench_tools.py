"""What a float ONNX model costs to bring into INT8 with trtint8 and with other tools, in one run.

python scripts/bench_tools.py --peers FOLDER                        # Model Optimizer too, installed there
TRTINT8_CIFAR10=FOLDER python scripts/bench_tools.py --peers FOLDER # and trained networks, with their top-1

Every tool gets the same file and the same calibration samples, and writes a model with Q/DQ pairs by its
defaults. It does so in a process of its own, and tools take turns. Seconds are processor time (user and
system), which other programs disturb less; the wall clock stands behind. MiB is the peak of the process. Both
contain the import of the tool. Each model is judged by `trtint8.validate` on samples that it was not
calibrated with, and built with TensorRT for RTX, which says how many weighted layers run in INT8.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from calibration_bench.cases import MEAN, STD, Case, cases
from calibration_bench.tools import install
from process_memory import peak_mib

import calibrators  # noqa: F401  # turns off what ONNX Runtime would send


def _with_trtint8(case: Case, images: int, output: Path) -> None:
    import onnx

    import trtint8

    table = trtint8.calibrate(case.model, lambda: case.feeds(images), tensors="placed", progress=False)
    onnx.save(trtint8.quantize(case.model, table), output)


def _with_onnx_runtime(case: Case, images: int, output: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._feeds = case.feeds(images)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._feeds, None)

    # What TensorRT takes: symmetric INT8, and biases in float. The rest are its defaults.
    quantize_static(
        case.model,
        output,
        Reader(),
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        extra_options={"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False},
    )


def _with_model_optimizer(case: Case, images: int, output: Path) -> None:
    from modelopt.onnx.quantization import quantize

    samples = np.concatenate([feed[case.input] for feed in case.feeds(images)])
    quantize(
        os.fspath(case.model),
        quantize_mode="int8",
        calibration_data={case.input: samples},
        calibration_eps=["cpu"],
        output_path=os.fspath(output),
        high_precision_dtype="fp32",  # the others leave the rest in FP32, too
    )


#: Name of each tool to what quantizes with it, and its environment in the folder of peers; "" is this one.
_TOOLS: dict[str, tuple[Callable[[Case, int, Path], None], str]] = {
    "trtint8": (_with_trtint8, ""),
    "ONNX Runtime": (_with_onnx_runtime, ""),
    "Model Optimizer": (_with_model_optimizer, "modelopt"),
}

#: Calibration samples of each network.
_IMAGES = {"resnet50": 64, "resnet20": 500, "vit": 500}

#: Random images that a network with random weights is judged by.
_HELD_OUT = 32


@dataclass(frozen=True)
class Cost:
    """What one run took: processor seconds, seconds and the peak in MiB."""

    processor: float
    seconds: float
    peak: float


def run(tool: str, case: Case, images: int, output: Path, peers: Path | None) -> Cost | None:
    """Quantizes with a tool in a process of its own; None where it fails, which is printed."""
    environment = _TOOLS[tool][1]
    python = os.fspath(peers / environment / "bin" / "python") if peers and environment else sys.executable
    command = [python, __file__, "--child", tool, "--case", case.name, "--input", case.input]
    command += ["--batch", str(case.batch), "--folder", os.fspath(case.folder)]
    command += ["--images", str(images), "--output", os.fspath(output)]
    begun = time.perf_counter()
    before = os.times()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = os.times()
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"signal {-done.returncode}"])[-1]
        print(f"  {tool}: failed ({reason[:150]})")
        return None
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(processor, time.perf_counter() - begun, float(done.stdout.split()[-1]))


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
    costs: dict[str, list[Cost]] = {tool: [] for tool in tools}
    for _ in range(repeat):
        for tool in tools:
            cost = run(tool, case, images, outputs[tool], peers)
            costs[tool] += [cost] if cost else []
    print(f"\n{case.name}, {images} calibration samples, medians of {repeat}")
    print(f"{'':18}{'processor s':>12}{'s':>8}{'MiB':>8}  {'layers in INT8':18}accuracy")
    for tool in tools:
        if not costs[tool]:
            continue
        processor, seconds, peak = (
            statistics.median(getattr(cost, field) for cost in costs[tool])
            for field in ("processor", "seconds", "peak")
        )
        accuracy, built = judged(case, outputs[tool], held_out), coverage(outputs[tool])
        print(f"{tool:18}{processor:12.1f}{seconds:8.1f}{peak:8.0f}  {built:18}{accuracy}", flush=True)


def main() -> None:
    """Prints a table for every network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(_IMAGES), choices=list(_IMAGES))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peers", type=Path, help="a folder for an environment with Model Optimizer")
    for name, kind in {"child": str, "case": str, "input": str, "batch": int, "images": int}.items():
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    for name in ("folder", "output"):
        parser.add_argument(f"--{name}", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        case = Case(options.case, options.input, options.batch, options.folder)
        _TOOLS[options.child][0](case, options.images, options.output)
        print(peak_mib())
        return
    there = {"", *(install(options.peers, ["modelopt"]) if options.peers else [])}
    tools = [tool for tool, (_, environment) in _TOOLS.items() if environment in there]
    with tempfile.TemporaryDirectory() as name:
        for case, held_out in cases(Path(name), options.cases):
            bench(case, held_out, tools, options.repeat, options.peers)


if __name__ == "__main__":
    main()
