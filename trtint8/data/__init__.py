"""The demo: a small digit classifier and the images on which it was trained, calibrated and evaluated.

The model is ``digits.onnx``, made by ``scripts/train_demo_model.py``; the images are those of scikit-learn.
The split is fixed, so that the held-out images are never used in training or calibration.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibrators.data.feeds import Array, Float32s, Ints
from calibrators.errors import UnsupportedError
from calibrators.imports import install_command

DEMO_MODEL: Path = Path(__file__).with_name("digits.onnx")
"""The classifier: ``images`` (batch, 1, 8, 8) to ``logits`` (batch, 10), float32."""

SPLIT_SEED = 20240
"""The seed of the permutation that separates training and held-out images."""

CALIBRATION_COUNT = 500
"""Number of training images that are used for calibration."""

HELDOUT_COUNT = 597
"""Number of images that are used neither in training nor in calibration."""

PIXEL_MAX = 16.0
"""The largest grey level in the data set."""

PIXEL_MEAN = 0.305
"""Mean of the training pixels after scaling to 0..1."""

PIXEL_STD = 0.376
"""Standard deviation of the training pixels after scaling to 0..1."""


@dataclass(frozen=True)
class DigitsSplit:
    """The digits, normalized for the demo model; images have shape (N, 1, 8, 8), labels (N,).

    Attributes:
        train_images: The images on which the model was trained, float32.
        train_labels: The digits on the training images, int64.
        calibration_images: The first ``CALIBRATION_COUNT`` training images, float32.
        heldout_images: The images on which the model was not trained, float32.
        heldout_labels: The digits on the held-out images, int64.
    """

    train_images: Float32s
    train_labels: Ints
    calibration_images: Float32s
    heldout_images: Float32s
    heldout_labels: Ints


def load_digits_split() -> DigitsSplit:
    """Load the digits and split them the way the demo model was trained.

    Returns:
        The same arrays on every call and every machine.

    Raises:
        UnsupportedError: scikit-learn, which contains the images, is not installed.
    """
    images, labels = _load_digits()
    # RandomState, not default_rng: NumPy guarantees that its numbers never change between versions.
    order = np.random.RandomState(SPLIT_SEED).permutation(len(images))
    train, heldout = order[:-HELDOUT_COUNT], order[-HELDOUT_COUNT:]
    return DigitsSplit(
        train_images=images[train],
        train_labels=labels[train],
        calibration_images=images[train[:CALIBRATION_COUNT]],
        heldout_images=images[heldout],
        heldout_labels=labels[heldout],
    )


def normalize(pixels: Array) -> Float32s:
    """Scale grey levels of 0..16, of any shape, to the range that the demo model expects."""
    return ((pixels.astype(np.float32) / PIXEL_MAX - PIXEL_MEAN) / PIXEL_STD).astype(np.float32)


def _load_digits() -> tuple[Float32s, Ints]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UnsupportedError(
            f"the demo digits come with scikit-learn, which is not installed: {install_command('demo')}"
        ) from error
    digits = load_digits()
    return normalize(digits.images[:, np.newaxis]), digits.target.astype(np.int64)
