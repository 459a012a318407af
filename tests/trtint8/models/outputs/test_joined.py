"""Outputs in which several quantities are joined."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.trtint8.detectors import BOXES, CLASSES, SCORES, Detector, detector
from tests.trtint8.models.decoders import JOINED, decoder, whole_sequences
from tests.trtint8.models.decoders import WIDTH as CACHED_WIDTH
from tests.trtint8.onnx_models import normal, parsed
from trtint8.models.model import load_model, prepare
from trtint8.models.outputs.joined import (
    OutputPart,
    cached_outputs,
    compared_tensors,
    giving,
    output_parts,
    split_outputs,
)
from trtint8.models.session import open_graph_model

IMAGES, PIXELS = {"images": ["N", 3, 8, 8]}, "[N, 3, 8, 8]"
WIDTH = 4 + CLASSES


def names(model):
    return [part.name for part in output_parts(load_model(model).graph_model)]


def joined(g, axis=1):
    return g.op("Concat", list(g.level("one")), "joined", axis=axis)


def test_boxes_and_scores_are_two_parts():
    model, bare = load_model(detector()), detector()
    parts = output_parts(model.graph_model)
    assert [part.name for part in parts] == [BOXES, SCORES] == names(detector("S"))
    assert {part.output for part in parts} == {"joined_out"}
    output = np.arange(2 * WIDTH * 64).reshape(2, WIDTH, 64)
    found = split_outputs(parts, {"joined_out": output, "other": output})
    assert list(found) == [BOXES, SCORES]
    np.testing.assert_array_equal(found[BOXES], output[:, :4])
    np.testing.assert_array_equal(found[SCORES], output[:, 4:])
    assert output_parts(prepare(model).graph_model) == parts
    # Sizes that the model does not say are inferred, and it is not changed.
    del bare.graph.value_info[:]
    graph_model = load_model(bare).graph_model
    assert output_parts(graph_model) == parts
    assert all(node.outputs[0].shape is None for node in list(graph_model.graph)[:-1])


@pytest.mark.parametrize("stale", [(WIDTH - 1, 4), (CLASSES, 4)])
def test_sizes_that_are_left_over_from_an_edit_are_not_believed(stale):
    """Of other numbers of channels, which may even have the right sum."""
    model = detector()
    concat = next(node for node in model.graph.node if node.op_type == "Concat")
    kept = [value for value in model.graph.value_info if value.name not in concat.input]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    for name, channels in zip(concat.input, stale, strict=True):
        shape = ["N", channels, 8, 8]
        model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    assert names(model) == [BOXES, SCORES]


@pytest.mark.parametrize(
    ("permutation", "name"),
    [
        ([0, 2, 3, 1], "turned_out[..., 0:4]"),
        ([0, 2, 1, 3], "turned_out[:, :, 0:4]"),
        ([0, 1, 3, 2], "turned_out[:, 0:4]"),
    ],
)
def test_parts_follow_a_transposition(permutation, name):
    g = Detector()
    model = g.model(IMAGES, g.op("Transpose", [joined(g)], "turned", perm=permutation))
    assert names(model)[0] == name


def test_parts_of_levels_are_parts_of_the_output():
    g = Detector()
    levels = []
    for name, stride in (("fine", 1), ("coarse", 2)):
        both = g.op("Concat", list(g.level(name, stride=stride)), f"{name}_joined", axis=1)
        levels.append(g.flat(both, WIDTH, f"{name}_flat"))
    together = g.op("Concat", levels, "levels", axis=2)
    output = g.op("Transpose", [together], "rows", perm=[0, 2, 1])
    assert names(g.model(IMAGES, output)) == ["rows_out[..., 0:4]", f"rows_out[..., 4:{WIDTH}]"]


def levels_of_one_quantity(g):
    levels = [g.flat(g.level(name)[0], 4, f"{name}_flat") for name in ("fine", "coarse")]
    return g.op("Concat", levels, "levels", axis=2)


def rows_of_scores(g):
    rows = [g.op("Flatten", [tensor], f"{tensor}_flat") for tensor in g.level("one")]
    heads = [g.op("Relu", [row], f"{row}_relu") for row in rows]
    return g.op("Concat", heads, "heads", axis=1)


@pytest.mark.parametrize(
    "build",
    [
        levels_of_one_quantity,
        lambda g: g.op("Reshape", [joined(g), g.constant(np.int64([0, -1, 4]))], "mixed"),
        lambda g: g.op("Concat", ["images", "images"], "samples", axis=0),
        rows_of_scores,
    ],
    ids=["levels", "mixed by a reshaping", "samples", "rows of scores"],
)
def test_what_is_no_join_of_quantities_is_one_part(build):
    g = Detector()
    output = build(g)
    assert names(g.model(IMAGES, output)) == [output]


@pytest.mark.parametrize("count", [8, 9])
def test_a_join_of_many_is_one_part(count):
    names_of = [f"c{number}" for number in range(count)]
    body = " ".join(f"{name} = Conv (images, w)" for name in names_of)
    body += f" y = Concat <axis = 1> ({', '.join(names_of)})"
    found = names(parsed(f"float{PIXELS} images", "float[a, b, c, d] y", body, w=normal(2, 3, 1, 1)))
    assert len(found) == (8 if count == 8 else 1)


def test_a_whole_output_stays_as_it_is():
    ends = f"float{PIXELS} images", f"float[] y, float{PIXELS} images"
    parts = output_parts(graph_model(parsed(*ends, "y = Conv (images, w)", w=normal(2, 3, 1, 1))))
    assert parts == (OutputPart("y", "y"), OutputPart("images", "images"))
    array = np.ones((1, 2, 8, 8))
    assert parts[0].of(array) is array


CONVERTED = f"""
    half = Cast <to = {TensorProto.FLOAT16}> (past_keys)
    k_half = Cast <to = {TensorProto.FLOAT16}> (k)
    joined = Concat <axis = 1> (half, k_half)
    keys = Cast <to = {TensorProto.FLOAT}> (joined)
