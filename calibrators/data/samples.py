"""What is known of samples: which they are, their names and sizes, and those that are kept."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from calibrators.data.feeds import FeedDict, batch_rows, copied_feed
from calibrators.records import Count


def numbered(sample: int) -> str:
    """A sample by its number, from 0."""
    return f"sample {sample}"


def file_name(files: Sequence[Path], sample: int) -> str:
    """A sample by its file.

    Args:
        files: The file of each sample.
        sample: The sample's number in the data.
    """
    return f"'{files[sample]}'"


@dataclass(frozen=True)
class NamesOfPart:
    """What the samples of a part of the data are called, for a process that has this part alone.

    Attributes:
        first: How many samples of the data come before it.
        names: What its samples are called.
    """

    first: int
    names: tuple[str, ...]

    @classmethod
    def of(cls, name_of: Callable[[int], str], first: int, samples: int) -> NamesOfPart:
        """The names of so many samples.

        Args:
            name_of: Gives what a sample of the data is called.
            first: How many samples of the data come before the part.
            samples: How many samples it has.
        """
        return cls(first, tuple(map(name_of, range(first, first + samples))))

    def __call__(self, sample: int) -> str:
        """What a sample is called, by its number in the data."""
        return self.names[sample - self.first]


@dataclass(frozen=True)
class SampleSizes:
    """How large samples are along each axis of an input but the first, along which samples lie.

    Attributes:
        smallest: The smallest size along each axis.
        largest: The largest size along each axis.

    Raises:
        ValueError: The two have different lengths, or a smallest size is larger than the largest.
    """

    smallest: tuple[Count, ...]
    largest: tuple[Count, ...]

    def __post_init__(self) -> None:
        if len(self.smallest) != len(self.largest):
            raise ValueError(f"{self.smallest} and {self.largest} are sizes along different axes")
        if any(low > high for low, high in zip(self.smallest, self.largest, strict=True)):
            raise ValueError(f"the smallest sizes {self.smallest} are above the largest {self.largest}")

    @classmethod
    def of(cls, shape: Sequence[int]) -> SampleSizes:
        """The sizes in one batch.

        Args:
            shape: The batch's shape, whose first axis has the samples.
        """
        sizes = tuple(int(size) for size in shape[1:])
        return cls(sizes, sizes)

    def merge(self, other: SampleSizes) -> SampleSizes:
        """The sizes of both."""
        return SampleSizes(
            tuple(map(min, self.smallest, other.smallest)), tuple(map(max, self.largest, other.largest))
        )


_BITS = 256


class DataFingerprint:
    """Identifies the multiset of samples that was observed.

    Every sample has a digest of its inputs' names, types, shapes and bytes; the digests are added up, which
    forgets their order but, unlike XOR, not how often each occurs. Where the inputs of a feed do not share
    axis 0, the feed is one sample.

    Attributes:
        samples: How many samples were observed.
    """

    def __init__(self) -> None:
        self.samples = 0
        self._sum = 0

    def observe(self, feed: FeedDict) -> list[int]:
        """Adds the samples of one feed.

        Args:
            feed: Input name to array, any shapes and types.

        Returns:
            The digest of each sample, in order.
        """
        rows = batch_rows(feed)
        if rows is None:
            return [self._add(feed)]
        return [self._add({name: array[row, ...] for name, array in feed.items()}) for row in range(rows)]

    def merge(self, other: DataFingerprint) -> DataFingerprint:
        """The fingerprint of what either of the two has observed.

        Args:
            other: The fingerprint of other samples.
        """
        merged = DataFingerprint()
        merged.samples = self.samples + other.samples
        merged._sum = (self._sum + other._sum) % (1 << _BITS)
        return merged

    def copy(self) -> DataFingerprint:
        """An independent copy."""
        return self.merge(DataFingerprint())

    def hexdigest(self) -> str:
        """The fingerprint of everything observed so far: 64 hexadecimal digits."""
        summary = f"{self.samples} {self._sum:x}"
        return hashlib.blake2b(summary.encode(), digest_size=_BITS // 8).hexdigest()

    def _add(self, sample: FeedDict) -> int:
        digest = hashlib.blake2b(digest_size=_BITS // 8)
        for name, array in sorted(sample.items()):
            # repr() quotes the name, so that no name can pass for another's type or shape.
            digest.update(f"{name!r} {array.dtype.str} {array.shape}\n".encode())
            digest.update(array.tobytes())
        number = int.from_bytes(digest.digest(), "big")
        self._sum = (self._sum + number) % (1 << _BITS)
        self.samples += 1
        return number


#: The most bytes of a model's outputs for one sample that are kept with it.
_MOST_OUTPUT_BYTES = 1 << 20

#: What a model gives out for one sample, one array for each of its outputs.
Outputs: TypeAlias = list[NDArray[Any]]


class SampleKeeper:
    """Keeps the samples with the smallest digests, which is a random choice that depends on nothing else.

    Equal samples are kept once. In the order of the digests, samples are kept up to the first that exceeds a
    limit, and none beyond it, even if it is small enough: which samples came first leaves no trace.

    Args:
        count: How many samples are kept; 0 keeps none.
        whole_batches: Whether batches are kept in place of single samples, as a model takes them whose batch
            size is fixed.
        most_bytes: The most bytes that they may have together; one sample is kept however large it is.
    """

    def __init__(self, count: int = 0, *, whole_batches: bool = False, most_bytes: int = 64 << 20) -> None:
        self._count, self._whole, self._most_bytes = count, whole_batches, most_bytes
        #: Digest to sample, and the digests as a heap whose first is the largest, negated.
        self._samples: dict[int, FeedDict] = {}
        #: Digest to what the model gives out for the sample, as far as that is known.
        self._outputs: dict[int, Outputs] = {}
        self._heap: list[int] = []
        self._bytes = 0
        #: The smallest digest that exceeded a limit; infinite where none has.
        self._refused: float = math.inf if count else -math.inf

    def observe(self, feed: FeedDict, digests: Sequence[int]) -> dict[int, int]:
        """Looks at the samples of one feed.

        Args:
            feed: Input name to array.
            digests: One digest per sample, in order; a single one where the whole feed is one sample.

        Returns:
            For the samples that are kept until others take their place: row of the feed to digest. Nothing
            where the whole feed is one sample.
        """
        rows = None if self._whole else batch_rows(feed)
        if self._whole:
            digests = [sum(digests)]
        kept = {}
        for row, digest in enumerate(digests):
            if self._wants(digest):
                own = feed if rows is None else {name: array[row : row + 1] for name, array in feed.items()}
                self._add(digest, copied_feed(own))
                if rows is not None and digest in self._samples:
                    kept[row] = digest
        return kept

    def add_outputs(self, outputs: Mapping[int, Outputs]) -> None:
        """Keeps what the model gives out for samples, as long as they are kept; large outputs are not.

        Args:
            outputs: Digest to the outputs for that sample.
        """
        for digest, arrays in outputs.items():
            if digest in self._samples and sum(array.nbytes for array in arrays) <= _MOST_OUTPUT_BYTES:
                self._outputs[digest] = arrays

    def merge(self, other: SampleKeeper) -> SampleKeeper:
        """The samples that one keeper would have kept of both parts of the data.

        Args:
            other: The keeper of other samples, with the same limits.
        """
        merged = SampleKeeper(self._count, whole_batches=self._whole, most_bytes=self._most_bytes)
        merged._refused = min(self._refused, other._refused)
        for keeper in (self, other):
            for digest, sample in keeper._samples.items():
                if merged._wants(digest):
                    merged._add(digest, sample)
            merged.add_outputs(keeper._outputs)
        return merged

    @property
    def samples(self) -> list[FeedDict]:
        """The samples in the order of their digests; one row each where samples lie along axis 0."""
        return [self._samples[digest] for digest in sorted(self._samples)]

    @property
    def outputs(self) -> list[Outputs | None]:
        """What the model gives out for each of the samples, in their order; None where it is not known."""
        return [self._outputs.get(digest) for digest in sorted(self._samples)]

    def _wants(self, digest: int) -> bool:
        return digest not in self._samples and digest < self._refused

    def _add(self, digest: int, sample: FeedDict) -> None:
        self._samples[digest] = sample
        heapq.heappush(self._heap, -digest)
        self._bytes += _size(sample)
        while len(self._samples) > 1 and (len(self._samples) > self._count or self._bytes > self._most_bytes):
            self._refused = -heapq.heappop(self._heap)
            self._bytes -= _size(self._samples.pop(self._refused))
            self._outputs.pop(self._refused, None)


def _size(sample: FeedDict) -> int:
    """The bytes of a sample's arrays."""
    return sum(array.nbytes for array in sample.values())
