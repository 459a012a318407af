"""Validation by the public call."""

import numpy as np
import pytest

import trtint8
from calibrators.errors import CalibrationDataError
from trtint8.data import DEMO_MODEL


def test_labels_of_another_length(split, table):
    with pytest.raises(CalibrationDataError, match="labels"):
        trtint8.validate(
            trtint8.quantize(DEMO_MODEL, table),
            split.heldout_images,
            reference=DEMO_MODEL,
            labels=split.heldout_labels[:-1],
        )


def test_a_label_beyond_the_classes(split, table):
    with pytest.raises(CalibrationDataError, match="label 10 is not one of the model's 10 classes"):
        trtint8.validate(
            trtint8.quantize(DEMO_MODEL, table),
            split.heldout_images,
            reference=DEMO_MODEL,
            labels=split.heldout_labels
            + 10 * (np.arange(597) == 596)
            - split.heldout_labels * (np.arange(597) == 596),
            progress=False,
        )


def test_one_name_as_metrics_is_one_metric(split, table):
    found = trtint8.validate(
        trtint8.quantize(DEMO_MODEL, table),
        split.heldout_images[:64],
        reference=DEMO_MODEL,
        metrics="agreement",
        progress=False,
    )
    assert [measure.name for measure in found.measures] == ["agreement"] and found.samples == 64
