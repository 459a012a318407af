"""How raw images become what a model is fed: one description for calibration and validation alike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibrators import records
from calibrators.checks import PATH_TYPES, FilePath, check_path, located, warn_user
from calibrators.data.images.files import MOST_PIXELS, Placing, letterbox, resize_images
from calibrators.errors import Argument, CalibrationDataError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]  # only Python 3.10 needs it


#: The largest file, in bytes: it holds a few numbers, and the parser of TOML takes a second for a key of this
#: many parts.
_MOST_BYTES = 16 << 10

#: What brings images to another size, for a message.
RESIZING = f"{Argument('resize')}, {Argument('crop')} or {Argument('letterbox')}"

#: The value of the pixels around a letterboxed image, as ultralytics has it.
PADDING = 114


@dataclass(frozen=True)
class Preprocessing:
    """Resize, crop or padding, channel order, scale, mean and standard deviation, layout; in this order.

    Attributes:
        resize: (height, width), or the length of the shorter side with the aspect ratio kept, or None.
        crop: (height, width) of the centre crop, or None.
        scale: The factor of every uint8 value; 1/255 by default.
        mean: Subtracted after scaling; one value, or one per channel in the order of ``channels``.
        std: The divisor after that; one value, or one per channel in the order of ``channels``.
        layout: The order of the result's axes.
        channels: Order of the result's channels; grey images have only one and ignore it.
        letterbox: (height, width), or None. Images are resized to fit into it with the aspect ratio kept, and
            padded with grey, as for detectors. It replaces ``resize`` and ``crop``.

    Raises:
        CalibrationDataError: A value has the wrong type, length or sign, or ``letterbox`` comes with
            ``resize`` or ``crop``.

    Warns:
        UserWarning: ``mean`` and ``std`` are those of pixels and values are scaled, or the reverse.

    Examples:
        >>> mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        >>> imagenet = trtint8.Preprocessing(resize=256, crop=(224, 224), mean=mean, std=std)
        >>> imagenet.prepared_size(480, 640)
        (224, 224)
    """

    resize: tuple[int, int] | int | None = None
    crop: tuple[int, int] | None = None
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    channels: Literal["RGB", "BGR"] = "RGB"
    letterbox: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        # Files and people give lists, arrays and single numbers; tuples keep the object hashable.
        for name in ("resize", "crop", "mean", "std", "letterbox"):
            object.__setattr__(self, name, _plain(getattr(self, name)))
        for name in ("mean", "std"):
            if _is_number(value := getattr(self, name)):
                object.__setattr__(self, name, (value,))
        for name, fits, wanted in _FORMS:
            value = getattr(self, name)
            if not fits(value):
                raise CalibrationDataError(f"preprocessing's {name} is {_shortened(value)}; give {wanted}")
        if self.letterbox is not None and (self.resize is not None or self.crop is not None):
            other = "crop" if self.resize is None else "resize"
            raise CalibrationDataError(
                f"{Argument('preprocessing')} has letterbox and {other}, and letterbox is both; leave one out"
            )
        self._warn_of_other_units()

    def _warn_of_other_units(self) -> None:
        """Warns of a mean and a standard deviation of pixels where values are scaled, and the reverse."""
        largest = 255 * abs(self.scale)
        if any(abs(value) > 2 * largest for value in self.mean):
            advice = "give those of scaled values, such as 0.485 in place of 123.675, or a scale of 1"
        elif self.scale >= 1 and 0 < max(self.mean) <= 1 and max(self.std) < 1:
            advice = "give those of pixels, such as 123.675 in place of 0.485, or a scale of 1/255"
        else:
            return
        mean, std = (", ".join(f"{value:g}" for value in values) for values in (self.mean, self.std))
        warn_user(
            f"preprocessing subtracts the mean {mean} and divides by the standard deviation {std}, but its "
            f"scale makes pixels values up to {largest:g}; {advice}"
        )

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Prepares a batch of images of one size.

        Args:
            images: uint8, shape (N, H, W, C), C either 1 (grey) or 3 (RGB).

        Returns:
            ``(x * scale - mean) / std``, float32, C-contiguous, shape (N, C, H', W') or (N, H', W', C).

        Raises:
            CalibrationDataError: The array is no such batch, is smaller than the crop, or has another
                number of channels than ``mean`` or ``std``.
            UnsupportedError: ``resize`` is set and Pillow is not installed.
        """
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
            raise CalibrationDataError(
                f"preprocessing takes uint8 images of shape (N, H, W, 1) or (N, H, W, 3), not {images.dtype} "
                f"of shape {images.shape}; convert or transpose them first"
            )
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, images.shape[3]):
                raise CalibrationDataError(
                    f"{Argument('preprocessing')} has {len(values)} values for {name} but the images have "
                    f"{images.shape[3]} channel; give one value"
                )
        placing = self.placing(*images.shape[1:3])
        if self.resize is not None or self.letterbox is not None:
            images = resize_images(images, placing.resized)
        if self.crop is not None:
            (top, left), (rows, columns) = placing.offset, placing.size
            images = images[:, -top : rows - top, -left : columns - left]
        if self.letterbox is not None:
            images = _padded(images, placing)
        if self.channels == "BGR":
            images = images[..., ::-1]
        values32 = images.astype(np.float32, order="C")
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused before it is fed
            values32 *= np.float32(self.scale)
            values32 -= np.array(self.mean, np.float32)
            values32 /= np.array(self.std, np.float32)
        return np.ascontiguousarray(values32.transpose(0, 3, 1, 2) if self.layout == "NCHW" else values32)

    def prepared_size(self, height: int, width: int) -> tuple[int, int]:
        """Returns the size of the result for images of one size.

        Args:
            height: Rows of an image, at least 1.
            width: Columns of an image, at least 1.

        Returns:
            Rows and columns after ``resize`` and ``crop``, or after ``letterbox``.

        Raises:
            CalibrationDataError: The image is smaller than the crop.
        """
        return self.placing(height, width).size

    def placing(self, height: int, width: int) -> Placing:
        """Returns where images of one size lie in the result.

        Args:
            height: Rows of an image, at least 1.
            width: Columns of an image, at least 1.

        Raises:
            CalibrationDataError: The image is smaller than the crop.
        """
        if self.letterbox is not None:
            return letterbox(height, width, self.letterbox)
        resized = self.resize or (height, width)
        if isinstance(resized, int):
            shorter = min(height, width)
            # Rounded down, as torchvision's Resize does.
            resized = resized * height // shorter, resized * width // shorter
        if self.crop is None:
            return Placing(resized, (0, 0), resized)
        if resized[0] < self.crop[0] or resized[1] < self.crop[1]:
            raise CalibrationDataError(
                f"preprocessing cannot crop {_size_text(self.crop)} from images of {_size_text(resized)} "
                "(height x width); set resize or a smaller crop"
            )
        # Half to even, as torchvision's CenterCrop does.
        top, left = (-round((whole - part) / 2) for whole, part in zip(resized, self.crop, strict=True))
        return Placing(resized, (top, left), self.crop)

    @classmethod
    def load(cls, path: FilePath) -> Preprocessing:
        """Reads a .toml or .json file whose keys are this class's attributes; absent ones keep their default.

        Args:
            path: The file. ``scale`` may be a number or a fraction as text, such as "1/255".

        Returns:
            The preprocessing.

        Raises:
            CalibrationDataError: What is given is no path, the file cannot be read or parsed, has an unknown
                key, or a value that cannot be used; names the key.
        """
        check_path("the preprocessing file", path, CalibrationDataError)
        path = Path(path)
        values = _read_table(path)
        known = [field.name for field in fields(cls)]
        if unknown := sorted(values.keys() - set(known)):
            raise CalibrationDataError(
                f"preprocessing file '{path}' has the unknown key {', '.join(map(repr, unknown))[:200]}; "
                f"the known ones are {', '.join(known)}"
            )
        if isinstance(values.get("scale"), str):
            values["scale"] = _fraction(values["scale"])
        with located(f"preprocessing file '{path}'"):
            return cls(**values)

    def is_same(self, other: Preprocessing) -> bool:
        """True if another one does the same, apart from rounding; three equal values count as one."""
        alike = all(
            getattr(self, name) == getattr(other, name)
            for name in ("resize", "crop", "layout", "channels", "letterbox")
        )
        mine, theirs = ([one.scale, *_three(one.mean), *_three(one.std)] for one in (self, other))
        return alike and np.allclose(mine, theirs, rtol=1e-5, atol=1e-7)

    def __str__(self) -> str:
        steps = [] if self.resize is None else [f"resize {_size_text(self.resize)}"]
        steps += [] if self.crop is None else [f"crop {_size_text(self.crop)}"]
        steps += [] if self.letterbox is None else [f"letterbox {_size_text(self.letterbox)}"]
        mean, std = (",".join(f"{value:g}" for value in values) for values in (self.mean, self.std))
        scale = "1/255" if np.isclose(self.scale, 1 / 255, rtol=1e-5, atol=0) else f"{self.scale:g}"
        return ", ".join([*steps, f"scale {scale}", f"mean {mean}", f"std {std}", self.channels, self.layout])


