"""How the kernels of convolutions and pooling move, and the pads that ONNX's ``auto_pad`` means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


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
