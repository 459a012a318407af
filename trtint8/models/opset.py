"""The opset of a model: imported once, converted to a newer one, or lowered to one that can be run.

Some operators get another meaning from ONNX's converter, or become invalid, on the way to a newer opset.
Products of integers may lack the zero point of their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from calibrators.checks import warn_user
from calibrators.data.feeds import Array
from calibrators.errors import ModelError
from calibrators.operators import RUNTIME_DOMAINS, operator_of
from trtint8.models.declared import clear_new_names, declare_shapes, names_to_keep
from trtint8.models.graph import (
    Replacement,
    add_initializer,
    as_model_errors,
    constant_input,
    constant_tensor,
    keep_modules,
    message_containers,
    message_graphs,
    modules_by_tensor,
    unused_name,
    value_names,
)
from trtint8.models.passes.simplify import InferShapesPass
from trtint8.models.plugins import HIDDEN, hide, import_domains, show

#: Initializers of up to so many bytes go through the converter, because it reads axes and shapes from them;
#: larger ones are weights.
_LARGEST_CONVERTED = 4096

#: The first IR version for opset 19 and later; checkers refuse older ones.
_IR_VERSION = 9

#: The newest opset in which ONNX Runtime has QuantizeLinear, DequantizeLinear and Cast.
_NEWEST = 27

#: The newest opset of a model with some operators, which ONNX Runtime has only as functions of that opset.
_NEWEST_OF = {"Swish": 24, "SwiGLU": 24}


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


def with_known_opset(graph_model: ir.Model, name: str) -> ir.Model:
    """Lowers a model of an opset newer than ONNX Runtime's to one in which its operators are the same.

    Newer opsets often only add types to an operator, and ONNX Runtime runs all that they leave as it was. It
    has no pairs and casts of such an opset, which are put into models.

    Args:
        graph_model: A model without functions; the result may share its weights.
        name: The model's name in messages.

    Returns:
        A copy with another opset; the model itself where its opset is known, or means other operators.

    Warns:
        UserWarning: It means other operators.
    """
    old = graph_model.opset_imports.get("", 0)
    operators = {node.op_type for node in graph_model.graph.all_nodes()}
    newest = min([_NEWEST, *(opset for operator, opset in _NEWEST_OF.items() if operator in operators)])
    if old <= newest:
        return graph_model
    copy = graph_model.clone()
    _rewrite(copy, {"SwiGLU": _gate, "Mod": _remainder})
    for node in copy.graph.all_nodes():
        same = node.op_type in _UNSTABLE or _is_same(node.op_type, old, newest, node.attributes)
        if node.domain == "" and not same:
            warn_user(
                f"'{name}' has opset {old}, of which ONNX Runtime lacks operators, and opset {newest} has no "
                f"such {node.op_type} as '{node.name}', so a quantized model may be impossible to measure; "
                f"export the model with opset {newest}",
                note=True,
            )
            return graph_model
    copy.opset_imports[""] = newest
    return copy


#: Writes a node in the operators of another opset; None where it has changed the node itself, or nothing.
_Mend = Callable[[ir.Node, Replacement], ir.Value | None]


def _rewrite(graph_model: ir.Model, mends: Mapping[str, _Mend]) -> None:
    """Writes nodes in other operators, those of branches and loop bodies too."""
    nodes = [node for node in graph_model.graph.all_nodes() if not node.domain and node.op_type in mends]
    if nodes:
        InferShapesPass()(graph_model)
        taken = value_names(graph_model.graph)
        for node in nodes:
            new = Replacement(node, taken)
            if (result := mends[node.op_type](node, new)) is not None:
                new.put(result)


def _gate(node: ir.Node, new: Replacement) -> ir.Value:
    """A SwiGLU is the Swish and the Mul that ONNX says it is."""
    return new.op("Mul", new.op("Swish", node.inputs[0], **node.attributes), node.inputs[1])


def _remainder(node: ir.Node, new: Replacement) -> ir.Value | None:
    """Remainders of floats have the divisor's sign from opset 28 on only.

    Mod of older opsets has the dividend's sign, and where the two differ, the divisor is added.
    """
    divisor = node.inputs[1]
    if node.attributes.get_int("fmod", 0) or divisor is None or divisor.dtype is None:
        return None
    if not divisor.dtype.is_floating_point():
        return None
    rest = new.op("Mod", *node.inputs, fmod=1)
    product = new.op("Mul", new.op("Sign", rest), new.op("Sign", divisor))
    differ = new.op("Less", product, new.op("Abs", product))
    return new.op("Where", differ, new.op("Add", rest, divisor), rest)


def _is_same(operator: str, first: int, second: int, given: Container[str] | None = None) -> bool:
    """Whether an operator has the same inputs, outputs, attributes and meaning in two opsets.

    Args:
        operator: The operator.
        first: The newer opset.
        second: The older one.
        given: The attributes that a node has; new ones that it lacks do not count. None for all.
    """
    try:
        one, other = (onnx.defs.get_schema(operator, version) for version in (first, second))
    except (onnx.defs.SchemaError, TypeError):  # there is none, or of a number that no opset can have
        return False
    left_out = set() if given is None else {name for name in one.attributes if name not in given}
    unknown = left_out - set(other.attributes)
    return one.since_version == other.since_version or (
        operator not in _UNSTABLE and _interface(one, unknown) == _interface(other)
    )


def _interface(schema: onnx.defs.OpSchema, without: Container[str] = ()) -> tuple[object, ...]:
    """The names of an operator's inputs and outputs, and its attributes with their defaults."""
    attributes = {
        name: str(one.default_value) for name, one in schema.attributes.items() if name not in without
    }
    return [one.name for one in schema.inputs], [one.name for one in schema.outputs], attributes


