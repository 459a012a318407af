import os
import threading

import pytest

from calibrators.errors import CalibrationDataError
from calibrators.host.threads import available_threads, check_threads, in_thread, map_arrays


def test_a_containers_quota_is_rounded_up_and_never_exceeds_the_processors(tmp_path):
    processors = len(os.sched_getaffinity(0))
    quota = tmp_path / "cpu.max"
    found = {}
    for text in ("50000 100000", "150000 100000", "max 100000", "9900000 100000", "nonsense"):
        quota.write_text(text)
        found[text] = available_threads(quota)
    assert found == {
        "50000 100000": 1,
        "150000 100000": min(2, processors),
        "max 100000": processors,
        "9900000 100000": min(99, processors),
        "nonsense": processors,
    }
    assert available_threads(tmp_path / "missing") == processors


def test_threads_are_at_most_a_few_for_each_processor(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 20)
    for threads in (None, 1, 80):
        check_threads(threads)
    for threads in (81, 2000, 100_000):
        with pytest.raises(
            CalibrationDataError, match=f"threads is {threads}, and 80 are the most on this ma"
        ):
            check_threads(threads)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    check_threads(64)
    with pytest.raises(CalibrationDataError, match="threads is 0; give a positive integer"):
        check_threads(0)


@pytest.mark.parametrize(("nbytes", "elsewhere"), [(1000, False), (1 << 30, True)])
def test_only_large_arrays_are_handed_to_threads(nbytes, elsewhere):
    found = list(map_arrays(lambda number: (number, threading.get_ident()), range(5), nbytes, 2))
    assert [number for number, _ in found] == [0, 1, 2, 3, 4]
    assert {thread != threading.get_ident() for _, thread in found} == {elsewhere}


def test_what_a_thread_returns_and_raises():
    assert in_thread(threading.get_ident).result() != threading.get_ident()
    assert in_thread(pow, 2, exp=5).result() == 32
    with pytest.raises(ZeroDivisionError):
        in_thread(lambda: 1 / 0).result()
