"""Files that the verbs read."""

import json

import numpy as np
import pytest

from tests.trtint8.cli.calls import succeeds, words_of
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
    succeeds("calibrate", MODEL, files / "calibration.npz", "-o", path)
    return str(path)


@pytest.fixture
def refused(capsys):
    """Calls a verb that has to be refused, and gives its one sentence."""

    def call(*parts):
        capsys.readouterr()
        words = words_of(parts)
        assert main(words) == 2
        printed, said = capsys.readouterr()
        (line,) = said.splitlines()
        assert printed == "" and line.startswith(f"trtint8 {words[0]}: ")
        return line

    return call


@pytest.fixture
def as_json(capsys):
    """Calls a verb, and gives what it prints as JSON."""

    def call(*parts):
        capsys.readouterr()
        succeeds(*parts, "--json")
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def prints(capsys):
    """Calls a verb, and gives what it prints."""

    def call(*parts):
        capsys.readouterr()
        succeeds(*parts)
        return capsys.readouterr().out

    return call
