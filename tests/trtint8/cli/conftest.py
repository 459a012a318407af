"""Files that the verbs read."""

import numpy as np
import pytest

from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL, load_digits_split

MODEL = str(DEMO_MODEL)


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'trtint8[demo]')")
    folder = tmp_path_factory.mktemp("data")
    split = load_digits_split()
    np.savez(folder / "calibration.npz", images=split.calibration_images)
    np.savez(folder / "heldout.npz", images=split.heldout_images, labels=split.heldout_labels)
    return folder


@pytest.fixture(scope="session")
def table(files):
    path = files / "t.json"
    assert main(["calibrate", MODEL, str(files / "calibration.npz"), "-o", str(path)]) == 0
    return str(path)
