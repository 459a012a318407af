"""Types and shapes of a model's tensors: declared, inferred by ONNX, or mended where they are left out.

Values that are sequences or optional are declared as such, since what infers types takes all others for
tensors. A model's outputs are tensors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir

from calibrators.checks import warn_user
from calibrators.errors import ModelError
from calibrators.host.weights import LightModel
from calibrators.operators import Values, operator_of
from trtint8.models.graph import as_model_errors, constant_tensor, graph_values, made_by, message_graphs


def infer_types(message: onnx.ModelProto) -> onnx.ModelProto | None:
    """A copy of a model with the types and shapes that ONNX infers; None where it refuses the model.

    Args:
        message: The model without its large weights.
    """
    with contextlib.suppress(ModelError), as_model_errors("the model", "is refused"):
        return onnx.shape_inference.infer_shapes(message)
    return None


def declare_shapes(message: onnx.ModelProto) -> None:
    """Declares the types and shapes that ONNX infers, where the model declares others or lacks needed ones.

    Who edits a model often leaves the shapes that tensors had before. ONNX Runtime and TensorRT do not look
    at them. A size that is a number where ONNX infers that of an input is corrected as well: that of the
    samples, where a model was exported with one and opened for any number. An output keeps such a number.

    Outputs need a type and a shape. Values that are sequences or optional need a type, since what infers
    types takes all others for tensors.

    Args:
        message: The model without its large weights; changed. What cannot be inferred stays as it is.
    """
    bare = onnx.ModelProto()
    bare.CopyFrom(message)
    for graph in message_graphs(bare.graph):
        made = {name: node for node in graph.node for name in node.output}
        for index in reversed(range(len(graph.value_info))):
            node = made.get(graph.value_info[index].name)
            if node is None or onnx.defs.has(node.op_type, node.domain):
                del graph.value_info[index]
        for output in graph.output:
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")
    inferred = infer_types(bare)
    if inferred is None:
        return  # the checker says what is wrong with the model
    shapes = (value.type.tensor_type.shape for value in message.graph.input)
    names = {dim.dim_param for shape in shapes for dim in shape.dim} - {""}
    graphs = zip(message_graphs(message.graph), message_graphs(inferred.graph), strict=True)
    for graph, found in graphs:
        values = (*found.value_info, *found.output)
        known = {value.name: value for value in values if not _lacks_shape(value)}
        for values, opened in ((graph.value_info, names), (graph.output, set[str]())):
            for value in values:
                right = known.get(value.name, onnx.ValueInfoProto())
                if _contradict(value.type.tensor_type, right.type.tensor_type, opened):
                    value.type.tensor_type.shape.CopyFrom(right.type.tensor_type.shape)
        declared = {value.name for value in graph.value_info}
        others = (value for value in found.value_info if value.type.WhichOneof("value") in _NO_TENSORS)
        graph.value_info.extend(value for value in others if value.name not in declared)
    if any(map(_lacks_shape, message.graph.output)) and (inferred := infer_types(message)) is not None:
        known = {output.name: output for output in inferred.graph.output}
        for output in filter(_lacks_shape, message.graph.output):
            output.CopyFrom(known[output.name])


def _contradict(declared: onnx.TypeProto.Tensor, inferred: onnx.TypeProto.Tensor, opened: set[str]) -> bool:
    """True if both have a shape, and these cannot be those of one tensor."""
    if not declared.HasField("shape") or not inferred.HasField("shape"):
        return False
    if len(declared.shape.dim) != len(inferred.shape.dim):
        return True
    return any(
        ours.HasField("dim_value")
        and (ours.dim_value != right.dim_value if right.HasField("dim_value") else right.dim_param in opened)
        for ours, right in zip(declared.shape.dim, inferred.shape.dim, strict=True)
    )


def declare_inner_shapes(graph_model: ir.Model, light: LightModel) -> None:
    """Declares the types and shapes that ONNX infers, where tensors have none.

    Unlike :class:`~trtint8.models.passes.simplify.InferShapesPass` it knows ONNX's own operators only,
    and takes a tenth of the time.

    Args:
        graph_model: A model.
        light: What it was read from.
    """
    bare = [value for node in graph_model.graph for value in node.outputs if value.shape is None]
    if not bare:
        return
    inferred = infer_types(light.used().message)
    if inferred is None:
        return
    types = {info.name: info.type.tensor_type for info in inferred.graph.value_info}
    for value in bare:
        found = types.get(value.name or "")
        if found is None or not found.HasField("shape"):
            continue
        sizes = [size.dim_value if size.HasField("dim_value") else None for size in found.shape.dim]
        value.shape = ir.Shape(sizes)
        if value.dtype is None and found.elem_type:
            value.type = ir.TensorType(ir.DataType(found.elem_type))


def hides_scores(value: ir.Value) -> bool:
    """True if an input is only added to what a softmax reads, or is the mask of an attention.

    There minus infinity hides scores: the result is finite, and no layer reads the infinite numbers. What is
    added to a convolution's result is none, because it may get a Q/DQ pair.

    Args:
        value: An input of the graph.
    """
    hides = False
    waiting, seen = [value], {value}
    while waiting:
        current = waiting.pop()
        if current.is_graph_output():
            return False
        for node, index in current.uses():
            operator = operator_of(node)
            if operator.reads_shape:
                continue
            if operator.hides == index:
                hides = True
            elif any(map(_is_convolved, node.inputs)):
                return False
            elif (node.op_type, node.domain) == ("Add", "") or _is_moved(node, index):
                added = [output for output in node.outputs if output not in seen]
                seen.update(added)
                waiting.extend(added)
            else:
                return False
    return hides


def _is_convolved(value: ir.Value | None) -> bool:
    node = made_by(value)
    return node is not None and operator_of(node).is_convolution


def _is_moved(node: ir.Node, index: int) -> bool:
    """Whether a node gives out the values of an input, perhaps in another type."""
    operator = operator_of(node)
    moves = operator.moves or operator.values is Values.CONVERTED
    return moves and index in operator.data_among(len(node.inputs))


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
            elif _is_moved(node, index):
                moved = node.outputs[0]
                is_mask = is_mask or node.attributes.get_int("to", 0) == ir.DataType.BOOL
                if moved not in seen:
                    seen.add(moved)
                    waiting.append(moved)
    return min(rows) if rows else 2 if is_mask else None


def _table_rows(gather: ir.Node) -> list[int]:
    """The number of rows of the constant table that a node takes rows of; none where it is something else."""
    table = gather.inputs[0]
    tensor = constant_tensor(table)
    if tensor is None or gather.attributes.get_int("axis", 0) != 0 or not len(tensor.shape):
        return []
    size = tensor.shape[0]
    return [size] if isinstance(size, int) and size > 0 else []


def _is_one(value: ir.Value | None) -> bool:
    tensor = constant_tensor(value)
    return tensor is not None and tensor.size == 1 and bool(np.all(tensor.numpy() == 1))


def list_outputs_once(message: onnx.ModelProto, name: str) -> None:
    """Leaves out what is listed as an output before: outputs are told by their names.

    Args:
        message: The model; changed.
        name: The model's name in messages.

    Warns:
        UserWarning: An output is listed more than once.
    """
    once: dict[str, onnx.ValueInfoProto] = {}
    again = [
        output.name for output in message.graph.output if once.setdefault(output.name, output) is not output
    ]
    if again:
        kept = [onnx.ValueInfoProto.FromString(output.SerializeToString()) for output in once.values()]
        del message.graph.output[:]
        message.graph.output.extend(kept)
        warn_user(f"'{name}' lists the output '{again[0]}' more than once, and it is given once", note=True)


def with_some_shapes(message: onnx.ModelProto) -> onnx.ModelProto:
    """A message that ONNX's checker takes for the model, though nobody knows the shape of an output.

    ONNX Runtime and TensorRT find out the shapes while they run. The checker only looks whether there is one.

    Args:
        message: The model; it is changed.

    Returns:
        The model, in which outputs without a shape have that of a single number.
    """
    for output in message.graph.output:
        if _lacks_shape(output):
            output.type.tensor_type.shape.SetInParent()
            output.type.tensor_type.elem_type = output.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
    return message


def _lacks_shape(output: onnx.ValueInfoProto) -> bool:
    """True if an output has no shape, or no type; not of sequences and others that are no tensors."""
    tensor = output.type.tensor_type
    return output.type.WhichOneof("value") in (None, "tensor_type") and not (
        tensor.elem_type and tensor.HasField("shape")
    )


#: Types of values that are no tensors, in words.
_NO_TENSORS = {"sequence_type": "a sequence", "optional_type": "optional", "map_type": "a map"}


def check_outputs_are_tensors(message: onnx.ModelProto, name: str) -> None:
    """Refuses outputs that are sequences or optional.

    Args:
        message: The model.
        name: The model's name in messages.

    Raises:
        ModelError: An output is no tensor.
    """
    for output in message.graph.output:
        if output.type.WhichOneof("value") in _NO_TENSORS:
            kind = _NO_TENSORS[output.type.WhichOneof("value")]
            raise ModelError(
                f"output '{output.name}' of '{name}' is {kind}, which TensorRT does not take; remove it, or "
                "make a tensor of it"
            )


#: Names of sizes that are not known: converters of PaddlePaddle write ``?``, and others nothing.
_NO_NAMES = ("?", "")


def clear_unknown_sizes(message: onnx.ModelProto) -> None:
    """Removes sizes that say only that a size is not known: -1, the name ``?``, and an empty name.

    In ONNX a size is a number that is not negative, and equal names are equal sizes; so -1 would be a wrong
    size, and two dimensions called ``?`` would have to be equal.

    Args:
        message: The model; changed.
    """
    for graph in message_graphs(message.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.HasField("tensor_type"):
                for dimension in value.type.tensor_type.shape.dim:
                    named = dimension.HasField("dim_param")
                    if dimension.dim_value < 0 or (named and dimension.dim_param in _NO_NAMES):
                        dimension.ClearField("value")


def names_to_keep(model: ir.Model) -> set[str] | None:
    """The names of sizes that a model may have after ONNX has inferred its shapes.

    Args:
        model: The model before.

    Returns:
        Those that it has, in graphs inside its nodes too; None for all, as no size of it may be 0.
    """
    if not any(operator_of(node).open_size for node in model.graph.all_nodes()):
        return None
    return {name for value in _values(model) for name in _names(value)}


def clear_new_names(model: ir.Model, keep: set[str] | None) -> None:
    """Removes the names that ONNX gave to sizes it does not know, where some of these may be 0.

    Where ONNX Runtime reads that two sizes have one name, it may turn a shape computed from one of them into
    the constant ``[0, -1]``, with which a Reshape fails if the first size is 0: where a detector finds
    nothing. Other networks keep the names, as ONNX Runtime fuses more of their layers with them.

    Args:
        model: The model; changed.
        keep: What :func:`names_to_keep` found before ONNX inferred shapes.
    """
    if keep is None:
        return
    for value in _values(model):
        if value.shape is not None and not _names(value) <= keep:
            value.shape = ir.Shape(
                [size if isinstance(size, int) or size.value in keep else None for size in value.shape]
            )


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph_values(graph)


def _names(value: ir.Value) -> set[str]:
    sizes = value.shape or ()
    return {size.value for size in sizes if not isinstance(size, int) and size.value is not None}
