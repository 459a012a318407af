"""Feed dicts: how the arrays of a data source become one, and what is known of one without its values."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from calibrators.checks import FilePath
from calibrators.data.images.preprocessing import RESIZING, Preprocessing
from calibrators.data.inputs import InputSpec, Shape, Tensor, has_fixed_batch, shape_text
from calibrators.errors import Argument, CalibrationDataError, such_as

#: An array of any element type.
Array = NDArray[Any]

#: Arrays of float64, of float32, of any floats, of int64, of bool, and of indices.
Floats = NDArray[np.float64]
Float32s = NDArray[np.float32]
AnyFloats = NDArray[np.floating]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Indices = NDArray[np.intp]

#: Name to array, of what is only read.
NamedArrays = Mapping[str, Array]

#: Input name to array: what one run of a model is given.
FeedDict = dict[str, Array]


#: What a model is fed, and the labels where they come with it.
FedAndLabels: TypeAlias = tuple[FeedDict, Array | None]


#: Gives what a sample is called in messages, by its number.
NameOf: TypeAlias = Callable[[int], str]


class OneSample(FeedDict):
    """A feed that is one sample as a whole, whatever lies along axis 0 of its arrays."""


#: The key that ``numpy.savez`` gives to an array without a name.
_UNNAMED = "arr_0"

#: The key that holds labels, which are never fed (unless the model has an input of this name).
LABELS = "labels"


@dataclass(frozen=True)
class Binding:
    """Which array goes into which input, and how it gets there.

    Attributes:
        inputs: The model's inputs.
        preprocessing: Applied to uint8 images on their way to a floating-point input; None feeds as is.
        batch_axes: Input name to the axis of its samples in arrays that hold all of them; 0 for others.
        must_apply: Whether data that preprocessing does not apply to is refused; else it is fed as it is.
    """

    inputs: Sequence[InputSpec]
    preprocessing: Preprocessing | None = None
    batch_axes: Mapping[str, int] = field(default_factory=dict)
    must_apply: bool = True

    def only_input(self, what: str) -> InputSpec:
        """The model's single input, for data that names none.

        Args:
            what: The data, for the message.

        Raises:
            CalibrationDataError: The model has several inputs.
        """
        if len(self.inputs) != 1:
            raise CalibrationDataError(
                f"{what} names no input and the model has {len(self.inputs)}: {listed(self.inputs)}; "
                "pass a dict or .npz with one array for each of these names"
            )
        return self.inputs[0]

    def split(self, arrays: Mapping[str, Any]) -> FedAndLabels:
        """Separates what is fed from the labels, and names it after the model's inputs.

        Args:
            arrays: Input name to array; ``labels`` are labels. A model with one input takes the only array
                whatever its key with preprocessing, and without it where nobody has named the array.

        Returns:
            The arrays by input name, and the labels where there are any.

        Raises:
            CalibrationDataError: Names do not match the inputs, a value is no NumPy array, or raw images have
                another name than the only input and no preprocessing.
        """
        names = {spec.name for spec in self.inputs}
        fed = {name: array for name, array in arrays.items() if name != LABELS or name in names}
        alone = len(fed) == len(self.inputs) == 1
        unnamed = _UNNAMED in fed or self._must_prepare
        if alone and (unnamed or self._prepares(next(iter(fed.values())), self.inputs[0])):
            fed = {self.inputs[0].name: next(iter(fed.values()))}
        elif alone:
            _refuse_raw_images(*next(iter(fed.items())), self.inputs[0])
        check_names(fed, self.inputs)
        for name, array in fed.items():
            if not isinstance(array, np.ndarray):
                spec = next(spec for spec in self.inputs if spec.name == name)
                raise CalibrationDataError(
                    f"the data for input '{name}' is a {type(array).__name__}; convert it to a NumPy array"
                    f"{_one_by_one(spec)}"
                )
        return fed, None if LABELS in names else arrays.get(LABELS)

    def check(self, feed: FeedDict) -> None:
        """Refuses element types that the model does not take and preprocessing that does not apply.

        Args:
            feed: Arrays by input name, with their batch axis, not yet preprocessed.

        Raises:
            CalibrationDataError: Says which input, and the cast or the preprocessing to declare.
        """
        images = [name for name, array in feed.items() if is_image_batch(array)]
        if self._must_prepare and not images:
            found = ", ".join(
                f"'{name}' is {a.dtype} of shape {shape_text(a.shape)}" for name, a in feed.items()
            )
            raise CalibrationDataError(
                f"preprocessing was given but the data is not uint8 images of shape (N, H, W, C): {found}; "
                "leave the preprocessing out or pass the raw images"
            )
        for spec in self.inputs:
            if spec.name in images and spec.shape is not None and len(spec.shape) != 4:
                raise CalibrationDataError(
                    f"the data is images, whose batches have 4 dimensions, but input {spec} has "
                    f"{len(spec.shape)}; give arrays in which each sample has the shape "
                    f"{shape_text(spec.shape[1:])}, such as a folder with one .npy per sample"
                )
            if not self._prepares(feed[spec.name], spec):
                check_dtype(feed[spec.name], spec)
            elif not is_float(spec.dtype):
                raise CalibrationDataError(
                    f"preprocessing makes floating-point images but input '{spec.name}' takes {spec.dtype}; "
                    "leave the preprocessing out"
                )

    @property
    def _must_prepare(self) -> bool:
        return self.preprocessing is not None and self.must_apply

    def _prepares(self, array: Any, spec: InputSpec) -> bool:
        """True if an array goes through the preprocessing, or would, if the input took what that makes."""
        if self.preprocessing is None or not isinstance(array, np.ndarray) or not is_image_batch(array):
            return False
        return self.must_apply or is_float(spec.dtype)

    def prepare(self, feed: FeedDict, *, copied: bool = False) -> FeedDict:
        """Preprocesses the images of a checked feed and makes every array C-contiguous.

        Args:
            feed: Arrays by input name, as :meth:`check` accepts them.
            copied: Whether every array gets memory of its own.

        Returns:
            What the model is fed. Preprocessed images get the input's floating-point type.
        """
        prepared = {}
        for spec in self.inputs:
            array = feed[spec.name]
            if self.preprocessing is not None and self._prepares(array, spec):
                array = self.preprocessing(array).astype(spec.dtype, copy=False)
                _check_layout(array, spec, self.preprocessing.layout)
            elif copied:
                array = array.copy()
            prepared[spec.name] = np.asarray(array, order="C")
        return prepared


def _check_layout(images: Array, spec: InputSpec, layout: str) -> None:
    """Refuses preprocessed images that have the other layout than the input.

    Raises:
        CalibrationDataError: Names the layout to declare.
    """
    if spec.shape is None or moved_axis(images.shape, spec.shape) not in _OTHER_LAYOUTS:
        return
    other = "NHWC" if layout == "NCHW" else "NCHW"
    raise CalibrationDataError(
        f"the preprocessed images for input '{spec.name}' have shape {shape_text(images.shape)} but the "
        f"model takes {shape_text(spec.shape)}; set {Argument('layout', other)} of the preprocessing"
    )


#: NHWC to NCHW and back, as moves of an axis.
_OTHER_LAYOUTS = ((-1, -3), (-3, -1))


def moved_axis(shape: Shape, wanted: tuple[int | str | None, ...]) -> tuple[int, int] | None:
    """The axis to move, and where to, so that an array fits an input that does not take it as it is.

    Args:
        shape: The shape of the array, with the batch axis, which stays.
        wanted: The shape of the input.

    Returns:
        Two arguments of ``numpy.moveaxis``, counted from the end; None if no such move helps, or none is
        needed.
    """
    if len(shape) != len(wanted) or fits(shape, wanted):
        return None
    axes = range(-1, -len(shape), -1)
    moves = ((source, target) for source in axes for target in reversed(axes) if source != target)
    view = np.broadcast_to(np.empty((), np.uint8), shape)
    return next((move for move in moves if fits(np.moveaxis(view, *move).shape, wanted)), None)


def fits(shape: Shape, wanted: tuple[int | str | None, ...]) -> bool:
    """Whether an array has the fixed dimensions of an input of the same rank."""
    return all(not isinstance(dim, int) or dim == size for size, dim in zip(shape, wanted, strict=True))


def batch_rows(feed: NamedArrays) -> int | None:
    """How many samples a feed holds along axis 0; None where it is one sample as a whole.

    It is where its arrays do not share the length of axis 0, and where it is an :class:`OneSample`.
    """
    lengths = {array.shape[0] if array.ndim else None for array in feed.values()}
    return lengths.pop() if len(lengths) == 1 and not isinstance(feed, OneSample) else None


def samples_in(feed: NamedArrays) -> int:
    """How many samples a feed holds: one where it is one sample as a whole."""
    rows = batch_rows(feed)
    return 1 if rows is None else rows


def part_of(feed: NamedArrays, start: int, stop: int | None) -> FeedDict:
    """The samples of a feed from one number on, up to another; views of its arrays."""
    return {name: array[start:stop] for name, array in feed.items()}


def copied_feed(feed: FeedDict) -> FeedDict:
    """Returns a feed of the same kind with arrays of its own: a loader may overwrite its buffers."""
    return type(feed)((name, array.copy()) for name, array in feed.items())


def pieces(feed: FeedDict, rows: int | None, at_once: int = 1) -> Iterator[FeedDict]:
    """Divides a feed.

    Args:
        feed: Input name to array.
        rows: The most samples of the pieces that are used at once, together; None does not divide.
        at_once: How many pieces are used at once, at most ``rows``.

    Yields:
        Views of the feed, in order and about equally large; the feed itself where it is small enough or its
        arrays share no batch axis.
    """
    samples = batch_rows(feed)
    parts = even_parts(samples, rows, at_once) if rows and samples else []
    if len(parts) <= 1:
        yield feed
        return
    for part in parts:
        yield part_of(feed, part.start, part.stop)


def even_parts(samples: int, rows: int, at_once: int = 1) -> list[slice]:
    """Divides samples into runs that are about equally long.

    Args:
        samples: How many there are, at least one.
        rows: The most samples of the runs that go on at once, together.
        at_once: How many runs go on at once, at most ``rows``. There are as many parts for each of them, as
            far as there are samples, so that none waits for another.

    Returns:
        The parts, in order.
    """
    count = min(samples, math.ceil(samples / rows) * at_once)
    bounds = [-(-samples * number // count) for number in range(count + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(bounds)]


def joined(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Consecutive parts as one: what :func:`pieces` divides.

    Args:
        parts: Name to array, one part or more, all of the same names.

    Returns:
        Name to array; the part itself where there is one.
    """
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def join_samples(samples: Sequence[NamedArrays], name_of: NameOf, binding: Binding) -> FeedDict:
    """Joins samples along axis 0.

    Args:
        samples: At least one: arrays by the same names, with a batch axis.
        name_of: Gives what a sample is called in messages, by its place among these.
        binding: Says what the model takes.

    Raises:
        CalibrationDataError: Their shapes differ; says how such samples are used.
    """
    first = samples[0]
    for place, sample in enumerate(samples):
        for name, array in sample.items():
            shapes = (1, *array.shape[1:]), (1, *first[name].shape[1:])
            if shapes[0] != shapes[1]:
                raise CalibrationDataError(
                    f"{name_of(place)} gives '{name}' the shape {shape_text(shapes[0])} but {name_of(0)} "
                    f"gives {shape_text(shapes[1])}; {_sharing(name, shapes, binding)}"
                )
    return {name: np.concatenate([sample[name] for sample in samples]) for name in first}


