"""Which samples are taken from the data, and how they become batches."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from calibrators.checks import positive_integer
from calibrators.data.images.preprocessing import Preprocessing, check_preprocessing
from calibrators.data.inputs import InputSpec, OpenShape, named_sizes
from calibrators.errors import Argument, CalibrationDataError

#: Samples per batch where neither the model nor the user says.
DEFAULT_BATCH_SIZE = 32

#: Bytes of an input per batch, of which more make no run on the CPU faster: memory that is used for the first
#: time takes time. A ResNet-50 and a MobileNet are fastest with 2 to 4 images of 224 x 224.
_BYTES_ON_CPU = 2 << 20

#: Bytes of an output per batch, which a comparison has several times in memory. The logits of a language
#: model take 13 MB for 64 tokens and a vocabulary of 50,000.
_OUTPUT_BYTES_ON_CPU = 64 << 20

#: An array of any shape and element type.
Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

#: Samples per batch, from the arrays of one sample as the model is fed it; from none where samples cannot be
#: looked at beforehand.
SizeRule: TypeAlias = Callable[[Mapping[str, Array]], int]

#: Labels, one per sample: class indices, an array whose axis 0 is the samples, or the path of a .npy or .npz
#: file; or, for a folder of images, of a .json file of COCO's instances.
LabelSource: TypeAlias = Sequence[int] | Array | str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class DataOptions:
    """How data is opened. Every option has a default that leaves the data as it is.

    Attributes:
        batch_size: Samples per feed dict. Where None, the model's fixed batch, else ``default_batch_size``;
            the feed dicts of an iterable are then passed on as they come.
        limit: The most samples to take; all where None. They are the first ones; of a folder with one
            sub-folder per class, one of each class in turn.
        shuffle: Take the samples in a random order, before ``limit`` is applied.
        seed: Seed of the random order, and of the values of ``random:COUNT``.
        preprocessing: How raw uint8 images become what the model is fed; None feeds the data as it is.
        labels: One label per sample in the order of the data, which replace the data's own.
        default_batch_size: Samples per feed dict where neither ``batch_size`` nor the model says, or what
            tells it from a sample.

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
    default_batch_size: int | SizeRule = DEFAULT_BATCH_SIZE

    def __post_init__(self) -> None:
        for name in ("batch_size", "limit"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, positive_integer(name, value))
        if not isinstance(self.seed, (int, np.integer)) or self.seed < 0:
            raise CalibrationDataError(f"{Argument('seed')} is {self.seed!r}; give an integer of 0 or more")
        check_preprocessing(self.preprocessing)

    def default_size(self, sample: Callable[[], Mapping[str, Array]]) -> int:
        """Samples per feed dict where neither ``batch_size`` nor the model says.

        Args:
            sample: Reads one sample; called only where the size depends on it.
        """
        size = self.default_batch_size
        return size(sample()) if callable(size) else size

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

        def size_for(sample: Mapping[str, Array]) -> int:
            most = max((0, *(_bytes_per_sample(spec, sample.get(spec.name)) for spec in inputs)))
            named = named_sizes(inputs, {name: array.shape[1:] for name, array in sample.items()})
            given = max((0, *(_output_bytes(shape, named) for shape in outputs)))
            return min(
                fitting_batch_size(_BYTES_ON_CPU, most), fitting_batch_size(_OUTPUT_BYTES_ON_CPU, given)
            )

        known = all(
            spec.shape is not None and all(isinstance(size, int) for size in spec.shape[1:])
            for spec in inputs
        )
        return replace(self, default_batch_size=size_for({}) if known else size_for)


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
