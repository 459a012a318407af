"""The opset of a model: imported once, converted to a newer one, or lowered to one that can be run."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from trtint8.models.graph_constants import take_name, value_names
from trtint8.models.inner_graphs import message_graphs
from trtint8.models.loading.old_operators import (
    OPSET_OF_SCANS,
    mend_old_operators,
    refuse_old_operators,
    set_old_scans_apart,
)
from trtint8.models.loading.sequence_types import declare_sequences
from trtint8.models.loading.unknown_sizes import clear_new_names, names_to_keep
from trtint8.models.loading.unregistered import HIDDEN, hide, show
from trtint8.models.onnx_errors import as_model_errors
from trtint8.models.passes.infer_shapes import InferShapesPass
from trtint8.models.passes.inline_functions import InlineFunctionsPass

#: Initializers of up to so many bytes go through the converter, because it reads axes and shapes from them;
#: larger ones are weights.
_LARGEST_CONVERTED = 4096

#: The first IR version for opset 19 and later; checkers refuse older ones.
_IR_VERSION = 9

#: The newest opset in which ONNX Runtime has QuantizeLinear, DequantizeLinear and Cast.
_NEWEST = 27


#: The oldest opset from which on operators with the same inputs and attributes compute the same, and those
#: that do not.
_STABLE, _UNSTABLE = 13, frozenset({"Mod"})


def settle_function_opsets(message: onnx.ModelProto) -> None:
    """Lets functions import the opset of the model, where their operators are the same in both.

    ONNX Runtime takes functions of any opset. Their nodes take the place of those that call them, and ONNX's
    checker refuses an operator that has more types in one of the two opsets.

    Args:
        message: The model; changed. Functions of other operators stay as they are.
    """
    ours = next((opset.version for opset in message.opset_import if not opset.domain), 0)
    for function in message.functions:
        for opset in function.opset_import:
            nodes = (node for graph in message_graphs(function) for node in graph.node if not node.domain)
            if opset.domain or min(opset.version, ours) < _STABLE:
                continue
            if all(_is_same(node.op_type, opset.version, ours) for node in nodes):
                opset.version = ours


def with_known_opset(graph_model: ir.Model) -> ir.Model:
    """Lowers a model of an opset newer than ONNX Runtime's to one in which its operators are the same.

    Newer opsets often only add types to an operator, and ONNX Runtime runs all that they leave as it was. It
    has no pairs and casts of such an opset, which are put into models.

    Args:
        graph_model: Any model; the result may share its weights.

    Returns:
        A copy with another opset, in which the nodes of functions take the place of those that call them; the
        model itself where its opset is known, or means other operators.
    """
    old = graph_model.opset_imports.get("", 0)
    if old <= _NEWEST:
        return graph_model
    copy = graph_model.clone()
    InlineFunctionsPass()(copy)
    operators = {node.op_type for node in copy.graph.all_nodes() if node.domain == ""}
    if not all(operator in _UNSTABLE or _is_same(operator, old, _NEWEST) for operator in operators):
        return graph_model
    _write_float_remainders(copy)
    copy.opset_imports[""] = _NEWEST
    return copy


def _write_float_remainders(graph_model: ir.Model) -> None:
    """Writes remainders of floats that have the divisor's sign, which Mod has from opset 28 on only.

    Mod of older opsets has the dividend's sign, and where the two differ, the divisor is added.
    """
    nodes = [
        node
        for node in graph_model.graph.all_nodes()
        if (node.domain, node.op_type) == ("", "Mod") and not node.attributes.get_int("fmod", 0)
    ]
    if not nodes:
        return
    InferShapesPass()(graph_model)
    taken = value_names(graph_model.graph)
    for node in nodes:
        divisor, output, graph = node.inputs[1], node.outputs[0], node.graph
        if divisor is None or divisor.dtype is None or not divisor.dtype.is_floating_point():
            continue
        rest = ir.node("Mod", node.inputs, {"fmod": 1}, name=node.name)
        signs = [ir.node("Sign", [value]) for value in (rest.outputs[0], divisor)]
        product = ir.node("Mul", [sign.outputs[0] for sign in signs])
        size = ir.node("Abs", product.outputs)
        differ = ir.node("Less", [product.outputs[0], size.outputs[0]])
        moved = ir.node("Add", [rest.outputs[0], divisor])
        chosen = ir.node("Where", [differ.outputs[0], moved.outputs[0], rest.outputs[0]])
        new = [rest, *signs, product, size, differ, moved]
        for added in new:
            added.outputs[0].name = take_name(f"{output.name}_{added.op_type}", taken)
        assert isinstance(graph, ir.Graph)
        ir.convenience.replace_nodes_and_values(graph, node, [node], [*new, chosen], [output], chosen.outputs)


def _is_same(operator: str, first: int, second: int) -> bool:
    """Whether an operator has the same inputs, outputs, attributes and meaning in two opsets."""
    try:
        one, other = (onnx.defs.get_schema(operator, version) for version in (first, second))
    except onnx.defs.SchemaError:
        return False
    return one.since_version == other.since_version or (
        operator not in _UNSTABLE and _interface(one) == _interface(other)
    )


def _interface(schema: onnx.defs.OpSchema) -> tuple[object, ...]:
    """The names of an operator's inputs and outputs, and its attributes with their defaults."""
    attributes = {name: str(one.default_value) for name, one in schema.attributes.items()}
    return [one.name for one in schema.inputs], [one.name for one in schema.outputs], attributes