def _sharing(name: str, shapes: Iterable[Shape], binding: Binding) -> str:
    """What to do about two samples of an input that have different shapes."""
    one_shape = "bring all samples to one shape"
    if binding.preprocessing is not None:
        one_shape += f", images by preprocessing: {RESIZING}"
    takes = next((spec.shape for spec in binding.inputs if spec.name == name), None)
    if has_fixed_batch(binding.inputs):
        return f"the model has a fixed batch of more than one sample, so {one_shape}"
    if takes is not None and not all(fits(shape[1:], takes[1:]) for shape in shapes):
        return f"the model takes {shape_text(takes)}, so {one_shape}"
    return f"set {Argument('batch_size', '1')} to run each sample by itself, or {one_shape}"


def _one_by_one(spec: InputSpec) -> str:
    """The other way for samples that make no array, as they have different sizes; empty where it is none."""
    if spec.shape is None or not spec.has_open_sizes:
        return ""
    return (
        f", or give samples of different sizes as a list of dicts, one per sample, in which '{spec.name}' "
        f"has the shape {shape_text((1, *spec.shape[1:]))}"
    )


def check_names(names: Iterable[str], inputs: Sequence[InputSpec]) -> None:
    """Refuses data that lacks an input or has an array that is none.

    Raises:
        CalibrationDataError: Names are unknown or missing; lists them and the model's inputs.
    """
    given, wanted = set(names), {spec.name for spec in inputs}
    unknown, missing = sorted(given - wanted), sorted(wanted - given)
    if unknown or missing:
        problems = [f"unknown {such_as(unknown)}"] if unknown else []
        problems += [f"missing {', '.join(map(repr, missing))}"] if missing else []
        raise CalibrationDataError(
            f"the data does not match the model's inputs: {' and '.join(problems)}; "
            f"the model has {listed(inputs)}, and the data has {such_as(sorted(given))}: "
            f"{_renaming(unknown, missing)}"
        )


