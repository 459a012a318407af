"""Datasets that give one sample per index, and rows of Hugging Face's."""

import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from calibrators.data.feeds import Binding
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.opening import open_batches
from calibrators.data.sources.datasets import sample_arrays
from calibrators.data.sources.streams import has_columns, is_indexed
from calibrators.errors import CalibrationDataError
from tests.calibrators.specs import floats, integers

X = np.arange(30, dtype=np.float32).reshape(5, 2, 3)
ONE = (floats("x", "n", 2, 3),)
TWO = (*ONE, integers("ids", "n"))


class Rows:
    """Behaves as datasets of Hugging Face do: lists, until a format is set."""

    def __init__(self, columns, kind=None):
        self._columns, self.format = columns, {"type": kind}

    @property
    def column_names(self):
        return list(self._columns)

    def __len__(self):
        return len(next(iter(self._columns.values())))

    def __getitem__(self, index):
        row = {name: values[index] for name, values in self._columns.items()}
        if self.format["type"] == "numpy":
            return {name: np.asarray(value) for name, value in row.items()}
        return (
            row if self.format["type"] else {name: np.asarray(value).tolist() for name, value in row.items()}
        )

    def with_format(self, kind):
        return Rows(self._columns, kind)


class StreamedRows:
    """Behaves as streamed datasets of Hugging Face do: they have no length."""

    def __init__(self, rows):
        self._rows, self.column_names = rows, rows.column_names

    def __iter__(self):
        return map(self._rows.__getitem__, range(len(self._rows)))

    def with_format(self, kind):
        return StreamedRows(self._rows.with_format(kind))


def read(data, inputs=ONE, **options):
    return [
        (one.feed["x"].tolist(), None if one.labels is None else one.labels.tolist())
        for one in open_batches(data, inputs, **options).labelled()
    ]


def test_what_is_a_dataset_of_samples():
    assert is_indexed(Rows({"x": X}))
    assert has_columns(StreamedRows(Rows({"x": X})))
    for other in (StreamedRows(Rows({"x": X})), [X], {"x": X}, X, lambda: [X]):
        assert not is_indexed(other)


def test_columns_become_batches_with_their_labels():
    labels = [4, 3, 2, 1, 0]
    expected = [(X[:2].tolist(), [4, 3]), (X[2:4].tolist(), [2, 1]), (X[4:].tolist(), [0])]
    for key in ("label", "labels"):
        rows = Rows({"x": X, key: labels})
        assert read(rows, batch_size=2) == expected
        assert read(StreamedRows(rows), batch_size=2) == expected
    batches = open_batches(Rows({"x": X, "label": labels}), ONE)
    assert (batches.num_samples, batches.batch_size) == (5, 32)
    # Given labels replace them, and reading is possible in another process.
    assert read(rows, labels=[7] * 5)[0][1] == [7] * 5
    assert [len(pickle.loads(pickle.dumps(batches.source)).read(np.array([1, 3]))[0]["x"])] == [2]


@pytest.mark.parametrize("make", [lambda rows: rows, StreamedRows])
def test_the_batch_of_a_model_that_takes_no_other(make):
    fixed = (floats("x", 2, 2, 3),)
    with pytest.warns(UserWarning, match="the last sample"):
        assert read(make(Rows({"x": X})), fixed) == [(X[:2].tolist(), None), (X[2:4].tolist(), None)]
    with pytest.raises(CalibrationDataError, match="first dimensions: 'x'"):
        read(make(Rows({"x": X, "ids": range(5)})), (*fixed, integers("ids", 3)))


def test_samples_are_taken_in_random_order_and_limited():
    order = np.random.default_rng(3).permutation(5)[:3]
    found = read(Rows({"x": X, "label": range(5)}), shuffle=True, seed=3, limit=3, batch_size=3)
    assert found == [(X[order].tolist(), order.tolist())]


def test_the_format_that_a_user_has_set_is_kept():
    assert read(Rows({"x": list(X)}, "custom")) == [(X.tolist(), None)]


