"""The public calls about accuracy: comparing INT8 with FP32, what each layer costs, and tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from calibrators.checks import FilePath, check_choice, keeping_warnings
from calibrators.data.batches import warning_of_inputs
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import DataOptions, GroupSource, LabelSource
from calibrators.data.opening import DataSource, open_data
from calibrators.errors import (
    Argument,
    BuildError,
    UnsupportedError,
)
from calibrators.histograms.thresholds import Method
from calibrators.host.checkpoint import check_resume
from calibrators.run import Executor, RunOptions
from calibrators.tables.choice import SPEND
from calibrators.tables.ranges import TableSource, as_table, table_among
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.flavor import Target
from trtint8.engine.profiles import Profile
from trtint8.models.model import load_float_model, prepare
from trtint8.models.states import with_recorded_states
from trtint8.models.torch_export import AnyModel, open_module
from trtint8.quantization.config import ArithmeticName, arithmetic_named
from trtint8.quantization.targets import DEFAULT, TARGETS
from trtint8.validation.budget import Budget, Goal
from trtint8.validation.metrics import Metric

# What a call alone needs is imported by it, so that one does not load what the others are made of.
if TYPE_CHECKING:
    from trtint8.auditing.gpus import Gpu
    from trtint8.sensitivity.measure import Plan
    from trtint8.sensitivity.results import Sensitivity
    from trtint8.tuning.candidates import Trial
    from trtint8.tuning.stopwatch import SpeedTrial
    from trtint8.tuning.tune import Tuned


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

    Examples:
        >>> sensitivity = trtint8.measure_sensitivity("model.onnx", "table.json", "heldout.npz")
        >>> shares = {layer.node: layer.noise_share for layer in sensitivity.worst_first[:3]}
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
    groups: GroupSource | None = None,
    certain: bool = False,
    judge: DataSource | None = None,
    method: Method = "auto",
    spend: float | None = None,
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
        labels: Labels that do not come with the data: an array, or the path of an ``.npy`` or ``.npz``; for
            a folder of images also that of COCO's instances, a ``.json``.
        groups: As for :func:`validate`. The samples that find, decide and judge are then of different groups.
            With ``judge``, it is a number, which holds for both.
        certain: Whether the 95 % interval of the metric has to lie within the budget, and not just its value,
            on the samples that decide and on those that judge. This costs more layers in float.
        judge: Other samples to judge the result, with their own labels. By default every other batch of the
            shuffled ``data``.
        method: How ranges are chosen at first, if ``calibration`` is samples.
        spend: The share of the network's estimated time, in [0, 1], that layers may take which stay in float
            from the start because they make much of the noise; see :func:`trtint8.calibrate`. By default it
            is what the table says, and 0.01 with samples.
        round_weights: Whether adaptive rounding is tried, which takes more time than the other remedies for
            weights.
        equalize_clips: Whether equalization also scales channels before a Clip, such as a Relu6, if they stay
            below a quarter of its bound. Otherwise it leaves them out. The network then computes the same as
            long as these channels stay below four times their largest values in the samples. Larger values
            are clipped earlier than before. It needs calibration samples, not a table.
        float16: Whether layers in float become FP16. Where None, they do if ``target`` is ``rtx``, because
            TensorRT for RTX takes types from the graph.
        seed: Seed of everything that is random.
        batch_size: Samples per batch.
        limit: Use only this many samples of ``data``, and as many of ``judge``.
        preprocessing: How raw images become inputs.
        skip_bad: Leave out the files of a folder that cannot be read, such as damaged images, with their
            labels, and warn of them by name. By default the first such file is an error.
        minutes: How long the search may take. Then it ends with the best so far, which is judged as usual.
        checkpoint: A file that stores what was tried, so that an interrupted search can be continued. It is
            not deleted at the end, so that nothing is lost before the result is written. Where no layer is
            faster in INT8, it is deleted.
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
        The result; its ``save`` writes it.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.

    Examples:
        >>> tuned = trtint8.tune("model.onnx", "calibration.npz", "heldout.npz", max_drop=0.5)
        >>> tuned.keeps_goal
        True
        >>> files = tuned.save("tuned.onnx", model="model.onnx")
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
        batch_size,
        limit,
        seed=seed,
        preprocessing=preprocessing,
        labels=labels,
        skip_bad=skip_bad,
        groups=groups,
    )
    table = table_among(calibration)
    with keeping_warnings(table.warnings if table else ()) as said:
        if table is not None:
            table = table.spending(spend)
            calibration, data_options = table, data_options.calibrated(table.provenance.inputs, "the table")
        tuned = tune_from_sources(
            prepare(loaded),
            with_recorded_states(calibration, loaded),
            with_recorded_states(data, loaded),
            with_recorded_states(judge, loaded),
            Budget(max_drop, metric, minimum, certain),
            options=CalibrationOptions(
                method, "all" if backend else tensors_needed(half), SPEND if spend is None else spend
            ),
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
