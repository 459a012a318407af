"""What the tests of this package share."""

from tests.calibrators.conftest import cluster

__all__ = ["cluster"]
