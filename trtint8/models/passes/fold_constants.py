"""Computes nodes whose inputs are all constant.

PyTorch writes a padding or a shape as a chain of small operators on constant integers; these are computed
here. onnx's reference evaluator knows all operators, but takes a twentieth of a second to load, so it is left
to the others.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import defs, helper, numpy_helper, shape_inference

from calibrators.data.feeds import Array, NamedArrays
from calibrators.operators import Product, operator_of
from trtint8.models.graph import bounded_constants, constant_tensor, has_room, holds_graphs, take_room

_logger = logging.getLogger(__name__)

#: How many bytes a constant may be larger than the inputs of its node: a Tile or ConstantOfShape of a scalar
#: can be gigabytes.
_LARGEST_GROWTH = 1 << 20

#: How many multiply-adds of a product take as long as a byte of other constants.
_MULTIPLY_ADDS_PER_BYTE = 4

#: How many times larger than its inputs a dequantized constant may be: FP32 in place of int8.
_DEQUANTIZED_GROWTH = 4

#: The most elements of a tensor on whose values the shapes of others may depend: sizes, repeats, axes.
FEW = 64


class FoldConstantsPass(ir.passes.InPlacePass):
    """Replaces nodes of the main graph that compute constants by initializers of the same name.

    Some exporters write weights as a Transpose, a Reshape or a Cast of a constant; quantization per output
    channel needs the weights themselves. Without any QuantizeLinear, a model stores only its weights as
    integers, and a DequantizeLinear is folded like other nodes.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Folds in graph order, so that chains of nodes are folded in one pass."""
        folded = 0
        has_pairs = any(node.op_type == "QuantizeLinear" for node in model.graph)
        with bounded_constants(model):
            for node in list(model.graph):
                # Q/DQ pairs of constants must be kept, and random values must stay random.
                operator = operator_of(node)
                is_kept = operator.half_of_pair and has_pairs
                if not is_kept and not operator.random and not operator.no_tensors:
                    folded += _fold(model, node)
        if folded:
            _logger.debug("folded %d constant nodes", folded)
        return ir.passes.PassResult(model, modified=bool(folded))


def _fold(model: ir.Model, node: ir.Node) -> bool:
    inputs = [value for value in node.inputs if value is not None]
    if (
        node.domain != ""
        or not inputs
        or not node.outputs
        or node.outputs[0].is_graph_output()
        # Others, such as the statistics of a BatchNormalization in training mode, may be there unread.
        or any(output.uses() or output.is_graph_output() for output in node.outputs[1:])
        or holds_graphs(node)
    ):
        return False
    tensors = list(map(constant_tensor, inputs))
    if any(tensor is None for tensor in tensors):
        return False
    arrays = {
        value.name or "": tensor.numpy()
        for value, tensor in zip(inputs, tensors, strict=True)
        if tensor is not None
    }
    growth = _DEQUANTIZED_GROWTH if node.op_type == "DequantizeLinear" else 1
    given = sum(array.nbytes for array in arrays.values())
    most = growth * given + _LARGEST_GROWTH
    predicted = _predicted_bytes(model, node, arrays)
    cost = given if predicted is None else predicted
    cost += _multiply_adds(node, arrays) // _MULTIPLY_ADDS_PER_BYTE
    is_large = (predicted is not None and predicted > most) or not has_room(model.graph, cost)
    if is_large and node.op_type != "Range":  # shape inference computes this one
        return False
    take_room(model.graph, node.outputs[0].name, cost)
    if is_large:
        return False
    try:
        result = compute_node(node, arrays, model.opset_imports[""])
        tensor = ir.tensor(result, name=node.outputs[0].name)
    except Exception:
        _logger.debug("could not fold %s '%s'", node.op_type, node.name, exc_info=True)
        return False
    if tensor.nbytes > most:
        return False

    output, graph = node.outputs[0], model.graph
    value = ir.Value(
        name=output.name, shape=ir.Shape(result.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    output.replace_all_uses_with(value)
    graph.remove(node, safe=True)
    graph.register_initializer(value)
    return True


def _multiply_adds(node: ir.Node, arrays: NamedArrays) -> int:
    """How many multiply-adds a product takes at most; 0 for other operators."""
    operator = operator_of(node)
    if not operator.multiplies:
        return 0
    inputs = [
        arrays[value.name or ""] for value in node.inputs if value is not None
    ]  # one may be there twice
    pairs = math.prod(array.size for array in inputs)
    return pairs // (math.prod(inputs[0].shape[-1:]) or 1) if operator.product is Product.MATRICES else pairs


def _predicted_bytes(model: ir.Model, node: ir.Node, arrays: NamedArrays) -> int | None:
    """How large the result of a node with constant inputs will be; None where that is not known before."""
    if node.op_type == "Range":  # whose shape inference computes the values themselves
        numbers = [arrays[value.name or ""] for value in node.inputs if value is not None]
        if len(numbers) != 3 or any(array.size != 1 for array in numbers):
            return None
        start, limit, delta = (float(array.reshape(-1)[0]) for array in numbers)
        steps = (limit - start) / delta if delta else 0.0
        # Also false for NaN, which is no number of steps.
        return int(min(steps, float(1 << 62))) * numbers[0].itemsize if steps > 0 else 0
    types = {name: _type(array) for name, array in arrays.items()}
    few = {name: array for name, array in arrays.items() if array.size <= FEW}
    inferred = infer_outputs(node, model.opset_imports[""], types, few).get(node.outputs[0].name or "")
    if inferred is None:
        return None
    tensor = inferred.tensor_type
    if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    values = math.prod(dim.dim_value for dim in tensor.shape.dim)
    return int(values * helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize)


def infer_outputs(
    node: ir.Node, opset: int, types: dict[str, onnx.TypeProto], values: NamedArrays
) -> Mapping[str, onnx.TypeProto]:
    """What ONNX infers of a node's outputs from its inputs alone, by name; nothing where it cannot.

    Args:
        node: The node.
        opset: The version of the operators.
        types: The types of its inputs by name.
        values: Those of their values that are known by name.
    """
    try:
        return shape_inference.infer_node_outputs(
            defs.get_schema(node.op_type, opset, node.domain),
            ir.serde.serialize_node(node),
            types,
            {name: numpy_helper.from_array(array) for name, array in values.items()},
            opset_imports=[helper.make_opsetid("", opset)],
        )
    except Exception:
        _logger.debug("no shape of %s '%s' is known", node.op_type, node.name, exc_info=True)
        return {}


def _type(array: Array) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def compute_node(node: ir.Node, arrays: NamedArrays, opset: int) -> Array:
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


def _is_computed_otherwise(node: ir.Node, inputs: Sequence[Array | None]) -> bool:
    """Whether ONNX's reference computes other numbers than ONNX Runtime and TensorRT."""
    if node.op_type == "Slice":
        return _begins_or_ends_outside(*inputs)
    operator = operator_of(node)
    if operator.pools:  # it takes paddings, dilations and rounded sizes otherwise
        return True
    # It takes no other results, but minutes, or gigabytes, where others take milliseconds.
    if operator.product in (Product.CONVOLUTION, Product.RECURRENT) or operator.coordinates == (1,):
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
    data: Array | None,
    starts: Array | None,
    ends: Array | None,
    axes: Array | None = None,
    steps: Array | None = None,
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


