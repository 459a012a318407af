"""Tensors inside a network beside those of the reference."""

import json
import math
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import trtint8
from calibrators.data.inputs import DataOptions
from calibrators.errors import ModelError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.arithmetic.simulated import values
from tests.trtint8.onnx_models import Graph, Shaped, conv_relu_conv
from trtint8.builder.build import Build
from trtint8.cli.main import main
from trtint8.engine.file import EngineInfo
from trtint8.models.model import load_model
from trtint8.models.serialization import to_proto
from trtint8.models.session import open_graph_model
from trtint8.quantization.config import ARITHMETICS
from trtint8.runtime.bindings import NO_CODE
from trtint8.validation.opening import Reference, debug_build

IMAGES = values((10, 3, 16, 16))


def compared(model=None, reference=None, tensors=("*",), images=IMAGES, **options):
    """What is compared of the network with pairs, or of another model, and its float twin."""
    found = trtint8.validate(
        conv_relu_conv() if model is None else model,
        images,
        reference=conv_relu_conv(quantized=False) if reference is None else reference,
        tensors=tensors,
        metrics="sqnr",
        progress=False,
        **options,
    )
    return found.tensors


def by_name(found):
    return {tensor.name: tensor for tensor in found.tensors}


def arrays(model, names, images=IMAGES):
    session = open_graph_model(load_model(model).graph_model, names)
    return dict(zip(session.output_names, session.run({"images": images}), strict=True))


def test_a_tensor_in_int8_is_what_its_readers_get():
    """Rounded and clipped, in steps of its scale; one in float has steps of the range that it was seen in."""
    found = by_name(compared(batch_size=4))
    assert list(found) == ["images", "first_out", "relu_out", "second_out"]
    wanted = arrays(conv_relu_conv(quantized=False), ("first_out", "relu_out"))
    (quantize,) = (node for node in conv_relu_conv().graph.node if "relu_out" in node.input)
    (dequantize,) = (node for node in conv_relu_conv().graph.node if quantize.output[0] in node.input)
    got = arrays(conv_relu_conv(), ("first_out", dequantize.output[0]))
    expected = {"first_out": got["first_out"], "relu_out": got[dequantize.output[0]]}
    for name, array in expected.items():
        error = array.astype(np.float64) - wanted[name]
        sqnr = 10 * np.log10(np.square(wanted[name].astype(np.float64)).sum() / np.square(error).sum())
        assert found[name].sqnr_db == pytest.approx(sqnr, abs=1e-3)
        assert found[name].max_error == pytest.approx(np.abs(error).max(), rel=1e-4)
    scale = float(np.float32(0.02))
    assert found["relu_out"].in_int8 and found["relu_out"].step == scale
    assert found["relu_out"].steps == found["relu_out"].max_error / scale
    largest = float(np.abs(wanted["first_out"]).max())
    assert not found["first_out"].in_int8
    assert found["first_out"].step == pytest.approx(largest / 127, rel=1e-6)


def test_the_input_is_rounded_as_well():
    image = found = by_name(compared(tensors=["images"]))["images"]
    clipped = np.clip(np.rint(IMAGES / np.float32(0.02)), -128, 127) * np.float32(0.02)
    assert image.max_error == pytest.approx(np.abs(clipped - IMAGES).max(), rel=1e-6)
    assert found.diverges  # values beyond 2.56 are clipped


def test_the_first_divergence_is_in_the_order_of_the_graph():
    """Of a model that is the reference but for one weight of its second layer."""
    small = np.clip(IMAGES, -2.5, 2.5)
    changed = conv_relu_conv()
    for one in changed.graph.initializer:
        if one.name == changed.graph.node[-1].input[2]:  # the last bias
            one.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(one) + np.float32(3), one.name))
    with pytest.warns(UserWarning, match="Q/DQ pairs"):
        found = compared(changed, conv_relu_conv(), images=small)
    assert found.first_divergence == "second_out"
    with pytest.warns(UserWarning, match="Q/DQ pairs"):
        same = compared(conv_relu_conv(), conv_relu_conv(), images=small)
    assert same.first_divergence is None
    assert all(one.steps == 0 and one.sqnr_db == math.inf for one in same.tensors)


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["relu_out"], ["relu_out"]),
        ("relu_out", ["relu_out"]),
        (["*relu*"], ["relu_out"]),
        (["*"], ["images", "first_out", "relu_out", "second_out"]),
        (["second*", "first*"], ["first_out", "second_out"]),
        (["f?rst_out"], ["first_out"]),
        (["relu_out", "*_out"], ["first_out", "relu_out", "second_out"]),
        (["images"], ["images"]),
        ([], None),
    ],
)
def test_patterns(patterns, names):
    found = compared(tensors=patterns)
    assert (found and [tensor.name for tensor in found.tensors]) == names


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("relu", "relu_out"),
        ("relu_otu", "relu_out"),
        ("*firts*", "first_out"),
        ("image", "images"),
        ("", "images"),
        ("RELU_OUT", "relu_out"),
        ("relu_out ", "relu_out"),
        ("second_out:0", "second_out"),
        ("constant0", "first_out"),
        ("[ab]*", "images"),
    ],
)
def test_a_pattern_that_matches_nothing_names_near_ones(pattern, near):
    with pytest.raises(ModelError) as refused:
        compared(tensors=["relu_out", pattern])
    assert f"'{pattern}'" in str(refused.value)
    if pattern not in ("RELU_OUT", "constant0"):
        assert near in str(refused.value)


