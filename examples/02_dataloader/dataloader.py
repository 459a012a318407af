"""Calibration and validation with PyTorch's DataLoader, labels included."""

from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

import trtint8
from trtint8.data import DEMO_MODEL, load_digits_split

OUTPUT = Path("example_output")


class Digits(Dataset):
    """Handwritten digits, in the form of torchvision's datasets: an image and its label."""

    def __init__(self, images, labels, transform=None) -> None:
        self.images, self.labels, self.transform = torch.from_numpy(images), labels, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int):
        image = self.images[index]
        return (self.transform(image) if self.transform else image), int(self.labels[index])


def main() -> None:
    """Builds an engine with one loader and validates it with another one."""
    OUTPUT.mkdir(exist_ok=True)
    digits = load_digits_split()
    # Calibrate with the transform of validation, not with random crops and flips.
    calibration = DataLoader(Digits(digits.train_images[:500], digits.train_labels), batch_size=50)
    heldout = DataLoader(Digits(digits.heldout_images, digits.heldout_labels), batch_size=50)

    # INT8 gains nothing in a network as small as this one. Without keep_int8 its layers would stay in FP16.
    result = trtint8.build_int8_engine(DEMO_MODEL, calibration, OUTPUT / "digits.engine", keep_int8=["*"])
    accuracy = trtint8.validate(result.engine, heldout, reference=DEMO_MODEL)
    print("calibrated on", result.table.provenance.samples, "samples")
    print(f"top-1: FP32 {accuracy.reference_top1.value:.2%}, INT8 {accuracy.top1.value:.2%}")


if __name__ == "__main__":
    main()
