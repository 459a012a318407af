"""Label arrays."""

import numpy as np
import onnx_ir as ir

from trtint8.equalization.following.labels import along, compact, moved, placed, with_rank


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
    (found,) = moved(node, 17, {0: np.array([[1, 2], [1, 2], [1, 2]])}, {})
    np.testing.assert_array_equal(found, [[1], [2]])
