"""What the tests of this package share."""

import numpy as np
import pytest

import trtint8
from calibrators.tensorrt import flavor
from tests.calibrators.conftest import _no_ray_afterwards, cluster, ray_data, workers_here
from trtint8.data import DEMO_MODEL, load_digits_split

__all__ = ["_no_ray_afterwards", "cluster", "ray_data", "workers_here"]


@pytest.fixture(scope="session")
def rtx():
    """TensorRT for RTX, whose builder also runs without a GPU."""
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    return flavor.load("rtx")


@pytest.fixture(scope="session")
def split():
    """The demo's images of handwritten digits."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'trtint8[demo]')")
    return load_digits_split()


@pytest.fixture(scope="session")
def table(split):
    """The demo model's calibration table."""
    return trtint8.calibrate(DEMO_MODEL, split.calibration_images, spend=0, progress=False)


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A calibration cache of the demo model, from random images."""
    images = np.random.default_rng(0).random((32, 1, 8, 8), np.float32)
    table = trtint8.calibrate(DEMO_MODEL, images, progress=False)
    return table.save(tmp_path_factory.mktemp("cache") / "model.cache")


@pytest.fixture(scope="session")
def held_out(split):
    """The demo's held-out images with their labels."""
    return {"images": split.heldout_images, "labels": split.heldout_labels}


@pytest.fixture(scope="session")
def wild_images(split):
    """The calibration images, with one pixel four hundred times as bright as any other."""
    images = split.calibration_images.copy()
    images[0, 0, 4, 4] = 400
    return images


@pytest.fixture(scope="session")
def wild_table(wild_images):
    """The demo model's table by minmax, ruined by that pixel."""
    with pytest.warns(UserWarning) as warned:
        table = trtint8.calibrate(DEMO_MODEL, wild_images, method="minmax", spend=0, progress=False)
    assert any("reaches 400 in 1 of 500 samples (sample 0)" in str(one.message) for one in warned)
    return table
