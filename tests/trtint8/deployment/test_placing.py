"""Deployments for another target than the engine's, and of models that no engine was built of yet."""

import re
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import trtint8
from calibrators.errors import TableError, TrtInt8Error, UnsupportedError
from calibrators.tables.formats.tensorrt_cache import parse
from calibrators.tables.table import CalibrationTable
from tests.behaviour.models import CASES
from tests.trtint8.onnx_models import Shaped, constants_of, conv_relu_conv, parsed, prepared_graph
from trtint8.engine.file import EngineInfo, TensorSpec, save_engine
from trtint8.engine.profiles import ShapeRange
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import save_model
from trtint8.quantization.quantize import QuantizeOptions, quantized_model
from trtint8.quantization.targets import TARGETS

PROFILE = {"images": ShapeRange((1, 3, 16, 16), (2, 3, 16, 16), (4, 3, 16, 16))}


@pytest.fixture
def float_file(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(conv_relu_conv(quantized=False), path)
    return path


@pytest.fixture
def table(float_file):
    images = np.random.default_rng(0).uniform(-1, 1, (4, 3, 16, 16)).astype(np.float32)
    return trtint8.calibrate(float_file, images, method="minmax")


@pytest.fixture
def make_engine(tmp_path, float_file, table):
    """Writes an engine of a TensorRT, with the Q/DQ model that a build for it has."""

    def make(flavor="rtx", version="1.7.1.116", constants=None, **options):
        prepared = prepare(load_model(float_file))
        for name, array in (constants or {}).items():
            prepared.graph_model.graph.initializers[name].const_value = ir.tensor(array)
        name = "rtx" if flavor == "rtx" else "tensorrt-10"
        if flavor == "rtx":
            options = {"float16": True, "float32_io": True, "keep_int8": ("*",), **options}
        made = quantized_model(prepared, table, QuantizeOptions(target=TARGETS[name], **options))
        info = EngineInfo(
            flavor=flavor,
            tensorrt_version=version,
            compute_capabilities=("8.6",),
            inputs=(TensorSpec("images", "float32", ("N", 3, 16, 16)),),
            outputs=(TensorSpec("second_out", "float32", ("N", 16, 16, 16)),),
            profiles=(PROFILE,),
            layers=None,
            quantized_nodes=made.placement.quantized_nodes,
            float_nodes=made.placement.float_nodes,
            float_causes=made.placement.float_causes,
            weights_bytes=None,
            model_fingerprint=prepared.fingerprint,
            table_fingerprint=table.fingerprint,
            method="entropy",
            qdq_model="engine.qdq.onnx",
            joins_samples=True,
        )
        engine = tmp_path / "engine.engine"
        save_engine(engine, b"a plan", info)
        save_model(made.graph_model, tmp_path / "engine.qdq.onnx")
        table.save(tmp_path / "engine.table.json")
        return engine

    return make


def deployed(folder):
    """The Q/DQ model in a folder."""
    (path,) = folder.rglob("*.onnx")
    return onnx.load(path)


def types_of(model):
    return {onnx.TensorProto.DataType.Name(one.data_type) for one in model.graph.initializer}


def run(model, images):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"images": images})[0]


def weight_scales(model):
    """The number of scales of every QuantizeLinear of weights."""
    constants = constants_of(model)
    return [
        constants[node.input[1]].size
        for node in model.graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] in constants
    ]


@pytest.mark.filterwarnings("ignore:INT8 would be slower")  # so that all of the engine is FP16
@pytest.mark.parametrize("to", ["triton", "deepstream", "ort-trt"])
@pytest.mark.parametrize("options", [{}, {"keep_int8": ()}])
def test_an_engine_for_rtx_is_placed_anew_for_the_full_tensorrt(
    make_engine, float_file, table, tmp_path, to, options
):
    engine = make_engine(**options)
    before = onnx.load(tmp_path / "engine.qdq.onnx")
    assert "FLOAT16" in types_of(before)  # the form that TensorRT for RTX likes
    assert bool(options) != any("_unscaled" in node.output[0] for node in before.graph.node)
    trtint8.deploy(engine, to, tmp_path / "there")
    found = deployed(tmp_path / "there")
    assert "FLOAT16" not in types_of(found)
    assert weight_scales(found) == [16, 16]
    assert Counter(node.op_type for node in found.graph.node) == Counter(
        node.op_type for node in trtint8.quantize(float_file, table).graph.node
    )
    assert not list((tmp_path / "there").rglob("*.plan"))
    images = np.random.default_rng(0).uniform(-1, 1, (2, 3, 16, 16)).astype(np.float32)
    wanted = run(trtint8.quantize(float_file, table), images)
    assert np.abs(run(found, images) - wanted).max() < 0.02 * np.abs(wanted).max()
    assert "2 of 2 weighted layers" in (tmp_path / "there" / "README.md").read_text()


