"""Weighted operators as products of matrices: rows of input values times a matrix of weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.operators import operator_of
from trtint8.models.graph import Window, padding


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
    order: NDArray[np.intp]

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
            if "output_shape" in node.attributes or _auto_pad(node).startswith("SAME"):
                return None
            inputs = shape[0] // groups
            turned = numbers.reshape(groups, inputs, shape[1], -1).swapaxes(1, 2)
            return cls(node, shape, turned.reshape(groups, shape[1], -1))
        if node.op_type == "MatMul" and len(shape) != 2:
            return None
        transposed = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
        return cls(node, shape, (numbers if transposed else numbers.T)[None])

    def rows(
        self, values: NDArray[np.float32], places: int, seed: tuple[int, ...], first: int
    ) -> NDArray[np.float32]:
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
            patches = self._patches(values)
            sizes = patches.shape[2 : values.ndim]
            at = np.unravel_index(_choose(math.prod(sizes), places, seeds), sizes)
            # Chosen places come first, whatever the rank: (samples, places, C, kernel...).
            index: tuple[Any, ...] = (every, slice(None), *at)
            chosen: NDArray[np.float32] = patches[index]
        else:
            # A matrix without an axis of places has one place per sample.
            listed = values.reshape(len(values), -1, values.shape[-1])
            chosen = listed[every, _choose(listed.shape[1], places, seeds)]
        return chosen.reshape(-1, self.order.shape[0], self.order.shape[2])

    def _patches(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """A view of the input values that each output position reads: (N, C, positions..., kernel...)."""
        rank, kernel = values.ndim - 2, self.shape[2:]
        window = self._window(values.shape[2:])
        if self.node.op_type == "Conv":
            pads, strides, step = window.pads, window.strides, 1
        else:
            values, pads = self._spread(values, window)
            strides, step = (1,) * rank, -1
        edges = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
        padded = np.pad(values, edges) if any(pads) else values  # which spares a copy
        extents = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, window.dilations, strict=True)]
        axes: Any = tuple(range(2, 2 + rank))  # older stubs of NumPy know one axis only
        views = np.lib.stride_tricks.sliding_window_view(padded, tuple(extents), axis=axes)
        taken = [slice(None, None, stride) for stride in strides]
        dilated = [slice(None, None, step * dilation) for dilation in window.dilations]
        index: tuple[Any, ...] = (..., *taken, *dilated)
        patches: NDArray[np.float32] = views[index]
        return patches

    def _window(self, spatial: tuple[int, ...]) -> Window:
        attributes, ones = self.node.attributes, [1] * len(spatial)
        window = Window(
            tuple(attributes.get_ints("strides", ones)), tuple(attributes.get_ints("dilations", ones)), ()
        )
        return padding(_auto_pad(self.node), attributes.get_ints("pads", []), spatial, self.shape[2:], window)

    def _spread(
        self, values: NDArray[np.float32], window: Window
    ) -> tuple[NDArray[np.float32], tuple[int, ...]]:
        """A transposed convolution's input with zeros inserted, and the pads that make it a convolution.

        Args:
            values: The input, float32 of shape (N, C, positions...).
            window: The strides, dilations and pads of the transposed convolution.

        Returns:
            The input with zeros between its elements, cropped where pads would be negative, and the pads.
        """
        rank = values.ndim - 2
        sizes = [(n - 1) * stride + 1 for n, stride in zip(values.shape[2:], window.strides, strict=True)]
        spread = np.zeros((*values.shape[:2], *sizes), np.float32)
        strided: tuple[Any, ...] = (..., *(slice(None, None, stride) for stride in window.strides))
        spread[strided] = values
        more = self.node.attributes.get_ints("output_padding", [0] * rank)
        reach = [
            (size - 1) * dilation for size, dilation in zip(self.shape[2:], window.dilations, strict=True)
        ]
        before = [extent - pad for extent, pad in zip(reach, window.pads[:rank], strict=True)]
        after = [extent - pad + n for extent, pad, n in zip(reach, window.pads[rank:], more, strict=True)]
        # Pads that are larger than the kernel crop the input.
        kept = [slice(max(0, -b), n - max(0, -a)) for b, a, n in zip(before, after, sizes, strict=True)]
        cropped: tuple[Any, ...] = (..., *kept)
        return spread[cropped], tuple(max(0, pad) for pad in (*before, *after))


def _auto_pad(node: ir.Node) -> str:
    return node.attributes.get_string("auto_pad", "NOTSET")


def _choose(count: int, wanted: int, seeds: Sequence[Sequence[int]]) -> NDArray[np.intp]:
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
