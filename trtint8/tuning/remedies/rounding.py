"""Adaptive rounding: weights are rounded up or down so that layers' outputs change least.

Each of the two nearest values on the grid of quantized weights is tried. A layer is taken as a product of
matrices for that: rows of input values times a matrix of weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import Array, FeedDict, Flags, Float32s, Indices, batch_rows
from calibrators.errors import CalibrationDataError
from calibrators.operators import operator_of
from calibrators.progress import progress_bar
from calibrators.tables.choice import QMAX
from trtint8.models.graph import Window, constant_input, set_constant_input
from trtint8.quantization.config import TensorQuantConfig, quantize
from trtint8.quantization.placement import Placement
from trtint8.quantization.qdq import weight_scale
from trtint8.simulation.networks import Layer, Quantizer
from trtint8.simulation.segments import cut

#: What the remedy is called in results.
ROUNDING = "adaptive rounding"


@dataclass(frozen=True)
class MatrixForm:
    """A node's output, without bias, as a product of matrices, one per group of channels.

    The output is rows (places, groups, inputs) times weights (groups, outputs, inputs), summed over inputs.

    Attributes:
        node: The node.
        shape: The shape of the node's weights.
        order: The index of each element of the matrices in the flattened weights, intp of shape (groups,
            outputs, inputs).
    """

    node: ir.Node
    shape: tuple[int, ...]
    order: Indices

    @classmethod
    def of(cls, node: ir.Node, shape: tuple[int, ...]) -> MatrixForm | None:
        """The form of a weighted node.

        Args:
            node: A node with constant weights as its second input.
            shape: The shape of the weights.

        Returns:
            The form. None for a MatMul with a stack of matrices, and for a ConvTranspose whose padding is
            derived from its output shape.
        """
        numbers = np.arange(math.prod(shape)).reshape(shape)
        groups = node.attributes.get_int("group", 1)
        if node.op_type == "Conv":
            return cls(node, shape, numbers.reshape(groups, shape[0] // groups, -1))
        if node.op_type == "ConvTranspose":
            padded = node.attributes.get_string("auto_pad", "").startswith("SAME")
            if padded or "output_shape" in node.attributes:
                return None
            inputs = shape[0] // groups
            turned = numbers.reshape(groups, inputs, shape[1], -1).swapaxes(1, 2)
            return cls(node, shape, turned.reshape(groups, shape[1], -1))
        if node.op_type == "MatMul" and len(shape) != 2:
            return None
        transposed = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
        return cls(node, shape, (numbers if transposed else numbers.T)[None])

    def rows(self, values: Float32s, places: int, seed: tuple[int, ...], first: int) -> Float32s:
        """The values that the weights are multiplied with, at some places of each sample.

        Args:
            values: The node's first input, float32; samples lie along axis 0.
            places: The most places per sample; they are chosen at random, each at most once.
            seed: Seed of the random choice, which for each sample also depends on the sample's number.
            first: The number of the first sample.

        Returns:
            float32, shape (chosen places of all samples, groups, inputs).
        """
        if self.node.op_type == "Gemm":
            values = values.T if self.node.attributes.get_int("transA", 0) else values
            values = values * np.float32(self.node.attributes.get_float("alpha", 1.0))
        seeds = [(*seed, first + row) for row in range(len(values))]
        every = np.arange(len(values))[:, None]
        if operator_of(self.node).is_convolution:
            chosen = self._read(values, places, seeds)
        else:
            # A matrix without an axis of places has one place per sample.
            # No -1: where a network picks rows by its own values, there may be none.
            listed = values.reshape(len(values), math.prod(values.shape[1:-1]), values.shape[-1])
            chosen = listed[every, _choose(listed.shape[1], places, seeds)]
        return chosen.reshape(-1, self.order.shape[0], self.order.shape[2])

    def _read(self, values: Float32s, places: int, seeds: Sequence[Sequence[int]]) -> Float32s:
        """What a convolution reads at some places of each sample: (samples, places, C, kernel...)."""
        read = self._elements(values.shape[2:])
        sizes, ones = [len(axis) for axis in read], [1] * len(read)
        at = np.unravel_index(_choose(math.prod(sizes), places, seeds), sizes)
        index, outside = [np.arange(len(values)).reshape(-1, 1, *ones)], np.zeros(1, np.bool_)
        for number, (axis, positions) in enumerate(zip(read, at, strict=True)):
            kernel = [*ones[:number], -1, *ones[number + 1 :]]
            elements = axis[positions].reshape(*positions.shape, *kernel)
            end = values.shape[2 + number]
            outside = outside | (elements == end)
            index.append(np.minimum(elements, end - 1))
        # With channels last, all of one element are contiguous.
        chosen = np.moveaxis(values, 1, -1)[tuple(index)]
        chosen[np.broadcast_to(outside, chosen.shape[:-1])] = 0
        return np.moveaxis(chosen, -1, 2)

    def _elements(self, spatial: Sequence[int]) -> list[Indices]:
        """Which elements a convolution reads along each axis: of shape (positions, kernel).

        Args:
            spatial: The sizes of the input along these axes; each is also the index of a zero.
        """
        rank = len(spatial)
        window = Window.of(self.node, self.shape[2:], lambda: spatial)
        more = self.node.attributes.get_ints("output_padding", [0] * rank)
        elements = []
        for n, size, stride, dilation, before, after, added in zip(
            spatial,
            window.kernel,
            window.strides,
            window.dilations,
            window.pads[:rank],
            window.pads[rank:],
            more,
            strict=True,
        ):
            offsets = np.arange(size) * dilation
            reach = offsets[-1] + 1
            if self.node.op_type == "Conv":
                positions = np.arange((n + before + after - reach) // stride + 1)
                read = positions[:, None] * stride + offsets - before
            else:
                positions = np.arange((n - 1) * stride + reach - before - after + added)
                read, rest = np.divmod(positions[:, None] + before - offsets, stride)
                read[rest != 0] = -1
            elements.append(np.where((read >= 0) & (read < n), read, n))
        return elements


def _choose(count: int, wanted: int, seeds: Sequence[Sequence[int]]) -> Indices:
    """Chooses places of each sample.

    Args:
        count: Number of places per sample.
        wanted: The most places to choose per sample.
        seeds: One seed per sample.

    Returns:
        Ascending indices of places, intp of shape (samples, min(count, wanted)).
    """
    if count <= wanted:
        return np.broadcast_to(np.arange(count), (len(seeds), count))
    chosen = [np.random.default_rng(seed).choice(count, wanted, replace=False) for seed in seeds]
    return np.sort(np.array(chosen), axis=1)


#: Places per sample that are used; neighbouring places read nearly the same values.
_PLACES = 64

#: The most inputs of an output channel whose products are kept as one matrix. On a ResNet-50, ResNet-20 and a
#: transformer, blocks of 4608 inputs gave the same SQNR and took several times as long.
_LARGEST_BLOCK = 576

#: How far covariances are shrunk towards zero. Without shrinkage, a small number of samples leaves directions
#: in which errors seem to cost nothing. On ResNet-20 and smaller networks a shrinkage of 0.3 gave better
#: weights on other data, whatever the number of samples.
_SHRINKAGE = 0.3

#: Inputs whose gradients are updated together, by one product of matrices.
_INPUTS_PER_UPDATE = 16

#: The most multiplications of one product of matrices. OpenBLAS divides larger ones among threads, which wait
#: for each other sixteen times as long as they compute where other work keeps the processor busy.
_LARGEST_PRODUCT = 1 << 18

#: Layers that are solved at once.
_THREADS = 4

#: A flip must lower the error by at least this share of the error that it adds by itself. It is more than
#: float32's rounding errors amount to.
_LEAST_GAIN = 1e-4

#: The most passes over all weights of a layer. The second lowers the error by another 2 %, and four gained no
#: more SQNR on other data than two.
_PASSES = 2


@dataclass(frozen=True)
class AdaptivelyRounded:
    """A model whose weights are rounded already to values that quantization represents exactly.

    Attributes:
        model: The new model.
        shifts: Layer name to what is added to the mean of each output channel by rounding this way and not to
            nearest, float32 of shape (channels,); the weights of other layers are unchanged.
    """

    model: ir.Model
    shifts: Mapping[str, Float32s]


def adapt_rounding(
    model: ir.Model, placement: Placement, feeds: Iterable[FeedDict], *, seed: int = 0
) -> AdaptivelyRounded:
    """Rounds each weight up or down so that its layer's output changes least.

    The objective is AdaRound's: (v - w)^T H (v - w) for each output channel, where w are its weights, v the
    rounded ones and H = E[x x^T] for the layer's input x (Nagel et al., "Up or Down? Adaptive Rounding for
    Post-Training Quantization", ICML 2020, section 3.1). The paper relaxes it to a continuous problem and
    follows the gradient. Here it is solved by coordinate descent: starting with all weights rounded to
    nearest, one weight after the other is rounded to the other side where that lowers the objective. This is
    deterministic, needs only NumPy, and never gives a larger error than rounding to nearest.

    H is measured in the float network, at up to 64 random places per sample. Its elements off the diagonal
    are multiplied by 0.7: this is shrinkage, as is usual for covariances that are estimated from few samples
    (Ledoit and Wolf, "A Well-Conditioned Estimator for Large-Dimensional Covariance Matrices", 2004).
    Rounding to nearest is best for the diagonal alone, so a rounding that is better with the shrunk H is
    better with H itself. Where an output channel has more than 576 inputs, they are divided into blocks of
    at most 576, and the errors of different blocks are taken as independent. The matrices of all layers are
    kept at once, about 0.2 GB for a ResNet-50.

    The new weights are integer multiples of the old weights' scales, and each channel's largest weight stays
    as it is. So a model that is quantized afterwards gets the same scales and exactly these integers.

    Args:
        model: From :func:`trtint8.models.model.prepare`; not changed.
        placement: The placement for this model; it fits the new model as well. Weights of its quantized Conv,
            ConvTranspose, Gemm and MatMul nodes are rounded, except those that several nodes share.
        feeds: Calibration data, batch by batch; samples lie along axis 0. The result does not depend on the
            batch size, except through the order of float additions.
        seed: Seed of the random choice of places.

    Returns:
        The new model, and by how much the layers' outputs are shifted.

    Raises:
        CalibrationDataError: There is no data, or the model fails on it.
    """
    # No layer is run in INT8, so no scale of an activation is needed.
    network = cut(model, Quantizer(placement, {}))
    problems = {
        layer.name: problem
        for layer in network.layers
        if (problem := _rounding_problem(layer, placement)) is not None
    }
    samples = 0
    for feed in feeds:
        for number, (_, layer, tensors) in enumerate(network.float_layers(feed)):
            if layer.name in problems:
                read = layer.activations[0].tensor
                problems[layer.name].add(tensors[read], (seed, number), samples)
        samples += batch_rows(feed) or 1
    if not samples:
        raise CalibrationDataError("the data holds no samples to adapt rounding to; give some")
    copy = model.clone()
    nodes = {node.name: node for node in copy.graph}
    shifts = {}
    with (
        progress_bar("Rounding weights", len(problems), enabled=False) as advance,
        ThreadPoolExecutor(_THREADS, "trtint8-round") as pool,
    ):
        # Removed from the dictionary, so that a layer's matrices are freed when it is solved.
        solved = {name: pool.submit(problems.pop(name).solve) for name in list(problems)}
        for name, future in solved.items():
            weights, shifts[name] = future.result()
            set_constant_input(nodes[name], 1, weights)
            advance(1)
    return AdaptivelyRounded(copy, shifts)


def descend(errors: Float32s, steps: Float32s, hessian: Float32s, passes: int) -> tuple[Float32s, Flags]:
    """Flips weights, one input after the other for all output channels at once, while that lowers e^T H e.

    Args:
        errors: The errors e of the weights: float32, shape (groups, outputs, inputs).
        steps: What flipping a weight adds to its error: float32, of the same shape; 0 where a weight cannot
            be flipped.
        hessian: H, symmetric: float32, shape (groups, inputs, inputs).
        passes: The most passes over the inputs.

    Returns:
        The errors afterwards, and which weights are flipped, both of the shape of ``errors``.
    """
    groups, outputs, inputs = errors.shape
    pieces = -(-outputs // max(1, _LARGEST_PRODUCT // (_INPUTS_PER_UPDATE * inputs)))
    columns = pieces * -(-outputs // pieces)

    def turned(values: Float32s) -> Float32s:
        # With outputs along the last axis, all values of one input are contiguous in memory.
        copied = np.zeros((groups, inputs, columns), values.dtype)
        copied[..., :outputs] = values.swapaxes(1, 2)
        return copied

    def divided(values: Float32s) -> Float32s:
        return values.reshape(groups, -1, pieces, columns // pieces).swapaxes(1, 2)

    errors, given, steps = turned(errors), turned(steps), turned(steps)
    # A flip adds step * (2 * gradient + step * H's diagonal) to the error.
    bound = -(0.5 + 0.5 * _LEAST_GAIN) * np.diagonal(hessian, axis1=1, axis2=2)[..., None]
    bound = bound.astype(hessian.dtype)
    for _ in range(passes):
        settled = True
        for start in range(0, inputs, _INPUTS_PER_UPDATE):
            rows = slice(start, min(start + _INPUTS_PER_UPDATE, inputs))
            step, among = steps[:, rows], hessian[:, rows, rows]
            gradient, added = np.empty_like(step), np.empty_like(step)
            np.matmul(hessian[:, None, rows], divided(errors), out=divided(gradient))
            needed = step * step * bound[:, rows]
            for row in range(step.shape[1]):
                flip = step[:, row] * gradient[:, row] < needed[:, row]
                np.multiply(step[:, row], flip, out=added[:, row])
                gradient[:, row + 1 :] += among[:, row + 1 :, row, None] * added[:, None, row]
            errors[:, rows] += added
            step -= 2 * added
            settled = settled and not added.any()
        if settled:
            break
    return errors.swapaxes(1, 2)[:, :outputs], (steps != given).swapaxes(1, 2)[:, :outputs]


class _Problem:
    """The rounding of one layer: its weights as matrices, and the matrices H of its input.

    Blocks of inputs are solved as groups of their own.
    """

    def __init__(self, form: MatrixForm, grid: RoundingGrid) -> None:
        self._form, self._grid = form, grid
        groups, _, inputs = form.order.shape
        self._blocks = -(-inputs // _LARGEST_BLOCK)
        size = -(-inputs // self._blocks)
        self._more = self._blocks * size - inputs
        self._sums = np.zeros((groups * self._blocks, size, size), np.float32)
        self._means = np.zeros((groups * self._blocks, size), np.float32)
        self._places = 0

    def add(self, values: Float32s, seed: tuple[int, ...], first: int) -> None:
        """Adds a batch of the layer's input.

        Args:
            values: The layer's input, float32; samples lie along axis 0.
            seed: Seed of the random choice of places.
            first: Number of the batch's first sample in the data.
        """
        rows = self._with_more(self._form.rows(values, _PLACES, seed, first), 0)
        rows = rows.reshape(len(rows), *self._means.shape)
        self._places += len(rows)
        self._sums += rows.transpose(1, 2, 0) @ rows.transpose(1, 0, 2)
        self._means += rows.sum(axis=0)

    def solve(self) -> tuple[Float32s, Float32s]:
        """Rounds the weights.

        Returns:
            The rounded weights, and what they add to the mean of each output channel; both float32.
        """
        groups, outputs, _ = self._form.order.shape
        weights = math.prod(self._form.shape)
        # Inputs that fill the last block are those of one weight more, which is zero.
        filled = self._with_more(self._form.order, weights).reshape(groups, outputs, self._blocks, -1)
        order = filled.swapaxes(1, 2).reshape(groups * self._blocks, outputs, -1)
        errors, steps = (
            np.append(values, np.float32(0))[order] for values in (self._grid.errors, self._grid.steps)
        )
        places = max(self._places, 1)  # a layer that no sample reached is rounded to nearest
        hessian = _shrunk(self._sums) * np.float32(1 / places)
        _, chosen = descend(errors, steps, hessian, _PASSES)
        shifts = (chosen * steps) @ self._means[..., None] / places
        flipped = np.zeros(weights + 1, bool)
        flipped[order] = chosen
        rounded = self._grid.rounded(flipped[:-1].reshape(self._form.shape))
        return rounded, shifts.reshape(groups, self._blocks, outputs).sum(axis=1).reshape(-1)

    def _with_more(self, values: Array, value: int) -> Array:
        """Values with a last axis of inputs, so many more that all blocks have the same size."""
        edges = [(0, 0)] * (values.ndim - 1) + [(0, self._more)]
        return np.pad(values, edges, constant_values=value) if self._more else values


def _rounding_problem(layer: Layer, placement: Placement) -> _Problem | None:
    """A layer's problem; None where the layer is no product of matrices with weights that only it reads."""
    node = layer.node
    if not operator_of(node).is_weighted or len(layer.weights) != 1 or layer.weights[0].index != 1:
        return None
    (edge,), value, weights = layer.weights, node.inputs[1], constant_input(node, 1)
    if value is None or weights is None or len(value.uses()) != 1:
        return None
    form = MatrixForm.of(node, weights.shape)
    return (
        None
        if form is None
        else _Problem(form, RoundingGrid.of(weights, edge.axis, placement.configs[edge.tensor]))
    )


