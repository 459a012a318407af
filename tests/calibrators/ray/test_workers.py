"""Work that is shared out over a local Ray cluster and comes back in order, whatever the work is."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError, ModelError
from calibrators.ray.cluster import RayExecutor
from calibrators.ray.workers import Done, fan_out
from tests.calibrators.ray.echoing import DATA, INPUTS, Echo, Waiting, fan_out_over, opened, wait_for

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'trtint8[ray]')")


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


@pytest.mark.parametrize(("workers", "shard_batches"), [(1, 3), (3, 1), (2, 50)])
def test_results_come_in_the_order_of_the_data(workers, shard_batches, cluster):
    with fan_out_over(Echo, workers=workers, shard_batches=shard_batches) as results:
        found = list(results)
    assert [type(done) for done in found] == [Done] * -(-20 // shard_batches)
    sizes = [done.samples for done in found]
    assert [done.first for done in found] == [0, *np.cumsum(sizes)[:-1]]
    np.testing.assert_array_equal(np.concatenate([done.result["rows"] for done in found]), DATA)


def test_what_is_ready_early_waits_and_others_are_not_handed_out_without_end(cluster, tmp_path, outstanding):
    made, before = [], []

    def feeds():
        for start in range(0, 40, 2):
            made.append(start)
            yield {"x": DATA[start : start + 2]}

    def let_go():
        # The others are done, and the driver waits for the first one alone: it makes no more.
        wait_for(lambda: len(list(tmp_path.glob("*.shard"))) == 7 and outstanding[-1] == 1)
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
    with fan_out_over(Echo, opened(large, 500_000)) as results:
        found = [done.result["rows"] for done in results]
    for rows in found:
        assert rows.flags.writeable
        rows *= 2
    np.testing.assert_array_equal(np.concatenate(found), 2 * large)


@pytest.mark.parametrize("how", ["break", "raise"])
def test_leaving_early_ends_the_workers(how, cluster):
    processes = []
    try:
        with fan_out_over(Echo, workers=3, shard_batches=1) as results:
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
    with pytest.raises(ModelError, match=r"^no such thing; give another$"), fan_out_over(Refusing) as results:
        next(results)
    with pytest.raises(ZeroDivisionError), fan_out_over(Broken) as results:
        next(results)


def test_an_error_waits_for_its_turn_so_it_is_always_the_same(cluster):
    found = []
    with (
        pytest.raises(CalibrationDataError, match=r"^too late; come earlier$"),
        fan_out_over(Complaining, shard_batches=2, workers=3) as results,
    ):
        found.extend(done.first for done in results)
    assert found == [0, 4, 8, 12, 16]


def test_an_error_of_the_data_arrives_as_it_is(cluster):
    def feeds():
        yield {"x": DATA[:2]}
        raise ConnectionError("the disk is gone")

    with (
        pytest.raises(ConnectionError, match="the disk is gone"),
        fan_out_over(Echo, open_batches(feeds, INPUTS)) as results,
    ):
        list(results)


def test_no_data_no_results(cluster):
    with fan_out_over(Echo, open_batches(lambda: iter(()), INPUTS)) as results:
        assert list(results) == []
