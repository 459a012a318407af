"""Data that can be read sample by sample in any order: arrays and array files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrators import records
from calibrators.data.axes import count_samples, needs_single_feeds, one_sample
from calibrators.data.feeds import LABELS, Binding, FeedDict, OneSample, batch_rows
from calibrators.data.inputs import shape_text
from calibrators.data.sources.archives import read_archive
from calibrators.display.counts import counted
from calibrators.error_text import in_words
from calibrators.errors import Argument, CalibrationDataError
from calibrators.files import exists, is_file

_Result = TypeVar("_Result")

#: File name endings that are taken as arrays, in lower case.
ARRAY_SUFFIXES = frozenset({".npy", ".npz"})


@dataclass(frozen=True, eq=False)
class Source:
    """Samples in a known number, readable in any order.

    Attributes:
        count: How many samples there are; at least 1.
        read: Sample indices, shape (n,), to the feed dict of these samples.
        labels: One label per sample along axis 0 (see :func:`as_labels`), or None.
        class_names: Names of the classes by index, or None.
        arrays: Input name to the array that holds all samples along axis 0, not prepared; empty where the
            samples are read one by one.
        single: Whether samples cannot share a batch: each is a feed dict of its own.
        files: The file of each sample; empty where all samples are in one.
        of_images: Whether each of the files is an image.
        upright: Whether these are turned as their orientation tag says.
    """

    count: int
    read: Callable[[NDArray[np.intp]], FeedDict]
    labels: NDArray[Any] | None = None
    class_names: tuple[str, ...] | None = None
    arrays: FeedDict = field(default_factory=dict)
    single: bool = False
    files: Sequence[Path] = ()
    of_images: bool = False
    upright: bool = False


def from_arrays(arrays: Mapping[str, Any], binding: Binding) -> Source:
    """A source over arrays that hold all samples along axis 0, or along the binding's batch axes.

    Args:
        arrays: Input name to array, and ``labels`` where there are any. Of an input that is one number, the
            array may be that number, which is fed with every sample.
        binding: Says which array feeds which input.

    Raises:
        CalibrationDataError: Names, element types or lengths do not fit, or there are no samples.
    """
    fed, labels = binding.split(arrays)
    binding.check(fed)
    if needs_single_feeds(fed, binding.batch_axes):
        return _single_feeds(fed, labels, binding)
    rows = batch_rows(fed)
    if rows is None:
        shapes = ", ".join(f"'{name}' {shape_text(array.shape)}" for name, array in fed.items())
        raise CalibrationDataError(
            f"the arrays do not share a number of samples along axis 0: {shapes}; give all of them the same "
            f"length there, or say with {Argument('BatchAxes')} along which axis the samples of an input lie"
        )
    if not rows:
        raise CalibrationDataError("the data has no samples: its arrays have length 0; pass some")

    def read(indices: NDArray[np.intp]) -> FeedDict:
        return binding.prepare({name: array[indices] for name, array in fed.items()})

    own_labels = None if labels is None else as_labels(labels, rows, f"'{LABELS}'")
    return Source(rows, read, own_labels, arrays=fed)


def _single_feeds(fed: FeedDict, labels: NDArray[Any] | None, binding: Binding) -> Source:
    """A source over arrays that do not share axis 0: each feed dict is one sample."""
    count = count_samples(fed, binding.batch_axes)
    if not count:
        raise CalibrationDataError("the data has no samples: its arrays have length 0; pass some")

    def read(indices: NDArray[np.intp]) -> FeedDict:
        (index,) = indices.tolist()
        return OneSample(binding.prepare(one_sample(fed, binding.batch_axes, index)))

    own_labels = None if labels is None else as_labels(labels, count, f"'{LABELS}'")
    return Source(count, read, own_labels, single=True)


def from_array_file(path: Path, binding: Binding, first: int | None = None) -> Source:
    """A source over one .npz or .npy file; a .npy file stays on disk.

    Args:
        path: The file.
        binding: Says what feeds the model.
        first: Only so many samples from the first on are read; None for all.

    Returns:
        The source, which counts all samples of the file.
    """
    if path.suffix.lower() == ".npy" or first is None or binding.batch_axes:
        return from_arrays(read_arrays(path, binding), binding)
    archive = _read(path, lambda stream: read_archive(stream, first))
    source = from_arrays(archive.arrays, binding)
    return source if archive.rows is None else replace(source, count=archive.rows)


def read_arrays(path: Path, binding: Binding) -> dict[str, NDArray[Any]]:
    """Reads a .npz whole, or maps a .npy, which feeds the model's only input.

    Raises:
        CalibrationDataError: The file cannot be read or holds Python objects, or it is a .npy and the
            model has several inputs.
    """
    loaded = _load(path)
    if isinstance(loaded, dict):
        return loaded
    return {binding.only_input(f"the file '{path}'").name: loaded}


def load_labels(labels: Any, count: int | None) -> NDArray[Any]:
    """Labels that were given apart from the data.

    Args:
        labels: One label per sample, or the path of a .npy or of a .npz with ``labels`` or one array only.
        count: How many there must be; None where that is not known.

    Returns:
        One label per sample; see :func:`as_labels`.

    Raises:
        CalibrationDataError: The file is unusable, or the labels are no such array.
    """
    if not isinstance(labels, str | os.PathLike):
        return as_labels(labels, count, "labels")
    path = Path(labels)
    if path.suffix.lower() not in ARRAY_SUFFIXES:
        raise CalibrationDataError(f"labels file '{path}' must be a .npy or .npz file; convert it")
    loaded = _load(path)
    if isinstance(loaded, dict):
        if LABELS not in loaded and len(loaded) != 1:
            raise CalibrationDataError(
                f"labels file '{path}' has no array named '{LABELS}' among {', '.join(sorted(loaded))}; "
                f"rename the one that holds them"
            )
        loaded = loaded[LABELS] if LABELS in loaded else next(iter(loaded.values()))
    return as_labels(loaded, count, f"labels file '{path}'")


def labels_array(labels: Any, what: str, advice: str) -> NDArray[Any]:
    """Labels as an array.

    Args:
        labels: An array, or nested sequences.
        what: How messages call the labels.
        advice: What to give instead, in messages.

    Raises:
        CalibrationDataError: They are of unequal lengths.
    """
    try:
        return np.asarray(labels)
    except ValueError as error:
        raise CalibrationDataError(f"{what} cannot become an array: {error}; {advice}") from error


def as_labels(labels: Any, count: int | None, what: str) -> NDArray[Any]:
    """Checks that labels are one class index, or one array, per sample.

    Args:
        labels: An array of numbers whose axis 0 is the samples, or a sequence of ints: class indices, or what
            a model's output should be, such as images or maps of classes.
        count: How many samples there are; None where that is not known.
        what: How messages call the labels.

    Returns:
        int64 of shape (count,) for class indices; other labels as they are, shape (count, ...).

    Raises:
        CalibrationDataError: Type, rank or length is wrong, or a class index is beyond int64.
    """
    array = labels_array(labels, what, "pass one int, or one array, per sample")
    if not array.ndim or array.dtype.kind not in "biuf":
        raise CalibrationDataError(
            f"{what} must be one class index or one array of numbers per sample, not {array.dtype} of shape "
            f"{shape_text(array.shape)}; pass an array of numbers whose axis 0 is the samples"
        )
    if count is not None and len(array) != count:
        raise CalibrationDataError(
            f"{what} has {len(array)} entries but the data has {counted(count, 'sample')}; give one per "
            "sample"
        )
    return _as_int64(array, what) if is_class_indices(array) else array


def _as_int64(indices: NDArray[np.integer[Any]], what: str) -> NDArray[np.int64]:
    # Larger ones would become negative, and messages would name what the data does not hold.
    if (beyond := indices[indices > np.iinfo(np.int64).max]).size:
        raise CalibrationDataError(
            f"{what} has the class index {beyond[0]}, which no model has; check the labels"
        )
    return indices.astype(np.int64)


def is_class_indices(labels: NDArray[Any] | None) -> TypeGuard[NDArray[np.int64]]:
    """Whether labels are one class index per sample, and not arrays or numbers of another kind."""
    return labels is not None and labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer)


def first_labels(labels: NDArray[Any] | None, count: int, before: int) -> NDArray[Any] | None:
    """The labels of a batch.

    Args:
        labels: Labels from the batch's first sample on; None where the data has none.
        count: How many samples the batch has.
        before: How many samples come before it, for the message.

    Raises:
        CalibrationDataError: There are fewer labels than samples.
    """
    if labels is not None and len(labels) < count:
        raise CalibrationDataError(
            f"there are {before + len(labels)} labels but more samples; give one per sample"
        )
    return None if labels is None else labels[:count]


# Without types in some versions of NumPy.
_open_memmap: Callable[..., NDArray[Any]] = np.lib.format.open_memmap


def _load(path: Path) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """All arrays of a .npz, or the array of a .npy, mapped."""
    if path.suffix.lower() == ".npy":
        # NumPy maps a file by its name, which was opened as a file before.
        return _read(path, lambda _stream: _open_memmap(path, mode="r"))
    return _read(path, lambda stream: read_archive(stream).arrays)


def _read(path: Path, read: Callable[[IO[bytes]], _Result]) -> _Result:
    """Reads a file, with one error for all that may be wrong with it."""
    try:
        stream = records.open_file(path)
    except (OSError, records.RecordError) as error:
        reason = "it is no file" if exists(path) else "there is no such file"
        if is_file(path):
            reason = in_words(error)
        raise CalibrationDataError(f"cannot read '{path}': {reason}; give a .npz or .npy file") from error
    try:
        with stream:
            return read(stream)
    except Exception as error:  # each part of a damaged file has errors of its own, tokenizers' included
        raise CalibrationDataError(
            f"cannot read '{path}': {in_words(error)}; save it again with numpy.save or numpy.savez"
        ) from error
