"""The words for how ranges were chosen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.histograms.rules import MEANINGS, NEAR, RULES, TIGHT
from calibrators.tables.choice import RangeChoice, scale_of


def test_the_reason_names_the_rules_that_saw_all_samples():
    choice = RangeChoice(
        "wide", {"wide": 31.26, "mse": 31.5, "minmax": 20.0}, {"wide": 16, "mse": 16, "minmax": 4}
    )
    assert choice.reason == (
        "'wide' (widest of about the least squared error) for every tensor: 31.3 dB at the network's outputs "
        "for a typical one of 16 samples (mse 31.5 dB), of 3 rules tried"
    )
    single = RangeChoice("mse", {"mse": 40.0, "wide": 38.0}, {"mse": 1, "wide": 1}).reason
    assert single.endswith("40.0 dB at the network's outputs on 1 sample (wide 38.0 dB), of 2 rules tried")
    outputs = {"scores": 26.6, "boxes": 72.3}
    both = RangeChoice("mse", {"mse": 26.6}, {"mse": 8}, outputs).reason
    assert "26.6 dB at 'scores', 72.3 dB at 'boxes' for a typical one" in both
    assert RangeChoice("mse", {}, {}).reason.startswith("'mse' (least squared error) for every tensor, as")
    assert RangeChoice("new", {}, {}).reason.startswith("'new' for every tensor, as")
    assert MEANINGS.keys() == {*RULES, TIGHT, NEAR}


@pytest.mark.parametrize(
    ("sqnr_db", "samples"),
    [({"mse": 1.0}, {}), ({}, {"mse": 1}), ({"mse": 1.0}, {"wide": 1}), ({"wide": 1.0}, {"wide": 1})],
)
def test_rules_that_differ_are_refused(sqnr_db, samples):
    with pytest.raises(ValueError, match="the rules that were tried are not those that have an SQNR"):
        RangeChoice("mse", sqnr_db, samples)


@given(st.floats(2.0**-120, 2.0**120, width=32))
def test_the_range_of_a_scale_has_this_scale(scale):
    found = scale_of(scale * 127)
    assert float(found) == scale and found.dtype == np.float32
