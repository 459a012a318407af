"""TensorRT's calibration cache.

A header, ``TRT-<version>-<algorithm>``, and one line per tensor: its name, a colon, and the scale (amax/127)
as the big-endian hexadecimal digits of a float32::

    TRT-8601-EntropyCalibration2
    images: 3c010204

Tensor names may hold colons themselves, so a line is split at its last colon. TensorRT omits leading zeros.
For the legacy calibrator, TensorRT 8.6 writes that calibrator's settings in place of the header: a zero, the
cutoff and the quantile, as the hexadecimal digits of float64. Such a cache is read here, and not written,
because nothing but that calibrator takes it::

    0 3ff0000000000000 3fefff2e48e8a71e
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from calibrators import records
from calibrators.checks import warn_user
from calibrators.errors import TableError, enumerated
from calibrators.tables.formats.common import check_line_names, split_lines

_LEGACY = "LegacyCalibration"
_WRITTEN = ("EntropyCalibration", "EntropyCalibration2", "MinMaxCalibration")
_ALGORITHMS = (*_WRITTEN, _LEGACY)

_HEADER = re.compile(r"TRT-(\d+)-(\w+)")
_SETTINGS = r"0 [0-9a-f]{1,16} [0-9a-f]{1,16}"
_BEGINNING = re.compile(rf"TRT-|{_SETTINGS}\s")
#: How many bytes, at least, hold the settings in any encoding.
_FIRST_BYTES = 100
#: How many hexadecimal digits a scale has, with its leading zeros.
_DIGITS = 8
_SCALE = re.compile(rf"[0-9a-fA-F]{{1,{_DIGITS}}}")


@dataclass(frozen=True)
class TensorrtCache:
    """The contents of a calibration cache.

    Attributes:
        version: TensorRT's version as digits, for example ``8601`` or ``101600``; None where the cache does
            not tell, as that of the legacy calibrator.
        algorithm: One of :data:`_ALGORITHMS`.
        scales: Tensor name to scale, exactly as float32 in the file.
    """

    version: str | None
    algorithm: str
    scales: Mapping[str, float]


def looks_like_cache(data: bytes) -> bool:
    """Whether the bytes start as a calibration cache does."""
    return _BEGINNING.match(records.decode_text(data[:_FIRST_BYTES], errors="replace")) is not None


def parse(data: bytes, source: str) -> TensorrtCache:
    """Reads a cache.

    Args:
        data: The file's content.
        source: What to call the file in messages.

    Returns:
        The cache's contents. A scale of zero is that of a tensor that was zero in all batches.

    Raises:
        TableError: The header or a line is malformed, the file ends within a value, a tensor stands twice,
            or a scale is NaN, infinite or negative.
    """
    try:
        text = records.decode_text(data)
    except UnicodeDecodeError as error:
        raise TableError(f"'{source}' is not a calibration cache: byte {error.start} is not text") from error
    lines = split_lines(text, source)
    version, algorithm = _header(lines[0].strip() if lines else "", source)
    # TensorRT ends every line.
    ends_in_line = len(lines) if not text.endswith(("\n", "\r")) else None
    scales: dict[str, float] = {}
    for number, name, digits in _entries(lines[1:], source):
        if name in scales:
            raise TableError(
                f"'{source}' line {number}: tensor '{name}' stands twice; remove one of the lines"
            )
        if number == ends_in_line and len(digits) < _DIGITS:
            raise TableError(
                f"'{source}' is cut off: it ends within line {number}, '{lines[-1][:80]}'; copy it again"
            )
        (scales[name],) = struct.unpack(">f", bytes.fromhex(digits.zfill(_DIGITS)))
    if not scales:
        raise TableError(f"'{source}' holds no tensors; calibrate again")
    _refuse_scales(
        {name: scale for name, scale in scales.items() if not (math.isfinite(scale) and scale >= 0)},
        f"'{source}' has scales that are negative or no numbers",
        "correct them, or calibrate again",
    )
    return TensorrtCache(version, algorithm, scales)


def _header(line: str, source: str) -> tuple[str | None, str]:
    """The version, where it is told, and the algorithm in the first line of a cache."""
    if re.fullmatch(_SETTINGS, line):
        return None, _LEGACY
    header = _HEADER.fullmatch(line)
    if not header or header[2] not in _ALGORITHMS:
        raise TableError(
            f"'{source}' is not a calibration cache: its first line must be TRT-<version>-<algorithm> with "
            f"one of {', '.join(_ALGORITHMS)}, not '{line[:80]}'"
        )
    return header[1], header[2]


def render(cache: TensorrtCache) -> bytes:
    """Writes a cache, with eight digits per scale.

    A scale of zero is no range for TensorRT, so tensors that were zero in all batches are left out.

    Args:
        cache: The contents.

    Returns:
        The file's content.

    Raises:
        TableError: The algorithm is unknown or the legacy one, the version is not made of digits, a cache
            cannot hold the name of a tensor, a scale is NaN, infinite or negative, or no scale is above zero.

    Warns:
        UserWarning: A scale is zero.
    """
    if cache.algorithm not in _WRITTEN:
        raise TableError(
            f"a calibration cache of '{cache.algorithm}' cannot be written; use one of {', '.join(_WRITTEN)}"
        )
    version = cache.version or ""
    if not re.fullmatch("[0-9]+", version):
        raise TableError(
            f"the TensorRT version in a cache's header is {version[:80]!r}; give digits, like 8601"
        )
    check_line_names(cache.scales, "a calibration cache")
    zero = {name: scale for name, scale in cache.scales.items() if scale == 0}
    written = {name: scale for name, scale in cache.scales.items() if scale != 0}
    bad = {name: scale for name, scale in written.items() if not 0 < scale < math.inf}
    _refuse_scales(
        bad if written else zero,
        "the table has scales that are not positive numbers",
        "calibrate again or set them",
    )
    if zero:
        names = enumerated(f"'{name}'" for name in zero)
        warn_user(
            f"the range of {names} is 0, which a calibration cache cannot hold, so TensorRT has no range for "
            "what is left out; use samples that activate it, or set a range by hand"
        )
    lines = [f"TRT-{version}-{cache.algorithm}"]
    lines += [f"{name}: {struct.pack('>f', scale).hex()}" for name, scale in written.items()]
    return ("\n".join(lines) + "\n").encode()


def _entries(lines: list[str], source: str) -> Iterator[tuple[int, str, str]]:
    """The line number, the tensor's name and the digits of every line after the header."""
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        name, colon, digits = line.rpartition(":")
        if not (colon and name and _SCALE.fullmatch(digits.strip())):
            raise TableError(
                f"'{source}' line {number} is not '<tensor>: <scale as hexadecimal float32>': '{line[:80]}'"
            )
        yield number, name, digits.strip()


def _refuse_scales(bad: Mapping[str, float], problem: str, advice: str) -> None:
    if bad:
        shown = enumerated(f"'{name}' ({scale})" for name, scale in bad.items())
        raise TableError(f"{problem}: {shown}; {advice}")
