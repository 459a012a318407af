"""Images among a model's inputs, as pictures for a page."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from calibrators.data.feeds import is_float
from calibrators.data.images.preprocessing import Preprocessing

#: Longest side of a picture in a page, in pixels; larger pictures are reduced.
LONGEST = 160


def pixels(array: NDArray[Any], preprocessing: Preprocessing | None) -> NDArray[np.uint8] | None:
    """Converts a model's input back to pictures, by undoing its preprocessing.

    Args:
        array: A batch of shape (N, C, H, W) or (N, H, W, C), with C of 1 or 3.
        preprocessing: The preprocessing of the images. None where it is not known; then the values of each
            picture are scaled linearly to the range 0 to 255.

    Returns:
        RGB or grey pictures, uint8 of shape (N, H, W, C); None where the array is no batch of images.
    """
    if array.ndim != 4:
        return None
    images = _channels_last(array, preprocessing)
    if images is None:
        return None
    if images.dtype == np.uint8:
        return images
    if preprocessing is None or not is_float(images.dtype):
        return _scale_to_bytes(images.astype(np.float64))
    mean, std = np.array(preprocessing.mean), np.array(preprocessing.std)
    values = (images.astype(np.float64) * std + mean) / preprocessing.scale
    if preprocessing.channels == "BGR":
        values = values[..., ::-1]
    return _round_to_bytes(values)


def data_uri(picture: NDArray[np.uint8]) -> str:
    """Encodes a picture as a PNG in a ``data:`` URI.

    Args:
        picture: The picture, uint8 of shape (H, W, 1) or (H, W, 3).
    """
    image = Image.fromarray(picture[..., 0] if picture.shape[2] == 1 else picture)
    image.thumbnail((LONGEST, LONGEST))
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def _channels_last(array: NDArray[Any], preprocessing: Preprocessing | None) -> NDArray[Any] | None:
    if preprocessing is not None:
        first = preprocessing.layout == "NCHW" and array.dtype != np.uint8
    else:
        first = array.shape[1] in (1, 3)
    images = array.transpose(0, 2, 3, 1) if first else array
    return images if images.shape[3] in (1, 3) else None


def _scale_to_bytes(images: NDArray[np.float64]) -> NDArray[np.uint8]:
    low = images.min(axis=(1, 2, 3), keepdims=True)
    width = images.max(axis=(1, 2, 3), keepdims=True) - low
    return _round_to_bytes(255 * (images - low) / np.where(width == 0, 1, width))


def _round_to_bytes(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    integers: NDArray[np.uint8] = np.rint(values).clip(0, 255).astype(np.uint8)
    return integers
