"""Why a single node stays in float, whatever stands around it."""

from __future__ import annotations

import onnx_ir as ir

from calibrators.operators import Product, operator_of
from trtint8.models.graph_constants import is_constant
from trtint8.quantization.targets import KernelLimits, SmallSizes, Target


def obstacle(node: ir.Node, target: Target) -> str | None:
    """Finds out why a node of the main graph cannot run in INT8.

    Args:
        node: A node that multiplies matrices.
        target: What the model is built for.

    Returns:
        The reason, in words for the user; None where nothing about the node itself is in the way.
    """
    if reason := operator_of(node).no_pairs:
        return reason
    first, second = node.inputs[:2]
    if first is None or second is None:
        return "an input is missing"
    for value in (first, second):
        if value.dtype is not None and value.dtype != ir.DataType.FLOAT:
            return f"'{value.name}' is {value.dtype.name.lower()}, and Q/DQ is placed in float32 models"
        if value.shape is not None and 0 in value.shape:
            return f"'{value.name}' has no elements"
    if is_constant(first) and is_constant(second):
        return "both inputs are constant"
    if operator_of(node).is_convolution and not is_constant(second):
        return "its weights are computed at run time, and TensorRT's INT8 convolutions need constant ones"
    if any(value.shape is not None and len(value.shape) < 2 for value in (first, second)):
        return "an operand is a vector"
    return _refusal(node, target)


def _refusal(node: ir.Node, target: Target) -> str | None:
    """The reason of one target."""
    reason = target.refused.get(node.op_type)
    if reason is None and operator_of(node).is_convolution and _groups(node) > 1:
        reason = target.refused.get(f"grouped {node.op_type}")
    if reason is None and target.kernels is not None and operator_of(node).is_convolution:
        reason = _too_large(node, target.kernels)
    if reason is None and target.small is not None:
        reason = _too_small(node, target.small)
    return reason


def _too_large(node: ir.Node, limits: KernelLimits) -> str | None:
    _, _, *kernel = _weight_shape(node)
    strides = node.attributes.get_ints("strides", ())
    if len(kernel) != limits.spatial:
        return f"it has {len(kernel)} spatial dimensions, and the DLA takes {limits.spatial}"
    if max(kernel) > limits.kernel:
        return f"its kernel is {max(kernel)} large, and the DLA's largest is {limits.kernel}"
    if node.op_type == "Conv" and max(strides, default=1) > limits.stride:
        return f"its stride is {max(strides)}, and the DLA's largest is {limits.stride}"
    return None


def _too_small(node: ir.Node, small: SmallSizes) -> str | None:
    if node.op_type == "Conv":
        return _few_channels(node, small)
    if operator_of(node).product is Product.MATRICES:
        return _small_product(node, small)
    return None


def _few_channels(node: ir.Node, small: SmallSizes) -> str | None:
    outputs, inputs, *kernel = _weight_shape(node)
    if min(outputs, inputs) >= small.channels:
        return None
    if _groups(node) > 1:
        runs = outputs % small.multiple == 0 and min(kernel, default=0) >= 3
    else:
        reads_model_input = any(value is not None and value.is_graph_input() for value in node.inputs)
        runs = (
            (outputs % small.multiple == 0 or inputs % small.multiple == 0)
            and (reads_model_input or max(outputs, inputs) >= small.channels)
            and len(set(kernel)) == 1
        )
    if runs:
        return None
    per_group = " per group" if _groups(node) > 1 else ""
    return f"with {inputs} input channels{per_group} and {outputs} output channels, INT8 gains nothing"


def _small_product(node: ir.Node, small: SmallSizes) -> str | None:
    first, second = node.inputs[:2]
    rows, inner = _sizes(first, bool(node.attributes.get_int("transA", 0)))
    _, columns = _sizes(second, bool(node.attributes.get_int("transB", 0)))
    batched = any(
        value is not None and value.shape is not None and len(value.shape) > 2 for value in (first, second)
    )
    one_is_constant = is_constant(first) or is_constant(second)
    if small.vectors and 1 in (rows, columns) and not (batched and one_is_constant):
        return "it is a product of a matrix and a vector, which INT8 does not make faster"
    for size, words in ((columns, "columns"), (inner, "products per element")):
        if size is not None and size < small.inner:
            return f"with {size} {words}, INT8 gains nothing"
    return None


def _sizes(value: ir.Value | None, transposed: bool) -> tuple[int | None, int | None]:
    """Rows and columns of a matrix; None where they are not fixed."""
    shape = value.shape if value is not None else None
    if shape is None or len(shape) < 2:
        return None, None
    rows, columns = (dim if isinstance(dim, int) else None for dim in tuple(shape)[-2:])
    return (columns, rows) if transposed else (rows, columns)


def _weight_shape(node: ir.Node) -> tuple[int, ...]:
    weight = node.inputs[1]
    tensor = ir.convenience.get_const_tensor(weight) if weight is not None else None
    assert tensor is not None, "weights are constant"
    return tuple(tensor.shape.numpy())


def _groups(node: ir.Node) -> int:
    return node.attributes.get_int("group", 1)