def _three(values: tuple[float, ...]) -> tuple[float, ...]:
    return values * 3 if len(values) == 1 else values


def _size_text(size: tuple[int, int] | int) -> str:
    return str(size) if isinstance(size, int) else f"{size[0]}x{size[1]}"


def check_preprocessing(given: object) -> None:
    """Refuses what is no :class:`Preprocessing`, such as its values in a dict or the path of its file.

    Args:
        given: What was given as one; None for none.

    Raises:
        CalibrationDataError: It is something else.
    """
    if given is None or isinstance(given, Preprocessing):
        return
    advice = "give a trtint8.Preprocessing, such as trtint8.Preprocessing(mean=(0.5,), std=(0.5,))"
    if isinstance(given, Mapping):
        advice = "give trtint8.Preprocessing(**values), with its values as keywords"
    elif isinstance(given, PATH_TYPES):
        advice = "read the file with trtint8.Preprocessing.load(path)"
    raise CalibrationDataError(f"{Argument('preprocessing')} is a {type(given).__name__}; {advice}")


def _padded(images: NDArray[np.uint8], placing: Placing) -> NDArray[np.uint8]:
    (top, left), (rows, columns) = placing.offset, placing.size
    if rows * columns > MOST_PIXELS:
        raise CalibrationDataError(
            f"{Argument('letterbox')} of {rows} x {columns} makes images of more than {MOST_PIXELS:,} "
            "pixels; give a smaller size"
        )
    padded = np.full((len(images), rows, columns, images.shape[3]), PADDING, np.uint8)
    padded[:, top : top + images.shape[1], left : left + images.shape[2]] = images
    return padded


