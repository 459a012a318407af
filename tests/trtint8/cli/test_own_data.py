"""Data from a function of the user's."""

import numpy as np
import pytest

from calibrators.data.batches import open_batches
from calibrators.data.inputs import InputSpec
from calibrators.errors import CalibrationDataError
from calibrators.tables.table import CalibrationTable
from trtint8.cli.main import main
from trtint8.cli.own_data import data_from

X = (InputSpec("x", np.dtype(np.float32), ("n", 2)),)

LOADERS = """
import numpy as np

def batches():
    for i in range(3):
        yield np.full((2, 2), i, np.float32), np.full(2, i)

def listed():
    return list(batches())

def arrays():
    return {"x": np.ones((4, 2), np.float32)}

def path():
    return "data.npz"

def nothing():
    pass

def takes(one):
    pass

def breaks():
    yield np.zeros((2, 2), np.float32)
    raise ValueError("no such\\nimage.")

def raises():
    raise KeyError("split")

ready = listed()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_loaders.py").write_text(LOADERS)
    (tmp_path / "own_broken.py").write_text("import no_such_package\n")
    (tmp_path / "own_wrong.py").write_text("1 / 0\n")
    return tmp_path


def read(text):
    batches = open_batches(data_from(text), X)
    passes = [[(one.feed["x"][:, 0].tolist(), one.labels) for one in batches.labelled()] for _ in range(2)]
    assert [feed for feed, _ in passes[0]] == [feed for feed, _ in passes[1]]
    return [feed for feed, _ in passes[0]], passes[0][0][1]


@pytest.mark.parametrize("name", ["batches", "listed", "ready"])
def test_what_a_function_returns_is_read_again_for_each_pass(folder, name):
    feeds, labels = read(f"own_loaders:{name}")
    assert feeds == [[0, 0], [1, 1], [2, 2]]
    assert labels.tolist() == [0, 0]


def test_what_is_no_loader_is_passed_on(folder):
    assert read("own_loaders:arrays")[0] == [[1, 1, 1, 1]]
    assert data_from("own_loaders:path") == "data.npz"


def test_other_text_stays_as_it_is(folder):
    for text in (None, "random:3", "data.npz", "folder/a:b", "a:b:c", "own_loaders.py"):
        assert data_from(text) == text
    (folder / "own_loaders:batches").touch()
    assert data_from("own_loaders:batches") == "own_loaders:batches"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "missing_one:f",
            "'missing_one:f' is neither a file nor a function: there is no module 'missing",
        ),
        (
            "own_loaders.part:f",
            r"is neither a file nor a function: there is no module 'own_loaders\.part'",
        ),
        (
            "own_broken:f",
            "the module 'own_broken' cannot be imported: ModuleNotFoundError: No module",
        ),
        (
            "own_wrong:f",
            "the module 'own_wrong' cannot be imported: ZeroDivisionError: division",
        ),
        (
            "own_loaders:typo",
            "the module 'own_loaders' has no 'typo'; name a function of it",
        ),
        ("own_loaders:takes", "the function failed: TypeError: .*'one'; it is called without arguments"),
        ("own_loaders:raises", "the function failed: KeyError: 'split'; it is called without arguments"),
        ("own_loaders:nothing", "the function returned None; return a data loader"),
        ("own_loaders:breaks", "failed at item 1: ValueError: no such image; correct the function"),
    ],
)
def test_every_failure_is_one_sentence(folder, text, message):
    with pytest.raises(CalibrationDataError, match=message):
        read(text)


def test_on_the_command_line(folder, capsys):
    from trtint8.data import DEMO_MODEL
    from trtint8.models.model import load_model

    (spec,) = load_model(DEMO_MODEL).inputs
    shape = (6, *spec.shape[1:])
    values = np.random.default_rng(0).random(shape, np.float32)
    np.savez(folder / "data.npz", **{spec.name: values})
    (folder / "own_digits.py").write_text(
        "import numpy as np\n"
        "def loader():\n"
        f"    values = np.load('data.npz')['{spec.name}']\n"
        "    return [(values[:3], np.arange(3)), (values[3:], np.arange(3))]\n"
    )
    for data, table in (("own_digits:loader", "a.json"), ("data.npz", "b.json")):
        assert main(["calibrate", str(DEMO_MODEL), data, "-o", table, "--method", "entropy"]) == 0
    assert CalibrationTable.load("a.json").amax == CalibrationTable.load("b.json").amax
    assert main(["calibrate", str(DEMO_MODEL), "own_digits:typo", "-o", "c.json"]) == 2
    assert "has no 'typo'" in capsys.readouterr().err
