"""Inputs and ranges by the public calls."""

import numpy as np
import pytest

import trtint8
from calibrators.errors import ModelError, TrtInt8Error
from trtint8.data import DEMO_MODEL
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import placed_tensors


def test_inputs_of_a_model():
    (images,) = trtint8.model_inputs(DEMO_MODEL)
    assert (images.name, images.dtype, images.shape[1:]) == ("images", np.float32, (1, 8, 8))


def test_keywords_reach_the_calibration(split):
    table = trtint8.calibrate(
        DEMO_MODEL,
        split.calibration_images,
        method="minmax",
        limit=32,
        batch_size=8,
        tensors="placed",
    )
    assert (table.method, table.provenance.samples) == ("minmax", 32)
    assert table.amax["images"] == float(np.abs(split.calibration_images[:32]).max())
    assert list(table.amax) == list(placed_tensors(prepare(load_model(DEMO_MODEL)).graph_model))


def test_a_quantized_model_is_refused(split, table):
    quantized = trtint8.quantize(DEMO_MODEL, table)
    with pytest.raises(ModelError, match="'model' holds Q/DQ pairs already"):
        trtint8.calibrate(quantized, split.calibration_images[:8])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tensors": "placd"}, "tensors.*'placd'"),
        ({"device": None}, "'None'"),
        ({"device": 0}, "the device is '0'; give cpu, cuda"),
        ({"checkpoint_seconds": None}, "checkpoint_seconds"),
        ({"checkpoint_seconds": "a"}, "checkpoint_seconds.*'a'"),
        ({"threads": 1.5}, "threads.*is 1.5"),
        ({"threads": "2"}, "threads.*'2'"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong, words, split):
    with pytest.raises(TrtInt8Error, match=words):
        trtint8.calibrate(DEMO_MODEL, split.calibration_images[:8], **wrong)


def test_numbers_of_numpy_are_numbers(split):
    table = trtint8.calibrate(
        DEMO_MODEL,
        split.calibration_images,
        limit=np.int32(16),
        batch_size=np.int64(7),
        threads=np.int64(1),
    )
    assert table.provenance.samples == 16
