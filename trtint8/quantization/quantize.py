"""Makes a model with Q/DQ pairs of a float model and a calibration table.

TensorRT for RTX gets weights that are dequantized by one scale. With one scale per channel, its INT8
convolutions write float32, and a second kernel reads that, multiplies by the scales, adds the bias and
quantizes. With one scale for all weights they write FP16, half as much. So the weights stay the same
integers, quantized per channel, but are dequantized by one scale. What the scale of each channel is more than
that multiplies the convolution's output, and the bias is added after it; the second kernel takes both in. The
scale is free, because the factors undo it. It is chosen so that no sum of products can leave the range of
FP16, whatever the input is, and so that the smallest sum is still a normal number of FP16.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from calibrators.checks import warn_user
from calibrators.data.feeds import AnyFloats, Float32s, Floats, Ints
from calibrators.data.inputs import InputShapes
from calibrators.errors import Argument, ModelError
from calibrators.tables.table import CalibrationTable
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph import add_initializer, graph_values, made_by, read_constant, take_name, value_names
from trtint8.models.model import Model, record_calibration, record_quantization
from trtint8.models.outputs.picked import left_out_nodes
from trtint8.quantization.float16 import Float32Cause, Float32Reason, to_float16
from trtint8.quantization.placement import Edge, Placement, place
from trtint8.quantization.qdq import PairWriter, WeightScales, insert_qdq
from trtint8.quantization.targets import DEFAULT, Target
from trtint8.quantization.tensor_configs import JointConfigs

_logger = logging.getLogger(__name__)

_LARGEST_HALF = float(np.finfo(np.float16).max)
_SMALLEST_HALF = float(np.finfo(np.float16).smallest_normal)

#: How the name of a convolution's output ends that is not multiplied by the factors of its channels yet.
_UNSCALED = "_unscaled"

#: The largest magnitude of a quantized input.
_LARGEST_INTEGER = 128

#: The largest share of FP16's range that an output was seen to take, its bias left out.
_SHARE_OF_RANGE = 0.5


def dequantize_by_one_scale(model: ir.Model, peaks: Mapping[str, float]) -> tuple[str, ...]:
    """Rewrites the INT8 convolutions of a model that have FP16 around them.

    Args:
        model: A model with Q/DQ pairs, from :func:`trtint8.quantization.float16.to_float16`; changed
            in place.
        peaks: Tensor name to the largest magnitude seen in it; may lack tensors.

    Returns:
        Names of the convolutions that were rewritten. Left as they are: those in float32, those with one
        scale already or a computed bias, and those for which there is no such scale.
    """
    rewriter = _Rewriter(model.graph, peaks)
    convolutions = [node for node in model.graph if node.domain == "" and node.op_type == "Conv"]
    return tuple(node.name or "" for node in convolutions if rewriter.rewrite(node))


def has_one_scale(model: ir.Model) -> bool:
    """True if a model has convolutions that :func:`dequantize_by_one_scale` rewrote."""
    return any(conv.op_type == "Conv" and _behind_unscaled(conv.outputs[0]) for conv in model.graph)


def undo_one_scale(model: ir.Model) -> None:
    """Gives convolutions back the pairs and the biases that :func:`dequantize_by_one_scale` took apart.

    Args:
        model: A model in FP32 with named nodes; changed in place. Weights have the values that their integers
            represent.
    """
    graph = model.graph
    names = value_names(graph)
    scales: dict[Edge, Float32s] = {}
    for conv in [node for node in graph if node.domain == "" and node.op_type == "Conv"]:
        output, source = conv.outputs[0], made_by(conv.inputs[1], "DequantizeLinear")
        behind = _behind_unscaled(output)
        factor = read_constant(behind[0].inputs[1]) if behind else None
        if not behind or source is None or factor is None:
            continue
        integers, scale = (read_constant(value) for value in source.inputs[:2])
        if integers is None or scale is None or scale.size != 1:
            continue
        channels = (np.float32(scale.item()) * factor.reshape(-1)).astype(np.float32)
        weights = integers.astype(np.float32) * channels.reshape(-1, *[1] * (integers.ndim - 1))
        stem = (source.inputs[0].name if source.inputs[0] is not None else None) or "weights"
        name = take_name(f"{stem}_weights", names)
        conv.replace_input_with(1, add_initializer(graph, name, weights))
        scales[Edge(conv.name or "", 1, name, 0)] = channels
        last = behind[-1]
        if last.op_type == "Add" and (bias := read_constant(last.inputs[1])) is not None:
            conv.resize_inputs(3)
            conv.replace_input_with(
                2, add_initializer(graph, take_name(f"{stem}_bias", names), bias.reshape(-1))
            )
        last.outputs[0].name, output.name = output.name, last.outputs[0].name
        output.shape, output.type = last.outputs[0].shape, last.outputs[0].type
        last.outputs[0].replace_all_uses_with(output, replace_graph_outputs=True)
    writer = PairWriter(model)
    for edge, channels in scales.items():
        writer.quantize(edge, channels)
    common.RemoveUnusedNodesPass()(model)


def _behind_unscaled(output: ir.Value) -> list[ir.Node]:
    """The Mul and perhaps the Add that finish a rewritten convolution; empty behind any other output."""
    name, mark, _ = (output.name or "").rpartition(_UNSCALED)
    readers = output.consumers()
    if not mark or len(readers) != 1 or readers[0].op_type != "Mul":
        return []
    product = readers[0].outputs[0]
    if not (product.name or "").startswith(f"{name}_Mul_out"):
        return [readers[0]]  # without a bias the product has the name that the output had
    return [readers[0], *product.consumers()]


def one_scale(integers: NDArray[np.int8], scales: AnyFloats, input_scale: float) -> float | None:
    """The scale by which all weights of a convolution are dequantized.

    Args:
        integers: The weights, of shape (output channels, ...).
        scales: The scale of each output channel, of shape (output channels,); FP16 numbers.
        input_scale: The scale of the convolution's input.

    Returns:
        A power of two that is at most 1, so that the factors ``scales / scale`` are exact in FP16; None where
        none keeps both sums and factors within FP16's numbers, or where all weights are zero.
    """
    sums = _magnitudes(integers)
    if not sums.any():
        return None
    highest = min(_LARGEST_HALF / (float(sums.max()) * _LARGEST_INTEGER * input_scale), 1.0)
    lowest = max(_SMALLEST_HALF / input_scale, float(scales.max()) / _LARGEST_HALF, _SMALLEST_HALF)
    scale = 2.0 ** math.floor(math.log2(highest))
    return scale if scale >= lowest else None


class _Rewriter:
    def __init__(self, graph: ir.Graph, peaks: Mapping[str, float]) -> None:
        self._graph, self._peaks = graph, peaks
        self._names = value_names(graph) | {node.name for node in graph if node.name}
        self._dequantized: dict[tuple[ir.Value, float], ir.Value] = {}

    def rewrite(self, conv: ir.Node) -> bool:
        """Rewrites one convolution; returns whether it did."""
        source, weights = (made_by(value, "DequantizeLinear") for value in conv.inputs[:2])
        bias = conv.inputs[2] if len(conv.inputs) > 2 else None
        addend = read_constant(bias)
        if conv.outputs[0].dtype != ir.DataType.FLOAT16 or source is None or weights is None:
            return False
        if (bias is not None and addend is None) or self._leaves_range(conv.outputs[0], addend):
            return False
        input_scale, integers = read_constant(source.inputs[1]), _integers(weights)
        scales = read_constant(weights.inputs[1])
        if input_scale is None or input_scale.size != 1 or integers is None or scales is None:
            return False
        scale = one_scale(integers, scales, float(input_scale.reshape(-1)[0]))
        if scale is None:
            _logger.debug("no one scale fits the weights of '%s'", conv.name)
            return False
        self._dequantize(conv, integers, scale)
        factors = np.where(_magnitudes(integers) > 0, scales.astype(np.float64) / scale, 1.0)
        column = (-1, *[1] * (integers.ndim - 2))
        self._finish(conv, factors.reshape(column), None if addend is None else addend.reshape(column))
        return True

    def _leaves_range(self, output: ir.Value, bias: AnyFloats | None) -> bool:
        """Whether the output, its bias left out, was seen to come near the end of FP16's range."""
        peak = self._peaks.get(output.name or "", 0.0)
        largest_bias = 0.0 if bias is None else float(np.abs(bias.astype(np.float64)).max(initial=0))
        return peak + largest_bias > _SHARE_OF_RANGE * _LARGEST_HALF

    def _dequantize(self, conv: ir.Node, integers: NDArray[np.int8], scale: float) -> None:
        """Lets a convolution read its weights dequantized by one scale."""
        value = conv.inputs[1]
        assert value is not None
        # Convolutions that share weights share those of one scale too, where it is the same.
        key = (value, scale)
        if key not in self._dequantized:
            parameters = [
                self._constant(f"{value.name}_integers", integers),
                self._constant(f"{value.name}_one_scale", np.asarray(scale)),
                self._constant(f"{value.name}_one_zero_point", np.zeros((), np.int8)),
            ]
            name = f"{value.name}_by_one_scale"
            dequantize = self._node("DequantizeLinear", parameters, name, integers.shape)
            self._graph.insert_before(conv, dequantize)
            self._dequantized[key] = dequantize.outputs[0]
        conv.replace_input_with(1, self._dequantized[key])

    def _finish(self, conv: ir.Node, factors: Floats, bias: AnyFloats | None) -> None:
        """Multiplies a convolution's output by factors per channel and adds its bias."""
        output = conv.outputs[0]
        name, shape = output.name or "", output.shape
        output.name = take_name(f"{name}{_UNSCALED}", self._names)
        product = self._node(
            "Mul", [output, self._constant(f"{name}_factors", factors)], f"{name}_Mul", shape
        )
        added = [product]
        if bias is not None:
            addend = self._constant(f"{name}_bias", bias)
            added.append(self._node("Add", [product.outputs[0], addend], f"{name}_Add", shape))
            conv.resize_inputs(2)
        last = added[-1].outputs[0]
        last.name = name
        output.replace_all_uses_with(last, replace_graph_outputs=True)
        product.replace_input_with(0, output)
        self._graph.insert_after(conv, added)

    def _node(
        self,
        operator: str,
        inputs: list[ir.Value],
        name: str,
        shape: ir.Shape | tuple[int, ...] | None,
    ) -> ir.Node:
        node = ir.Node("", operator, inputs, name=take_name(name, self._names))
        output = node.outputs[0]
        output.name = take_name(f"{name}_out", self._names)
        output.type = ir.TensorType(ir.DataType.FLOAT16)
        output.shape = None if shape is None else ir.Shape(tuple(shape))
        return node

    def _constant(self, name: str, array: NDArray[np.generic]) -> ir.Value:
        """A constant: of integers as they are, and of floats in FP16."""
        array = array.astype(np.float16) if array.dtype.kind == "f" else array
        return add_initializer(self._graph, take_name(name, self._names), array)


