"""The formats of other tools that hold nothing but ranges, by name, ending and content."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from calibrators.tables.formats import onnxruntime, plain, ppq


@dataclass(frozen=True)
class RangesFormat:
    """One format.

    Attributes:
        name: What to call it on the command line.
        suffix: The ending of its files.
        parse: Content and a name for messages to tensor name and amax.
        render: The inverse.
    """

    name: str
    suffix: str
    parse: Callable[[bytes, str], dict[str, float]]
    render: Callable[[Mapping[str, float]], bytes]


_FORMATS = (
    RangesFormat("text", ".txt", plain.parse_text, plain.render_text),
    RangesFormat("csv", ".csv", plain.parse_csv, plain.render_csv),
    RangesFormat("ppq", ".json", ppq.parse, ppq.render),
    RangesFormat("onnxruntime-json", ".json", onnxruntime.parse_json, onnxruntime.render_json),
    RangesFormat(
        "onnxruntime", ".flatbuffers", onnxruntime.parse_flatbuffers, onnxruntime.render_flatbuffers
    ),
)

FORMATS: Mapping[str, RangesFormat] = {found.name: found for found in _FORMATS}

#: Endings that belong to one of them alone.
SUFFIXES: Mapping[str, RangesFormat] = {found.suffix: found for found in _FORMATS if found.suffix != ".json"}


def json_format(data: bytes) -> RangesFormat | None:
    """Which of them a JSON document is; None where it is none, or no JSON at all."""
    try:
        document = json.loads(data)
    except ValueError:
        return None
    if ppq.looks_like_json(document):
        return FORMATS["ppq"]
    return FORMATS["onnxruntime-json"] if onnxruntime.looks_like_json(document) else None
