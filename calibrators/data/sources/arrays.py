"""Arrays, array files and labels: samples that can be read in any order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.array_files import ARRAY_SUFFIXES, as_labels, load_arrays, read_archive, read_array_file
from calibrators.data.batches import IndexedSource, facts
from calibrators.data.feeds import (
    LABELS,
    BatchAxes,
    Binding,
    FeedDict,
    OneSample,
    as_array,
    batch_rows,
    check_axes,
    count_rows,
    count_samples,
    is_tensor,
    needs_single_feeds,
    one_sample,
)
from calibrators.data.inputs import DataOptions
from calibrators.errors import CalibrationDataError
from calibrators.files import exists


@dataclass(frozen=True, eq=False)
class Arrays(IndexedSource):
    """Samples in arrays, which stay where they are; a worker is sent those of its batches.

    Attributes:
        arrays: Input name to array, checked and not prepared. The samples lie along axis 0, or along the
            binding's batch axes; of an input that is one number, it may be that number.
        binding: Says which array feeds which input.
    """

    arrays: FeedDict = field(repr=False)
    binding: Binding

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "arrays": {}}

    @staticmethod
    def accepts(data: Any) -> bool:
        """True for an array, a tensor, or a dict of these."""
        return isinstance(data, np.ndarray | Mapping) or is_tensor(data)

    @classmethod
    def open(cls, data: Any, binding: Binding, options: DataOptions) -> Arrays:  # noqa: ARG003  # as every kind
        """Opens arrays for a model.

        Args:
            data: What :meth:`accepts` is true for.
            binding: Says which array feeds which input.
            options: Not needed.

        Raises:
            CalibrationDataError: Names, element types or lengths do not fit, or there are no samples.
        """
        if not isinstance(data, Mapping):
            data = {binding.only_input("an array").name: data}
        return _from_arrays(data, binding)

    def batch(self, indices: NDArray[np.intp]) -> FeedDict:
        """Some samples, not prepared; a single one as it is fed."""
        if self.is_single:
            sample = one_sample(self.arrays, self.binding.batch_axes, int(indices[0]))
            return OneSample(self.binding.prepare(sample))
        return {name: array[indices] for name, array in self.arrays.items()}

    def samples(self, batch: FeedDict) -> int:
        """How many samples a batch has."""
        return batch_rows(batch) or 1

    def read(self, batch: FeedDict) -> tuple[FeedDict, None]:
        """What the model is fed."""
        return batch if self.is_single else self.binding.prepare(batch), None


def _from_arrays(arrays: Mapping[str, Any], binding: Binding) -> Arrays:
    """A source over arrays that hold all samples along axis 0, or along the binding's batch axes.

    Args:
        arrays: Input name to array, and ``labels`` where there are any. Of an input that is one number, the
            array may be that number, which is fed with every sample.
        binding: Says which array feeds which input.

    Raises:
        CalibrationDataError: Names, element types or lengths do not fit, or there are no samples.
    """
    fed, labels = binding.split({name: as_array(array) for name, array in arrays.items()})
    binding.check(fed)
    single = needs_single_feeds(fed, binding.batch_axes)
    count = count_samples(fed, binding.batch_axes) if single else count_rows(fed)
    if not count:
        raise CalibrationDataError("the data has no samples: its arrays have length 0; pass some")
    own_labels = None if labels is None else as_labels(labels, count, f"'{LABELS}'")
    return Arrays(fed, binding, count=count, labels=own_labels, is_single=single)


@dataclass(frozen=True, eq=False)
class ArrayFile(IndexedSource):
    """Samples in one .npz or .npy file, which each process opens for itself; a .npy file stays on disk.

    Attributes:
        place: Its absolute path: a worker has another working folder.
        binding: Says what feeds the model.
        wanted: Only so many samples from the first on are read; None for all.
    """

    place: str
    binding: Binding
    wanted: int | None
    _opened: list[Arrays] = field(default_factory=list, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_opened": []}

    @staticmethod
    def accepts(data: Any) -> bool:
        """True for a path."""
        return isinstance(data, str | os.PathLike)

    @classmethod
    def open(cls, data: str | os.PathLike[str], binding: Binding, options: DataOptions) -> ArrayFile:
        """Opens a file for a model.

        Args:
            data: Its path.
            binding: Says what feeds the model.
            options: Which samples are taken.

        Raises:
            CalibrationDataError: There is no such file, it cannot be read, or it does not fit the model.
        """
        path = Path(data)
        if not exists(path):
            raise CalibrationDataError(f"the data '{path}' does not exist; check the path")
        if path.suffix.lower() not in ARRAY_SUFFIXES:
            raise CalibrationDataError(
                f"cannot take data from the file '{path}'; pass a .npz, a .npy, or a folder of these or of "
                "images"
            )
        first = None if options.shuffle else options.limit
        opened = _from_array_file(path, binding, first)
        return cls(str(path.absolute()), binding, first, [opened], **facts(opened))

    def read(self, batch: NDArray[np.intp]) -> tuple[FeedDict, None]:
        """What the model is fed.

        Raises:
            CalibrationDataError: The file cannot be read, or has another number of samples than it had where
                it was opened first.
        """
        if not self._opened:
            opened = _from_array_file(Path(self.place), self.binding, self.wanted)
            check_same_count(self.place, self.count, opened.count)
            self._opened.append(opened)
        (source,) = self._opened
        return source.read(source.batch(batch))


class ArraysAlongAxes:
    """Arrays of which some inputs have their samples along another axis than the first."""

    @staticmethod
    def accepts(data: Any) -> bool:
        """True for :class:`calibrators.data.feeds.BatchAxes`."""
        return isinstance(data, BatchAxes)

    @staticmethod
    def open(data: BatchAxes, binding: Binding, options: DataOptions) -> Arrays | ArrayFile:
        """Opens a .npz or a dict of arrays for a model.

        Raises:
            CalibrationDataError: It is neither, an axis does not fit, or see :class:`Arrays`.
        """
        check_axes(data, binding)
        binding = replace(binding, batch_axes=dict(data.axes))
        if isinstance(data.data, Mapping):
            return Arrays.open(data.data, binding, options)
        return ArrayFile.open(data.data, binding, options)


def check_same_count(place: str, expected: int | None, found: int | None) -> None:
    """Refuses data of which a worker sees another number of samples than the program that cut it.

    Raises:
        CalibrationDataError: It does.
    """
    if found != expected:
        raise CalibrationDataError(
            f"'{place}' has {found} samples for a worker but {expected} for the program that cut it; put it "
            "where all machines see the same"
        )


def _from_array_file(path: Path, binding: Binding, first: int | None = None) -> Arrays:
    """A source over one .npz or .npy file; a .npy file stays on disk.

    Args:
        path: The file.
        binding: Says what feeds the model.
        first: Only so many samples from the first on are read; None for all.

    Returns:
        The source, which counts all samples of the file.
    """
    if path.suffix.lower() == ".npy" or first is None or binding.batch_axes:
        return _from_arrays(read_arrays(path, binding), binding)
    archive = read_array_file(path, lambda stream: read_archive(stream, first))
    source = _from_arrays(archive.arrays, binding)
    return source if archive.rows is None else replace(source, count=archive.rows)


def read_arrays(path: Path, binding: Binding) -> dict[str, NDArray[Any]]:
    """Reads a .npz whole, or maps a .npy, which feeds the model's only input.

    Raises:
        CalibrationDataError: The file cannot be read or holds Python objects, or it is a .npy and the
            model has several inputs.
    """
    loaded = load_arrays(path)
    if isinstance(loaded, dict):
        return loaded
    return {binding.only_input(f"the file '{path}'").name: loaded}