def _renaming(unknown: Sequence[str], missing: Sequence[str]) -> str:
    """What to do about names that are not the inputs'."""
    if not (unknown and missing):
        return f"leave {', '.join(map(repr, unknown))} out" if unknown else "add what is missing"
    if len(unknown) == len(missing) == 1:
        one, other = unknown[0], missing[0]
        return f"rename {one!r} to {other!r}, in an .npz by numpy.savez(path, **{{{other!r}: data[{one!r}]}})"
    if len(unknown) > len(missing) == 1:
        return (
            f"name one of them '{missing[0]}', or if each of them is a sample, save each under this name in "
            "an .npz of its own in a folder"
        )
    return "name the arrays after the inputs, in an .npz by numpy.savez"


def _refuse_raw_images(name: str, array: Any, spec: InputSpec) -> None:
    """Refuses images of another name than the input's, whose name does not matter once they are preprocessed.

    Raises:
        CalibrationDataError: Names the preprocessing to declare.
    """
    if name == spec.name or not isinstance(array, np.ndarray) or not is_float(spec.dtype):
        return
    is_one_image = array.dtype == np.uint8 and array.ndim == 3 and len(spec.shape or ()) == 4
    if is_image_batch(array) or is_one_image:
        raise CalibrationDataError(
            f"input '{spec.name}' takes {spec.dtype} but the data, '{name}', is uint8 images; "
            f"{_declaring(spec)}: then '{name}' goes into '{spec.name}' whatever its name"
        )


