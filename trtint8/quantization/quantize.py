"""Makes a model with Q/DQ pairs of a float model and a calibration table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.checks import warn_user
from calibrators.errors import Argument, ModelError
from calibrators.tables.table import CalibrationTable
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph import graph_values, read_constant
from trtint8.models.model import Model, record_calibration, record_pairs
from trtint8.models.outputs.picked import left_out_nodes
from trtint8.quantization.float16 import to_float16
from trtint8.quantization.placement import Placement, place
from trtint8.quantization.qdq import WeightScales, insert_qdq
from trtint8.quantization.rtx_weights import dequantize_by_one_scale
from trtint8.quantization.targets import TARGETS, Target
from trtint8.quantization.tensor_configs import JointConfigs


@dataclass(frozen=True)
class QuantizeOptions:
    """What becomes of a float model.

    Attributes:
        keep_float: Names of nodes, or patterns with ``*`` and ``?``, that stay in float.
        keep_int8: Names of nodes, or patterns, that are in INT8 although that is estimated to be slower.
        target: What the model is built for.
        float16: Whether what is outside INT8 becomes FP16. Layers that are estimated to be slower in INT8
            than in FP16 are outside INT8 then.
        float32_io: With ``float16``, whether the model's inputs and outputs stay float32.
    """

    keep_float: Sequence[str] = ()
    keep_int8: Sequence[str] = ()
    target: Target = TARGETS["tensorrt"]
    float16: bool = False
    float32_io: bool = False

    def place(self, prepared: Model, largest: Mapping[str, Sequence[int]] | None = None) -> Placement:
        """Where Q/DQ pairs go; see :func:`trtint8.quantization.placement.place`."""
        return place(
            prepared.graph_model,
            self.keep_float,
            self.target,
            largest,
            float16=self.float16,
            keep_int8=self.keep_int8,
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
        left_out: Names of the nodes that no calibration sees, to their operators: plugins of TensorRT, and
            all that follows them.
    """

    graph_model: ir.Model
    placement: Placement
    configs: JointConfigs
    float32: Mapping[str, str]
    left_out: Mapping[str, str]


def quantized_model(
    prepared: Model,
    table: CalibrationTable,
    options: QuantizeOptions,
    largest: Mapping[str, Sequence[int]] | None = None,
) -> Quantized:
    """Puts Q/DQ pairs into a prepared model and, where asked, converts the rest to FP16.

    Args:
        prepared: A model from :func:`trtint8.models.model.prepare`; not changed.
        table: The calibration table.
        options: What becomes of the model.
        largest: Input name to its largest shape, where that is known.

    Raises:
        ModelError: A pattern matches no node that could be quantized, the model has no weighted node, or ONNX
            cannot convert it to an opset with FP16 scales.
        TableError: The table lacks a range that the placement needs, or was made for another model.

    Warns:
        UserWarning: All layers that could be in INT8 are in FP16, because INT8 is estimated to be slower.
    """
    target, left_out = options.target, left_out_nodes(prepared)
    graph_model, placement = quantize_graph(prepared, table, options, largest=largest)
    if placement.all_slower:
        warn_user(
            f"INT8 would be slower than FP16 in all layers that target '{target.name}' runs in INT8, so the "
            f"whole model is FP16; 'trtint8 audit' shows why, and {Argument('keep_int8')} quantizes layers "
            "all the same"
        )
    configs = placement.configs.scaled(*_scales_of_pairs(graph_model, placement, table))
    if not options.float16:
        return Quantized(graph_model, placement, configs, {}, left_out)
    typed, kept = with_float16(
        graph_model, target, float32_io=options.float32_io, peaks=table.peaks, name=prepared.name
    )
    return Quantized(typed, placement, configs, kept, left_out)


def _scales_of_pairs(
    graph_model: ir.Model, placement: Placement, table: CalibrationTable
) -> tuple[dict[str, NDArray[np.float32]], dict[str, str]]:
    """The scale of every tensor that has a pair, and how its range was found."""
    scales: dict[str, NDArray[np.float32]] = {}
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
    if float32_io and not float16:
        raise ModelError(
            f"{Argument('float32_io')} says what stays FP32 when the rest becomes FP16; add "
            f"{Argument('float16', 'True')}"
        )
    if keep_int8 and not float16:
        raise ModelError(
            f"{Argument('keep_int8')} names layers that would be in FP16 otherwise; add "
            f"{Argument('float16', 'True')}"
        )


@pause_garbage_collection()
def quantize_graph(
    prepared: Model,
    table: CalibrationTable,
    options: QuantizeOptions = _WHOLE,
    *,
    weight_scales: WeightScales | None = None,
    largest: Mapping[str, Sequence[int]] | None = None,
) -> tuple[ir.Model, Placement]:
    """Puts Q/DQ pairs into a prepared model of any size, where TensorRT fuses them.

    The rest stays as it is; see :func:`quantized_model`.

    Args:
        prepared: A model from :func:`trtint8.models.model.prepare`; not changed.
        table: The calibration table.
        options: What becomes of the model.
        weight_scales: Scales of weights that were quantized before.
        largest: Input name to its largest shape, where that is known.

    Returns:
        The model with Q/DQ pairs, and the placement of the pairs.

    Raises:
        ModelError: A pattern matches no node that could be quantized, or the model has no weighted node.
        TableError: The table lacks a range that the placement needs, or was made for another model.
    """
    placement = options.place(prepared, largest)
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
    record_pairs(graph_model, bool(placement.activations or placement.weights))
    return graph_model


def with_float16(
    quantized: ir.Model, target: Target, *, float32_io: bool, peaks: Mapping[str, float], name: str
) -> tuple[ir.Model, dict[str, str]]:
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
