"""Peak signal-to-noise ratios."""

import math
from dataclasses import replace

import numpy as np
import pytest

from calibrators.errors import CalibrationDataError
from trtint8.validation.batch import Batch, BatchForm
from trtint8.validation.image_metrics import noise_level, peak, psnr

WANTED = np.array([[[[0.0, 1.0]]], [[[0.5, 0.5]]]])


def measured(found, wanted=WANTED, labels=None, rows=2):
    batch = Batch({}, {"hr": found}, {"hr": wanted}, labels, rows)
    return psnr("psnr", "hr", BatchForm.of(batch.reference, labels, rows)), batch


@pytest.mark.parametrize(
    ("low", "high", "is_uint8", "value"),
    [
        (0, 1, False, 1),
        (0.2, 0.4, False, 1),
        (-1, 1, False, 2),
        (0, 4, False, 4),
        (0, 9, True, 255),
        (3, 3, 0, 1),
    ],
)
def test_peak(low, high, is_uint8, value):
    assert peak(low, high, is_uint8=is_uint8) == value


def test_noise_level():
    totals = np.array([[4.0, 400.0], [0.0, 3.0], [10.0, 1.0]])
    assert noise_level(totals).tolist() == [20.0, math.inf, -10.0]


def test_against_the_reference_over_all_samples():
    measurand, batch = measured(WANTED + 0.1)
    assert (measurand.relative, measurand.perfect, measurand.unit) == (True, math.inf, "dB")
    assert measurand.title == "PSNR of 'hr' against FP32"
    meter = measurand.start()
    meter.merge(measurand.measure(batch))
    assert meter.value() == pytest.approx(20.0)
    other, batch = measured(WANTED * [[[[1.0]]], [[[1.2]]]])  # squared errors 0, 0, 0.01, 0.01
    assert other.measure(batch).value() == pytest.approx(10 * math.log10(4 / 0.02))
    exact, batch = measured(WANTED)
    assert exact.measure(batch).value() == math.inf
    assert exact.measure(batch).against(meter, "FP16") is None  # infinite


def test_the_peak_is_that_of_all_batches():
    measurand, first = measured(WANTED + 0.1)
    later = Batch({}, {"hr": WANTED * 8 + 0.1}, {"hr": WANTED * 8}, None, 2)
    meter = measurand.start()
    meter.merge(measurand.measure(first))
    meter.merge(measurand.measure(later))
    assert meter.value() == pytest.approx(20 * math.log10(8) + 20)


def test_against_labels_of_the_same_shape():
    labels = (WANTED * 255).astype(np.uint8)
    measurand, batch = measured(labels + np.array(255 / 10), labels.astype(np.float64), labels=labels)
    assert (measurand.relative, measurand.perfect) == (False, None)
    assert measurand.title == "PSNR of 'hr' against the labels"
    assert measurand.measure(batch).value() == pytest.approx(20.0)
    found = measurand.measure(batch).against(
        measurand.measure(measured(labels + 51.0, labels.astype(np.float64), labels=labels)[1]), "B"
    )
    assert found.difference == pytest.approx(20 * math.log10(2)) and found.pairs == 2


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_is_compared_with_is_finite(broken):
    labels = WANTED.copy()
    labels[1, 0, 0, 1] = broken
    for (measurand, batch), source in (
        (measured(WANTED, labels=labels), "the labels"),
        (measured(WANTED, labels), "FP32's output 'hr'"),
    ):
        message = (
            f"^metric 'psnr' compares with {source}, of which 'b.png' has values that are NaN or infinite"
        )
        with pytest.raises(CalibrationDataError, match=message):
            measurand.measure(replace(batch, first=4, name_of={5: "'b.png'"}.get))


def test_labels_that_do_not_fit():
    with pytest.raises(
        CalibrationDataError, match="compare labels of shape 2x1x2x2 with output 'hr' of shape 2x1x1x2; give"
    ):
        measured(WANTED, labels=np.zeros((2, 1, 2, 2)))
    assert measured(WANTED, labels=np.array([1, 2]))[0].relative  # class indices are nothing to compare with


def test_labels_of_another_scale():
    dark, bright = (np.full(WANTED.shape, value, np.uint8) for value in (3, 200))
    measurand, batch = measured(WANTED, labels=bright)
    message = (
        "labels of uint8, up to 200, with output 'hr', which is from 0 to 1 in FP32; give labels of the out"
    )
    with pytest.raises(CalibrationDataError, match=message):
        measurand.measure(batch)
    measurand, batch = measured(WANTED, labels=dark)
    assert measurand.measure(batch).value() == pytest.approx(10 * math.log10(255**2 * 4 / 25.5))
    assert measurand.measure(replace(batch, labels=bright, reference={"hr": 200 * WANTED})).value() > 0


def test_labels_without_the_axis_of_channels():
    with pytest.raises(
        CalibrationDataError, match="labels of shape 2x1x2 with output 'hr' of shape 2x1x1x2; g"
    ):
        measured(WANTED, labels=WANTED[:, 0])


def test_outputs_without_a_batch_axis():
    measurand, batch = measured(np.array([0.0, 0.5, 1.1]), np.array([0.0, 0.5, 1.0]), rows=1)
    assert measurand.measure(batch).value() == pytest.approx(10 * math.log10(3 / 0.01))
    scalar, batch = measured(np.float32(0.5), np.float32(1.0), rows=1)
    assert scalar.measure(batch).value() == pytest.approx(20 * math.log10(2))
