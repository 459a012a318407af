"""What a model wants to be fed, and which samples of the data are taken for that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from calibrators.checks import FilePath, positive_integer, warn_user
from calibrators.data.images.preprocessing import Preprocessing, check_preprocessing
from calibrators.errors import Argument, CalibrationDataError
from calibrators.records import NonNegativeFloat32, Text

#: A shape whose sizes are known.
Shape: TypeAlias = tuple[int, ...]

#: Input name to a shape whose sizes are known.
InputShapes: TypeAlias = Mapping[str, Sequence[int]]

#: A shape: a name or None in place of a size that is not fixed; None where the rank is not known.
OpenShape: TypeAlias = tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class InputSpec:
    """One input of a model.

    Attributes:
        name: The input's name in the graph.
        dtype: The input's element type.
        shape: The input's dimensions: an int where static, a str (or None, unnamed) where dynamic. None where
            even the rank is unknown.
        bound: For an integer input, the least integer above all valid values. An example is the number of
            rows of the table that it indexes. Values begin at 0. None if that is not known. It is only used
            to draw random values.
        hides_scores: Whether the input is a mask: it is only added to the input of a softmax, where minus
            infinity hides a score.
    """

    name: str
    dtype: np.dtype[Any]
    shape: OpenShape
    bound: int | None = field(default=None, compare=False)
    hides_scores: bool = field(default=False, compare=False, repr=False)

    @property
    def static_batch(self) -> int | None:
        """The first dimension if it is fixed, else None."""
        return self.shape[0] if self.shape and isinstance(self.shape[0], int) else None

    @property
    def has_open_sizes(self) -> bool:
        """True if sizes of the input are not fixed, apart from that of its first axis."""
        return any(not isinstance(size, int) for size in (self.shape or ())[1:])

    def __str__(self) -> str:
        dims = "unknown shape" if self.shape is None else shape_text(self.shape)
        return f"'{self.name}' ({self.dtype}, {dims})"


def shape_text(shape: Sequence[int | str | None], times: str = "x") -> str:
    """A shape as text for a message: ``2x3x?x32``, or ``scalar``; ``times`` stands between two sizes."""
    return times.join("?" if dim is None else str(dim) for dim in shape) or "scalar"


def has_fixed_batch(inputs: Sequence[InputSpec]) -> bool:
    """Whether a model takes batches of one size only, which is more than one sample.

    Args:
        inputs: The model's inputs.
    """
    return any((spec.static_batch or 1) > 1 for spec in inputs)


def fixed_batches(inputs: Sequence[InputSpec]) -> set[int]:
    """The fixed first dimensions of the inputs; mostly one or none."""
    return {spec.static_batch for spec in inputs if spec.static_batch is not None}


def named_sizes(inputs: Sequence[InputSpec], shapes: InputShapes) -> dict[str, int]:
    """The sizes of dynamic dimensions by their names, such as that of a text's tokens.

    Args:
        inputs: The model's inputs.
        shapes: Input name to the shape of one sample, without the batch axis; may lack inputs.
    """
    known: dict[str, int] = {}
    for spec in inputs:
        declared, given = (spec.shape or ())[1:], shapes.get(spec.name, ())
        if len(declared) == len(given):
            known |= {dim: size for dim, size in zip(declared, given, strict=True) if isinstance(dim, str)}
    return known


#: Samples per batch where neither the model nor the user says.
DEFAULT_BATCH_SIZE = 32

#: Bytes of an input per batch, of which more make no run on the CPU faster: memory that is used for the first
#: time takes time. A ResNet-50 and a MobileNet are fastest with 2 to 4 images of 224 x 224.
_BYTES_ON_CPU = 2 << 20

#: Bytes of an output per batch, which a comparison has several times in memory. The logits of a language
#: model take 13 MB for 64 tokens and a vocabulary of 50,000.
_OUTPUT_BYTES_ON_CPU = 64 << 20

#: An array of any shape and element type.
Array: TypeAlias = np.ndarray[Shape, np.dtype[np.generic]]


@runtime_checkable
class Tensor(Protocol):
    """A tensor of PyTorch, by methods that it has and no array of NumPy."""

    def detach(self) -> Any:
        """Its values without gradients."""
        ...

    def cpu(self) -> Any:
        """Its values in the memory of the processor."""
        ...

    def numpy(self) -> Any:
        """Its values as an array."""
        ...


#: Labels, one per sample: class indices, an array whose axis 0 is the samples, or the path of a .npy or .npz
#: file; or, for a folder of images, of a .json file of COCO's instances.
LabelSource: TypeAlias = Sequence[int] | Array | FilePath


#: Which samples belong together: one label per sample, such as the name of its recording, as an array or a
#: .npy or .npz file; or how many samples in a row do.
GroupSource: TypeAlias = int | Sequence[object] | Array | FilePath


@dataclass(frozen=True)
class BatchBudget:
    """How large batches may be that are run on the CPU: see :meth:`DataOptions.on_cpu`.

    Attributes:
        inputs: The model's inputs.
        outputs: The shapes of the model's outputs.
    """

    inputs: tuple[InputSpec, ...]
    outputs: tuple[OpenShape, ...] = ()

    @property
    def needs_sample(self) -> bool:
        """Whether the size depends on sizes that the model leaves open."""
        return any(spec.shape is None or spec.has_open_sizes for spec in self.inputs)

    def size(self, sample: Mapping[str, Array]) -> int:
        """Samples per batch.

        Args:
            sample: The arrays of the first sample; may lack inputs, whose open sizes then count as 1.
        """
        most = max((0, *(_bytes_per_sample(spec, sample.get(spec.name)) for spec in self.inputs)))
        named = named_sizes(self.inputs, {name: array.shape[1:] for name, array in sample.items()})
        given = max((0, *(_output_bytes(shape, named) for shape in self.outputs)))
        return min(fitting_batch_size(_BYTES_ON_CPU, most), fitting_batch_size(_OUTPUT_BYTES_ON_CPU, given))


@dataclass(frozen=True)
class CalibratedInputs:
    """What a model was fed while it was calibrated.

    Tables, Q/DQ models and the sidecars of engines hold it, so that whatever uses them feeds the same.

    Attributes:
        preprocessing: What raw images went through; ``none`` where the samples were fed as they are; None
            where that is not known.
        peaks: Input name to the largest magnitude of its values, as far as they were observed.
    """

    preprocessing: Preprocessing | Literal["none"] | None = None
    peaks: Mapping[Text, NonNegativeFloat32] = field(default_factory=dict)

    @property
    def images(self) -> Preprocessing | None:
        """The preprocessing, where there was one and it is known."""
        return self.preprocessing if isinstance(self.preprocessing, Preprocessing) else None

    def __str__(self) -> str:
        if self.preprocessing is None:
            return "not known"
        return "none: samples were fed as they are" if self.images is None else str(self.images)

    def chosen(self, given: Preprocessing | None, what: str) -> Preprocessing | None:
        """The preprocessing to take: the one that was given, or else the recorded one.

        Args:
            given: What the user gave; None for nothing.
            what: What was calibrated, in words.

        Warns:
            UserWarning: What was given is another one than what was recorded.
        """
        if given is None or self.preprocessing is None:
            return given or self.images
        # Of arrays that were fed as they are, nothing tells how images became them: who gives it adds that.
        if self.images is not None and not given.is_same(self.images):
            warn_user(
                f"{what} was calibrated with other preprocessing ({self.images}) than is given ({given}); "
                f"leave {Argument('preprocessing')} out to take that of the calibration"
            )
        return given


@dataclass(frozen=True, eq=False)
class DataOptions:
    """How data is opened. Every option has a default that leaves the data as it is.

    Attributes:
        batch_size: Samples per feed dict. Where None, the model's fixed batch, else ``default_batch_size``;
            the feed dicts of an iterable are then passed on as they come.
        limit: The most samples to take; all where None. They are the first ones. Of samples that lie sorted
            by class, such as those of a folder with one sub-folder per class, they are one of each class in
            turn.
        shuffle: Take the samples in a random order, before ``limit`` is applied.
        seed: Seed of the random order, and of the values of ``random:COUNT``.
        preprocessing: How raw uint8 images become what the model is fed; None feeds the data as it is.
        labels: One label per sample in the order of the data, which replace the data's own.
        default_batch_size: Samples per feed dict where neither ``batch_size`` nor the model says, or how
            large they may be; None leaves it to who takes the batches.
        split: The images of a dataset file that are read: ``train``, ``val`` or ``test``.
        skip_bad: Leave out the samples of files in a folder that cannot be read, and warn of them.
        groups: The group of each sample in the order of the data, or how many samples in a row make a group;
            None where each sample stands alone.
        recorded: Applied to raw uint8 images where ``preprocessing`` is None: what they went through while
            the model was calibrated. Other data is fed as it is.

    Raises:
        CalibrationDataError: ``batch_size`` or ``limit`` is no positive integer, ``seed`` is negative, or
            ``preprocessing`` is of another type.
    """

    batch_size: int | None = None
    limit: int | None = None
    shuffle: bool = False
    seed: int = 0
    preprocessing: Preprocessing | None = None
    labels: LabelSource | None = None
    default_batch_size: int | BatchBudget | None = DEFAULT_BATCH_SIZE
    split: str = "val"
    skip_bad: bool = False
    groups: GroupSource | None = None
    recorded: Preprocessing | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "limit"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, positive_integer(name, value))
        if not isinstance(self.seed, (int, np.integer)) or self.seed < 0:
            raise CalibrationDataError(f"{Argument('seed')} is {self.seed!r}; give an integer of 0 or more")
        if self.preprocessing is not None:
            check_preprocessing(self.preprocessing)

    @property
    def applied(self) -> Preprocessing | None:
        """What raw images go through."""
        return self.preprocessing or self.recorded

    def calibrated(self, inputs: CalibratedInputs | None, what: str) -> DataOptions:
        """The same options with the preprocessing of a calibration, where none is given.

        Args:
            inputs: What was fed then; None where that is not known.
            what: What was calibrated, in words.

        Warns:
            UserWarning: Other preprocessing is given.
        """
        if inputs is None:
            return self
        chosen = inputs.chosen(self.preprocessing, what)
        return self if self.preprocessing is not None else replace(self, recorded=chosen)

    def on_cpu(self, inputs: Sequence[InputSpec], outputs: Sequence[OpenShape] = ()) -> DataOptions:
        """The same options with the batch size that suits runs on the CPU, where nothing else says one.

        Args:
            inputs: The model's inputs.
            outputs: The shapes of the model's outputs.

        Returns:
            Options by which batches have a power of two of samples, 32 at most, with which no input takes
            more than 2 MiB, and no output more than 64 MiB as float32, if there is more than one sample.
            Sizes that the model leaves open are those of the first sample.
        """
        budget = BatchBudget(tuple(inputs), tuple(outputs))
        return replace(self, default_batch_size=budget if budget.needs_sample else budget.size({}))


def _bytes_per_sample(spec: InputSpec, array: Array | None) -> int:
    """What an input takes for one sample; sizes that are not known count as 1."""
    shape = array.shape if array is not None else spec.shape or ()
    return spec.dtype.itemsize * math.prod(size for size in shape[1:] if isinstance(size, int))


def _output_bytes(shape: OpenShape, named: Mapping[str, int]) -> int:
    """What an output takes for one sample, as float32; sizes that are not known count as 1."""
    sizes = (named.get(dim, 1) if isinstance(dim, str) else dim or 1 for dim in (shape or ())[1:])
    return 4 * math.prod(sizes)


def fitting_batch_size(budget: int, bytes_per_sample: int) -> int:
    """How many samples per batch fit into so many bytes: a power of two, at most the usual batch size."""
    fitting = max(1, budget // max(bytes_per_sample, 1))
    return min(DEFAULT_BATCH_SIZE, 1 << (fitting.bit_length() - 1))
