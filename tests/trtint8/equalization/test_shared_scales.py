"""Levels of channels that share a scale."""

import numpy as np
import pytest

from tests.trtint8.equalization.choosing import begin
from tests.trtint8.equalization.transformers import SIZE, Blocks, samples
from trtint8.equalization.shared_scales import match_shared_scales


def peak(choice, tensor):
    return (choice.observed.peaks[tensor] / choice.factors_of(choice.labels[tensor])).max()


@pytest.mark.parametrize("level", [0.01, 100.0])
def test_values_get_the_range_of_the_queries_and_keys_of_the_same_layer(level):
    g = Blocks()
    model = g.finish(g.linear(g.attention(*g.fused_slices("x", "a"), "a"), SIZE, SIZE, "projection"))
    choice, forms = begin(model, samples())
    form = forms["'a_qkv' to 'projection'"]
    choice.factors[form.representatives] = level * np.linspace(1, 2, SIZE)
    match_shared_scales(choice, list(forms.values()))
    others = max(peak(choice, name) for name in ("a_scaled_out", "a_k_heads_out") if name in choice.labels)
    assert peak(choice, "a_v_heads_out") == pytest.approx(others)
    # The factors keep their proportions.
    np.testing.assert_allclose(
        choice.factors[form.representatives] / choice.factors[form.representatives][0],
        np.linspace(1, 2, SIZE),
    )


def test_channels_that_keep_their_values_and_scales_of_their_own_stay():
    g = Blocks()
    model = g.finish(g.linear(g.attention(*g.fused_slices("x", "a"), "a"), SIZE, SIZE, "projection"))
    choice, forms = begin(model, samples())
    match_shared_scales(choice, list(forms.values()))
    assert (choice.factors == 1).all()
    g = Blocks()
    model = g.finish(g.linear(g.attention(*g.separate("x", "a"), "a"), SIZE, SIZE, "projection"))
    choice, forms = begin(model, samples())
    form = forms["'a_v' to 'projection'"]
    choice.factors[form.representatives] = 3.0
    match_shared_scales(choice, list(forms.values()))
    assert (choice.factors[form.representatives] == 3).all()
