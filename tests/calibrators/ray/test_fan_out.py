"""Work that is shared out over a local Ray cluster and comes back in order, whatever the work is."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from calibrators.data.batches import open_batches
from calibrators.data.inputs import InputSpec
from calibrators.errors import CalibrationDataError, ModelError, WorkerError
from calibrators.ray.executor import RayExecutor
from calibrators.ray.fan_out import Done, fan_out

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'trtint8[ray]')")

INPUTS = (InputSpec("x", np.dtype(np.float32), ("n", 3)),)
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
            _wait_for(lambda: (self._folder / "go").exists())
        (self._folder / f"{first}.shard").touch()
        return super().work(batches, first)


def _wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


class Refusing(Echo):
    """Cannot be opened."""

    def open(self):
        raise ModelError("no such thing; give another")


class Complaining(Echo):
    """Does not like the second half, and takes its time with what comes before."""

    def work(self, batches, first):
        if first >= 20:
            raise CalibrationDataError("too late; come earlier")
        time.sleep(0.2)
        return super().work(batches, first)


class Broken(Echo):
    """Has a mistake of its own."""

    def work(self, batches, first):
        raise ZeroDivisionError


def _shards(data=DATA, batch_size=2):
    return open_batches(data, INPUTS, batch_size=batch_size)


def _fan_out(worker, shards=None, **how):
    shards = shards or _shards()
    return fan_out(worker(), shards, RayExecutor(**how), threads=1)


@pytest.mark.parametrize(("workers", "shard_batches"), [(1, 3), (3, 1), (2, 50)])
def test_results_come_in_the_order_of_the_data(workers, shard_batches, cluster):
    with _fan_out(Echo, workers=workers, shard_batches=shard_batches) as results:
        found = list(results)
    assert [type(done) for done in found] == [Done] * -(-20 // shard_batches)
    sizes = [done.samples for done in found]
    assert [done.first for done in found] == [0, *np.cumsum(sizes)[:-1]]
    np.testing.assert_array_equal(np.concatenate([done.result["rows"] for done in found]), DATA)


def test_what_is_ready_early_waits_and_others_are_not_handed_out_without_end(cluster, tmp_path):
    made, before = [], []

    def feeds():
        for start in range(0, 40, 2):
            made.append(start)
            yield {"x": DATA[start : start + 2]}

    def let_go():
        _wait_for(lambda: len(list(tmp_path.glob("*.shard"))) == 7)
        time.sleep(0.5)  # in which no other is made
        before.extend(made)
        (tmp_path / "go").touch()

    shards = open_batches(feeds, INPUTS)
    executor = RayExecutor(workers=2, shard_batches=1)
    with (
        ThreadPoolExecutor(1) as aside,
        fan_out(Waiting(tmp_path), shards, executor, threads=1) as results,
    ):
        aside.submit(let_go)
        found = list(results)
    assert [done.first for done in found] == list(range(0, 40, 2))
    # Four for each of the two workers, while the first was under way.
    assert before == list(range(0, 16, 2))
    assert made == list(range(0, 40, 2))


def test_results_outlive_the_connection_and_belong_to_the_caller(cluster):
    large = np.arange(3_000_000, dtype=np.float32).reshape(-1, 3)
    with _fan_out(Echo, _shards(large, 500_000)) as results:
        found = [done.result["rows"] for done in results]
    for rows in found:
        assert rows.flags.writeable
        rows *= 2
    np.testing.assert_array_equal(np.concatenate(found), 2 * large)


@pytest.mark.parametrize("how", ["break", "raise"])
def test_leaving_early_ends_the_workers(how, cluster):
    processes = []
    try:
        with _fan_out(Echo, workers=3, shard_batches=1) as results:
            for done in results:
                processes.append(done.result["process"])
                if len(processes) == 5:
                    if how == "break":
                        break
                    raise ConnectionError
    except ConnectionError:
        assert how == "raise"
    assert len(processes) == 5
    deadline = time.monotonic() + 20
    while any(_runs(process) for process in processes):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _runs(process):
    try:
        return "Echo" in Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return False


def test_errors_of_workers(cluster):
    with pytest.raises(ModelError, match=r"^no such thing; give another$"), _fan_out(Refusing) as results:
        next(results)
    with pytest.raises(ZeroDivisionError), _fan_out(Broken) as results:
        next(results)


def test_an_error_waits_for_its_turn_so_it_is_always_the_same(cluster):
    found = []
    with (
        pytest.raises(
            CalibrationDataError, match=r"^in the shard that begins at sample 20: too late; come earlier$"
        ),
        _fan_out(Complaining, shard_batches=2, workers=3) as results,
    ):
        found.extend(done.first for done in results)
    assert found == [0, 4, 8, 12, 16]


def test_an_error_of_the_data_arrives_as_it_is(cluster):
    def feeds():
        yield {"x": DATA[:2]}
        raise ConnectionError("the disk is gone")

    with (
        pytest.raises(ConnectionError, match="the disk is gone"),
        _fan_out(Echo, open_batches(feeds, INPUTS)) as results,
    ):
        list(results)


def test_no_data_no_results(cluster):
    with _fan_out(Echo, open_batches(lambda: iter(()), INPUTS)) as results:
        assert list(results) == []


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
    with _fan_out(Echo, workers=2, shard_batches=10) as results:
        found = [done.result["rows"] for done in results]
    np.testing.assert_array_equal(np.concatenate(found), DATA)
    assert asked == [0, 0, 0, 60, 60]
    always = True
    sentence = r"^the result of samples 0 to 19 was lost 3 times; .* Ray says: Failed to retrieve"
    with pytest.raises(WorkerError, match=sentence), _fan_out(Echo, shard_batches=10) as results:
        list(results)


def test_a_worker_that_dies_while_it_waits_is_held_against_no_shard(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("calibrators.ray.worker_pool._DEATHS", 1)
    shards = _shards()
    killed = []

    def kill():
        # Four shards a worker may be handed out, and all but the first get done.
        _wait_for(lambda: len(list(tmp_path.glob("*.shard"))) == 11)
        time.sleep(0.5)  # till the last result is there
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
