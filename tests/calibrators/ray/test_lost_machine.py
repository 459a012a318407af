"""A Ray cluster of several machines, as far as Ray can tell, one of which is gone in the middle."""

import time

import numpy as np
import pytest

from calibrators.data.opening import open_batches
from calibrators.ray.cluster import RayExecutor
from calibrators.ray.workers import fan_out
from tests.calibrators.specs import floats

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'trtint8[ray]')")

INPUTS = (floats("x", "n", 3),)
DATA = np.arange(120, dtype=np.float32).reshape(40, 3)


class Machines:
    """The machines that have processors; the driver's has none."""

    def __init__(self, cluster):
        self._cluster, self._others = cluster, []

    def add(self):
        self._others.append(self._cluster.add_node(num_cpus=2, object_store_memory=200 << 20))

    def lose(self):
        self._cluster.remove_node(self._others.pop(0), allow_graceful=False)


@pytest.fixture
def machines():
    from ray.cluster_utils import Cluster

    ray.shutdown()  # tests before may have left their cluster running
    # A machine is given up after a second without a sign of life.
    system = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200}
    head = {"num_cpus": 0, "object_store_memory": 200 << 20, "_system_config": system}
    try:
        cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        pytest.skip(f"Ray does not start here: {error}")
    found = Machines(cluster)
    found.add()
    yield found
    ray.shutdown()
    cluster.shutdown()


class Waiting:
    """Does the first shard only when it may; results are too large to travel before they are asked for."""

    def __init__(self, folder):
        self._file = folder

    def open(self):
        return self.work

    def work(self, batches, first):
        with (self._file / str(first)).open("a") as file:
            file.write("x")
        while first == 0 and not (self._file / "go").exists():
            time.sleep(0.01)
        rows = np.concatenate([feed["x"] for feed in batches])
        return np.repeat(rows, 100_000, axis=0)


def _times(folder):
    """How often each shard was begun."""
    return {int(file.name): len(file.read_text()) for file in folder.iterdir() if file.name != "go"}


@pytest.mark.nightly
def test_results_that_are_lost_with_their_machine_are_computed_again(machines, tmp_path):
    def feeds():
        for start in range(0, 40, 10):
            yield {"x": DATA[start : start + 10]}
        # A worker asks for more: all but the first shard are done, and their results are nowhere else.
        assert _times(tmp_path) == {0: 1, 10: 1, 20: 1, 30: 1}
        machines.add()
        machines.lose()
        (tmp_path / "go").touch()

    shards = open_batches(feeds, INPUTS)
    executor = RayExecutor(workers=2, shard_batches=1)
    with fan_out(Waiting(tmp_path), shards, executor, threads=1) as results:
        found = list(results)
    assert [done.first for done in found] == [0, 10, 20, 30]
    np.testing.assert_array_equal(np.concatenate([done.result[::100_000] for done in found]), DATA)
    assert _times(tmp_path) == {0: 2, 10: 2, 20: 2, 30: 2}
