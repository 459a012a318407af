"""The public call that compares INT8 with FP32."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from calibrators.checks import check_mapping
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import DataOptions, LabelSource
from calibrators.data.opening import DataSource
from calibrators.errors import Argument, CalibrationDataError, ModelError, TableError
from calibrators.run import Executor, RunOptions
from calibrators.tables.source import TableSource, as_table
from trtint8.arithmetic.simulation import Integers
from trtint8.models.torch_export import AnyModel, open_modules
from trtint8.quantization.arithmetics import ArithmeticName, arithmetic_named
from trtint8.runtime.loading import LoadingOptions
from trtint8.validation.accuracy import Accuracy
from trtint8.validation.budget import Budget
from trtint8.validation.metrics import Metric
from trtint8.validation.validate import validate_models


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
    executor: Executor = "local",
    threads: int | None = None,
    allow_host_code: bool = False,
    plugins: Sequence[str | os.PathLike[str]] = (),
    progress: bool = True,
    example_inputs: object = None,
) -> Accuracy:
    """Compares an INT8 model or engine with the FP32 model on data that it was not calibrated on.

    With ``table`` and ``arithmetic``, the INT8 model is a float model as a backend computes it in integers;
    the page "What each backend computes" says what that is.

    An engine runs on the GPU where there is one. Elsewhere it is judged through the Q/DQ model that it was
    built from, which is kept beside it, and which runs in ONNX Runtime as true fake quantization.

    The result is the same, bit for bit, for any number of workers; the number of threads, and the batch size,
    may change the last bits of what ONNX Runtime computes.

    Memory grows with the data by one byte per sample, metric and model (16 bytes where the metric is a
    function), and by what a metric over the data set keeps itself.

    Args:
        model: A Q/DQ model, or the path of an engine file; called INT8 in the result.
        data: What :func:`calibrate` takes. Its labels, where it has some, are class indices, or arrays that
            an output is compared with, such as images or maps of classes.
        reference: The FP32 model, which may be a ``torch.nn.Module``. With ``arithmetic`` it is ``model``
            itself where None; without, it has to be given.
        table: The calibration table of ``model``, or its path, with ``arithmetic``.
        arithmetic: Runs ``model``, a float model, in the integers of a backend: ``explicit`` and
            ``implicit`` are TensorRT's, ``dla``, ``ncnn`` and ``qnnpack`` others.
            ``in_integers`` of the result has the largest sum of every layer. None runs ``model`` as it is.
        also: Other models or engines to judge on the same samples, by name, such as ``{"FP16": path}``.
        labels: Labels that do not come with the data: an array, or the path of an ``.npy`` or ``.npz``.
        metrics: What to measure, one metric or several. Names: for class scores ``top1``, ``top5`` or any
            ``topK``, and ``agreement``; for images ``psnr``; for classes of positions ``pixels`` and
            ``miou``; for detectors ``detections``, or :class:`DetectionAgreement` with a decoder, and by true
            boxes ``map`` and ``map50``, behind which the layout of the outputs may be named, as in
            ``map:grid``; of every output
            ``sqnr``, ``cosine``, ``max_error``, which come together, and ``token_cosine``. The first output
            that is not cached is measured, or the one whose name follows a colon, as in ``psnr:hr``.
            ``psnr``, ``pixels`` and ``miou`` compare with labels that have the output's shape where there are
            some, else with FP32.
            Functions of ``(feeds, outputs)`` or ``(feeds, outputs, reference_outputs)`` of a batch, which
            return a number or one per sample. Metrics over the data set such as
            :class:`MeanAveragePrecision`. Functions, metrics over the data set and decoders get copies of all
            arrays. Where None, the outputs decide: for one row of class scores per sample ``top1`` and
            ``top5`` where there are labels, and ``agreement``; for detections, where the labels are true
            boxes, ``map`` and ``map50``; for every network, and alone for embeddings (rows of length 1),
            ``sqnr``, ``cosine`` and ``max_error``. ``chosen`` of the result says so.
        max_drop: How much the first of ``metrics`` may lose, as :func:`tune` takes it; where ``metrics`` is
            None, the metric that :func:`tune` takes then. ``judgement`` of the result says what was found.
        minimum: The least value of that metric, as :func:`tune` takes it. Without both there is no limit.
        batch_size: Samples per batch.
        limit: Use only this many samples.
        preprocessing: How raw images become what the model is fed.
        executor: Where models run: see :func:`calibrate`. Over Ray, metrics are computed by the workers;
            a metric over the data set must merge (:class:`trtint8.validation.metrics.MergeableMetric`).
        threads: Threads for each model in ONNX Runtime; its own choice where None. Where a model computes
            every sample by itself, they run parts of a batch. Over Ray, the number per worker; 1 where None.
        allow_host_code: Whether code that an engine contains may run; see :meth:`Engine.load`.
        plugins: Paths of shared libraries with the plugins that engines use.
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
    return validate_models(
        judged,
        data,
        reference=float_model,
        also=dict(zip(also, others, strict=True)),
        metrics=asked,
        data_options=DataOptions(batch_size, limit, preprocessing=preprocessing, labels=labels),
        run=RunOptions(threads, executor, progress=progress),
        budget=budget,
        loading=LoadingOptions(allow_host_code, plugins),
        integers=integers,
    )


def _integers(table: TableSource | None, arithmetic: str | None) -> Integers | None:
    """How a float model is computed in integers."""
    if arithmetic is None:
        if table is not None:
            raise TableError(
                f"{Argument('table')} is read with an arithmetic alone; add {Argument('arithmetic')}, or "
                f"leave {Argument('table')} out"
            )
        return None
    found = arithmetic_named(arithmetic)
    if table is None:
        raise TableError(
            f"the arithmetic '{arithmetic}' takes its ranges from a calibration table; "
            f"add {Argument('table')}"
        )
    return Integers(as_table(table), found)


def _listed(metrics: Metric | Sequence[Metric]) -> list[Metric]:
    """Metrics where several may be given: a name, a function or an object by itself is one."""
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        return [metrics]
    return list(metrics)
