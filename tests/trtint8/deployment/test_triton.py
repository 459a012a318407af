"""Triton's model repository."""

import importlib.util
import json
from pathlib import Path

import pytest

from calibrators.data.images.preprocessing import Preprocessing
from calibrators.errors import UnsupportedError
from tests.trtint8.deployment.conftest import shapes
from trtint8.deployment.triton import model_config, triton_files
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
        "  preferred_batch_size: [ 8 ]\n"
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
    assert list(config.dynamic_batching.preferred_batch_size) == [8]
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
    assert list(config.dynamic_batching.preferred_batch_size) == [2, 8]
    assert "takes no batch of fewer than 2 samples" in triton_files(source)["README.md"]


def test_an_engine_without_a_batch(make_source, parsed):
    source = make_source(inputs=(TensorSpec("images", "float32", (4, 3, 8, 6)),), profiles=())
    config = parsed(source)
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [4, 3, 8, 6])
    assert list(config.output[0].dims) == [-1, 10]
    assert not config.HasField("dynamic_batching")
    assert not config.instance_group[0].profile
    assert "`max_batch_size` is 0" in triton_files(source)["README.md"]


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
        "net/net.qdq.onnx",
        "preprocess.py",
    ]
    assert files["net/1/model.plan"] == source.engine
    assert (
        "runs in a Triton whose TensorRT is the one that built it, TensorRT 10.9.0.34" in files["README.md"]
    )
    assert "net/build_plan.sh" not in triton_files(make_source(qdq=False))


def test_a_plan_of_tensorrt_for_rtx_is_built_where_triton_runs(make_source):
    files = triton_files(make_source(flavor="rtx", tensorrt_version="1.7.1.116"))
    assert "net/1/model.plan" not in files
    assert "--saveEngine=1/model.plan --stronglyTyped" in files["net/build_plan.sh"]
    assert "**The plan is not here yet.**" in files["README.md"]
