"""Modules of PyTorch as models."""

import importlib.util
import subprocess
import sys
import types
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest

import trtint8
from calibrators.errors import ModelError, UnsupportedError
from trtint8.models.model import load_model
from trtint8.models.serialization import save_model, to_proto
from trtint8.models.session import open_graph_model
from trtint8.models.torch_export import open_module, open_modules


class Cache:
    """What holds a tensor, and is none."""

    def __init__(self, tensor):
        self.tensor = tensor


class Named:
    """Any object that is no model."""


class Pair(NamedTuple):
    """Two tensors as one argument."""

    ids: Any
    mask: Any


def test_other_models_stay_as_they_are():
    assert open_module("model.onnx", None) == "model.onnx"
    assert open_modules([b"\0", "model.onnx"], None) == [b"\0", "model.onnx"]


def test_what_is_no_module_is_refused_by_its_type():
    with pytest.raises(ModelError, match=r"example_inputs .*str"):
        open_module("model.onnx", (1,))
    with pytest.raises(ModelError, match="Named"):
        trtint8.model_inputs(Named())


def test_nothing_imports_pytorch_for_other_models():
    code = (
        "import sys, trtint8; from trtint8.data import DEMO_MODEL; trtint8.model_inputs(DEMO_MODEL);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(scope="module")
def torch():
    torch = pytest.importorskip("torch")
    if importlib.util.find_spec("onnxscript") is None:
        pytest.skip("onnxscript is not installed")
    return torch


@pytest.fixture(scope="module")
def nn(torch):
    """Modules for the tests."""

    class Modules:
        class Network(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.features = torch.nn.Conv2d(3, 24, 3)
                self.drop = torch.nn.Dropout()
                self.head = torch.nn.Linear(24, 64)

            def forward(self, images):
                return self.head(self.drop(self.features(images).relu()).mean((2, 3)))

        class ByName(torch.nn.Module):
            def forward(self, ids, mask, scale=None):
                return {"logits": ids * mask, "hidden": (ids + mask, ids), "mask": mask}

        class OfPair(torch.nn.Module):
            def forward(self, pair):
                return pair.ids * pair.mask

        class FixedBatch(torch.nn.Module):
            def forward(self, x):
                return x.reshape(2, 4) * 2

        class Cached(torch.nn.Module):
            config = types.SimpleNamespace(use_cache=True)

            def forward(self, x):
                return {"logits": x * 2, "past": Cache(x)}

        class DataDependent(torch.nn.Module):
            def forward(self, x):
                return x if x.sum() > 0 else x * 2

    return Modules


def names(model):
    graph = model.graph_model.graph
    return [value.name for value in graph.inputs], [value.name for value in graph.outputs]


@pytest.mark.slow
def test_a_module_becomes_a_model_with_a_dynamic_batch(torch, nn):
    module = nn.Network()
    module.drop.eval()  # a part in another mode than the rest
    model = open_module(module, torch.zeros(1, 3, 8, 8))
    assert [str(spec) for spec in model.inputs] == ["'images' (float32, batchx3x8x8)"]
    assert names(model) == (["images"], ["output"])
    assert (module.training, module.features.training, module.drop.training) == (True, True, False)
    x = torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        expected = module.eval()(x).numpy()
    (found,) = open_graph_model(model.graph_model).run({"images": x.numpy()})
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch.compile uses of PyTorch
def test_what_wraps_a_module_is_taken_off(torch, nn):
    module, example = nn.Network(), torch.zeros(1, 3, 8, 8)
    expected = open_module(module, example).fingerprint
    for wrapped in (torch.compile(module), torch.nn.DataParallel(module)):
        assert open_module(wrapped, example).fingerprint == expected


@pytest.mark.slow
def test_the_model_is_the_same_each_time_and_in_a_file(torch, nn, tmp_path):
    module = nn.Network()
    model = open_module(module, torch.zeros(1, 3, 8, 8))
    assert open_module(module, torch.zeros(4, 3, 8, 8)).fingerprint == model.fingerprint
    written = load_model(save_model(model.graph_model, tmp_path / "model.onnx"))
    assert written.fingerprint == model.fingerprint
    # No path of this machine is in it.
    assert b"test_torch_export.py" not in (tmp_path / "model.onnx").read_bytes()


@pytest.mark.slow
def test_the_model_does_not_change_when_the_module_does(torch, nn):
    module = nn.Network()
    model = open_module(module, torch.zeros(1, 3, 8, 8))
    before = to_proto(model.graph_model).SerializeToString(deterministic=True)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert to_proto(model.graph_model).SerializeToString(deterministic=True) == before


@pytest.mark.slow
def test_arguments_by_name_and_outputs_by_key(torch, nn):
    ids, mask = torch.ones(2, 4), torch.ones(2, 4)
    for example in ({"mask": mask, "ids": ids}, (ids, mask), [ids, mask]):
        assert names(open_module(nn.ByName(), example)) == (
            ["ids", "mask"],
            ["logits", "hidden_0", "hidden_1", "mask_output"],
        )


@pytest.mark.slow
def test_an_argument_may_be_a_named_tuple(torch, nn):
    model = open_module(nn.OfPair(), {"pair": Pair(torch.ones(2, 4), torch.ones(2, 4))})
    assert [str(spec) for spec in model.inputs] == [
        "'pair_0' (float32, batchx4)",
        "'pair_1' (float32, batchx4)",
    ]


@pytest.mark.slow
def test_a_module_for_one_batch_only(torch, nn):
    with pytest.warns(UserWarning, match="'FixedBatch'"):
        model = open_module(nn.FixedBatch(), torch.zeros(2, 4))
    assert [str(spec) for spec in model.inputs] == ["'x' (float32, 2x4)"]


@pytest.mark.slow
def test_inputs_that_do_not_share_the_batch(torch):
    class Product(torch.nn.Module):
        def forward(self, x, weights, scale):
            return x @ weights * scale

    model = open_module(Product(), (torch.zeros(2, 4), torch.zeros(4, 5), torch.tensor(2.0)))
    assert [spec.shape for spec in model.inputs] == [("batch", 4), (4, 5), ()]


@pytest.mark.slow
def test_what_cannot_be_exported_is_refused(torch, nn):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates it
        traced = torch.jit.trace(torch.nn.Linear(4, 4), torch.zeros(1, 4))
    for module, example, named in (
        (nn.Network(), None, r"'Network'.* torch\.nn\.Module"),
        (nn.ByName(), torch.zeros(2, 4), r"forward\(ids, mask, scale=None\).* 'ByName'.* 'mask'"),
        (nn.Network(), torch.zeros(1, 4, 8, 8), "'Network'.* example_inputs"),
        (nn.DataDependent(), torch.ones(2, 4), "'DataDependent'"),
        (nn.Cached(), torch.ones(2, 4), r"'Cached'.* Cache in 'past'.* config\.use_cache"),
        (traced, torch.zeros(1, 4), "TorchScript"),
    ):
        with pytest.raises(ModelError, match=named):
            open_module(module, example)


@pytest.mark.slow
def test_what_pytorch_logs_while_it_exports_is_left_out():
    pytest.importorskip("onnxscript")
    # In a process of its own: PyTorch writes to the standard error that there was when it was imported.
    code = (
        "import logging, torch, trtint8; logging.disable(5);"
        "trtint8.model_inputs(torch.nn.Linear(4, 4), example_inputs=torch.zeros(2, 4));"
        "assert logging.root.manager.disable == 5"
    )
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_exporting_takes(torch, nn, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("importlib.util.find_spec", lambda _name: None)
        with pytest.raises(UnsupportedError, match=r"'Network' .*onnxscript"):
            open_module(nn.Network(), torch.zeros(1, 3, 8, 8))
    monkeypatch.setattr(torch, "__version__", "2.6.1+cpu")
    with pytest.raises(UnsupportedError, match=r"2\.7 .*2\.6\.1"):
        open_module(nn.Network(), torch.zeros(1, 3, 8, 8))
