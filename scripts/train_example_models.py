"""Trains the small networks of ``examples`` and writes them with their samples.

A detector and a segmentation network for scenes of handwritten digits, and a vision transformer for single
digits. Each takes some minutes on the CPU. The samples are uint8 images, as cameras and files give them.

Needs ``pip install -e ".[demo]" torch onnxscript``. Run from the repository root:

    python scripts/train_example_models.py
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from trtint8.data import PIXEL_MEAN, PIXEL_STD, load_digits_split

EXAMPLES = Path(__file__).parents[1] / "examples"
OPSET = 17
SIZE = 32
STRIDE = 4
CLASSES = 10
MOST_DIGITS = 3
CALIBRATION, HELDOUT = 64, 128


@dataclass(frozen=True)
class Scenes:
    """Images with a few digits on each.

    Attributes:
        images: (N, 32, 32, 1) uint8.
        boxes: (N, 3, 4) float32, x1, y1, x2, y2 in pixels; zero where there are fewer digits.
        classes: (N, 3) int64; -1 where there are fewer digits.
        maps: (N, 32, 32) int64, 0 for the background and 1 to 10 for the digits.
    """

    images: NDArray[np.uint8]
    boxes: NDArray[np.float32]
    classes: NDArray[np.int64]
    maps: NDArray[np.int64]


def grey_levels(normalized: NDArray[np.float32]) -> NDArray[np.float32]:
    """The pixels of the demo's images, in 0 to 1."""
    return np.clip(normalized[:, 0] * PIXEL_STD + PIXEL_MEAN, 0, 1)


