"""Calibration on the CPU: runs the FP32 model and streams its activations into histograms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from calibrators.batches import Batches, FeedDict
from calibrators.errors import CalibrationDataError
from calibrators.fingerprint import DataFingerprint
from calibrators.histogram import Histogram
from calibrators.inputs import InputSpec
from calibrators.onnx_session import first_line, open_session
from calibrators.preflight import Preflight
from calibrators.progress import progress_bar


@dataclass(frozen=True)
class Observation:
    """What one pass over the calibration data showed.

    Attributes:
        histograms: Of the magnitudes of every tensor that was asked for.
        samples: How many samples were fed.
        data_fingerprint: Identifies the samples whatever their order and batch size.
        warnings: What looks odd about the data, one sentence each.
    """

    histograms: dict[str, Histogram]
    samples: int
    data_fingerprint: str
    warnings: tuple[str, ...]


def observe(
    model: bytes | Path,
    inputs: Sequence[InputSpec],
    tensors: Iterable[str],
    batches: Batches,
    *,
    threads: int | None = None,
    progress: bool = True,
) -> Observation:
    """Runs the model on every batch and counts the magnitudes of the given tensors.

    Activations are counted batch by batch and dropped, so memory does not grow with the data. The result
    does not depend on batch size or order, as far as ONNX Runtime's own outputs do not: they are
    bit-identical across batch sizes with its graph optimizations on, which is why they are.

    Args:
        model: The FP32 model, serialized or a path.
        inputs: Its inputs.
        tensors: Names of float tensors of the graph, inputs included.
        batches: The calibration data.
        threads: Threads within an operator; ONNX Runtime's choice where None.
        progress: Show a progress bar on a terminal.

    Returns:
        The histograms and what identifies the data.

    Raises:
        CalibrationDataError: The data does not fit the model, there is none, or it makes the model
            produce NaN.
        ModelError: ONNX Runtime cannot run the model.
    """
    histograms = {name: Histogram() for name in tensors}
    fed = [spec.name for spec in inputs if spec.name in histograms]
    computed = [name for name in histograms if name not in fed]
    preflight, fingerprint = Preflight(inputs), DataFingerprint()
    session = open_session(
        _with_outputs(model, computed),
        optimize=True,
        threads=threads,
        data_folder=model.parent if isinstance(model, Path) else None,
    )

    with progress_bar("Calibrating", batches.num_samples, enabled=progress) as advance:
        for feed in batches:
            preflight.observe(feed)
            before = fingerprint.samples
            fingerprint.observe(feed)
            for name in fed:
                histograms[name].observe(feed[name])
            for name, values in zip(computed, _run(session, computed, feed), strict=True):
                histograms[name].observe(values)
            advance(fingerprint.samples - before)
    warnings = preflight.finish()
    _refuse_nans(histograms)
    return Observation(histograms, fingerprint.samples, fingerprint.hexdigest(), tuple(warnings))


def _with_outputs(model: bytes | Path, names: Sequence[str]) -> bytes:
    """The model with more of its tensors as outputs; external data stays where it is."""
    if isinstance(model, Path):
        proto = onnx.load(model, load_external_data=False)
    else:
        proto = onnx.ModelProto.FromString(model)
    present = {output.name for output in proto.graph.output}
    proto.graph.output.extend(
        onnx.helper.make_empty_tensor_value_info(name) for name in names if name not in present
    )
    serialized: bytes = proto.SerializeToString()
    return serialized


def _run(session: object, names: Sequence[str], feed: FeedDict) -> list[NDArray[Any]]:
    try:
        outputs: list[NDArray[Any]] = session.run(list(names), feed)  # type: ignore[attr-defined]
    except Exception as error:
        shapes = ", ".join(f"'{name}' {array.shape}" for name, array in feed.items())
        raise CalibrationDataError(
            f"the model fails on a batch with {shapes}: {first_line(error)}; check the data's dimensions"
        ) from error
    return outputs


def _refuse_nans(histograms: dict[str, Histogram]) -> None:
    for name, histogram in histograms.items():
        if histogram.nans:
            raise CalibrationDataError(
                f"tensor '{name}' held {histogram.nans} NaN during calibration; the model overflows or its "
                "inputs are not preprocessed as it expects"
            )