"""


def graph_model(model):
    return load_model(model).graph_model


#: What puts the keys of a step at a place of a cache of fixed length, or moves it along.
WITHIN = {
    "before": "keys = Concat <axis = 1> (k, past_keys)",
    "along the last axis": """
        turned_past = Transpose <perm = [0, 2, 1]> (past_keys)
        turned_k = Transpose <perm = [0, 2, 1]> (k)
        turned_keys = Concat <axis = 2> (turned_past, turned_k)
        keys = Transpose <perm = [0, 2, 1]> (turned_keys)
    """,
    "moved along": """
        one = Constant <value = int64[1] {1}> ()
        last = Constant <value = int64[1] {99}> ()
        later = Slice (past_keys, one, last, one)
        keys = Concat <axis = 1> (later, k)
    """,
    "between": """
        zero = Constant <value = int64[1] {0}> ()
        two = Constant <value = int64[1] {2}> ()
        three = Constant <value = int64[1] {3}> ()
        last = Constant <value = int64[1] {99}> ()
        one = Constant <value = int64[1] {1}> ()
        ahead = Slice (past_keys, zero, two, one)
        behind = Slice (past_keys, three, last, one)
        keys = Concat <axis = 1> (ahead, k, behind)
    """,
    "where it is its turn": """
        here = Constant <value = bool[5, 1] {0, 0, 1, 0, 0}> ()
        keys = Where (here, k, past_keys)
    """,
    "elements": """
        zeros = Shape <start = 0, end = 3> (k)
        zero = Constant <value = int64[1] {0}> ()
        places = Expand (zero, zeros)
        keys = ScatterElements <axis = 1> (past_keys, places, k)
    """,
}


@pytest.mark.parametrize("keys", [JOINED, *WITHIN.values()], ids=["behind", *WITHIN])
def test_an_input_of_fixed_size_with_something_added_is_cached(keys):
    model = graph_model(decoder(keys, past="5"))
    assert cached_outputs(model) == ("keys", "values")
    (layer,) = (value.producer().name for value in model.graph.outputs if value.name == "logits")
    assert compared_tensors(model, [layer]) == ("logits",)


@pytest.mark.parametrize(
    ("body", "compared"),
    [
        ("part = Concat <axis = 1> (x, y)", ("y",)),
        ("half = Slice (y, zero, one, zero) part = Concat <axis = 1> (x, half)", ("y", "half")),
        ("part = Where (here, y, x)", ("y",)),
        ("both = Concat <axis = 1> (x, y) part = Transpose <perm = [0, 2, 1]> (both)", ("y",)),
        ("negative = Neg (x) part = Concat <axis = 1> (negative, negative)", ("y",)),
        ("picked = Greater (y, x) part = Where (picked, x, x)", ("y", "part")),
        ("part = Concat <axis = 1> (y, y)", ("y", "part")),
        ("part = Add (x, y)", ("y", "part")),
    ],
    ids=["joined", "a slice", "chosen", "turned", "exact", "which is computed", "all of it", "added to"],
)
def test_what_int8_cannot_change_is_not_compared(body, compared):
    """And what is joined to it is compared by itself, as it is computed."""
    constants = "zero = Constant <value = int64[1] {0}> () one = Constant <value = int64[1] {1}> ()"
    constants += "here = Constant <value = bool[4] {0, 1, 1, 1}> ()"
    body = f"{constants} y = MatMul (x, x) {body}"
    model = prepare(load_model(parsed("float[N, 4, 4] x", "float[N, 4, 4] y, float[N, ?, ?] part", body)))
    (layer,) = (node.name for node in model.graph_model.graph if node.op_type == "MatMul")
    assert compared_tensors(model.graph_model, [layer]) == compared


@pytest.mark.parametrize(
    ("keys", "further"),
    [
        (JOINED, ""),
        ("keys = Concat <axis = -2> (past_keys, k)", ""),
        (CONVERTED, ""),
        ("alone = Concat <axis = 1> (past_keys)\n keys = Concat <axis = 1> (alone, k)", ""),
        (JOINED, "length = Shape (past_keys)"),
        (
            """where = Constant <value = int64[1, 2, 2] {0, 3, 0, 4}> ()
            keys = ScatterND (past_keys, where, k)""",
            "",
        ),
    ],
    ids=[
        "joined",
        "from the last axis",
        "converted",
        "joined with nothing before",
        "its shape is read",
        "written into a copy",
    ],
)
def test_an_input_with_something_added_is_cached(keys, further):
    model = decoder(keys, further)
    assert cached_outputs(graph_model(model)) == ("keys", "values")
    assert cached_outputs(prepare(load_model(model)).graph_model) == ("keys", "values")
    # A network that gives nothing else is compared by its caches.
    del model.graph.output[0]
    assert cached_outputs(graph_model(model)) == ()


@pytest.mark.parametrize(
    ("keys", "further", "past"),
    [
        (JOINED, "other = Relu (past_keys)", "P"),
        (JOINED, "half = Cast <to = 10> (past_keys)\n other = Relu (half)", "P"),
        ("keys = Concat <axis = 1> (x, k)", "", "P"),
        ("before = MatMul (past_keys, Wk)\n keys = Concat <axis = 1> (past_keys, before)", "", "P"),
        ("both = Concat <axis = 1> (past_keys, k)\n keys = Relu (both)", "", "P"),
    ],
    ids=[
        "something else reads it",
        "something else reads a copy",
        "of another input that is read",
        "what is added reads it",
        "computed",
    ],
)
def test_what_is_no_cache(keys, further, past):
    assert cached_outputs(graph_model(decoder(keys, further, past))) == ("values",)


def test_outputs_of_attention_are_cached_and_inputs_that_are_only_given_back_are_not():
    frames = "float[N, T, 4] x, float[N, T, 4] before", "float[N, U, 4] all, float[N, T, 4] y"
    body = "y = Relu (x) all = Concat <axis = 1> (before, y)"
    assert cached_outputs(graph_model(parsed(*frames, body))) == ()
    shapes = {**dict.fromkeys("qkv", "S"), "past_key": "P", "past_value": "P"}
    attention = parsed(
        ", ".join(f"float[N, 2, {size}, 4] {name}" for name, size in shapes.items()),
        ", ".join(f"float[N, 2, ?, 4] {name}" for name in ("y", "keys", "values")),
        "y, keys, values = Attention (q, k, v, , past_key, past_value)",
        opset=23,
        ir_version=10,
    )
    assert cached_outputs(graph_model(attention)) == ("keys", "values")


def test_a_model_that_gives_some_of_its_tensors_computes_the_same():
    model = graph_model(decoder(further="again = Relu (k)", given=", float[N, S, 8] again"))
    part = giving(model, ["logits", "again"])
    assert [value.name for value in part.graph.outputs] == ["logits", "again"]
    assert [value.name for value in part.graph.inputs] == ["x", "past_keys", "past_values"]
    feed = whole_sequences(3)
    logits, again = open_graph_model(part).run(feed)
    wanted = open_graph_model(model).run(feed)
    assert np.array_equal(logits, wanted[0]) and np.array_equal(again, wanted[3])
    assert wanted[1].shape == (3, 10, CACHED_WIDTH)
    assert giving(model, [value.name for value in model.graph.outputs]) is model
