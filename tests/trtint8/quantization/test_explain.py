"""What ``quantize --explain`` says of every pattern, word by word.

The texts stand in golden/explain.txt: a heading per model and target, then a line per decision. To write it
anew after a change that is wanted: ``python -m tests.trtint8.quantization.explaining``.
"""

import pytest

from tests.trtint8.quantization.explaining import CASES, GOLDEN, explained

TEXTS = dict(text.split("\n", 1) for text in GOLDEN.read_text().split("== ")[1:])


@pytest.mark.parametrize("heading", CASES)
def test_explanations(heading):
    assert explained(heading) == TEXTS[heading].strip("\n")


def test_no_text_is_left_over():
    assert TEXTS.keys() == CASES.keys()
