"""What workers of a Ray cluster do: the protocol between those who have work and the worker processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from calibrators.data.batches import Batches
from calibrators.data.shards import Reader, Shard

Result_co = TypeVar("Result_co", covariant=True)


class ShardWork(Protocol[Result_co]):
    """Work on a run of batches. It is pickled, and sent to every worker once."""

    def open(self) -> Callable[[Batches, int], Result_co]:
        """Opens what the work needs, in the worker's process.

        Returns:
            The work: a function of batches, and of how many samples of the data come before them. Its result
            can be pickled.

        Raises:
            TrtInt8Error: Something cannot be opened.
        """
        ...


@dataclass(frozen=True)
class Task(Generic[Result_co]):
    """What every worker is made with.

    Attributes:
        work: What it does.
        reader: Reads the batches of the data.
    """

    work: ShardWork[Result_co]
    reader: Reader

    def open(self) -> Callable[[Shard], Result_co]:
        """Opens what the work needs; see :meth:`ShardWork.open`.

        Returns:
            The work as a function of a shard of the data.
        """
        work_on, reader = self.work.open(), self.reader
        return lambda shard: work_on(Batches.of_shard(shard, reader), shard.first)