def _integers(dequantize: ir.Node) -> NDArray[np.int8] | None:
    """The integers of weights, where they have one scale per output channel and a pair of their own."""
    source = made_by(dequantize.inputs[0], "QuantizeLinear")
    if source is None:
        return None
    weights, scales = (read_constant(value) for value in source.inputs[:2])
    if weights is None or scales is None or scales.shape != weights.shape[:1]:
        return None
    if dequantize.attributes.get_int("axis", 1) != 0 or source.attributes.get_int("axis", 1) != 0:
        return None
    column = scales.reshape(-1, *[1] * (weights.ndim - 1))
    integers: NDArray[np.int8] = np.clip(np.rint(weights / column), -128, 127).astype(np.int8)
    return integers


def _magnitudes(integers: NDArray[np.int8]) -> Ints:
    """The sum of the weights' magnitudes of each output channel, of shape (output channels,)."""
    found: Ints = np.abs(integers.astype(np.int64)).reshape(len(integers), -1).sum(axis=1)
    return found


@dataclass(frozen=True)
class QuantizeOptions:
    """What becomes of a float model.

    Attributes:
        keep_float: Names of nodes, or patterns with ``*`` and ``?``, that stay in float.
        keep_int8: Names of nodes, or patterns, that are put in INT8 even if that is estimated to be slower.
        target: What the model is built for.
        float16: Whether what is outside INT8 becomes FP16. Layers that are estimated to be slower in INT8
            than in FP16 are outside INT8 then.
        float32_io: With ``float16``, whether the model's inputs and outputs stay float32.
        slower: Names of weighted nodes that stay in FP16 because an engine was slower with them in INT8.
    """

    keep_float: Sequence[str] = ()
    keep_int8: Sequence[str] = ()
    target: Target = DEFAULT
    float16: bool = False
    float32_io: bool = False
    slower: Sequence[str] = ()

    def place(
        self,
        prepared: Model,
        table: CalibrationTable | None = None,
        largest: InputShapes | None = None,
        optimal: InputShapes | None = None,
    ) -> Placement:
        """Where Q/DQ pairs go; see :func:`trtint8.quantization.placement.place`.

        Args:
            prepared: The model.
            table: Its table, which says what stays in float because that gains accuracy.
            largest: Input name to its largest shape, where that is known.
            optimal: Input name to the shape that the engine is tuned for.
        """
        return place(
            prepared.graph_model,
            self.keep_float,
            self.target,
            largest,
            float16=self.float16,
            keep_int8=self.keep_int8,
            optimal=optimal,
            slower=self.slower,
            float_layers=table.layers_in_float if table else (),
        )