def _read_table(path: Path) -> dict[str, Any]:
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".json"):
        raise CalibrationDataError(f"preprocessing file '{path}' must end in .toml or .json; rename it")
    with records.reading(f"the preprocessing file '{path}'", CalibrationDataError):
        data = records.read_bytes(path, _MOST_BYTES)
    try:
        values = tomllib.loads(records.decode_text(data)) if suffix == ".toml" else records.parse(data)
    except RecursionError as error:
        raise CalibrationDataError(
            f"preprocessing file '{path}' is nested too deeply; give keys such as mean and std"
        ) from error
    except ValueError as error:  # either parser's error, or text in another encoding
        raise CalibrationDataError(
            f"preprocessing file '{path}' is not valid {suffix[1:].upper()}: {error}; correct it"
        ) from error
    if not isinstance(values, dict):
        raise CalibrationDataError(
            f"preprocessing file '{path}' holds a {type(values).__name__}; "
            "give an object with keys such as mean and std"
        )
    return values


def _fraction(text: str) -> float | str:
    """The value of "a" or "a/b"; the text itself where it is neither, to be refused like any other."""
    numerator, _, denominator = text.partition("/")
    try:
        return float(numerator) / float(denominator or 1)
    except (ValueError, ZeroDivisionError):
        return text


def _shortened(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        return "an integer too large to be written"
    return text if len(text) <= 80 else f"{text[:80]}..."


def _plain(value: object) -> object:
    """A value of Python's types, a tuple where there are several."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def _is_number(value: object) -> bool:
    # Comparison takes integers of any size, which math.isfinite does not.
    limit = float(np.finfo(np.float32).max)
    return isinstance(value, int | float) and not isinstance(value, bool) and -limit <= value <= limit


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_size(value: object) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and all(map(_is_length, value))


def _is_per_channel(value: object) -> bool:
    return isinstance(value, Sequence) and len(value) in (1, 3) and all(map(_is_number, value))


def _is_text_of(*choices: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in choices


_SIZE = "two positive integers: (height, width)"

#: The name of a field, whether it takes a value, and what it takes in words.
_FORMS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        "resize",
        lambda value: value is None or _is_length(value) or _is_size(value),
        "a positive integer (the shorter side) or (height, width)",
    ),
    ("crop", lambda value: value is None or _is_size(value), _SIZE),
    ("letterbox", lambda value: value is None or _is_size(value), _SIZE),
    ("scale", lambda value: _is_number(value) and value, 'a number other than 0, or in a file "1/255"'),
    ("mean", _is_per_channel, "a list of one number or of three"),
    (
        "std",
        lambda value: _is_per_channel(value) and min(value) > 0,
        "a list of one number or of three, all greater than 0",
    ),
    ("layout", _is_text_of("NCHW", "NHWC"), "'NCHW' or 'NHWC'"),
    ("channels", _is_text_of("RGB", "BGR"), "'RGB' or 'BGR'"),
)
