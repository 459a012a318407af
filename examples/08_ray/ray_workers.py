"""Calibration and validation by several processes, here or on other machines, with the same result."""

from pathlib import Path

import trtint8
from trtint8.data import DEMO_MODEL, load_digits_split

OUTPUT = Path("example_output")


def main() -> None:
    """Calibrates and validates in one process and over Ray, and compares."""
    OUTPUT.mkdir(exist_ok=True)
    digits = load_digits_split()
    workers = trtint8.RayExecutor(workers=2)  # RayExecutor("HEAD:6379") for a cluster

    alone = trtint8.calibrate(DEMO_MODEL, digits.calibration_images, threads=1)
    table = trtint8.calibrate(DEMO_MODEL, digits.calibration_images, executor=workers)
    print("same ranges:", table.amax == alone.amax)
    table.save(OUTPUT / "digits.table.json")

    accuracy = trtint8.validate(
        trtint8.quantize(DEMO_MODEL, table),
        {"images": digits.heldout_images, "labels": digits.heldout_labels},
        reference=DEMO_MODEL,
        executor=workers,
    )
    print(f"top-1: FP32 {accuracy.reference_top1.value:.2%}, INT8 {accuracy.top1.value:.2%}")


if __name__ == "__main__":
    main()
