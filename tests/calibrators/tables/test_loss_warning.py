"""The warnings of ranges that lose too much."""

import pytest

from calibrators.histograms.losses import RangeLoss
from calibrators.tables.choice import RangeChoice
from calibrators.tables.loss_warning import loss_warning, noise_warning

LOSS = RangeLoss(0.025, 9.03, 42.18)
FIGURES = "(2.50% clipped, 9.0 dB where 42.2 dB are possible)"


def test_no_loss_no_warning():
    assert loss_warning({}, "entropy") is None


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("a", f"1 range loses much of the tensor's values: 'a' {FIGURES}; "),
        ("ab", f"2 ranges lose much of the tensors' values: 'a' {FIGURES}, 'b' {FIGURES}; "),
        (
            "abcde",
            f"5 ranges lose much of the tensors' values: 'a' {FIGURES}, 'b' {FIGURES}, 'c' {FIGURES} "
            "and 2 more; ",
        ),
    ],
)
@pytest.mark.parametrize(
    ("method", "advice"),
    [
        ("auto", "the network's outputs were best so; validate"),
        ("percentile", "choose the method auto or mse, or set these ranges by hand"),
    ],
)
def test_the_sentence(names, words, method, advice):
    assert loss_warning(dict.fromkeys(names, LOSS), method) == words + advice


@pytest.mark.parametrize(
    ("method", "advice"),
    [
        ("auto", "validate"),
        ("mse", "choose the method auto or entropy, or"),
        ("entropy", "choose the method auto, or"),
    ],
)
def test_a_few_huge_values_are_left_out_of_what_is_possible(method, advice):
    loss = RangeLoss(0.0001, 77.8, 77.8, RangeLoss(0.0001, 0.0, 41.3))
    warning = loss_warning({"a": LOSS, "b": loss}, method)
    assert "'b' (0.01% clipped, 0.0 dB where 41.3 dB are possible without its few huge values)" in warning
    assert advice in warning


@pytest.mark.parametrize(
    ("level", "count", "words"),
    [
        (15.0, 16, None),
        (14.96, 16, "an SQNR of only 15.0 dB for a typical one of 16 samples, and no range that was tried"),
        (-0.4, 1, "an SQNR of only -0.4 dB on 1 sample, and no range"),
    ],
)
def test_noisy_outputs_are_warned_of(level, count, words):
    found = noise_warning(RangeChoice("wide", {"wide": level, "mse": 30.0}, {"wide": count, "mse": count}))
    assert found is None if words is None else found and words in found


def test_outputs_that_were_not_compared_are_not_warned_of():
    assert noise_warning(None) is None
    assert noise_warning(RangeChoice("mse", {}, {})) is None
