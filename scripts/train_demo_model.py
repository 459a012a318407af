"""Train the demo's digit classifier and export it to ONNX.

A residual CNN of some 60,000 weights learns scikit-learn's handwritten digits on the CPU in about a minute.
The exported graph keeps its BatchNormalization nodes: folding them is the package's work, not the exporter's.

Needs ``pip install -e ".[demo]" torch``. Run from the repository root:

    python scripts/train_demo_model.py
"""

from __future__ import annotations

import argparse
import io
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from trtint8.data import DEMO_MODEL, DigitsSplit, load_digits_split

OPSET = 17
NARROW, WIDE = 24, 40
CLASSES = 10
BATCH_SIZE = 64
PEAK_LEARNING_RATE = 0.1
WEIGHT_DECAY = 5e-4
LABEL_SMOOTHING = 0.05


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut; the shortcut is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential()
            self.shortcut.add_module("conv", nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False))
            self.shortcut.add_module("bn", nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, (batch, outputs, height / stride, width / stride)."""
        shortcut = x if self.shortcut is None else self.shortcut(x)
        x = self.relu1(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        return self.relu2(x + shortcut)


class DigitsNet(nn.Module):
    """Maps (batch, 1, 8, 8) images to (batch, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential()
        self.stem.add_module("conv", nn.Conv2d(1, NARROW, 3, padding=1, bias=False))
        self.stem.add_module("bn", nn.BatchNorm2d(NARROW))
        self.stem.add_module("relu", nn.ReLU())
        self.block1 = ResidualBlock(NARROW, NARROW)
        self.block2 = ResidualBlock(NARROW, WIDE, stride=2)
        self.block3 = ResidualBlock(WIDE, WIDE)
        self.maxpool = nn.MaxPool2d(2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(WIDE, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        x = self.block3(self.block2(self.block1(self.stem(images))))
        return self.fc(self.flatten(self.avgpool(self.maxpool(x))))


def shift_randomly(images: Tensor, generator: torch.Generator) -> Tensor:
    """Move each image by up to one pixel in each direction, filling with the background."""
    background = images.min().item()
    padded = functional.pad(images, (1, 1, 1, 1), value=background)
    count, _, height, width = images.shape
    top, left = torch.randint(0, 3, (2, count, 1, 1), generator=generator)
    rows = top + torch.arange(height).view(1, height, 1)
    columns = left + torch.arange(width).view(1, 1, width)
    return padded[torch.arange(count).view(count, 1, 1), 0, rows, columns].unsqueeze(1)


def train(split: DigitsSplit, epochs: int, seed: int) -> DigitsNet:
    """Train a network on the split's training images; on one machine, the same seed gives the same weights.

    Args:
        split: The digits.
        epochs: Passes over the training images.
        seed: Seeds the initial weights, the order of the images and their shifts.

    Returns:
        The network, in evaluation mode.
    """
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # sums in one order, whatever the machine's core count
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)

    images, labels = torch.from_numpy(split.train_images), torch.from_numpy(split.train_labels)
    network = DigitsNet().train()
    optimizer = torch.optim.SGD(
        network.parameters(), lr=PEAK_LEARNING_RATE, momentum=0.9, nesterov=True, weight_decay=WEIGHT_DECAY
    )
    steps_per_epoch = -(-len(images) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=PEAK_LEARNING_RATE, epochs=epochs, steps_per_epoch=steps_per_epoch
    )
    for epoch in range(epochs):
        total = 0.0
        for batch in torch.randperm(len(images), generator=generator).split(BATCH_SIZE):
            logits = network(shift_randomly(images[batch], generator))
            loss = functional.cross_entropy(logits, labels[batch], label_smoothing=LABEL_SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(batch)
        if (epoch + 1) % 10 == 0 or epoch + 1 == epochs:
            print(f"epoch {epoch + 1:3d}/{epochs}: loss {total / len(images):.4f}")
    return network.eval()


def export(network: DigitsNet) -> onnx.ModelProto:
    """Export the network in evaluation mode, with BatchNormalization nodes and a dynamic batch.

    Args:
        network: The trained network.

    Returns:
        A checked model.
    """
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # The TorchScript exporter is deprecated, but the only one that writes opset 17 without converting.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            network,
            (torch.zeros(2, 1, 8, 8),),
            buffer,
            dynamo=False,
            opset_version=OPSET,
            input_names=["images"],
            output_names=["logits"],
            dynamic_axes={"images": {0: "batch"}, "logits": {0: "batch"}},
            do_constant_folding=False,
            # EVAL would fuse BatchNorm into Conv; PRESERVE keeps it, and the network is in eval mode already.
            training=torch.onnx.TrainingMode.PRESERVE,
        )
    model = onnx.load_model_from_string(buffer.getvalue())
    model.graph.name = "digits"
    model.doc_string = model.graph.doc_string = ""
    for node in model.graph.node:
        node.doc_string = ""
    unshare_initializers(model.graph)
    onnx.checker.check_model(model, full_check=True)
    return model


def unshare_initializers(graph: onnx.GraphProto) -> None:
    """Undo the exporter's merging of equal parameters: each Identity of an initializer becomes its own copy.

    Two BatchNormalizations that end in the same Add learn the same bias, which the exporter stores only once.
    """
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    for node in list(graph.node):
        if node.op_type == "Identity" and node.input[0] in initializers:
            copy = graph.initializer.add()
            copy.CopyFrom(initializers[node.input[0]])
            copy.name = node.output[0]
            graph.node.remove(node)


def top1(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Return the percentage of rows whose largest logit is at the label."""
    return 100.0 * float(np.mean(logits.argmax(axis=1) == labels))


def heldout_top1(model: onnx.ModelProto, network: DigitsNet, split: DigitsSplit) -> tuple[float, str]:
    """Return the held-out top-1 in percent and what computed it: ONNX Runtime, or else PyTorch."""
    try:
        import onnxruntime
    except ImportError:
        with torch.no_grad():
            logits = network(torch.from_numpy(split.heldout_images)).numpy()
        return top1(logits, split.heldout_labels), "PyTorch"
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"images": split.heldout_images})
    return top1(logits, split.heldout_labels), "ONNX Runtime"


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train the demo's digit classifier and export it to ONNX.")
    parser.add_argument("--output", type=Path, default=DEMO_MODEL, help="file to write (%(default)s)")
    parser.add_argument("--epochs", type=int, default=60, help="passes over the data (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the training (%(default)s)")
    return parser.parse_args()


def main() -> None:
    """Train, export, and print what came out."""
    arguments = parse_arguments()
    split = load_digits_split()
    network = train(split, arguments.epochs, arguments.seed)
    model = export(network)
    onnx.save_model(model, arguments.output)

    accuracy, runtime = heldout_top1(model, network, split)
    weights = sum(parameter.numel() for parameter in network.parameters())
    print(f"{arguments.output}: {weights:,} parameters, {arguments.output.stat().st_size:,} bytes")
    print(f"held-out top-1 ({runtime}, {len(split.heldout_labels)} images): {accuracy:.2f} %")


if __name__ == "__main__":
    main()
