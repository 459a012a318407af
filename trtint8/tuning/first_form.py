"""The form of the first batch, which says what a budget means before anything long begins."""

from __future__ import annotations

from calibrators.data.array_files import first_labels
from calibrators.data.batches import Batches
from calibrators.data.preflight import check_feed
from calibrators.errors import CalibrationDataError
from trtint8.models.model import Model
from trtint8.models.session import open_graph_model
from trtint8.validation.batch import BatchForm, count_rows
from trtint8.validation.output_shapes import DeclaredOutputs, outputs_without_samples


def first_form(model: Model, batches: Batches) -> BatchForm:
    """Runs the float model on the first batch.

    Args:
        model: The float model.
        batches: The data, which must be iterable more than once.

    Returns:
        The form of the batch, with the outputs.

    Raises:
        CalibrationDataError: There is no batch, or it does not fit the model.
    """
    for batch in batches.labelled():
        check_feed(batch.feed, model.inputs, name_of=batches.name_of)
        session = open_graph_model(model.graph_model)
        outputs = dict(zip(session.output_names, session.run(batch.feed), strict=True))
        rows = count_rows(batch.feed, outputs)
        labels = first_labels(batch.labels, rows, 0)
        declared = DeclaredOutputs.of(model.graph_model)
        without_samples = outputs_without_samples(declared.shapes, model.inputs)
        return declared.form_of(outputs, labels, rows, without_samples)
    raise CalibrationDataError("the data has no samples; pass at least one")
