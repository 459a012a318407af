"""The worst samples and their pictures."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.trtint8.report.extra  # noqa: F401
from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError, ModelError
from trtint8.models.outputs.joined import OutputPart
from trtint8.report.worst import (
    COUNT,
    Answers,
    Worst,
    WorstSample,
    compare_answers,
    find_worst,
    measure_batch,
    relative_errors,
)
from trtint8.validation.accuracy import ValidatedModel

FP32 = np.array([[3.0, 1.0, 0.0], [0.0, 2.0, 1.5], [0.0, 4.0, 0.0], [5.0, 4.75, 0.0]], np.float32)


INT8 = np.array([[1.0, 1.5, 0.0], [0.0, 2.0, 1.5], [0.0, 2.0, 0.0], [4.5, 4.625, 0.0]], np.float32)


def test_relative_errors():
    wanted = np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    got = np.array([[3.0, 3.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, math.nan]])
    assert relative_errors(wanted, got).tolist() == [0.2, 0.0, math.inf, 1.0, math.inf]


def test_those_with_another_class_stand_by_themselves():
    measured = measure_batch({"y": FP32}, {"y": INT8}, None, 4, is_classifier=True)
    worst = Worst(4, 2, "a stand-in", tuple(sorted(measured, key=lambda one: one.rank)))
    assert [sample.index for sample in worst.flipped] == [0, 3]
    assert [sample.index for sample in worst.others] == [2, 1]


def test_answers():
    assert compare_answers(FP32[0], INT8[0]) == Answers((0, 1), (3.0, 1.0), (1.0, 1.5), True)
    assert compare_answers(FP32[0], INT8[0]).margin == 2.0
    # Where both answer the same, FP32's second choice stands beside it.
    assert compare_answers(FP32[1], INT8[1]) == Answers((1, 2), (2.0, 1.5), (2.0, 1.5), False)


def test_flips_lead_by_margin_then_errors():
    found = measure_batch({"y": FP32}, {"y": INT8}, np.array([0, 1, 2, 1]), 4, is_classifier=True, first=10)
    assert [sample.index for sample in found] == [10, 11, 12, 13]
    assert [sample.flipped for sample in found] == [True, False, False, True]
    assert [sample.index for sample in sorted(found, key=lambda one: one.rank)] == [10, 13, 12, 11]
    assert found[2] == WorstSample(12, 0.5, Answers((1, 0), (4.0, 0.0), (2.0, 0.0), False), 2)


def test_the_output_that_is_furthest_off_counts():
    wanted = {"a": np.ones((2, 3, 2), np.float32), "b": np.array([[1.0], [2.0]], np.float32)}
    got = {"a": np.ones((2, 3, 2), np.float32), "b": np.array([[1.5], [2.0]], np.float32)}
    found = measure_batch(wanted, got, None, 2)
    assert [sample.error for sample in found] == [0.5, 0.0] and found[0].answers is None


def test_outputs_that_cannot_be_told_apart_by_sample():
    with pytest.raises(CalibrationDataError, match=r"'a'.*2.*3"):
        measure_batch({"a": np.ones((2, 3)), "b": np.ones(())}, {}, None, 2)
    with pytest.raises(ModelError, match=r"'a'.*2.*4"):
        measure_batch({"a": np.ones((2, 3))}, {"a": np.ones((2, 4))}, None, 2)


@pytest.mark.parametrize("steps", [2, 8])
def test_steps_of_time_are_no_samples(steps):
    inputs = [InputSpec("x", np.dtype(np.float32), ("N", steps, 3))]

    def with_time_first(feed):
        return [feed["x"].swapaxes(0, 1)]

    with pytest.raises(CalibrationDataError, match=rf"\('y' \({steps}, 5, 3\) for 5 samples\); leave"):
        find_worst(
            ValidatedModel("INT8", with_time_first, "a stand-in"),
            with_time_first,
            ["y"],
            WHOLE,
            inputs,
            open_batches(np.ones((5, steps, 3), np.float32), inputs, batch_size=5),
        )


def test_errors_of_outputs_that_are_no_floats():
    bits = np.array([[True, True, True, True], [True, False, False, False]])
    other = np.array([[True, True, True, False], [True, False, False, False]])
    assert relative_errors(bits, other).tolist() == [0.5, 0.0]
    # The difference is -1, which unsigned integers write as 255.
    assert relative_errors(np.array([[4]], np.uint8), np.array([[5]], np.uint8)).tolist() == [0.25]


WHOLE = (OutputPart("y", "y"),)


def worst_of(values, noise, batch_size, labels=None, parts=WHOLE):
    """Runs a network that passes its input on, and one that adds noise to it."""
    table = {row.tobytes(): row + more for row, more in zip(values, noise, strict=True)}
    inputs = [InputSpec("x", np.dtype(np.float32), ("N", values.shape[1]))]
    return find_worst(
        ValidatedModel(
            "INT8", lambda feed: [np.stack([table[row.tobytes()] for row in feed["x"]])], "a stand-in"
        ),
        lambda feed: [feed["x"]],
        ["y"],
        parts,
        inputs,
        open_batches(values, inputs, batch_size=batch_size, labels=labels),
    )


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 1000))
def test_batches_do_not_matter(rows, batch_size, seed):
    random = np.random.default_rng(seed)
    values = random.standard_normal((rows, 4)).astype(np.float32)
    noise = random.standard_normal((rows, 4)).astype(np.float32)
    together = worst_of(values, noise, rows)
    assert worst_of(values, noise, batch_size) == together
    measured = measure_batch({"y": values}, {"y": values + noise}, None, rows, is_classifier=True)
    ranked = sorted(measured, key=lambda one: one.rank)
    assert together.worst == tuple(ranked[:COUNT]) and together.samples == rows
    assert together.flips == int((values.argmax(1) != (values + noise).argmax(1)).sum())


def test_labels_follow_their_samples():
    values = np.eye(4, dtype=np.float32)
    found = worst_of(values, 0.5 * values, 3, labels=np.array([7, 6, 5, 4]))
    assert {sample.index: sample.label for sample in found.worst} == {0: 7, 1: 6, 2: 5, 3: 4}
    assert found.description == "a stand-in" and found.class_name(2) == "2"


def test_an_error_of_a_small_part_of_an_output_counts():
    values = np.array([[100.0, 1.0], [100.0, 1.0]], np.float32)
    noise = np.array([[4.0, 0.0], [0.0, 0.5]], np.float32)
    parts = [
        OutputPart("a", "y", (slice(None), slice(0, 1))),
        OutputPart("b", "y", (slice(None), slice(1, 2))),
    ]
    found = worst_of(values + np.float32(np.arange(2))[:, None], noise, 2, parts=parts)
    assert [sample.index for sample in found.worst] == [1, 0]
    assert [sample.error for sample in found.worst] == pytest.approx([0.25, 0.04])


def test_embeddings_are_no_classes():
    # The last batch has one sample, which does not tell the two apart.
    values = np.array([[0.6, -0.8], [-0.8, 0.6], [0.8, -0.6]], np.float32)
    noise = np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]], np.float32)
    found = worst_of(values, noise, 2)
    assert found.flips is None and [sample.answers for sample in found.worst] == [None] * 3
    assert [sample.error for sample in found.worst] == pytest.approx([1.0, 0.0, 0.0])
    assert worst_of(2 * values, noise, 2).flips == 0
