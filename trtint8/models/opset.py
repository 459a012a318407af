"""The opset of a model: imported once, converted to a newer one, or lowered to one that can be run.

Some operators get another meaning from ONNX's converter, or become invalid, on the way to a newer opset.
Products of integers may lack the zero point of their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

import onnx
import onnx_ir as ir
from onnx import helper

from calibrators.checks import warn_user
from calibrators.errors import ModelError
from calibrators.operators import RUNTIME_DOMAINS, operator_of
from trtint8.models.declared import clear_new_names, declare_sequences, names_to_keep
from trtint8.models.graph import (
    all_nodes,
    as_model_errors,
    constant_input,
    keep_modules,
    message_containers,
    message_graphs,
    modules_by_tensor,
    take_name,
    unused_name,
    value_names,
)
from trtint8.models.passes.simplify import InferShapesPass, InlineFunctionsPass
from trtint8.models.plugins import HIDDEN, hide, show

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
        graph_model: Any model; the result may share its weights.
        name: The model's name in messages.

    Returns:
        A copy with another opset, in which the nodes of functions take the place of those that call them; the
        model itself where its opset is known, or means other operators.

    Warns:
        UserWarning: It means other operators.
    """
    old = graph_model.opset_imports.get("", 0)
    newest = min(
        (_NEWEST, *(_NEWEST_OF[one.op_type] for one in all_nodes(graph_model) if one.op_type in _NEWEST_OF))
    )
    if old <= newest:
        return graph_model
    copy = graph_model.clone()
    InlineFunctionsPass()(copy)
    _write_gates(copy)
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
    _write_float_remainders(copy)
    copy.opset_imports[""] = newest
    return copy


def _write_gates(graph_model: ir.Model) -> None:
    """Writes each SwiGLU as the Swish and the Mul that ONNX says it is."""
    taken = value_names(graph_model.graph)
    for node in [one for one in graph_model.graph.all_nodes() if (one.domain, one.op_type) == ("", "SwiGLU")]:
        swish = ir.Node("", "Swish", node.inputs[:1], node.attributes.values(), name=node.name)
        swish.outputs[0].name = take_name(f"{node.outputs[0].name}_Swish", taken)
        product = ir.node("Mul", [swish.outputs[0], node.inputs[1]])
        assert isinstance(node.graph, ir.Graph)
        ir.convenience.replace_nodes_and_values(
            node.graph, node, [node], [swish, product], node.outputs, product.outputs
        )


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
    _refuse_old_operators(graph_model, name)
    copy = graph_model.clone()
    if old < 9 and _set_old_scans_apart(copy):
        opset = max(opset, _OPSET_OF_SCANS)
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
    _mend_old_operators(converted, old, name)
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
    for domain in RUNTIME_DOMAINS:
        if domain in used and domain not in imported:
            message.opset_import.append(helper.make_opsetid(domain, 1))


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


#: The oldest opset that has the operators by which a Scan of opset 8 is written.
_OPSET_OF_SCANS = 15


def _refuse_old_operators(graph_model: ir.Model, name: str) -> None:
    """Refuses operators of an old opset that no newer one has, which ONNX's converter does not name.

    Args:
        graph_model: The model before it is converted.
        name: The model's name in messages.

    Raises:
        ModelError: A BatchNormalization has statistics for each position, and not for each channel.
    """
    for node in graph_model.graph.all_nodes():
        if node.op_type == "BatchNormalization" and node.attributes.get_int("spatial", 1) == 0:
            raise ModelError(
                f"the BatchNormalization of '{name}' that makes '{node.outputs[0].name}' has statistics for "
                "each position (spatial=0), which no opset from 9 on has; write it as a Mul and an Add, or "
                "export the model with a newer opset"
            )


def _mend_old_operators(converted: ir.Model, opset: int, name: str) -> None:
    """Gives operators of a converted model, those of branches and loop bodies too, their old meaning again.

    Args:
        converted: What ONNX's converter made of a model, of opset 13 or later; changed in place.
        opset: The opset that the model had before.
        name: The model's name in messages.

    Raises:
        ModelError: An operator's old meaning cannot be written in the new opset.
    """
    mends = {operator: mend for operator, (changed, mend) in _MENDS.items() if opset < changed}
    nodes = [node for node in converted.graph.all_nodes() if node.domain == "" and node.op_type in mends]
    if nodes:
        graphs = (converted.graph, *converted.graph.subgraphs())
        context = _Context(name, {taken for graph in graphs for taken in value_names(graph)})
        for node in nodes:
            mends[node.op_type](node, context)


def _set_old_scans_apart(graph_model: ir.Model) -> bool:
    """Writes every Scan of opset 8 as a Loop with the same attributes, until it is mended.

    ONNX's converter leaves out the axis of samples that a Scan has in opset 8 only, and takes it from the
    shapes of what the Scan reads. A Loop stays as it is, and the nodes inside it are converted. What a Scan
    has and a Loop has not, the number of its inputs, tells them apart.

    Args:
        graph_model: The model before it is converted, of opset 8; changed.

    Returns:
        True if there is one.
    """
    scans = [node for node in graph_model.graph.all_nodes() if (node.domain, node.op_type) == ("", "Scan")]
    for node in scans:
        node.op_type = "Loop"
    return bool(scans)


