"""Triton's model repository."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import UnsupportedError
from tests.trtint8.deployment.conftest import shapes
from trtint8.deployment.triton import model_config, triton_files
from trtint8.deployment.writing import deploy
from trtint8.engine.file import TensorSpec


@pytest.fixture(scope="module")
def protobuf():
    """Triton's own definition of model configurations, by its file: its package wants gRPC as well."""
    package = importlib.util.find_spec("tritonclient")
    if package is None:
        pytest.skip("tritonclient is not installed")
    file = Path(next(iter(package.submodule_search_locations))) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def parsed(protobuf):
    from google.protobuf import text_format

    return lambda source: text_format.Parse(model_config(source), protobuf.ModelConfig())


def test_the_text_of_a_configuration(make_source):
    assert model_config(make_source()) == (
        'name: "net"\n'
        'platform: "tensorrt_plan"\n'
        "max_batch_size: 32\n"
        'default_model_filename: "model.plan"\n'
        'input { name: "images" data_type: TYPE_FP32 dims: [ 3, 8, 6 ] }\n'
        'output { name: "logits" data_type: TYPE_FP32 dims: [ 10 ] }\n'
        "dynamic_batching {\n"
        "  max_queue_delay_microseconds: 100\n"
        "}\n"
        'instance_group [ { count: 1 kind: KIND_GPU profile: [ "0" ] } ]\n'
    )


def test_tritons_protobuf_reads_it(make_source, parsed, protobuf):
    wanted = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    config = parsed(make_source(preprocessing=wanted))
    assert (config.name, config.platform, config.max_batch_size) == ("net", "tensorrt_plan", 32)
    assert [(t.name, t.data_type, list(t.dims)) for t in config.input] == [
        ("images", protobuf.TYPE_FP32, [3, 8, 6])
    ]
    assert [(t.name, list(t.dims)) for t in config.output] == [("logits", [10])]
    assert list(config.dynamic_batching.preferred_batch_size) == []
    assert config.instance_group[0].kind == protobuf.ModelInstanceGroup.KIND_GPU
    assert json.loads(config.parameters["preprocessing"].string_value)["std"] == [0.229, 0.224, 0.225]


def test_names_and_dimensions_of_all_kinds(make_source, parsed, protobuf):
    source = make_source(
        inputs=(
            TensorSpec('in"put:\\0\u00e4', "bfloat16", ("batch", None, "width")),
            TensorSpec("length", "int64", ("batch",)),
        ),
        outputs=(TensorSpec("mask", "bool", ("batch", "width")),),
        profiles=({"length": shapes(2, 2, 4, ())}, {"length": shapes(4, 8, 16, ())}),
    )
    config = parsed(source)
    assert [(t.name, t.data_type, list(t.dims)) for t in config.input] == [
        ('in"put:\\0\u00e4', protobuf.TYPE_BF16, [-1, -1]),
        ("length", protobuf.TYPE_INT64, [1]),
    ]
    assert config.input[1].HasField("reshape")
    assert list(config.input[1].reshape.shape) == []
    assert (config.max_batch_size, list(config.instance_group[0].profile)) == (16, ["0", "1"])
    assert list(config.dynamic_batching.preferred_batch_size) == []
    assert "takes no batch of fewer than 2 samples" in triton_files(source)["README.md"]


@pytest.mark.parametrize(
    "name", ["a\nb", '"} input { name: "x', "\x00\x1b\x7f", "a\\", "\u2028\U0001f433", "é?", "'", "{#"]
)
def test_any_name_stays_one(make_source, parsed, name):
    config = parsed(make_source(outputs=(TensorSpec(name, "float32", ("batch", name)),)))
    assert [output.name for output in config.output] == [name]


def test_an_engine_without_a_batch(make_source, parsed):
    source = make_source(inputs=(TensorSpec("images", "float32", (4, 3, 8, 6)),), profiles=())
    config = parsed(source)
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [4, 3, 8, 6])
    assert list(config.output[0].dims) == [-1, 10]
    assert not config.HasField("dynamic_batching")
    assert not config.instance_group[0].profile
    assert "`max_batch_size` is 0" in triton_files(source)["README.md"]


