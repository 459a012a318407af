"""What data loaders yield."""

import numpy as np
import pytest

from calibrators.data.feeds import Binding, are_numbers, as_array, named_arrays
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError
from tests.calibrators.specs import floats, integers

ONE = Binding((floats("x", "n", 3),))
TWO = Binding((integers("ids", "n", 4), integers("mask", "n", 4)))
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


IDS, MASK = np.zeros((4, 4), np.int64), np.ones((4, 4), np.int64)
BOTH = Binding((*ONE.inputs, integers("labels", "n")))


@pytest.mark.parametrize(
    ("item", "binding", "expected"),
    [
        *((item, ONE, {"x": X}) for item in (X, Tensor(X), (X,), [Tensor(X)], {"x": X}, {"x": Tensor(X)})),
        *(
            (item, ONE, {"x": X, "labels": LABELS})
            for item in ((X, LABELS), [Tensor(X), Tensor(LABELS)], {"x": X, "labels": LABELS})
        ),
        ((IDS, MASK), TWO, {"ids": IDS, "mask": MASK}),
        ((IDS, MASK, LABELS), TWO, {"ids": IDS, "mask": MASK, "labels": LABELS}),
        ((X, LABELS), BOTH, {"x": X, "labels": LABELS}),
        # Inputs that stand together before the labels.
        *(
            ((inputs, LABELS), TWO, {"ids": X, "mask": X, "labels": LABELS})
            for inputs in ({"ids": X, "mask": X}, (X, X), [X, X])
        ),
        # Names that are no inputs are left out where all inputs are there.
        (
            {"ids": IDS, "mask": MASK, "special_tokens_mask": MASK, "label": LABELS},
            TWO,
            {"ids": IDS, "mask": MASK, "labels": LABELS},
        ),
        # Where one is missing, the others may be it by another name, and the message that follows has them.
        ({"ids": IDS, "attention_mask": MASK}, TWO, {"ids": IDS, "attention_mask": MASK}),
    ],
)
def test_which_array_goes_into_which_input(item, binding, expected):
    found = named_arrays(item, binding)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    ("item", "binding", "named"),
    [
        ((X, X, X), ONE, r"tuple of 3 .*1 inputs \(x\)"),
        ((X, LABELS, LABELS), BOTH, "tuple of 3 .*2 inputs"),
        ([], ONE, "list of 0"),
        ("abc", ONE, "is a str"),
        (X, TWO, "an array .*2"),
        (Tensor(None), ONE, "Got unsupported ScalarType BFloat16"),
    ],
)
def test_what_does_not_fit_is_refused(item, binding, named):
    with pytest.raises(CalibrationDataError, match=named):
        named_arrays(item, binding)


def test_images_become_arrays():
    image = pytest.importorskip("PIL.Image").new("RGB", (3, 2), (1, 2, 3))
    assert as_array(image).tolist() == [[[1, 2, 3]] * 3] * 2


def test_which_labels_are_numbers():
    assert all(map(are_numbers, (LABELS, 3, [1.5])))
    assert not any(map(are_numbers, (None, "a", [{}], [[1], [1, 2]])))
    boxes = [{"boxes": [1, 2]}]
    assert as_array(boxes) is boxes


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
    with pytest.raises(CalibrationDataError, match=r"item 0 .*labels has 3 .*4"):
        labelled([(X, LABELS[:3])])
    with pytest.raises(CalibrationDataError, match="some items"):
        labelled([(X, LABELS), (X,)], batch_size=3)
