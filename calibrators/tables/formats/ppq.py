"""The JSON that PPQ (OpenPPL) exports for TensorRT: ``{"act_quant_info": {tensor: amax}}``.

PPQ's own script gives every value, sign ignored, to TensorRT as a symmetric dynamic range.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from calibrators.errors import TableError
from calibrators.tables.formats.values import add_range

_KEY = "act_quant_info"


def looks_like_json(document: Any) -> bool:
    """Whether a JSON document is one of these."""
    return isinstance(document, dict) and _KEY in document


def parse(data: bytes, source: str) -> dict[str, float]:
    """Reads the ranges.

    Args:
        data: The file's content.
        source: What to call it in messages.

    Returns:
        Tensor name to amax.

    Raises:
        TableError: It is malformed, or a value is not a finite number.
    """
    try:
        values = {name: abs(float(value)) for name, value in json.loads(data)[_KEY].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TableError(f"'{source}' is not a table of PPQ ({type(error).__name__}: {error})") from error
    ranges: dict[str, float] = {}
    for name, amax in values.items():
        add_range(ranges, name, amax, source)
    return ranges


def render(ranges: Mapping[str, float]) -> bytes:
    """Writes the ranges."""
    return (json.dumps({_KEY: dict(ranges)}, indent=4, ensure_ascii=False) + "\n").encode()