def _declaring(spec: InputSpec) -> str:
    """What to do about images that an input does not take as they are."""
    return (
        f"declare how they become {spec.dtype} with {Argument('preprocessing', 'Preprocessing(...)')} "
        f"({Argument('scale', '1/255')} for values from 0 to 1, {Argument('mean')}, {Argument('std')} and "
        "so on)"
    )


def check_dtype(array: Array, spec: InputSpec) -> None:
    """Refuses an array whose element type is not the input's: nothing is cast unless the user asks for it.

    Raises:
        CalibrationDataError: Names both types and the cast or, for images, the preprocessing to declare.
    """
    if array.dtype == spec.dtype:
        return
    if is_image_batch(array) and is_float(spec.dtype):
        raise CalibrationDataError(
            f"input '{spec.name}' takes {spec.dtype} but its data is uint8 images; {_declaring(spec)}"
        )
    if array.dtype.kind in "USMmc":
        raise CalibrationDataError(
            f"input '{spec.name}' takes {spec.dtype} but its data is {array.dtype}; give numbers of that type"
        )
    conversion = f"convert it yourself with array.astype('{spec.dtype}')"
    if array.dtype.hasobject:
        conversion = f"pad the samples to one length and {conversion}{_one_by_one(spec)}"
    raise CalibrationDataError(
        f"input '{spec.name}' takes {spec.dtype} but its data is {array.dtype}; {conversion}"
    )