_WHOLE = QuantizeOptions()


@dataclass(frozen=True)
class Quantized:
    """A model with Q/DQ pairs.

    Attributes:
        graph_model: The model.
        placement: Where the pairs are.
        configs: How every tensor is quantized, with the scales of the pairs.
        float32: Names of the nodes that stay in FP32 amid FP16, with the reasons.
        float32_causes: Names of these nodes, with the causes for programs.
        left_out: Names of the nodes that no calibration sees, to their operators: plugins of TensorRT, and
            all that follows them.
        float16: Whether what is outside INT8 is in FP16.
    """

    graph_model: ir.Model
    placement: Placement
    configs: JointConfigs
    float32: Mapping[str, str]
    float32_causes: Mapping[str, Float32Cause]
    left_out: Mapping[str, str]
    float16: bool = False


def quantized_model(
    prepared: Model,
    table: CalibrationTable,
    options: QuantizeOptions,
    largest: InputShapes | None = None,
    optimal: InputShapes | None = None,
) -> Quantized:
    """Puts Q/DQ pairs into a prepared model and, where asked, converts the rest to FP16.

    Args:
        prepared: A model from :func:`trtint8.models.model.prepare`; not changed.
        table: The calibration table.
        options: What becomes of the model.
        largest: Input name to its largest shape, where that is known.
        optimal: Input name to the shape that the engine is tuned for; ``largest`` where it is not given.

    Raises:
        ModelError: A pattern matches no node that could be quantized, the model has no weighted node, or ONNX
            cannot convert it to an opset with FP16 scales.
        TableError: The table lacks a range that the placement needs, or was made for another model.

    Warns:
        UserWarning: All layers that could be in INT8 are in FP16, because INT8 is estimated to be slower.
    """
    target, left_out = options.target, left_out_nodes(prepared)
    graph_model, placement = quantize_graph(prepared, table, options, largest=largest, optimal=optimal)
    if placement.all_slower:
        everything = Argument("keep_int8", "'*'")
        warn_user(
            f"INT8 would be slower than FP16 in all layers that target '{target.name}' runs in INT8, so the "
            f"whole model is FP16; 'trtint8 audit' shows why, and {everything} quantizes all of "
            "them all the same",
            note=True,
        )
    configs = placement.configs.scaled(*_scales_of_pairs(graph_model, placement, table))
    if not options.float16:
        return Quantized(graph_model, placement, configs, {}, {}, left_out)
    typed, kept = with_float16(
        graph_model, target, float32_io=options.float32_io, peaks=table.peaks, name=prepared.name
    )
    words = {name: reason.words for name, reason in kept.items()}
    causes = {name: reason.cause for name, reason in kept.items()}
    return Quantized(typed, placement, configs, words, causes, left_out, float16=True)


