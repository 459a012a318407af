"""Puts what engines of one model in FP32, FP16 and INT8 do side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.flavor import title_of
from trtint8.auditing.estimator import Estimator, EstimatorOptions
from trtint8.auditing.gpus import Gpu
from trtint8.auditing.results import Audit
from trtint8.auditing.verdict import judge
from trtint8.models.model import Model, prepare
from trtint8.models.outputs.runnable_part import left_out_nodes, runnable_part
from trtint8.quantization.quantize import QuantizeOptions, quantize_graph


def audit_model(
    model: Model,
    table: CalibrationTable,
    gpu: Gpu,
    options: EstimatorOptions,
    keep_float: Sequence[str] = (),
    keep_int8: Sequence[str] = (),
) -> Audit:
    """Builds the engines and estimates their times.

    Args:
        model: A float model.
        table: Its calibration table.
        gpu: The GPU that times are estimated for.
        options: How the engines are built.
        keep_float: Names of nodes, or patterns, that stay in float.
        keep_int8: Names of nodes, or patterns, that are in INT8 although that is estimated to be slower.

    Returns:
        The engines, side by side, without plugins at the end of the model.

    Raises:
        ModelError: The model is unusable.
        TableError: The table is of another model, or lacks a range.
        BuildError: TensorRT refuses the model, or the profile does not fit.
        UnsupportedError: This TensorRT does not list the layers of an engine.
        GpuUnavailableError: This TensorRT needs a GPU to build.
    """
    prepared = prepare(model)
    estimator = Estimator.open(runnable_part(prepared), table.provenance.input_sizes, gpu, options)
    fixed, peaks, work = estimator.model, table.peaks, estimator.work
    asked, shapes = QuantizeOptions(keep_float, keep_int8, estimator.quantization_target), estimator.shapes
    quantized, _ = quantize_graph(fixed, table, asked, largest=shapes)
    mixed, _ = quantize_graph(fixed, table, replace(asked, float16=True), largest=shapes)
    engines = (
        estimator.estimate("FP32", fixed.graph_model, peaks, fp16=False),
        estimator.estimate("FP16", fixed.graph_model, peaks, fp16=True),
        estimator.estimate("INT8", quantized, peaks, fp16=False),
        estimator.estimate("INT8+FP16", mixed, peaks, fp16=True),
    )
    builder = title_of(estimator.flavor.name)
    if estimator.of_another_gpu:
        builder = f"another TensorRT than {builder}, which runs no INT8 there,"
    verdict = judge(engines, gpu.name, builder, work.multiply_adds)
    return Audit(
        model=model.name,
        gpu=gpu,
        flavor=estimator.flavor.name,
        tensorrt_version=estimator.flavor.version,
        compute_capability=estimator.compute_capability or "current",
        shapes=shapes,
        engines=engines,
        verdict=verdict.sentence,
        reasons=verdict.reasons,
        uncounted=work.uncounted,
        model_fingerprint=model.fingerprint,
        table_fingerprint=table.fingerprint,
        left_out=left_out_nodes(prepared),
    )
