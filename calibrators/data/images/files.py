"""Image files, how they are resized, and where an image then lies."""

from __future__ import annotations

import contextlib
import io
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators import records
from calibrators.checks import FilePath
from calibrators.errors import (
    Argument,
    CalibrationDataError,
    DamagedFileError,
    UnsupportedError,
    advice,
    in_words,
)
from calibrators.imports import install_command

#: File name endings that are taken as images, in lower case.
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".tif", ".tiff"})

#: Endings of images that are not read, in lower case.
UNREAD_SUFFIXES = frozenset(
    {".avif", ".dng", ".exr", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jxl", ".pgm", ".tga"}
)

#: The formats that Pillow may recognize by a file's content. Left to itself it would take a PostScript file
#: of any name, and start Ghostscript to read it.
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM", "TIFF")

#: The most pixels of an image, as a photo of 8000 x 6250. A file of 21 kB can hold more than fit into memory.
MOST_PIXELS = 50_000_000


#: The largest image file, in bytes: as many pixels as that, of four bytes each and not packed, and what a
#: camera writes beside them.
_MOST_BYTES = 256 << 20

#: How often Pillow may read from a file before the pixels, and until they are decoded. Every part of a file
#: costs it a few readings, however small the part is: a photo has dozens before the pixels.
_MOST_READINGS_AHEAD, _MOST_READINGS = 1_000, 500_000

#: How many bytes may be read at once before the pixels: a profile of colours, or places of a TIFF's strips.
_MOST_AT_ONCE = 4 << 20

#: How many strips a TIFF may have, each of which costs Pillow 10 us.
_MOST_STRIPS = 100_000

#: The largest PPM in decimal digits, in bytes: Pillow reads it in Python.
_MOST_DIGITS = 2 << 20

#: How many pixels the scans of a JPEG may go over, together: 40 of the largest image. A progressive photo has
#: ten scans, and a scan that changes nothing takes a few hundred bytes.
_MOST_SCANNED = 40 * MOST_PIXELS

#: In the entropy-coded data of a JPEG, what ends it: a marker that is no stuffed byte and no restart.
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")

#: Markers of a JPEG.
_START_OF_SCAN, _END_OF_IMAGE = b"\xff\xda", b"\xff\xd9"

#: Number of the orientation tag in Exif.
_ORIENTATION = 0x0112

#: Orientation tags of images whose width and height are those of the picture on its side.
_ON_THEIR_SIDE = (5, 6, 7, 8)


def read_image(
    path: FilePath,
    *,
    grey: bool,
    upright: bool = False,
    check_size: Callable[[int, int], None] | None = None,
) -> NDArray[np.uint8]:
    """Decodes one image file.

    Args:
        path: The file.
        grey: True for one channel, False for three (RGB). Transparency is dropped.
        upright: Turn the image as its orientation tag says, as programs show it. False takes the pixels as
            stored, as torchvision does; only a TIFF is turned by Pillow itself.
        check_size: Called with height and width before the pixels are decoded; raises a
            CalibrationDataError where an image of that size is of no use.

    Returns:
        uint8, shape (H, W, 1) or (H, W, 3).

    Raises:
        DamagedFileError: The file cannot be read, is no image of a known format, or is damaged.
        CalibrationDataError: The file holds several pictures or more than :data:`MOST_PIXELS` pixels, or has
            more than 8 bits per channel.
        UnsupportedError: Pillow is not installed.
    """
    pillow = _pillow()
    try:
        with _opened(path, pillow) as image:
            _check_size(path, image)
            _check_depth(path, image)
            _check_work(path, image)
            if check_size is not None:
                check_size(*_size(image, upright))
            image.fp.readings, image.fp.at_once = _MOST_READINGS, _MOST_BYTES
            pixels = np.asarray(_turned(image, upright).convert("L" if grey else "RGB"), np.uint8)
    except CalibrationDataError:
        raise
    except pillow.UnidentifiedImageError as error:
        raise _no_image(path) from error
    except Exception as error:  # decoders have errors of their own on damaged files
        raise _unreadable(path, in_words(error)) from error
    return pixels.reshape(*pixels.shape[:2], -1)


def image_size(path: FilePath, *, upright: bool = False) -> tuple[int, int]:
    """The height and width of an image file, without decoding it.

    Args:
        path: The file.
        upright: As in :func:`read_image`.

    Raises:
        DamagedFileError: The file cannot be read, or is no image of a known format.
        UnsupportedError: Pillow is not installed.
    """
    try:
        with _opened(path, _pillow()) as image:
            return _size(image, upright)
    except UnsupportedError:
        raise
    except Exception as error:  # decoders have errors of their own on damaged files
        raise _no_image(path) from error


class _Counted(io.BufferedReader):
    """A file that can be read so many times.

    Attributes:
        readings: How many times are left.
        at_once: How many bytes may be read at once.
    """

    readings, at_once = _MOST_READINGS_AHEAD, _MOST_AT_ONCE

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads as every file does.

        Raises:
            ValueError: It is read too often, or too much at once.
        """
        self.readings -= 1
        if self.readings < 0 or (size or 0) > self.at_once:
            raise ValueError("it has too many parts beside its pixels, or too large ones")
        return super().read(size)


@contextlib.contextmanager
def _opened(path: FilePath, pillow: ModuleType) -> Iterator[Any]:
    """An image file, opened by Pillow, which has not decoded it yet."""
    with _Counted(records.open_file(path, _MOST_BYTES).detach()) as stream:
        with warnings.catch_warnings():
            # Of a number of pixels that is refused below.
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
            image = pillow.open(stream, formats=_FORMATS)
        with image:
            yield image


def _size(image: Any, upright: bool) -> tuple[int, int]:
    """The height and width of an image that is open."""
    is_turned = upright and _orientation(image) in _ON_THEIR_SIDE
    return (image.width, image.height) if is_turned else (image.height, image.width)


def _turned(image: Any, upright: bool) -> Any:
    from PIL import ImageOps

    return ImageOps.exif_transpose(image) if upright and _orientation(image) != 1 else image


def _orientation(image: Any) -> object:
    """An image's orientation tag; 1, which leaves it as it is, where there is none."""
    # Pillow decodes a PNG to look for a tag behind the pixels, and turns a TIFF by itself.
    if image.format == "TIFF" or (image.format == "PNG" and "exif" not in image.info):
        return 1
    try:
        return image.getexif().get(_ORIENTATION, 1)
    except Exception as error:  # damaged tags have errors of their own, and the pixels may be sound
        if isinstance(error, OSError) and error.errno is not None:  # it could not be read
            raise
        return 1


def _no_image(path: FilePath) -> DamagedFileError:
    """The refusal of a file that is no image of a known format."""
    return _unreadable(path, f"its content is none of {', '.join(_FORMATS)}")


def _unreadable(path: FilePath, reason: str) -> DamagedFileError:
    """The refusal of a file, with what can be done."""
    skip = f"give {Argument('skip_bad', 'True')} to leave out what cannot be read"
    return DamagedFileError(
        f"cannot read the image '{path}': {reason}; {advice(skip, 'replace or remove it')}"
    )


def _check_size(path: FilePath, image: Any) -> None:
    """Refuses what would not fit into memory, and animations, of which any picture would be a guess."""
    if image.width * image.height > MOST_PIXELS:
        raise CalibrationDataError(
            f"the image '{path}' has {image.width} x {image.height} pixels, and {MOST_PIXELS:,} are the "
            "most; make it smaller"
        )
    if image.format == "MPO":  # phones write it: a JPEG with further pictures behind the photo
        return
    with contextlib.suppress(EOFError):
        image.seek(1)
        raise CalibrationDataError(
            f"the image '{path}' holds several pictures; save the one that is meant as a file of its own"
        )


def _check_work(path: FilePath, image: Any) -> None:
    """Refuses what takes far longer than its pixels, such as a JPEG that goes over them again and again."""
    size = os.fstat(image.fp.fileno()).st_size
    in_digits = any(decoder == "ppm_plain" for decoder, *_ in image.tile)
    if len(image.tile) > _MOST_STRIPS or (in_digits and size > _MOST_DIGITS):
        raise CalibrationDataError(
            f"the image '{path}' takes too long to be read: its pixels are "
            + (f"{size:,} bytes of digits" if in_digits else f"in {len(image.tile):,} strips")
            + "; save it in another way, such as PNG"
        )
    if image.format not in ("JPEG", "MPO"):
        return
    place = image.fp.tell()
    image.fp.seek(0)
    data = image.fp.read()
    image.fp.seek(place)
    most = _MOST_SCANNED // (image.width * image.height)
    if data.count(_START_OF_SCAN) > most and _count_scans(data) > most:
        raise CalibrationDataError(
            f"the image '{path}' goes over its pixels more than {most} times (scans of a JPEG); save it again"
        )


def _count_scans(data: bytes) -> int:
    """How many scans the first picture of a JPEG has."""
    count, place = 0, 2
    while (marker := data[place : place + 2]) and marker != _END_OF_IMAGE:
        count += marker == _START_OF_SCAN
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        if marker == _START_OF_SCAN or data[place : place + 1] != b"\xff":
            ahead = _MARKER.search(data, place)
            place = ahead.start() if ahead else len(data)
    return count


def _check_depth(path: FilePath, image: Any) -> None:
    """Refuses channels that convert() would clip to 255, or of which Pillow would keep 8 bits alone."""
    if image.mode.startswith(("I", "F")) or any(map(_is_deep, image.tile)):
        raise CalibrationDataError(
            f"the image '{path}' has more than 8 bits per channel (mode {image.mode}); convert it to 8 bits "
            "first"
        )


def _is_deep(tile: Sequence[Any]) -> bool:
    """Whether what Pillow is going to decode has more than 8 bits per channel.

    Args:
        tile: An entry of an image's ``tile``: decoder, place, offset, and its arguments, which are the layout
            of the stored pixels, such as ``RGB;16B``, or begin with it.
    """
    decoder, arguments = tile[0], tile[3]
    layout, *others = (arguments,) if isinstance(arguments, str) else arguments
    if decoder.startswith("ppm") and others:
        return bool(others[0] > 255)  # the largest value
    return bool(layout.endswith((";16B", ";16L", ";16N")))  # BMP's BGR;16 has 5 or 6 bits per channel


def resize_images(images: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Bilinear resize with antialiasing, as Pillow and torchvision do it.

    Args:
        images: uint8, shape (N, H, W, C) with C of 1 or 3.
        size: (height, width) of the result.

    Returns:
        uint8, shape (N, height, width, C).

    Raises:
        CalibrationDataError: The result would have more than :data:`MOST_PIXELS` pixels.
        UnsupportedError: Pillow is not installed.
    """
    pillow = _pillow()
    height, width = size
    if height * width > MOST_PIXELS:
        raise CalibrationDataError(
            f"resizing to {height} x {width} makes images of more than {MOST_PIXELS:,} pixels; give a "
            "smaller size"
        )
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
            f"reading and resizing images needs Pillow; install it with {install_command('images')}"
        ) from error
    return Image


@dataclass(frozen=True)
class Placing:
    """Where an image lies in what it becomes: it is resized first, then cropped or padded.

    Attributes:
        resized: (height, width) of the image after resizing.
        offset: (top, left) of the resized image in the result; negative where it is cropped.
        size: (height, width) of the result.
    """

    resized: tuple[int, int]
    offset: tuple[int, int]
    size: tuple[int, int]

    def place_boxes(self, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Where boxes of the image are in the result.

        Args:
            boxes: Corners x1, y1, x2, y2 as shares of the image's width and height, shape (n, 4).

        Returns:
            The corners in pixels of the result, cut off at its edges, shape (n, 4).
        """
        (height, width), (top, left) = self.resized, self.offset
        placed = boxes * (width, height, width, height) + (left, top, left, top)
        rows, columns = self.size
        return placed.clip(0, (columns, rows, columns, rows))


def letterbox(height: int, width: int, size: tuple[int, int]) -> Placing:
    """The largest image of the same aspect ratio within a size, in its middle.

    Sizes and offsets are rounded as in ultralytics' LetterBox.

    Args:
        height: Rows of the image.
        width: Columns of the image.
        size: (height, width) of the result.
    """
    rows, columns = size
    factor = min(rows / height, columns / width)
    resized = max(round(height * factor), 1), max(round(width * factor), 1)
    top, left = (round((whole - part) / 2 - 0.1) for whole, part in zip(size, resized, strict=True))
    return Placing(resized, (top, left), size)
