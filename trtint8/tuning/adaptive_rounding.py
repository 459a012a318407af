"""Weights rounded up or down so that layers' outputs, and not the weights, change least."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict, batch_rows
from calibrators.errors import CalibrationDataError
from trtint8.quantization.operators import WEIGHTED
from trtint8.quantization.placement import Placement
from trtint8.sensitivity.segments import Layer, Quantizer, cut
from trtint8.tuning.layer_runs import float_layers
from trtint8.tuning.matrix_form import MatrixForm
from trtint8.tuning.rounding_grid import RoundingGrid
from trtint8.tuning.weights import constant_input, set_constant_input

#: Of each sample; neighbouring places see much the same.
_PLACES = 64

#: Inputs of an output channel whose products are kept, at most: 4608^2 float64 are 170 MB.
_LARGEST_BLOCK = 4608

#: How far covariances are drawn to zero. Without it, few samples leave directions in which every error looks
#: free. On ResNet-20 and smaller networks 0.3 gave better weights, judged by other data, for any number.
_SHRINKAGE = 0.3

#: Inputs whose gradients are brought up to date together, by one product of matrices.
_PANEL = 32

#: A flip must lower the error by this share of what it adds by itself, which float64's rounding cannot feign.
_LEAST_GAIN = 1e-9


@dataclass(frozen=True)
class LayerRounding:
    """What became of one layer's weights.

    Attributes:
        before: Squared error of the output at a place, summed over channels, by rounding to nearest; on the
            data used, without shrinkage.
        after: The same by the chosen rounding.
        flipped: How many weights are not rounded to nearest.
        weights: How many there are.
    """

    before: float
    after: float
    flipped: int
    weights: int


@dataclass(frozen=True)
class Adapted:
    """A model whose weights lie where quantization puts them.

    Attributes:
        model: The new model.
        layers: Layer name to what became of it; layers that are not there stayed as they were.
    """

    model: ir.Model
    layers: Mapping[str, LayerRounding]


def adapt_rounding(
    model: ir.Model, placement: Placement, feeds: Iterable[FeedDict], *, seed: int = 0, passes: int = 4
) -> Adapted:
    """Rounds each weight up or down so that its layer's output changes least.

    The objective is AdaRound's: (v - w)^T H (v - w) for each output channel, where w are its weights, v the
    rounded ones and H = E[x x^T] of what the layer reads (Nagel et al., "Up or Down? Adaptive Rounding for
    Post-Training Quantization", ICML 2020, section 3.1). The paper relaxes it and follows its gradient. Here
    it is solved by coordinate descent: from rounding to nearest on, one weight after the other goes to the
    other side where that lowers the objective. That is deterministic, needs only NumPy, and never ends worse
    than it began.

    H comes from the float network, at up to 64 random places of each sample. Three tenths of its part off the
    diagonal are left out: shrinkage, as for any covariance that few samples tell (Ledoit and Wolf, "A
    Well-Conditioned Estimator for Large-Dimensional Covariance Matrices", 2004). Nearest rounding is best for
    the diagonal alone, so what is better with the shrunk H is better with H itself. Where an output channel
    has more than 4608 inputs, they are cut into blocks of at most that many, whose errors are taken as
    independent of each other. The matrices of all layers are kept at once, some 1 GB for a ResNet-50.

    The new weights are whole multiples of the old ones' scales, and each channel's largest weight stays as it
    is. So a model that is quantized afterwards gets the same scales, and just these whole numbers.

    Args:
        model: From :func:`trtint8.models.model.prepare`; not changed.
        placement: For this model. It fits the new one as well. Weights of its quantized Conv, ConvTranspose,
            Gemm and MatMul nodes are rounded, but for those that several nodes share.
        feeds: Calibration data, batch by batch; samples lie along axis 0. The result does not depend on how
            they are batched, but for the order of float additions.
        seed: Of the choice of places.
        passes: Over all weights of a layer, at most; fewer where one finds nothing to flip. The first gains
            most, and after four there is about a hundredth left to gain.

    Returns:
        The new model and each layer's errors.

    Raises:
        CalibrationDataError: There is no data, or the model fails on it.
    """
    # No layer is run in INT8, so no scale of an activation is needed.
    network = cut(model, Quantizer(placement, {}))
    problems = {
        layer.name: problem for layer in network.layers if (problem := _problem(layer, placement)) is not None
    }
    samples = 0
    for feed in feeds:
        for number, (_, layer, tensors) in enumerate(float_layers(network, feed)):
            if layer.name in problems:
                read = layer.activations[0].tensor
                problems[layer.name].add(tensors[read], (seed, number), samples)
        samples += batch_rows(feed) or 1
    if not samples:
        raise CalibrationDataError("the data holds no samples to adapt rounding to; give some")
    copy = model.clone()
    nodes = {node.name: node for node in copy.graph}
    layers = {}
    for name in list(problems):
        # Taken out, so that its matrices are freed before the next ones are worked on.
        weights, layers[name] = problems.pop(name).solve(passes)
        set_constant_input(nodes[name], 1, weights)
    return Adapted(copy, layers)


def descend(
    errors: NDArray[np.float64], steps: NDArray[np.float64], hessian: NDArray[np.float64], passes: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Flips weights, one input after the other for all output channels at once, while that lowers e^T H e.

    Args:
        errors: e, of shape (groups, outputs, inputs).
        steps: What a weight's flip adds to its error, of the same shape; 0 where it cannot be flipped.
        hessian: H, symmetric, (groups, inputs, inputs).
        passes: Over the inputs, at most.

    Returns:
        The errors afterwards, and which weights are flipped, both of the shape of ``errors``.
    """
    # Outputs last: what one input's weights need then lies side by side.
    errors, steps = (array.swapaxes(1, 2).copy() for array in (errors, steps))
    flipped = np.zeros(errors.shape, bool)
    inputs = errors.shape[1]
    for _ in range(passes):
        settled = True
        for start in range(0, inputs, _PANEL):
            stop = min(start + _PANEL, inputs)
            gradient = hessian[:, start:stop] @ errors
            for row in range(start, stop):
                step = steps[:, row]
                own = step**2 * hessian[:, row, row, None]
                flip = -2 * step * gradient[:, row - start] - own > _LEAST_GAIN * own
                if not flip.any():
                    continue
                settled = False
                added = np.where(flip, step, 0.0)
                errors[:, row] += added
                step -= 2 * added
                flipped[:, row] ^= flip
                later = slice(row + 1, stop)
                gradient[:, row + 1 - start :] += hessian[:, later, row, None] * added[:, None]
        if settled:
            break
    return errors.swapaxes(1, 2), flipped.swapaxes(1, 2)


class _Problem:
    """One layer's weights as matrices (groups, outputs, inputs), and what they are multiplied with."""

    def __init__(self, form: MatrixForm, grid: RoundingGrid) -> None:
        self._form, self._grid = form, grid
        inputs = form.order.shape[2]
        edges = np.linspace(0, inputs, -(-inputs // _LARGEST_BLOCK) + 1).astype(int)
        self._blocks = [slice(start, stop) for start, stop in itertools.pairwise(edges.tolist())]
        sizes = [block.stop - block.start for block in self._blocks]
        self._sums = [np.zeros((len(form.order), size, size)) for size in sizes]
        self._places = 0

    def add(self, values: NDArray[np.float32], seed: tuple[int, ...], first: int) -> None:
        """Takes what the layer reads, of which the first sample has the given number."""
        rows = self._form.rows(values, _PLACES, seed, first)
        self._places += len(rows)
        for block, sums in zip(self._blocks, self._sums, strict=True):
            part = rows[:, :, block]
            sums += part.transpose(1, 2, 0) @ part.transpose(1, 0, 2)

    def solve(self, passes: int) -> tuple[NDArray[np.float32], LayerRounding]:
        """The rounded weights, and how good they are."""
        order = self._form.order
        errors, steps = (values.reshape(-1)[order] for values in (self._grid.errors, self._grid.steps))
        chosen = np.zeros(order.shape, bool)
        before = after = 0.0
        for block, sums in zip(self._blocks, self._sums, strict=True):
            hessian = sums / self._places
            found, chosen[:, :, block] = descend(
                errors[:, :, block], steps[:, :, block], _shrunk(hessian), passes
            )
            before += _objective(errors[:, :, block], hessian)
            after += _objective(found, hessian)
        flipped = np.zeros(order.size, bool)
        flipped[order] = chosen
        weights = self._grid.rounded(flipped.reshape(self._form.shape))
        return weights, LayerRounding(before, after, int(chosen.sum()), chosen.size)


def _problem(layer: Layer, placement: Placement) -> _Problem | None:
    """None where the layer has no weights of its own that make it a product of matrices."""
    node = layer.node
    if node.op_type not in WEIGHTED or len(layer.weights) != 1 or layer.weights[0].index != 1:
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


def _shrunk(hessian: NDArray[np.float64]) -> NDArray[np.float64]:
    own = hessian * np.eye(hessian.shape[-1])
    return (1 - _SHRINKAGE) * hessian + _SHRINKAGE * own


def _objective(errors: NDArray[np.float64], hessian: NDArray[np.float64]) -> float:
    return float(((errors @ hessian) * errors).sum())
