"""The public calls about accuracy: comparing INT8 with FP32, what each layer costs, and tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from calibrators.checks import FilePath, check_choice, check_mapping, keeping_warnings
from calibrators.data.batches import warning_of_inputs
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import DataOptions, LabelSource
from calibrators.data.opening import DataSource, open_data
from calibrators.errors import (
    Argument,
    BuildError,
    CalibrationDataError,
    ModelError,
    TableError,
    UnsupportedError,
)
from calibrators.histograms.thresholds import Method
from calibrators.host.checkpoint import check_resume
from calibrators.run import Executor, RunOptions
from calibrators.tables.ranges import TableSource, as_table, table_among
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.flavor import Target
from trtint8.engine.profiles import Profile
from trtint8.models.model import load_float_model, prepare
from trtint8.models.states import with_recorded_states
from trtint8.models.torch_export import AnyModel, open_module, open_modules
from trtint8.quantization.config import ArithmeticName, arithmetic_named
from trtint8.quantization.targets import DEFAULT, TARGETS
from trtint8.runtime.bindings import LoadingOptions
from trtint8.validation.accuracy import Accuracy
from trtint8.validation.budget import Budget, Goal
from trtint8.validation.metrics import Metric

# What a call alone needs is imported by it, so that one does not load what the others are made of.
if TYPE_CHECKING:
    from trtint8.arithmetic.simulation import Integers
    from trtint8.auditing.gpus import Gpu
    from trtint8.sensitivity.measure import Plan
    from trtint8.sensitivity.results import Sensitivity
    from trtint8.tuning.candidates import Trial
    from trtint8.tuning.stopwatch import SpeedTrial
    from trtint8.tuning.tune import Tuned


def validate(
    model: AnyModel,
    data: DataSource,
    *,
    reference: AnyModel | None = None,
    table: TableSource | None = None,
    arithmetic: ArithmeticName | None = None,
    also: Mapping[str, AnyModel] | None = None,
    labels: LabelSource | None = None,
    metrics: Metric | Sequence[Metric] | None = None,
    max_drop: float | None = None,
    minimum: float | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    skip_bad: bool = False,
    executor: Executor = "local",
    threads: int | None = None,
    allow_host_code: bool = False,
    plugins: Sequence[FilePath] = (),
    tensors: Sequence[str] = (),
    progress: bool = True,
    example_inputs: object = None,
) -> Accuracy:
    """Compares an INT8 model or engine with the FP32 model on data that it was not calibrated on.

    With ``table`` and ``arithmetic``, the INT8 model is a float model as a backend computes it in integers;
    the page "What each backend computes" says what that is.

    An engine runs on the GPU. Without a GPU, ONNX Runtime runs the Q/DQ model beside the engine, from which
    it was built, as fake quantization.

    The result is the same, bit for bit, for any number of workers; the number of threads, and the batch size,
    may change the last bits of what ONNX Runtime computes.

    Memory grows with the data by one byte per sample, metric and model (16 bytes for a function as metric). A
    metric over the data set may need more.

    Args:
        model: A Q/DQ model, or the path of an engine file; called INT8 in the result.
        data: What :func:`calibrate` takes. Its labels, if it has some, are class indices, or arrays that an
            output is compared with, such as images or maps of classes.
        reference: The FP32 model, which may be a ``torch.nn.Module``. It is required, except with
            ``arithmetic``: there it is ``model`` by default.
        table: With ``arithmetic``, the calibration table of ``model``, or its path. A Q/DQ model has the
            ranges of its pairs, and takes no table.
        arithmetic: Computes ``model``, a float model or a model with Q/DQ pairs, with the integers of a
            backend. ``explicit`` and ``implicit`` are those of TensorRT; ``dla``, ``ncnn`` and ``qnnpack``
            are other backends. ``in_integers`` of the result has the largest sum of every layer. By default
            ``model`` runs as it is.
        also: Other models or engines to judge on the same samples, by name, such as ``{"FP16": path}``.
        labels: Labels that do not come with the data: an array, or the path of an ``.npy`` or ``.npz``.
        metrics: What to measure, one metric or several. A metric has a name, or is a function or an object.
            Names for class scores are ``top1``, ``top5`` or any ``topK``, ``agreement``, and
            ``agreement_all`` (all outputs at once); for images ``psnr``; for classes of positions ``pixels``
            and ``miou``; for detectors ``detections``, and with true boxes ``map`` and ``map50``; for every
            output ``sqnr``, ``cosine`` and ``max_error``, which are measured together, and ``token_cosine``.
            The layout of a detector's outputs may follow a colon, as in ``map:grid``;
            :class:`DetectionAgreement` takes a decoder. A metric of one output measures the first output that
            is not cached, or the output whose name follows a colon, as in ``psnr:hr``. ``psnr``, ``pixels``
            and ``miou`` compare with labels if these have the output's shape, else with FP32. A function
            takes ``(feeds, outputs)`` or ``(feeds, outputs, reference_outputs)`` of a batch, and returns a
            number or one per sample. An object is a metric over the data set, such as
            :class:`MeanAveragePrecision`. Functions, objects and decoders get copies of all arrays. Where
            None, the outputs decide: class scores get ``agreement``, and with labels ``top1`` and ``top5``;
            detections with true boxes as labels get ``map`` and ``map50``; every network gets ``sqnr``,
            ``cosine`` and ``max_error``, and embeddings (rows of length 1) only these. ``chosen`` of the
            result names the choice.
        max_drop: How much the first of ``metrics`` may lose, as in :func:`tune`. Where ``metrics`` is None,
            it is for the metric that :func:`tune` takes by default. ``judgement`` of the result says what was
            found.
        minimum: The least value of that metric, as in :func:`tune`. Without both there is no limit.
        batch_size: Samples per batch.
        limit: Use only this many samples.
        preprocessing: How raw images become inputs.
        skip_bad: Leave out the files of a folder that cannot be read, such as damaged images, with their
            labels, and warn of them by name. By default the first such file is an error.
        executor: Where models run: see :func:`calibrate`. Over Ray, metrics are computed by the workers;
            a metric over the data set must merge (:class:`trtint8.validation.metrics.MergeableMetric`).
        threads: Threads for each model in ONNX Runtime, which chooses by default. If a model computes every
            sample by itself, they run parts of a batch. Over Ray it is the number per worker, by default 1.
        allow_host_code: Whether code that an engine contains may run; see :meth:`Engine.load`.
        plugins: Paths of shared libraries with the plugins that engines use.
        tensors: Names of tensors inside the reference, or patterns with ``*`` and ``?``, to compare as well.
            ``tensors`` of the result has the SQNR of each tensor and its largest difference in steps of its
            scale. It names the first tensor that differs by more than a step, and says why a model lacks
            others. These tensors are not fused, which may change the last bits of outputs. Where
            ``batch_size`` is None, batches are so small that their tensors fit into memory.
        progress: Show a progress bar on a terminal.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        The comparison, with a test of each difference that says whether it is more than chance.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.
    """
    also = {} if also is None else also
    check_mapping("also", also, "from the name of a model to the model")
    asked = None if metrics is None else _listed(metrics)
    from trtint8.validation.validate import validate_models

    budget = None
    if max_drop is not None or minimum is not None:
        if asked is not None and not asked:
            raise CalibrationDataError(
                f"{Argument('metrics')} names none, and {Argument('max_drop')} and {Argument('minimum')} are "
                "limits of the first; name one"
            )
        budget = Budget(max_drop, asked[0] if asked else None, minimum)
    integers = _integers(table, arithmetic)
    if reference is None and integers is None:
        raise ModelError(
            f"there is no float model to compare with; add {Argument('reference')}, or "
            f"{Argument('table')} and {Argument('arithmetic')}"
        )
    given = model if reference is None else reference
    judged, float_model, *others = open_modules((model, given, *also.values()), example_inputs)
    with keeping_warnings() as said:
        accuracy = validate_models(
            judged,
            data,
            reference=float_model,
            also=dict(zip(also, others, strict=True)),
            metrics=asked,
            data_options=DataOptions(
                batch_size, limit, preprocessing=preprocessing, labels=labels, skip_bad=skip_bad
            ),
            run=RunOptions(threads, executor, progress=progress),
            budget=budget,
            loading=LoadingOptions(allow_host_code, plugins),
            integers=integers,
            tensors=tensors,
        )
    return replace(accuracy, warnings=tuple(dict.fromkeys((*accuracy.warnings, *said))))


def _integers(table: TableSource | None, arithmetic: str | None) -> Integers | None:
    """How a model is computed in integers."""
    if arithmetic is None:
        if table is not None:
            raise TableError(
                f"{Argument('table')} is read with an arithmetic alone; add {Argument('arithmetic')}, or "
                f"leave {Argument('table')} out"
            )
        return None
    from trtint8.arithmetic.simulation import Integers

    return Integers(arithmetic_named(arithmetic), None if table is None else as_table(table))


def _listed(metrics: Metric | Sequence[Metric]) -> list[Metric]:
    """Metrics where several may be given: a name, a function or an object by itself is one."""
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        return [metrics]
    return list(metrics)


#: How many samples are enough to rank layers; more of them only make the intervals narrower.
SENSITIVITY_SAMPLES = 256


def measure_sensitivity(
    model: AnyModel,
    table: TableSource,
    data: DataSource,
    *,
    labels: LabelSource | None = None,
    keep_float: Sequence[str] = (),
    tolerance_db: float = 1.0,
    batch_size: int | None = None,
    limit: int | None = SENSITIVITY_SAMPLES,
    preprocessing: Preprocessing | None = None,
    skip_bad: bool = False,
    checkpoint: FilePath | None = None,
    threads: int | None = None,
    executor: Executor = "local",
    on_plan: Callable[[Plan], None] | None = None,
    progress: bool = True,
    example_inputs: object = None,
) -> Sensitivity:
    """Finds which layers cost accuracy, and why, on the CPU.

    Args:
        model: A float model: a path, the serialized model or a ``ModelProto``, or a ``torch.nn.Module``.
        table: The ranges, or the file that holds them.
        data: What :func:`calibrate` takes. Its labels, if it has some, are class indices.
        labels: Labels that do not come with the data: an array, or the path of an ``.npy`` or ``.npz``.
        keep_float: Names of nodes, or patterns, that stay in float throughout.
        tolerance_db: Stop when the SQNR of every layer that matters is known to this many decibels. 0 takes
            all samples, and all of them measure single layers.
        batch_size: Samples per batch.
        limit: Use only this many samples; all where None.
        preprocessing: How raw images become inputs.
        skip_bad: Leave out the files of a folder that cannot be read, such as damaged images, with their
            labels, and warn of them by name. By default the first such file is an error.
        checkpoint: A file that stores what was measured so far. If it exists, the measurement is continued.
        threads: Threads per operator. By default ONNX Runtime chooses. Over Ray it is the number per worker,
            by default 1.
        executor: Where the network runs: see :func:`calibrate`. The result is the same, bit for bit, for any
            number of workers.
        on_plan: Called with the expected cost before the measurement starts; over Ray, the time is that of
            one worker.
        progress: Show a progress bar on a terminal.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        What each layer costs (see :func:`trtint8.sensitivity.measure.measure`).

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.
    """
    from trtint8.sensitivity.measure import measure

    loaded = load_float_model(open_module(model, example_inputs))
    prepared = prepare(loaded)
    ranges = as_table(table)
    run = RunOptions(threads, executor, progress=progress)
    data_options = DataOptions(
        batch_size, limit, preprocessing=preprocessing, labels=labels, skip_bad=skip_bad
    )
    with keeping_warnings(ranges.warnings) as said:
        data_options = data_options.calibrated(ranges.provenance.inputs, "the table")
        data_options = data_options.on_cpu(prepared.inputs, prepared.output_shapes)
        batches = open_data(with_recorded_states(data, loaded, threads), prepared.inputs, data_options)
        with warning_of_inputs(ranges.provenance.inputs, "the table", batches) as (watched,):
            measured = measure(
                prepared,
                ranges,
                watched if run.is_local else batches,
                keep_float=keep_float,
                tolerance_db=tolerance_db,
                checkpoint=checkpoint,
                threads=run.threads,
                executor=run.executor,
                on_plan=on_plan or (lambda _plan: None),
                progress=run.progress,
            )
    return replace(measured, warnings=tuple(said))


def tune(
    model: AnyModel,
    calibration: DataSource | CalibrationTable,
    data: DataSource,
    *,
    max_drop: float | None = None,
    minimum: float | None = None,
    metric: Metric | None = None,
    labels: LabelSource | None = None,
    judge: DataSource | None = None,
    method: Method = "auto",
    round_weights: bool = True,
    equalize_clips: bool = False,
    float16: bool | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    skip_bad: bool = False,
    minutes: float | None = None,
    checkpoint: FilePath | None = None,
    resume: bool = False,
    on_goal: Callable[[Goal], None] | None = None,
    on_trial: Callable[[Trial], None] | None = None,
    progress: bool = True,
    speed: str | Gpu | None = None,
    measure_with: FilePath | None = None,
    profile: Profile | None = None,
    target: Target = "auto",
    arithmetic: ArithmeticName | None = None,
    on_speed_trial: Callable[[SpeedTrial], None] | None = None,
    example_inputs: object = None,
) -> Tuned:
    """Finds the cheapest mix of remedies that keeps accuracy within a budget, on the CPU.

    Remedies that make the engine no slower are always tried: ranges with the least error at the network's
    outputs, then equalization, adaptive rounding and bias correction. Each is taken if it leaves less noise
    on samples that it was not found with. If that is not enough, layers stay in float. Each number of layers
    is tried with and without remedies for weights. The result is judged on samples that the search did not
    use.

    Args:
        model: A float model: a path, the serialized model or a ``ModelProto``, or a ``torch.nn.Module``.
        calibration: Calibration samples, or a table, or the file that holds one. A choice of ranges needs
            histograms, and equalization needs samples.
        data: Samples to tune on, as :func:`calibrate` takes them; they are read several times. Half of them
            find the remedies, and the other half decides which are taken. If there are fewer than eight
            samples, or a single batch, all samples do both, with a warning.
        max_drop: How much the metric may lose, in its own unit: points for a share, decibels for ``psnr``
            against labels. For ``max_error``, the largest error.
        minimum: The least value of the metric, in its own unit: per cent for a share, decibels for ``sqnr``
            and ``psnr``. If neither limit is given, a share may lose one point, and ``psnr`` against labels
            half a decibel. ``sqnr``, and ``psnr`` against FP32, must then be at least 20 dB.
        metric: What :func:`validate` takes as one of its metrics. Larger values of a function must be better.
            Where None, the outputs decide. For one row of class scores per sample it is top-1 if the labels
            are class indices, else agreement. For detections with true boxes as labels it is ``map``. For
            every other network, and for embeddings, it is ``sqnr``. For ``sqnr`` and the other
            figures of every output the worst output, or the worst quantity in an output, counts.
        labels: Labels that do not come with the data.
        judge: Other samples to judge the result, with their own labels. By default every other batch of the
            shuffled ``data``.
        method: How ranges are chosen at first, if ``calibration`` is samples.
        round_weights: Whether adaptive rounding is tried, which takes more time than the other remedies for
            weights.
        equalize_clips: Whether equalization also scales channels before a Clip, such as a Relu6, if they stay
            below a quarter of its bound. Otherwise it leaves them out. The network then computes the same as
            long as these channels stay below four times their largest values in the samples. Larger values
            are clipped earlier than before. It needs calibration samples, not a table.
        float16: Whether layers in float become FP16. Where None, they do for TensorRT for RTX, which takes
            types from the graph.
        seed: Seed of everything that is random.
        batch_size: Samples per batch.
        limit: Use only this many samples of ``data``, and as many of ``judge``.
        preprocessing: How raw images become inputs.
        skip_bad: Leave out the files of a folder that cannot be read, such as damaged images, with their
            labels, and warn of them by name. By default the first such file is an error.
        minutes: How long the search may take. Then it ends with the best so far, which is judged as usual.
        checkpoint: A file that stores what was tried, so that an interrupted search can be continued. It is
            not deleted at the end, so that nothing is lost before the result is written.
        resume: Continue from the checkpoint if it exists, with the same arguments and samples. Otherwise it
            is overwritten.
        on_goal: Called with the goal of the search, before the calibration.
        on_trial: Called with everything that the search tries, also with what an interrupted search that is
            continued has tried.
        progress: Show a progress bar on a terminal or in a notebook.
        speed: Name of a GPU, or its figures, as :func:`audit` takes them: the times of engines are estimated
            for this GPU. With ``"here"``, at most 12 engines are built and timed on the GPU of this machine.
            Layers that are not faster in INT8 stay in FP16 from the start, whatever their effect on accuracy.
            This implies ``float16`` and takes at most half of ``minutes``. Without it, speed is ignored.
        measure_with: A folder for timing engines on another machine, with ``trtexec`` of TensorRT 8.5 to 11.
            Models and a script are written to it, and the call ends with
            :class:`~trtint8.tuning.measured.MeasurementsNeededError`. After the script has run on the other
            machine, the same call reads its results and continues. ``speed`` is then the name of that
            machine's GPU, or is left out.
        profile: With ``speed``, the shapes of dynamic inputs. The optimal shapes are used.
        target: With ``speed``, the TensorRT that builds the engines. The model is quantized for it. Without
            ``speed``, ``rtx`` quantizes for TensorRT for RTX, and other values quantize as
            :func:`trtint8.quantize` does without a target.
        arithmetic: Judges the result with the integers of a backend, as in :func:`validate`. The search
            itself uses Q/DQ pairs. By default the result is also judged with its pairs.
        on_speed_trial: Called with everything that the search for speed tries.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        The result; :func:`trtint8.tuning.tune.save_tuned` writes it.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.
    """
    from trtint8.auditing.audit import EstimatorOptions
    from trtint8.auditing.gpus import find_gpu
    from trtint8.calibration import CalibrationOptions, tensors_needed
    from trtint8.tuning.journal import JournalFile, TimeLimit
    from trtint8.tuning.speed import SpeedGoal
    from trtint8.tuning.tune import TuneOptions, tune_from_sources

    check_choice("target", target, get_args(Target))
    if profile and speed is None and measure_with is None:
        raise BuildError(
            f"{Argument('profile', '...')} gives the shapes that {Argument('speed', '...')} estimates times "
            f"for; add {Argument('speed', 'GPU')}"
        )
    check_resume(resume, checkpoint)
    goal = None
    if speed is not None or measure_with is not None:
        estimates = EstimatorOptions(target, profile, progress=False)
        gpu = None
        if measure_with is None and speed is not None and speed != "here":
            gpu = find_gpu(speed)
        machine = None if measure_with is None else _machine(speed)
        goal = SpeedGoal(gpu, estimates, on_speed_trial or _ignore, measure_with, machine)
    placed_for = TARGETS.get(target, DEFAULT)  # "auto" may become any
    half = (placed_for.types_in_graph if float16 is None else float16) or goal is not None
    backend = None if arithmetic is None else arithmetic_named(arithmetic)
    loaded = load_float_model(open_module(model, example_inputs))
    data_options = DataOptions(
        batch_size, limit, seed=seed, preprocessing=preprocessing, labels=labels, skip_bad=skip_bad
    )
    table = table_among(calibration)
    with keeping_warnings(table.warnings if table else ()) as said:
        if table is not None:
            calibration, data_options = table, data_options.calibrated(table.provenance.inputs, "the table")
        tuned = tune_from_sources(
            prepare(loaded),
            with_recorded_states(calibration, loaded),
            with_recorded_states(data, loaded),
            with_recorded_states(judge, loaded),
            Budget(max_drop, metric, minimum),
            options=CalibrationOptions(method, "all" if backend else tensors_needed(half)),
            data_options=data_options,
            wanted=TuneOptions(
                equalize_clips,
                round_weights,
                half,
                TimeLimit(minutes),
                JournalFile(checkpoint, resume) if checkpoint is not None else None,
                on_goal or _ignore,
                on_trial or _ignore,
                goal,
                placed_for,
                backend,
            ),
            progress=progress,
        )
    return replace(tuned, warnings=tuple(said))


def _machine(speed: str | Gpu | None) -> str | None:
    """What the GPU of another machine is to be."""
    if speed == "here":
        raise UnsupportedError(
            f"{Argument('speed')} is 'here', and {Argument('measure_with')} times engines elsewhere; leave "
            "one of them out"
        )
    return speed if speed is None or isinstance(speed, str) else speed.name


def _ignore(_told: object) -> None:
    """What is called where nobody wants to know."""
