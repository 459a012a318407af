"""How far outputs are from the reference's, by hand."""

import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import trtint8
from calibrators.errors import CalibrationDataError
from calibrators.histograms.rules import decibels
from trtint8.cli.validate import METRICS
from trtint8.models.outputs.joined import OutputPart
from trtint8.validation.batch import Batch, BatchForm
from trtint8.validation.fidelity import (
    FIGURES,
    Fidelity,
    FidelityMeter,
    inner_product,
    least_faithful,
    noise_level,
    peak,
    psnr,
    row_cosines,
)


def measured(*batches, asked=()):
    """The fidelity of ``y`` over batches of (output, reference), each measured by a meter of its own."""
    meter = FidelityMeter([OutputPart("y", "y")], asked)
    for output, reference in batches:
        one = FidelityMeter([OutputPart("y", "y")], asked)
        sides = [{"y": np.asarray(side, np.float32)} for side in (output, reference)]
        one.add(*sides, len(reference))
        meter.merge(one)
    (found,) = meter.value()
    return found


def test_by_hand():
    found = measured(([[3.0, 4.0]], [[3.0, 3.0]]), ([[0.0, 0.0]], [[1.0, 1.0]]))
    # Signal 9 + 9 + 1 + 1, noise 1 + 1 + 1, product 9 + 12, norm of the output 9 + 16.
    assert found.sqnr_db == pytest.approx(10 * math.log10(20 / 3))
    assert found.cosine == pytest.approx(21 / math.sqrt(20 * 25))
    assert (found.max_error, found.token_cosine) == (1.0, None)


def test_batches_do_not_matter():
    random = np.random.default_rng(0)
    reference = random.standard_normal((6, 4))
    output = reference + 0.1 * random.standard_normal((6, 4))
    whole = measured((output, reference), asked=["token_cosine"])
    parts = measured(*((output[i : i + 2], reference[i : i + 2]) for i in (0, 2, 4)), asked=["token_cosine"])
    for name in ("sqnr_db", "cosine", "max_error", "token_cosine"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-12)


def test_equal_outputs_and_zeros():
    found = measured(([[1.0, -2.0]], [[1.0, -2.0]]))
    assert (found.sqnr_db, found.cosine, found.max_error) == (math.inf, pytest.approx(1.0), 0.0)
    assert measured(([[0.0]], [[0.0]])).cosine == 1.0
    zeros = measured(([[1.0]], [[0.0]]))
    assert (zeros.sqnr_db, zeros.cosine) == (-math.inf, 0.0)


def test_vectors_along_the_last_axis_count_alike():
    output, reference = [[[1.0, 0.0], [5.0, 5.0]]], [[[0.0, 1.0], [1.0, 1.0]]]
    assert measured((output, reference), asked=["token_cosine"]).token_cosine == pytest.approx(0.5)
    assert measured(([1.0, 2.0], [1.0, 2.0]), asked=["token_cosine"]).token_cosine is None
    rows = row_cosines(np.array([[0.0, 0], [0, 0], [2, 0]]), np.array([[0.0, 0], [1, 0], [1, 0]]))
    assert rows.tolist() == [1.0, 0.0, 1.0]


def test_ratios_and_products():
    assert decibels(100.0, 1.0) == 20.0
    assert (decibels(1.0, 0.0), decibels(0.0, 1.0), decibels(0.0, 0.0)) == (math.inf, -math.inf, math.inf)
    assert inner_product(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])) == 11.0


@pytest.mark.parametrize(
    ("levels", "lowest"),
    [((30.0, 20.0, 25.0), 1), ((math.nan, 20.0), 1), ((math.inf,), 0), ((math.nan,), None), ((), None)],
)
def test_the_output_with_the_lowest_sqnr(levels, lowest):
    outputs = [Fidelity(str(index), level, 1.0, 0.0) for index, level in enumerate(levels)]
    assert least_faithful(outputs) == (None if lowest is None else outputs[lowest])


@pytest.mark.parametrize("figure", FIGURES.values(), ids=lambda figure: figure.name)
def test_every_figure_is_documented(figure):
    """Their table, the docstring of validate, and the help of --metric."""
    page = (Path(trtint8.__file__).parents[1] / "docs" / "metrics.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{figure.name}` |"))
    assert row.split("|")[3:5] == [f" {figure.unit} ".replace("  ", " "), " FP32 "]
    assert f"``{figure.name}``" in trtint8.validate.__doc__
    assert figure.name in METRICS and {figure.field} <= {one.name for one in fields(Fidelity)}


def test_an_output_that_a_model_does_not_give():
    meter = FidelityMeter([OutputPart("a", "a"), OutputPart("b", "b")])
    meter.add({"a": np.ones((2, 3))}, {"a": np.ones((2, 3)), "b": np.ones((2, 3))}, 2)
    first, second = meter.value()
    assert first.sqnr_db == math.inf and first.cosine == pytest.approx(1)
    assert all(math.isnan(value) for value in (second.sqnr_db, second.cosine, second.max_error))


