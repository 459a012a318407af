"""What data loaders yield."""

import numpy as np
import pytest

from calibrators.data.feeds import Binding, are_numbers, as_array, named_arrays
from calibrators.data.inputs import InputSpec
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError

ONE = Binding((InputSpec("x", np.dtype(np.float32), ("n", 3)),))
TWO = Binding(
    (InputSpec("ids", np.dtype(np.int64), ("n", 4)), InputSpec("mask", np.dtype(np.int64), ("n", 4)))
)
X = np.arange(12, dtype=np.float32).reshape(4, 3)
LABELS = np.array([3, 1, 2, 0])


class Tensor:
    """Behaves as PyTorch's tensors do that are on a GPU and need gradients."""

    def __init__(self, values, steps=()):
        self._values, self._steps = values, steps

    def detach(self):
        return Tensor(self._values, (*self._steps, "detach"))

    def cpu(self):
        return Tensor(self._values, (*self._steps, "cpu"))

    def numpy(self):
        if self._steps != ("detach", "cpu"):
            raise RuntimeError("it is on a GPU and needs gradients")
        if self._values is None:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self._values

    def __array__(self, *_args, **_keywords):
        raise RuntimeError("it is on a GPU")


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("item", [X, Tensor(X), (X,), [Tensor(X)], {"x": X}, {"x": Tensor(X)}])
def test_one_input(item):
    same(named_arrays(item, ONE), {"x": X})


@pytest.mark.parametrize("item", [(X, LABELS), [Tensor(X), Tensor(LABELS)], {"x": X, "labels": LABELS}])
def test_labels_come_after_the_inputs(item):
    same(named_arrays(item, ONE), {"x": X, "labels": LABELS})


def test_several_inputs_come_in_the_models_order():
    ids, mask = np.zeros((4, 4), np.int64), np.ones((4, 4), np.int64)
    same(named_arrays((ids, mask), TWO), {"ids": ids, "mask": mask})
    same(named_arrays((ids, mask, LABELS), TWO), {"ids": ids, "mask": mask, "labels": LABELS})


def test_an_input_called_labels_is_fed():
    both = Binding((*ONE.inputs, InputSpec("labels", np.dtype(np.int64), ("n",))))
    same(named_arrays((X, LABELS), both), {"x": X, "labels": LABELS})
    with pytest.raises(CalibrationDataError, match="a tuple of 3 does not fit the model's 2 inputs"):
        named_arrays((X, LABELS, LABELS), both)


@pytest.mark.parametrize(
    ("item", "binding", "message"),
    [
        ((X, X, X), ONE, r"a tuple of 3 does not fit the model's 1 inputs \(x\); an array for each"),
        ([], ONE, "a list of 0 does not fit"),
        ("abc", ONE, "it is a str; yield arrays, tuples of arrays, or dicts"),
        (X, TWO, "an array names no input and the model has 2"),
        (Tensor(None), ONE, "a tensor does not become a NumPy array: Got unsupported ScalarType BFloat16"),
    ],
)
def test_what_does_not_fit_is_refused(item, binding, message):
    with pytest.raises(CalibrationDataError, match=message):
        named_arrays(item, binding)


def test_names_that_are_no_inputs_are_left_out_where_all_inputs_are_there():
    ids, mask = np.zeros((4, 4), np.int64), np.ones((4, 4), np.int64)
    tokens = {"ids": ids, "mask": mask, "special_tokens_mask": mask, "label": LABELS}
    same(named_arrays(tokens, TWO), {"ids": ids, "mask": mask, "labels": LABELS})
    # Where one is missing, the others may be it by another name, and the message that follows has them.
    assert named_arrays({"ids": ids, "attention_mask": mask}, TWO).keys() == {"ids", "attention_mask"}


@pytest.mark.parametrize("inputs", [{"ids": X, "mask": X}, (X, X), [X, X]])
def test_inputs_that_stand_together_before_the_labels(inputs):
    same(named_arrays((inputs, LABELS), TWO), {"ids": X, "mask": X, "labels": LABELS})


def test_images_become_arrays():
    image = pytest.importorskip("PIL.Image").new("RGB", (3, 2), (1, 2, 3))
    assert as_array(image).tolist() == [[[1, 2, 3]] * 3] * 2


def test_which_labels_are_numbers():
    assert [are_numbers(labels) for labels in (LABELS, 3, [1.5], None, "a", [{}], [[1], [1, 2]])] == [
        *[True] * 3,
        *[False] * 4,
    ]


class TestPyTorch:
    """With tensors of PyTorch itself."""

    @pytest.fixture(autouse=True)
    def torch(self):
        self.torch = pytest.importorskip("torch")

    def test_tensors_become_arrays(self):
        x = self.torch.from_numpy(X.copy())
        for tensor in (x, x.T.contiguous().T, x.clone().requires_grad_(), self.torch._neg_view(-x)):
            np.testing.assert_array_equal(as_array(tensor), X)

    @pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
    def test_types_that_numpy_has_from_ml_dtypes(self, name):
        array = as_array(self.torch.tensor([[1.5, -2.0], [0.25, 0.0]]).to(getattr(self.torch, name)).T)
        assert array.dtype.name == name
        assert array.astype(np.float32).tolist() == [[1.5, 0.25], [-2.0, 0.0]]

    def test_tensors_without_values_are_refused(self):
        x = self.torch.from_numpy(X)
        for tensor, reason in ((x.to("meta"), "no data; yield dense"), (x.to_sparse(), "to_dense")):
            with pytest.raises(CalibrationDataError, match=f"a tensor does not become .*{reason}"):
                as_array(tensor)


def test_other_values_stay_as_they_are():
    boxes = [{"boxes": [1, 2]}]
    assert as_array(boxes) is boxes


def labelled(data, **options):
    batches = open_batches(data, ONE.inputs, **options)
    return [
        (one.feed["x"].tolist(), None if one.labels is None else one.labels.tolist())
        for one in batches.labelled()
    ]


def test_labels_of_a_loader_travel_with_its_samples():
    loader = [(Tensor(X[:3]), Tensor(LABELS[:3])), (Tensor(X[3:]), Tensor(LABELS[3:]))]
    assert labelled(loader) == [(X[:3].tolist(), [3, 1, 2]), (X[3:].tolist(), [0])]
    assert labelled(loader, batch_size=2) == [(X[:2].tolist(), [3, 1]), (X[2:].tolist(), [2, 0])]
    assert labelled(loader, limit=2) == [(X[:2].tolist(), [3, 1])]
    # Given labels replace them.
    assert labelled(loader, labels=[7, 7, 7, 7])[0][1] == [7, 7, 7, 7]
    assert next(iter(open_batches(loader, ONE.inputs))).keys() == {"x"}


def test_labels_that_are_no_numbers_are_left_out():
    assert labelled([(X, [{"boxes": [1, 2]}] * 4)]) == [(X.tolist(), None)]
    assert labelled([(X, [[1], [1, 2], [], []])]) == [(X.tolist(), None)]


def test_labels_of_some_samples_only_are_refused():
    with pytest.raises(
        CalibrationDataError, match="item 0 of the data: labels has 3 entries but the data has 4"
    ):
        labelled([(X, LABELS[:3])])
    with pytest.raises(
        CalibrationDataError, match="some items of the data come with labels and others without"
    ):
        labelled([(X, LABELS), (X,)], batch_size=3)
