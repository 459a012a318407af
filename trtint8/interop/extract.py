"""Reads the calibration table out of a Q/DQ model."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from calibrators.errors import ModelError
from calibrators.tables.table import CalibrationTable
from trtint8.interop.grids import grid_of
from trtint8.interop.integer_models import expand
from trtint8.models.graph_constants import is_constant, read_constant
from trtint8.models.model import Model


def extract_table(model: Model) -> CalibrationTable:
    """Reads the range of every quantized activation.

    Args:
        model: A model with Q/DQ pairs, made by any tool.

    Returns:
        Tensor name to amax, in the graph's order: the largest magnitude that the integers represent. For
        int8 with the zero point 0, ``amax / 127`` in float32 gives back exactly the scales.

    Raises:
        ModelError: The model has no Q/DQ pairs on activations, the scale of an activation is not one
            constant positive number, or an activation is quantized to no integer type.
    """
    graph = expand(model.graph_model, model.name).original.graph
    amax: dict[str, float] = {}
    for node in graph:
        if node.op_type != "QuantizeLinear" or node.inputs[0] is None:
            continue
        if is_constant(node.inputs[0]):
            continue  # weights
        name = node.inputs[0].name or ""
        _refuse_scale(node, name)
        largest = grid_of(node).amax
        if amax.setdefault(name, largest) != largest:
            raise ModelError(
                f"tensor '{name}' of '{model.name}' is quantized with two ranges, up to {amax[name]:g} and "
                f"up to {largest:g}; a table has room for one"
            )
    if not amax:
        raise ModelError(f"'{model.name}' has no Q/DQ pairs on activations, so there is no table in it")
    return CalibrationTable(amax)


def _refuse_scale(node: ir.Node, tensor: str) -> None:
    constant = read_constant(node.inputs[1])
    if constant is None:
        raise ModelError(f"the scale of tensor '{tensor}' is computed at run time; a table needs a constant")
    scales = np.asarray(constant, np.float32).reshape(-1)
    if len(scales) != 1 or not (np.isfinite(scales[0]) and scales[0] > 0):
        raise ModelError(
            f"tensor '{tensor}' has {len(scales)} scales, the first {scales[:1]}; an activation has one "
            "positive scale"
        )


def pair_ranges(model: ir.Model) -> dict[str, float]:
    """The ranges of a model whose pairs are as TensorRT has them.

    Returns:
        Name of each activation that a pair reads to its amax, in graph order.
    """
    pairs = (node for node in model.graph if node.op_type == "QuantizeLinear")
    return {
        node.inputs[0].name or "": grid_of(node).amax
        for node in pairs
        if node.inputs[0] is not None and not is_constant(node.inputs[0])
    }
