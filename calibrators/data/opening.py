"""The one way in for calibration and validation data: anything that holds samples becomes batches.

Kinds of data are told apart here and nowhere else. Each is a source. What changes samples is a source around
it, which is put on here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrators.checks import PATH_TYPES, FilePath, refuse_empty_path
from calibrators.data.batches import Batches, IndexedSource, Source, bad_samples, sample_order
from calibrators.data.feeds import BatchAxes, Binding, Indices, listed
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.images.true_boxes import DATASET_SUFFIXES
from calibrators.data.inputs import (
    Array,
    BatchBudget,
    DataOptions,
    InputSpec,
    LabelSource,
    Tensor,
    fixed_batches,
)
from calibrators.data.sequences import RecordedSteps, StateSequences, Steps
from calibrators.data.sources.arrays import (
    ArrayFile,
    Arrays,
    ArraysAlongAxes,
    load_groups,
    load_labels,
    sorted_classes,
)
from calibrators.data.sources.datasets import Blocks, Indexed, Rows
from calibrators.data.sources.folders import DatasetFile, Folder
from calibrators.data.sources.random_samples import RANDOM, RandomSamples
from calibrators.data.sources.streams import Stream, has_columns, is_dataset, is_indexed
from calibrators.errors import Argument, CalibrationDataError
from calibrators.files import exists, is_folder


class Kind(Protocol):
    """A kind of data."""

    def open(self, data: Any, binding: Binding, options: DataOptions) -> Source:
        """Opens data for a model.

        Args:
            data: Data of this kind.
            binding: Says which array feeds which input, and what images go through on their way.
            options: Which samples are taken.

        Raises:
            CalibrationDataError: The data is unusable, or does not fit the model or the options.
        """
        ...


class RayDataset(Protocol):
    """A ``ray.data.Dataset``, by two methods that it has and no other kind of data."""

    def materialize(self) -> object:
        """Computes the dataset."""
        ...

    def num_blocks(self) -> int | None:
        """How many blocks it has."""
        ...


#: What calibration and validation data may be: see :func:`open_batches`.
DataSource: TypeAlias = (
    FilePath
    | Array
    | Mapping[str, Array]
    | BatchAxes
    | StateSequences
    | RecordedSteps
    | Iterable[object]
    | Callable[[], Iterable[object]]
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
    split: str = "val",
    skip_bad: bool = False,
) -> Batches:
    """Opens calibration or validation data for a model. Samples are read when they are iterated.

    Args:
        data: One of

            - a path: a .npz (keys are input names) or .npy file; a folder of such files, each one sample, or
              a block of samples with the batch axis; or a folder of images, flat or with one sub-folder per
              class, or with true boxes beside them (see :mod:`calibrators.data.images.true_boxes`); or a
              dataset file of ultralytics (.yaml), of which calibration reads the images of ``train``, and
              everything else those of ``val``;
            - an array or tensor for the model's only input, or a dict of these, with samples along axis 0;
            - :class:`calibrators.data.feeds.BatchAxes`: a .npz or a dict of arrays of which some inputs have
              their samples along another axis. Each sample is then a feed dict of its own, as with inputs
              that are one number;
            - :class:`calibrators.data.sequences.StateSequences`, if there is a float model to record the
              states with. Every step is then a feed dict of its own;
            - an iterable, or a callable without arguments that returns one, of feed dicts, of arrays for the
              model's only input, or of tuples with an array for each input in the model's order and perhaps
              labels after them: a ``DataLoader`` of PyTorch, for example, whose tensors may be on a GPU;
            - a dataset of PyTorch, which gives one sample per index. It is read in this process. If that is
              slow, a ``DataLoader`` with workers is faster;
            - a dataset of Hugging Face, whose columns are inputs and, if called ``label`` or ``labels``,
              labels; a model's only input takes the only other column;
            - a Ray Dataset, whose columns are inputs and, if called ``labels``, labels;
            - the text ``random:COUNT``: random values, for timing only. If other dimensions than the batch
              are dynamic, add the shape of a sample, as in ``random:64,images=3x480x640``;
            - :class:`Batches`, which are returned unchanged.

            The key ``labels`` of a dict or .npz is never fed. It holds class indices, or one array per sample
            that an output can be compared with. Workers of a Ray cluster open a path themselves, under the
            same name. The samples of arrays are sent to the workers and preprocessed there. An iterable is
            read and preprocessed in this process.
        inputs: What the model takes.
        batch_size: Samples per feed dict. By default the model's fixed batch, else 32. Feed dicts of an
            iterable are not divided or joined.
        limit: The most samples to take; all where None. From samples that lie sorted by class, such as those
            of a folder with one sub-folder per class, it takes one of each class in turn.
        shuffle: Take the samples in a random order, before ``limit`` is applied.
        seed: Seed of the random order, and of the values of ``random:COUNT``.
        preprocessing: The preprocessing of raw uint8 images (N, H, W, C). A model with one input then takes
            the only array of a dict or .npz, whatever its key.
        labels: One label per sample in the order of the data, as an array or a .npy or .npz file, or for a
            folder of images a .json file of COCO's instances. They replace the labels in the data. For an
            iterable their number is checked at the end of a pass.
        split: The images of a dataset file that are read: ``train``, ``val`` or ``test``.
        skip_bad: Leave out the files of a folder that cannot be read, with their labels, and warn of them.
            All files are read an additional time for that.

    Returns:
        The batches. Their arrays are C-contiguous and have the inputs' element types.

    Raises:
        CalibrationDataError: The data is unreadable, empty, or does not fit the model or the options.
        UnsupportedError: Images are to be read and Pillow is not installed.

    Warns:
        UserWarning: The model has a fixed batch size, and the last samples, which do not fill a batch, are
            left out. Or files cannot be read, and ``skip_bad`` leaves them out.

    Examples:
        >>> from calibrators.data.opening import open_batches
        >>> batches = open_batches("calibration.npz", trtint8.model_inputs("model.onnx"), batch_size=32)
        >>> next(iter(batches))["images"].shape
        (32, 1, 8, 8)
    """
    options = DataOptions(
        batch_size, limit, shuffle, seed, preprocessing, labels, split=split, skip_bad=skip_bad
    )
    return open_data(data, inputs, options)


def open_data(data: DataSource, inputs: Sequence[InputSpec], options: DataOptions) -> Batches:
    """:func:`open_batches` with its options in one object."""
    if isinstance(data, Batches):
        _check_untouched(options)
        return data
    binding = Binding(tuple(inputs), options.applied, must_apply=options.preprocessing is not None)
    source = kind_of(data).open(data, binding, options)
    size, fixed_batch = options.batch_size, None
    if source.is_single:
        _check_single(size)
        size = 1
    else:
        fixed_batch = None if source.passes_on else _fixed_batch(binding.inputs)
        _check_fixed(size, fixed_batches(binding.inputs))
        size = size or fixed_batch
    if isinstance(source, IndexedSource):
        assert source.count is not None
        classes = source.labels if source.class_names else sorted_classes(source.labels)
        bad = bad_samples(source, options, classes) if options.skip_bad else frozenset()
        order = sample_order(source.count, options, fixed_batch, classes, bad)
        known: dict[str, Any] = {}
        if options.labels is not None:
            known = {"labels": _own_labels(source, options, order), "class_names": None}
        if options.groups is not None:
            known["groups"] = load_groups(options.groups, source.count)[order]
        source = source.taken(order, **known)
    elif options.groups is not None:
        raise CalibrationDataError(
            f"{Argument('groups')} says which samples belong together, and those of an iterable are not "
            "counted before they are read; give arrays, a file, a folder, or a dataset with indices"
        )
    if size is None and not source.passes_on:
        default = options.default_batch_size
        size = default.size(source.first()) if isinstance(default, BatchBudget) else default
    return Batches(source, size)


def kind_of(data: object) -> Kind:
    """Tells the kind of data that is not opened yet. Nothing else asks for kinds.

    Raises:
        CalibrationDataError: It is a path at which there is nothing.
    """
    if isinstance(data, np.ndarray | Mapping | Tensor):
        return Arrays
    if isinstance(data, BatchAxes):
        return ArraysAlongAxes
    if isinstance(data, str) and data.startswith(RANDOM):
        return RandomSamples
    if isinstance(data, PATH_TYPES):
        return _kind_at(data)
    if isinstance(data, StateSequences | RecordedSteps):
        return Steps
    if is_indexed(data):
        return Indexed
    if has_columns(data):
        return Rows
    if is_dataset(data):
        return Blocks
    return Stream  # an iterable, or a callable that returns one


def _kind_at(path: FilePath) -> Kind:
    if is_folder(path):
        return Folder
    if not exists(path):
        refuse_empty_path("the data", path, CalibrationDataError)
        raise CalibrationDataError(f"the data '{path}' does not exist; check the path")
    return DatasetFile if Path(path).suffix.lower() in DATASET_SUFFIXES else ArrayFile


def _own_labels(source: IndexedSource, options: DataOptions, order: Indices) -> NDArray[Any]:
    """Labels that do not come with the samples, in the order of iteration."""
    labels = options.labels
    refuse_empty_path("the labels", labels, CalibrationDataError)
    if isinstance(labels, PATH_TYPES) and Path(labels).suffix.lower() == ".json":
        return source.boxes(labels, order, options.applied)
    return load_labels(labels, source.count)[order]


def _check_untouched(options: DataOptions) -> None:
    names = ("batch_size", "limit", "shuffle", "preprocessing", "labels", "skip_bad", "groups")
    values = {**vars(options), "shuffle": bool(options.shuffle), "skip_bad": bool(options.skip_bad)}
    if given := [f"{Argument(name)}" for name in names if values[name] is not getattr(DataOptions, name)]:
        raise CalibrationDataError(
            f"the data is opened already, so {', '.join(given)} would have no effect; "
            "give it where the data is opened"
        )


def _check_single(batch_size: int | None) -> None:
    """Refuses to join samples that cannot share a batch."""
    if batch_size not in (None, 1):
        raise CalibrationDataError(
            f"{Argument('batch_size')} is {batch_size}, and inputs that are one number or have another batch "
            f"axis than 0 are fed one sample at a time; leave {Argument('batch_size')} out"
        )


def _check_fixed(batch_size: int | None, fixed: set[int]) -> None:
    """Refuses a batch size that is not the model's fixed one."""
    if batch_size is not None and fixed and fixed != {batch_size}:
        raise CalibrationDataError(
            f"{Argument('batch_size')} is {batch_size} but the model has a fixed batch of "
            f"{' and '.join(map(str, sorted(fixed)))}; leave {Argument('batch_size')} out"
        )


def _fixed_batch(inputs: Sequence[InputSpec]) -> int | None:
    """The model's fixed batch, for data that gives one sample at a time; None where it takes any."""
    fixed = fixed_batches(inputs)
    if len(fixed) > 1:
        raise CalibrationDataError(
            f"the model's inputs have different fixed first dimensions: {listed(inputs)}; "
            "pass an iterable of feed dicts"
        )
    return next(iter(fixed), None)
