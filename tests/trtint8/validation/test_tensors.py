"""Tensors inside a network beside those of the reference."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import trtint8
from calibrators.data.inputs import DataOptions
from calibrators.errors import ModelError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.arithmetic.simulated import values
from tests.trtint8.onnx_models import Shaped, conv_relu_conv, normal, parsed
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
    body = (
        "sizes_out = Shape (x) product = ReduceProd <keepdims = 0> (sizes_out) "
        "number_out = Cast <to = 1> (product) y = Mul (x, number_out)"
    )
    model = onnx.shape_inference.infer_shapes(parsed("float[N, 2] x", "float[N, 2] y", body))
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
    ones, kernel = np.ones(4, np.float32), 0.1 * normal(4, 3, 3, 3)
    model = parsed(
        "float[N, 3, 16, 16] images",
        "float[N, 5] last_out",
        "[conv] conv_out = Conv (images, kernel) "
        "[norm] norm_out = BatchNormalization (conv_out, two, one, zero, one) "
        "[relu] relu_out = Relu (norm_out) [same] same_out = Identity (relu_out) "
        "[turned] turned_out = Transpose <perm = [1, 0]> (weights) "
        "[pool] pool_out = GlobalAveragePool (same_out) [flat] flat_out = Flatten (pool_out) "
        "[last] last_out = MatMul (flat_out, turned_out)",
        **{"kernel": kernel, "weights": normal(5, 4), "one": ones, "two": 2 * ones, "zero": 0 * ones},
    )
    return onnx.shape_inference.infer_shapes(model)


def test_what_was_folded_away_is_named_with_the_reason():
    model = normalized()
    table = trtint8.calibrate(model, IMAGES)
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
    table = trtint8.calibrate(model, IMAGES)
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
    body = (
        "masked_out = Add (x, mask) chances = Softmax <axis = -1> (masked_out) root_out = Sqrt (x) "
        "y = Add (chances, root_out)"
    )
    model = parsed("float[N, 2] x", "float[N, 2] y", body, mask=np.float32([0, -np.inf]))
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
    table = trtint8.calibrate(model, IMAGES)
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
    body = " ".join(f"x{number + 1} = Relu (x{number})" for number in range(8))
    shape = "float[N, 16, 256, 256]"  # 4 MiB a tensor
    model = load_model(parsed(f"{shape} x0", f"{shape} x8", body))
    data = np.zeros((8, 16, 256, 256), np.float32)
    sizes = []
    for patterns in ((), ("*",)):
        reference = Reference.of(model, patterns)
        batches = reference.open_data(data, DataOptions())
        sizes.append(batches.batch_size)
    assert sizes[1] * 9 * 4 <= 64
    asked = Reference.of(model, ["*"]).open_data(data, replace(DataOptions(), batch_size=8))
    assert asked.batch_size == 8


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A folder with a network, its float twin and samples, where verbs run."""
    monkeypatch.chdir(tmp_path)
    onnx.save(conv_relu_conv(), "int8.onnx")
    onnx.save(conv_relu_conv(quantized=False), "fp32.onnx")
    onnx.save(normalized(), "norm.onnx")
    np.savez("data.npz", images=IMAGES)
    return tmp_path


def ran(line):
    return main(line.split())


def test_on_the_command_line(saved, capsys):
    line = "validate int8.onnx data.npz --reference fp32.onnx"
    assert ran(f"{line} --tensors *relu* --tensors images --json") == 0
    found = json.loads(capsys.readouterr().out)["tensors"]
    assert [tensor["name"] for tensor in found["tensors"]] == ["images", "relu_out"]
    assert found["first_divergence"] == "images"
    assert ran(f"{line} --tensors *") == 0
    shown = capsys.readouterr().out
    assert "relu_out" in shown and "'images'" in shown
    assert ran(f"{line} --tensors nothing*") == 2
    error = capsys.readouterr().err
    assert "--tensors" in error and "'nothing*'" in error and error.count("\n") == 1
    assert ran(line) == 0
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


def values_of(compared, name):
    return {row.name: row.values for row in compared.rows}[name]


def test_in_a_report_and_beside_another_run(saved, capsys):
    trtint8.calibrate("norm.onnx", IMAGES, output="t.json")
    files = ["ncnn.accuracy.json", "qnnpack.accuracy.json"]
    for file in files:
        name = file.partition(".")[0]
        assert ran(f"validate norm.onnx data.npz --tensors * --json --table t.json --arithmetic {name}") == 0
        Path(file).write_text(capsys.readouterr().out)
    page = trtint8.write_report(files[:1], "page.html").read_text()
    for shown in ("Sums of integers", "Tensors inside", "flat_", "constants alone"):
        assert shown in page
    compared = trtint8.compare_runs(files)
    assert values_of(compared, "arithmetic") == ("ncnn", "qnnpack")
    assert values_of(compared, "largest sum")[0].endswith("'conv'")


@pytest.mark.filterwarnings("ignore:same class")  # of this network
def test_tables_beside_each_other_in_an_arithmetic(saved):
    tables = ["minmax.table.json", "entropy.table.json"]
    for table in tables:
        trtint8.calibrate("norm.onnx", IMAGES, method=table.partition(".")[0], output=table)
    compared = trtint8.compare_runs(tables, arithmetic="dla", model="norm.onnx", data="data.npz")
    assert values_of(compared, "arithmetic") == ("dla", "dla")
    line, more = f"compare {' '.join(tables)}", "--model norm.onnx --data data.npz"
    assert ran(f"{line} --arithmetic ncnn {more}") == 0
    assert ran(f"{line} --arithmetic ncnn") == ran(f"{line} {more}") == 2
    assert ran(f"report {tables[0]} {more} -o page.html --arithmetic ncnn") == 0
    assert "in the arithmetic" in Path("page.html").read_text()
    assert ran(f"report {tables[0]} -o page.html --arithmetic ncnn") == 2
