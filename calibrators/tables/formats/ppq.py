"""The JSON that PPQ (OpenPPL) exports for TensorRT: ``{"act_quant_info": {tensor: amax}}``.

PPQ's own script gives the magnitude of every value to TensorRT as a symmetric dynamic range.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from calibrators.tables.formats.ranges_format import RangeEntry, RangesFormat
from calibrators.tables.formats.values import read_json

_KEY = "act_quant_info"


def looks_like_ppq(document: Any) -> bool:
    """Whether a JSON document is a table of PPQ."""
    return isinstance(document, dict) and _KEY in document


def _read(data: bytes, source: str) -> list[RangeEntry]:
    return read_json(data, source, "a table of PPQ", _entries)


def _entries(document: Any) -> list[RangeEntry]:
    return [RangeEntry(name, abs(float(value))) for name, value in document[_KEY].items()]


def _render(ranges: Mapping[str, float]) -> bytes:
    return (json.dumps({_KEY: dict(ranges)}, indent=4, ensure_ascii=False) + "\n").encode()


PPQ = RangesFormat("ppq", ".json", _read, _render)