def _shrunk(hessian: Float32s) -> Float32s:
    shrunk: Float32s = np.multiply(hessian, np.float32(1 - _SHRINKAGE))
    diagonal = np.arange(hessian.shape[-1])
    shrunk[:, diagonal, diagonal] = hessian[:, diagonal, diagonal]
    return shrunk


#: In steps of the grid: weights that are closer to the grid than this differ from it only by float32's
#: rounding, and have no other neighbour.
_ON_GRID = 1e-4


@dataclass(frozen=True)
class RoundingGrid:
    """Constant weights and the integers near them; all arrays have the weights' shape.

    Attributes:
        weights: The weights, float32.
        scale: The distance between neighbouring values of the grid, float32.
        peak: The largest magnitude among the weights that share the scale, float32.
        nearest: The integer that quantization rounds to, int32.
        other: What leads from ``nearest`` to the integer on the other side of the weight, int32: 1 or -1. It
            is 0 where there is none, and where the weight determines the scale.
    """

    weights: Float32s
    scale: Float32s
    peak: Float32s
    nearest: NDArray[np.int32]
    other: NDArray[np.int32]

    @classmethod
    def of(cls, weights: Float32s, axis: int | None, config: TensorQuantConfig) -> RoundingGrid:
        """The grid on which a placement's config puts weights.

        Args:
            weights: The weights, float32.
            axis: The axis of the output channels, or None for one scale per tensor.
            config: How the weights are quantized, without scale.
        """
        scale = weight_scale(weights, axis)
        nearest = quantize(weights, config.with_scale(scale))
        others = tuple(other for other in range(weights.ndim) if other != axis)
        peak = np.broadcast_to(np.abs(weights).max(axis=others, keepdims=True), weights.shape)
        if axis is not None:
            scale = np.expand_dims(scale, others)
        scale = np.broadcast_to(scale, weights.shape)
        rest = weights / scale - nearest.astype(np.float32)
        other = np.where(np.abs(rest) < _ON_GRID, 0, np.sign(rest)).astype(np.int32)
        # The largest weight determines the scale, so it is not changed, and no weight may become larger.
        fixed = (np.abs(weights) == peak) | (np.abs(nearest + other) > QMAX)
        return cls(weights, scale, peak, nearest, np.where(fixed, 0, other))

    @property
    def errors(self) -> Float32s:
        """What rounding to nearest adds to each weight, float32."""
        return self.nearest.astype(np.float32) * self.scale - self.weights

    @property
    def steps(self) -> Float32s:
        """What taking the other neighbour in place of the nearest adds to each weight, float32."""
        return self.other.astype(np.float32) * self.scale

    def rounded(self, flipped: Flags) -> Float32s:
        """Weights on the grid, which give the same scale and are quantized to exactly these integers.

        Args:
            flipped: The weights that take their other neighbour, bool of the weights' shape.

        Returns:
            Integer multiples of the scale, float32. In place of ±127 times the scale stands the largest
            weight itself, so that the scale of the new weights is the same to the last bit.
        """
        integers = (self.nearest + flipped * self.other).astype(np.float32)
        return np.where(np.abs(integers) == QMAX, np.sign(integers) * self.peak, integers * self.scale)
