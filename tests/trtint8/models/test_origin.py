"""What a model says of where it comes from."""

import numpy as np
import onnx

import trtint8
from tests.trtint8.tuning.networks import uneven
from tests.trtint8.validation.small_models import scaled
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model, prepare, rebuilt
from trtint8.models.origin import (
    FLOAT_MODEL,
    calibration_of,
    forget_origin,
    record_calibration,
    record_float_model,
)
from trtint8.models.serialization import to_proto


def test_the_first_float_model_counts():
    graph_model = load_model(scaled(1.0)).graph_model
    record_float_model(graph_model, "first")
    record_float_model(graph_model, "second")
    assert graph_model.metadata_props == {FLOAT_MODEL: "first"}
    forget_origin(graph_model)
    assert graph_model.metadata_props == {}


def test_samples_are_recorded_where_they_are_known():
    graph_model = load_model(scaled(1.0)).graph_model
    record_calibration(graph_model, None, 5)
    record_calibration(graph_model, "digest", None)
    assert calibration_of(graph_model) is None
    record_calibration(graph_model, "digest", 5)
    assert calibration_of(graph_model) == ("digest", 5)
    graph_model.metadata_props["trtint8.calibration_samples"] = "five"
    assert calibration_of(graph_model) is None


def test_a_changed_model_says_which_it_was_made_from():
    model = load_model(DEMO_MODEL)
    prepared = prepare(model)
    changed = prepared.graph_model.clone()
    weight = next(iter(changed.graph.initializers.values()))
    weight.name += "_changed"
    again = rebuilt(changed, "changed")
    assert again.fingerprint != model.fingerprint
    assert again.graph_model.metadata_props[FLOAT_MODEL] == model.fingerprint


def test_a_quantized_model_says_both():
    model, images = uneven(), np.random.default_rng(1).standard_normal((64, 3, 6, 6)).astype(np.float32)
    table = trtint8.calibrate(model, images, method="mse", progress=False)
    for options in ({}, {"float16": True}, {"equalize": images, "progress": False}):
        found = load_model(trtint8.quantize(model, table, **options)).graph_model
        assert found.metadata_props[FLOAT_MODEL] == load_model(model).fingerprint
        assert calibration_of(found) == (table.provenance.data, 64)


def test_a_mended_model_says_nothing(split):
    table = trtint8.calibrate(DEMO_MODEL, split.calibration_images[:20], progress=False)
    foreign = onnx.load_from_string(trtint8.quantize(DEMO_MODEL, table).SerializeToString())
    del foreign.metadata_props[:]
    assert not to_proto(trtint8.mend(foreign).graph_model).metadata_props
