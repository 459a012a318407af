"""The metrics of a model's outputs: those with a name, and which are measured where none are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

from calibrators.checks import check_choice
from calibrators.errors import CalibrationDataError
from trtint8.validation.batch import BatchForm
from trtint8.validation.class_scores import agreement, mean_iou, pixels, rank_in, top_k
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
from trtint8.validation.fidelity import OUTPUT_METRICS, psnr
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
    "pixels": pixels,
    "miou": mean_iou,
}

#: Metrics of detections.
_DETECTION_METRICS = (DetectionAgreement.name, *PRECISIONS)

#: Metrics of all outputs together.
_ALL_OUTPUTS_METRICS = (*_DETECTION_METRICS, *OUTPUT_METRICS)

#: The names of all metrics, for messages and for help.
NAMES = ", ".join(("top1", "top5 and so on", *_ONE_OUTPUT_METRICS, *_ALL_OUTPUTS_METRICS))

#: The metrics that are measured for every model.
_FIDELITY_METRICS = ("sqnr", "cosine", "max_error")

#: The same in words.
_FIDELITY_OF_OUTPUTS = "SQNR, cosine and largest error of every output"

#: The same in words, where they are measured of what outputs are picked from.
_FIDELITY_OF_SOURCES = "SQNR, cosine and largest error of the tensors that it picks from"


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
    names = [
        metric_name(metric)
        for metric in metrics
        if not (isinstance(metric, str) and metric in OUTPUT_METRICS)
    ]
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
    return tuple(_measurand(metric, form) for metric in metrics if metric not in OUTPUT_METRICS)


def usual_metrics(form: BatchForm) -> Choice:
    """The metrics that are measured where none are asked for.

    Args:
        form: The form of a batch.

    Returns:
        Where the first output is one row of class scores per sample ``top1``, with ``top5`` where there are
        more than five classes, if the labels are class indices; and ``agreement``. Rows of length 1 are
        embeddings and no class scores. Where the labels are true boxes and the outputs hold detections
        ``map`` and ``map50``, or ``detections`` where faster-coco-eval is not installed. Where the network
        picks elements at its end ``detections``, or ``pixels`` of the first output of class indices. So where
        the outputs hold detections by their values, as those of YOLO networks do. For
        every model ``sqnr``, ``cosine`` and ``max_error`` of every output, or of what it is picked from.
    """
    if has_true_boxes(form) and _holds_detections(form):
        return _choice_for_detector(form)
    if form.picked:
        return _choice_for_picks(form)
    if _surely_holds_detections(form):
        return _choice_for_boxes(form)
    first = form.first_output
    names, words = [], []
    has_rows = form.is_class_scores(first)
    is_embedding = has_rows and form.outputs[first].is_embedding
    if has_rows and not is_embedding:
        if form.has_class_indices:
            names = ["top1", "top5"] if form.outputs[first].shape[1] > 5 else ["top1"]
            words = [name.replace("top", "top-") for name in names]
        names.append("agreement")
        words.append("agreement")
    what = "one row of class scores per sample" if names else "no row of class scores per sample"
    if is_embedding:
        what = "one row of length 1 per sample, as embeddings are"
    chosen = ", ".join([*words, _fidelity_in_words(form)])
    reason = f"output '{first}' ({form.outputs[first]}) is {what}: chose {chosen}"
    if form.labels is not None and "top1" not in names:
        reason += f"; the labels ({form.labels}) are not used{_use_of_labels(form)}"
    metrics = (*names, *_FIDELITY_METRICS)
    return Choice(metrics, reason, budget=metrics[0])


def reads_layouts(
    metrics: Sequence[Metric] | None, labels: NDArray[Any] | None, picked: Sequence[str]
) -> bool:
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
    if not form.cached:
        return _FIDELITY_OF_OUTPUTS
    kept = "what the network caches"
    if len(form.cached) == 1:
        return f"{_FIDELITY_OF_OUTPUTS} but '{form.cached[0]}', which is {kept}"
    return f"{_FIDELITY_OF_OUTPUTS} but {len(form.cached)}, such as '{form.cached[0]}', which are {kept}"


def _choice_for_detector(form: BatchForm) -> Choice:
    names = tuple(PRECISIONS) if has_library() else (DetectionAgreement.name,)
    reason = (
        f"the outputs hold detections and the labels ({form.labels}) are boxes: chose "
        f"{', '.join([*names, _fidelity_in_words(form)])}"
    )
    return Choice((*names, *_FIDELITY_METRICS), reason, budget=names[0])


def _choice_for_boxes(form: BatchForm) -> Choice:
    """What is measured of a detector whose boxes are picked outside of the network, without true boxes."""
    reason = f"the outputs hold detections: chose those in common with FP32, and {_fidelity_in_words(form)}"
    if form.labels is not None:
        reason += f"; the labels ({form.labels}) are not used{_use_of_labels(form)}"
    return Choice((DetectionAgreement.name, *_FIDELITY_METRICS), reason, budget=_FIDELITY_METRICS[0])


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
    names, words, uses_labels = _metrics_of_picks(form)
    outputs = ", ".join(f"'{name}' ({form.outputs[name]})" for name in form.picked)
    subject = f"output {outputs} holds" if len(form.picked) == 1 else f"outputs {outputs} hold"
    reason = f"{subject} what the network picks by its scores: chose {words}{_FIDELITY_OF_SOURCES}"
    if form.labels is not None and not form.has_class_indices and not uses_labels:
        reason += f"; the labels ({form.labels}) are not used{_use_of_labels(form)}"
    return Choice((*names, *_FIDELITY_METRICS), reason, budget=_FIDELITY_METRICS[0])


def _metrics_of_picks(form: BatchForm) -> tuple[tuple[str, ...], str, bool]:
    """The metrics of what is picked, by name and in words, and whether they compare with the labels."""
    if _holds_detections(form):
        return (DetectionAgreement.name,), "the detections in common with FP32, and ", False
    for name in form.picked:
        # One index a sample has no positions.
        if form.outputs[name].is_integer and len(form.outputs[name].shape) > 1:
            metric = "pixels" if name == form.first_output else f"pixels:{name}"
            uses_labels = _has_class_maps(form)
            whose = "the label's" if uses_labels else "FP32's"
            return (metric,), f"the positions of '{name}' with {whose} class, and ", uses_labels
    return (), "", False


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
        return "; trtint8.DetectionAgreement(decode) compares with them"
    first = form.first_output
    has_scores = form.is_class_scores(first) and not form.outputs[first].is_embedding
    if has_scores and math.prod(form.labels.shape[1:]) == 1:
        return "; top-1 compares with class indices that are integers of shape (samples,)"
    for name, output in form.outputs.items():
        suffix = "" if name == form.first_output else f":{name}"
        if form.labels.is_float and form.labels.shape == output.shape:
            return f"; metric psnr{suffix} compares with them"
        if _has_class_maps(form) and len(output.shape) > 2:
            return f"; metrics pixels{suffix} and miou{suffix} compare with them"
    return ""


def _measurand(metric: Metric, form: BatchForm) -> Measurand:
    if isinstance(metric, DetectionAgreement):
        return metric.measurand(form)
    if not isinstance(metric, str):
        return user_measurand(metric)
    base, colon, output = metric.partition(":")
    if base == DetectionAgreement.name:
        return DetectionAgreement(output or None).measurand(form)
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
