"""Every public call with nothing in the place of each thing that it needs: one sentence of this project."""

import inspect
from pathlib import Path

import numpy as np
import onnx
import pytest

import trtint8
from trtint8.data import DEMO_MODEL

IMAGES = np.random.default_rng(0).standard_normal((4, 1, 8, 8)).astype(np.float32)

#: What the other arguments are.
GIVEN = {
    "model": DEMO_MODEL,
    "reference": DEMO_MODEL,
    "data": IMAGES,
    "calibration": IMAGES,
    "table": trtint8.CalibrationTable({"images": 1.0}),
    "cache": trtint8.CalibrationTable({"images": 1.0}),
    "gpu": "L4",
    "to": "triton",
    "output": "out.engine",
    "engine": "net.engine",
    "engines": ["net.engine"],
    "sources": ["net.engine"],
    "tensors": ["/fc/Gemm_output_0"],
}

EMPTY_FILES = tuple(f"empty.{ending}" for ending in ("onnx", "json", "npz", "npy", "engine", "cache", "toml"))

#: Makes what is given in place of one argument. Iterators are used up, so each case has its own.
NOTHING = {
    "None": lambda: None,
    "a text": str,
    "bytes": bytes,
    "a list": list,
    "a tuple": tuple,
    "a dict": dict,
    "a set": set,
    "an iterator": lambda: iter(()),
    "an array": lambda: np.zeros(0, np.float32),
    "no samples": lambda: IMAGES[:0],
    "no samples by name": lambda: {"images": IMAGES[:0]},
    "a list of dicts": lambda: [{}],
    "a list of nothing": lambda: [None],
    "a list of texts": lambda: [""],
    "a message": onnx.ModelProto,
    "an object": object,
    "a loader": lambda: list,
    "a loader of nothing": lambda: lambda: None,
    "a folder": lambda: Path("folder"),
    "a NUL": lambda: "a\0b.onnx",
    **{name: lambda name=name: name for name in EMPTY_FILES},
}

#: Of these the constructors take nothing from a user, or any value of the declared types.
CALLS = {
    **{name: getattr(trtint8, name) for name in trtint8.__all__ if name[0].islower()},
    **{
        f"{name}.load": getattr(trtint8, name).load
        for name in trtint8.__all__
        if hasattr(getattr(trtint8, name), "load")
    },
}


def needed(call):
    """The arguments without a default."""
    return [p.name for p in inspect.signature(call).parameters.values() if p.default is p.empty]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where nothing but empty files is."""
    monkeypatch.chdir(tmp_path)
    for name in EMPTY_FILES:
        Path(name).touch()
    Path("folder").mkdir()
    return tmp_path


#: An empty file of preprocessing has the default of every key, and an output replaces a file that is there.
FINE = {("Preprocessing.load", "path", "empty.toml")} | {
    ("build_int8_engine", "output", name) for name in EMPTY_FILES
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "argument"), [(name, argument) for name, call in CALLS.items() for argument in needed(call)]
)
def test_nothing_in_place_of_an_argument_is_refused(name, argument, folder):
    call = CALLS[name]
    others = {one: GIVEN.get(one) for one in needed(call)}
    if "progress" in inspect.signature(call).parameters:
        others["progress"] = False
    before = sorted(path.name for path in folder.iterdir())
    for kind, make in NOTHING.items():
        if (name, argument, kind) in FINE:
            continue
        try:
            call(**{**others, argument: make()})
        except trtint8.TrtInt8Error as error:
            assert str(error) and "\n" not in str(error), kind
        except Exception as error:
            raise AssertionError(f"{argument} is {kind}: {error!r}") from error
        else:
            pytest.fail(f"{argument} is {kind}, and nobody minds")
        assert sorted(path.name for path in folder.iterdir()) == before, kind