@dataclass
class _Context:
    """The model's name in messages, and the names of all values in it."""

    model: str
    taken: set[str]

    def name_like(self, value: ir.Value) -> str:
        """A new name that begins with that of a value."""
        return take_name(f"{value.name or 'value'}_of_sample", self.taken)


def _mend_resize(node: ir.Node, context: _Context) -> None:
    """Resize of opset 10 and Upsample have no attribute for coordinates, and are asymmetric.

    For the nearest element, ONNX Runtime and the examples of ONNX round down along an axis that grows, and up
    along one that shrinks. Scales that are computed at run time are taken to let axes grow.
    """
    node.attributes.add(ir.AttrString("coordinate_transformation_mode", "asymmetric"))
    if node.attributes.get_string("mode", "nearest") != "nearest":
        return
    scales = constant_input(node, 2)
    shrinks = scales is not None and bool((scales < 1).any())
    if shrinks and scales is not None and (scales > 1).any():
        raise ModelError(
            f"the Resize of '{context.model}' that makes '{node.outputs[0].name}' enlarges one axis and "
            "shrinks another one to the nearest element, which no newer opset has in one operator; export "
            "the model with opset 11 or later"
        )
    node.attributes.add(ir.AttrString("nearest_mode", "ceil" if shrinks else "floor"))


def _mend_hardmax(node: ir.Node, context: _Context) -> None:
    """Hardmax before opset 13 chooses one element among those of all axes from its own on."""
    source, output, graph = node.inputs[0], node.outputs[0], node.graph
    assert source is not None and isinstance(graph, ir.Graph)
    axis = node.attributes.get_int("axis", 1)
    node.attributes.add(ir.AttrInt64("axis", -1))
    if axis == -1 or (source.shape is not None and axis == len(source.shape) - 1):
        return
    size = ir.node("Shape", [source])
    rows = ir.node("Flatten", [source], {"axis": axis})
    chosen = ir.node("Hardmax", rows.outputs, {"axis": -1}, name=node.name)
    shaped = ir.node("Reshape", [chosen.outputs[0], size.outputs[0]])
    for added, part in ((size, "shape"), (rows, "rows"), (chosen, "chosen")):
        added.outputs[0].name = unused_name(f"{output.name}_{part}", context.taken)
        context.taken.add(added.outputs[0].name)
    new = [size, rows, chosen, shaped]
    ir.convenience.replace_nodes_and_values(graph, node, [node], new, [output], shaped.outputs)


def _mend_pad(node: ir.Node, _context: _Context) -> None:
    """The value of a Pad that repeats elements has no effect, and is no attribute from opset 11 on."""
    node.attributes.pop("value", None)


