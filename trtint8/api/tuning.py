"""The public call that searches for the cheapest remedies."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import get_args

from calibrators.checks import check_choice
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import DataOptions, LabelSource
from calibrators.data.opening import DataSource
from calibrators.errors import Argument, BuildError
from calibrators.histograms.thresholds import Method
from calibrators.host.checkpoint import check_resume
from calibrators.tables.table import CalibrationTable
from calibrators.tensorrt.flavor import Target
from trtint8.auditing.estimator import EstimatorOptions
from trtint8.auditing.gpus import Gpu, find_gpu
from trtint8.calibration import CalibrationOptions, tensors_needed
from trtint8.engine.profiles import Profile
from trtint8.models.model import load_float_model, prepare
from trtint8.models.recorded_states import with_recorded_states
from trtint8.models.torch_export import AnyModel, open_module
from trtint8.quantization.targets import target_named
from trtint8.tuning.journal import JournalFile
from trtint8.tuning.setup import tune_from_sources
from trtint8.tuning.speed import SpeedTrial
from trtint8.tuning.speed_plan import SpeedGoal
from trtint8.tuning.time_limit import TimeLimit
from trtint8.tuning.trial import Trial
from trtint8.tuning.tune import Tuned
from trtint8.validation.budget import Budget, Goal
from trtint8.validation.metrics import Metric


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
    float16: bool = False,
    seed: int = 0,
    batch_size: int | None = None,
    limit: int | None = None,
    preprocessing: Preprocessing | None = None,
    minutes: float | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_goal: Callable[[Goal], None] | None = None,
    on_trial: Callable[[Trial], None] | None = None,
    progress: bool = True,
    speed: str | Gpu | None = None,
    profile: Profile | None = None,
    target: Target = "auto",
    on_speed_trial: Callable[[SpeedTrial], None] | None = None,
    example_inputs: object = None,
) -> Tuned:
    """Finds the cheapest mix of remedies that keeps accuracy within a budget, on the CPU.

    Remedies that make the engine no slower are tried always: ranges chosen by what they cost the network's
    outputs, then equalized weights, adaptive rounding and corrected biases. Each is taken where it leaves
    less noise. Only where that is not enough do layers stay in float. The result is judged on samples that
    the search did not use.

    Args:
        model: A float model: a path, the serialized model or a ``ModelProto``, or a ``torch.nn.Module``.
        calibration: Calibration samples, or a table, or the file that holds one. Ranges are only chosen with
            histograms, and weights are only equalized with samples.
        data: Samples to tune on, as :func:`calibrate` takes them; they are read several times.
        max_drop: How much the metric may lose, in its own unit: points for a share, decibels for ``psnr``
            against labels. For ``max_error``, the largest error.
        minimum: The least value of the metric, in its own unit: per cent for a share, decibels for ``sqnr``
            and ``psnr``. Where neither limit is given, a share may lose one point, and ``psnr`` against
            labels half a decibel; ``sqnr``, and ``psnr`` against FP32, have to be 20 dB.
        metric: What :func:`validate` takes as one of its metrics; of a function larger values are better.
            Where None, the outputs decide: for one row of class scores per sample top-1 where there are class
            indices as labels, else agreement; for detections with true boxes as labels ``map``; for every
            other network, and for embeddings, ``sqnr``. Of ``sqnr``, ``cosine``, ``max_error`` and
            ``token_cosine`` the output, or the quantity in one, counts where it is worst.
        labels: Labels that do not come with the data.
        judge: Other samples to judge the result by, with labels of their own; every other batch of the
            shuffled ``data`` where None.
        method: How ranges are chosen at first, where ``calibration`` is samples.
        round_weights: Whether adaptive rounding is tried, which takes more time than the other remedies for
            weights.
        float16: Whether what stays in float becomes FP16.
        seed: Seed of everything that is random.
        batch_size: Samples per batch.
        limit: Use only this many samples of ``data``, and as many of ``judge``.
        preprocessing: How raw images become what the model is fed.
        minutes: How long the search may take. Then it ends with the best so far, which is judged as usual.
        checkpoint: A file that keeps what was tried, so that an interrupted search can be continued. It stays
            after the end, so that nothing is lost before the result is written.
        resume: Continue from the checkpoint where there is one, with the same arguments and samples; else it
            is overwritten.
        on_goal: Called with what the result has to keep, before the calibration.
        on_trial: Called with everything that the search tries, also with what an interrupted search that is
            continued has tried.
        progress: Show a progress bar on a terminal while calibrating.
        speed: Name of a GPU, or its figures, as :func:`audit` takes them. Layers that are not estimated to be
            faster in INT8 there stay in FP16 from the start, whatever they cost in accuracy; implies
            ``float16``. At most half of ``minutes`` is spent on it. Without it, speed is left out.
        profile: With ``speed``, the shapes of dynamic inputs, of which the optimal ones are taken.
        target: With ``speed``, which TensorRT builds the engines that are estimated. For that TensorRT the
            model is quantized; without ``speed`` for TensorRT for RTX where this is ``rtx``, and else as
            :func:`trtint8.quantize` does without a target.
        on_speed_trial: Called with everything that the search for speed tries.
        example_inputs: What the forward of a ``torch.nn.Module`` takes; see :func:`model_inputs`.

    Returns:
        What was found; :func:`trtint8.tuning.tune.save_tuned` writes it.

    Raises:
        TrtInt8Error: Always one of its subclasses, whose message says in one sentence what to do.
    """
    check_choice("target", target, get_args(Target))
    if profile and speed is None:
        raise BuildError(
            f"{Argument('profile', '...')} gives the shapes that {Argument('speed', '...')} estimates times "
            f"for; add {Argument('speed', 'GPU')}"
        )
    check_resume(resume, checkpoint)
    goal = None
    if speed is not None:
        estimates = EstimatorOptions(target, profile, progress=False)
        goal = SpeedGoal(find_gpu(speed), estimates, on_speed_trial or _ignore)
    half = float16 or goal is not None
    loaded = load_float_model(open_module(model, example_inputs))
    return tune_from_sources(
        prepare(loaded),
        with_recorded_states(calibration, loaded),
        with_recorded_states(data, loaded),
        with_recorded_states(judge, loaded),
        Budget(max_drop, metric, minimum),
        options=CalibrationOptions(method, tensors_needed(half)),
        data_options=DataOptions(batch_size, limit, seed=seed, preprocessing=preprocessing, labels=labels),
        round_weights=round_weights,
        float16=half,
        limit=TimeLimit(minutes),
        journal=JournalFile(checkpoint, resume) if checkpoint is not None else None,
        on_goal=on_goal or _ignore,
        on_trial=on_trial or _ignore,
        progress=progress,
        speed=goal,
        target=target_named("rtx" if target == "rtx" else "tensorrt"),
    )


def _ignore(_told: object) -> None:
    """What is called where nobody wants to know."""