def test_tensors_that_are_no_floats_are_refused_by_their_type():
    g = Shaped()
    shape = g.op("Shape", ["x"], "sizes")
    total = g.op("Cast", [g.op("ReduceProd", [shape], "product", keepdims=0)], "number", to=TensorProto.FLOAT)
    model = g.model({"x": ["N", 2]}, g.op("Mul", ["x", total], "times"))
    with pytest.raises(ModelError, match=r"'sizes_out'.*int64"):
        compared(model, model, ["sizes*"], np.ones((2, 2), np.float32))
    with pytest.warns(UserWarning, match="float model"):
        found = compared(model, model, ["*"], np.ones((2, 2), np.float32))
    assert "sizes_out" not in by_name(found) and "number_out" in by_name(found)


def test_names_with_brackets_are_taken_literally():
    g = Shaped()
    out = g.op("Relu", ["x"], "layer[0]")
    model = g.model({"x": ["N", 2]}, g.op("Neg", [out], "last"))
    for pattern in ("layer[0]_out", "layer[0]*"):
        with pytest.warns(UserWarning, match="float model"):
            found = compared(model, model, [pattern], np.ones((2, 2), np.float32))
        assert list(by_name(found)) == ["layer[0]_out"]


def normalized():
    """A convolution, its normalization, a Relu, an Identity and a product with a computed constant."""
    g = Shaped()
    conv = g.op("Conv", ["images", g.weights(4, 3, 3, 3)], "conv", kernel_shape=[3, 3])
    parameters = [g.constant(np.full(4, value, np.float32)) for value in (2, 1, 0, 1)]
    relu = g.op("Relu", [g.op("BatchNormalization", [conv, *parameters], "norm")], "relu")
    same = g.op("Identity", [relu], "same")
    weights = g.op("Transpose", [g.weights(5, 4)], "turned", perm=[1, 0])
    pooled = g.op("Flatten", [g.op("GlobalAveragePool", [same], "pool")], "flat")
    return g.model({"images": ["N", 3, 16, 16]}, g.op("MatMul", [pooled, weights], "last"))


def test_what_was_folded_away_is_named_with_the_reason():
    model = normalized()
    table = trtint8.calibrate(model, IMAGES, progress=False)
    found = compared(trtint8.quantize(model, table), model)
    assert set(found.left_out) >= {"conv_out", "turned_out"}
    assert "BatchNormalization" in found.left_out["conv_out"]
    assert "constant" in found.left_out["turned_out"]
    assert {"images", "norm_out", "flat_out", "last_out"} <= set(by_name(found))
    # One of the two names of the same values is left.
    assert len({"relu_out", "same_out"} & set(by_name(found))) == 1
    assert len({"relu_out", "same_out"} & set(found.left_out)) == 1
    assert set(by_name(found)) | set(found.left_out) >= {"pool_out"}


@pytest.mark.parametrize("name", ARITHMETICS)
def test_tensors_of_an_arithmetic(name):
    model = normalized()
    table = trtint8.calibrate(model, IMAGES, progress=False)
    found = compared(model, model, arithmetic=name, table=table)
    tensors = by_name(found)
    assert tensors["images"].in_int8
    # QNNPACK's steps are those of 255 between the least and the largest value.
    least, most = table.signed_range("images") if name == "qnnpack" else (-table.amax["images"],) * 2
    steps = most - least if name == "qnnpack" else 255 / 127 * table.amax["images"]
    assert tensors["images"].step == pytest.approx(steps / 255, rel=0.02)
    assert tensors["last_out"].sqnr_db > 15
    assert ("norm_out" in found.left_out) == (name == "qnnpack")
    beside = compared(model, model, tensors=["images"], arithmetic=name, table=table)
    assert by_name(beside)["images"] == tensors["images"]


