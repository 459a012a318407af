"""Work that gives back what it read, and work that waits until it may go on."""

import os
import time

import numpy as np

from calibrators.data.opening import open_batches
from calibrators.ray.cluster import RayExecutor
from calibrators.ray.workers import fan_out
from tests.calibrators.specs import floats

INPUTS = (floats("x", "n", 3),)
DATA = np.arange(120, dtype=np.float32).reshape(40, 3)


class Echo:
    """Gives back what it read, and the id of its process."""

    def open(self):
        return self.work

    def work(self, batches, first):
        return {"rows": np.concatenate([feed["x"] for feed in batches]), "process": os.getpid()}


class Waiting(Echo):
    """Leaves its process's id in a folder, and a file for every shard; the first waits for another file."""

    def __init__(self, folder):
        self._folder = folder

    def open(self):
        (self._folder / f"{os.getpid()}.process").touch()
        return self.work

    def work(self, batches, first):
        if first == 0:
            (self._folder / f"{os.getpid()}.process").unlink()
            wait_for(lambda: (self._folder / "go").exists())
        (self._folder / f"{first}.shard").touch()
        return super().work(batches, first)


def wait_for(condition):
    deadline = time.monotonic() + 600  # so that what never happens fails in the end
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def opened(data=DATA, batch_size=2):
    return open_batches(data, INPUTS, batch_size=batch_size)


def fan_out_over(worker, shards=None, **how):
    shards = shards or opened()
    return fan_out(worker(), shards, RayExecutor(**how), threads=1)
