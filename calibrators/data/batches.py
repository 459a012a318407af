"""The one way in for calibration and validation data: anything that holds samples becomes feed dicts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrators.data.binding import Binding
from calibrators.data.feeds import FeedDict, listed
from calibrators.data.folders import from_folder
from calibrators.data.inputs import InputSpec
from calibrators.data.options import Array, DataOptions, LabelSource
from calibrators.data.preprocessing import Preprocessing
from calibrators.data.sources import Source, from_array_file, from_arrays, load_labels, random_normal
from calibrators.data.streams import Stream, restartable, warn_left_out
from calibrators.errors import CalibrationDataError

__all__ = ["Batches", "DataSource", "FeedDict", "open_batches", "open_data"]

#: Samples a batch where neither the model nor the user says.
DEFAULT_BATCH_SIZE = 32

_RANDOM = "random:"


@dataclass(frozen=True, eq=False)
class Batches:
    """Feed dicts that can be iterated again and again (a generator's only once).

    Attributes:
        start: Begins a pass over the data.
        batch_size: Samples a feed dict; None where an iterable's feed dicts are passed on as they come.
        num_samples: How many samples a pass has; None where the data is an iterable.
        labels: Class index per sample in the order of iteration, int64, or None.
        class_names: Names of the classes by index, where folders give them.
    """

    start: Callable[[], Iterator[FeedDict]] = field(repr=False)
    batch_size: int | None = None
    num_samples: int | None = None
    labels: NDArray[np.int64] | None = field(default=None, repr=False)
    class_names: tuple[str, ...] | None = None

    def __iter__(self) -> Iterator[FeedDict]:
        return self.start()


class RayDataset(Protocol):
    """A ``ray.data.Dataset``, by two methods that it has and no other kind of data."""

    def materialize(self) -> object:
        """Computes the dataset."""
        ...

    def num_blocks(self) -> int | None:
        """How many blocks it has."""
        ...


#: What calibration and validation data may be: see :func:`open_batches`. A Ray Dataset is taken where the
#: work runs over Ray.
DataSource: TypeAlias = (
    str
    | os.PathLike[str]
    | Array
    | Mapping[str, Array]
    | Iterable[Mapping[str, Array]]
    | Callable[[], Iterable[Mapping[str, Array]]]
    | Batches
    | RayDataset
)


def open_batches(
    data: DataSource,
    inputs: Sequence[InputSpec],
    *,
    batch_size: int | None = None,
    limit: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    preprocessing: Preprocessing | None = None,
    labels: LabelSource | None = None,
) -> Batches:
    """Opens calibration or validation data for a model. Samples are read when they are iterated.

    Args:
        data: One of

            - a path: a .npz (keys are input names) or .npy file; a folder of such files, each one sample, or
              a block of samples with the batch axis; or a folder of images, flat or with one sub-folder a
              class;
            - an array for the model's only input, or a dict of arrays, with samples along axis 0;
            - an iterable of feed dicts, or a callable without arguments that returns one;
            - the text ``random:COUNT``: standard normal values, for timing only;
            - :class:`Batches`, which are returned as they are.

            The key ``labels`` of a dict or .npz holds class indices and is never fed.
        inputs: What the model takes.
        batch_size: Samples a feed dict. By default the model's fixed batch, else 32; feed dicts of an
            iterable are passed on as they come.
        limit: Takes that many samples at most.
        shuffle: Takes the samples in an order that ``seed`` decides; before ``limit``.
        seed: For ``shuffle`` and ``random:COUNT``.
        preprocessing: What raw uint8 images (N, H, W, C) go through. A model with one input then takes the
            only array of a dict or .npz whatever its key.
        labels: Class indices in the order of the data, as an array or a .npy or .npz file; replaces the
            data's own. For an iterable their number is compared at the end of a pass.

    Returns:
        The batches. Their arrays are C-contiguous and have the inputs' element types.

    Raises:
        CalibrationDataError: The data is unreadable, empty, or does not fit the model or the options.
        UnsupportedError: Images are to be read and Pillow is not installed.

    Warns:
        UserWarning: The model has a fixed batch and the last samples do not fill one: they are left out.
    """
    return open_data(data, inputs, DataOptions(batch_size, limit, shuffle, seed, preprocessing, labels))


def open_data(data: DataSource, inputs: Sequence[InputSpec], options: DataOptions) -> Batches:
    """:func:`open_batches` with its options in one object."""
    if isinstance(data, Batches):
        _check_untouched(options)
        return data
    batch_size, limit, labels = options.batch_size, options.limit, options.labels
    binding = Binding(tuple(inputs), options.preprocessing)
    source = open_source(data, binding, options.seed)
    if source is None:
        if options.shuffle:
            raise CalibrationDataError(
                "cannot shuffle an iterable of feed dicts; shuffle it where it is made"
            )
        return _stream(data, binding, batch_size, limit, labels)

    fixed = _fixed_batch(inputs)
    if len(fixed) > 1:
        raise CalibrationDataError(
            f"the model's inputs have different fixed first dimensions: {listed(inputs)}; "
            "pass an iterable of feed dicts"
        )
    _check_fixed(batch_size, fixed)
    fixed_batch = next(iter(fixed), None)
    order = np.arange(source.count)
    if options.shuffle:
        order = np.random.default_rng(options.seed).permutation(source.count)
    order = _whole_batches(order[:limit], fixed_batch)
    size = batch_size or fixed_batch or DEFAULT_BATCH_SIZE

    def start() -> Iterator[FeedDict]:
        return (source.read(order[first : first + size]) for first in range(0, len(order), size))

    all_labels = source.labels if labels is None else load_labels(labels, source.count)
    return Batches(
        start,
        batch_size=size,
        num_samples=len(order),
        labels=None if all_labels is None else all_labels[order],
        class_names=source.class_names if labels is None else None,
    )


def open_source(data: Any, binding: Binding, seed: int) -> Source | None:
    """The samples where their number is known; None for an iterable."""
    if isinstance(data, np.ndarray):
        return from_arrays({binding.only_input("an array").name: data}, binding)
    if isinstance(data, Mapping):
        return from_arrays(data, binding)
    if isinstance(data, str) and data.startswith(_RANDOM):
        return random_normal(data.removeprefix(_RANDOM), binding, seed)
    if not isinstance(data, str | os.PathLike):
        return None
    path = Path(data)
    if path.is_dir():
        return from_folder(path, binding)
    if not path.exists():
        raise CalibrationDataError(f"the data '{path}' does not exist; check the path")
    if path.suffix.lower() not in (".npz", ".npy"):
        raise CalibrationDataError(
            f"cannot take data from the file '{path}'; pass a .npz, a .npy, or a folder of these or of images"
        )
    return from_array_file(path, binding)


def _stream(data: Any, binding: Binding, batch_size: int | None, limit: int | None, labels: Any) -> Batches:
    start = restartable(data)
    if isinstance(data, Sized) and not len(data):
        raise CalibrationDataError(f"the data is an empty {type(data).__name__}; pass at least one feed dict")
    fixed = _fixed_batch(binding.inputs)
    _check_fixed(batch_size, fixed)
    all_labels = None if labels is None else load_labels(labels, None)[:limit]
    fixed_batch = next(iter(fixed)) if len(fixed) == 1 else None
    stream = Stream(start, binding, batch_size, limit, fixed_batch, all_labels)
    return Batches(stream, batch_size=batch_size, labels=all_labels)


def _fixed_batch(inputs: Sequence[InputSpec]) -> set[int]:
    """The fixed first dimensions of the inputs; mostly one or none."""
    return {spec.static_batch for spec in inputs if spec.static_batch is not None}


def _whole_batches(order: NDArray[np.intp], fixed_batch: int | None) -> NDArray[np.intp]:
    """Leaves out samples at the end that do not fill a batch of a model that takes no other."""
    if not fixed_batch or not len(order) % fixed_batch:
        return order
    if len(order) < fixed_batch:
        raise CalibrationDataError(
            f"the data has {len(order)} samples but the model has a fixed batch of {fixed_batch}; "
            f"give at least {fixed_batch}"
        )
    left_out = len(order) % fixed_batch
    warn_left_out(left_out, fixed_batch)
    return order[: len(order) - left_out]


def _check_fixed(batch_size: int | None, fixed: set[int]) -> None:
    if batch_size is not None and fixed and fixed != {batch_size}:
        raise CalibrationDataError(
            f"batch_size is {batch_size} but the model has a fixed batch of "
            f"{' and '.join(map(str, sorted(fixed)))}; leave batch_size out"
        )


def _check_untouched(options: DataOptions) -> None:
    is_given = {
        "batch_size": options.batch_size is not None,
        "limit": options.limit is not None,
        "shuffle": options.shuffle,
        "preprocessing": options.preprocessing is not None,
        "labels": options.labels is not None,
    }
    if given := [name for name, value in is_given.items() if value]:
        raise CalibrationDataError(
            f"the data is opened already, so {', '.join(given)} would have no effect; "
            "give it where the data is opened"
        )