def with_opset(graph_model: ir.Model, opset: int, name: str) -> ir.Model:
    """Converts a model to an opset, unless its opset is at least as new.

    Weights do not go through ONNX's converter, so the model may be larger than protobuf's limit of 2 GiB. The
    converter knows no functions of the model, so their nodes take the place of those that call them.

    Args:
        graph_model: Any model; the result may share its weights.
        opset: The oldest opset that is recent enough; models with a Scan of opset 8 get one that is newer.
        name: The model's name in messages.

    Returns:
        The model itself where its opset is recent enough, else a converted model.

    Raises:
        ModelError: It cannot be converted.
    """
    old = graph_model.opset_imports.get("", 0)
    if old >= opset:
        return graph_model
    refuse_old_operators(graph_model, name)
    copy = graph_model.clone()
    if old < 9 and set_old_scans_apart(copy):
        opset = max(opset, OPSET_OF_SCANS)
    weights = {
        value.name or "": value.const_value
        for value in copy.graph.initializers.values()
        if value.const_value is not None and value.const_value.nbytes > _LARGEST_CONVERTED
    }
    listed = {value.name for value in copy.graph.inputs}
    for weight in weights:
        value = copy.graph.initializers.pop(weight)
        if weight not in listed:
            copy.graph.inputs.append(value)
    with as_model_errors(
        name,
        f"has opset {old}, {opset} is needed, and it cannot be converted",
        "export it with a newer opset",
    ):
        InlineFunctionsPass()(copy)
        hidden = ir.from_proto(hide(ir.to_proto(copy)))
        if HIDDEN in hidden.opset_imports:  # the converter looks at shapes behind what it does not know
            InferShapesPass()(hidden)
        message = onnx.version_converter.convert_version(ir.to_proto(hidden), opset)
        declare_sequences(message)  # the converter leaves their types out
        converted = ir.from_proto(message)
    inputs = {value.name or "": value for value in converted.graph.inputs}
    for weight, tensor in weights.items():
        value = inputs[weight]
        value.const_value = tensor
        if weight not in listed:
            converted.graph.inputs.remove(value)
        converted.graph.register_initializer(value)
    show(converted)
    clear_new_names(converted, names_to_keep(graph_model))
    mend_old_operators(converted, old, name)
    converted.ir_version = max(converted.ir_version, _IR_VERSION)
    return converted
