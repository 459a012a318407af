"""What a node computes of constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.operators import operator_of
from trtint8.models.passes.integer_nodes import compute_integers


def compute_node(node: ir.Node, arrays: Mapping[str, NDArray[Any]], opset: int) -> NDArray[Any]:
    """Computes the first output of a node of the standard domain.

    Args:
        node: The node.
        arrays: The values of all its inputs, by their names.
        opset: The version of the operators, 13 or later.

    Raises:
        Exception: Of any kind, where the inputs do not fit the operator or nobody can compute it.
    """
    if node.op_type == "Identity":
        return next(iter(arrays.values()))
    inputs = [None if value is None else arrays[value.name or ""] for value in node.inputs]
    if _is_computed_otherwise(node, inputs):
        raise NotImplementedError(f"ONNX's reference computes {node.op_type} '{node.name}' otherwise")
    computed = compute_integers(node, inputs)
    if computed is not None:
        return computed
    # Imported late: few models have anything else to compute, and the import takes a twentieth of a second.
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(ir.to_proto(node), opsets={"": opset})
    # Exporters write such things as the logarithm of zero, whose result a Where leaves out.
    with np.errstate(all="ignore"):
        return np.asarray(next(iter(evaluator.run(None, dict(arrays)))))


def _is_computed_otherwise(node: ir.Node, inputs: Sequence[NDArray[Any] | None]) -> bool:
    """Whether ONNX's reference computes other numbers than ONNX Runtime and TensorRT."""
    if node.op_type == "Slice":
        return _begins_or_ends_outside(*inputs)
    if operator_of(node).pools:  # it takes paddings, dilations and rounded sizes otherwise
        return True
    if node.op_type == "MaxUnpool":  # takes places in the larger output for those in the smaller one
        return len(inputs) > 2 and inputs[2] is not None
    if node.op_type == "LpNormalization":
        return node.attributes.get_int("p", 2) == 1  # by sums of the values, not of their magnitudes
    if node.op_type != "Resize":
        return False
    # Given scales, it aligns corners by the scaled size before that is rounded to a whole number.
    by_scales = len(node.inputs) > 2 and node.inputs[2] is not None
    aligned = node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "align_corners"
    return aligned and (by_scales or bool(node.attributes.get_int("antialias", 0)))


def _begins_or_ends_outside(
    data: NDArray[Any] | None,
    starts: NDArray[Any] | None,
    ends: NDArray[Any] | None,
    axes: NDArray[Any] | None = None,
    steps: NDArray[Any] | None = None,
) -> bool:
    """Whether a Slice goes backwards from before the first element, or to behind the last one.

    ONNX Runtime begins at the first element then, and takes the largest integer for an open end; Python's
    slices, and with them ONNX's reference, give nothing.
    """
    if data is None or starts is None or ends is None or steps is None:
        return False
    sizes = data.shape if axes is None else [data.shape[axis] for axis in axes.tolist()]
    bounds = zip(sizes, starts.tolist(), ends.tolist(), steps.tolist(), strict=False)
    return any(step < 0 and (start < -size or end >= size) for size, start, end, step in bounds)