def test_corrected_biases_and_rounded_weights_are_kept(make_engine, float_file, tmp_path):
    before = {
        value.name: value.const_value.numpy()
        for value in prepared_graph(float_file).graph.initializers.values()
    }
    weights = {name: array for name, array in before.items() if array.ndim == 4}
    changed = {name: array + np.float32(0.25) for name, array in before.items() if array.ndim == 1}
    integers = {}
    for name, array in weights.items():
        scale = np.abs(array).max(axis=(1, 2, 3), keepdims=True) / 127
        nearest = np.rint(array / scale)
        integers[name] = np.where(np.abs(nearest) < 126, nearest + (nearest % 2), nearest)
        changed[name] = (integers[name] * scale).astype(np.float32)
    trtint8.deploy(make_engine(constants=changed), "triton", tmp_path / "there", target="tensorrt-10")
    model = deployed(tmp_path / "there")
    found = constants_of(model)
    assert [found[one.input[2]] for one in model.graph.node if one.op_type == "Conv" and len(one.input) > 2]
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] in found:
            scale = found[node.input[1]].reshape(-1, 1, 1, 1)
            assert any(
                np.array_equal(np.rint(found[node.input[0]] / scale), wanted) for wanted in integers.values()
            )
        if node.op_type == "Conv" and len(node.input) > 2:
            bias = found[node.input[2]]
            assert any(np.abs(bias - array).max() < 1e-3 for array in changed.values() if array.ndim == 1)


def test_what_was_kept_in_float_stays_so(make_engine, tmp_path):
    trtint8.deploy(make_engine(keep_float=("second",)), "triton", tmp_path / "there")
    assert weight_scales(deployed(tmp_path / "there")) == [16]
    assert "1 of 2 weighted layers" in (tmp_path / "there" / "README.md").read_text()


def test_a_named_target_decides_the_form(make_engine, tmp_path):
    engine = make_engine()
    trtint8.deploy(engine, "triton", tmp_path / "eleven", target="tensorrt-11")
    found = deployed(tmp_path / "eleven")
    assert "FLOAT16" in types_of(found) and weight_scales(found) == [16, 16]
    assert {value.type.tensor_type.elem_type for value in (*found.graph.input, *found.graph.output)} == {
        onnx.TensorProto.FLOAT
    }
    trtint8.deploy(engine, "triton", tmp_path / "eight", target="tensorrt-8.6", keep_float=["first"])
    found = deployed(tmp_path / "eight")
    assert types_of(found) <= {"FLOAT", "INT8", "INT64"} and weight_scales(found) == [16]


def test_an_engine_of_the_full_tensorrt_is_used_as_it_is(make_engine, tmp_path):
    engine = make_engine("tensorrt", "10.9.0.34")
    before = onnx.load(tmp_path / "engine.qdq.onnx")
    for target in (None, "tensorrt-10"):
        folder = tmp_path / f"there-{target}"
        trtint8.deploy(engine, "triton", folder, target=target)
        assert (folder / "engine" / "1" / "model.plan").read_bytes() == b"a plan"
        assert len(deployed(folder).graph.node) == len(before.graph.node)
    trtint8.deploy(engine, "triton", tmp_path / "anew", target="tensorrt-11")
    assert not list((tmp_path / "anew").rglob("*.plan"))


def test_an_engine_of_a_finished_model_has_the_ranges_of_its_pairs(make_engine, tmp_path):
    engine = make_engine()
    sidecar = engine.with_name("engine.engine.json")
    text = re.sub(r'"table_fingerprint": "[0-9a-f]+"', '"table_fingerprint": null', sidecar.read_text())
    sidecar.write_text(text)
    trtint8.deploy(engine, "triton", tmp_path / "there")
    assert weight_scales(deployed(tmp_path / "there")) == [16, 16]


