"""Calibrations of the demo model that stop half-way."""

import pytest

import trtint8
from trtint8.data import DEMO_MODEL


def interrupted(images, path):
    name = trtint8.model_inputs(DEMO_MODEL)[0].name

    def feeds():
        yield from ({name: images[start : start + 4]} for start in range(0, 20, 4))
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        trtint8.calibrate(DEMO_MODEL, feeds, checkpoint=path, checkpoint_seconds=0, progress=False)
    assert path.exists()