def test_an_arithmetic_beside_pairs():
    """Scales are powers of two and so all sums exact, but for the rounding of ties."""
    g = Shaped()
    whole = np.random.default_rng(1).integers(-126, 127, (4, 3, 3, 3))
    whole[:, 0, 0, 0] = 127
    weights = g.constant((whole * 2.0**-7).astype(np.float32))
    relu = g.op("Relu", [g.op("Conv", ["images", weights], "conv", kernel_shape=[3, 3])], "relu")
    flat = g.op("Flatten", [g.op("GlobalMaxPool", [relu], "pool")], "flat")
    model = g.model({"images": ["N", 3, 16, 16]}, g.op("Gemm", [flat, g.weights(5, 4)], "last", transB=1))
    table = CalibrationTable({"images": 127 / 32, "flat_out": 127 / 8})
    images = np.clip(IMAGES, -3.9, 3.9)
    images[0, 0, 0, 0] = 0.5 / 32  # a tie
    pairs = trtint8.quantize(model, table)
    for name, first in (("explicit", None), ("dla", None)):
        with pytest.warns(UserWarning, match="Q/DQ pairs"):
            found = compared(model, pairs, images=images, arithmetic=name, table=table)
        assert found.first_divergence is first
        exact = by_name(found)["images"].steps
        assert exact == (0 if name == "explicit" else 1)


def test_values_that_are_infinite_or_no_numbers():
    """Masks are infinite in both models; a root of what is negative is no number."""
    g = Shaped()
    endless = g.op("Add", ["x", g.constant(np.float32([0, -np.inf]))], "masked")
    chances = g.op("Softmax", [endless], "chances", axis=-1)
    model = g.model({"x": ["N", 2]}, g.op("Add", [chances, g.op("Sqrt", ["x"], "root")], "last"))
    with (
        pytest.warns(UserWarning, match="float model"),
        pytest.warns(UserWarning, match="not numbers for 1 of"),
    ):
        found = compared(model, model, images=np.float32([[1, 2], [-1, 2]]))
    tensors = by_name(found)
    assert tensors["masked_out"].steps == 0 and tensors["masked_out"].sqnr_db == math.inf
    assert math.isnan(tensors["root_out"].steps)
    assert found.first_divergence == "root_out"


def test_the_result_does_not_depend_on_batches():
    one, several = (by_name(compared(batch_size=size)) for size in (10, 3))
    for name, tensor in one.items():
        assert several[name].sqnr_db == pytest.approx(tensor.sqnr_db, abs=1e-3)
        assert several[name].steps == pytest.approx(tensor.steps, rel=1e-3)


@pytest.mark.filterwarnings("ignore:same class")  # of this network
def test_the_result_of_workers_is_that_of_one_process(workers_here):
    model = normalized()
    table = trtint8.calibrate(model, IMAGES, progress=False)
    pairs = trtint8.quantize(model, table)
    for judged, more in ((pairs, {}), (model, {"arithmetic": "qnnpack", "table": table})):
        options = {"batch_size": 3, "threads": 1, **more}
        found = [
            trtint8.validate(
                judged,
                IMAGES,
                reference=model,
                also={"pairs": pairs},
                tensors=["*"],
                progress=False,
                executor=executor,
                **options,
            )
            for executor in ("local", trtint8.RayExecutor(workers=2, shard_batches=1))
        ]
        assert replace(found[0], warnings=()) == replace(found[1], warnings=())
        assert found[0].also["pairs"].tensors.tensors
        assert (found[0].in_integers is None) == (not more)


def test_batches_are_so_small_that_their_tensors_fit():
    """64 MiB for all of them; a batch size that is asked for stays."""
    g = Graph(quantized=False)
    x = "images"
    for number in range(8):
        x = g.op("Relu", [x], f"relu{number}")
    model = load_model(g.model({"images": ["N", 16, 256, 256]}, x))  # 4 MiB a tensor
    data = np.zeros((8, 16, 256, 256), np.float32)
    sizes = []
    for patterns in ((), ("*",)):
        reference = Reference.of(model, patterns)
        batches = reference.open_data(data, DataOptions())
        sizes.append(batches.batch_size)
    assert sizes[1] * 9 * 4 <= 64
    asked = Reference.of(model, ["*"]).open_data(data, replace(DataOptions(), batch_size=8))
    assert asked.batch_size == 8


