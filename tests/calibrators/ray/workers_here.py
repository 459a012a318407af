"""Workers in the test's own process, for what does not depend on processes: what is sent and what comes back.

All that a worker gets and returns is pickled as Ray does it. Ray's processes, their deaths and their errors
are what the tests with a cluster are for; to start one takes a second or two of a processor.
"""

import contextlib
import pickle

import pytest

from calibrators.ray.workers import Done, Task


@contextlib.contextmanager
def _fan_out_here(work, batches, executor, _threads):
    """:func:`calibrators.ray.workers.fan_out`, with workers that have shards in turn."""
    from ray import cloudpickle

    sent = cloudpickle.dumps(Task(work, batches.source))
    workers = [pickle.loads(sent).open() for _ in range(executor.workers or 2)]

    def results():
        for number, shard in enumerate(batches.cut(executor.shard_batches or 2)):
            work_on = workers[number % len(workers)]
            result = work_on(pickle.loads(cloudpickle.dumps(shard)))
            yield Done(shard.first, shard.samples, pickle.loads(cloudpickle.dumps(result)))

    yield results()


@pytest.fixture
def workers_here(monkeypatch):
    """Has workers run in this process, one after another."""
    pytest.importorskip("ray", reason="Ray is not installed (pip install 'trtint8[ray]')")
    for module in ("workers", "distributed"):
        monkeypatch.setattr(f"calibrators.ray.{module}.fan_out", _fan_out_here)
