"""Workers that die, and results that are lost."""

import importlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from calibrators.data.batches import Around
from calibrators.errors import WorkerError
from calibrators.ray.cluster import RayExecutor
from calibrators.ray.workers import fan_out
from tests.calibrators.ray.echoing import DATA, Echo, Waiting, fan_out_over, opened, wait_for
from tests.calibrators.ray.readers import around

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'trtint8[ray]')")


def test_a_result_that_is_lost_is_computed_again_but_not_for_ever(cluster, monkeypatch):
    get, asked = ray.get, []

    def losing(reference):
        found = get(reference)
        if isinstance(found, dict):
            asked.append(found["rows"][0, 0])
            if always or len(asked) in (1, 2, 4):
                raise ray.exceptions.ObjectLostError(reference.hex(), None, "")
        return found

    monkeypatch.setattr(ray, "get", losing)
    always = False
    with fan_out_over(Echo, workers=2, shard_batches=10) as results:
        found = [done.result["rows"] for done in results]
    np.testing.assert_array_equal(np.concatenate(found), DATA)
    assert asked == [0, 0, 0, 60, 60]
    always = True
    sentence = r"^the result of samples 0 to 19 was lost 3 times; .* Ray says: Failed to retrieve"
    with pytest.raises(WorkerError, match=sentence), fan_out_over(Echo, shard_batches=10) as results:
        list(results)


def test_a_worker_that_dies_while_it_waits_is_held_against_no_shard(
    cluster, tmp_path, outstanding, monkeypatch
):
    monkeypatch.setattr("calibrators.ray.workers._DEATHS", 1)
    shards = opened()
    killed = []

    def kill():
        # Four shards a worker may be handed out, and all but the first get done.
        wait_for(lambda: len(list(tmp_path.glob("*.shard"))) == 11 and outstanding[-1] == 1)
        for file in tmp_path.glob("*.process"):
            os.kill(int(file.stem), signal.SIGKILL)
            killed.append(file)
        (tmp_path / "go").touch()

    executor = RayExecutor(workers=3, shard_batches=1)
    with (
        ThreadPoolExecutor(1) as aside,
        fan_out(Waiting(tmp_path), shards, executor, threads=1) as results,
    ):
        aside.submit(kill)
        found = list(results)
    assert [done.first for done in found] == list(range(0, 40, 2))
    assert len(killed) == 2


def test_workers_that_are_ended_while_they_start_free_their_processors(cluster, monkeypatch):
    wait, asked = ray.wait, []

    def interrupting(references, **options):
        answered, others = wait(references, timeout=0) if not asked else wait(references, **options)
        asked.append((len(answered), len(others)))
        if len(asked) == 1:
            raise KeyboardInterrupt
        return answered, others

    monkeypatch.setattr(ray, "wait", interrupting)
    monkeypatch.setattr("calibrators.ray.workers._SECONDS_TO_START", 600)
    for _ in range(3):
        asked.clear()
        with pytest.raises(KeyboardInterrupt), fan_out_over(Echo, workers=3, shard_batches=1) as results:
            next(results)
        assert asked == [(0, 3), (3, 0)]
    wait_for(lambda: ray.available_resources().get("CPU") == 3)
    assert ray.available_resources()["CPU"] == 3


class Unknown(Around):
    """Of a module that workers do not have."""

    def __reduce__(self):
        return importlib.import_module, ("nowhere_to_be_found",)


def test_workers_that_lack_a_module_say_so(cluster):
    shards = around(opened(), Unknown)
    sentence = r"^a worker cannot load what it was sent: .*No module named 'nowhere_to_be_found'; install "
    with pytest.raises(WorkerError, match=sentence), fan_out_over(Echo, shards, workers=1) as results:
        list(results)
