"""A Ray cluster of this machine, for all tests of a process."""

import sys

import pytest

from tests.calibrators.ray.workers_here import workers_here

__all__ = ["workers_here"]


@pytest.fixture(scope="session")
def _no_ray_afterwards():
    yield
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


@pytest.fixture
def cluster(_no_ray_afterwards):
    """Connects to a cluster of three processors and, as Ray takes our word for it, a GPU.

    The first test that needs it starts it, and later ones find it running. Only a test that connects to
    another cluster has ended it in between.
    """
    ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'trtint8[ray]')")
    if ray.is_initialized():
        return
    try:
        ray.init(
            "local",
            num_cpus=3,
            num_gpus=1,
            object_store_memory=100 << 20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (OSError, RuntimeError, ValueError) as error:
        pytest.skip(f"Ray does not start here: {error}")


@pytest.fixture
def ray_data(cluster):
    """Ray Data, on that cluster."""
    pytest.importorskip("pyarrow", reason="Ray Data needs pyarrow")
    pytest.importorskip("pandas", reason="Ray Data needs pandas")
    import ray.data as data

    data.DataContext.get_current().enable_progress_bars = False
    return data