def with_opset(graph_model: ir.Model, opset: int, name: str) -> ir.Model:
    """Converts a model to an opset, unless its opset is at least as new.

    Weights do not go through ONNX's converter, so the model may be larger than protobuf's limit of 2 GiB.

    Args:
        graph_model: A model without functions; the result may share its weights.
        opset: The oldest opset that is recent enough.
        name: The model's name in messages.

    Returns:
        The model itself where its opset is recent enough, else a converted model.

    Raises:
        ModelError: It cannot be converted.
    """
    old = graph_model.opset_imports.get("", 0)
    if old >= opset:
        return graph_model
    _refuse_old_operators(graph_model, name)
    copy = graph_model.clone()
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
        hidden = ir.from_proto(hide(ir.to_proto(copy)))
        if HIDDEN in hidden.opset_imports:  # the converter looks at shapes behind what it does not know
            InferShapesPass()(hidden)
        message = onnx.version_converter.convert_version(ir.to_proto(hidden), opset)
        declare_shapes(message)  # the converter leaves the types of sequences out
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
    _rewrite(converted, {operator: mend for operator, (changed, mend) in _MENDS.items() if old < changed})
    keep_modules(converted, modules_by_tensor(graph_model))
    converted.ir_version = max(converted.ir_version, _IR_VERSION)
    return converted


#: The other name of ONNX's own domain, which is usually written as ``""``.
_ALIAS = "ai.onnx"

#: The version of ONNX's operators in a model that imports those of other domains only. ONNX Runtime takes the
#: newest that it knows.
_UNSAID = 21


def settle_domains(message: onnx.ModelProto, name: str) -> None:
    """Writes ONNX's own domain in one way, and imports the domains that ONNX Runtime takes without.

    ONNX's checker tells ``ai.onnx`` and ``""`` apart, and ONNX Runtime and TensorRT do not.

    Args:
        message: The model; changed.
        name: What to call the model in messages.

    Raises:
        ModelError: Nothing is imported, or two versions of one domain, of which every reader takes another.
    """
    for container in message_containers(message):
        for node in container.node:
            if node.domain == _ALIAS:
                node.domain = ""
    for function in message.functions:
        if function.domain == _ALIAS:
            function.domain = ""
        _import_each_once(function, name)
    _import_each_once(message, name)
    imported = {opset.domain for opset in message.opset_import}
    used = {node.domain for container in message_containers(message) for node in container.node}
    if not imported:
        raise ModelError(f"'{name}' does not say of which opset its operators are; export it again")
    if "" not in imported:
        message.opset_import.append(helper.make_opsetid("", _UNSAID))
    import_domains(used & set(RUNTIME_DOMAINS), message)


def _import_each_once(importing: onnx.ModelProto | onnx.FunctionProto, name: str) -> None:
    versions: dict[str, int] = {}
    for opset in importing.opset_import:
        domain = "" if opset.domain == _ALIAS else opset.domain
        if versions.setdefault(domain, opset.version) != opset.version:
            raise ModelError(
                f"'{name}' says that its operators are those of opset {versions[domain]}, and of opset "
                f"{opset.version}, in the domain '{domain or _ALIAS}'; export it again"
            )
    del importing.opset_import[:]
    importing.opset_import.extend(helper.make_opsetid(*item) for item in versions.items())


def _refuse_old_operators(graph_model: ir.Model, name: str) -> None:
    """Refuses operators of an old opset that no newer one has, which ONNX's converter does not name.

    Args:
        graph_model: The model before it is converted.
        name: The model's name in messages.

    Raises:
        ModelError: There is one.
    """
    opset = graph_model.opset_imports.get("", 0)
    for node in graph_model.graph.all_nodes():
        if not node.domain and (lost := _lost(node, opset)):
            raise ModelError(
                f"the {node.op_type} of '{name}' that makes '{node.outputs[0].name}' {lost} export the model "
                "with a newer opset"
            )


def _lost(node: ir.Node, opset: int) -> str:
    """What newer opsets do not have of an operator, and what else can be done, in words."""
    if node.op_type == "BatchNormalization" and node.attributes.get_int("spatial", 1) == 0:
        return (
            "has statistics for each position (spatial=0), which no opset from 9 on has; write it as a Mul "
            "and an Add, or"
        )
    if node.op_type == "Scan" and opset == 8:
        return "has an axis of samples, which no opset from 9 on has;"
    if node.op_type == "Resize" and opset == 10 and _takes_nearest(node):
        scales = constant_input(node, 1)
        if scales is not None and (scales < 1).any() and (scales > 1).any():
            return (
                "enlarges one axis and shrinks another one to the nearest element, which no opset from 11 on "
                "has in one operator;"
            )
    return ""


