"""The float model that others are compared with, and its data."""

from calibrators.data.inputs import DataOptions
from tests.trtint8.detectors import PICKED_FROM, images, plugin_detector, unordered_detector
from trtint8.models.model import load_model
from trtint8.validation.reference import Reference


def test_plugins_are_left_out_and_named():
    whole = load_model(plugin_detector())
    reference = Reference.of(whole)
    assert tuple(reference.declared.shapes) == PICKED_FROM == reference.declared.left_out.sources
    assert "num" in reference.declared.left_out.outputs
    assert reference.model.fingerprint == whole.fingerprint


def test_a_model_without_plugins_stays_as_it_is():
    model = load_model(unordered_detector())
    reference = Reference.of(model)
    assert reference.model is model and not reference.declared.left_out.outputs


def test_data_is_that_of_the_models_inputs():
    reference = Reference.of(load_model(plugin_detector()))
    batches = reference.open_data(images(4), DataOptions(limit=2))
    assert [list(feed) for feed in batches] == [[spec.name for spec in reference.model.inputs]]
    assert sum(len(array) for feed in batches for array in feed.values()) == 2
