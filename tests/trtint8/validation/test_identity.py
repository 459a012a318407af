"""Which files a comparison is of."""

from tests.trtint8.report.samples import ACCURACY
from tests.trtint8.validation.small_models import scaled
from trtint8.models.model import load_model
from trtint8.models.origin import record_float_model
from trtint8.validation.identity import identified
from trtint8.validation.mistaken_comparisons import Origin

MODEL, ENGINE = Origin("m", "it"), Origin("e", "it", "float", engine="qdq")


def fingerprints(origins, reference):
    found = identified(ACCURACY, origins, reference)
    return found.judged_fingerprint, found.reference_fingerprint


def test_what_is_known_at_no_cost():
    reference = load_model(scaled(1.0))
    assert fingerprints([MODEL], reference) == (None, None)
    assert "fingerprint" not in vars(reference)  # it was not computed for this alone
    assert fingerprints([ENGINE, MODEL], reference) == ("qdq", reference.fingerprint)
    assert fingerprints([MODEL, ENGINE], reference) == (None, reference.fingerprint)


def test_a_reference_with_changed_weights_is_of_the_model_that_it_was_made_from():
    reference = load_model(scaled(1.0))
    record_float_model(reference.graph_model, "original")
    assert fingerprints([ENGINE], reference) == ("qdq", "original")
