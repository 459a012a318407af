"""Warns of comparisons that do not say what they seem to say."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.batches import Around, Batches, facts
from calibrators.data.feeds import FeedDict
from calibrators.data.samples import DataFingerprint
from calibrators.errors import TrtInt8Error
from calibrators.files import is_file
from calibrators.operators import operator_of
from calibrators.tables.table import CalibrationTable
from calibrators.user_warnings import warn_user
from trtint8.engine.file import read_engine_info, sidecar_path
from trtint8.engine.table import read_engine_table
from trtint8.interop.integer_models import integer_operators
from trtint8.models.model import Model
from trtint8.models.origin import FLOAT_MODEL, calibration_of
from trtint8.validation.measure import REFERENCE, VALIDATED

#: Types of models that are in half precision, which are worth comparing although they are not quantized.
_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True)
class Origin:
    """Where a model comes from.

    Attributes:
        what: The model in words.
        it: How a message that has named it calls it.
        float_model: The fingerprint of the float model that it was made from; None where that is not known.
        calibration: The fingerprint of the samples that it was calibrated with, and their number; None where
            that is not known.
        engine: What identifies an engine: the fingerprint of its Q/DQ model, or the SHA-256 of its plan where
            it has none; None for a model, and where there is no engine.
    """

    what: str
    it: str
    float_model: str | None = None
    calibration: tuple[str, int] | None = None
    engine: str | None = None


def warn_of_models(
    models: Mapping[str, Model | Path], reference: Model, table: CalibrationTable | None = None
) -> list[Origin]:
    """Warns of models that are not what a comparison takes them for, as far as they say where they come from.

    Args:
        models: Models, and paths of engines, by their names in results.
        reference: The float model.
        table: The ranges with which the first model, a float model, is run in integers.

    Returns:
        Where each of the models comes from.

    Warns:
        UserWarning: The reference holds Q/DQ pairs; the model called INT8 computes in float32; or a model was
            made from another float model than the reference.
    """
    if reference.is_quantized:
        warn_user(
            f"the reference '{reference.name}' holds Q/DQ pairs, so that what the results call {REFERENCE} "
            "is quantized; give the float model"
        )
    validated = models[VALIDATED]
    if table is None and isinstance(validated, Model) and _is_float32(validated):
        warn_user(
            f"'{validated.name}', {VALIDATED} in the results, holds neither Q/DQ pairs nor integer "
            "operators: what is compared is a float model; give the quantized one"
        )
    origins = [_of_model(one) if isinstance(one, Model) else _of_engine(one) for one in models.values()]
    if table is not None:
        origins[0] = replace(origins[0], calibration=_calibration(table))
    for origin in origins:
        _warn_of_another_model(origin, reference)
    return origins


@contextlib.contextmanager
def warning_of_calibration_samples(origins: Sequence[Origin], batches: Batches) -> Iterator[Batches]:
    """Warns, when the samples were read, of models that were calibrated with them.

    Args:
        origins: Where the models come from.
        batches: The samples.

    Yields:
        The same samples, for one pass in this process.

    Warns:
        UserWarning: A model was calibrated with these samples.
    """
    alike = [one for one in origins if one.calibration and batches.num_samples in (None, one.calibration[1])]
    if not alike:
        yield batches
        return
    seen = DataFingerprint()
    yield observed(batches, seen)
    for origin in alike:
        if origin.calibration == (seen.hexdigest(), seen.samples):
            warn_user(
                f"{origin.what} was calibrated with the samples that it is judged by, so that its accuracy "
                "may look better than it is; give held-out samples"
            )


class Observer(Protocol):
    """What looks at every batch that is read."""

    def observe(self, feed: FeedDict) -> object:
        """Looks at a batch."""
        ...


@dataclass(frozen=True, eq=False)
class Observed(Around):
    """A source that shows what was read of it.

    Attributes:
        source: The source.
        seen: Is shown what was read.
    """

    seen: Observer

    def read(self, batch: Any) -> tuple[FeedDict, NDArray[Any] | None]:
        """What the model is fed, and the labels where they are stored with the samples."""
        feed, labels = self.source.read(batch)
        self.seen.observe(feed)
        return feed, labels


def observed(batches: Batches, seen: Observer) -> Batches:
    """The same samples, which are shown as they are read.

    Args:
        batches: The samples.
        seen: Is shown each batch.
    """
    return replace(batches, source=Observed(batches.source, seen, **facts(batches.source)))


def _of_model(model: Model) -> Origin:
    graph_model = model.graph_model
    made_from = graph_model.metadata_props.get(FLOAT_MODEL)
    return Origin(f"the model '{model.name}'", "it", made_from, calibration_of(graph_model))


def _of_engine(plan: Path) -> Origin:
    what = f"the engine '{plan}'"
    if not (is_file(plan) and is_file(sidecar_path(plan))):
        return Origin(what, "the engine")
    info = read_engine_info(plan)
    identity = info.qdq_fingerprint or info.plan_sha256
    # Without a table, the model that was built had Q/DQ pairs already or a calibrator of the user's.
    if info.table_fingerprint is None:
        return Origin(what, "the engine", engine=identity)
    try:
        table = read_engine_table(plan, info)
    except TrtInt8Error:  # a table that is not needed for the comparison
        table = None
    calibration = _calibration(table) if table else None
    return Origin(what, "the engine", info.model_fingerprint, calibration, identity)


def _calibration(table: CalibrationTable) -> tuple[str, int] | None:
    """The samples that a table was made with, as far as it says so."""
    data, samples = table.provenance.data, table.provenance.samples
    return None if data is None or samples is None else (data, samples)


def _is_float32(model: Model) -> bool:
    graph = model.graph_model.graph
    values = (*graph.inputs, *graph.outputs, *graph.initializers.values())
    is_quantized = any(operator_of(node).half_of_pair for node in graph)
    is_half = any(value.dtype in _HALF for value in values)
    return not (is_quantized or is_half or integer_operators(model.graph_model))


def _warn_of_another_model(origin: Origin, reference: Model) -> None:
    # A float reference may be what another one was equalized to.
    known = None if reference.is_quantized else reference.graph_model.metadata_props.get(FLOAT_MODEL)
    if origin.float_model is None or origin.float_model in (known, reference.fingerprint):
        return
    warn_user(
        f"{origin.what} was not made from the reference '{reference.name}', but from a float model with the "
        f"fingerprint {origin.float_model[:12]} (the reference has {reference.fingerprint[:12]}); give the "
        f"model that {origin.it} was made from"
    )
