"""Decoders of text, which cache keys and values: from calibration to an engine."""

import numpy as np
import pytest

import trtint8
from calibrators.host.session import open_session
from tests.trtint8.models.decoders import decoder, steps_of_sequences, whole_sequences
from trtint8.engine.profiles import ShapeRange, complete_profile
from trtint8.models.model import load_model


def data(kind, seed):
    if kind == "whole":
        return whole_sequences(16, seed)
    return lambda: steps_of_sequences(20, seed)


@pytest.mark.parametrize("kind", ["whole", "steps"])
def test_sequences_with_nothing_cached_at_first(kind):
    model = decoder()
    table = trtint8.calibrate(model, data(kind, 1))
    longest = 0 if kind == "whole" else 9
    sizes = table.provenance.input_sizes["past_keys"]
    assert (sizes.smallest, sizes.largest) == ((0, 8), (longest, 8))
    int8 = trtint8.quantize(model, table)
    assert load_model(int8).is_quantized
    accuracy = trtint8.validate(int8, data(kind, 2), reference=model)
    assert accuracy.samples == (16 if kind == "whole" else 200)
    assert [output.name for output in accuracy.outputs] == ["logits"]
    assert 25 < accuracy.outputs[0].sqnr_db < 60
    assert accuracy.chosen.endswith(
        "chose SQNR, cosine and largest error of every output but 2, such as 'keys', which are what the "
        "network caches"
    )
    measured = trtint8.measure_sensitivity(model, table, data(kind, 2))
    assert np.isclose(measured.quantized.sqnr_db, accuracy.outputs[0].sqnr_db, atol=0.5)
    found = table.choice.sqnr_db[table.choice.rule]
    assert found == pytest.approx(accuracy.outputs[0].sqnr_db, abs=6)


@pytest.mark.parametrize("kind", ["whole", "steps"])
def test_ranges_of_the_quantized_tensors_are_enough(kind):
    """Pairs go where they go in the whole model, though its caches are not compared."""
    model, calibration, heldout = decoder(), data(kind, 1), data(kind, 2)
    table = trtint8.calibrate(model, calibration, tensors="placed")
    every = trtint8.calibrate(model, calibration)
    assert table.choice == every.choice
    assert table.amax == {name: every.amax[name] for name in table.amax}
    few, many = (trtint8.measure_sensitivity(model, one, heldout) for one in (table, every))
    assert few.layers == many.layers


def test_a_profile_from_calibration_begins_with_nothing_cached():
    table = trtint8.calibrate(decoder(), data("steps", 1))
    inputs = load_model(decoder()).inputs
    profile = complete_profile({}, inputs, table.provenance.input_sizes)
    assert profile["past_keys"] == ShapeRange((1, 0, 8), (8, 9, 8), (32, 9, 8))


def test_the_next_token_is_the_class_of_a_position():
    model = decoder()
    int8 = trtint8.quantize(model, trtint8.calibrate(model, data("whole", 1)))
    feed = data("whole", 2)
    accuracy = trtint8.validate(int8, feed, reference=model, metrics=["pixels"])
    # Without integer kernels, which saturate on processors without VNNI.
    tokens = [
        open_session(one.SerializeToString(), optimize=False).run(["logits"], feed)[0].argmax(axis=-1)
        for one in (model, int8)
    ]
    assert accuracy.measures[0].value == pytest.approx(np.mean(tokens[0] == tokens[1]), abs=0.02)
    assert accuracy.measures[0].value > 0.8
