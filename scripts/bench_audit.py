#!/usr/bin/env python3
"""Audits models for several GPUs and prints the table of docs/audit.md.

    python scripts/bench_audit.py --gpu 'RTX 4090' --gpu A100 resnet50.onnx mobilenet_v2.onnx

Each model's table is the file of its name that ends in `.table.json`. Needs TensorRT for RTX and no GPU.
"""

import argparse
from pathlib import Path

import trtint8


def main() -> None:
    """Prints the table, and the verdicts below it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--gpu", action="append", required=True)
    options = parser.parse_args()
    print("| model | GPU | engine | kernels | requantization | MB | estimated time | speed to FP16 |")
    print("|---|---|---|---|---|---|---|---|")
    sentences = []
    for model in options.models:
        table = model.with_name(f"{model.stem}.table.json")
        for gpu in options.gpu:
            audit = trtint8.audit(model, table, gpu, target="rtx", progress=False)
            print(*_rows(model.stem, audit), sep="\n", flush=True)
            sentences.append(f"- {model.stem}: {audit.verdict}.")
    print("", *sentences, sep="\n")


def _rows(name: str, audit: trtint8.Audit) -> list[str]:
    """One row of the table per engine."""
    half = audit.engine("FP16").seconds or 0.0
    rows = []
    for engine in audit.engines:
        seconds, traffic = engine.seconds or 0.0, engine.traffic
        megabytes = f"{traffic.total / 1e6:.1f}" if traffic else ""
        requantizing = engine.part("requantization").kernels
        times = f"{1e3 * seconds:.3f} ms | {half / seconds:.2f}×"
        rows.append(
            f"| {name} | {audit.gpu.name} | {engine.precision} | {len(engine.kernels)} | {requantizing} | "
            f"{megabytes} | {times} |"
        )
    return rows


if __name__ == "__main__":
    main()
