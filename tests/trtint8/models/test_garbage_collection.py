import gc

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
