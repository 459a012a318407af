"""Parameters of which an ordinary run takes a sample."""

import pytest


def sample(values, kept):
    """All values, of which those that are not kept are for ``--nightly``."""
    rows = ((value, value if isinstance(value, tuple) else (value,)) for value in values)
    return [value if value in kept else pytest.param(*row, marks=pytest.mark.nightly) for value, row in rows]
