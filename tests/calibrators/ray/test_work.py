"""What workers of a Ray cluster do, in this process."""

import numpy as np
import pytest

from calibrators.data.opening import open_batches
from calibrators.errors import ModelError
from calibrators.ray.workers import Task
from tests.calibrators.specs import floats

INPUTS = (floats("x", "n", 3),)
DATA = np.arange(30, dtype=np.float32).reshape(10, 3)


class Sums:
    """Adds up a run of batches."""

    def __init__(self):
        self.opened = 0

    def open(self):
        self.opened += 1
        return lambda batches, first: (first, sum(float(feed["x"].sum()) for feed in batches))


def test_every_shard_is_worked_on_with_what_was_opened_once():
    batches, work = open_batches(DATA, INPUTS, batch_size=2), Sums()
    run = Task(work, batches.source).open()
    results = [run(shard) for shard in batches.cut(2)]
    assert [first for first, _ in results] == [0, 4, 8]
    assert [total for _, total in results] == [DATA[i : i + 4].sum() for i in (0, 4, 8)]
    assert work.opened == 1


def test_what_cannot_be_opened():
    class Refusing:
        def open(self):
            raise ModelError("no such thing; give another")

    with pytest.raises(ModelError, match="no such thing; give another"):
        Task(Refusing(), open_batches(DATA, INPUTS).source).open()
