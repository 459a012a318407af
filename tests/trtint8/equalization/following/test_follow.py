"""Channels followed through networks: whatever the factors, the function stays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trtint8.equalization.transformers import (
    NORMS,
    SIZE,
    WIDTH,
    Blocks,
    assert_same,
    check,
    followed,
    samples,
    with_random_factors,
)
from tests.trtint8.quantization.attention_models import FORMS
from trtint8.equalization.forms import find_forms
from trtint8.models.model import load_model, prepare


@pytest.mark.parametrize("activation", ["Sigmoid", "Erf", "Tanh", "Softplus", "HardSwish"])
def test_other_activations_are_left_alone_and_named(activation):
    g = Blocks()
    x = g.op(activation, [g.linear("x", SIZE, 12, "up")], "act")
    channels = check(g.finish(g.linear(x, 12, SIZE, "down")), samples(), 0)
    assert channels.skipped["up"] == f"{activation}(s x) is not s {activation}(x) ('act')"
    assert channels.skipped["down"] == "'down_bias_out' is an output of the model"


@st.composite
def encoders(draw):
    """A transformer of one or two layers, of random parts."""
    g = Blocks(draw(st.integers(0, 1000)))
    x = "x"
    for number in range(draw(st.integers(1, 2))):
        name = f"layer{number}"
        norm = getattr(g, draw(st.sampled_from(NORMS)))
        kind = draw(st.sampled_from(["separate", "fused_split", "fused_slices", "fused_gathers"]))
        before = draw(st.booleans())
        source = norm(x, f"{name}_n1") if before else x
        y = g.linear(g.attention(*getattr(g, kind)(source, name), name), SIZE, SIZE, f"{name}_projection")
        x = g.op("Add", [x, y], f"{name}_sum1")
        x = source = norm(x, f"{name}_n2") if not before else x
        source = norm(x, f"{name}_n2") if before else x
        y = g.linear(source, SIZE, 12, f"{name}_up")
        y = g.op(draw(st.sampled_from(["Relu", "LeakyRelu", "Sigmoid"])), [y], f"{name}_act")
        x = g.op("Add", [x, g.linear(y, 12, SIZE, f"{name}_down")], f"{name}_sum2")
    return g.finish(g.layer_norm(x, "last"))


@st.composite
def norms_in_parts(draw):
    """A normalization, or two, whose channels are told apart before weights or other nodes read them."""
    g = Blocks(draw(st.integers(0, 1000)))
    outputs = []
    for number in range(draw(st.integers(1, 2))):
        name = f"norm{number}"
        x = getattr(g, draw(st.sampled_from([*NORMS, "scaled"])))("x", name)
        for part in getattr(g, draw(st.sampled_from(["halves", "slices", "gathers"])))(x, name):
            reader = draw(st.sampled_from(["nothing", "Sigmoid", "weights", "weights", "other part"]))
            if reader == "Sigmoid":
                part = g.op("Sigmoid", [part], f"{part}_gate")
            elif reader == "other part" and outputs:
                part = g.op("Add", [part, outputs.pop()], f"{part}_sum")
            if reader == "weights":
                part = g.linear(part, SIZE // 2, SIZE // 2, f"{part}_layer")
            outputs += [part] if reader != "nothing" else []
        if draw(st.booleans()):
            outputs.append(g.linear(x, SIZE, SIZE // 2, f"{name}_whole"))
    outputs.append(g.linear("x", SIZE, SIZE // 2, "always"))
    return g.finish(g.op("Concat", outputs, "joined", axis=2))


def decoder(layers=2):
    """A transformer as language models have them."""
    g = Blocks()
    x = "x"
    for number in range(layers):
        name = f"layer{number}"
        q, k, v = g.separate(g.rms_norm(x, f"{name}_n1"), name, kv_heads=1)
        k = g.op("Mul", [k, g.vector(WIDTH)], f"{name}_k_scale")
        y = g.attention(g.rotated(q, f"{name}_q"), k, v, name, kv_heads=1)
        x = g.op("Add", [x, g.linear(y, SIZE, SIZE, f"{name}_projection", bias=False)], f"{name}_sum1")
        y = g.gated(g.rms_norm(x, f"{name}_n2"), 12, name, fused=number == 0)
        x = g.op("Add", [x, g.linear(y, 12, SIZE, f"{name}_down", bias=False)], f"{name}_sum2")
    return g.finish(g.linear(g.rms_norm(x, "last"), SIZE, 5, "head"))


def test_a_decoder():
    """Norms, values and gated channels are free; one key for all heads leaves as many classes as it has."""
    norms, keys, values, gated = 2 * SIZE, WIDTH, WIDTH, 12
    check(decoder(), samples(), 2 * (norms + keys + values + gated) + SIZE)


@pytest.mark.slow
@settings(max_examples=40)
@given(encoders(), st.integers(0, 100))
def test_any_factors_leave_any_encoder_as_it_is(model, seed):
    feed = samples()
    other, count = with_random_factors(model, followed(model, feed), seed)
    assert count >= 2 * SIZE
    assert_same(model, other, feed)


@settings(max_examples=60)
@given(norms_in_parts(), st.integers(0, 100))
def test_any_factors_leave_norms_in_parts_as_they_are(model, seed):
    feed = samples()
    channels = followed(model, feed)
    other, _ = with_random_factors(model, channels, seed)
    assert_same(model, other, feed)
    assert all(form.producers for form in find_forms(channels))


@pytest.mark.parametrize("form", ["hidden_by_the_lowest_number", "hidden_by_infinity"])
def test_attention_with_a_mask_of_run_time(form):
    """The product that restores zeros behind the attention multiplies all channels alike."""
    model = prepare(load_model(FORMS[form]())).graph_model
    feed = {"x": np.ones((2, 8, 32), np.float32), "mask": np.ones((2, 1, 1, 8), np.float32)}
    within, to = find_forms(followed(model, feed))
    assert within.producers == ("q_linear", "k_linear")
    assert to.producers == ("v_linear",) and [reading.node for reading in to.readings] == ["out_linear"]
