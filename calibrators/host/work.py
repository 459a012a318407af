"""Work on batches: a function, which is run here or, opened there, by workers in other processes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from calibrators.data.batches import Batches
from calibrators.data.feeds import Array, FeedDict, NameOf
from calibrators.errors import ModelError
from calibrators.progress import progress_bar


class HasSamples(Protocol):
    """What came out for one batch; anything that can be pickled."""

    @property
    def samples(self) -> int:
        """How many samples the batch has."""
        ...


Result = TypeVar("Result", bound=HasSamples)
Result_co = TypeVar("Result_co", bound=HasSamples, covariant=True)

#: Takes a batch, labels from its first sample on, how many samples of the data come before it, and what gives
#: the name of a sample for messages, by its number in the data.
BatchFunction = Callable[[FeedDict, Array | None, int, NameOf], Result_co]

#: Why a worker was sent the path of a temporary file.
_TEMPORARY = "beyond 2 GiB a model is not sent; set TMPDIR to a folder that all machines share"


class BatchWork(Protocol[Result_co]):
    """Work on single batches. It is pickled, and sent to every worker once."""

    def open(self) -> BatchFunction[Result_co]:
        """Opens what the work needs, in the worker's process.

        Raises:
            TrtInt8Error: Something cannot be opened.
        """
        ...


def of_each(function: BatchFunction[Result], batches: Batches, first: int = 0) -> Iterator[Result]:
    """What a function returns for one batch after another, before which there are ``first`` samples."""
    name_of = batches.name_of
    return (function(batch.feed, batch.labels, batch.first, name_of) for batch in batches.labelled(first))


@contextlib.contextmanager
def results_here(
    function: BatchFunction[Result], batches: Batches, *, description: str, progress: bool
) -> Iterator[Iterator[Result]]:
    """Does the work on all batches in this process.

    Args:
        function: What to do with each batch.
        batches: The data.
        description: Text of the progress bar.
        progress: Show a progress bar on a terminal.

    Yields:
        The results, batch by batch in the order of the data.
    """

    def results() -> Iterator[Result]:
        for result in of_each(function, batches):
            advance(result.samples)
            yield result

    with progress_bar(description, batches.num_samples, enabled=progress) as advance:
        yield results()


def check_sees(model: bytes | Path, advice: str = _TEMPORARY) -> None:
    """Refuses a model file that a worker's machine does not see.

    Args:
        model: The serialized model, or its path.
        advice: Why a path was sent, and what to do.

    Raises:
        ModelError: There is no such file on this machine.
    """
    if isinstance(model, Path) and not model.is_file():
        raise ModelError(f"the worker on '{socket.gethostname()}' does not see '{model}', and {advice}")
