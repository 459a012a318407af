"""Parameters of which an ordinary run takes a sample."""

import pytest


def sample(values, every):
    """One value in so many, from the first on; the others are for ``--nightly``."""
    return [
        pytest.param(value, marks=[pytest.mark.nightly] if index % every else [])
        for index, value in enumerate(values)
    ]