WANTED = np.array([[[[0.0, 1.0]]], [[[0.5, 0.5]]]])


def image_metrics_measured(found, wanted=WANTED, labels=None, rows=2):
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
    totals = np.array([[4.0, 400.0], [0.0, 3.0], [10.0, 1.0]])
    assert noise_level(totals).tolist() == [20.0, math.inf, -10.0]


def test_against_the_reference_over_all_samples():
    measurand, batch = image_metrics_measured(WANTED + 0.1)
    assert (measurand.relative, measurand.perfect, measurand.unit) == (True, math.inf, "dB")
    assert measurand.title == "PSNR of 'hr' against FP32"
    meter = measurand.start()
    meter.merge(measurand.measure(batch))
    assert meter.value() == pytest.approx(20.0)
    other, batch = image_metrics_measured(WANTED * [[[[1.0]]], [[[1.2]]]])  # squared errors 0, 0, 0.01, 0.01
    assert other.measure(batch).value() == pytest.approx(20)  # a sample without an error has no level
    pooled = psnr("psnr_pooled", "hr", BatchForm.of(batch.reference, None, 2))
    assert pooled.measure(batch).value() == pytest.approx(10 * math.log10(4 / 0.02))
    other, batch = image_metrics_measured(np.add(WANTED, [[[[0.1]]], [[[0.01]]]]))
    assert other.measure(batch).value() == pytest.approx(30)
    assert pooled.measure(batch).value() == pytest.approx(-10 * math.log10((0.01 + 0.0001) / 2))
    assert math.isnan(other.measure(replace(batch, outputs={"hr": WANTED * math.nan})).value())
    exact, batch = image_metrics_measured(WANTED)
    assert exact.measure(batch).value() == math.inf
    assert exact.measure(batch).against(meter, "FP16") is None  # infinite
    # The peak is that of all batches.
    meter.merge(measurand.measure(Batch({}, {"hr": WANTED * 8 + 0.1}, {"hr": WANTED * 8}, None, 2)))
    assert meter.value() == pytest.approx(20 * math.log10(8) + 20)


def test_against_labels_of_the_same_shape():
    labels = (WANTED * 255).astype(np.uint8)
    measurand, batch = image_metrics_measured(
        labels + np.array(255 / 10), labels.astype(np.float64), labels=labels
    )
    assert (measurand.relative, measurand.perfect) == (False, None)
    assert measurand.title == "PSNR of 'hr' against the labels"
    assert measurand.measure(batch).value() == pytest.approx(20.0)
    found = measurand.measure(batch).against(
        measurand.measure(image_metrics_measured(labels + 51.0, labels.astype(np.float64), labels=labels)[1]),
        "B",
    )
    assert found.difference == pytest.approx(20 * math.log10(2)) and found.pairs == 2


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_is_compared_with_is_finite(broken):
    labels = WANTED.copy()
    labels[1, 0, 0, 1] = broken
    for (measurand, batch), source in (
        (image_metrics_measured(WANTED, labels=labels), "the labels"),
        (image_metrics_measured(WANTED, labels), "FP32's output 'hr'"),
    ):
        with pytest.raises(CalibrationDataError, match=rf"'psnr' .*{source}.*'b\.png'"):
            measurand.measure(replace(batch, first=4, name_of={5: "'b.png'"}.get))


def test_labels_that_do_not_fit():
    for labels, shape in ((np.zeros((2, 1, 2, 2)), "2x1x2x2"), (WANTED[:, 0], "2x1x2")):
        with pytest.raises(CalibrationDataError, match=f"shape {shape} .*'hr'.* 2x1x1x2"):
            image_metrics_measured(WANTED, labels=labels)
    # Class indices are nothing to compare with.
    assert image_metrics_measured(WANTED, labels=np.array([1, 2]))[0].relative


def test_labels_of_another_scale():
    dark, bright = (np.full(WANTED.shape, value, np.uint8) for value in (3, 200))
    measurand, batch = image_metrics_measured(WANTED, labels=bright)
    with pytest.raises(CalibrationDataError, match=r"uint8.* 200.*'hr'.* 0 to 1"):
        measurand.measure(batch)
    measurand, batch = image_metrics_measured(WANTED, labels=dark)
    assert measurand.measure(batch).value() == pytest.approx(
        5 * math.log10(2 * 255**2 / 13) + 5 * math.log10(2 * 255**2 / 12.5)
    )
    assert measurand.measure(replace(batch, labels=bright, reference={"hr": 200 * WANTED})).value() > 0


def test_outputs_without_a_batch_axis():
    measurand, batch = image_metrics_measured(np.array([0.0, 0.5, 1.1]), np.array([0.0, 0.5, 1.0]), rows=1)
    assert measurand.measure(batch).value() == pytest.approx(10 * math.log10(3 / 0.01))
    scalar, batch = image_metrics_measured(np.float32(0.5), np.float32(1.0), rows=1)
    assert scalar.measure(batch).value() == pytest.approx(20 * math.log10(2))