def test_a_float_model_with_its_table(float_file, table, tmp_path):
    table.save(tmp_path / "net.table.json")
    folder = tmp_path / "there"
    trtint8.deploy(float_file, "triton", folder, table=tmp_path / "net.table.json", profiles=[PROFILE])
    assert weight_scales(deployed(folder)) == [16, 16]
    config = (folder / "net" / "config.pbtxt").read_text()
    assert "max_batch_size: 4\n" in config and "dims: [ 3, 16, 16 ]" in config
    assert "--maxShapes=images:4x3x16x16" in (folder / "net" / "build_plan.sh").read_text()
    assert "`1..4 x 3 x 16 x 16`" in (folder / "README.md").read_text()
    with pytest.raises(TableError, match=r"net\.onnx"):
        trtint8.deploy(float_file, "triton", tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-11", "rtx"])
def test_what_was_kept_in_float_stays_so_where_pairs_are_placed_anew(target, float_file, table, tmp_path):
    """Nothing in a model says what was kept: it would have pairs otherwise."""
    made_for = {"target": target, "float16": target == "tensorrt-11", "float32_io": target == "tensorrt-11"}
    onnx.save(trtint8.quantize(float_file, table, keep_float=["first"], **made_for), tmp_path / "q.onnx")
    for number, asked in enumerate(({}, {"table": table}, {"target": "tensorrt-10"})):
        folder = tmp_path / str(number)
        trtint8.deploy(tmp_path / "q.onnx", "triton", folder, **asked)
        assert weight_scales(deployed(folder)) == [16], asked


def test_a_model_in_fp32_keeps_its_layers_in_float_not_because_fp16_is_faster(tmp_path):
    """Its layer in INT8 is the one that FP16 would be slower for, by chance."""
    g = Shaped(quantized=False)
    hidden = g.Relu("relu", g.MatMul("large", "x", g.weights(2048, 4096)))
    onnx.save(
        g.model({"x": [8, 2048]}, g.MatMul("small", hidden, g.weights(4096, 64))), tmp_path / "net.onnx"
    )
    samples = np.random.default_rng(0).standard_normal((16, 2048)).astype(np.float32)
    table = trtint8.calibrate(tmp_path / "net.onnx", samples, method="minmax", spend=0)
    trtint8.write_quantized(tmp_path / "net.onnx", table, tmp_path / "q.onnx", keep_float=["small"])
    trtint8.deploy(tmp_path / "q.onnx", "triton", tmp_path / "there", table=table)
    assert weight_scales(deployed(tmp_path / "there")) == [4096]


def test_pairs_of_another_tool_are_deployed(tmp_path):
    # Another tool's pairs are what its quantization was trained with.
    onnx.save(conv_relu_conv(), tmp_path / "other.onnx")
    with pytest.warns(UserWarning, match="kernel_shape"):  # for TensorRT 8.6
        trtint8.deploy(tmp_path / "other.onnx", "triton", tmp_path / "other")
    with pytest.raises(UnsupportedError, match=r"other\.onnx"):
        trtint8.deploy(tmp_path / "other.onnx", "triton", tmp_path / "no", target="tensorrt-10")


def test_pairs_of_another_tool_that_tensorrt_refuses_are_named(tmp_path):
    model = parsed(
        "float[N, 16] x", "float[N, 16] y",
        "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = MatMul (d, w)",
        s=np.float32(0.5), z=np.uint8(3), w=np.eye(16, dtype=np.float32),
    )  # fmt: skip
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.warns(UserWarning, match=r"'other\.onnx' has .* such as"):
        trtint8.deploy(tmp_path / "other.onnx", "triton", tmp_path / "there")


def test_an_equalized_model_has_a_table_of_its_own(tmp_path):
    case = CASES["depthwise"]
    onnx.save(case.network(), tmp_path / "net.onnx")
    before = trtint8.calibrate(tmp_path / "net.onnx", case.samples())
    made = trtint8.write_quantized(
        tmp_path / "net.onnx", before, tmp_path / "q.onnx", equalize=case.samples()
    )
    for given in (made.model, made.float_model):
        trtint8.deploy(given, "triton", tmp_path / given.stem, table=made.table)
        assert len(weight_scales(deployed(tmp_path / given.stem))) == 3


@pytest.mark.parametrize(
    ("given", "to", "more"),
    [
        ("net.onnx", "cpp", {}),
        ("net.onnx", "docker", {}),
        ("net.onnx", "triton", {"target": "rtx"}),
        ("net.onnx", "triton", {"target": "dla"}),
        ("net.onnx", "triton", {"target": "tensorrt-9"}),
        ("net.onnx", "triton", {"keep_float": ["nothing"]}),
        ("net.onnx", "triton", {"preferred_batch_sizes": [33]}),
        ("net.onnx", "triton", {"preferred_batch_sizes": [0]}),
        ("net.onnx", "deepstream", {"preferred_batch_sizes": [8]}),
        ("net.onnx", "triton", {"profiles": [{"x": PROFILE["images"]}]}),
        ("missing.onnx", "triton", {}),
        ("engine.engine", "cpp", {"target": "tensorrt-10"}),
    ],
)
def test_what_cannot_be_is_refused(make_engine, table, tmp_path, given, to, more):
    make_engine()
    with pytest.raises(TrtInt8Error):
        trtint8.deploy(
            tmp_path / given, to, tmp_path / "there", table=table if given == "net.onnx" else None, **more
        )
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("to", ["cpp", "docker"])
def test_where_an_engine_is_needed_a_model_is_refused_before_its_table_is_asked_for(float_file, tmp_path, to):
    with pytest.raises(UnsupportedError, match=float_file.name):
        trtint8.deploy(float_file, to, tmp_path / "there")


@pytest.mark.parametrize(
    "more", [{"profiles": [PROFILE]}, {"keep_float": ["first"]}, {"table": CalibrationTable({"images": 1.0})}]
)
@pytest.mark.parametrize("to", ["triton", "cpp"])
def test_what_has_no_effect_on_an_engine_is_refused(make_engine, tmp_path, to, more):
    engine = make_engine("tensorrt", "10.9.0.34")
    with pytest.raises(UnsupportedError, match="has no effect"):
        trtint8.deploy(engine, to, tmp_path / "there", **more)


def test_preferred_batch_sizes_are_those_that_are_asked_for(float_file, table, tmp_path):
    trtint8.deploy(float_file, "triton", tmp_path / "there", table=table, preferred_batch_sizes=[16, 8])
    assert "preferred_batch_size: [ 8, 16 ]" in (tmp_path / "there" / "net" / "config.pbtxt").read_text()


def test_requests_that_may_not_be_joined_are_not(tmp_path):
    model = parsed(
        "float[N, 16] x", "float[N, 16] y",
        "h = MatMul (x, w) m = ReduceMean <axes = [0], keepdims = 1> (h) y = Sub (h, m)",
        w=np.eye(16, dtype=np.float32),
    )  # fmt: skip
    onnx.save(model, tmp_path / "mean.onnx")
    table = CalibrationTable(dict.fromkeys("xhmy", 3.0))
    trtint8.deploy(tmp_path / "mean.onnx", "triton", tmp_path / "there", table=table)
    config = (tmp_path / "there" / "mean" / "config.pbtxt").read_text()
    assert "max_batch_size: 0\n" in config and "dynamic_batching" not in config


class TestDeepStream:
    def deploy(self, tmp_path, model, table, **more):
        path = tmp_path / "images.onnx"
        onnx.save(model, path)
        trtint8.deploy(path, "deepstream", tmp_path / "there", table=table, **more)
        text = (tmp_path / "there" / "config_infer.txt").read_text()
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and line[0] != "#")

    def test_images_of_open_size_have_that_of_the_profile(self, tmp_path):
        model = conv_relu_conv(quantized=False, size=("h", "w"))
        table = CalibrationTable(dict.fromkeys(["images", *tensors_of(model)], 4.0))
        shapes = ShapeRange((1, 3, 8, 8), (2, 3, 16, 24), (4, 3, 32, 32))
        config = self.deploy(tmp_path, model, table, profiles=[{"images": shapes}])
        assert config["infer-dims"] == "3;16;24"
        assert config["batch-size"] == "4"

    def test_the_cache_has_what_follows_and_says_what_is_missing(self, tmp_path):
        model = conv_relu_conv(quantized=False)
        conv, relu, out = tensors_of(model)
        with pytest.warns(UserWarning, match=r"1 tensor .*calibration\.cache"):
            self.deploy(tmp_path, model, CalibrationTable({"images": 4.0, relu: 2.0}))
        # What ReLU alone reads has the range of its output; that of the last layer nobody knows.
        cache = parse((tmp_path / "there" / "calibration.cache").read_bytes(), "calibration.cache")
        assert sorted(cache.scales) == sorted(["images", conv, relu])
        readme = (tmp_path / "there" / "README.md").read_text()
        assert "1 tensor" in readme and "OUT.float.onnx" in readme
        assert out not in cache.scales

    def test_a_model_without_a_table_has_no_cache(self, tmp_path):
        with pytest.warns(UserWarning, match="lint"):
            config = self.deploy(tmp_path, conv_relu_conv(), None)
        assert "int8-calib-file" not in config
        assert "--table" in (tmp_path / "there" / "README.md").read_text()

    def test_a_cache_of_all_tensors(self, tmp_path):
        model = conv_relu_conv(quantized=False)
        table = CalibrationTable(dict.fromkeys(["images", *tensors_of(model)], 4.0))
        self.deploy(tmp_path, model, table)
        assert "all floating-point tensors" in (tmp_path / "there" / "README.md").read_text()


def tensors_of(model):
    return [name for node in prepared_graph(model).graph
            for name in (node.outputs[0].name,)]  # fmt: skip


def test_types_are_those_of_the_model_that_is_built(make_engine, tmp_path):
    engine = make_engine()
    sidecar = engine.with_name("engine.engine.json")
    sidecar.write_text(sidecar.read_text().replace('"dtype": "float32"', '"dtype": "float16"'))
    trtint8.deploy(engine, "triton", tmp_path / "there")
    config = (tmp_path / "there" / "engine" / "config.pbtxt").read_text()
    assert config.count("TYPE_FP32") == 2 and "TYPE_FP16" not in config