def test_the_only_column_feeds_the_only_input():
    assert read(Rows({"image": X, "label": range(5)}))[0][0] == X.tolist()
    both = Rows({"x": X, "ids": np.arange(5), "unused": X})
    feed = next(iter(open_batches(both, TWO)))
    assert feed.keys() == {"x", "ids"}
    assert feed["ids"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("make", [lambda rows: rows, StreamedRows])
def test_a_column_that_is_not_there(make):
    with pytest.raises(CalibrationDataError, match=r"'x', .*'image', 'ids': .*rename_column\('image', 'x'\)"):
        read(make(Rows({"image": X, "ids": np.arange(5)})), TWO)


def test_images_of_different_sizes_are_prepared_one_by_one():
    images = Rows({"image": [np.full((4 + i, 6, 3), i, np.uint8) for i in range(2)]})
    spec = (floats("x", "n", 3, 2, 2),)
    feed = next(iter(open_batches(images, spec, preprocessing=Preprocessing(crop=(2, 2)))))
    assert feed["x"].shape == (2, 3, 2, 2)
    assert feed["x"][1, 0, 0, 0] == np.float32(1) * np.float32(1 / 255)
    for rows, inputs, options, named in (
        (images, spec, {"preprocessing": Preprocessing()}, "sample 1 .*'x' .*3x5x6 .*sample 0 .*3x4x6"),
        (Rows({"x": []}), ONE, {}, "empty Rows"),
        (Rows({"x": X.astype(np.float16)}), ONE, {}, "sample 0 .*'x' takes float32"),
    ):
        with pytest.raises(CalibrationDataError, match=named):
            read(rows, inputs, **options)


def test_one_sample_gets_a_batch_axis():
    binding = Binding(ONE)
    arrays = sample_arrays((X[0], 3), binding)
    assert (arrays["x"].shape, arrays["labels"].tolist()) == ((1, 2, 3), [3])
    assert sample_arrays((X[0], X[1]), binding)["labels"].shape == (1, 2, 3)
    # Labels that are no numbers are left out.
    assert sample_arrays((X[0], [{"boxes": [1]}]), binding).keys() == {"x"}


def test_datasets_of_pytorch_without_indices_or_length_are_streams(monkeypatch):
    class Dataset:
        def __getitem__(self, index):
            raise NotImplementedError

    class IterableDataset(Dataset):
        def __iter__(self):
            return iter(X[:, None])

        def __len__(self):
            return 5

    class Unknown(Dataset):
        def __getitem__(self, index):
            return X[[index]]

        def __len__(self):
            raise TypeError("not known yet")

    monkeypatch.setitem(
        sys.modules, "torch.utils.data", SimpleNamespace(Dataset=Dataset, IterableDataset=IterableDataset)
    )
    assert not is_indexed(IterableDataset()) and not is_indexed(Unknown())
    for data in (IterableDataset(), Unknown()):
        assert read(data) == [(X[[row]].tolist(), None) for row in range(5)]


class TestPyTorch:
    """With PyTorch itself."""

    @pytest.fixture(autouse=True)
    def torch(self):
        self.torch = pytest.importorskip("torch")
        self.data = self.torch.utils.data
        self.x, self.y = self.torch.from_numpy(X), self.torch.arange(5)

    def test_datasets(self):
        pairs = self.data.TensorDataset(self.x, self.y)
        assert read(pairs, batch_size=3) == [(X[:3].tolist(), [0, 1, 2]), (X[3:].tolist(), [3, 4])]
        assert read(self.data.Subset(pairs, [4, 2])) == [(X[[4, 2]].tolist(), [4, 2])]

    @pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
    def test_loaders(self, workers):
        pairs = self.data.TensorDataset(self.x, self.y)
        loader = self.data.DataLoader(pairs, batch_size=3, num_workers=workers)
        assert read(loader) == [(X[:3].tolist(), [0, 1, 2]), (X[3:].tolist(), [3, 4])]
        assert read(loader, batch_size=4, limit=4) == [(X[:4].tolist(), [0, 1, 2, 3])]

    def test_tensors(self):
        assert read(self.x, batch_size=5) == [(X.tolist(), None)]
        assert read({"x": self.x, "labels": self.y}) == [(X.tolist(), [0, 1, 2, 3, 4])]

    def test_a_loader_whose_tuples_do_not_fit(self):
        triples = self.data.DataLoader(self.data.TensorDataset(self.x, self.y, self.y), batch_size=5)
        with pytest.raises(CalibrationDataError, match="item 0 of the data: a list of 3 does not fit the"):
            read(triples)


class TestHuggingFace:
    """With datasets of Hugging Face themselves."""

    @pytest.fixture(autouse=True)
    def rows(self):
        datasets = pytest.importorskip("datasets")
        self.rows = datasets.Dataset.from_dict({"x": X.tolist(), "label": [4, 3, 2, 1, 0]})

    def test_columns(self):
        expected = [(X[:3].tolist(), [4, 3, 2]), (X[3:].tolist(), [1, 0])]
        assert read(self.rows, batch_size=3) == expected
        assert read(self.rows.to_iterable_dataset(), batch_size=3) == expected
        assert read(self.rows.rename_column("x", "image"), batch_size=3) == expected
        assert read(self.rows.with_transform(lambda row: {"x": np.asarray(row["x"], np.float32)})) == [
            (X.tolist(), None)
        ]

    def test_a_column_that_is_not_there(self):
        rows = self.rows.rename_column("x", "image").add_column("text", ["a"] * 5)
        for data in (rows, rows.to_iterable_dataset()):
            with pytest.raises(CalibrationDataError, match=r"no column 'x', .*: rename one with data"):
                read(data)
