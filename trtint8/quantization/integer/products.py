"""Exact sums of products of integers: convolutions and matrix products of int8 with int8.

Everything is computed in float64, because BLAS has no integer types: products and sums of int8 values are
exact in float64 up to 2^53. The caller checks whether a sum still fits the hardware's accumulator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Integers in float64.
_Integers = NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """The geometry of a convolution over its spatial axes.

    Attributes:
        strides: One stride per spatial axis.
        dilations: One dilation per spatial axis.
        pads: Numbers of zeros before every spatial axis, then after every spatial axis, as in ONNX.
    """

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]


def convolve(
    values: NDArray[np.integer], weights: NDArray[np.integer], window: Window, groups: int
) -> _Integers:
    """A convolution as ONNX defines it, without bias.

    Args:
        values: Integers of shape (N, C, spatial...).
        weights: Integers of shape (M, C / groups, kernel...).
        window: Strides, dilations and pads.
        groups: Number of groups of channels; C for a depthwise convolution.

    Returns:
        The sums, integers in float64 of shape (N, M, spatial...).
    """
    rank = values.ndim - 2
    before, after = window.pads[:rank], window.pads[rank:]
    padded = np.pad(values.astype(np.float64), [(0, 0), (0, 0), *zip(before, after, strict=True)])
    extents = [(k - 1) * d + 1 for k, d in zip(weights.shape[2:], window.dilations, strict=True)]
    patches = np.lib.stride_tricks.sliding_window_view(padded, (1, 1, *extents))
    both = slice(None)
    picked: tuple[Any, ...] = (both, both, *_every(window.strides), 0, 0, *_every(window.dilations))
    patches = patches[picked]
    # (N, spatial..., C, kernel...): one row per place in the output, one column per product.
    patches = np.moveaxis(patches, 1, 1 + rank)
    spatial = patches.shape[1 : 1 + rank]
    rows = patches.reshape(len(values) * math.prod(spatial), groups, -1)
    filters = weights.astype(np.float64).reshape(groups, len(weights) // groups, -1)
    sums = np.stack([rows[:, group] @ filters[group].T for group in range(groups)], axis=1)
    return np.moveaxis(sums.reshape(len(values), *spatial, len(weights)), -1, 1)


def convolve_transposed(
    values: NDArray[np.integer],
    weights: NDArray[np.integer],
    window: Window,
    groups: int,
    output_padding: Sequence[int],
) -> _Integers:
    """A transposed convolution as ONNX defines it, without bias.

    It is computed as a convolution of the values with zeros inserted between them.

    Args:
        values: Integers of shape (N, C, spatial...).
        weights: Integers of shape (C, M / groups, kernel...).
        window: Strides, dilations and pads of the convolution that it reverses.
        groups: Number of groups of channels.
        output_padding: Number of additional places at the end of each spatial axis of the output.

    Returns:
        The sums, integers in float64 of shape (N, M, spatial...).
    """
    rank = values.ndim - 2
    kernel = weights.shape[2:]
    sizes = [(n - 1) * s + 1 for n, s in zip(values.shape[2:], window.strides, strict=True)]
    spread = np.zeros((*values.shape[:2], *sizes), np.int64)
    spread[tuple([slice(None)] * 2 + _every(window.strides))] = values
    extents = [(k - 1) * d for k, d in zip(kernel, window.dilations, strict=True)]
    before = [extent - pad for extent, pad in zip(extents, window.pads[:rank], strict=True)]
    after = [
        extent - pad + more
        for extent, pad, more in zip(extents, window.pads[rank:], output_padding, strict=True)
    ]
    # Input and output channels are swapped within each group, and the kernel is reversed along every axis.
    inputs = len(weights) // groups
    reversed_weights = weights.reshape(groups, inputs, weights.shape[1], *kernel).swapaxes(1, 2)
    reversed_weights = reversed_weights.reshape(groups * weights.shape[1], inputs, *kernel)
    reversed_weights = np.flip(reversed_weights, axis=tuple(range(2, 2 + rank)))
    # Pads larger than the kernel cut values off.
    kept = [slice(max(0, -b), n - max(0, -a)) for b, a, n in zip(before, after, sizes, strict=True)]
    cropped = spread[tuple([slice(None)] * 2 + kept)]
    pads = tuple(max(0, pad) for pad in (*before, *after))
    return convolve(cropped, reversed_weights, Window((1,) * rank, window.dilations, pads), groups)


def _every(steps: Sequence[int]) -> list[slice]:
    return [slice(None, None, step) for step in steps]


def multiply(first: NDArray[np.integer], second: NDArray[np.integer]) -> _Integers:
    """A matrix product of integers of any shapes that NumPy can broadcast; the sums are float64."""
    product: _Integers = first.astype(np.float64) @ second.astype(np.float64)
    return product


def padding(
    auto_pad: str, pads: Sequence[int], spatial: Sequence[int], kernel: Sequence[int], window: Window
) -> Window:
    """Computes the pads that ONNX's ``auto_pad`` means.

    Args:
        auto_pad: "NOTSET", "VALID", "SAME_UPPER" or "SAME_LOWER".
        pads: Explicit pads, used with "NOTSET"; empty for none.
        spatial: Sizes of the input along its spatial axes.
        kernel: Sizes of the kernel along the same axes.
        window: Strides and dilations.

    Returns:
        A window with the strides, the dilations and the pads.
    """
    if not auto_pad.startswith("SAME"):
        explicit = tuple(pads) if auto_pad == "NOTSET" and pads else (0,) * (2 * len(kernel))
        return Window(window.strides, window.dilations, explicit)
    totals = [
        max(0, (math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n)
        for n, s, k, d in zip(spatial, window.strides, kernel, window.dilations, strict=True)
    ]
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    ordered = (*small, *large) if auto_pad == "SAME_UPPER" else (*large, *small)
    return Window(window.strides, window.dilations, ordered)
