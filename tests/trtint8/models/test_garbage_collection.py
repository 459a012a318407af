import gc
import threading

import pytest

from trtint8.models.garbage_collection import pause_garbage_collection


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was_afterwards_also_after_an_error(enabled):
    before = gc.isenabled()
    seen = []

    @pause_garbage_collection()
    def work(divisor):
        seen.append(gc.isenabled())
        return 1 / divisor

    try:
        (gc.enable if enabled else gc.disable)()
        assert work(2) == 0.5
        assert gc.isenabled() is enabled
        with pytest.raises(ZeroDivisionError):
            work(0)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == [False, False]


def test_pauses_of_threads_overlap_and_the_last_to_end_turns_the_collector_on():
    inside, leave = threading.Event(), threading.Event()

    def work():
        with pause_garbage_collection():
            inside.set()
            leave.wait()

    assert gc.isenabled()
    with pause_garbage_collection():
        other = threading.Thread(target=work)
        other.start()
        inside.wait()
    assert not gc.isenabled()
    leave.set()
    other.join()
    assert gc.isenabled()
