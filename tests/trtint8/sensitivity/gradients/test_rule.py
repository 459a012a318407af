"""Gradients in the shape of the tensor that they belong to."""

import onnx_ir as ir
import pytest

from tests.trtint8.sensitivity.gradients.differences import network
from trtint8.models.graph_writer import GraphWriter, Term, static_shape
from trtint8.sensitivity.gradients.rule import (
    BATCH,
    NoGradientError,
    Step,
    batch_is_free,
    elements_per_sample,
    infer_shapes,
    normalized,
)


def step(inputs):
    model = network(inputs, "y = Add (x, z) where float[3, 1] z")
    infer_shapes(model)
    (node,) = model.graph
    gradient = ir.Value(name="d", type=ir.TensorType(ir.DataType.FLOAT))
    writer = GraphWriter(model.graph)
    return Step(writer, node, [Term(writer, gradient)], (0,))


def test_a_gradient_is_summed_only_where_the_input_was_broadcast():
    found = step("float[N, 3, 5] x")
    assert found.like(0, found.gradient) is found.gradient
    found = step("float[1, 5] x")
    assert found.like(0, found.gradient) is not found.gradient
    assert [node.op_type for node in found.writer.graph] == ["Add", "ReduceSum", "Shape", "Reshape"]


def test_what_a_node_says_of_itself():
    found = step("float[N, 3, 5] x")
    assert found.y.value.name == "y" and found.attributes == {}
    assert found.sizes(found.x, [1, 2]) == [3, 5]
    assert found.constant(1).shape == (3, 1)
    for ask, reason in (
        (lambda: found.sizes(found.x, [0]), "the shape of 'x' depends on the data"),
        (lambda: found.constant(0), "its input 0 is computed"),
        (lambda: found.input(2), "it has no input 2"),
    ):
        with pytest.raises(NoGradientError, match=f"Add 'y': {reason}"):
            ask()


def test_axes_are_counted_from_the_first():
    assert normalized([-1, 0], 3) == [2, 0]


#: A size that is not known.
OPEN = object()

#: An input whose nodes declare no shapes.
FIXED = "float[2, 3, 4] x"


@pytest.mark.parametrize(
    ("inputs", "text", "sizes", "shapes"),
    [
        (
            "float[N, 6] x",
            "split = Reshape (x, heads) turned = Transpose <perm = [1, 0, 2]> (split) "
            "y = Transpose <perm = [1, 0, 2]> (turned) where int64[3] heads = {-1, 2, 3}",
            None,
            [[BATCH, 2, 3], [2, BATCH, 3], [BATCH, 2, 3]],
        ),
        # As exporters write x.view(x.shape[0], -1, x.shape[1] // 2), and x.view(x.shape[0], -1).
        (
            "float[N, 6] x",
            "sizes = Shape (x) width = Gather <axis = 0> (sizes, one) half = Div (width, two) "
            "samples = Gather <axis = 0> (sizes, zero) to = Concat <axis = 0> (samples, rest, half) "
            "y = Reshape (x, to) where int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, "
            "int64[1] rest = {-1}",
            None,
            [[BATCH, 2, 3]],
        ),
        (
            FIXED,
            "sizes = Shape (x) samples = Gather <axis = 0> (sizes, zero) "
            "to = Concat <axis = 0> (samples, rest) flat = Reshape (x, to) y = Relu (flat) "
            "where int64[1] zero = {0}, int64[1] rest = {-1}",
            None,
            [[2, 12], [2, 12]],
        ),
        ("float[1, 6] x", "y = Relu (x)", None, [[1, 6]]),
        # A batch that some inputs fix and others leave open.
        ("float[N, 4, 3, 5] x, float[4, 5, 6] z", "y = MatMul (x, z)", None, [["N", 4, 3, 6]]),
        # As exporters write x.view(1, 3, -1).
        (
            "float[1, 3, h, w] x",
            "flat = Reshape (x, to) y = Relu (flat) where int64[3] to = {1, 3, -1}",
            {"x": (0, 3, 4, 5)},
            [[1, 3, 20], [1, 3, 20]],
        ),
        ("float[N, 3, h] x", "y = Relu (x)", None, [[BATCH, 3, OPEN]]),
        # What grows with the samples only in part.
        ("float[N, 2] x", "y = Concat <axis = 0> (x, more) where float[1, 2] more", None, [[None, 2]]),
    ],
)
def test_axes_of_samples_are_named_and_others_known(inputs, text, sizes, shapes):
    model = network(inputs, text)
    for node in model.graph if inputs == FIXED else ():
        node.outputs[0].shape = None
    infer_shapes(model, sizes)
    found = [static_shape(node.outputs[0]) for node in model.graph][-len(shapes) :]
    for own, wanted in zip(found, shapes, strict=True):
        known = [one for one, two in zip(own, wanted, strict=True) if two is not OPEN]
        assert known == [one for one in wanted if one is not OPEN]
        assert not any(isinstance(one, int) for one, two in zip(own, wanted, strict=True) if two is OPEN)


def test_a_fixed_batch_is_not_free():
    assert [batch_is_free(network(f"float[{size}, 6] x", "y = Relu (x)")) for size in "N1"] == [True, False]


def test_elements_per_sample_are_known_where_samples_are_flattened():
    text = (
        "flat = Reshape (x, tokens) pairs = Reshape (x, rows) turned = Transpose <perm = [1, 2, 0]> (x) "
        "y = Add (flat, flat) where int64[2] tokens = {-1, 6}, int64[2] rows = {-1, 2}"
    )
    model = network("float[N, 4, 6] x", text)
    infer_shapes(model)
    flat, pairs, turned, same = (static_shape(node.outputs[0]) for node in model.graph)
    assert flat == same != pairs and [flat[1], pairs[1]] == [6, 2] and turned == [4, 6, BATCH]
    assert [elements_per_sample(node.outputs[0]) for node in model.graph] == [24] * 4
    model = network("float[N, 3, h] x", "y = Relu (x)")  # at least that many
    infer_shapes(model)
    assert elements_per_sample(model.graph[0].outputs[0]) == 3
