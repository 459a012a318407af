"""What the tests of this package share."""

from tests.calibrators.conftest import cluster, ray_data

__all__ = ["cluster", "ray_data"]
