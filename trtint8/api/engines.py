"""The public calls about finished engines: what they gain, how fast they are, where they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from calibrators.checks import FilePath, keeping_warnings
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import DataOptions
from calibrators.data.opening import DataSource
from calibrators.tensorrt.flavor import Target
from trtint8.engine.profiles import Profile

# What a call alone needs is imported by it, so that one does not load what the others are made of.
if TYPE_CHECKING:
    from calibrators.tables.ranges import TableSource
    from trtint8.auditing.gpus import Gpu
    from trtint8.auditing.results import Audit
    from trtint8.builder.config import BuildOptions
    from trtint8.models.model import ModelSource
    from trtint8.models.torch_export import AnyModel
    from trtint8.runtime.bench import Benchmarks


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
    from calibrators.tables.ranges import as_table
    from trtint8.auditing.audit import EstimatorOptions, audit_model
    from trtint8.auditing.gpus import find_gpu
    from trtint8.builder.config import given_options
    from trtint8.models.model import load_float_model

    wanted = EstimatorOptions(target, profile, given_options(options), progress)
    figures = find_gpu(gpu)
    loaded, ranges = load_float_model(model), as_table(table)
    with keeping_warnings(ranges.warnings) as said:
        found = audit_model(loaded, ranges, figures, wanted, keep_float, keep_int8, layer_times)
    return replace(found, warnings=tuple(said))


def bench(
    engines: Sequence[FilePath],
    *,
    data: DataSource | None = None,
    baseline: AnyModel | None = None,
    seconds: float = 3.0,
    transfers: bool = True,
    cuda_graph: bool = False,
    device: int = 0,
    allow_host_code: bool = False,
    plugins: Sequence[FilePath] = (),
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    example_inputs: object = None,
) -> Benchmarks:
    """Measures latency and throughput of engines, one after another on one GPU.

    Args:
        engines: Engine files. A file that ends in ``.json`` has times that ``trtexec --exportTimes`` wrote on
            any machine. These times are shown beside the others. If all files are of this kind, no GPU is
            needed.
        data: The inputs: one batch of this data is fed repeatedly. By default random values.
        baseline: A float model: engines of it in FP32 and in FP16 are built and measured as well.
        seconds: How long each engine is measured, in seconds.
        transfers: Whether copies to and from the GPU are part of an inference.
        cuda_graph: Whether an inference is launched as a CUDA graph.
        device: Index of the GPU.
        allow_host_code: Whether code that an engine contains may run; see :meth:`Engine.load`.
        plugins: Paths of shared libraries with the plugins that engines use, also those of ``baseline``.
        batch_size: Samples per batch. By default random values have the optimal batch size of the first
            profile. Files of ``trtexec`` do not have the batch size; by default their times count as those of
            single samples.
        limit: Use only this many samples of ``data``.
        preprocessing: How raw images become inputs.
        example_inputs: What the forward of ``baseline`` takes, if it is a ``torch.nn.Module``; see
            :func:`model_inputs`.

    Returns:
        One report per engine: times of each phase in milliseconds, inferences and samples per second.

    Raises:
        GpuUnavailableError: There is no usable GPU.
        BuildError: A file is not from ``trtexec --exportTimes``, or is damaged.
        EngineError: An engine file is unusable.
        CalibrationDataError: The data or the options do not fit an engine.
    """
    from trtint8.models.torch_export import open_module
    from trtint8.runtime.bench import BenchOptions, benchmark
    from trtint8.runtime.bindings import LoadingOptions

    loading = LoadingOptions(allow_host_code, plugins)
    return benchmark(
        engines,
        data=data,
        baseline=None if baseline is None else open_module(baseline, example_inputs),
        data_options=DataOptions(batch_size, limit, preprocessing=preprocessing),
        options=BenchOptions(seconds, transfers, cuda_graph, device, loading),
    )
