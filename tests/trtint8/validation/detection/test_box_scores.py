"""Logits of boxes and classes."""

import numpy as np
import pytest

from trtint8.validation.batch import BatchForm
from trtint8.validation.detection.box_scores import Activation, activation_of
from trtint8.validation.detection.layouts import layout_reader


def logits(shares):
    """Logits of boxes of which one in five shows something."""
    random = np.random.default_rng(3)
    table = random.normal(-6, 1, (1, 20, shares)).astype(np.float32)
    table[0, ::5, 1] = 2.0
    return table


def with_none(table, place):
    return np.insert(table, place, np.where(table.max(axis=-1) > 0, -3.0, 5.0), axis=-1).astype(np.float32)


def softmax(values):
    powers = np.exp(values.astype(np.float64))
    return powers / powers.sum(axis=-1, keepdims=True)


INDEPENDENT = logits(4)
FIRST, LAST = with_none(INDEPENDENT, 0), with_none(INDEPENDENT, 4)


@pytest.mark.parametrize(
    ("array", "activation"),
    [
        (INDEPENDENT, Activation.SIGMOID),
        (INDEPENDENT[..., :1], Activation.SIGMOID),
        (FIRST, Activation.SOFTMAX_WITHOUT_FIRST),
        (LAST, Activation.SOFTMAX_WITHOUT_LAST),
        (LAST[0], Activation.SOFTMAX_WITHOUT_LAST),
        (np.roll(LAST, 2, axis=-1), Activation.SIGMOID),
        (softmax(FIRST).astype(np.float32), Activation.WITHOUT_FIRST),
        (softmax(FIRST).astype(np.float32) / 2, Activation.NONE),
        (np.ones((1, 20, 1), np.float32), Activation.NONE),
        (LAST.astype(np.int64), Activation.NONE),
        (LAST[None], Activation.NONE),
        (LAST[:, :0], Activation.NONE),
    ],
)
def test_which_function_is_missing(array, activation):
    assert activation_of(array) is activation


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (INDEPENDENT, 1 / (1 + np.exp(-INDEPENDENT.astype(np.float64)))),
        (FIRST, softmax(FIRST)[..., 1:]),
        (LAST, softmax(LAST)[..., :-1]),
        (softmax(FIRST), softmax(FIRST)[..., 1:]),
        (np.float32([[[800.0, -800.0]]]), [[[1.0]]]),
    ],
)
def test_scores(array, wanted):
    activation = activation_of(array) if array.size > 2 else Activation.SOFTMAX_WITHOUT_LAST
    np.testing.assert_allclose(activation.apply(array), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("array", [INDEPENDENT, FIRST, LAST, softmax(FIRST).astype(np.float32)])
def test_the_boxes_of_a_detector_with_logits(array):
    random = np.random.default_rng(1)
    boxes = np.concatenate([random.uniform(0.3, 0.7, (1, 20, 2)), np.full((1, 20, 2), 0.1)], axis=2)
    outputs = {"logits": array, "pred_boxes": boxes.astype(np.float32)}
    (image,) = layout_reader(BatchForm.of(outputs, None, 1))(outputs)
    found = image.scores > 0.3
    assert np.flatnonzero(found).tolist() == [0, 5, 10, 15]
    assert image.classes[found].tolist() == [1] * 4
    np.testing.assert_allclose(image.boxes[0, :2], boxes[0, 0, :2] - 0.05, rtol=1e-6)
