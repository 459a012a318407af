"""Datasets that give one sample at a time: those of PyTorch by index, those of Hugging Face as rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.feeds import LABELS, Binding, FeedDict
from calibrators.data.inputs import shape_text
from calibrators.data.sources.items import LABEL_KEYS, are_numbers, known_length, named_arrays
from calibrators.errors import CalibrationDataError


def is_indexed(data: Any) -> bool:
    """Whether something gives one sample per index: a dataset of PyTorch or of Hugging Face with a length."""
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        return False
    torch_data = sys.modules.get("torch.utils.data")  # nothing is PyTorch's before it was imported
    of_torch = torch_data is not None and isinstance(data, torch_data.Dataset)
    if of_torch and isinstance(data, getattr(torch_data, "IterableDataset", ())):
        return False  # its samples have no indices, though it may have a length
    return (of_torch or has_columns(data)) and known_length(data) is not None


def has_columns(data: Any) -> bool:
    """Whether something is a dataset of Hugging Face, which yields rows of columns."""
    return hasattr(data, "column_names") and hasattr(data, "with_format") and not isinstance(data, Mapping)


def row_batches(dataset: Any, binding: Binding) -> Iterator[dict[str, Any]]:
    """The rows of a streamed dataset of Hugging Face as feed dicts of one sample, not prepared.

    Args:
        dataset: The dataset.
        binding: Says what feeds the model.

    Raises:
        CalibrationDataError: A column is not there.
    """
    return (sample_arrays(_row(row, binding), binding) for row in iter(_as_arrays(dataset)))


@dataclass(frozen=True)
class SampleReader:
    """Reads samples by index and joins them to batches; reads them in this process, without workers.

    Attributes:
        dataset: The dataset, as :func:`opened` returns it.
        binding: Says what feeds the model.
        rows: Whether its samples are rows of columns.
        labelled: Whether its labels are taken.
    """

    dataset: Any
    binding: Binding
    rows: bool
    labelled: bool

    @classmethod
    def of(cls, dataset: Any, binding: Binding, *, labelled: bool) -> SampleReader:
        """The reader of a dataset (see :func:`is_indexed`)."""
        rows = has_columns(dataset)
        return cls(_as_arrays(dataset) if rows else dataset, binding, rows, labelled)

    def samples(self, batch: NDArray[np.intp]) -> int:
        """How many indices there are."""
        return len(batch)

    def read(self, batch: NDArray[np.intp]) -> tuple[FeedDict, NDArray[Any] | None]:
        """Reads and joins the samples of a batch.

        Args:
            batch: Their indices, shape (n,).

        Returns:
            What the model is fed, and the labels; None where there are none.

        Raises:
            CalibrationDataError: A sample does not fit the model, or samples have different shapes.
        """
        indices = batch.tolist()
        read = [self._read_one(index) for index in indices]
        feed = {name: _joined(name, [one for one, _ in read], indices) for name in read[0][0]}
        labels = [{LABELS: own} for _, own in read if own is not None]
        if labels and len(labels) != len(read):
            raise CalibrationDataError(
                "some samples of the data come with labels and others without; give all or none"
            )
        return feed, _joined(LABELS, labels, indices) if labels else None

    def _read_one(self, index: int) -> tuple[FeedDict, NDArray[Any] | None]:
        sample = self.dataset[index]
        try:
            arrays = sample_arrays(_row(sample, self.binding) if self.rows else sample, self.binding)
            feed, labels = self.binding.split(arrays)
            self.binding.check(feed)
            return self.binding.prepare(feed), labels if self.labelled else None
        except CalibrationDataError as error:
            raise CalibrationDataError(f"sample {index} of the data: {error.template}") from error


def sample_arrays(sample: object, binding: Binding) -> dict[str, Any]:
    """Names the parts of one sample after the model's inputs, and gives each a batch axis of 1.

    Args:
        sample: What :func:`calibrators.data.sources.items.named_arrays` takes, without the batch axis.
        binding: Says what feeds the model.

    Returns:
        Input name to array, and ``labels`` where there are any that are numbers.
    """
    named = named_arrays(sample, binding)
    arrays = {
        name: value[np.newaxis] if isinstance(value, np.ndarray) else value for name, value in named.items()
    }
    if LABELS in arrays and LABELS not in {spec.name for spec in binding.inputs}:
        label = arrays.pop(LABELS)
        if are_numbers(label):
            arrays[LABELS] = label if isinstance(label, np.ndarray) else np.asarray(label)[np.newaxis]
    return arrays


def _as_arrays(dataset: Any) -> Any:
    """A dataset of Hugging Face whose rows are arrays; a format or transform of the user's is kept."""
    is_streamed = not hasattr(dataset, "__len__")
    has_format = not is_streamed and (getattr(dataset, "format", None) or {}).get("type") is not None
    return dataset if has_format else dataset.with_format("numpy")


def _row(row: Any, binding: Binding) -> Any:
    """The columns of a row that the model takes, and its labels.

    Raises:
        CalibrationDataError: There is no column for an input.
    """
    names = [spec.name for spec in binding.inputs]
    columns = [name for name in row if name not in LABEL_KEYS]
    if len(names) == len(columns) == 1:
        return {names[0] if name == columns[0] else name: value for name, value in row.items()}
    for name in names:
        if name not in row:
            free = next((column for column in columns if column not in names), "COLUMN")
            raise CalibrationDataError(
                f"the dataset has no column '{name}', which is an input of the model; it has "
                f"{', '.join(map(repr, row))}: rename one with dataset.rename_column({free!r}, {name!r})"
            )
    return row


def _joined(name: str, samples: Sequence[Mapping[str, NDArray[Any]]], indices: Sequence[int]) -> NDArray[Any]:
    """One array of all samples along axis 0."""
    first = samples[0][name]
    for index, sample in zip(indices, samples, strict=True):
        if sample[name].shape != first.shape:
            raise CalibrationDataError(
                f"sample {index} of the data gives '{name}' the shape {shape_text(sample[name].shape[1:])} "
                f"but sample {indices[0]} gives {shape_text(first.shape[1:])}; bring all samples to one shape"
            )
    return np.concatenate([sample[name] for sample in samples])
