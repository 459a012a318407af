"""trtint8's own table format: JSON that a person can read and correct, histograms included."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrators.errors import TableError
from calibrators.histograms.histogram import Histogram

FORMAT = "trtint8-calibration-table"
VERSION = 1

#: Of compression. Level 9 saves half a per cent and takes fifteen times as long.
_LEVEL = 6


def parse(data: bytes, source: str) -> dict[str, Any]:
    """Reads a table's fields.

    Args:
        data: The file's content.
        source: What to call it in messages.

    Returns:
        The fields ``method``, ``amax`` and the optional ones, with histograms decoded. Their values are
        the caller's to judge.

    Raises:
        TableError: It is not JSON, not a table, of a newer version, or a field has the wrong type.
    """
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise TableError(
            f"'{source}' is neither a JSON table nor a TensorRT calibration cache: {error}"
        ) from error
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise TableError(f'\'{source}\' is JSON but not a calibration table: it has no "format": "{FORMAT}"')
    if fields.get("version") != VERSION:
        raise TableError(
            f"'{source}' is a table of version {fields.get('version')}, and this trtint8 reads version "
            f"{VERSION}; use the trtint8 that wrote it or calibrate again"
        )
    amax = fields.get("amax")
    if not isinstance(amax, dict) or not all(_is_number(value) for value in amax.values()):
        raise TableError(f"'{source}': \"amax\" must map tensor names to numbers")
    try:
        fields["histograms"] = {
            name: _decode_histogram(encoded) for name, encoded in fields.get("histograms", {}).items()
        }
    except (AttributeError, KeyError, TypeError, ValueError, zlib.error) as error:
        raise TableError(f"'{source}': a histogram cannot be decoded ({error}); calibrate again") from error
    return fields


def render(fields: Mapping[str, Any]) -> bytes:
    """Writes a table's fields; ``histograms`` (name to :class:`Histogram`) goes last."""
    histograms = {name: _encode_histogram(histogram) for name, histogram in fields["histograms"].items()}
    document = {"format": FORMAT, "version": VERSION, **fields, "histograms": histograms}
    return (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _encode_histogram(histogram: Histogram) -> dict[str, Any]:
    counts = zlib.compress(histogram.counts.astype("<i8").tobytes(), _LEVEL)
    return {
        "bin_width": histogram.bin_width,
        "amax": histogram.amax,
        "zeros": histogram.zeros,
        "infs": histogram.infs,
        "counts": base64.b64encode(counts).decode(),
    }


def _decode_histogram(encoded: Mapping[str, Any]) -> Histogram:
    counts = np.frombuffer(zlib.decompress(base64.b64decode(encoded["counts"], validate=True)), "<i8")
    return Histogram(
        counts.astype(np.int64),
        bin_width=float(encoded["bin_width"]),
        amax=float(encoded["amax"]),
        zeros=int(encoded["zeros"]),
        infs=int(encoded["infs"]),
    )
