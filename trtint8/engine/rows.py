"""What is known of an engine, as rows of a table for a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from calibrators.display.counts import megabytes
from trtint8.engine.layers import LayerReport
from trtint8.engine.traffic import PartTotal, total_traffic

#: How many tensors without a range are named; the sidecar names all of them.
_MOST_MISSING = 20

#: How many reasons for staying in float are given; the sidecar has that of every node.
_MOST_REASONS = 5

#: What is said where an engine's layers are not listed, whichever of both it was.
NOT_LISTED = "not listed: profiling verbosity was not 'detailed', the default, or this TensorRT lists none"

#: What rows are called of weighted nodes that no layer of an engine computes.
_NO_PRECISION = {"unknown": "not in the engine's list", "folded": "constants in the engine"}


def layer_rows(
    layers: LayerReport | None, wanted: Sequence[str], in_int8: tuple[int, int] | None
) -> list[tuple[str, str]]:
    """In which precisions weighted nodes run, and of which profile the rows of kernels are that follow.

    Args:
        layers: The engine's layers; None where they are not listed.
        wanted: Names of the nodes that were meant to run in INT8.
        in_int8: How many weighted nodes do, and of how many; None where that is not known.
    """
    if layers is None:
        return [("weighted layers in INT8", NOT_LISTED)]
    summary = layers.weighted_summary(wanted)
    seen = len(summary.get("INT8", ()))
    partly = f"{seen} seen; TensorRT tells nothing of parts that it compiled as a whole"
    others = {name: nodes for name, nodes in summary.items() if name != "INT8" and nodes}
    return [
        ("weighted layers in INT8", "{} of {}".format(*in_int8) if in_int8 else partly),
        *((_NO_PRECISION.get(name, f"in {name}"), ", ".join(nodes)) for name, nodes in others.items()),
        *([] if layers == layers.of_first_profile else [("kernels and bytes", "those of profile 0")]),
    ]


def kernel_rows(parts: Sequence[PartTotal], *, dynamic: bool) -> list[tuple[str, str]]:
    """What kernels are for, and what they read and write.

    Args:
        parts: The kernels by part.
        dynamic: Whether shapes are dynamic.
    """
    if not parts:
        return []
    traffic = total_traffic(part.traffic for part in parts)
    if traffic is not None:
        moved = f"{megabytes(traffic.read)} read, {megabytes(traffic.written)} written"
    elif dynamic:
        moved = "not known for dynamic shapes; 'trtint8 audit' gives them at the optimal ones"
    else:
        moved = "not known, because the builder does not list all shapes and types"
    number = sum(part.kernels for part in parts)
    return [
        ("kernels", f"{number}: {', '.join(f'{part.kernels} {part.part}' for part in parts)}"),
        ("bytes per inference", moved),
    ]


def float_rows(nodes: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """How many nodes stay in float, and why.

    Args:
        nodes: The name of each, with the reason.
    """
    if not nodes:
        return []
    reasons = Counter(reason for _, reason in nodes).most_common(_MOST_REASONS)
    return [
        ("nodes that stay in float", str(len(nodes))),
        *((f"  {count} of them", reason) for reason, count in reasons),
    ]


def range_rows(missing: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Which tensors have no range.

    Args:
        missing: The name of each, with the layer that makes it.
    """
    if not missing:
        return []
    named = missing[:_MOST_MISSING]
    return [
        ("tensors without a range", str(len(missing))),
        *((f"  '{tensor}'", f"of layer '{layer}'") for tensor, layer in named),
    ]