@pytest.mark.parametrize(
    ("joins", "largest", "said"),
    [(True, 32, False), (False, 0, False), (None, 32, True)],  # None: of an earlier version
)
def test_requests_are_joined_only_where_that_changes_no_answer(make_source, parsed, joins, largest, said):
    source = make_source(joins_samples=joins)
    config = parsed(source)
    assert config.max_batch_size == largest
    assert config.HasField("dynamic_batching") == bool(largest)
    assert list(config.input[0].dims) == ([3, 8, 6] if largest else [-1, 3, 8, 6])
    assert ("was not tried: set" in triton_files(source)["README.md"]) == said


def test_a_type_that_triton_lacks_is_refused(make_source):
    source = make_source(outputs=(TensorSpec("logits", "float8_e4m3fn", ("batch", 10)),))
    with pytest.raises(
        UnsupportedError, match="no element type for the output 'logits' of float8_e4m3fn; export"
    ):
        triton_files(source)


def test_the_files(make_source):
    source = make_source()
    files = triton_files(source)
    assert sorted(files) == [
        "README.md",
        "client.py",
        "model.json",
        "net/1/model.plan",
        "net/build_plan.sh",
        "net/config.pbtxt",
        "net/model.qdq.onnx",
        "preprocess.py",
    ]
    assert files["net/1/model.plan"] == source.engine
    assert (
        "runs in a Triton whose TensorRT is the one that built it, TensorRT 10.9.0.34" in files["README.md"]
    )
    assert "net/build_plan.sh" not in triton_files(make_source(qdq=False))


#: A server that adds 1 to every input.
CLIENT = """
import numpy as np


class InferInput:
    def __init__(self, name, shape, datatype):
        self.name, self.shape, self.datatype = name, shape, datatype

    def set_data_from_numpy(self, array):
        assert list(array.shape) == self.shape
        self.array = array


class InferenceServerClient:
    def __init__(self, address):
        assert address == "localhost:8000"

    def infer(self, name, inputs):
        assert name == "net"
        for one in inputs:
            print("request", one.name, one.datatype, one.shape)
        return Answer({f"{one.name}_out": one.array + 1 for one in inputs})


class Answer(dict):
    as_numpy = dict.get
"""


@pytest.fixture
def client(make_engine, tmp_path):
    """Sends arrays with the client of a deployment to a server that adds 1 to each."""

    def call(shapes_of, profiles, **arrays):
        folder = tmp_path / "there"
        ends = [
            tuple(TensorSpec(f"{name}{end}", "float32", shape) for name, shape in shapes_of.items())
            for end in ("", "_out")
        ]
        deploy(make_engine(inputs=ends[0], outputs=ends[1], profiles=profiles), "triton", folder)
        (folder / "tritonclient").mkdir()
        (folder / "tritonclient" / "http.py").write_text(CLIENT)
        (folder / "tritonclient" / "utils.py").write_text("def np_to_triton_dtype(dtype): return dtype.name")
        (folder / "tritonclient" / "__init__.py").touch()
        np.savez(tmp_path / "in.npz", **arrays)
        command = [sys.executable, "there/client.py", "in.npz", "out.npz"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        with np.load(tmp_path / "out.npz") as found:
            return done.stdout.splitlines()[: len(arrays)], {name: found[name].tolist() for name in found}

    return call


def test_the_client_gives_one_value_per_sample_an_axis(client):
    profile = {"images": shapes(1, 8, 32, (2,)), "gain": shapes(1, 8, 32, ())}
    requests, answers = client(
        {"images": ("batch", 2), "gain": ("batch",)},
        (profile,),
        images=np.array([[1, 2], [3, 4], [5, 6]], np.float32),
        gain=np.array([7, 8, 9], np.float32),
    )
    assert requests == ["request images float32 [3, 2]", "request gain float32 [3, 1]"]
    assert answers == {"images_out": [[2, 3], [4, 5], [6, 7]], "gain_out": [8, 9, 10]}


def test_the_client_gives_a_value_an_axis_where_nothing_is_batched(client):
    requests, answers = client(
        {"values": ("count",), "gain": ()},
        ({"values": shapes(1, 8, 32, ())},),
        values=np.array([1, 2], np.float32),
        gain=np.array(7, np.float32),
    )
    assert requests == ["request values float32 [2]", "request gain float32 [1]"]
    assert answers == {"values_out": [2, 3], "gain_out": 8}


def test_a_plan_of_tensorrt_for_rtx_is_built_where_triton_runs(make_source):
    files = triton_files(make_source(flavor="rtx", tensorrt_version="1.7.1.116"))
    assert "net/1/model.plan" not in files
    assert "--saveEngine=1/model.plan " in files["net/build_plan.sh"]
    assert "**The plan is not here yet.**" in files["README.md"]
