"""The network as a strip: one cell a weighted layer, with its precision and its share of the error."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import onnx_ir as ir

from trtint8.engine.file import EngineInfo
from trtint8.quantization.operators import WEIGHTED
from trtint8.sensitivity.results import LayerSensitivity, Sensitivity

#: Where one level of loudness ends and the next begins, as shares of all noise.
LEVELS = (0.01, 0.03, 0.1, 0.3)


@dataclass(frozen=True)
class Cell:
    """One weighted layer.

    Attributes:
        node: Its name in the graph.
        operator: Its operator.
        precision: ``INT8``, ``FP16``, ``BF16``, ``FP32``, ``float`` where only the Q/DQ model tells, or
            ``unknown``.
        noise_share: Its part of the noise that all layers make, each alone; None where not measured.
        level: Its loudness, from 0 to ``len(LEVELS)``; None where not measured.
        alone_db: SQNR of the output with this layer alone in INT8.
        cumulative_db: SQNR of what leaves it with every layer in INT8.
    """

    node: str
    operator: str
    precision: str
    noise_share: float | None = None
    level: int | None = None
    alone_db: float | None = None
    cumulative_db: float | None = None


def cells(
    qdq: ir.Model | None, engine: EngineInfo | None, sensitivity: Sensitivity | None
) -> tuple[Cell, ...]:
    """The weighted layers in the order of the graph.

    The engine's own list of layers is the evidence for precisions. Without it the Q/DQ pairs say what was
    meant.

    Args:
        qdq: The Q/DQ model.
        engine: The engine's sidecar.
        sensitivity: What the layers cost.

    Returns:
        A cell each; empty where nothing names the layers.
    """
    measured = {layer.node: layer for layer in sensitivity.layers} if sensitivity else {}
    wanted = _wanted(qdq, engine, sensitivity)
    found = []
    for node, (operator, meant) in wanted.items():
        precision = meant
        if engine and engine.layers:
            precision = engine.layers.precision_of(node) or "unknown"
        found.append(_cell(node, operator, precision, measured.get(node)))
    return tuple(found)


def level(noise_share: float) -> int:
    """How loud a layer is: 0 below the first of :data:`LEVELS`, one more at each of them."""
    return bisect_right(LEVELS, noise_share)


def _cell(node: str, operator: str, precision: str, measured: LayerSensitivity | None) -> Cell:
    if measured is None:
        return Cell(node, operator, precision)
    share = measured.noise_share
    return Cell(node, operator, precision, share, level(share), measured.only.sqnr_db, measured.cumulative_db)


def _wanted(
    qdq: ir.Model | None, engine: EngineInfo | None, sensitivity: Sensitivity | None
) -> dict[str, tuple[str, str]]:
    """Names of the weighted nodes, to their operator and the precision that they were meant to have."""
    if qdq is not None:
        return {
            node.name or "": (node.op_type, "INT8" if _reads_int8(node) else "float")
            for node in qdq.graph
            if node.op_type in WEIGHTED
        }
    if engine is not None:
        return dict.fromkeys(engine.quantized_nodes, ("", "INT8"))
    layers = sensitivity.layers if sensitivity else ()
    return {layer.node: (layer.operator, "INT8") for layer in layers if layer.operator in WEIGHTED}


def _reads_int8(node: ir.Node) -> bool:
    producers = [value.producer() if value is not None else None for value in node.inputs[:2]]
    return all(one is not None and one.op_type == "DequantizeLinear" for one in producers)
