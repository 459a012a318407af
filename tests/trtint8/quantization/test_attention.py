"""The forms of attention that are recognized, and which of them have an INT8 kernel."""

import dataclasses

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.trtint8.onnx_models import prepared_graph
from tests.trtint8.quantization.attention_models import FORMS, AttentionGraph, plain
from trtint8.quantization.attention import find_attentions, output_readers
from trtint8.quantization.targets import AttentionLimits

LIMITS = AttentionLimits()


def found(model):
    return find_attentions(prepared_graph(model))


@pytest.mark.parametrize("name", sorted(FORMS.keys() - {"returned_softmax"}))
def test_forms(name):
    (attention,) = found(FORMS[name]())
    assert [node.name for node in attention.nodes] == ["scores", "context"]
    assert (attention.queries, attention.keys, attention.head, attention.heads) == (8, 8, 16, 2)
    assert attention.guarded == (name == "guarded")
    assert (attention.obstacle(LIMITS) is None) == (name != "guarded")


@pytest.mark.parametrize("moves", [("Unsqueeze", "Squeeze"), ("Reshape", "Reshape")])
def test_shapes_may_change_between_the_softmax_and_the_values(moves):
    g = AttentionGraph()
    softmax = g.softmax(g.scores())
    for number, operator in enumerate(moves):
        sizes = [[0, 2, 1, 8, 8], [0, 2, 8, 8]][number] if operator == "Reshape" else [2]
        softmax = g.op(operator, [softmax, g.constant(np.array(sizes))], f"move{number}")
    (attention,) = found(g.finish(g.context(softmax)))
    assert attention.context.name == "context"


class _ComputedShapes(AttentionGraph):
    """As PyTorch exports open lengths: it computes the shape that the heads are cut to."""

    def split(self, source, name, perm=(0, 2, 1, 3), heads=None):
        linear = self.MatMul(f"{name}_linear", source, self.weights(self.width, self.width))
        sizes = [
            self.Shape(f"{name}_sizes", source, end=2),
            self.constant(np.array([heads or 2, self.head])),
        ]
        cut = self.Reshape(f"{name}_cut", linear, self.Concat(f"{name}_shape", *sizes, axis=0))
        return self.Transpose(f"{name}_heads", cut, perm=list(perm))


@pytest.mark.parametrize("head", [16, 8])
def test_channels_per_head_are_known_where_the_length_is_not(head):
    g = _ComputedShapes("length", head)
    attentions = found(g.finish(g.context(g.softmax(g.scores()))))
    # Heads of 8 channels have no kernel, whatever the length.
    assert [(one.head, one.keys) for one in attentions] == ([(16, None)] if head == 16 else [])


def test_a_softmax_that_others_read_is_not_fused():
    assert found(FORMS["returned_softmax"]()) == []


def test_keys_and_values_of_different_width_are_not_fused():
    g = AttentionGraph()
    values = g.values()
    values = g.Concat("wide", values, values, axis=3)
    model = g.model(g.inputs, g.Relu("relu", g.context(g.softmax(g.scores()), values)))
    assert found(model) == []


@pytest.mark.parametrize(("head", "count"), [(8, 0), (12, 1), (256, 1), (264, 0)])
def test_heads_that_no_kernel_has_are_no_attention(head, count):
    assert len(found(plain(head=head))) == count


def test_a_classifier_is_no_attention():
    g = AttentionGraph()
    scores = g.MatMul("linear", "x", g.weights(g.width, 8))
    assert found(g.model(g.inputs, g.MatMul("next", g.softmax(scores), g.weights(8, 4)))) == []


def test_a_softmax_along_another_axis_is_no_attention():
    g = AttentionGraph()
    softmax = g.Softmax("softmax", g.scores(), axis=1)
    assert found(g.finish(g.context(softmax))) == []


def test_queries_and_keys_of_different_numbers():
    (attention,) = found(plain(length=8, keys=24))
    assert (attention.queries, attention.keys) == (8, 24)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"head": 64, "keys": 512, "queries": 512}, None),
        ({"head": 48}, "it has 48 channels per head, and INT8 takes 16, 32 or 64"),
        ({"head": None}, "its number of channels per head is not known"),
        ({"keys": 513}, "it has 513 keys, and INT8 takes at most 512"),
        ({"queries": 513}, "it has 513 queries, and INT8 takes at most 512"),
        (
            {"keys": None},
            "its number of keys is not fixed, and INT8 takes at most 512: fix it in the model, or build the "
            "float model with a profile",
        ),
        ({"guarded": True}, "a Where replaces NaN behind its softmax"),
        ({"heads": 1}, None),
    ],
)
def test_limits(sizes, reason):
    (attention,) = found(plain())
    assert dataclasses.replace(attention, **sizes).obstacle(LIMITS) == reason


def test_limits_of_some_targets():
    (attention,) = found(plain())
    assert attention.obstacle(None) == "this target has no fused attention in INT8"
    single = dataclasses.replace(attention, heads=1, queries=4096)
    any_queries = AttentionLimits(longest_queries=None)
    assert single.obstacle(any_queries) is None
    several = AttentionLimits(longest_queries=None, several_heads=True)
    assert single.obstacle(several) == "it has one head, and INT8 takes two or more"


def test_readers_of_the_output_leave_out_its_shape():
    g = AttentionGraph()
    context = g.context(g.softmax(g.scores()))
    g.Shape("shape", context)
    size = g.Cast("size", "shape_out", to=1)
    total = g.ReduceSum("total", size, keepdims=0)
    model = g.model(g.inputs, g.Mul("times", g.out(context), total))
    (attention,) = found(model)
    assert [(node.name, index) for node, index in output_readers(attention)] == [("turn", 0)]


def test_a_long_chain_of_masks():
    """Longer than Python's limit of calls within calls."""
    nodes = [helper.make_node("Add", [f"a{i - 1}" if i else "x", "y"], [f"a{i}"]) for i in range(2000)]
    nodes.append(helper.make_node("Softmax", ["a1999"], ["s"], axis=-1))
    nodes.append(helper.make_node("MatMul", ["s", "x"], ["o"]))
    x, y, o = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 16, 16]) for name in "xyo")
    model = helper.make_model(helper.make_graph(nodes, "g", [x, y], [o]), ir_version=8)
    assert find_attentions(prepared_graph(model)) == []


@pytest.mark.parametrize(
    ("samples", "heads", "length", "kept"),
    [("N", 3, 1, True), ("N", 4, 1, False), (2, 2, 1, False), (1, 3, 1, True), ("N", 4, 2, True)],
)
def test_one_query_of_many_heads(samples, heads, length, kept):
    model = plain(length=length, keys=50, heads=heads)
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].ClearField("dim_param")
        if samples != "N":
            value.type.tensor_type.shape.dim[0].dim_value = samples
    (attention,) = found(model)
    reason = "it has one query, and INT8 takes that with at most 3 heads"
    assert attention.obstacle(dataclasses.replace(LIMITS, most_vectors=3)) == (None if kept else reason)
    assert attention.obstacle(LIMITS) is None
