"""SIGTERM does what the program wants, whatever Ray does with it."""

import signal
import types

import pytest

from calibrators.ray.cluster import connected


def _end(*_arguments):
    """What Ray sets."""


def _terminate(*_arguments):
    """What the program sets."""


def _ray():
    """As much of Ray as a connection needs."""
    return types.SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **_options: signal.signal(signal.SIGTERM, _end),
        shutdown=lambda: None,
        exceptions=types.SimpleNamespace(RayError=OSError),
    )


@pytest.mark.parametrize(("own", "then"), [(_terminate, _terminate), (signal.SIG_DFL, _end)])
def test_the_reaction_of_the_program_is_kept(own, then):
    before = signal.signal(signal.SIGTERM, own)
    try:
        with connected(_ray(), None):
            assert signal.getsignal(signal.SIGTERM) is then
    finally:
        signal.signal(signal.SIGTERM, before)