def _scales_of_pairs(
    graph_model: ir.Model, placement: Placement, table: CalibrationTable
) -> tuple[dict[str, Float32s], dict[str, str]]:
    """The scale of every tensor that has a pair, and how its range was found."""
    scales: dict[str, Float32s] = {}
    for node in graph_model.graph:
        if node.op_type == "QuantizeLinear" and node.inputs[0] is not None:
            scale, name = read_constant(node.inputs[1]), node.inputs[0].name or ""
            # Weights may have a pair for each of several axes.
            if scale is not None and scale.ndim == (placement.configs[name].axis is not None):
                scales.setdefault(name, scale)
    observers = {edge.tensor: "minmax" for edge in placement.weights}
    observers |= {tensor: table.method_of(tensor) for tensor in placement.tensors}
    return scales, observers


def refuse_without_float16(float16: bool, float32_io: bool, keep_int8: Sequence[str]) -> None:
    """Refuses what says how a model becomes FP16 outside INT8, where it does not.

    Args:
        float16: Whether it does.
        float32_io: Whether its inputs and outputs are to stay float32.
        keep_int8: Names of nodes, or patterns, that are not to become FP16.

    Raises:
        ModelError: Something was given that has no effect.
    """
    for given, words in (
        (float32_io, f"{Argument('float32_io')} says what stays FP32 when the rest becomes FP16"),
        (keep_int8, f"{Argument('keep_int8')} names layers that would be in FP16 otherwise"),
    ):
        if given and not float16:
            raise ModelError(f"{words}; add {Argument('float16', 'True')}")