def is_image_batch(array: Array) -> bool:
    """Whether an array looks like raw images: uint8 and of rank 4."""
    return array.dtype == np.uint8 and array.ndim == 4


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a type is one of NumPy's floating-point types."""
    return np.issubdtype(dtype, np.floating)


def listed(inputs: Sequence[InputSpec]) -> str:
    """The inputs as text for a message."""
    return ", ".join(map(str, inputs))


def first_feeds(feeds: Iterable[FeedDict], samples: int) -> Iterator[FeedDict]:
    """The first feeds, until they hold a given number of samples.

    Args:
        feeds: The data.
        samples: The least number of samples; the last feed is not cut. A feed whose inputs do not share
            axis 0 is one sample.
    """
    taken = 0
    for feed in feeds:
        if taken >= samples:
            return
        taken += batch_rows(feed) or 1
        yield feed


@dataclass(frozen=True, eq=False)
class BatchAxes:
    """Data in which the samples of some inputs lie along another axis than the first.

    Attributes:
        data: The path of a .npz, or a dict of arrays.
        axes: Input name to the axis along which its samples lie, counted from 0; 0 for other inputs.

    Examples:
        >>> images = np.load("calibration.npz")["images"].swapaxes(0, 1)  # samples along axis 1
        >>> table = trtint8.calibrate("model.onnx", trtint8.BatchAxes({"images": images}, {"images": 1}))
    """

    data: FilePath | Mapping[str, Any]
    axes: Mapping[str, int]


def needs_single_feeds(arrays: FeedDict, axes: Mapping[str, int]) -> bool:
    """Whether arrays cannot be cut into batches along axis 0.

    Args:
        arrays: Input name to array.
        axes: Input name to batch axis.
    """
    return any(axes.values()) or len({bool(array.ndim) for array in arrays.values()}) > 1


def count_samples(arrays: FeedDict, axes: Mapping[str, int]) -> int:
    """How many samples arrays hold along their batch axes.

    Args:
        arrays: Input name to array. What is no more than one number is fed with every sample.
        axes: Input name to batch axis.

    Raises:
        CalibrationDataError: The arrays hold different numbers of samples, lack an axis, or are one number
            each.
    """
    counts: dict[str, int] = {}
    for name, array in arrays.items():
        axis = axes.get(name, 0)
        if not array.ndim and not axis:
            continue
        if axis >= array.ndim:
            raise CalibrationDataError(
                f"the batch axis of '{name}' is {axis}, and its array has the shape "
                f"{shape_text(array.shape)}; give one of its axes, counted from 0"
            )
        counts[name] = array.shape[axis]
    if len(set(counts.values())) != 1:
        found = ", ".join(f"'{name}' {count}" for name, count in counts.items())
        raise CalibrationDataError(
            f"the arrays have different numbers of samples along their batch axes: {found or 'none'}; give "
            f"all of them the same, and say with {Argument('BatchAxes')} where it is another axis than 0"
        )
    return next(iter(counts.values()))


def count_rows(arrays: FeedDict) -> int:
    """How many samples arrays hold along axis 0.

    Raises:
        CalibrationDataError: They do not share its length.
    """
    rows = batch_rows(arrays)
    if rows is None:
        shapes = ", ".join(f"'{name}' {shape_text(array.shape)}" for name, array in arrays.items())
        raise CalibrationDataError(
            f"the arrays do not share a number of samples along axis 0: {shapes}; give all of them the same "
            f"length there, or say with {Argument('BatchAxes')} along which axis the samples of an input lie"
        )
    return rows


def one_sample(arrays: FeedDict, axes: Mapping[str, int], index: int) -> FeedDict:
    """One sample of arrays, with a batch axis of 1 where it has one.

    Args:
        arrays: Input name to array.
        axes: Input name to batch axis.
        index: Which sample.
    """
    return {
        name: np.take(array, [index], axes.get(name, 0)) if array.ndim else array
        for name, array in arrays.items()
    }


#: The keys that hold labels in dicts by name: the second is that of datasets before a collator renames it.
LABEL_KEYS = (LABELS, "label")

