"""The metrics of a model's outputs: those with a name, and which are measured where none are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from calibrators.checks import check_choice
from calibrators.data.feeds import Array
from calibrators.errors import CalibrationDataError, enumerated
from calibrators.imports import install_command
from trtint8.validation.batch import BatchForm, Rows
from trtint8.validation.class_scores import (
    AGREEMENT_ALL,
    agreement,
    agreement_all,
    mean_iou,
    pixels,
    rank_in,
    top_k,
)
from trtint8.validation.detection.agreement import (
    BOX_COLUMNS,
    PRECISIONS,
    DetectionAgreement,
    MeanAveragePrecision,
    box_precision,
    has_library,
    has_true_boxes,
)
from trtint8.validation.detection.boxes import Detections, Truth
from trtint8.validation.detection.layouts import LAYOUTS, suggested_layout
from trtint8.validation.fidelity import FIGURES, PSNR_POOLED, USUAL_FIGURES, figure_of, psnr
from trtint8.validation.meters import Measurand
from trtint8.validation.user_metrics import (
    ComparingMetric,
    DataSetMetric,
    MergeableMetric,
    MetricFunction,
    user_measurand,
)

__all__ = [
    "ComparingMetric",
    "DataSetMetric",
    "DetectionAgreement",
    "Detections",
    "MeanAveragePrecision",
    "MergeableMetric",
    "Metric",
    "Truth",
]

#: The name of a metric; a function of a batch's feeds and outputs, and of the reference's outputs where it
#: takes them, that returns one value per batch or one value per sample; or a metric over the data set.
Metric: TypeAlias = str | MetricFunction | DataSetMetric | ComparingMetric | DetectionAgreement

#: Metrics of one output, by the name before a colon; the name of the output comes after it.
_ONE_OUTPUT_METRICS: dict[str, Callable[[str, str, BatchForm], Measurand]] = {
    "agreement": lambda name, output, _form: agreement(name, output),
    "psnr": psnr,
    PSNR_POOLED: psnr,
    "pixels": pixels,
    "miou": mean_iou,
}

#: Metrics of detections.
_DETECTION_METRICS = (DetectionAgreement.name, *PRECISIONS)

#: Metrics of all outputs together.
_ALL_OUTPUTS_METRICS = (AGREEMENT_ALL, *_DETECTION_METRICS, *FIGURES)

#: The names of all metrics, for messages and for help.
NAMES = ", ".join(("top1", "top5 and so on", *_ONE_OUTPUT_METRICS, *_ALL_OUTPUTS_METRICS))


def _in_words(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


#: The metrics that are measured for every model.
_FIDELITY_METRICS = tuple(figure.name for figure in USUAL_FIGURES)

#: Their names, for help.
USUAL_NAMES = _in_words(_FIDELITY_METRICS)

#: The same in words.
_FIDELITY = _in_words([figure.title for figure in USUAL_FIGURES])


@dataclass(frozen=True)
class Choice:
    """The metrics that are measured where none are asked for.

    Attributes:
        names: Names of the metrics.
        reason: What was chosen and why, in words.
        budget: The name of the metric that a budget is of where none is asked for. Detections in common with
            FP32 are too few for that in small data, and say nothing of how near the next one is.
    """

    names: tuple[str, ...]
    reason: str
    budget: str


def check_metrics(metrics: Sequence[Metric]) -> None:
    """Refuses what is no metric, before any model is run.

    Args:
        metrics: The metrics that were asked for.

    Raises:
        CalibrationDataError: A name is unknown, an object is no metric, or two have the same name.
    """
    names = [metric_name(metric) for metric in metrics if not figure_of(metric)]
    if double := [name for name in names if names.count(name) > 1]:
        raise CalibrationDataError(f"two metrics are named '{double[0]}'; give them different names")


def metric_name(metric: Metric) -> str:
    """The name of a metric in results.

    Args:
        metric: The metric.

    Raises:
        CalibrationDataError: A name is unknown, or an object is no metric.
    """
    if isinstance(metric, DetectionAgreement):
        return metric.name
    if not isinstance(metric, str):
        return user_measurand(metric).name
    base, colon, end = metric.partition(":")
    if base in _DETECTION_METRICS and colon:
        check_choice(f"the layout of metric '{base}'", end, tuple(LAYOUTS), CalibrationDataError)
        return base
    if base in _ALL_OUTPUTS_METRICS and colon:
        raise CalibrationDataError(f"metric '{base}' covers every output: ask for '{base}', not '{metric}'")
    if is_metric_name(metric):
        return metric
    raise CalibrationDataError(f"there is no metric '{metric}'; there are {NAMES}")


def is_metric_name(text: str) -> bool:
    """Whether a text is the name of a metric, for some models at least.

    Args:
        text: The text; what follows a colon is the name of an output, or of a layout of detections.
    """
    base, _, _ = text.partition(":")
    return base in _ALL_OUTPUTS_METRICS or base in _ONE_OUTPUT_METRICS or bool(rank_in(base))


def measurands(metrics: Sequence[Metric], form: BatchForm) -> tuple[Measurand, ...]:
    """The metrics that have meters: all except those of single outputs.

    Args:
        metrics: The metrics that were asked for.
        form: The form of a batch, which decides what they are measured against.

    Returns:
        One measurand per metric, in the same order.

    Raises:
        CalibrationDataError: A name is unknown, an object is no metric, two have the same name, or a metric
            does not apply to the outputs or the labels.
    """
    check_metrics(metrics)
    return tuple(_measurand(metric, form) for metric in metrics if not figure_of(metric))


def usual_metrics(form: BatchForm) -> Choice:
    """The metrics that are measured where none are asked for.

    Args:
        form: The form of a batch.

    Returns:
        Where outputs are taken for class scores (:attr:`BatchForm.class_outputs`), ``agreement`` of each, and
        ``agreement_all`` where there are several; with labels that are class indices ``top1`` of the first of
        them, and ``top5`` where there are more than five classes. Where the labels are true boxes and the
        outputs hold detections ``map`` and ``map50``, or ``detections`` where faster-coco-eval is not
        installed. Where the network picks elements at its end ``detections``, or ``pixels`` of the first
        output of class indices. Where the outputs hold detections by their values, as those of YOLO networks
        do, ``detections`` too. For every model ``sqnr``, ``cosine`` and ``max_error`` of every output, or of
        what it is picked from.
    """
    if has_true_boxes(form) and _holds_detections(form):
        names, hint = tuple(PRECISIONS), ""
        if not has_library():
            names = (DetectionAgreement.name,)
            hint = f"; map needs faster-coco-eval: {install_command('detection')}"
        subject = f"the outputs hold detections and the labels ({form.labels}) are boxes"
        words = f"{', '.join(names)}, "
        return _choice(form, subject, names, words, uses_labels=True, decides=True, hint=hint)
    if form.picked:
        return _choice_for_picks(form)
    if _surely_holds_detections(form):
        # The boxes are picked outside of the network, and there are no true ones.
        words = "those in common with FP32, and "
        return _choice(form, "the outputs hold detections", (DetectionAgreement.name,), words)
    found = form.class_outputs
    if not found:
        return _choice_for_others(form)
    names, words = (), ""
    if form.has_class_indices:
        ranks = (1, 5) if form.outputs[found[0]].shape[1] > 5 else (1,)
        names = tuple(f"top{rank}{_suffix(found[0], form)}" for rank in ranks)
        words = "".join(f"top-{rank}, " for rank in ranks)
    if len(found) > 1:
        names += (AGREEMENT_ALL,)
    names += tuple(f"agreement{_suffix(name, form)}" for name in found)
    words += "agreement, " if len(found) == 1 else "agreement of each and of all at once, "
    subject = f"{_outputs(found, form, 'is', 'are')} one row of class scores per sample"
    return _choice(form, subject, names, words, uses_labels=form.has_class_indices, decides=True)


def _choice(
    form: BatchForm,
    subject: str,
    names: Sequence[str] = (),
    words: str = "",
    *,
    uses_labels: bool = False,
    decides: bool = False,
    fidelity: str = "",
    hint: str = "",
) -> Choice:
    """The metrics that were chosen, before those of every model.

    Args:
        form: The form of a batch.
        subject: What the outputs are, in words.
        names: The metrics.
        words: The same in words.
        uses_labels: Whether they compare with the labels.
        decides: Whether a budget is of the first of them.
        fidelity: What the metrics of every model are measured of, in words, where it is not the outputs.
        hint: What else may be asked for, in words.
    """
    reason = f"{subject}: chose {words}{fidelity or _fidelity_in_words(form)}{hint}"
    if form.labels is not None and not uses_labels:
        reason += f"; the labels ({form.labels}) are not used{_use_of_labels(form)}"
    metrics = (*names, *_FIDELITY_METRICS)
    return Choice(metrics, reason, metrics[0] if decides else _FIDELITY_METRICS[0])


def _choice_for_others(form: BatchForm) -> Choice:
    """What is measured where no output is taken for class scores."""
    tables = [name for name in form.outputs if name not in form.cached and form.is_class_scores(name)]
    name = tables[0] if tables else form.first_output
    subject, own, hint = _outputs([name], form, "is", ""), form.outputs[name], ""
    if not tables:
        subject += " no row of class scores per sample"
    elif own.is_embedding:
        subject += " one row of length 1 per sample, as embeddings are"
    else:
        subject += f" not taken for class scores: it has {own.rows.value}"
        if own.rows is Rows.SCORES:
            subject += ", and not all outputs beside it have such"
        hint = f"; metric agreement{_suffix(name, form)} takes it for class scores"
    return _choice(form, subject, hint=hint)


def _outputs(names: Sequence[str], form: BatchForm, verb: str, plural: str) -> str:
    """Outputs and a verb, as the begin of a sentence."""
    listed = enumerated([f"'{name}' ({form.outputs[name]})" for name in names])
    return f"output {listed} {verb}" if len(names) == 1 else f"outputs {listed} {plural}"


def _suffix(output: str, form: BatchForm) -> str:
    """What follows the name of a metric of this output."""
    return "" if output == form.first_output else f":{output}"


def reads_layouts(metrics: Sequence[Metric] | None, labels: Array | None, picked: Sequence[str]) -> bool:
    """Whether detections may be read from the outputs as they are.

    Args:
        metrics: The metrics that were asked for; None where the usual ones are measured.
        labels: The labels of a batch, or None.
        picked: Names of the outputs that hold what the network picks.
    """
    if metrics is None:
        return bool(picked) or (labels is not None and labels.ndim == 3 and labels.shape[2] == BOX_COLUMNS)
    return bool(_by_suggestion(metrics))


def _by_suggestion(metrics: Sequence[Metric]) -> list[Metric]:
    """The metrics that read detections in the layout which the outputs suggest."""
    return [
        metric
        for metric in metrics
        if (metric.decode is None if isinstance(metric, DetectionAgreement) else metric in _DETECTION_METRICS)
    ]


def layout_note(metrics: Sequence[Metric], form: BatchForm) -> str | None:
    """In which layout detections are read that nobody has named, and how to name it; None where none are.

    Args:
        metrics: The metrics that are measured.
        form: The form of a batch.
    """
    if not (suggested := _by_suggestion(metrics)):
        return None
    layout, name = suggested_layout(form), metric_name(suggested[0])
    return (
        f"the outputs look like detections in the layout '{layout.name}' ({layout.words}), and are read so; "
        f"name it as in '{name}:{layout.name}', or name another one"
    )


def _fidelity_in_words(form: BatchForm) -> str:
    """What is measured for every model, in words."""
    of_outputs, kept = f"{_FIDELITY} of every output", "what the network caches"
    if not form.cached:
        return of_outputs
    if len(form.cached) == 1:
        return f"{of_outputs} but '{form.cached[0]}', which is {kept}"
    return f"{of_outputs} but {len(form.cached)}, such as '{form.cached[0]}', which are {kept}"


def _surely_holds_detections(form: BatchForm) -> bool:
    """True if no other outputs have such values, whether or not the network itself picks boxes.

    Scores of classes along an axis, as of tokens or of moments in time, may have the shape of a grid.
    """
    if form.is_class_scores(form.first_output) or not _holds_detections(form):
        return False
    grids = [one.grid for one in form.outputs.values() if one.grid is not None]
    return all(grid.in_pixels for grid in grids) and all(
        one.holds_rows for one in form.outputs.values() if one.row_order is not None
    )


def _choice_for_picks(form: BatchForm) -> Choice:
    """What is measured where outputs hold what the network picks, such as the boxes of a detector."""
    subject = f"{_outputs(form.picked, form, 'holds', 'hold')} what the network picks by its scores"
    chosen = partial(_choice, form, subject, fidelity=f"{_FIDELITY} of the tensors that it picks from")
    if _holds_detections(form):
        names, words = (DetectionAgreement.name,), "the detections in common with FP32, and "
        return chosen(names, words, uses_labels=form.has_class_indices)
    for name in form.picked:
        # One index a sample has no positions, and lists of all that is found have no samples.
        own = form.outputs[name]
        has_samples = own.shape[:1] == (form.rows,) and name not in form.without_samples
        if own.is_integer and len(own.shape) > 1 and has_samples:
            has_maps = _has_class_maps(form)
            words = f"the positions of '{name}' with {'the label' if has_maps else 'FP32'}'s class, and "
            uses_labels = has_maps or form.has_class_indices
            return chosen((f"pixels{_suffix(name, form)}",), words, uses_labels=uses_labels)
    return chosen(uses_labels=form.has_class_indices)


def _has_class_maps(form: BatchForm) -> bool:
    """Whether the labels are classes of positions, with which ``pixels`` compares; else it is FP32's."""
    return form.labels is not None and form.labels.is_integer and not form.has_class_indices