#: Arrays in the order of a node's inputs; None for one that is left out.
_Inputs = Sequence[Array | None]


def compute_integers(node: ir.Node, inputs: _Inputs) -> Array | None:
    """Computes a node of the standard domain.

    Args:
        node: The node, of an operator set of 13 or later.
        inputs: Its inputs.

    Returns:
        Its output; None where it is another operator, or an input does not hold integers.
    """
    compute = _OPERATORS.get(node.op_type)
    given = [array for array in inputs if array is not None]
    if compute is None or any(not np.issubdtype(array.dtype, np.integer) for array in given):
        return None
    return compute(node, inputs)


def _cast(node: ir.Node, inputs: _Inputs) -> Array | None:
    kind = node.attributes["to"].as_int()
    if kind not in (ir.DataType.INT32, ir.DataType.INT64):
        return None
    return _given(inputs[0]).astype(np.int32 if kind == ir.DataType.INT32 else np.int64)


def _concat(node: ir.Node, inputs: _Inputs) -> Array:
    return np.concatenate([_given(array) for array in inputs], node.attributes["axis"].as_int())


def _constant_of_shape(node: ir.Node, inputs: _Inputs) -> Array:
    value = node.attributes.get("value")
    filling = value.as_tensor().numpy() if value else np.zeros(1, np.float32)
    return np.full(_given(inputs[0]), filling.reshape(()), filling.dtype)


def _reshape(node: ir.Node, inputs: _Inputs) -> Array:
    data, shape = _given(inputs[0]), _given(inputs[1]).tolist()
    allow_zero = node.attributes.get("allowzero")
    if not (allow_zero and allow_zero.as_int()):
        shape = [size or data.shape[index] for index, size in enumerate(shape)]
    reshaped: Array = data.reshape(shape)
    return reshaped


def _slice(_node: ir.Node, inputs: _Inputs) -> Array:
    data, starts, ends, axes, steps = (*inputs, None, None)[:5]
    data, starts, ends = _given(data), _given(starts), _given(ends)
    axes = np.arange(len(starts)) if axes is None else axes
    steps = np.ones(len(starts), np.int64) if steps is None else steps
    places = [slice(None)] * data.ndim
    for axis, *bounds in zip(*(array.tolist() for array in (axes, starts, ends, steps)), strict=True):
        places[axis] = slice(*bounds)
    part: Array = data[tuple(places)]
    return part


def _transpose(node: ir.Node, inputs: _Inputs) -> Array:
    permutation = node.attributes.get("perm")
    return np.transpose(_given(inputs[0]), permutation.as_ints() if permutation else None)


def _gather(node: ir.Node, inputs: _Inputs) -> Array:
    axis = node.attributes.get("axis")
    return np.take(_given(inputs[0]), _given(inputs[1]), axis.as_int() if axis else 0)


def _unsqueeze(_node: ir.Node, inputs: _Inputs) -> Array:
    return np.expand_dims(_given(inputs[0]), tuple(_given(inputs[1]).tolist()))


def _elementwise(compute: np.ufunc) -> Callable[[ir.Node, _Inputs], Array]:
    def computed(_node: ir.Node, inputs: _Inputs) -> Array:
        first, second = map(_given, inputs)
        return np.asarray(compute(first, second))

    return computed


def _given(array: Array | None) -> Array:
    if array is None:
        raise ValueError("an input that must be there is left out")
    return array


_OPERATORS: Mapping[str, Callable[[ir.Node, _Inputs], Array | None]] = {
    "Add": _elementwise(np.add),
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Gather": _gather,
    "Mul": _elementwise(np.multiply),
    "Reshape": _reshape,
    "Slice": _slice,
    "Sub": _elementwise(np.subtract),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
