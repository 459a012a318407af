"""Appends to a network the gradients of a sum of its outputs with respect to chosen tensors.

The rules of convolutions, matrix products and pooling stand here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import Float32s
from trtint8.models.graph import Window, read_constant, values_read
from trtint8.models.graph_writer import GraphWriter, Operand, Term, reached_from
from trtint8.sensitivity.gradients.elementwise import ELEMENTWISE
from trtint8.sensitivity.gradients.movement import MOVEMENT
from trtint8.sensitivity.gradients.rule import NoGradientError, Rule, Step


def _window(step: Step, kernel: Sequence[int]) -> Window:
    """How a kernel moves over the input of a convolution or a pooling."""
    spatial = range(2, 2 + len(kernel))
    return Window.of(step.node, kernel, lambda: step.sizes(step.x, spatial))


def _unread(step: Step, window: Window) -> list[int]:
    """How many of the last elements along each axis no window covers."""
    axes = len(window.kernel)
    spatial = range(2, 2 + axes)
    if all(stride == 1 for stride in window.strides):
        return [0] * axes
    inputs, outputs = step.sizes(step.x, spatial), step.sizes(step.y, spatial)
    return [
        size - ((out - 1) * stride + reach + 1 - window.pads[axis] - window.pads[axis + axes])
        for axis, (size, out, stride, reach) in enumerate(
            zip(inputs, outputs, window.strides, window.reach, strict=True)
        )
    ]


def _attributes(window: Window) -> dict[str, Any]:
    """The attributes of a convolution whose kernel moves so."""
    return {("kernel_shape" if name == "kernel" else name): list(part) for name, part in vars(window).items()}


def _spread(step: Step, window: Window, gradient: Term, weights: Float32s, group: int) -> Term:
    """Appends the transposed convolution, which takes gradients from outputs to inputs."""
    axes, attributes = len(window.kernel), _attributes(window)
    pads = [window.reach[i % axes] - pad for i, pad in enumerate(window.pads)]
    if any(stride != 1 for stride in window.strides) or min(pads) < 0:
        unread = _unread(step, window)
        if any(size < 0 for size in unread):
            raise step.refused("its last window reaches beyond its padding")
        return gradient.op("ConvTranspose", weights, group=group, output_padding=unread, **attributes)
    # Without strides a convolution with reversed weights does the same several times as fast.
    outputs, inputs = weights.shape[:2]
    shape = (group * inputs, outputs // group, *window.kernel)

    def reversed_weights() -> Float32s:
        split = weights.reshape(group, outputs // group, inputs, *window.kernel)
        turned = np.flip(split.swapaxes(1, 2), tuple(range(3, 3 + axes)))
        reverse: Float32s = turned.reshape(shape)
        return reverse

    turned = step.writer.weights(reversed_weights, shape)
    return gradient.op("Conv", turned, group=group, **{**attributes, "pads": pads})


def _conv(step: Step) -> Term:
    weights, group = step.constant(1), int(step.attributes.get("group", 1))
    return _spread(step, _window(step, weights.shape[2:]), step.gradient, weights, group)


def _conv_transpose(step: Step) -> Term:
    attributes, weights = step.attributes, step.constant(1)
    if attributes.get("output_shape") or attributes.get("auto_pad", "").startswith("SAME"):
        raise step.refused("its padding is chosen when it runs")
    window = _attributes(_window(step, weights.shape[2:]))
    return step.gradient.op("Conv", weights, group=int(attributes.get("group", 1)), **window)


def _turned(step: Step, term: Term) -> Operand:
    """A matrix, or each of many, transposed."""
    constant = read_constant(term.value)
    if constant is not None:
        turned = constant.swapaxes(-1, -2)
        return step.writer.weights(lambda: turned, turned.shape)
    rank = len(step.shape(term))
    return term.op("Transpose", perm=[*range(rank - 2), rank - 1, rank - 2])


def _matmul(step: Step) -> Mapping[int, Term]:
    first, second = step.x, step.input(1)
    if min(len(step.shape(first)), len(step.shape(second))) < 2:
        raise step.refused("an operand is a vector")
    gradients = {}
    if 0 in step.wanted:
        gradients[0] = _like_operand(step, 0, step.gradient.op("MatMul", _turned(step, second)))
    if 1 in step.wanted:
        back = step.writer.op("MatMul", _turned(step, first), step.gradient)
        gradients[1] = _like_operand(step, 1, back)
    return gradients


def _like_operand(step: Step, index: int, gradient: Term) -> Term:
    """A gradient in the shape of an operand of a product: summed where leading axes were broadcast."""
    operand = step.input(index)
    own, other = step.shape(operand)[:-2], step.shape(step.input(1 - index))[:-2]
    if not other or own == other:
        return gradient
    axes = step.broadcast_axes(operand, own, step.shape(step.y)[:-2])
    return step.summed(index, gradient, axes)


def _einsum(step: Step) -> Mapping[int, Term]:
    """Of sums of products: products of the gradient and the other operands, summed over other indices."""
    equation = str(step.attributes["equation"]).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    operands = terms.split(",")
    if not arrow or "." in equation or any(len(set(term)) < len(term) for term in (*operands, result)):
        raise step.refused(f"its equation is '{equation}'")
    for letter in set(terms) - {","}:
        sizes = {
            step.shape(step.input(number))[term.index(letter)]
            for number, term in enumerate(operands)
            if letter in term
        }
        if 1 in sizes and len(sizes) > 1:
            raise step.refused(f"it broadcasts '{letter}': '{equation}'")
    gradients = {}
    for index in step.wanted:
        others = [number for number in range(len(operands)) if number != index]
        known = {*result, *(letter for number in others for letter in operands[number])}
        if not known.issuperset(operands[index]):
            raise step.refused(f"it sums one operand by itself: '{equation}'")
        back = ",".join([result, *(operands[number] for number in others)]) + f"->{operands[index]}"
        gradients[index] = step.gradient.op("Einsum", *map(step.input, others), equation=back)
    return gradients


def _gemm(step: Step) -> Term:
    attributes, weights = step.attributes, step.constant(1)
    if attributes.get("transA", 0):
        raise step.refused("its first operand is transposed")
    matrix = weights if attributes.get("transB", 0) else weights.T
    factor = np.float32(attributes.get("alpha", 1.0))
    return step.gradient.op("MatMul", step.writer.weights(lambda: matrix * factor, matrix.shape))


def _average_pool(step: Step) -> Term:
    kernel = [int(size) for size in step.attributes["kernel_shape"]]
    spatial = range(2, 2 + len(kernel))
    window = _window(step, kernel)
    if step.sizes(step.x, spatial) == kernel and not any(window.pads):
        return _evenly(step, kernel)
    (channels,) = step.sizes(step.x, [1])
    share: float | Term = 1 / math.prod(kernel)
    if any(window.pads) and not step.attributes.get("count_include_pad", 0):
        # What a window covers, padding excluded, which ONNX Runtime computes when the network is opened.
        covered = np.ones((1, 1, *step.sizes(step.x, spatial)), np.float32)
        attributes = {**step.attributes, "count_include_pad": 1}
        share = share / step.writer.op("AveragePool", covered, **attributes)
    ones = np.ones((channels, 1, *kernel), np.float32)
    return _spread(step, window, step.gradient * share, ones, channels)


def _evenly(step: Step, sizes: Sequence[int]) -> Term:
    """The gradient of a mean over all elements along the spatial axes."""
    return step.gradient * np.full((1, 1, *sizes), 1 / math.prod(sizes), np.float32)


def _max_pool(step: Step) -> Term:
    """Every gradient goes to the element that was the largest of its window."""
    # Places are those in C order, whatever order the network itself counts in.
    attributes = {**step.attributes, "storage_order": 0}
    return step.added_up(step.x.op("MaxPool", outputs=2, **attributes))


#: By the operator.
RULES: Mapping[str, Rule] = {
    **ELEMENTWISE,
    **MOVEMENT,
    "AveragePool": _average_pool,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda step: _evenly(step, step.sizes(step.x, range(2, step.rank))),
    "GlobalMaxPool": ELEMENTWISE["Max"],
    "MatMul": _matmul,
    "MaxPool": _max_pool,
}


def append_gradients(
    writer: GraphWriter,
    nodes: Iterable[ir.Node],
    starts: Mapping[ir.Value, Term],
    tensors: Iterable[ir.Value],
) -> dict[ir.Value, Term]:
    """Appends the nodes that compute gradients backwards through a network.

    Args:
        writer: Writes to the network's graph.
        nodes: The network's nodes, in graph order.
        starts: Output of the network to the gradient that it begins with, of the same shape.
        tensors: The tensors whose gradients are wanted.

    Returns:
        Tensor to its gradient, for the tensors that an output depends on.

    Raises:
        NoGradientError: The gradient of an operator on the way is not known.
    """
    nodes, wanted = list(nodes), set(tensors)
    reached = reached_from(nodes, wanted)
    gradients = {value: gradient for value, gradient in starts.items() if value in reached}
    found: dict[ir.Value, Term] = {}
    for node in reversed(nodes):
        for output in node.outputs:
            if output in wanted and output in gradients:
                found[output] = gradients[output]
        if not any(output in gradients for output in node.outputs):
            continue
        for index, gradient in _of_inputs(writer, node, gradients, reached).items():
            value = node.inputs[index]
            assert value is not None
            gradients[value] = gradient if value not in gradients else gradients[value] + gradient
            if gradients[value].value.shape is None:
                gradients[value].like(value)
        for output in node.outputs:
            gradients.pop(output, None)
    # What no node makes: inputs of the network.
    return found | {value: gradients[value] for value in wanted if value in gradients}


def _of_inputs(
    writer: GraphWriter, node: ir.Node, gradients: Mapping[ir.Value, Term], reached: set[ir.Value]
) -> Mapping[int, Term]:
    wanted = [index for index, value in enumerate(node.inputs) if value is not None and value in reached]
    inside = any(value in reached for value in set(values_read(node)) - set(node.inputs))
    if not wanted and not inside:
        return {}
    rule = None if inside or node.domain else RULES.get(node.op_type)
    if rule is None:
        raise NoGradientError(f"{node.op_type} '{node.name}': the gradient of this operator is not known")
    step = Step(writer, node, [gradients.get(output) for output in node.outputs], wanted)
    found = rule(step)
    by_input = {0: found} if isinstance(found, Term) else found
    for index in wanted:
        if index not in by_input:
            raise step.refused(f"the gradient of its input {index} is not known")
    return {index: by_input[index] for index in wanted}