def _mend_scan(node: ir.Node, context: _Context) -> None:
    """Scan of opset 8 has an axis of samples, and may be given how long the sequence of each is.

    It becomes a Scan along the samples, with one along the sequence inside. Where lengths are given, the
    inner one runs along the first elements, and zeros take the place of what it does not give out, as in ONNX
    Runtime.
    """
    if "num_scan_inputs" not in node.attributes:
        return  # a Loop
    count = node.attributes.get_int("num_scan_inputs", 1)
    lengths, *read = node.inputs
    directions = node.attributes.get_ints("directions", ())
    graph, outputs, body = node.graph, list(node.outputs), node.attributes.pop("body").as_graph()
    assert isinstance(graph, ir.Graph)
    samples = [_one_sample(value, context) for value in (*read, *([] if lengths is None else [lengths]))]
    inner = ir.Node(
        "",
        "Scan",
        samples[: len(read)],
        [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", count)],
        num_outputs=len(outputs),
    )
    if directions:
        inner.attributes.add(ir.AttrInt64s("scan_input_directions", directions))
    for made, output in zip(inner.outputs, outputs, strict=True):
        made.name = context.name_like(output)
        made.type = output.type
    nodes, results = [inner], list(inner.outputs)
    if lengths is not None:
        states = len(read) - count
        before, behind, padded = _cut_to_length(samples, inner, states, context)
        nodes, results = [*before, inner, *behind], [*results[:states], *padded]
    along = ir.Graph(samples, results, nodes=nodes, name=f"{body.name}_of_one_sample")
    outer = ir.Node(
        "",
        "Scan",
        [*read, *([] if lengths is None else [lengths])],
        [ir.AttrGraph("body", along), ir.AttrInt64("num_scan_inputs", len(samples))],
        num_outputs=len(outputs),
        name=node.name,
    )
    ir.convenience.replace_nodes_and_values(graph, node, [node], [outer], outputs, outer.outputs)


def _one_sample(value: ir.Value | None, context: _Context) -> ir.Value:
    """A value of the graph along the samples: what a value around it holds of one sample."""
    assert value is not None, "a Scan has all its inputs"
    shape = None if value.shape is None else ir.Shape(list(value.shape)[1:])
    return ir.Value(name=context.name_like(value), shape=shape, type=value.type)


def _cut_to_length(
    samples: list[ir.Value], scan: ir.Node, states: int, context: _Context
) -> tuple[list[ir.Node], list[ir.Node], list[ir.Value]]:
    """Lets a Scan run along the first elements of a sequence only.

    Args:
        samples: What it reads, and the length.
        scan: The Scan; its inputs are changed.
        states: How many of its inputs and outputs are states.
        context: The names.

    Returns:
        Nodes before it, nodes behind it, and what these give out in place of its outputs of sequences.
    """
    before: list[ir.Node] = []
    behind: list[ir.Node] = []

    def add(nodes: list[ir.Node], operator: str, *inputs: ir.Value, **attributes: ir.Attr) -> ir.Value:
        node = ir.Node("", operator, inputs, list(attributes.values()))
        node.outputs[0].name = context.name_like(scan.outputs[0])
        nodes.append(node)
        return node.outputs[0]

    def constant(nodes: list[ir.Node], value: int) -> ir.Value:
        return add(nodes, "Constant", value_ints=ir.AttrInt64s("value_ints", [value]))

    start, unknown = constant(before, 0), constant(before, -1)
    length = add(before, "Reshape", samples[-1], unknown)
    first = samples[states]
    whole = add(before, "Shape", first, end=ir.AttrInt64("end", 1))
    missing = add(before, "Sub", whole, length)
    for index in range(states, len(samples) - 1):
        scan.replace_input_with(index, add(before, "Slice", samples[index], start, length, start))
    padded: list[ir.Value] = []
    for value in scan.outputs[states:]:
        sizes = add(behind, "Shape", value, start=ir.AttrInt64("start", 1))
        lacking = add(behind, "Concat", missing, sizes, axis=ir.AttrInt64("axis", 0))
        zeros = add(behind, "Expand", add(behind, "CastLike", start, value), lacking)
        padded.append(add(behind, "Concat", value, zeros, axis=ir.AttrInt64("axis", 0)))
        padded[-1].type = value.type
    return before, behind, padded


#: Operator to the opset that changed it, and what mends the converted nodes of models from before.
_MENDS: dict[str, tuple[int, Callable[[ir.Node, _Context], None]]] = {
    "Hardmax": (13, _mend_hardmax),
    "Pad": (11, _mend_pad),
    "Loop": (9, _mend_scan),
    "Resize": (11, _mend_resize),
}


def write_zero_points(message: onnx.ModelProto) -> None:
    """Writes the zero point of constant INT8 weights, which is 0, where a product of integers leaves it out.

    Where a processor needs it for exact sums, ONNX Runtime exchanges such weights for uint8 ones with another
    zero point. Before 1.30 it writes that behind the inputs of a node that has none, which can end the
    process. Where the zero point is an empty name, the weights stay, and sums saturate.

    Args:
        message: The model; changed.
    """
    graphs = list(message_graphs(message.graph))
    lacking = [found for graph in graphs for node in graph.node for found in _lacking_zero_point(node)]
    int8: set[str] = set()
    for graph in graphs if lacking else ():
        _add_int8_constants(graph, int8)
    changed = [(node, index) for node, weights, index in lacking if node.input[weights] in int8]
    if not changed:
        return
    name, taken = "weight_zero_point", {name for graph in graphs for name in _names(graph)}
    while name in taken:
        name += "_"
    message.graph.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.INT8, [], [0]))
    for node, index in changed:
        node.input.extend([""] * (index + 1 - len(node.input)))
        node.input[index] = name


def _lacking_zero_point(node: onnx.NodeProto) -> Iterator[tuple[onnx.NodeProto, int, int]]:
    """A product of integers without a zero point of its weights, with the indices of both; else nothing."""
    indices = operator_of(node).integer_weights
    if indices is not None:
        weights, zero_point = indices
        if len(node.input) > weights and not "".join(node.input[zero_point : zero_point + 1]):
            yield node, weights, zero_point


def _add_int8_constants(graph: onnx.GraphProto, int8: set[str]) -> None:
    """Adds the names of a graph's constants that are INT8, and of what only moves these."""
    wanted = onnx.TensorProto.INT8
    int8.update(tensor.name for tensor in graph.initializer if tensor.data_type == wanted)
    for node in graph.node:
        stored = node.op_type == "Constant" and any(one.t.data_type == wanted for one in node.attribute)
        if stored or (operator_of(node).moves and int8.intersection(node.input[:1])):
            int8.update(node.output[:1])


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of all values of a graph."""
    yield from (value.name for value in (*graph.input, *graph.initializer))
    for node in graph.node:
        yield from (*node.input, *node.output)
