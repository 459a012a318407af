"""The public call that estimates what INT8 would gain on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from calibrators.checks import keeping_warnings
from calibrators.tables.ranges import TableSource, as_table
from calibrators.tensorrt.flavor import Target
from trtint8.auditing.audit import EstimatorOptions, audit_model
from trtint8.auditing.gpus import Gpu, find_gpu
from trtint8.auditing.results import Audit
from trtint8.builder.config import BuildOptions, given_options
from trtint8.engine.profiles import Profile
from trtint8.models.model import ModelSource, load_float_model


def audit(
    model: ModelSource,
    table: TableSource,
    gpu: str | Gpu,
    *,
    profile: Profile | None = None,
    target: Target = "auto",
    keep_float: Sequence[str] = (),
    keep_int8: Sequence[str] = (),
    layer_times: Mapping[str, str] | None = None,
    options: BuildOptions | None = None,
    progress: bool = True,
) -> Audit:
    """Estimates what INT8 would gain on a GPU, by comparing FP32, FP16 and INT8 engines. No GPU is needed.

    TensorRT for RTX builds the engines on any machine. The result is an estimate from the compiled graphs;
    nothing is timed. The time of a kernel is that of moving its bytes through the GPU's memory, or of
    computing its products on the tensor cores, whichever is longer.

    Args:
        model: A path, the serialized model or a ``ModelProto``; a float model.
        table: Its calibration table, or the file that holds it.
        gpu: Name of a GPU such as "RTX 4090" (see :data:`trtint8.auditing.gpus.GPUS`), a compute capability
            like "8.9", or the figures of a GPU.
        profile: Shapes of dynamic inputs. The optimal shapes are used. By default a batch of 8 of the largest
            calibration samples.
        target: Which TensorRT builds; ``auto`` takes the full TensorRT if it and a GPU are present, else
            TensorRT for RTX.
        keep_float: Names of nodes, or patterns, that stay in float.
        keep_int8: Names of nodes, or patterns, that are put in INT8 even if that is estimated to be slower.
        layer_times: Measured times of layers, for comparison with the estimated times. It maps the precision
            of an engine, such as ``FP16`` or ``INT8+FP16``, to the file that ``trtexec --exportProfile``
            wrote. The file ``NAME.layers.json`` of ``--exportLayerInfo`` is read together with
            ``NAME.profile.json``.
        options: All other options of the builds; ``fp16`` has no effect.
        progress: Show a progress bar on a terminal for every build.

    Returns:
        The engines side by side, with their kernels, bytes, multiply-adds, estimated times, and a verdict.

    Raises:
        ModelError: The model is unusable or quantized already, or a pattern matches nothing.
        TableError: The table is of another model, or lacks a range.
        BuildError: TensorRT refuses the model, the profile does not fit, or a file of ``trtexec`` is damaged.
        UnsupportedError: The GPU is not in the table, this TensorRT does not list the layers of an engine, or
            times are given of no engine of this model.
        GpuUnavailableError: This TensorRT needs a GPU to build.
    """
    wanted = EstimatorOptions(target, profile, given_options(options), progress)
    figures = find_gpu(gpu)
    loaded, ranges = load_float_model(model), as_table(table)
    with keeping_warnings(ranges.warnings) as said:
        found = audit_model(loaded, ranges, figures, wanted, keep_float, keep_int8, layer_times)
    return replace(found, warnings=tuple(said))
