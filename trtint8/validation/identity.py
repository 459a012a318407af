"""Which engine and which float model a comparison is of, where that is known at no cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trtint8.models.model import Model
from trtint8.models.origin import FLOAT_MODEL
from trtint8.validation.accuracy import Accuracy
from trtint8.validation.mistaken_comparisons import Origin


def identified(accuracy: Accuracy, origins: Sequence[Origin], reference: Model) -> Accuracy:
    """A comparison that says which files it is of, so that a report can tell results of an earlier build.

    Args:
        accuracy: The comparison.
        origins: Where the models come from, the judged one first.
        reference: The float model.
    """
    return replace(
        accuracy,
        judged_fingerprint=origins[0].engine,
        reference_fingerprint=_fingerprint_of(reference, origins),
    )


def _fingerprint_of(reference: Model, origins: Sequence[Origin]) -> str | None:
    """The fingerprint of what a float model is, or was made from.

    It takes tens of milliseconds for large models, so it is given only where it was computed already: to be
    compared with that of the model that another one says it was made from.
    """
    if reference.is_quantized or all(origin.float_model is None for origin in origins):
        return None
    return reference.graph_model.metadata_props.get(FLOAT_MODEL, reference.fingerprint)
