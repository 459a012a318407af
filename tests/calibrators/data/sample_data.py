"""Inputs, and data for them that tests know."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from calibrators.data.batches import Batches
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError
from tests.calibrators.specs import floats, integers

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
VECTOR = floats("x", "N", 3)
IMAGE = floats("x", "N", 3, "H", "W")
TOKENS = integers("ids", "N", 2)
RAW = Preprocessing(scale=1)
NO_PILLOW = "Pillow is not installed (pip install 'trtint8[images]')"


def vectors(count: int) -> np.ndarray:
    return np.arange(count * 3, dtype=np.float32).reshape(count, 3)


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def whole(batches: Batches, name: str = "x") -> np.ndarray:
    return np.concatenate([feed[name] for feed in batches])


def sizes(batches: Batches) -> list[int]:
    return [len(feed["x"]) for feed in batches]


def refused(data, match, inputs=(VECTOR,), **options):
    with pytest.raises(CalibrationDataError, match=match):
        list(open_batches(data, inputs, **options))


def save_images(folder: Path, names: list[str], size: tuple[int, int] = (4, 4)) -> np.ndarray:
    """Saves one lossless image per name; returns them NHWC."""
    image = pytest.importorskip("PIL.Image", reason=NO_PILLOW)
    folder.mkdir(exist_ok=True, parents=True)
    stack = pixels(len(names), *size, 3)
    for name, content in zip(names, stack, strict=True):
        image.fromarray(content).save(folder / name)
    return stack


def hide(monkeypatch, folder):
    """Makes a folder one that may not be listed; permissions do not bind every user who runs the tests."""
    scan = os.scandir

    def refuse(path):
        if Path(path) == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scan(path)

    monkeypatch.setattr("os.scandir", refuse)
