"""What tests of examples share with the others: one Ray cluster."""

from tests.calibrators.conftest import _no_ray_afterwards, cluster

__all__ = ["_no_ray_afterwards", "cluster"]
