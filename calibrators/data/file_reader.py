"""Samples in arrays, in files or at random: opened once, and files again by each worker of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators.data.feeds import Binding, FeedDict
from calibrators.data.sources.arrays import Source, from_array_file, from_arrays
from calibrators.data.sources.folders import from_folder
from calibrators.data.sources.random_samples import RANDOM, random_samples
from calibrators.errors import CalibrationDataError
from calibrators.files import exists, is_folder


class FileReader:
    """Takes batches that are indices of samples in files, or of random samples.

    Args:
        data: An absolute path, or ``random:COUNT``.
        binding: Says what feeds the model.
        seed: Seed of random samples.
        first: How many samples from the first on are taken; None where any may be.
        source: The samples, opened. They are not pickled: a worker opens ``data`` itself.
    """

    def __init__(self, data: str, binding: Binding, seed: int, first: int | None, source: Source) -> None:
        self._data, self._binding, self._seed, self._first = data, binding, seed, first
        self._count = source.count
        self._source: Source | None = source

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_source": None}

    def samples(self, batch: NDArray[np.intp]) -> int:
        """How many indices there are."""
        return len(batch)

    def read(self, batch: NDArray[np.intp]) -> tuple[FeedDict, None]:
        """What the model is fed.

        Raises:
            CalibrationDataError: A sample cannot be read, or the data has another number of samples than it
                had where it was opened first.
        """
        if self._source is None:
            self._source = self._opened_again()
        return self._source.read(batch), None

    def _opened_again(self) -> Source:
        source = open_source(self._data, self._binding, self._seed, self._first)
        if source.count != self._count:
            raise CalibrationDataError(
                f"'{self._data}' has {source.count} samples for a worker but {self._count} "
                "for the program that cut it; put it where all machines see the same"
            )
        return source


def open_source(data: Any, binding: Binding, seed: int, first: int | None = None) -> Source:
    """Opens samples that can be read in any order.

    Args:
        data: An array, a dict of arrays, a path, or ``random:COUNT``.
        binding: Says what feeds the model.
        seed: Seed of random samples.
        first: How many samples from the first on need be readable; None where all do.

    Raises:
        CalibrationDataError: There is no such data, or it does not fit the model.
    """
    if isinstance(data, np.ndarray):
        return from_arrays({binding.only_input("an array").name: data}, binding)
    if isinstance(data, Mapping):
        return from_arrays(data, binding)
    if isinstance(data, str) and data.startswith(RANDOM):
        return random_samples(data.removeprefix(RANDOM), binding, seed)
    path = Path(data)
    if is_folder(path):
        return from_folder(path, binding, first)
    if not exists(path):
        raise CalibrationDataError(f"the data '{path}' does not exist; check the path")
    if path.suffix.lower() not in (".npz", ".npy"):
        raise CalibrationDataError(
            f"cannot take data from the file '{path}'; pass a .npz, a .npy, or a folder of these or of images"
        )
    return from_array_file(path, binding, first)
