"""The networks with data of their own: what accuracy is measured on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from calibrators.errors import TrtInt8Error
from gpu_checks import limits
from gpu_checks.checking import Check
from gpu_checks.records import Figure
from trtint8 import BuildOptions, BuildResult, Engine, ShapeRange
from trtint8.data import DEMO_MODEL, load_digits_split
from trtint8.engine.profiles import Profile
from trtint8.models.model import load_model
from trtint8.runtime.bench import bench_contexts

_CIFAR = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Subject:
    """A classifier, its calibration data and its held-out images.

    Attributes:
        name: "demo", "resnet20" or "resnet56".
        model: The FP32 model.
        inputs: What it takes: one input of images.
        calibration: What calibrators take.
        preprocessing: What ``calibration`` still needs.
        images: Held-out images as the model takes them, (N, C, H, W).
        labels: The classes of the images, (N,).
    """

    name: str
    model: Path
    inputs: tuple[InputSpec, ...]
    calibration: Any
    preprocessing: Preprocessing | None
    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    @property
    def input(self) -> str:
        """Its input's name."""
        return self.inputs[0].name

    @property
    def profiles(self) -> list[Profile]:
        """Batches from 1 to those that images are judged in."""
        shapes = (
            (batch, *self.images.shape[1:]) for batch in (1, limits.CALIBRATION_BATCH, limits.JUDGING_BATCH)
        )
        return [{self.input: ShapeRange(*shapes)}]

    @property
    def calibration_batches(self) -> int:
        """How many batches a calibrator has to read."""
        samples = open_batches(self.calibration, self.inputs, preprocessing=self.preprocessing).num_samples
        return (samples or 0) // limits.CALIBRATION_BATCH

    def feeds(self, batch: int) -> list[dict[str, NDArray[np.float32]]]:
        """The held-out images in batches; a last one that is not full is left out."""
        ends = range(batch, len(self.images) + 1, batch)
        return [{self.input: self.images[end - batch : end]} for end in ends]


def subjects(
    check: Check, table: str, names: Sequence[str] = ("resnet20", "demo", "resnet56")
) -> Iterator[Subject]:
    """The networks that can be had; for the others a record says why not."""
    for name in names:
        try:
            yield load_subject(name, check.settings.data)
        except TrtInt8Error as error:
            check.skip(table, name, str(error))
        except FileNotFoundError as error:
            check.skip(table, name, str(error.args[0]))


def load_subject(name: str, data: Path | None) -> Subject:
    """Loads a network with its data.

    Args:
        name: "demo", "resnet20" or "resnet56".
        data: The folder of the last two.

    Raises:
        FileNotFoundError: A file is missing; says which.
        TrtInt8Error: The model or the data cannot be used.
    """
    if name == "demo":
        digits = load_digits_split()
        inputs = load_model(DEMO_MODEL).inputs
        calibration = {inputs[0].name: digits.calibration_images}
        return Subject(
            name, DEMO_MODEL, inputs, calibration, None, digits.heldout_images, digits.heldout_labels
        )
    if data is None:
        raise FileNotFoundError("no --data was given")
    model, calibration_file, heldout = (data / f for f in (f"{name}.onnx", "calibration.npz", "heldout.npz"))
    for file in (model, calibration_file, heldout):
        if not file.is_file():
            raise FileNotFoundError(f"there is no {file.name} in the folder of --data")
    inputs = load_model(model).inputs
    batches = open_batches(heldout, inputs, batch_size=limits.JUDGING_BATCH, preprocessing=_CIFAR)
    images = np.concatenate([feed[inputs[0].name] for feed in batches])
    return Subject(name, model, inputs, calibration_file, _CIFAR, images, np.asarray(batches.labels))


def small_options(check: Check | None = None, **more: Any) -> BuildOptions:
    """How the small networks are built; with a check, all its builds share their timings."""
    settings: dict[str, Any] = {
        "tactic_sources": limits.TACTIC_SOURCES,
        "optimization_level": limits.SMALL_LEVEL,
        "timing_cache": check.timings if check else None,
    }
    return BuildOptions(**{**settings, **more})


def engine_logits(path: Path, subject: Subject) -> NDArray[np.float32]:
    """What an engine makes of all held-out images."""
    batch = limits.JUDGING_BATCH
    with Engine.load(path) as engine:
        output = engine.outputs[0].name
        parts = [subject.images[start : start + batch] for start in range(0, len(subject.images), batch)]
        return np.concatenate([engine.infer({subject.input: part})[output] for part in parts])


def judged(path: Path, subject: Subject, reference: NDArray[np.float32]) -> dict[str, Figure]:
    """An engine's accuracy, and how long the GPU computes.

    Args:
        path: The engine.
        subject: The network that the engine was built from.
        reference: FP32's logits.
    """
    figures: dict[str, Figure] = dict(scores(engine_logits(path, subject), subject.labels, reference))
    with Engine.load(path) as engine:
        for batch in limits.SMALL_BATCHES:
            report = bench_contexts(
                engine.new_context(),
                subject.feeds(batch)[0],
                name=subject.name,
                batch_size=batch,
                seconds=limits.MEASURE_SECONDS,
                warm_up=limits.WARM_UP_SECONDS,
                transfers=False,
            )
            figures[f"batch {batch}, ms"] = report.phases["compute"].median
    return figures


def int8_share(result: BuildResult) -> dict[str, Figure]:
    """How many weighted nodes run in INT8; not told of parts that TensorRT compiles as a whole."""
    share = result.info.int8_layers
    return {"in INT8": "not told" if share is None else f"{share[0]} of {share[1]}"}


def lost_at_most(figures: Mapping[str, Figure], points: float) -> bool:
    """Whether top-1 is at most that much below FP32's."""
    against = figures["against FP32, points"]
    return isinstance(against, float) and against >= -points


def scores(
    logits: NDArray[np.float32], labels: NDArray[np.int64], reference: NDArray[np.float32]
) -> dict[str, float]:
    """Accuracy in percent, and how it stands to FP32.

    Args:
        logits: (N, classes).
        labels: (N,).
        reference: FP32's logits.
    """
    classes, theirs = logits.argmax(1), reference.argmax(1)
    top1, fp32 = (100 * float((found == labels).mean()) for found in (classes, theirs))
    return {
        "top-1 %": top1,
        "against FP32, points": top1 - fp32,
        "same class as FP32 %": 100 * float((classes == theirs).mean()),
    }
