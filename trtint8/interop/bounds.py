"""Between which ends the values of a tensor lie, whatever the input, as far as its operators tell."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from calibrators.operators import Values, operator_of
from trtint8.interop.float_movement import extrapolates
from trtint8.interop.grids import grid_of
from trtint8.interop.pairs import input_at
from trtint8.models.graph_constants import constant_input, read_constant

#: The lowest and the highest value.
Ends = tuple[float, float]

#: The ends of a tensor of which nothing is known.
OPEN: Ends = (-math.inf, math.inf)


class Bounds:
    """The ends of the values of a graph that is walked through in its order, and changed on the way."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, Ends] = {}

    def __getitem__(self, value: ir.Value | None) -> Ends:
        """The ends of a value; open where they are not known, or where nothing is read."""
        if value is None:
            return OPEN
        if value not in self._known and (stored := read_constant(value)) is not None:
            number = stored.dtype.kind in "iuf" and stored.size > 0
            self._known[value] = (float(stored.min()), float(stored.max())) if number else OPEN
        return self._known.get(value, OPEN)

    def __setitem__(self, value: ir.Value, ends: Ends) -> None:
        self._known[value] = ends

    def follow(self, node: ir.Node) -> None:
        """Notes the ends of what a node computes; those of what it reads were noted before."""
        ends = self._computed(node) if node.domain == "" else OPEN
        if ends != OPEN:
            results = operator_of(node).results
            for output in node.outputs if results is None else node.outputs[:1]:
                self[output] = ends

    def _computed(self, node: ir.Node) -> Ends:
        operator, row = node.op_type, operator_of(node)
        if operator == "DequantizeLinear":
            return self._dequantized(node)
        if operator in ("Add", "Mul"):
            return self._product_or_sum(node)
        low, high = self[input_at(node, 0)]
        if operator == "Relu":
            return max(low, 0.0), max(high, 0.0)
        if operator == "Clip":
            least, most = (
                end if (given := constant_input(node, index)) is None else float(given)
                for index, end in ((1, -math.inf), (2, math.inf))
            )
            return min(max(low, least), most), min(max(high, least), most)
        if row.values is Values.COMPUTED or row.values is Values.CONVERTED or _overshoots(node):
            return row.ends
        data = (node.inputs[index] for index in row.data_among(len(node.inputs)))
        sources = [self[value] for value in data if value is not None]
        if row.values is Values.AVERAGED_WITH_ZEROS or (operator == "Pad" and input_at(node, 2) is None):
            sources.append((0.0, 0.0))
        return min(one[0] for one in sources), max(one[1] for one in sources)

    def _product_or_sum(self, node: ir.Node) -> Ends:
        (low, high), (other_low, other_high) = (self[value] for value in node.inputs)
        if node.op_type == "Add":
            return low + other_low, high + other_high
        return (0.0, math.inf) if low >= 0 and other_low >= 0 else OPEN

    def _dequantized(self, node: ir.Node) -> Ends:
        quantize = node.inputs[0].producer() if node.inputs[0] is not None else None
        if quantize is None or quantize.op_type != "QuantizeLinear":
            return OPEN
        low, high = grid_of(quantize).ends
        return float(np.min(low)), float(np.max(high))


def _overshoots(node: ir.Node) -> bool:
    """Whether results of a node may lie beyond the values of its data."""
    return "cubic" in node.attributes.get_string("mode", "") or extrapolates(node)