def make_scenes(
    digits: NDArray[np.float32], labels: NDArray[np.int64], count: int, random: np.random.Generator
) -> Scenes:
    """Places up to three digits of 8 to 14 pixels on noise, without overlap."""
    images = np.zeros((count, SIZE, SIZE, 1), np.uint8)
    boxes = np.zeros((count, MOST_DIGITS, 4), np.float32)
    classes = np.full((count, MOST_DIGITS), -1, np.int64)
    maps = np.zeros((count, SIZE, SIZE), np.int64)
    for scene in range(count):
        canvas = random.uniform(0, 0.25, (SIZE, SIZE)).astype(np.float32)
        taken = np.zeros((SIZE, SIZE), bool)
        placed = 0
        for _ in range(random.integers(1, MOST_DIGITS + 1)):
            size = int(random.integers(8, 15))
            x, y = random.integers(0, SIZE - size + 1, 2)
            if taken[y : y + size, x : x + size].any():
                continue
            which = random.integers(len(digits))
            source = torch.from_numpy(digits[which])[None, None]
            scaled = functional.interpolate(source, (size, size), mode="bilinear")[0, 0].numpy()
            window = canvas[y : y + size, x : x + size]
            np.maximum(window, scaled, out=window)
            taken[y : y + size, x : x + size] = True
            maps[scene, y : y + size, x : x + size][scaled > 0.4] = labels[which] + 1
            boxes[scene, placed] = x, y, x + size, y + size
            classes[scene, placed] = labels[which]
            placed += 1
        images[scene, :, :, 0] = np.rint(canvas * 255)
    return Scenes(images, boxes, classes, maps)


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """Convolution, normalization and Relu."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class Detector(nn.Sequential):
    """(N, 1, 32, 32) to (N, 14, 8, 8): per cell a score, the centre, the size, and scores of the classes."""

    def __init__(self) -> None:
        super().__init__(
            block(1, 16), block(16, 24, 2), block(24, 24), block(24, 40, 2), block(40, 40), block(40, 40)
        )
        self.append(nn.Conv2d(40, 4 + CLASSES, 1))

    def loss(self, cells: Tensor, scenes: Scenes) -> Tensor:
        """Of the score for every cell; of the rest for cells with the centre of a digit."""
        wanted = torch.zeros(len(cells), SIZE // STRIDE, SIZE // STRIDE)
        scene, place = np.nonzero(scenes.classes >= 0)
        boxes = torch.from_numpy(scenes.boxes[scene, place])
        centre, size = (boxes[:, :2] + boxes[:, 2:]) / 2 / STRIDE, (boxes[:, 2] - boxes[:, 0]) / STRIDE
        column, row = centre.long().unbind(1)
        wanted[scene, row, column] = 1
        found = cells[scene, :, row, column]
        return (
            functional.binary_cross_entropy_with_logits(cells[:, 0], wanted, reduction="sum") / len(scene)
            + functional.smooth_l1_loss(found[:, 1:3], centre - centre.floor())
            + functional.smooth_l1_loss(found[:, 3], size)
            + functional.cross_entropy(found[:, 4:], torch.from_numpy(scenes.classes[scene, place]))
        )


class Segmentation(nn.Module):
    """(N, 1, 32, 32) to (N, 11, 32, 32), class scores of each pixel; half the resolution in between."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = block(1, 16), nn.Sequential(block(16, 32, 2), block(32, 32), block(32, 32))
        self.deep = nn.Sequential(block(32, 48, 2), block(48, 48), block(48, 32))
        self.joined, self.head = block(32 + 32 + 16, 24), nn.Conv2d(24, 1 + CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        """The class scores."""
        fine = self.fine(images)
        coarse = self.coarse(fine)
        deep = functional.interpolate(self.deep(coarse), scale_factor=4.0, mode="nearest")
        coarse = functional.interpolate(coarse, scale_factor=2.0, mode="nearest")
        return self.head(self.joined(torch.cat([deep, coarse, fine], 1)))

    def loss(self, scores: Tensor, scenes: Scenes) -> Tensor:
        """Cross entropy; pixels of digits count as much as the background."""
        weights = torch.tensor([0.2] + [1.0] * CLASSES)
        return functional.cross_entropy(scores, torch.from_numpy(scenes.maps), weights)


class Layer(nn.Module):
    """Attention and a feed-forward part, each behind a normalization and beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(N, tokens, width) to the same shape."""
        tokens, width = x.shape[1:]
        qkv = self.qkv(self.before_attention(x)).reshape(-1, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5).softmax(-1)
        x = x + self.projection((weights @ v).transpose(1, 2).reshape(-1, tokens, width))
        return x + self.mlp(self.before_mlp(x))


class Transformer(nn.Module):
    """(N, 1, 8, 8) to (N, 10): a vision transformer with patches of 2 x 2."""

    def __init__(self, width: int = 48, heads: int = 4, layers: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.position = nn.Parameter(torch.randn(1, 16, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """The logits."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.layers(x)).mean(1))


def train_scenes(network: Detector | Segmentation, epochs: int, random: np.random.Generator) -> None:
    """Trains on new scenes in every epoch."""
    split = load_digits_split()
    digits = grey_levels(split.train_images)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, epochs * 8)
    for epoch in range(epochs):
        for _ in range(8):
            scenes = make_scenes(digits, split.train_labels, 64, random)
            loss = network.loss(network(as_input(scenes.images)), scenes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        if epoch % 20 == 19:
            print(f"  epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)


def train_transformer(network: Transformer, epochs: int, random: np.random.Generator) -> None:
    """Trains on single digits, shifted by up to a pixel."""
    split = load_digits_split()
    images = torch.from_numpy(grey_levels(split.train_images))[:, None]
    labels = torch.from_numpy(split.train_labels)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, epochs * (len(images) // 64))
    for epoch in range(epochs):
        for picked in torch.from_numpy(random.permutation(len(images))).split(64):
            if len(picked) < 64:
                continue
            rows, columns = random.integers(-1, 2, 2)
            batch = torch.roll(images[picked], (int(rows), int(columns)), (2, 3))
            loss = functional.cross_entropy(network(batch), labels[picked], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        if epoch % 20 == 19:
            print(f"  epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)


def as_input(images: NDArray[np.uint8]) -> Tensor:
    """What the networks take: (N, 1, height, width) in 0 to 1."""
    return torch.from_numpy(images.transpose(0, 3, 1, 2).astype(np.float32) / 255)


def export(network: nn.Module, size: int, output: str, path: Path) -> None:
    """Writes the network as ONNX, with a free number of samples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network.eval(),
            (torch.rand(2, 1, size, size),),
            path,
            input_names=["images"],
            output_names=[output],
            dynamic_axes={"images": {0: "batch"}, output: {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,
        )
    model = onnx.load(path)
    model.doc_string = "Made by scripts/train_example_models.py"
    onnx.save(model, path)


def main() -> None:
    """Trains the three networks."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    split = load_digits_split()
    calibration = make_scenes(grey_levels(split.train_images), split.train_labels, CALIBRATION, random)
    heldout = make_scenes(grey_levels(split.heldout_images), split.heldout_labels, HELDOUT, random)

    print("detector")
    detector, folder = Detector(), EXAMPLES / "03_detector"
    train_scenes(detector, 150, random)
    export(detector, SIZE, "cells", folder / "detector.onnx")
    np.savez_compressed(folder / "calibration.npz", images=calibration.images)
    np.savez_compressed(folder / "heldout.npz", images=heldout.images)
    np.savez_compressed(folder / "truth.npz", boxes=heldout.boxes, classes=heldout.classes)

    print("segmentation")
    segmentation, folder = Segmentation(), EXAMPLES / "04_segmentation"
    train_scenes(segmentation, 150, random)
    export(segmentation, SIZE, "classes", folder / "segmentation.onnx")
    np.savez_compressed(folder / "calibration.npz", images=calibration.images)
    np.savez_compressed(folder / "heldout.npz", images=heldout.images, labels=heldout.maps)

    print("transformer")
    transformer, folder = Transformer(), EXAMPLES / "05_transformer"
    train_transformer(transformer, 120, random)
    export(transformer, 8, "logits", folder / "transformer.onnx")
    for name, images, labels in (
        ("calibration", split.calibration_images, None),
        ("heldout", split.heldout_images, split.heldout_labels),
    ):
        arrays = {"images": np.rint(grey_levels(images) * 255).astype(np.uint8)[..., None]}
        if labels is not None:
            arrays["labels"] = labels
        np.savez_compressed(folder / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main()
