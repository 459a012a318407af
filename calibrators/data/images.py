"""Image files and resizing: the only file that needs Pillow, and only when it is called."""

from __future__ import annotations

import os
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from calibrators.errors import CalibrationDataError, UnsupportedError

#: File name endings that are taken as images, in lower case.
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm"})


def read_image(path: str | os.PathLike[str], *, grey: bool) -> NDArray[np.uint8]:
    """Decodes one image file.

    The pixels are taken as stored: an orientation tag is not applied, as in torchvision.

    Args:
        path: The file.
        grey: True for one channel, False for three (RGB). Transparency is dropped.

    Returns:
        uint8, shape (H, W, 1) or (H, W, 3).

    Raises:
        CalibrationDataError: The file cannot be decoded, or has more than 8 bits per channel.
        UnsupportedError: Pillow is not installed.
    """
    pillow = _pillow()
    try:
        with pillow.open(path) as image:
            mode = image.mode
            pixels = np.asarray(image.convert("L" if grey else "RGB"), np.uint8)
    except (OSError, SyntaxError, ValueError) as error:  # Pillow raises all three on damaged files
        raise CalibrationDataError(
            f"cannot read the image '{path}': {error}; replace or remove it"
        ) from error
    if mode.startswith(("I", "F")):  # convert() would clip these to 255 instead of scaling them
        raise CalibrationDataError(
            f"the image '{path}' has more than 8 bits per channel (mode {mode}); convert it to 8 bits first"
        )
    return pixels.reshape(*pixels.shape[:2], -1)


def resize_images(images: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Bilinear resize with antialiasing, as Pillow and torchvision do it.

    Args:
        images: uint8, shape (N, H, W, C) with C of 1 or 3.
        size: (height, width) of the result.

    Returns:
        uint8, shape (N, height, width, C).

    Raises:
        UnsupportedError: Pillow is not installed.
    """
    pillow = _pillow()
    height, width = size
    resized = np.empty((len(images), height, width, images.shape[3]), np.uint8)
    for source, target in zip(images, resized, strict=True):
        # Pillow has no (H, W, 1): a single channel goes in and comes out as (H, W).
        image = pillow.fromarray(source[..., 0] if source.shape[2] == 1 else source)
        pixels = np.asarray(image.resize((width, height), pillow.Resampling.BILINEAR))
        target[...] = pixels.reshape(target.shape)
    return resized


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError as error:
        raise UnsupportedError(
            'reading and resizing images needs Pillow; install it with pip install "trtint8[images]"'
        ) from error
    return Image
