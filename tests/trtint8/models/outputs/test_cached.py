"""Outputs that hold what a network caches."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.trtint8.models.decoders import JOINED, WIDTH, decoder, whole_sequences
from trtint8.models.model import load_model, prepare
from trtint8.models.outputs.cached import cached_outputs, without_cached_outputs
from trtint8.models.session import open_graph_model

CONVERTED = f"""
    half = Cast <to = {TensorProto.FLOAT16}> (past_keys)
    k_half = Cast <to = {TensorProto.FLOAT16}> (k)
    joined = Concat <axis = 1> (half, k_half)
    keys = Cast <to = {TensorProto.FLOAT}> (joined)
"""


def graph_model(model):
    return load_model(model).graph_model


@pytest.mark.parametrize(
    ("keys", "further"),
    [
        (JOINED, ""),
        ("keys = Concat <axis = -2> (past_keys, k)", ""),
        (CONVERTED, ""),
        ("alone = Concat <axis = 1> (past_keys)\n keys = Concat <axis = 1> (alone, k)", ""),
        (JOINED, "length = Shape (past_keys)"),
    ],
    ids=["joined", "from the last axis", "converted", "joined with nothing before", "its shape is read"],
)
def test_an_input_with_something_added_is_cached(keys, further):
    model = decoder(keys, further)
    assert cached_outputs(graph_model(model)) == ("keys", "values")
    assert cached_outputs(prepare(load_model(model)).graph_model) == ("keys", "values")


def test_what_is_written_into_a_copy_of_an_input_is_cached():
    model = decoder("keys = ScatterND (past_keys, where, k)")
    where = np.array([[[0, 3], [0, 4]]])
    model.graph.initializer.append(onnx.numpy_helper.from_array(where, "where"))
    assert cached_outputs(graph_model(model)) == ("keys", "values")


@pytest.mark.parametrize(
    ("keys", "further", "past"),
    [
        (JOINED, "other = Relu (past_keys)", "P"),
        (JOINED, "", "5"),
        ("keys = Concat <axis = 1> (x, k)", "", "P"),
        ("both = Concat <axis = 1> (past_keys, k)\n keys = Relu (both)", "", "P"),
    ],
    ids=["something else reads it", "its size is fixed", "of another input that is read", "computed"],
)
def test_what_is_no_cache(keys, further, past):
    assert cached_outputs(graph_model(decoder(keys, further, past))) == ("values",)


def test_an_input_that_is_only_given_back_with_something_is_a_result():
    model = onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["": 17]>
    frames (float[N, T, 4] x, float[N, T, 4] before) => (float[N, U, 4] all, float[N, T, 4] y)
    {
        y = Relu (x)
        all = Concat <axis = 1> (before, y)
    }
    """)
    assert cached_outputs(graph_model(model)) == ()


def test_outputs_of_attention_are_cached():
    pasts = ("past_key", "past_value")
    shapes = {**dict.fromkeys("qkv", "S"), **dict.fromkeys(pasts, "P")}
    make = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node(
                "Attention", ["q", "k", "v", "", "past_key", "past_value"], ["y", "keys", "values"]
            )
        ],
        "attention",
        [make(name, TensorProto.FLOAT, ["N", 2, size, 4]) for name, size in shapes.items()],
        [make(name, TensorProto.FLOAT, ["N", 2, None, 4]) for name in ("y", "keys", "values")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    assert cached_outputs(graph_model(model)) == ("keys", "values")


def test_a_network_that_gives_nothing_else_is_compared_by_its_caches():
    model = decoder()
    del model.graph.output[0]
    assert cached_outputs(graph_model(model)) == ()


def test_without_its_caches_a_model_computes_the_same():
    model = graph_model(decoder(further="again = Relu (k)", given=", float[N, S, 8] again"))
    part = without_cached_outputs(model)
    assert [value.name for value in part.graph.outputs] == ["logits", "again"]
    assert [value.name for value in part.graph.inputs] == ["x", "past_keys", "past_values"]
    feed = whole_sequences(3)
    logits, again = open_graph_model(part).run(feed)
    wanted = open_graph_model(model).run(feed)
    assert np.array_equal(logits, wanted[0]) and np.array_equal(again, wanted[3])
    assert wanted[1].shape == (3, 10, WIDTH)


def test_a_network_that_caches_nothing_stays_as_it_is():
    plain = graph_model(decoder("keys = Concat <axis = 1> (x, k)"))
    del plain.graph.outputs[2]
    assert without_cached_outputs(plain) is plain
