"""SIGTERM does what the program wants, whatever Ray does with it."""

import signal
import sys
import types

import pytest

from calibrators.ray.cluster import connected


def _end(number, _frame):
    """What Ray sets."""
    sys.exit(number)


def _terminate(*_arguments):
    """What the program sets."""
    sys.exit(143)


def _ray(init):
    """As much of Ray as a connection needs."""
    return types.SimpleNamespace(
        is_initialized=lambda: False,
        init=init,
        shutdown=lambda: None,
        exceptions=types.SimpleNamespace(RayError=OSError),
        job_config=types.SimpleNamespace(JobConfig=types.SimpleNamespace),
    )


@pytest.mark.parametrize(("own", "then"), [(_terminate, _terminate), (signal.SIG_DFL, _end)])
def test_the_reaction_of_the_program_is_kept(own, then):
    before = signal.signal(signal.SIGTERM, own)
    try:
        with connected(_ray(lambda **_: signal.signal(signal.SIGTERM, _end)), None):
            assert signal.getsignal(signal.SIGTERM) is then
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_termination_while_ray_connects_has_the_status_of_the_program():
    def init(**_options):
        signal.signal(signal.SIGTERM, _end)
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        with pytest.raises(SystemExit) as ended, connected(_ray(init), None):
            pass
        assert ended.value.code == 143
        assert signal.getsignal(signal.SIGTERM) is _terminate
    finally:
        signal.signal(signal.SIGTERM, before)
