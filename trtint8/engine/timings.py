"""What an engine and its layers take: the files that ``trtexec`` exports, and times by ONNX nodes.

What ``trtexec`` writes differs by version, so only what all of TensorRT 8.5 to 11 write is read:

- ``--exportTimes``: a list of objects, one per inference, with ``computeMs``. What stands beside it is
  ``inMs`` and ``outMs`` in 8, ``h2dMs`` and ``d2hMs`` from 9 on (samples/trtexec/tracer.py of TensorRT).
- ``--exportProfile``: a list of an object ``{"count": runs}`` and one per layer, with ``name`` and
  ``averageMs`` (samples/trtexec/profiler.py).
- ``--exportLayerInfo``: the text of TensorRT's engine inspector.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeGuard

from calibrators import records
from calibrators.errors import BuildError
from trtint8.engine.layers import LayerReport
from trtint8.engine.plan import parse_inspection

#: The largest file of ``trtexec`` that is read, in bytes.
_MOST_BYTES = 1 << 28

#: What to do where a file cannot be used.
_AGAIN = "copy it again, or remove it and measure again"


def read_times(path: str | os.PathLike[str], phase: str = "computeMs") -> list[float]:
    """Reads what ``trtexec --exportTimes`` wrote.

    Args:
        path: The file.
        phase: What of an inference is read.

    Returns:
        The seconds of every inference.

    Raises:
        BuildError: The file is damaged, empty, or of another program.
    """
    times = [entry.get(phase) for entry in _entries(path)]
    seconds = [time / 1e3 for time in times if _is_time(time) and time > 0]
    if not seconds or len(seconds) < len(times):
        raise BuildError(f"'{path}' is no file of 'trtexec --exportTimes'; {_AGAIN}")
    return seconds


def read_profile(path: str | os.PathLike[str]) -> dict[str, float]:
    """Reads what ``trtexec --exportProfile`` wrote.

    Returns:
        The engine's name of each layer to its average time in seconds.

    Raises:
        BuildError: The file is damaged, empty, or of another program.
    """
    seconds: dict[str, float] = {}
    for entry in _entries(path):
        name, time = entry.get("name"), entry.get("averageMs")
        if isinstance(name, str) and _is_time(time):
            seconds[name] = seconds.get(name, 0.0) + time / 1e3
        elif "count" not in entry:
            raise BuildError(f"'{path}' is no file of 'trtexec --exportProfile'; {_AGAIN}")
    if not seconds:
        raise BuildError(f"'{path}' names no layer; {_AGAIN}")
    return seconds


def read_layers(path: str | os.PathLike[str]) -> LayerReport | None:
    """Reads what ``trtexec --exportLayerInfo`` wrote; None where it lists names only.

    Raises:
        BuildError: The file is damaged.
    """
    with records.reading(f"the layers '{path}'", BuildError, f"; {_AGAIN}"):
        return parse_inspection(records.decode_text(records.read_bytes(Path(path), _MOST_BYTES), "replace"))


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def _entries(path: str | os.PathLike[str]) -> Iterator[dict[str, object]]:
    with records.reading(f"the times '{path}'", BuildError, f"; {_AGAIN}"):
        document = records.parse(records.read_bytes(Path(path), _MOST_BYTES))
    if not isinstance(document, list) or not all(isinstance(entry, dict) for entry in document):
        raise BuildError(f"'{path}' is no list of times, as trtexec writes it; {_AGAIN}")
    yield from document


#: What TensorRT puts before the names of layers where it has to convert what they read or write.
_REFORMAT = re.compile(r"Reformatting CopyNode for (?:Input|Output) Tensor \d+ (?:to|from) ")


def seconds_of_nodes(
    layers: Mapping[str, float], nodes: Iterable[str], report: LayerReport | None = None
) -> dict[str, float]:
    """What the layers of an engine take, by the ONNX nodes that they compute.

    A layer of several nodes counts for each of them in equal shares, and one that only converts a tensor for
    the layer that reads or writes it.

    Args:
        layers: The engine's name of each layer to its time in seconds.
        nodes: Names of the ONNX nodes that are asked for.
        report: The engine's layers, which know their nodes; None where only their names say that.

    Returns:
        Name of each node to seconds; nodes that no layer names are left out.
    """
    asked = frozenset(nodes)
    known = {layer.name: layer.onnx_nodes for layer in report.layers} if report else {}
    seconds: dict[str, float] = {}
    for name, time in layers.items():
        fused = _REFORMAT.sub("", name)
        named = known.get(name) or known.get(fused) or fused.split(" + ")
        own = [node for node in named if node in asked]
        for node in own:
            seconds[node] = seconds.get(node, 0.0) + time / len(own)
    return seconds