def _takes_nearest(resize: ir.Node) -> bool:
    return resize.attributes.get_string("mode", "nearest") == "nearest"


def _resize(node: ir.Node, _new: Replacement) -> None:
    """Resize of opset 10 and Upsample have no attribute for coordinates, and are asymmetric.

    For the nearest element, ONNX Runtime and the examples of ONNX round down along an axis that grows, and up
    along one that shrinks. Scales that are computed at run time are taken to let axes grow.
    """
    node.attributes.add(ir.AttrString("coordinate_transformation_mode", "asymmetric"))
    if _takes_nearest(node):
        scales = constant_input(node, 2)
        shrinks = scales is not None and bool((scales < 1).any())
        node.attributes.add(ir.AttrString("nearest_mode", "ceil" if shrinks else "floor"))


def _hardmax(node: ir.Node, new: Replacement) -> ir.Value | None:
    """Hardmax before opset 13 chooses one element among those of all axes from its own on."""
    source, axis = node.inputs[0], node.attributes.get_int("axis", 1)
    node.attributes.add(ir.AttrInt64("axis", -1))
    if source is None or axis == -1 or (source.shape is not None and axis == len(source.shape) - 1):
        return None
    size, rows = new.op("Shape", source), new.op("Flatten", source, axis=axis)
    return new.op("Reshape", new.op("Hardmax", rows, axis=-1), size)


def _pad(node: ir.Node, _new: Replacement) -> None:
    """The value of a Pad that repeats elements has no effect, and is no attribute from opset 11 on."""
    node.attributes.pop("value", None)


def _image_scaler(node: ir.Node, new: Replacement) -> ir.Value:
    """``x * scale + bias``, with one bias per channel."""
    bias = np.array(node.attributes.get_floats("bias", ())).reshape(-1, 1, 1)
    scaled = new.op("Mul", node.inputs[0], _constant(node, new, node.attributes.get_float("scale", 1.0)))
    return new.op("Add", scaled, _constant(node, new, bias if bias.size else 0.0))


def _scaled(activation: str) -> _Mend:
    """``alpha * activation(beta * x)``."""

    def write(node: ir.Node, new: Replacement) -> ir.Value:
        alpha, beta = (
            _constant(node, new, node.attributes.get_float(name, 1.0)) for name in ("alpha", "beta")
        )
        return new.op("Mul", new.op(activation, new.op("Mul", node.inputs[0], beta)), alpha)

    return write


def _constant(node: ir.Node, new: Replacement, values: Array | float) -> ir.Value:
    """A constant of the type that a node reads."""
    dtype = (node.inputs[0].dtype if node.inputs[0] is not None else None) or ir.DataType.FLOAT
    return new.op("Constant", value=ir.tensor(np.asarray(values, dtype.numpy())))


#: Operator to the opset that changed it, and what mends the converted nodes of models from before.
_MENDS: dict[str, tuple[int, _Mend]] = {
    "Hardmax": (13, _hardmax),
    "ImageScaler": (10, _image_scaler),
    "Pad": (11, _pad),
    "ParametricSoftplus": (10, _scaled("Softplus")),
    "Resize": (11, _resize),
    "ScaledTanh": (10, _scaled("Tanh")),
}


def write_zero_points(graph_model: ir.Model) -> bool:
    """Writes the zero point of constant INT8 weights, which is 0, where a product of integers leaves it out.

    Where a processor needs it for exact sums, ONNX Runtime exchanges such weights for uint8 ones with another
    zero point. Before 1.30 it writes that behind the inputs of a node that has none, which can end the
    process. Where the zero point is an empty name, the weights stay, and sums saturate.

    Args:
        graph_model: The model; changed.

    Returns:
        Whether there is such a product.
    """
    nodes = [node for node in graph_model.graph.all_nodes() if _lacks_zero_point(node)]
    if nodes:
        name = unused_name("weight_zero_point", value_names(graph_model.graph))
        zero = add_initializer(graph_model.graph, name, np.zeros((), np.int8))
        for node in nodes:
            _, index = operator_of(node).integer_weights or (0, 0)
            node.resize_inputs(max(len(node.inputs), index + 1))
            node.replace_input_with(index, zero)
    return bool(nodes)


def _lacks_zero_point(node: ir.Node) -> bool:
    """Whether a node is a product of integers with constant INT8 weights and no zero point of these."""
    weights, zero_point = operator_of(node).integer_weights or (len(node.inputs), 0)
    if not node.inputs[weights : weights + 1] or any(node.inputs[zero_point : zero_point + 1]):
        return False
    value = node.inputs[weights]
    while value is not None and (maker := value.producer()) is not None and operator_of(maker).moves:
        value = maker.inputs[0]
    tensor = constant_tensor(value)
    return tensor is not None and tensor.dtype == ir.DataType.INT8
