"""Parameters of which an ordinary run takes a sample."""

import pytest


def sample(values, kept):
    """All values, of which those that are not kept are for ``--nightly``."""
    return [value if value in kept else pytest.param(value, marks=pytest.mark.nightly) for value in values]
