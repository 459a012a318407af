"""Classes of channels that must share one factor: a union-find structure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Numbers of channels, of any shape.
Channels = NDArray[np.int64]

#: The number of everything that keeps its values: its factor is always 1.
FIXED = 0


class ChannelClasses:
    """Channels by number, in classes that share one factor or its reciprocal.

    Each class has one representative. A channel's factor is that of its representative to the power of 1 or
    -1. The class of :data:`FIXED` has the factor 1.
    """

    def __init__(self) -> None:
        self._parents = [FIXED]
        self._powers = [1]
        self._reasons = [""]

    def __len__(self) -> int:
        """Number of channels, :data:`FIXED` included."""
        return len(self._parents)

    def add(self, count: int) -> Channels:
        """Adds channels, each in a class of its own.

        Args:
            count: How many channels.

        Returns:
            Their numbers, of shape (count,).
        """
        first = len(self)
        self._parents += range(first, first + count)
        self._powers += [1] * count
        self._reasons += [""] * count
        return np.arange(first, first + count, dtype=np.int64)

    def find(self, channel: int) -> tuple[int, int]:
        """The representative of a channel's class, and the power of its factor in the channel's factor."""
        passed: list[int] = []
        while (parent := self._parents[channel]) != channel:
            passed.append(channel)
            channel = parent
        # Whoever was passed on the way finds the representative, and the reason, at once from now on.
        power, reason = 1, self._reasons[passed[-1]] if passed else ""
        for one in reversed(passed):
            power *= self._powers[one]
            self._parents[one], self._powers[one], self._reasons[one] = channel, power, reason
        return channel, power

    def fix(self, channels: Channels, reason: str) -> None:
        """Gives channels, and all others of their classes, the factor 1.

        Args:
            channels: Numbers of channels, of any shape.
            reason: Why these channels keep their values, in words for the user.
        """
        for channel in np.unique(channels).tolist():
            representative, _ = self.find(channel)
            if representative != FIXED:
                self._parents[representative], self._reasons[representative] = FIXED, reason

    def tie(self, first: Channels, second: Channels, power: int, reason: str) -> None:
        """Ties the factors of channels: each of the first is one of the second to a power.

        Args:
            first: Numbers of channels.
            second: Numbers of channels, of a shape that broadcasts with that of ``first``.
            power: 1 for equal factors, -1 for reciprocal ones.
            reason: Why channels that cannot be tied keep their values, in words for the user.
        """
        pairs = np.stack([array.ravel() for array in np.broadcast_arrays(first, second)])
        for one, other in np.unique(pairs, axis=1).T.tolist():
            self._tie(one, other, power, reason)

    def _tie(self, first: int, second: int, power: int, reason: str) -> None:
        (root, root_power), (other, other_power) = self.find(first), self.find(second)
        between = root_power * other_power * power
        if FIXED in (root, other) or (root == other and between < 0):
            self.fix(np.array([first, second], np.int64), reason)
        elif root != other:
            self._parents[root], self._powers[root] = other, between

    def are_fixed(self, channels: Channels) -> NDArray[np.bool_]:
        """Which channels have the factor 1, of the shape of ``channels``."""
        numbers, inverse = np.unique(channels, return_inverse=True)
        fixed = np.array([self.find(number)[0] == FIXED for number in numbers.tolist()], bool)
        return fixed[inverse].reshape(channels.shape)

    def reason(self, channel: int) -> str:
        """Why a channel has the factor 1; empty where it does not."""
        while (parent := self._parents[channel]) not in (channel, FIXED):
            channel = parent
        return self._reasons[channel] if parent == FIXED else ""

    def representatives(self) -> tuple[Channels, NDArray[np.int64]]:
        """The representatives and the powers of all channels, each of shape (number of channels,)."""
        found = [self.find(channel) for channel in range(len(self))]
        numbers = np.array(found, np.int64)
        return numbers[:, 0], numbers[:, 1]
