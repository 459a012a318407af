"""The network as a strip of cells, one per weighted layer, with its precision and its share of the noise."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import onnx_ir as ir

from calibrators.operators import operator_named, operator_of
from trtint8.engine.file import EngineInfo
from trtint8.sensitivity.results import LayerSensitivity, Sensitivity

#: The shares of the noise at which the next level of the legend begins.
LEVELS = (0.01, 0.03, 0.1, 0.3)


@dataclass(frozen=True)
class Cell:
    """One weighted layer.

    Attributes:
        node: The name of the layer's node.
        operator: The node's operator; empty where it is not known.
        precision: ``INT8``, ``FP16``, ``BF16``, ``FP32``, ``float`` where the Q/DQ model is the only source,
            or ``unknown``.
        noise_share: The layer's share of the noise of all layers, each measured alone, in [0, 1]; None where
            it was not measured.
        level: The level of ``noise_share``, from 0 to ``len(LEVELS)``; None where it was not measured.
        alone_db: SQNR of the network's output with only this layer in INT8, in decibels.
        cumulative_db: SQNR of the layer's output with every layer in INT8, in decibels.
    """

    node: str
    operator: str
    precision: str
    noise_share: float | None = None
    level: int | None = None
    alone_db: float | None = None
    cumulative_db: float | None = None


def make_cells(
    qdq: ir.Model | None, engine: EngineInfo | None, sensitivity: Sensitivity | None
) -> tuple[Cell, ...]:
    """Makes the cells of the weighted layers, in the order of the graph.

    Precisions are taken from the engine's own list of layers. Without it they are those that the Q/DQ pairs
    ask for.

    Args:
        qdq: The Q/DQ model, or None.
        engine: The engine's sidecar, or None.
        sensitivity: The sensitivity of the layers, or None.

    Returns:
        One cell per weighted layer; empty where no source names the layers.
    """
    measured = {layer.node: layer for layer in sensitivity.layers} if sensitivity else {}
    cells = []
    for node, (operator, intended) in _intended(qdq, engine, sensitivity).items():
        precision = intended
        if engine and engine.layers:
            precision = engine.layers.precision_of(node) or "unknown"
        cells.append(make_cell(node, operator, precision, measured.get(node)))
    return tuple(cells)


def noise_level(noise_share: float) -> int:
    """The level of a share of the noise: 0 below the first of :data:`LEVELS`, one more at each of them."""
    return bisect_right(LEVELS, noise_share)


def make_cell(node: str, operator: str, precision: str, measured: LayerSensitivity | None) -> Cell:
    """Makes the cell of one node; ``measured`` is what its quantization costs, None where not measured."""
    if measured is None:
        return Cell(node, operator, precision)
    share = measured.noise_share
    return Cell(
        node, operator, precision, share, noise_level(share), measured.only.sqnr_db, measured.cumulative_db
    )


def _intended(
    qdq: ir.Model | None, engine: EngineInfo | None, sensitivity: Sensitivity | None
) -> dict[str, tuple[str, str]]:
    """The name of each weighted node to its operator and to the precision that it was meant to have."""
    if qdq is not None:
        return {
            node.name or "": (node.op_type, "INT8" if reads_int8(node) else "float")
            for node in qdq.graph
            if operator_of(node).is_weighted
        }
    if engine is not None:
        return dict.fromkeys(engine.quantized_nodes, ("", "INT8"))
    layers = sensitivity.layers if sensitivity else ()
    return {
        layer.node: (layer.operator, "INT8") for layer in layers if operator_named(layer.operator).is_weighted
    }


def reads_int8(node: ir.Node) -> bool:
    """Whether a node's first two inputs are dequantized."""
    producers = [value.producer() if value is not None else None for value in node.inputs[:2]]
    return all(node is not None and node.op_type == "DequantizeLinear" for node in producers)
