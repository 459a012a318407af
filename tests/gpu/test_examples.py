"""The examples in docstrings that need a GPU do what they show."""

import shutil

import pytest

import trtint8
from calibrators.tensorrt import flavor as flavors
from tests.docs.docstrings import EXAMPLES, ON_GPU, files, run

__all__ = ["files"]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name.split(".")[0] in ON_GPU])
def test_an_example_runs_on_the_gpu(name, device, files, tmp_path, monkeypatch):
    if name == "set_dynamic_ranges" and not any(found.implicit_int8 for found in flavors.installed()):
        pytest.skip("no TensorRT with dynamic ranges is installed")
    monkeypatch.chdir(shutil.copytree(files, tmp_path / "files"))
    options = trtint8.BuildOptions(refit=name == "refit")
    trtint8.build_int8_engine("model.onnx", "table.json", "model.engine", options=options, fp16=False)
    with trtint8.Engine.load("model.engine") as engine:
        run(name, engine=engine)
