"""The models that calibration is measured on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

#: Random images that are fed in turn, so that data of any length takes the same memory.
_POOL = 64

#: Mean and standard deviation of each channel of the trained model's images.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Case:
    """A model, and its files in the benchmark's folder.

    Attributes:
        name: Name of the model and stem of its files.
        input: Name of the model's only input.
        batch: Images per batch.
        folder: The benchmark's folder.
    """

    name: str
    input: str
    batch: int
    folder: Path

    @property
    def model(self) -> Path:
        """The float model."""
        return self.folder / f"{self.name}.onnx"

    @property
    def exposed(self) -> Path:
        """The float model with the tensors that placement needs as outputs."""
        return self.folder / f"{self.name}.exposed.onnx"

    @property
    def pool(self) -> Path:
        """The images of calibration, as a .npy file: float32, shape (n, channels, height, width)."""
        return self.folder / f"{self.name}.npy"

    def feeds(self, images: int) -> Iterator[dict[str, np.ndarray]]:
        """Batches of images, beginning anew at the end of the pool."""
        pool = np.load(self.pool)
        for first in range(0, images, self.batch):
            rows = np.arange(first, min(first + self.batch, images)) % len(pool)
            yield {self.input: pool[rows]}


def cases(folder: Path, wanted: Sequence[str]) -> Iterator[tuple[Case, Path | None]]:
    """The cases that can be run here, with their files written; and held-out data, where there is any."""
    if "resnet50" in wanted:
        from gpu_checks.resnet50 import INPUT, random_images, resnet50

        case = Case("resnet50", INPUT, 8, folder)
        case.model.write_bytes(resnet50())
        np.save(case.pool, random_images(_POOL))
        _write_exposed(case)
        yield case, None
    trained, cifar = [name for name in wanted if name != "resnet50"], os.environ.get("TRTINT8_CIFAR10")
    if trained and not cifar:
        print(f"{', '.join(trained)} left out: the variable TRTINT8_CIFAR10 names no folder with the files")
    for name in trained if cifar else ():
        import trtint8

        files = Path(cifar or "")
        (given,) = trtint8.model_inputs(files / f"{name}.onnx")
        case = Case(name, given.name, 50, folder)
        case.model.write_bytes((files / f"{name}.onnx").read_bytes())
        images = np.load(files / "calibration.npz")["images"]
        pixels = ((images / np.float32(255) - np.float32(MEAN)) / np.float32(STD)).transpose(0, 3, 1, 2)
        np.save(case.pool, np.ascontiguousarray(pixels, np.float32))
        _write_exposed(case)
        yield case, files / "heldout.npz"


def _write_exposed(case: Case) -> None:
    """Writes the model that placement works on, with all tensors that it needs among the outputs."""
    from onnx import helper

    from trtint8.models.model import load_model, prepare
    from trtint8.models.serialization import to_proto
    from trtint8.quantization.placement import place

    prepared = prepare(load_model(case.model))
    model = to_proto(prepared.graph_model)
    present = {value.name for value in (*model.graph.input, *model.graph.output)}
    tensors = [name for name in place(prepared.graph_model).tensors if name not in present]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in tensors)
    case.exposed.write_bytes(model.SerializeToString())
