"""Where channels end."""

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper

from tests.trtint8.equalization.transformers import SIZE, TOKENS, Blocks, check, followed, samples
from tests.trtint8.onnx_models import normal, parsed
from tests.trtint8.tuning.networks import prepared
from trtint8.equalization.following.labelling import (
    FIXED,
    ChannelClasses,
    Reading,
    along,
    compact,
    moved,
    placed,
    with_rank,
)


def test_a_subgraph_that_reads_channels_leaves_them_alone():
    body = """[up] u = MatMul (x, v) c = If (yes) <
        then_branch = t () => (float[] t) { t = Exp (u) }, else_branch = e () => (float[] e) { e = Exp (u) }>
        [down] d = MatMul (u, w) y = Add (d, c)"""
    weights = {"v": normal(SIZE, 12), "w": normal(12, 12), "yes": np.array(True)}
    channels = followed(prepared(parsed(f"float[N, 3, {SIZE}] x", "float[] y", body, **weights)), samples())
    assert (channels.representatives == 0).all()


def test_an_output_of_the_model_keeps_its_values():
    g = Blocks()
    up = g.op("Relu", [g.linear("x", SIZE, 12, "up")], "relu")
    model = g.model({"x": [2, TOKENS, SIZE]}, g.linear(up, 12, SIZE, "down"))
    model.graph.output.append(helper.make_tensor_value_info(up, TensorProto.FLOAT, [2, TOKENS, 12]))
    channels = check(prepared(model), samples(), 0)
    assert channels.skipped["up"] == "'relu_out' is an output of the model"


def test_labels_of_tensors_by_name():
    g = Blocks()
    up = g.op("Relu", [g.linear("x", SIZE, 12, "up")], "relu")
    model = g.finish(g.linear(up, 12, SIZE, "down"))
    channels = followed(model, samples())
    (up,) = (one for one in channels.producers if one.node == "up")
    assert up.tensor == "up_bias_out" and up.labels.shape == (1, 1, 12)
    np.testing.assert_array_equal(channels.tensors["relu_out"], up.labels)


def test_axes_of_equal_labels_become_one():
    labels = np.array([[[1], [2]], [[1], [2]]])
    np.testing.assert_array_equal(compact(labels), [[[1], [2]]])
    assert compact(np.zeros((0, 3), np.int64)).shape == (0, 1)


def test_labels_along_an_axis():
    labels = np.array([[[1], [2]]])
    np.testing.assert_array_equal(along(labels, 1, 2), [1, 2])
    np.testing.assert_array_equal(along(labels, -2, 2), [1, 2])
    assert along(labels, -1, 3) is None
    np.testing.assert_array_equal(along(np.array([[[7]]]), -1, 3), [7, 7, 7])


def test_a_vector_is_placed_on_an_axis():
    assert placed(np.arange(5), 4, 1).shape == (1, 5, 1, 1)
    assert with_rank(np.ones((2, 1), np.int64), 4).shape == (1, 1, 2, 1)


def test_a_transpose_moves_labels():
    values = [ir.Value(name="x"), ir.Value(name="y")]
    node = ir.Node("", "Transpose", values[:1], [ir.AttrInt64s("perm", [1, 0])], outputs=values[1:])
    (found,) = moved(node, 17, {0: np.array([[1, 2], [1, 2], [1, 2]])})
    np.testing.assert_array_equal(found, [[1], [2]])


def test_the_channels_of_a_reading_are_a_vector():
    reading = Reading("layer", "x", np.arange(3).reshape(1, 3, 1))
    np.testing.assert_array_equal(reading.channels, [0, 1, 2])


def ids(*numbers):
    return np.array(numbers, np.int64)


def test_new_channels_have_factors_of_their_own():
    classes = ChannelClasses()
    np.testing.assert_array_equal(classes.add(2), [1, 2])
    np.testing.assert_array_equal(classes.add(1), [3])
    assert len(classes) == 4
    assert [classes.find(channel) for channel in range(4)] == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_ties_and_their_powers_follow_one_another():
    classes = ChannelClasses()
    a, b, c = classes.add(3)
    classes.tie(ids(a), ids(b), -1, "")
    classes.tie(ids(b), ids(c), -1, "")
    representatives, powers = classes.representatives()
    assert len(set(representatives[[a, b, c]])) == 1
    assert powers[a] == powers[c] == -powers[b]


def test_a_channel_that_would_be_its_own_reciprocal_is_fixed():
    classes = ChannelClasses()
    a, b = classes.add(2)
    classes.tie(ids(a), ids(b), 1, "")
    classes.tie(ids(a), ids(b), -1, "both")
    assert classes.are_fixed(ids(a, b)).all()
    assert classes.reason(int(a)) == classes.reason(int(b)) == "both"


def test_fixing_reaches_the_class_and_keeps_the_first_reason():
    classes = ChannelClasses()
    a, b, c = classes.add(3)
    classes.tie(ids(a), ids(b), -1, "")
    classes.fix(ids(a), "first")
    classes.fix(ids(b), "second")
    np.testing.assert_array_equal(classes.are_fixed(ids(FIXED, a, b, c)), [True, True, True, False])
    assert classes.reason(int(b)) == "first"
    assert classes.reason(int(c)) == ""


def test_a_tie_to_a_fixed_channel_fixes():
    classes = ChannelClasses()
    (a,) = classes.add(1)
    classes.tie(ids([a], [a]), ids(FIXED), 1, "reason")
    assert classes.are_fixed(a) and classes.reason(int(a)) == "reason"
