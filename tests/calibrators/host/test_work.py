"""Work on each batch by itself, in this process; validation and sensitivity have it done by workers."""

from dataclasses import dataclass

import numpy as np
import pytest

from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError
from calibrators.host.work import results_here
from tests.calibrators.specs import floats

INPUTS = (floats("x", "n", 3),)
DATA = np.arange(30, dtype=np.float32).reshape(10, 3)


@dataclass(frozen=True)
class Found:
    first: int
    samples: int
    labels: list


def look(feed, labels, first, _name_of):
    return Found(first, len(feed["x"]), labels[: len(feed["x"])].tolist())


def found(function):
    batches = open_batches({"x": DATA, "labels": np.arange(10)}, INPUTS, batch_size=4)
    with results_here(function, batches, description="Looking", progress=False) as results:
        yield from results


def test_batches_come_with_their_place_and_their_labels():
    assert list(found(look)) == [
        Found(0, 4, [0, 1, 2, 3]),
        Found(4, 4, [4, 5, 6, 7]),
        Found(8, 2, [8, 9]),
    ]


def test_an_error_comes_after_the_results_before_it():
    def refusing(feed, labels, first, name_of):
        if first == 4:
            raise CalibrationDataError("too late; come earlier")
        return look(feed, labels, first, name_of)

    results = found(refusing)
    assert next(results).first == 0
    with pytest.raises(CalibrationDataError, match="too late"):
        next(results)
