"""Which values an input takes, as far as the graph tells."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from calibrators.operators import Values, operator_of


def hides_scores(value: ir.Value) -> bool:
    """True if an input is only added to what a softmax reads, or is the mask of an attention.

    There minus infinity hides scores: the result is finite, and no layer reads the infinite numbers. What is
    added to a convolution's result is none, because it may get a Q/DQ pair.

    Args:
        value: An input of the graph.
    """
    hides = False
    waiting, seen = [value], {value}
    while waiting:
        current = waiting.pop()
        if current.is_graph_output():
            return False
        for node, index in current.uses():
            operator = operator_of(node)
            if operator.reads_shape:
                continue
            if operator.hides == index:
                hides = True
            elif any(map(_is_convolved, node.inputs)):
                return False
            elif (node.op_type, node.domain) == ("Add", "") or _is_moved(node, index):
                added = [output for output in node.outputs if output not in seen]
                seen.update(added)
                waiting.extend(added)
            else:
                return False
    return hides


def _is_convolved(value: ir.Value | None) -> bool:
    node = value.producer() if value is not None else None
    return node is not None and operator_of(node).is_convolution


def _is_moved(node: ir.Node, index: int) -> bool:
    """Whether a node gives out the values of an input, perhaps in another type."""
    operator = operator_of(node)
    moves = operator.moves or operator.values is Values.CONVERTED
    return moves and index in operator.data_among(len(node.inputs))


def input_bound(value: ir.Value) -> int | None:
    """The least integer above all values that an integer input takes.

    An input that is an index of rows of a constant table takes the rows' numbers. One that is converted to a
    boolean, or subtracted from one, is a mask of zeros and ones.

    Args:
        value: An input of the graph.

    Returns:
        The number of rows of the smallest such table, else 2 for a mask; None where neither is found.
    """
    rows: list[int] = []
    is_mask = False
    waiting, seen = [value], {value}
    while waiting:
        for node, index in waiting.pop().uses():
            if node.op_type == "Gather" and index == 1:
                rows += _table_rows(node)
            elif node.op_type == "Sub" and index == 1:
                is_mask = is_mask or _is_one(node.inputs[0])
            elif _is_moved(node, index):
                moved = node.outputs[0]
                is_mask = is_mask or node.attributes.get_int("to", 0) == ir.DataType.BOOL
                if moved not in seen:
                    seen.add(moved)
                    waiting.append(moved)
    return min(rows) if rows else 2 if is_mask else None


def _table_rows(gather: ir.Node) -> list[int]:
    """The number of rows of the constant table that a node takes rows of; none where it is something else."""
    table = gather.inputs[0]
    tensor = None if table is None else ir.convenience.get_const_tensor(table)
    if tensor is None or gather.attributes.get_int("axis", 0) != 0 or not len(tensor.shape):
        return []
    size = tensor.shape[0]
    return [size] if isinstance(size, int) and size > 0 else []


def _is_one(value: ir.Value | None) -> bool:
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return tensor is not None and tensor.size == 1 and bool(np.all(tensor.numpy() == 1))