def test_on_the_command_line(tmp_path, capsys):
    onnx.save(conv_relu_conv(), tmp_path / "int8.onnx")
    onnx.save(conv_relu_conv(quantized=False), tmp_path / "fp32.onnx")
    np.savez(tmp_path / "data.npz", images=IMAGES)
    line = ["validate", str(tmp_path / "int8.onnx"), str(tmp_path / "data.npz")]
    line += ["--reference", str(tmp_path / "fp32.onnx")]
    assert main([*line, "--tensors", "*relu*", "--tensors", "images", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["tensors"]
    assert [tensor["name"] for tensor in found["tensors"]] == ["images", "relu_out"]
    assert found["first_divergence"] == "images"
    assert main([*line, "--tensors", "*"]) == 0
    shown = capsys.readouterr().out
    assert "relu_out" in shown and "'images'" in shown
    assert main([*line, "--tensors", "nothing*"]) == 2
    error = capsys.readouterr().err
    assert "--tensors" in error and "'nothing*'" in error and error.count("\n") == 1
    assert main(line) == 0
    assert "Tensors" not in capsys.readouterr().out


def test_an_engine_is_built_anew_with_tensors_as_outputs(rtx):
    """The builder of TensorRT for RTX needs no GPU; the engine that it makes does."""
    qdq = load_model(conv_relu_conv())
    built = Build(rtx, qdq.inputs).run(to_proto(qdq.graph_model).SerializeToString(), int8=True)
    info = EngineInfo("rtx", built.version, ("8.6",), (), (), built.profiles, None, (), 0, qdq.fingerprint)
    debug = debug_build(qdq, info, ["images", "relu_out", "second_out", "unknown"], NO_CODE)
    assert list(debug.inside) == ["images", "relu_out", "second_out"]
    assert debug.inside["relu_out"].scale == np.float32(0.02)
    assert set(debug.further) == {debug.inside[name].output for name in ("images", "relu_out")}
    assert set(debug.built.dtypes) == {"images", "second_out", *debug.further}


def test_in_a_report_and_beside_another_run(tmp_path, capsys):
    onnx.save(normalized(), tmp_path / "fp32.onnx")
    trtint8.calibrate(tmp_path / "fp32.onnx", IMAGES, progress=False).save(tmp_path / "t.json")
    np.savez(tmp_path / "data.npz", images=IMAGES)
    line = ["validate", str(tmp_path / "fp32.onnx"), str(tmp_path / "data.npz"), "--tensors", "*", "--json"]
    for name in ("ncnn", "qnnpack"):
        assert main([*line, "--table", str(tmp_path / "t.json"), "--arithmetic", name]) == 0
        (tmp_path / f"{name}.accuracy.json").write_text(capsys.readouterr().out)
    page = trtint8.write_report([tmp_path / "ncnn.accuracy.json"], tmp_path / "page.html").read_text()
    for shown in ("Sums of integers", "Tensors inside", "flat_", "constants alone"):
        assert shown in page
    rows = trtint8.compare_runs([tmp_path / f"{name}.accuracy.json" for name in ("ncnn", "qnnpack")]).rows
    assert next(row.values for row in rows if row.name == "arithmetic") == ("ncnn", "qnnpack")
    assert next(row.values for row in rows if row.name == "largest sum")[0].endswith("'conv'")


@pytest.mark.filterwarnings("ignore:same class")  # of this network
def test_tables_beside_each_other_in_an_arithmetic(tmp_path):
    onnx.save(normalized(), tmp_path / "fp32.onnx")
    for method in ("minmax", "entropy"):
        found = trtint8.calibrate(tmp_path / "fp32.onnx", IMAGES, method=method, progress=False)
        found.save(tmp_path / f"{method}.table.json")
    np.savez(tmp_path / "data.npz", images=IMAGES)
    tables = [str(tmp_path / f"{method}.table.json") for method in ("minmax", "entropy")]
    more = ["--model", str(tmp_path / "fp32.onnx"), "--data", str(tmp_path / "data.npz")]
    rows = trtint8.compare_runs(
        tables, arithmetic="dla", model=tmp_path / "fp32.onnx", data=tmp_path / "data.npz"
    ).rows
    assert next(row.values for row in rows if row.name == "arithmetic") == ("dla", "dla")
    assert main(["compare", *tables, "--arithmetic", "ncnn", *more]) == 0
    assert main(["compare", *tables, "--arithmetic", "ncnn"]) == 2
    assert main(["compare", *tables, *more]) == 2
    page = ["-o", str(tmp_path / "page.html")]
    assert main(["report", tables[0], *more, *page, "--arithmetic", "ncnn"]) == 0
    assert "in the arithmetic" in (tmp_path / "page.html").read_text()
    assert main(["report", tables[0], *page, "--arithmetic", "ncnn"]) == 2
