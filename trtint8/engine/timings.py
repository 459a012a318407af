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
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from calibrators import records
from calibrators.checks import FilePath
from calibrators.errors import BuildError
from trtint8.engine.layers import LayerReport
from trtint8.engine.plan import parse_inspection

#: The largest file of ``trtexec`` that is read, in bytes.
_MOST_BYTES = 1 << 28

#: What to do where a file cannot be used.
_AGAIN = "copy it again, or remove it and measure again"


@dataclass(frozen=True)
class ExportedTimes:
    """What ``trtexec --exportTimes`` wrote.

    Attributes:
        phases: Phase of an inference to the milliseconds of every one: ``compute`` and ``latency``; ``h2d``
            and ``d2h`` where something was copied, and ``enqueue`` where it is known.
        seconds: How long all inferences took together.
    """

    phases: Mapping[str, Sequence[float]]
    seconds: float


def read_exported_times(path: FilePath) -> ExportedTimes:
    """Reads what ``trtexec --exportTimes`` wrote.

    Raises:
        BuildError: The file is damaged, empty, or of another program.
    """
    entries = list(_entries(path))
    compute = _column(entries, "computeMs")
    if not compute or min(compute) <= 0:
        raise BuildError(f"'{path}' is no file of 'trtexec --exportTimes'; {_AGAIN}")
    phases = {"compute": compute}
    for phase, names in {"h2d": ("h2dMs", "inMs"), "d2h": ("d2hMs", "outMs")}.items():
        found = next(filter(None, (_column(entries, name) for name in names)), [])
        if any(found):
            phases[phase] = found
    begun, ended = _column(entries, "startEnqMs"), _column(entries, "endEnqMs")
    if begun and ended:
        phases["enqueue"] = [max(0.0, end - begin) for begin, end in zip(begun, ended, strict=True)]
    copies = [phases[phase] for phase in ("h2d", "d2h") if phase in phases]
    phases["latency"] = [sum(times) for times in zip(compute, *copies, strict=True)]
    begun, ended = _column(entries, "startComputeMs"), _column(entries, "endComputeMs")
    took = max(ended) - min(begun) if begun and ended else 0.0
    return ExportedTimes(phases, (took if took > 0 else sum(phases["latency"])) / 1e3)


def read_profile(path: FilePath) -> dict[str, float]:
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


def read_layers(path: FilePath) -> LayerReport | None:
    """Reads what ``trtexec --exportLayerInfo`` wrote; None where it lists names only.

    Raises:
        BuildError: The file is damaged.
    """
    with records.reading(f"the layers '{path}'", BuildError, _AGAIN):
        return parse_inspection(records.decode_text(records.read_bytes(Path(path), _MOST_BYTES), "replace"))


def _column(entries: Sequence[Mapping[str, object]], name: str) -> list[float]:
    """One figure of every inference; empty where it is not known of all."""
    values = [value for entry in entries if _is_time(value := entry.get(name))]
    return values if len(values) == len(entries) else []


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def _entries(path: FilePath) -> Iterator[dict[str, object]]:
    with records.reading(f"the times '{path}'", BuildError, _AGAIN):
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
    known = nodes_by_layer(report)
    seconds: dict[str, float] = {}
    for name, time in layers.items():
        own = [node for node in nodes_of(name, known) if node in asked]
        for node in own:
            seconds[node] = seconds.get(node, 0.0) + time / len(own)
    return seconds


def nodes_by_layer(report: LayerReport | None) -> dict[str, tuple[str, ...]]:
    """The ONNX nodes of each layer of an engine by its name; empty where its layers are not known."""
    return {layer.name: layer.onnx_nodes for layer in report.layers} if report else {}


def nodes_of(name: str, known: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The ONNX nodes that a layer of an engine computes, or converts a tensor for.

    Args:
        name: The engine's name of the layer.
        known: From :func:`nodes_by_layer`; where it lacks the layer, its name lists its nodes.
    """
    fused = _REFORMAT.sub("", name)
    return tuple(known.get(name) or known.get(fused) or fused.split(" + "))


def only_converts(name: str) -> bool:
    """True if TensorRT's name of a layer says that it only converts a tensor for another one."""
    return _REFORMAT.match(name) is not None
