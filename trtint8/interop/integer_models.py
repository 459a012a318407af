"""Models whose operators compute on whole numbers, brought into Q/DQ form, and what stands in the way."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import common

from trtint8.interop.expand_dynamic import ExpandDynamicPass
from trtint8.interop.expand_qlinear import ExpandQLinearPass, is_qlinear, qlinear_obstacle
from trtint8.interop.float_movement import FloatMovementPass
from trtint8.interop.integer_product import INTEGER, IntegerProduct, integer_product
from trtint8.interop.pairs import WHOLE, agree, parameters_of
from trtint8.models.graph_constants import constant
from trtint8.models.passes.name_nodes import NameNodesPass

#: ONNX Runtime's operators that compute on integers and that are not expanded.
_CONTRIBUTED = frozenset(
    {
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "MatMulIntegerToFloat",
        "QAttention",
        "QLinearReduceMean",
    }
)

_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")


@dataclass(frozen=True)
class Expanded:
    """A model without integer operators, as far as they could be taken out.

    Attributes:
        original: The model as it was, with a unique name for every node.
        graph_model: The same with Q/DQ pairs instead. What an operator became has its name.
        dynamic: Names of the weighted nodes whose input had a scale computed at run time, float now.
        moved: Names of the nodes that moved whole numbers.
        obstacles: Name of a node that still computes on whole numbers, to why.
    """

    original: ir.Model
    graph_model: ir.Model
    dynamic: tuple[str, ...]
    moved: tuple[str, ...]
    obstacles: dict[str, str]


def expand(model: ir.Model) -> Expanded:
    """Turns integer operators into Q/DQ pairs around float operators, or into float ones.

    Args:
        model: In any form; not changed.

    Returns:
        The model, and what is in the way.
    """
    original = model.clone()
    NameNodesPass()(original)
    graph_model = original.clone()
    ExpandQLinearPass()(graph_model)
    movement = FloatMovementPass()
    movement(graph_model)
    dynamic = tuple(node.name or "" for node in graph_model.graph if _is_dynamic(node))
    ir.passes.Sequential(
        ExpandDynamicPass(), common.RemoveUnusedNodesPass(), common.RemoveUnusedOpsetsPass()
    )(graph_model)
    names = {node.name for node in original.graph}
    obstacles = {
        _blamed(node, names): obstacle
        for node in graph_model.graph
        if (obstacle := _obstacle(graph_model, node)) is not None
    }
    return Expanded(original, graph_model, dynamic, tuple(movement.moved), obstacles)


def integer_operators(model: ir.Model) -> tuple[str, ...]:
    """Types of the operators that compute on integers, each once, in alphabetical order."""
    found = {
        node.op_type
        for node in model.graph
        if is_qlinear(node) or node.op_type in INTEGER or node.op_type in _CONTRIBUTED
    }
    return tuple(sorted(found))


def expand_static(model: ir.Model) -> ir.Model:
    """Turns integer operators whose scales are constants into Q/DQ pairs around float operators.

    Args:
        model: In any form; not changed.

    Returns:
        A model that computes the same, but for float rounding. What has scales that are computed at run time
        stays, because no Q/DQ pair stands for it.
    """
    expanded = model.clone()
    ExpandQLinearPass()(expanded)
    return expanded


def _blamed(node: ir.Node, names: set[str | None]) -> str:
    """The name of a node, or, where an expansion put it there, of the one that was expanded."""
    if node.name in names:
        return node.name or ""
    if node.op_type == "DequantizeLinear":
        return next(reader.name or "" for reader, _ in node.outputs[0].uses())
    producer = node.inputs[0].producer() if node.inputs[0] is not None else None
    return (producer.name if producer is not None else None) or ""


def _is_dynamic(node: ir.Node) -> bool:
    product = integer_product(node) if node.op_type in INTEGER else None
    return isinstance(product, IntegerProduct) and product.is_dynamic


def _obstacle(model: ir.Model, node: ir.Node) -> str | None:
    """What keeps a node of an expanded model from being one of Q/DQ pairs and float operators."""
    if is_qlinear(node):
        return qlinear_obstacle(model, node)
    if node.op_type in INTEGER:
        product = integer_product(node)
        return product if isinstance(product, str) else None
    if node.op_type == "DequantizeLinear":
        return _unpaired(node)
    if node.op_type in _QUANTIZERS:
        caller = node.outputs[0].is_graph_output()
        return f"its whole numbers '{node.outputs[0].name}' are an output of the model" if caller else None
    for value in node.inputs:
        producer = value.producer() if value is not None else None
        stored = node.domain != "" and constant(value) is not None and value is not None
        quantized = producer is not None and producer.op_type in _QUANTIZERS
        if value is not None and (quantized or (stored and value.dtype in WHOLE)):
            return f"it computes on the whole numbers of '{value.name}'"
    return None


def _unpaired(node: ir.Node) -> str | None:
    source = node.inputs[0]
    if constant(source) is not None or source is None:
        return None
    quantize = source.producer()
    if quantize is None or quantize.op_type not in _QUANTIZERS:
        return f"it dequantizes '{source.name}', which no QuantizeLinear makes"
    ours, theirs = parameters_of(node), parameters_of(quantize)
    if ours is not None and theirs is not None and not agree(ours, theirs):
        return f"its scale or zero point is not that of '{quantize.name}', which quantizes its input"
    return None