def _holds_detections(form: BatchForm) -> bool:
    try:
        suggested_layout(form)
    except CalibrationDataError:
        return False
    return True


def _use_of_labels(form: BatchForm) -> str:
    """Which metrics would compare an output with the labels, as the end of a sentence."""
    assert form.labels is not None
    if has_true_boxes(form):
        return (
            "; a metric trtint8.MeanAveragePrecision(decode) with your decoder compares with them, named as "
            "MODULE:NAME on the command line"
        )
    if form.class_outputs and math.prod(form.labels.shape[1:]) == 1:
        metric = f"top1{_suffix(form.class_outputs[0], form)}"
        return f"; metric {metric} compares with class indices that are integers of shape (samples,)"
    for name, output in form.outputs.items():
        suffix = _suffix(name, form)
        if form.labels.is_float and form.labels.shape == output.shape:
            return f"; metric psnr{suffix} compares with them"
        if _has_class_maps(form) and len(output.shape) > 2:
            return f"; metrics pixels{suffix} and miou{suffix} compare with them"
    return ""


def _measurand(metric: Metric, form: BatchForm) -> Measurand:
    if isinstance(metric, (DetectionAgreement, MeanAveragePrecision)):
        return metric.measurand(form)
    if not isinstance(metric, str):
        return user_measurand(metric)
    base, colon, output = metric.partition(":")
    if base == DetectionAgreement.name:
        return DetectionAgreement(output or None).measurand(form)
    if base == AGREEMENT_ALL:
        return agreement_all(form)
    if base in PRECISIONS:
        return box_precision(base, form, output or None)
    if not colon:
        output = form.first_output
    elif output not in form.outputs:
        raise CalibrationDataError(
            f"metric '{metric}' is of an output '{output}' that the model does not have; there are "
            f"{', '.join(form.outputs)}"
        )
    if k := rank_in(base):
        return top_k(metric, output, k)
    return _ONE_OUTPUT_METRICS[base](metric, output, form)
