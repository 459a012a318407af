"""Brings models whose operators compute on integers into Q/DQ form, and says which nodes stay and why."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import common

from calibrators.errors import ModelError
from calibrators.operators import operator_of
from trtint8.interop.expand_dynamic import ExpandDynamicPass
from trtint8.interop.expand_qlinear import ExpandQLinearPass, is_qlinear, qlinear_obstacle
from trtint8.interop.float_movement import FloatMovementPass
from trtint8.interop.integer_product import FLOAT_COUNTERPARTS, IntegerProduct, integer_product
from trtint8.interop.pairs import INTEGER_TYPES, agree, quantized_type, read_parameters
from trtint8.interop.stored_integers import quantized_values
from trtint8.models.graph_constants import add_initializer, is_constant, read_constant
from trtint8.models.inner_graphs import nodes_inside
from trtint8.models.loading.opset import with_opset
from trtint8.models.model import OLDEST_OPSET
from trtint8.models.onnx_errors import as_model_errors, run_passes
from trtint8.models.passes.fold_constants import FoldConstantsPass
from trtint8.models.passes.inline_functions import InlineFunctionsPass
from trtint8.models.passes.name_nodes import NameNodesPass

_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")


@dataclass(frozen=True)
class Expanded:
    """A model whose integer operators were replaced, as far as possible.

    Attributes:
        original: The model as it was, with the nodes of functions in place of those that call them, a unique
            name for every node, and constants in place of the nodes that compute them, except pairs.
        graph_model: The model with Q/DQ pairs instead. The node that replaces an operator has its name.
        dynamic: Names of the weighted nodes that are float now because the scale of their input was computed
            at run time.
        moved: Names of the nodes that moved integers.
        obstacles: Name of a node that still computes on integers to the reason.
        folded: Name of a node that computed integers, a scale or a zero point of constants to its operator.
    """

    original: ir.Model
    graph_model: ir.Model
    dynamic: tuple[str, ...]
    moved: tuple[str, ...]
    obstacles: dict[str, str]
    folded: dict[str, str]


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
    with as_model_errors(name, "cannot be prepared"):
        folded = _fold(original)
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
        original_name(node, names): obstacle
        for node in graph_model.graph
        if (obstacle := _obstacle(graph_model, node)) is not None
    }
    return Expanded(original, graph_model, dynamic, tuple(movement.moved), obstacles, folded)


def integer_operators(model: ir.Model) -> tuple[str, ...]:
    """Types of the operators that compute on integers, each once, in alphabetical order."""
    return tuple(sorted({node.op_type for node in model.graph if operator_of(node).integers is not None}))


def refuse_float(graph_model: ir.Model, name: str) -> None:
    """Refuses a model whose main graph holds neither pairs nor operators on integers.

    Raises:
        ModelError: It is a float model, or its pairs are in the graphs of nodes.
    """
    if integer_operators(graph_model) or any(operator_of(node).half_of_pair for node in graph_model.graph):
        return
    for node in graph_model.graph:
        if any(operator_of(inner).half_of_pair for inner in nodes_inside(node)):
            raise ModelError(
                f"the Q/DQ pairs of '{name}' are in the graphs of {node.op_type} '{node.name}', and only the "
                "main graph is looked at; export the branch that you need as a model of its own"
            )
    raise ModelError(
        f"'{name}' is a float model, with no Q/DQ pairs to look at; give a quantized model, or quantize it "
        "with 'trtint8 calibrate' and 'trtint8 quantize'"
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


def _fold(model: ir.Model) -> dict[str, str]:
    """Computes what nodes make of constants, except the values of pairs, in place.

    Returns:
        Name to operator of the nodes that computed integers, a scale or a zero point.
    """
    before = {node: node.op_type for node in _before_pairs(model.graph)}
    FoldConstantsPass()(model)
    for node in list(model.graph):
        readers = (reader.op_type for reader, _ in node.outputs[0].uses())
        if node.op_type == "QuantizeLinear" and any(reader != "DequantizeLinear" for reader in readers):
            _store_integers(model.graph, node)
    FoldConstantsPass()(model)
    return {node.name or "": operator for node, operator in before.items() if node.graph is None}


def _before_pairs(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes before the scale, the zero point or the integers of a pair, back to the last quantizer."""
    pending = [
        value
        for node in graph
        if operator_of(node).half_of_pair
        for value in node.inputs[node.op_type == "QuantizeLinear" :]
    ]
    seen = set()
    while pending:
        value = pending.pop()
        node = value.producer() if value is not None else None
        if node is not None and node not in seen and node.op_type not in _QUANTIZERS:
            seen.add(node)
            yield node
            pending += node.inputs


def _store_integers(graph: ir.Graph, node: ir.Node) -> None:
    """Replaces a QuantizeLinear of a constant by its integers, so that movements of them fold."""
    weights, dtype = read_constant(node.inputs[0]), quantized_type(node)
    output = node.outputs[0]
    if weights is None or dtype is None or not dtype.is_integer() or output.is_graph_output():
        return
    if any(read_constant(value) is None for value in node.inputs[1:] if value is not None):
        return
    integers = quantized_values(node, weights).astype(dtype.numpy())
    name, output.name = output.name or "", f"{output.name}_computed"
    output.replace_all_uses_with(add_initializer(graph, name, integers))
    graph.remove(node, safe=True)


def original_name(node: ir.Node, names: set[str | None]) -> str:
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
        return None
    for value in itertools.chain(node.inputs, *(inner.inputs for inner in nodes_inside(node))):
        producer = value.producer() if value is not None else None
        stored = node.domain != "" and is_constant(value)
        # Graphs inside a node may have pairs of their own.
        quantized = producer is not None and producer.op_type in _QUANTIZERS and producer.graph is node.graph
        if value is not None and (quantized or (stored and value.dtype in INTEGER_TYPES)):
            return f"it computes on the integers of '{value.name}'"
    return None


def _unpaired(node: ir.Node) -> str | None:
    """Why a DequantizeLinear is not the second node of a pair."""
    source = node.inputs[0]
    if source is None or is_constant(source):
        return None
    quantize = source.producer()
    if source.is_graph_input() and source.dtype in INTEGER_TYPES:
        return None
    if quantize is None or quantize.op_type not in _QUANTIZERS:
        return f"it dequantizes '{source.name}', which no QuantizeLinear makes"
    own, paired = read_parameters(node), read_parameters(quantize)
    if (
        own is not None
        and paired is not None
        and not is_constant(quantize.inputs[0])
        and not agree(own, paired)
    ):
        return f"its scale or zero point is not that of '{quantize.name}', which quantizes its input"
    return None
