import pytest

from calibrators.cuda.active import Active


def test_one_object_serves_blocks_inside_one_another():
    calls = []
    active = Active(lambda: calls.append("push"), lambda: calls.append("pop"))
    with active, active:
        calls.append("work")
    with pytest.raises(ZeroDivisionError), active:
        raise ZeroDivisionError
    assert calls == ["push", "push", "work", "pop", "pop", "push", "pop"]
