"""One pass over calibration data: each batch is checked before TensorRT gets it, and none is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from calibrators.data.batches import Batches
from calibrators.data.feeds import FeedDict, batch_rows
from calibrators.data.inputs import InputSpec
from calibrators.data.preflight import Preflight
from calibrators.data.samples import DataFingerprint
from calibrators.errors import Argument, CalibrationDataError
from calibrators.tensorrt.last_batch import LastBatch, uniform


class CalibrationPass:
    """Batches of one shape, checked and counted while they are iterated.

    Args:
        batches: The data.
        inputs: What the model takes.
        last_batch: What becomes of a last batch that is not full.
        num_batches: How many batches the data must give; more are not read. None takes all.

    Attributes:
        shapes: The shape of every input in a batch, from the first one.
        started: Whether its batches are iterated.

    Raises:
        CalibrationDataError: There is no batch, or the first one does not fit the model.
    """

    def __init__(
        self,
        batches: Batches,
        inputs: Sequence[InputSpec],
        *,
        last_batch: LastBatch,
        num_batches: int | None,
    ) -> None:
        self._batches, self._num_batches = batches, num_batches
        self._preflight, self._fingerprint = Preflight(inputs, batches.name_of), DataFingerprint()
        self._seen = self._fed = 0
        self.started = False
        feeds = self._checked(last_batch)
        first = next(feeds, None)
        if first is None:
            raise CalibrationDataError(
                f"the data gives no full batch; give more samples, a smaller {Argument('batch_size')}, or "
                "last_batch='pad'"
            )
        self.shapes = {name: array.shape for name, array in first.items()}
        self._feeds = _chain(first, feeds)

    @property
    def fingerprint(self) -> str:
        """Identifies the samples that were iterated so far."""
        return self._fingerprint.hexdigest()

    @property
    def samples(self) -> int:
        """How many samples were iterated so far, repeated ones included."""
        return self._fingerprint.samples

    @property
    def batch_size(self) -> int:
        """Samples per batch; 1 where no input has a batch axis."""
        return next((shape[0] for shape in self.shapes.values() if shape), 1)

    def __iter__(self) -> Iterator[FeedDict]:
        self.started = True
        return self._feeds

    def finish(self) -> list[str]:
        """Judges the data once all of it was iterated.

        Returns:
            What is suspicious about the data, one sentence per finding.

        Raises:
            CalibrationDataError: There was less of it than promised.
        """
        if self._num_batches is not None and self._fed < self._num_batches:
            raise CalibrationDataError(
                f"the data ended after {self._fed} of {self._num_batches} batches; give more samples or a "
                "smaller num_batches"
            )
        promised = self._batches.num_samples
        if self._num_batches is None and promised is not None and self._seen < promised:
            raise CalibrationDataError(
                f"the data gave {self._seen} of the {promised} samples that it promised; check its source"
            )
        return self._preflight.finish()

    def _checked(self, last_batch: LastBatch) -> Iterator[FeedDict]:
        for feed in uniform(self._counted(), last_batch):
            self._preflight.observe(feed)
            self._fingerprint.observe(feed)
            self._fed += 1
            yield feed
            if self._fed == self._num_batches:
                return

    def _counted(self) -> Iterator[FeedDict]:
        for feed in self._batches:
            self._seen += batch_rows(feed) or 1
            yield feed


def _chain(first: FeedDict, rest: Iterator[FeedDict]) -> Iterator[FeedDict]:
    yield first
    yield from rest
