"""ncnn's INT8 calibration table: lines ``name scale...``, with scale = 127 / amax.

A line for activations has a layer's own name and the scale of the layer's input. A line for weights has the
layer's name with ``_param_N`` appended, and one scale per output channel. For 3x3 convolutions of stride 1,
older tools wrote 31 / amax for the weights, because a Winograd transformation in 8 bits needs that margin.

ncnn's tables name layers, not tensors: which tensor a layer reads stands in the ``.param`` file of the
network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calibrators.data.feeds import AnyFloats
from calibrators.errors import TableError
from calibrators.tables.formats.common import (
    add_range,
    check_line_names,
    decoded,
    filled_lines,
    number,
    split_lines,
)

_QMAX, _WINOGRAD_QMAX = 127.0, 31.0
_PARAM = "_param_"
_PARAM_MAGIC = "7767517"


@dataclass(frozen=True)
class NcnnTable:
    """The contents of a table.

    Attributes:
        activations: Layer name to the amax of the layer's input; 0 where the scale is 0, by which ncnn says
            that there is none, or infinite, which is 127 / 0 of an input that was always zero.
        weights: Name of the line (``conv1_param_0``) to the amax of every output channel; 0 where the scale
            is 0 or infinite, which is that of a channel of zeros.
    """

    activations: Mapping[str, float]
    weights: Mapping[str, tuple[float, ...]]

    def tensors(self, inputs: Mapping[str, str]) -> dict[str, float]:
        """The ranges of the activations by tensor; where several layers read a tensor, the widest range.

        Args:
            inputs: Layer name to the tensor that it reads.

        Returns:
            Tensor name to amax.

        Raises:
            TableError: A layer is not among ``inputs``.
        """
        ranges: dict[str, float] = {}
        for layer, amax in self.activations.items():
            if layer not in inputs:
                raise TableError(
                    f"the table has a layer '{layer}' that the network lacks; give the .param or ONNX file "
                    "of the network that was calibrated"
                )
            ranges[inputs[layer]] = max(amax, ranges.get(inputs[layer], 0.0))
        return ranges


def parse(data: bytes, source: str) -> NcnnTable:
    """Reads a table.

    Args:
        data: The file's content.
        source: What to call the file in messages.

    Returns:
        The table's contents.

    Raises:
        TableError: A line is malformed, a name stands twice, or a scale is negative or NaN.
    """
    activations: dict[str, float] = {}
    weights: dict[str, tuple[float, ...]] = {}
    for line, text in filled_lines(data, source):
        name, *scales = text.split()
        if not scales:
            raise TableError(f"'{source}' line {line}: layer '{name}' has no scales")
        amax = [_amax(number(scale, source, line), name, source, line) for scale in scales]
        if _PARAM in name:
            if name in weights:
                raise TableError(f"'{source}' line {line}: '{name}' stands twice; remove one of them")
            weights[name] = tuple(amax)
        elif len(amax) > 1:
            raise TableError(f"'{source}' line {line}: layer '{name}' has {len(amax)} scales instead of one")
        else:
            add_range(activations, name, amax[0], source, line)
    return NcnnTable(activations, weights)


def render(table: NcnnTable) -> bytes:
    """Writes a table, the weights first, as ncnn's own tools do.

    Raises:
        TableError: A name holds white space or a control character.
    """
    names = (*table.weights, *table.activations)
    check_line_names(names, "a table of ncnn", lambda name: name.split() == [name])
    lines = [(name, [_scale(amax) for amax in channels]) for name, channels in table.weights.items()]
    lines += [(name, [_scale(amax)]) for name, amax in table.activations.items()]
    return "".join(
        f"{name} {' '.join(f'{scale:.9g}' for scale in scales)}\n" for name, scales in lines
    ).encode()


def is_winograd(stored: Sequence[float], weights: AnyFloats) -> bool:
    """Whether weight ranges were written for a Winograd transformation, as 31 / amax.

    Args:
        stored: The layer's weight ranges as read, one per output channel.
        weights: The layer's weights, a floating-point array with the output channels as its first axis.

    Returns:
        True where the ranges are 127 / 31 times the true ranges; False where they are the true ranges, or
        where that cannot be determined.
    """
    true = np.abs(weights.reshape(len(weights), -1)).max(axis=1)
    known = true > 0
    if len(stored) != len(true) or not known.any():
        return False
    ratio = float(np.median(np.asarray(stored)[known] / true[known]))
    # The geometric mean of the two possible ratios, 1 and 127 / 31.
    return ratio > float(np.sqrt(_QMAX / _WINOGRAD_QMAX))


def layer_inputs(data: bytes, source: str) -> dict[str, str]:
    """Which tensor every layer of a ``.param`` file reads first.

    Args:
        data: The file's content: a magic number, a line of counts, then one line per layer:
            ``type name inputs outputs input... output... key=value...``.
        source: What to call the file in messages.

    Returns:
        Layer name to tensor name, for the layers that read a tensor.

    Raises:
        TableError: The file is malformed.
    """
    lines = split_lines(decoded(data, source), source)
    if not lines or lines[0].strip() != _PARAM_MAGIC:
        raise TableError(f"'{source}' is not a ncnn .param file: its first line must be {_PARAM_MAGIC}")
    inputs = {}
    for line, text in enumerate(lines[2:], start=3):
        words = text.split()
        try:
            if words and int(words[2]):
                inputs[words[1]] = words[4]
        except (IndexError, ValueError):
            raise TableError(
                f"'{source}' line {line} is not 'type name inputs outputs ...': '{text[:80]}'"
            ) from None
    return inputs


def _amax(scale: float, name: str, source: str, line: int) -> float:
    if not scale >= 0:
        raise TableError(f"'{source}' line {line}: a scale of '{name}' is {scale}; it must be 0 or more")
    return _QMAX / scale if scale else 0.0  # 127 / inf is 0


def _scale(amax: float) -> float:
    return _QMAX / amax if amax else 0.0