#: Element types of PyTorch that NumPy has from ml_dtypes, with PyTorch's type of integers of their size.
_BITS = {"bfloat16": "int16", "float8_e4m3fn": "int8", "float8_e5m2": "int8"}


def named_arrays(item: object, binding: Binding) -> dict[str, Any]:
    """Names the parts of an item after the model's inputs.

    Args:
        item: One of

            - a dict of input name to array, perhaps with ``labels`` or ``label``;
            - a tuple or list with an array for each of the model's inputs in their order, and perhaps labels
              after them, as data loaders of PyTorch yield them;
            - a tuple or list of two: such a dict, tuple or list without labels, and the labels;
            - an array for the model's only input.

            Arrays may be tensors of PyTorch, on any device, images of Pillow, and whatever else converts
            itself for NumPy.
        binding: Says what feeds the model.

    Returns:
        Input name to array, and ``labels`` where there are any.

    Raises:
        CalibrationDataError: The item is something else, or has another number of parts.
    """
    if isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], Mapping | tuple | list):
        return {**named_arrays(item[0], binding), LABELS: as_array(item[1])}
    if isinstance(item, Mapping):
        return _named(item, binding)
    if isinstance(item, tuple | list):
        names = [spec.name for spec in binding.inputs]
        if len(item) == len(names) + 1 and LABELS not in names:
            names.append(LABELS)
        if len(item) != len(names):
            raise CalibrationDataError(
                f"a {type(item).__name__} of {len(item)} does not fit the model's {len(binding.inputs)} "
                f"inputs ({', '.join(spec.name for spec in binding.inputs)}); an array for each, in this "
                "order, is needed, and perhaps labels after them; or yield dicts of input name to array"
            )
        return {name: as_array(value) for name, value in zip(names, item, strict=True)}
    array = as_array(item)
    if not isinstance(array, np.ndarray):
        raise CalibrationDataError(
            f"it is a {type(item).__name__}; yield arrays, tuples of arrays, or dicts of input name to array"
        )
    return {binding.only_input("an array").name: array}


def _named(item: Mapping[Any, Any], binding: Binding) -> dict[str, Any]:
    """The arrays of a dict, with its labels under one name.

    Tokenizers give more than every model takes: what is no input is left out where all inputs are there.
    """
    names = {spec.name for spec in binding.inputs}
    labels = next((key for key in LABEL_KEYS if key in item and key not in names), None)
    item = {(LABELS if name == labels else name): value for name, value in item.items()}
    if names <= item.keys():
        item = {name: value for name, value in item.items() if name in names or name == LABELS}
    return {name: as_array(value) for name, value in item.items()}


def are_numbers(labels: Any) -> bool:
    """Whether labels can be compared with outputs; a detector's boxes, for example, are lists of dicts."""
    try:
        return labels is not None and np.asarray(labels).dtype.kind in "biuf"
    except ValueError:  # lists of unequal length
        return False


def as_array(value: Any) -> Any:
    """A tensor or an image as a NumPy array; everything else as it is.

    Raises:
        CalibrationDataError: A tensor holds nothing that NumPy can.
    """
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Tensor):
        return _tensor_values(value)
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):  # images have the second only
        return np.asarray(value)
    return value


def _tensor_values(tensor: Any) -> Array:
    """The values of a tensor, which may be on a GPU, need gradients, or be a lazy conjugate or negative."""
    try:
        tensor = tensor.detach().cpu()
        name = str(getattr(tensor, "dtype", "")).removeprefix("torch.")
        if name in _BITS:
            bits = tensor.contiguous().view(getattr(sys.modules["torch"], _BITS[name])).numpy()
            return cast("Array", bits.view(getattr(ml_dtypes, name)))
        for lazy in ("resolve_conj", "resolve_neg"):
            if hasattr(tensor, lazy):
                tensor = getattr(tensor, lazy)()
        return cast("Array", tensor.numpy())
    except (TypeError, RuntimeError) as error:  # such as those of sparse tensors and of tensors without data
        reason = str(error).strip().splitlines()[0].rstrip(".!")
        raise CalibrationDataError(
            f"a tensor does not become a NumPy array: {reason}; yield dense tensors that hold values"
        ) from error
