"""The public call that puts Q/DQ pairs into a float model."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import DataOptions
from calibrators.data.opening import DataSource
from calibrators.errors import ModelError
from calibrators.tables.source import TableSource, as_table
from trtint8.calibration import tensors_needed
from trtint8.equalization.recalibration import equalize_and_calibrate
from trtint8.models.model import load_float_model, prepare
from trtint8.models.serialization import to_proto
from trtint8.models.torch_export import AnyModel, open_module
from trtint8.quantization.quantize import QuantizeOptions, quantized_model, refuse_without_float16
from trtint8.quantization.targets import TargetName, target_named


def quantize(
    model: AnyModel,
    table: TableSource,
    *,
    keep_float: Sequence[str] = (),
    keep_int8: Sequence[str] = (),
    target: TargetName = "tensorrt",
    compute_capability: str | None = None,
    float16: bool = False,
    float32_io: bool = False,
    equalize: DataSource | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    progress: bool = True,
    example_inputs: object = None,
) -> onnx.ModelProto:
    """Puts Q/DQ pairs into a float model, where TensorRT fuses them.

    Args:
        model: A path, the serialized model or a ``ModelProto``, or a ``torch.nn.Module``.
        table: The ranges, or the file that holds them; with ``float16`` best those of all tensors.
        keep_float: Names of nodes, or patterns with ``*`` and ``?``, that stay in float.
        keep_int8: With ``float16``, names of nodes, or patterns, that are in INT8 although that is estimated
            to be slower.
        target: What the model is built for: ``rtx``, ``tensorrt-8.6``, ``tensorrt-10``, ``tensorrt-11`` or
            ``dla``. What it does not run in INT8 stays in float. ``tensorrt`` quantizes what at least one of
            them runs in INT8.
        compute_capability: The GPU's, like "8.6", for a target other than ``tensorrt``; None where it is not
            known.
        float16: Whether what is outside INT8 becomes FP16, except nodes that would lose accuracy. For ``rtx``
            layers that are estimated to be slower in INT8 than in FP16 become FP16, too.
        float32_io: With ``float16``, whether the model's inputs and outputs stay float32.
        equalize: Calibration samples, which are read twice. Channels of the float model get similar ranges
            without a change of its function, and it is calibrated anew with the table's method (see
            :func:`trtint8.equalization.equalize.equalize`). The model stays as it is with None, and where
            equalization gains nothing.
        batch_size: Samples per batch of ``equalize``.
        limit: Use only this many samples of ``equalize``.
        preprocessing: How raw images of ``equalize`` become what the model is fed.
        progress: Show a progress bar on a terminal while calibrating.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        The model with Q/DQ pairs; inputs, outputs and tensor names stay.

    Raises:
        ModelError: The model is unusable or quantized already, a pattern matches nothing, or what ``float16``
            or ``equalize`` is needed for is given without it.
        TableError: The table is of another model, stale, or lacks a range; or nothing can be calibrated with
            its method.
        CalibrationDataError: The samples of ``equalize`` do not fit the model.
        UnsupportedError: There is no such target, it has no INT8 on that GPU, or a GPU is given for
            ``tensorrt``, which stands for several targets.

    Warns:
        UserWarning: All layers are estimated to be slower in INT8 than in FP16; equalization gains nothing;
            or the table lacks tensors, so that what may overflow in FP16 stays in FP32.
    """
    refuse_without_float16(float16, float32_io, keep_int8)
    data_options = DataOptions(batch_size, limit, preprocessing=preprocessing)
    if equalize is None and any((batch_size, limit, preprocessing)):
        raise ModelError(
            "batch_size, limit and preprocessing say how the samples of equalize are read; add equalize=DATA"
        )
    chosen = target_named(target, compute_capability)
    prepared = prepare(load_float_model(open_module(model, example_inputs)))
    ranges = as_table(table)
    if equalize is not None:
        needed = tensors_needed(float16)
        remade = equalize_and_calibrate(prepared, ranges, equalize, data_options, needed, progress=progress)
        prepared, ranges = remade.model, remade.table
    options = QuantizeOptions(keep_float, keep_int8, chosen, float16, float32_io)
    return to_proto(quantized_model(prepared, ranges, options).graph_model)