@pause_garbage_collection()
def quantize_graph(
    prepared: Model,
    table: CalibrationTable,
    options: QuantizeOptions = _WHOLE,
    *,
    weight_scales: WeightScales | None = None,
    largest: InputShapes | None = None,
    optimal: InputShapes | None = None,
) -> tuple[ir.Model, Placement]:
    """Puts Q/DQ pairs into a prepared model of any size, where TensorRT fuses them.

    The rest stays as it is; see :func:`quantized_model`.

    Args:
        prepared: A model from :func:`trtint8.models.model.prepare`; not changed.
        table: The calibration table.
        options: What becomes of the model.
        weight_scales: Scales of weights that were quantized before.
        largest: Input name to its largest shape, where that is known.
        optimal: Input name to the shape that the engine is tuned for; ``largest`` where it is not given.

    Returns:
        The model with Q/DQ pairs, and the placement of the pairs.

    Raises:
        ModelError: A pattern matches no node that could be quantized, or the model has no weighted node.
        TableError: The table lacks a range that the placement needs, or was made for another model.
    """
    placement = options.place(prepared, table, largest, optimal)
    table.check_model(prepared.fingerprint, placement.tensors, tensor_names(prepared.graph_model))
    return with_pairs(prepared, table, placement, weight_scales), placement


def with_pairs(
    prepared: Model,
    table: CalibrationTable,
    placement: Placement,
    weight_scales: WeightScales | None = None,
) -> ir.Model:
    """A copy of a model with the Q/DQ pairs of a placement, which says what it was calibrated with.

    Args:
        prepared: The float model; not changed.
        table: Its calibration table, with a range for every tensor of the placement.
        placement: Where the pairs go.
        weight_scales: Scales of weights that were quantized before.
    """
    graph_model = prepared.graph_model.clone()
    insert_qdq(graph_model, placement, table.amax, weight_scales)
    record_calibration(graph_model, table.provenance.data, table.provenance.samples)
    has_pairs = bool(placement.activations or placement.weights)
    record_quantization(graph_model, table.provenance.inputs, table.warnings, pairs=has_pairs)
    return graph_model


def with_float16(
    quantized: ir.Model, target: Target, *, float32_io: bool, peaks: Mapping[str, float], name: str
) -> tuple[ir.Model, dict[str, Float32Reason]]:
    """Converts what is outside INT8 to FP16, in the form in which a target runs it with the fewest bytes.

    Args:
        quantized: A model from :func:`quantize_graph`; not changed.
        target: What the model is built for.
        float32_io: Whether the model's own inputs and outputs stay float32.
        peaks: Tensor name to the largest magnitude seen in it; may lack tensors.
        name: The model's name in messages.

    Returns:
        The new model, and the names of the nodes that stay in FP32, with the reasons.

    Raises:
        ModelError: ONNX cannot convert it to an opset with FP16 scales.

    Warns:
        UserWarning: Nodes stay in FP32 because nothing is known of their values.
    """
    converted, kept = to_float16(quantized, float32_io=float32_io, peaks=peaks, name=name)
    if target.one_scale_with_float16:
        dequantize_by_one_scale(converted, peaks)
    return converted, kept


def tensor_names(graph_model: ir.Model) -> Iterator[str]:
    """Names of the inputs of a graph and of everything that its nodes compute."""
    for value in graph_values(graph_model.graph):
        if value.name:
            yield value.name
