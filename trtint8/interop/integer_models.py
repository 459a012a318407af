"""Brings models whose operators compute on integers into Q/DQ form, and says which nodes stay and why."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import common

from trtint8.interop.expand_dynamic import ExpandDynamicPass
from trtint8.interop.expand_qlinear import ExpandQLinearPass, is_qlinear, qlinear_obstacle
from trtint8.interop.float_movement import FloatMovementPass
from trtint8.interop.integer_product import FLOAT_COUNTERPARTS, IntegerProduct, integer_product
from trtint8.interop.pairs import INTEGER_TYPES, agree, read_parameters
from trtint8.models.graph_constants import is_constant
from trtint8.models.loading.opset import with_opset
from trtint8.models.model import OLDEST_OPSET
from trtint8.models.onnx_errors import run_passes
from trtint8.models.passes.inline_functions import InlineFunctionsPass
from trtint8.models.passes.name_nodes import NameNodesPass

#: Operators that compute on integers whose scales are computed at run time, so that no Q/DQ pairs can replace
#: them. ONNX Runtime sums their products exactly on every processor only in an optimized graph.
RUN_TIME_SCALES = frozenset(
    {*FLOAT_COUNTERPARTS, "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"}
)

#: Operators of ONNX Runtime that compute on integers with constant scales, and that are not replaced.
_NOT_REPLACED = frozenset({"QAttention", "QLinearReduceMean"})

_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")


@dataclass(frozen=True)
class Expanded:
    """A model whose integer operators were replaced, as far as possible.

    Attributes:
        original: The model as it was, with a unique name for every node, and initializers in place of
            Constant nodes.
        graph_model: The model with Q/DQ pairs instead. The node that replaces an operator has its name.
        dynamic: Names of the weighted nodes that are float now because the scale of their input was computed
            at run time.
        moved: Names of the nodes that moved integers.
        obstacles: Name of a node that still computes on integers to the reason.
    """

    original: ir.Model
    graph_model: ir.Model
    dynamic: tuple[str, ...]
    moved: tuple[str, ...]
    obstacles: dict[str, str]


def expand(model: ir.Model, name: str) -> Expanded:
    """Replaces integer operators by Q/DQ pairs around float operators, or by float operators alone.

    Args:
        model: Any model; not changed.
        name: The model's name in messages.

    Returns:
        The new model, and the reasons why nodes could not be replaced. The nodes of the model's own functions
        take the place of those that call them.

    Raises:
        ModelError: A node is not as its operator demands.
    """
    original = model.clone()
    run_passes(original, name, InlineFunctionsPass(), _lift_constants(), NameNodesPass())
    graph_model, movement = original.clone(), FloatMovementPass()
    run_passes(graph_model, name, ExpandQLinearPass(), movement)
    dynamic = tuple(node.name or "" for node in graph_model.graph if _is_dynamic(node))
    run_passes(
        graph_model,
        name,
        ExpandDynamicPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
    )
    names = {node.name for node in original.graph}
    obstacles = {
        _original_name(node, names): obstacle
        for node in graph_model.graph
        if (obstacle := _obstacle(graph_model, node)) is not None
    }
    return Expanded(original, graph_model, dynamic, tuple(movement.moved), obstacles)


def integer_operators(model: ir.Model) -> tuple[str, ...]:
    """Types of the operators that compute on integers, each once, in alphabetical order."""
    integer = RUN_TIME_SCALES | _NOT_REPLACED
    return tuple(
        sorted({node.op_type for node in model.graph if is_qlinear(node) or node.op_type in integer})
    )


def expand_static(model: ir.Model, name: str) -> ir.Model:
    """Replaces integer operators whose scales are constants by Q/DQ pairs around float operators.

    Args:
        model: Any model; not changed.
        name: The model's name in messages.

    Returns:
        A model that computes the same, except for float rounding, of opset 13 or later. Operators whose
        scales are computed at run time stay, because no Q/DQ pairs can replace them.

    Raises:
        ModelError: It cannot be converted to opset 13.
    """
    expanded = model.clone()
    # What replaces a node is named after it.
    run_passes(expanded, name, _lift_constants(), NameNodesPass(), ExpandQLinearPass())
    return with_opset(expanded, OLDEST_OPSET, name)


def _lift_constants() -> ir.passes.InPlacePass:
    """Replaces Constant nodes by initializers, whose types are always known."""
    return common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)


def _original_name(node: ir.Node, names: set[str | None]) -> str:
    """The name of a node, or, where an expansion inserted it, of the node that was expanded."""
    if node.name in names:
        return node.name or ""
    if node.op_type == "DequantizeLinear":
        return next(reader.name or "" for reader, _ in node.outputs[0].uses())
    producer = node.inputs[0].producer() if node.inputs[0] is not None else None
    return (producer.name if producer is not None else None) or ""


def _is_dynamic(node: ir.Node) -> bool:
    product = integer_product(node) if node.op_type in FLOAT_COUNTERPARTS else None
    return isinstance(product, IntegerProduct) and product.is_dynamic


def _obstacle(model: ir.Model, node: ir.Node) -> str | None:
    """Why a node of an expanded model belongs neither to a Q/DQ pair nor to the float operators."""
    if is_qlinear(node):
        return qlinear_obstacle(model, node)
    if node.op_type in FLOAT_COUNTERPARTS:
        product = integer_product(node)
        return product if isinstance(product, str) else None
    if node.op_type == "DequantizeLinear":
        return _unpaired(node)
    if node.op_type in _QUANTIZERS:
        output = node.outputs[0]
        return (
            f"its integers '{output.name}' are an output of the model" if output.is_graph_output() else None
        )
    for value in node.inputs:
        producer = value.producer() if value is not None else None
        stored = node.domain != "" and is_constant(value)
        quantized = producer is not None and producer.op_type in _QUANTIZERS
        if value is not None and (quantized or (stored and value.dtype in INTEGER_TYPES)):
            return f"it computes on the integers of '{value.name}'"
    return None


def _unpaired(node: ir.Node) -> str | None:
    """Why a DequantizeLinear is not the second node of a pair."""
    source = node.inputs[0]
    if source is None or is_constant(source):
        return None
    quantize = source.producer()
    if quantize is None or quantize.op_type not in _QUANTIZERS:
        return f"it dequantizes '{source.name}', which no QuantizeLinear makes"
    own, paired = read_parameters(node), read_parameters(quantize)
    if own is not None and paired is not None and not agree(own, paired):
        return f"its scale or zero point is not that of '{quantize.name}', which quantizes its input"
    return None
