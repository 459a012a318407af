"""The warning of ranges that lose too much."""

import pytest

from calibrators.histograms.losses import RangeLoss
from calibrators.tables.loss_warning import loss_warning

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
