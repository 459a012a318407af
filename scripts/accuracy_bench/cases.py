"""The networks that accuracy is measured on, with their data and what they are judged by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import trtint8
from accuracy_bench import yolo_fastest
from calibrators.data.opening import DataSource
from trtint8.data import DEMO_MODEL, load_digits_split
from trtint8.validation.detection.boxes import Detections
from trtint8.validation.metrics import Metric

_CIFAR10 = trtint8.Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

#: Mean and standard deviation of the channels of ESPNet's images, in the order BGR that the files have too.
_ESPNET_MEAN = (72.39239876, 82.90891754, 73.15835921)
_ESPNET_STD = (45.3192215, 46.15289307, 44.91483307)


@dataclass(frozen=True)
class Case:
    """A network and its data.

    Attributes:
        name: The network's name.
        model: The float model.
        calibration: Calibration samples, with labels where there are some.
        held_out: The samples that results are judged by.
        metric: What the network is judged by.
        figure: What that is called in tables, with its unit.
        preprocessing: How the samples become what the network is fed; None where they are that already.
    """

    name: str
    model: Path
    calibration: DataSource
    held_out: DataSource
    metric: Metric
    figure: str
    preprocessing: trtint8.Preprocessing | None


def _digits(_folder: Path) -> Case:
    split = load_digits_split()
    calibration: dict[str, NDArray[Any]] = {
        "images": split.calibration_images,
        "labels": split.train_labels[: len(split.calibration_images)],
    }
    held_out: dict[str, NDArray[Any]] = {"images": split.heldout_images, "labels": split.heldout_labels}
    return Case(
        "digits",
        DEMO_MODEL,
        calibration,
        held_out,
        "top1",
        "top-1 in %",
        None,
    )


def _cifar10(name: str, folder: Path) -> Case:
    files = folder / "cifar10"
    return Case(
        name,
        files / f"{name}.onnx",
        files / "calibration.npz",
        files / "heldout.npz",
        "top1",
        "top-1 in %",
        _CIFAR10,
    )


def _task(
    name: str, metric: Metric, figure: str, preprocessing: trtint8.Preprocessing | None, folder: Path
) -> Case:
    model, calibration, held_out = (
        folder / "tasks" / f"{name}.{end}" for end in ("onnx", "calib.npz", "held.npz")
    )
    return Case(name, model, calibration, held_out, metric, figure, preprocessing)


def _yolofastest(folder: Path) -> Case:
    metric = trtint8.DetectionAgreement(yolo_fastest.decode, score=0.3, iou=0.5)
    return _task("yolofastest", metric, "F1 in %", trtint8.Preprocessing(), folder)


def _espnet(folder: Path) -> Case:
    mean = tuple(value / 255 for value in _ESPNET_MEAN)
    preprocessing = trtint8.Preprocessing(mean=mean, std=_ESPNET_STD)
    return _task("espnet", "pixels", "pixels in %", preprocessing, folder)


def _real(name: str, metric: Metric, figure: str, held_out: DataSource | None, folder: Path) -> Case:
    files = folder / "real" / name
    return Case(
        name,
        files / "model.onnx",
        files / "calib.npz",
        files / "held.npz" if held_out is None else held_out,
        metric,
        figure,
        None,
    )


#: Positions with a higher score are minutiae of a fingerprint; two that are closer than this are the same.
_MINUTIA_SCORE, _MINUTIA_PIXELS = 0.55, 6


def _minutiae(outputs: Mapping[str, NDArray[Any]]) -> list[Detections]:
    """The minutiae of every print, each as a square whose overlap with another one says how close they are.

    Args:
        outputs: ``head_conc``, float32 of shape (N, rows, columns, 4), whose last channel holds scores.
    """
    found = []
    for scores in outputs["head_conc"][..., 3]:
        centers = np.argwhere(scores > _MINUTIA_SCORE)[:, ::-1]
        boxes = np.concatenate([centers - _MINUTIA_PIXELS, centers + _MINUTIA_PIXELS], axis=1)
        chosen = scores[scores > _MINUTIA_SCORE].astype(np.float64)
        found.append(Detections(boxes.astype(np.float64), chosen, np.zeros(len(boxes))))
    return found


def _leader(folder: Path) -> Case:
    # Squares of 12 pixels that are 6 apart along one axis share a third of what both cover.
    metric = trtint8.DetectionAgreement(_minutiae, score=_MINUTIA_SCORE, iou=1 / 3)
    return _real("leader", metric, "F1 in %", None, folder)


def _srx2(folder: Path) -> Case:
    held_out: DataSource | None = None
    files = [folder / "real" / "srx2" / name for name in ("held.npz", "truth.npz")]
    if all(file.exists() for file in files):
        images, truth = (np.load(file) for file in files)
        held_out = {"image": images["image"], "labels": truth["hr"].astype(np.float32) / 255}
    return _real("srx2", "psnr", "PSNR in dB", held_out, folder)


#: Name of each network to what makes its case from the folder of the data.
CASES: dict[str, Callable[[Path], Case]] = {
    "digits": _digits,
    "resnet20": lambda folder: _cifar10("resnet20", folder),
    "resnet56": lambda folder: _cifar10("resnet56", folder),
    "vit": lambda folder: _cifar10("vit", folder),
    "yolofastest": _yolofastest,
    "espnet": _espnet,
    "vdsr": lambda folder: _task("vdsr", "psnr_pooled", "PSNR in dB", None, folder),
    "crepe": lambda folder: _real("crepe", "agreement", "same pitch in %", None, folder),
    "leader": _leader,
    "srx2": _srx2,
}


def open_cases(folder: Path, names: Sequence[str]) -> Iterator[Case]:
    """The networks whose files are there; says which are left out.

    Args:
        folder: Has the folders ``cifar10``, with ``NAME.onnx``, ``calibration.npz`` and ``heldout.npz``;
            ``tasks``, with ``NAME.onnx``, ``NAME.calib.npz`` and ``NAME.held.npz``; and ``real``, with
            ``NAME/model.onnx``, ``NAME/calib.npz`` and ``NAME/held.npz``.
        names: Names of networks.
    """
    for name in names:
        case = CASES[name](folder)
        files = [file for file in (case.model, case.calibration, case.held_out) if isinstance(file, Path)]
        if missing := [file for file in files if not file.exists()]:
            print(f"{name} is left out, because there is no file '{missing[0]}'.")
        else:
            yield case


def sample_count(data: DataSource) -> int:
    """Number of samples of an .npz file or of a dictionary of arrays."""
    arrays: Any = np.load(data) if isinstance(data, Path) else data
    return len(arrays[next(iter(arrays))])
