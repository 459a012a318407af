"""Converts between ncnn's tables, which name layers, and calibration tables, which name tensors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators import records
from calibrators.errors import TableError
from calibrators.operators import operator_of
from calibrators.tables.formats import ncnn
from calibrators.tables.table import CalibrationTable
from trtint8.models.graph_constants import is_constant, read_constant
from trtint8.models.model import load_model, prepare
from trtint8.quantization.operators import weight_axis

#: The largest table or network of ncnn that is read, in bytes; that of ResNet-152 has half a megabyte.
_MOST_BYTES = 16 << 20


def read_ncnn_table(
    path: str | os.PathLike[str], network: str | os.PathLike[str]
) -> tuple[CalibrationTable, tuple[str, ...]]:
    """Reads a table of ncnn.

    Args:
        path: The ``.table`` file.
        network: The ``.param`` file of the network, or the ONNX model whose node names its layers have.

    Returns:
        The calibration table, and the names of the layers whose weight ranges were written for a Winograd
        transformation; the names are only found where ``network`` is an ONNX model.

    Raises:
        TableError: A file is malformed, or the network lacks a layer.
        ModelError: The ONNX model is unusable.
    """
    content = ncnn.parse(_read(path), os.fspath(path))
    if Path(network).suffix.lower() == ".param":
        inputs = ncnn.layer_inputs(_read(network), os.fspath(network))
        return CalibrationTable(content.tensors(inputs)), ()
    nodes = _weighted(network)
    inputs = {name: node.inputs[0].name or "" for name, node in nodes.items() if node.inputs[0] is not None}
    winograd = tuple(
        name
        for name, node in nodes.items()
        if f"{name}_param_0" in content.weights
        and _is_3x3_stride_1(node)
        and ncnn.is_winograd(content.weights[f"{name}_param_0"], _weights(node))
    )
    return CalibrationTable(content.tensors(inputs)), winograd


def render_ncnn_table(table: CalibrationTable, model: str | os.PathLike[str]) -> bytes:
    """Renders a table for ncnn, with layers named like the model's nodes.

    Args:
        table: The calibration table.
        model: The path of the float ONNX model.

    Returns:
        The content of the ``.table`` file.

    Raises:
        TableError: A layer's input has no range.
        ModelError: The model is unusable.
    """
    nodes = _weighted(model)
    inputs = {name: node.inputs[0].name or "" for name, node in nodes.items() if node.inputs[0] is not None}
    missing = [tensor for tensor in inputs.values() if tensor not in table.amax]
    if missing:
        raise TableError(
            f"the table has no range for '{missing[0]}', which a layer reads; calibrate this model"
        )
    weights = {}
    for name, node in nodes.items():
        channels = _weights(node)
        weights[f"{name}_param_0"] = tuple(
            float(amax) for amax in np.abs(channels.reshape(len(channels), -1)).max(axis=1)
        )
    activations = {name: table.amax[tensor] for name, tensor in inputs.items()}
    return ncnn.render(ncnn.NcnnTable(activations, weights))


def _weighted(model: str | os.PathLike[str]) -> dict[str, ir.Node]:
    """The layers that ncnn quantizes: convolutions and inner products with constant weights."""
    graph = prepare(load_model(model)).graph_model.graph
    return {
        (node.name or "").replace(" ", "_"): node
        for node in graph
        if operator_of(node).is_weighted and len(node.inputs) > 1 and is_constant(node.inputs[1])
    }


def _weights(node: ir.Node) -> NDArray[Any]:
    """A node's weights, with the output channels along the first axis."""
    value = node.inputs[1]
    weights = read_constant(value)
    assert value is not None and weights is not None
    return np.moveaxis(weights, weight_axis(node, value) or 0, 0)


def _is_3x3_stride_1(node: ir.Node) -> bool:
    strides = node.attributes.get_ints("strides", [1, 1])
    return node.op_type == "Conv" and _weights(node).shape[2:] == (3, 3) and list(strides) == [1, 1]


def _read(path: str | os.PathLike[str]) -> bytes:
    with records.reading(f"'{os.fspath(path)}'", TableError):
        return records.read_bytes(path, _MOST_BYTES)
