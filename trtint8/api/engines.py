"""The public calls about finished engines: what they gain, how fast they are, where they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from calibrators.checks import FilePath, keeping_warnings
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import DataOptions, LabelSource
from calibrators.data.opening import DataSource
from calibrators.tensorrt.flavor import Target
from trtint8.deployment.writing import Destination
from trtint8.engine.profiles import Profile
from trtint8.quantization.config import ArithmeticName
from trtint8.quantization.targets import TargetName

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


def deploy(
    engine: FilePath,
    to: Destination,
    output: FilePath,
    *,
    table: TableSource | None = None,
    target: TargetName | None = None,
    profiles: Sequence[Profile] = (),
    keep_float: Sequence[str] = (),
    class_names: FilePath | Sequence[str] | None = None,
    preferred_batch_sizes: Sequence[int] = (),
    preprocessing: Preprocessing | None = None,
) -> list[Path]:
    """Writes a folder for running an engine in another program or on another machine, with a README.

    Triton, DeepStream and ONNX Runtime have the full TensorRT. They cannot use an engine of TensorRT for RTX,
    a model, or an engine for another target. In these cases Q/DQ pairs are placed anew for the target, and
    the folder has a script that builds the engine on the machine that will run it.

    Args:
        engine: The engine file, with its sidecar and the files that the build left beside it; or a model that
            ends in .onnx: a float model with its ``table``, or one with Q/DQ pairs.
        to: ``triton`` for a model repository, ``deepstream`` for a configuration of nvinfer, ``ort-trt`` for
            ONNX Runtime's TensorRT execution provider, ``cpp`` for a C++ and a Python program, ``docker`` for
            a container.
        output: The folder. It must be empty or not exist. After a crash it is complete or does not exist.
        table: The ranges of a model, or the file that holds them; an engine has its own.
        target: The TensorRT that pairs are placed for: ``tensorrt-8.6``, ``tensorrt-10``, ``tensorrt-11``, or
            ``tensorrt`` for any of them. By default that of the engine if it can be used, else ``tensorrt``.
        profiles: Shapes of the dynamic inputs of a model; an engine has its own.
        keep_float: Names of nodes, or patterns, that stay in float when pairs are placed. Nodes that an
            engine was told to keep in float stay in float.
        class_names: Names of the classes in the order of their indices, a text file with one per line, or a
            dataset file of ultralytics. By default the names in the model.
        preferred_batch_sizes: The batch sizes that Triton prefers.
        preprocessing: How raw images become inputs. The folder has it in a form that the target
            program can use.

    Returns:
        The files that were written.

    Raises:
        EngineError: The engine, or a file beside it, is unusable.
        ModelError: The model is unusable, or a pattern matches nothing.
        BuildError: A profile does not fit the model, or one is needed.
        UnsupportedError: The target program lacks something that the engine needs, such as an element type;
            or an argument would have no effect.
        CalibrationDataError: No input of the engine fits the result of the preprocessing, or the names of
            classes are unusable.
        TableError: The table is unusable, or a float model has none.
        OutputError: The folder is not empty, or cannot be written.
    """
    from calibrators.checks import several
    from calibrators.data.images.true_boxes import as_class_names
    from trtint8.deployment import writing as deployment
    from trtint8.deployment.source import DeployOptions

    asked = DeployOptions(
        table,
        target,
        tuple(profiles),
        tuple(several(keep_float)),
        None if class_names is None else as_class_names(class_names),
        tuple(preferred_batch_sizes),
    )
    return deployment.deploy(engine, to, output, preprocessing, asked)


def write_report(
    sources: Sequence[FilePath],
    output: FilePath,
    *,
    model: FilePath | None = None,
    data: DataSource | None = None,
    labels: LabelSource | None = None,
    class_names: FilePath | Sequence[str] | None = None,
    allow_host_code: bool = False,
    plugins: Sequence[FilePath] = (),
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    skip_bad: bool = False,
    arithmetic: ArithmeticName | None = None,
) -> Path:
    """Writes one self-contained HTML page on one INT8 model: accuracy, layers, tensors and samples.

    Args:
        sources: The folder that ``trtint8 build`` wrote to; or an engine, whose files beside it are also
            read; or single files: a Q/DQ model, a calibration table, and the JSON of sensitivity, accuracy,
            audit, bench and tuning.
        output: The HTML file.
        model: The float model.
        data: Held-out data. The page shows its samples with the largest differences. Needs ``model``.
        labels: Labels that do not come with the data.
        class_names: Names of the classes in the order of their indices, or a text file with one per line.
        allow_host_code: Whether code that an engine contains may run; see :meth:`Engine.load`.
        plugins: Paths of shared libraries with the plugins that engines use.
        batch_size: Samples per batch.
        limit: Use only this many samples.
        preprocessing: How raw images become inputs.
        skip_bad: Leave out the files of a folder that cannot be read, such as damaged images, with their
            labels, and warn of them by name. By default the first such file is an error.
        arithmetic: Computes INT8 with the integers of a backend, as in :func:`validate`. It takes the float
            model with the table, or the Q/DQ model if there is no table. By default the Q/DQ model runs as it
            is.

    Returns:
        ``output``.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.
    """
    from trtint8.quantization.config import arithmetic_named
    from trtint8.report import writing
    from trtint8.runtime.bindings import LoadingOptions

    return writing.write_report(
        sources,
        output,
        model=model,
        data=data,
        data_options=DataOptions(
            batch_size, limit, preprocessing=preprocessing, labels=labels, skip_bad=skip_bad
        ),
        class_names=class_names,
        loading=LoadingOptions(allow_host_code, plugins),
        arithmetic=None if arithmetic is None else arithmetic_named(arithmetic),
    )
