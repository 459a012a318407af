"""Which integers an input takes, as far as the graph tells."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

#: Operators that only move the values of their first input, or give them another type.
_MOVEMENTS = frozenset(
    {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Slice", "Expand"}
)


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
            elif node.op_type in _MOVEMENTS and index == 0:
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
