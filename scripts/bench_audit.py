#!/usr/bin/env python3
"""Audits models for several GPUs and prints the figures of docs/audit.md.

    python scripts/bench_audit.py --gpu 'RTX 4090' --gpu A10 resnet50.onnx mobilenet_v2.onnx
    python scripts/bench_audit.py --gpu A10 --speed 5 resnet50.onnx    # what `tune --speed` finds

Each model's table is the file of its name that ends in `.table.json`. Needs TensorRT for RTX and no GPU.
"""

import argparse
from pathlib import Path

import trtint8
from calibrators.tables.table import CalibrationTable
from trtint8.auditing.audit import EstimatorOptions
from trtint8.auditing.gpus import find_gpu
from trtint8.models.model import load_float_model, prepare
from trtint8.tuning.journal import Journal, TimeLimit
from trtint8.tuning.speed import SpeedGoal, SpeedPlanner


def main() -> None:
    """Prints the table, and the verdicts below it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--gpu", action="append", required=True)
    parser.add_argument("--speed", type=float, metavar="MINUTES")
    options = parser.parse_args()
    if options.speed:
        _print_speed(options.models, options.gpu, options.speed)
        return
    columns = (
        "engine",
        "kernels",
        "requantization",
        "MB",
        "from memory",
        "from the L2 cache",
        "speed to FP16",
    )
    print(f"| model | GPU | {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|---|---|---|")
    sentences = []
    for model in options.models:
        table = model.with_name(f"{model.stem}.table.json")
        for gpu in options.gpu:
            audit = trtint8.audit(model, table, gpu, target="rtx", progress=False)
            print(*_rows(model.stem, audit), sep="\n", flush=True)
            sentences.append(f"- {model.stem}: {audit.verdict}.")
    print("", *sentences, sep="\n")


def _print_speed(models: list[Path], gpus: list[str], minutes: float) -> None:
    """One row per model and GPU: what the search for speed finds."""
    print("| model | GPU | all in FP16 | all in INT8 | found | layers in INT8 | engines built | complete |")
    print("|---|---|---|---|---|---|---|---|")
    for model in models:
        prepared = prepare(load_float_model(model))
        table = CalibrationTable.load(model.with_name(f"{model.stem}.table.json"))
        for gpu in gpus:
            goal = SpeedGoal(find_gpu(gpu), EstimatorOptions("rtx", progress=False))
            planner = SpeedPlanner(prepared, table, goal, Journal())
            plan = planner.search(TimeLimit(minutes))
            times = (plan.fp16_seconds, plan.int8_seconds, plan.seconds)
            cells = [model.stem, plan.gpu, *(f"{1e3 * seconds:.3f} ms" for seconds in times)]
            in_int8 = f"{len(planner.layers) - len(plan.keep_float)} of {len(planner.layers)}"
            cells += [in_int8, str(len(plan.trials)), "yes" if plan.complete else "no"]
            print(f"| {' | '.join(cells)} |", flush=True)


def _rows(name: str, audit: trtint8.Audit) -> list[str]:
    """One row of the table per engine, with the times of both ends."""
    half = audit.engine("FP16").ends or (0.0, 0.0)
    rows = []
    for engine in audit.engines:
        ends, traffic = engine.ends or (0.0, 0.0), engine.traffic
        megabytes = f"{traffic.total / 1e6:.1f}" if traffic else ""
        requantizing = engine.part("requantization").kernels
        times = " | ".join(f"{1e3 * seconds:.3f} ms" for seconds in ends)
        speeds = dict.fromkeys(f"{fp16 / seconds:.2f}×" for fp16, seconds in zip(half, ends, strict=True))
        rows.append(
            f"| {name} | {audit.gpu.name} | {engine.precision} | {len(engine.kernels)} | {requantizing} | "
            f"{megabytes} | {times} | {' to '.join(speeds)} |"
        )
    return rows


if __name__ == "__main__":
    main()
