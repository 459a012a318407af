"""Which samples were fed: the same answer for any batch size and any order."""

from __future__ import annotations

import hashlib

from calibrators.data.feeds import FeedDict, batch_rows

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
