"""The main job on the model that the package carries, for real."""

import dataclasses
import sys
import types
import warnings

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.errors import (
    CalibrationDataError,
    ModelError,
    OutputError,
    TableError,
    TrtInt8Error,
    UnsupportedError,
)
from calibrators.tables.choice import RangeChoice
from calibrators.tensorrt.calibrator import ServedBuild
from calibrators.tensorrt.calibrators import calibrator_class
from calibrators.tensorrt.flavor import Flavor
from tests.host_device import HostDevice
from tests.trtint8.engines import build_rtx
from tests.trtint8.onnx_models import Shaped, constants_of, normal, outlier_stream, tied
from tests.trtint8.quantization.attention_models import plain
from trtint8 import int8_engine
from trtint8.builder import build
from trtint8.builder.build import BuiltEngine
from trtint8.data import DEMO_MODEL
from trtint8.engine.layers import Layer, LayerReport
from trtint8.engine.profiles import ShapeRange
from trtint8.int8_engine import nothing_in_int8
from trtint8.models.model import load_model

pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")

TENSORRT_8 = Flavor("tensorrt", "8.6.1")
CACHE = b"TRT-8601-EntropyCalibration2\nimages: 3c010204\n"


def test_an_implicit_engine_with_nothing_in_int8_is_warned_of():
    def report(precision):
        return LayerReport(
            (Layer("c", "correlation", (precision,), (precision,), (precision,), ("conv",), (), (), ()),)
        )

    assert nothing_in_int8(report("Int8"), ["conv", "other"]) is None
    assert nothing_in_int8(report("Half"), []) is nothing_in_int8(None, ["conv"]) is None
    assert nothing_in_int8(report("Half"), ["conv", "other"]).startswith(
        "none of the 2 weighted layers is seen"
    )


@pytest.fixture
def implicit_builds(monkeypatch):
    """What a TensorRT 8.6 is given that builds nothing; it calibrates as TensorRT does."""
    trt = types.ModuleType("tensorrt")
    trt.IInt8Calibrator = type("IInt8Calibrator", (), {})
    trt.IInt8EntropyCalibrator2 = type("IInt8EntropyCalibrator2", (trt.IInt8Calibrator,), {})
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    given = []

    def run(_build, _model, implicit, **_options):
        given.append(implicit)
        if (calibrator := implicit.calibrator) is not None:
            calibrator.bind(ServedBuild(implicit.model))
            if calibrator.read_calibration_cache() is None:
                while calibrator.get_batch(["images"]) is not None:
                    pass
                calibrator.write_calibration_cache(CACHE)
            calibrator.raise_failure()
        return BuiltEngine(b"plan", None, None, ("8.6",), "tensorrt", "8.6.1", (), (), (), {}, 0.5)

    monkeypatch.setattr(int8_engine.flavors, "load", lambda _target: TENSORRT_8)
    monkeypatch.setattr(build, "require_gpu", lambda *_: None)
    monkeypatch.setattr(build, "check_ordinal", lambda _device: None)
    monkeypatch.setattr(int8_engine, "refuse_unsupported", lambda *_: None)
    monkeypatch.setattr(build.Build, "run", run)
    return given


def test_a_cache_of_the_first_model_is_stale_for_the_second_that_a_calibrator_is_given_for(
    implicit_builds, split, tmp_path
):
    other = onnx.load(DEMO_MODEL)
    bias = other.graph.initializer[-1]
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 1, bias.name))
    calibrator = calibrator_class("EntropyCalibrator2", TENSORRT_8)(
        split.calibration_images[:8],
        load_model(DEMO_MODEL).inputs,
        device=HostDevice(),
        cache=tmp_path / "c.cache",
    )
    result = trtint8.build_int8_engine(DEMO_MODEL, calibrator, tmp_path / "d.engine")
    assert result.table.provenance.model == load_model(DEMO_MODEL).fingerprint
    with pytest.raises(TableError, match=r"c\.cache' is stale: model "):
        trtint8.build_int8_engine(other, calibrator, tmp_path / "e.engine")
    assert len(implicit_builds) == 2 and not (tmp_path / "e.engine").exists()


def test_one_layer_by_itself_stays_in_float_on_the_implicit_route(implicit_builds, table, tmp_path):
    trtint8.build_int8_engine(DEMO_MODEL, table, tmp_path / "d.engine", keep_float="/fc/*", route="implicit")
    assert [given.keep_float for given in implicit_builds] == [("/fc/*",)]
    trtint8.build_int8_engine(DEMO_MODEL, table, tmp_path / "d.engine", keep_float="block1", route="implicit")
    assert implicit_builds[1].keep_float == ("/block1/conv1/Conv", "/block1/conv2/Conv")


def test_a_cache_that_no_build_has_made_is_not_overwritten(implicit_builds, split, tmp_path):
    cache, samples = tmp_path / "d.cache", split.calibration_images[:8]
    cache.write_bytes(CACHE)
    for method in ("auto", "minmax"):
        with pytest.raises(OutputError, match=r"d\.cache': no build of '.*d\.engine' has made what it holds"):
            trtint8.build_int8_engine(DEMO_MODEL, samples, tmp_path / "d.engine", method=method)
    assert not implicit_builds
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == {cache: CACHE}
    # For other methods ranges are found on the CPU, and no cache is written.
    trtint8.build_int8_engine(DEMO_MODEL, samples, tmp_path / "d.engine", method="mse")
    assert len(implicit_builds) == 1 and cache.read_bytes() == CACHE


@pytest.mark.slow
def test_the_main_job(split, tmp_path):
    result = build_rtx(split.calibration_images, tmp_path / "d.engine", method="mse", fp16=False)
    assert len(result.info.quantized_nodes) == 9
    assert result.info.layers is not None
    assert result.info.layers.weighted_summary(result.info.quantized_nodes) == {
        "INT8": list(result.info.quantized_nodes)
    }
    assert result.info.weights_bytes is not None and result.info.weights_bytes < 0.3 * 257_200
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "d.engine",
        "d.engine.json",
        "d.qdq.onnx",
        "d.table.json",
    ]
    accuracy = trtint8.validate(
        result.engine, split.heldout_images, reference=DEMO_MODEL, labels=split.heldout_labels
    )
    assert accuracy.samples == 597
    assert accuracy.reference_top1.count == 594
    assert abs(accuracy.top1.count - 594) <= 2
    assert accuracy.outputs[0].sqnr_db > 33
    assert "d.qdq.onnx" in accuracy.judged


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"options": trtint8.BuildOptions(optimization_level=9)}, "level.*is 9.*from 0"),
        ({"options": trtint8.BuildOptions(io_formats={"x": ["LINEAR"]})}, "'x' is no input or output"),
        ({"compute_capabilities": ["7.0"]}, "compute capability 7.0"),
        ({"profiles": [{"nope": ShapeRange((1,), (2,), (3,))}]}, "'nope'"),
    ],
)
def test_what_cannot_be_built_is_refused_before_samples_are_read(wanted, words, tmp_path):
    def samples():
        pytest.fail("samples are read")

    with pytest.raises(TrtInt8Error, match=words):
        build_rtx(samples, tmp_path / "d.engine", **wanted)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("keep_float", "wanted"), [((), True), (("*",), False)])
def test_int8_is_allowed_where_the_graph_has_pairs(keep_float, wanted, table, tmp_path, monkeypatch):
    """Without pairs, TensorRT 8.6 fails with the flag, for lack of ranges."""
    allowed, run = [], build.Build.run

    def noted(*arguments, int8, **options):
        allowed.append(int8)
        return run(*arguments, int8=int8, **options)

    monkeypatch.setattr(build.Build, "run", noted)
    result = build_rtx(table, tmp_path / "d.engine", keep_float=keep_float, fp16=False)
    assert allowed == [wanted]
    assert result.info.int8_layers == (9 if wanted else 0, 9)


def test_a_model_with_qdq_is_built_as_it_is(split, table, tmp_path):
    doubtful = dataclasses.replace(table, warnings=("of the table",))
    onnx.save(trtint8.quantize(DEMO_MODEL, doubtful), tmp_path / "q.onnx")
    result = build_rtx(None, tmp_path / "q.engine", model=tmp_path / "q.onnx")
    assert "of the table" in result.info.warnings
    assert result.table is None and result.table_file is None
    assert repr(result).startswith(f"<BuildResult: '{tmp_path / 'q.engine'}', TensorRT for RTX ")
    assert repr(result).endswith(", 9 of 9 weighted layers in INT8>")
    page = result._repr_html_()
    assert f">{tmp_path / 'q.engine'}</td>" in page and ">table</td>" not in page
    with pytest.raises(ModelError, match="Q/DQ pairs already"):
        trtint8.quantize(tmp_path / "q.onnx", table)


@pytest.mark.parametrize("shape", [(64, 32), (32, 32)])
def test_weights_that_are_read_along_two_axes(shape, tmp_path):
    values = normal(64, shape[0])
    result = build_rtx(values, tmp_path / "t.engine", model=tied(*shape), fp16=False)
    assert repr(result).endswith(", 2 of 2 weighted layers in INT8>")


def test_a_table_whose_ranges_lose_much_is_warned_of_unless_they_are_set_by_hand(split, table, tmp_path):
    ruined = dataclasses.replace(table, amax={**table.amax, "images": table.amax["images"] / 10})
    options = {"target": "rtx", "fp16": False}
    with pytest.warns(UserWarning, match="'images'") as caught:
        trtint8.build_int8_engine(DEMO_MODEL, ruined, tmp_path / "d.engine", **options)
    assert [warning.filename for warning in caught] == [__file__]
    by_hand = {"images": ruined.amax["images"]}
    trtint8.build_int8_engine(DEMO_MODEL, ruined, tmp_path / "e.engine", dynamic_ranges=by_hand, **options)


def test_noisy_outputs_are_warned_of_unless_layers_stay_in_float(table, tmp_path):
    noisy = table.with_choice(table.amax, RangeChoice("mse", {"mse": 9.5}, {"mse": 16}))
    options = {"target": "rtx", "fp16": False}
    with pytest.warns(UserWarning, match=r"only 9\.5.*of 16") as caught:
        trtint8.build_int8_engine(DEMO_MODEL, noisy, tmp_path / "d.engine", **options)
    assert [warning.filename for warning in caught] == [__file__]
    trtint8.build_int8_engine(DEMO_MODEL, noisy, tmp_path / "e.engine", keep_float=["/fc/*"], **options)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"calibration": np.zeros((0, 1, 8, 8), np.float32)}, CalibrationDataError, "no samples"),
        ({"calibration": np.zeros((4, 1, 8, 8), np.float64)}, CalibrationDataError, "float64"),
        ({"calibration": np.zeros((4, 1, 8), np.float32)}, CalibrationDataError, "images"),
        ({"calibration": np.zeros((4, 1, 9, 8), np.float32)}, CalibrationDataError, "images"),
        ({"calibration": np.full((4, 1, 8, 8), np.nan, np.float32)}, CalibrationDataError, "NaN"),
        ({"calibration": {"pixels": np.zeros((4, 1, 8, 8), np.float32)}}, CalibrationDataError, "pixels"),
        ({"calibration": None}, CalibrationDataError, "dynamic_ranges"),
        ({"method": "magic"}, TableError, "magic"),
        ({"keep_float": ["/nothing/*"]}, ModelError, "/nothing/"),
        ({"route": "implicit"}, UnsupportedError, "explicit"),
    ],
)
def test_bad_input_leaves_nothing_behind(split, tmp_path, change, error, words):
    arguments = {"calibration": split.calibration_images[:8], "target": "rtx"} | change
    calibration = arguments.pop("calibration")
    with pytest.raises(error, match=words):
        trtint8.build_int8_engine(DEMO_MODEL, calibration, tmp_path / "d.engine", **arguments)
    assert list(tmp_path.iterdir()) == []


def shifted():
    """A network of two layers, and samples of which a manual range cuts most off, so that outputs shift."""
    g = Shaped(quantized=False)
    x = g.Relu("relu", g.Gemm("first", "x", g.weights(32, 32)))
    model = g.model({"x": ["N", 32]}, g.Gemm("second", x, g.weights(32, 8)))
    values = np.abs(np.random.default_rng(0).standard_normal((64, 32))).astype(np.float32) + 1
    return model, values, {"dynamic_ranges": {"x": 1.0}, "fp16": False}


def test_weights_are_changed_by_default_and_left_where_that_is_not_wanted(tmp_path):
    model, values, options = shifted()
    corrected = build_rtx(values, tmp_path / "c.engine", model=model, **options)
    assert corrected.rounded.remedies == corrected.info.changed_weights
    assert "bias correction" in corrected.rounded.remedies
    assert constants_of(onnx.load(corrected.qdq_model))["x_scale"] == np.float32(1 / 127)
    assert corrected.rounded.samples == 12
    plain = build_rtx(values, tmp_path / "p.engine", model=model, rounding=False, **options)
    assert plain.rounded is None and plain.info.changed_weights == ()
    gained = [
        trtint8.validate(one.qdq_model, {"x": values}, reference=model, metrics=["sqnr"])
        for one in (corrected, plain)
    ]
    assert gained[0].outputs[0].sqnr_db > gained[1].outputs[0].sqnr_db + 1


def test_data_that_is_used_up_or_too_few_samples_change_nothing(tmp_path):
    model, values, options = shifted()
    for data in (iter([{"x": values}]), {"x": values[:15]}):
        result = build_rtx(data, tmp_path / "d.engine", model=model, **options)
        assert result.rounded.remedies == result.info.changed_weights == ()
        assert result.rounded.reason


def test_weights_are_tensorrts_on_the_implicit_route(implicit_builds, split, tmp_path):
    samples = split.calibration_images[:40]
    result = trtint8.build_int8_engine(DEMO_MODEL, samples, tmp_path / "d.engine", method="mse")
    assert result.rounded.remedies == () and result.rounded.reason


def test_an_output_folder_that_vanishes_during_calibration(split, tmp_path):
    folder = tmp_path / "soon_gone"
    folder.mkdir()

    def feeds():
        folder.rmdir()
        yield {"images": split.calibration_images[:32]}

    with pytest.raises(OutputError, match=r"cannot write '.*soon_gone"):
        build_rtx(feeds, folder / "d.engine", keep_int8=["*"])
    assert list(tmp_path.iterdir()) == []


def test_nothing_that_is_read_is_overwritten(split, tmp_path):
    model = tmp_path / "d.qdq.onnx"
    model.write_bytes(DEMO_MODEL.read_bytes())
    data = tmp_path / "e.engine.json"
    data.touch()
    for source, calibration, output in (
        (model, split.calibration_images, "d.engine"),
        (model, data, "e.engine"),
    ):
        with pytest.raises(OutputError, match="it is read as well; give another name"):
            build_rtx(calibration, tmp_path / output, model=source)
    assert model.read_bytes() == DEMO_MODEL.read_bytes() and set(tmp_path.iterdir()) == {model, data}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *(
            (f"int8.{end}", rf"'.*int8.{end}' ends in \.{end}, .* \.engine")
            for end in ("onnx", "ONNX", "json", "npz", "pt")
        ),
        ("no/d.engine", "does not exist"),
        (".", "it is a folder"),
    ],
)
def test_an_output_that_is_no_place_for_an_engine(name, words, table, tmp_path):
    with pytest.raises(OutputError, match=words):
        trtint8.build_int8_engine(DEMO_MODEL, table, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("longest", "attention"), [(512, ["scores", "context"]), (1024, [])])
def test_the_longest_sequence_decides_whether_attention_is_quantized(longest, attention, tmp_path):
    onnx.save(plain(length="length"), tmp_path / "m.onnx")
    result = build_rtx(
        {"x": normal(4, 8, 32)},
        tmp_path / "m.engine",
        model=tmp_path / "m.onnx",
        profiles=[{"x": trtint8.ShapeRange((1, 8, 32), (1, 64, 32), (1, longest, 32))}],
        compute_capabilities=["8.6"],
        fp16=True,
        keep_int8=["*"],
        method="minmax",
    )
    wanted = ["q_linear", "k_linear", "v_linear", "out_linear", *attention]
    assert sorted(result.info.quantized_nodes) == sorted(wanted)
    assert sum("_gemm_mha" in layer.name for layer in result.info.layers.layers) == 1


@pytest.mark.slow
def test_random_samples_have_the_optimal_shape_of_the_profile(tmp_path):
    onnx.save(plain(length="length"), tmp_path / "m.onnx")
    with pytest.warns(UserWarning, match="'random:4,x=64x32'"):
        result = build_rtx(
            "random:4",
            tmp_path / "m.engine",
            model=tmp_path / "m.onnx",
            profiles=[{"x": trtint8.ShapeRange((1, 8, 32), (1, 64, 32), (1, 128, 32))}],
            compute_capabilities=["8.6"],
            keep_int8=["*"],
            method="minmax",
        )
    assert result.table.provenance.samples == 4
    assert sum(result.table.histograms["x"].counts) + result.table.histograms["x"].zeros == 4 * 64 * 32


@pytest.mark.slow
def test_sizes_that_a_model_leaves_open_are_those_of_the_samples(tmp_path):
    onnx.save(plain(length="length"), tmp_path / "m.onnx")
    random = np.random.default_rng(0)
    lengths = (24, 40, 32)
    samples = [{"x": random.standard_normal((2, length, 32)).astype(np.float32)} for length in lengths]
    keywords = {"compute_capabilities": ["8.6"], "keep_int8": ["*"]}
    result = build_rtx(samples, tmp_path / "m.engine", model=tmp_path / "m.onnx", **keywords)
    wanted = {"x": trtint8.ShapeRange((1, 24, 32), (8, 40, 32), (32, 40, 32))}
    assert result.info.profiles == (wanted,)
    again = build_rtx(result.table_file, tmp_path / "again.engine", model=tmp_path / "m.onnx", **keywords)
    assert again.info.profiles == (wanted,)
    sizes = trtint8.CalibrationTable.load(result.table_file).provenance.input_sizes
    assert (sizes["x"].smallest, sizes["x"].largest) == ((24, 32), (40, 32))


@pytest.mark.slow
def test_pairs_are_placed_for_the_tensorrt_that_builds(tmp_path):
    g = Shaped()
    y = g.ConvTranspose("up", g.Conv("conv", "x", g.weights(8, 8, 3, 3)), g.weights(8, 8, 2, 2))
    onnx.save(g.model({"x": [1, 8, 8, 8]}, y), tmp_path / "m.onnx")
    table = trtint8.CalibrationTable({"x": 3.0, "conv_out": 3.0})
    result = build_rtx(table, tmp_path / "m.engine", model=tmp_path / "m.onnx", fp16=False)
    assert result.info.quantized_nodes == ("conv",)
    assert result.info.float_nodes == (("up", "TensorRT for RTX has no INT8 kernel for it"),)
    assert result.info.int8_layers == (1, 2)
    again = build_rtx(None, tmp_path / "again.engine", model=result.qdq_model)
    assert again.info.quantized_nodes == ("conv",)
    assert again.info.float_nodes == (("up", "the model has no Q/DQ pairs before both of its operands"),)
    assert again.info.int8_layers == (1, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("fp16", "written"), [(True, "Half"), (False, "Float")])
def test_int8_convolutions_write_fp16_where_it_is_allowed(fp16, written, table, tmp_path):
    result = build_rtx(table, tmp_path / "d.engine", fp16=fp16, keep_int8=["*"] if fp16 else [])
    layers = [layer for layer in result.info.layers.layers if layer.kind == "correlation"]
    assert len(layers) == 8
    assert {(layer.inputs[0], layer.outputs) for layer in layers} == {("Int8", (written,))}


def types_of_products(result):
    """The types that the Convs and matrix products of a built model write."""
    model = onnx.load(result.qdq_model)
    found = kinds(model) | {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
    products = [node for node in model.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    return {onnx.TensorProto.DataType.Name(found[node.output[0]]) for node in products}


@pytest.mark.parametrize(
    ("options", "written", "in_int8"),
    [
        ({"keep_int8": ["/fc/*"]}, "FLOAT16", 1),
        ({"keep_int8": ["/fc/*"], "fp16": True}, "FLOAT16", 1),
        ({"keep_int8": ["*"]}, "FLOAT16", 9),
        ({"fp16": False}, "FLOAT", 9),
    ],
)
def test_fp16_is_around_int8_unless_it_is_switched_off(options, written, in_int8, table, tmp_path):
    """The convolutions of a small network move few values, so most of them are faster in FP16."""
    result = build_rtx(table, tmp_path / "d.engine", **options)
    assert types_of_products(result) == {written}
    assert result.info.int8_layers == (in_int8, 9)


@pytest.mark.parametrize(
    ("options", "written"), [({}, "FLOAT"), ({"fp16": False}, "FLOAT"), ({"fp16": True}, "FLOAT16")]
)
def test_a_model_that_comes_with_its_pairs_keeps_its_types(options, written, table, tmp_path):
    pairs = trtint8.quantize(DEMO_MODEL, table, keep_float=["/fc/*"])
    result = build_rtx(None, tmp_path / "q.engine", model=pairs, **options)
    assert result.info.int8_layers == (8, 9)
    assert types_of_products(result) == {written}


@pytest.mark.parametrize(
    ("version", "options", "written"),
    [
        ("10.9.0", {}, "FLOAT"),  # which has a switch for FP16
        ("11.0.0", {}, "FLOAT16"),
        ("11.0.0", {"fp16": False}, "FLOAT"),
    ],
)
def test_tensorrt_11_gets_fp16_in_the_graph(
    implicit_builds, monkeypatch, version, options, written, table, tmp_path
):
    monkeypatch.setattr(int8_engine.flavors, "load", lambda _target: Flavor("tensorrt", version))
    monkeypatch.setattr(
        build.Build,
        "run",
        lambda *_, **__: BuiltEngine(b"plan", None, None, ("8.6",), "tensorrt", version, (), (), (), {}, 0.5),
    )
    result = trtint8.build_int8_engine(DEMO_MODEL, table, tmp_path / "d.engine", route="explicit", **options)
    assert types_of_products(result) == {written}
    assert len(result.info.quantized_nodes) == 8  # all but the Gemm, which is too small there


def test_a_network_that_int8_does_not_make_faster_is_built_in_fp16(table, tmp_path):
    with pytest.warns(UserWarning, match="'rtx'.*keep_int8") as caught:
        result = trtint8.build_int8_engine(DEMO_MODEL, table, tmp_path / "d.engine", target="rtx")
    assert [warning.filename for warning in caught] == [__file__]
    assert result.info.int8_layers == (0, 9) and types_of_products(result) == {"FLOAT16"}


def test_values_that_no_table_knows_stay_in_fp32(rtx, tmp_path):
    model, samples = outlier_stream((16, 4, 64))
    table = trtint8.calibrate(model, samples, method="minmax", tensors="placed")
    with pytest.warns(UserWarning, match=r"nothing tells how large.*fp16=False"):
        result = build_rtx(table, tmp_path / "d.engine", model=model, keep_int8=["*"])
    assert types_of_products(result) == {"FLOAT", "FLOAT16"}
    result = build_rtx(table, tmp_path / "d.engine", model=model, fp16=False)
    assert types_of_products(result) == {"FLOAT"}


def kinds(model):
    inferred = onnx.shape_inference.infer_shapes(model)
    return {value.name: value.type.tensor_type.elem_type for value in inferred.graph.value_info}


def test_what_overflows_fp16_stays_in_fp32_when_it_is_built_from_samples(rtx, tmp_path):
    model, samples = outlier_stream((16, 4, 64))
    result = build_rtx(
        samples, tmp_path / "e.engine", model=model, method="minmax", fp16=True, keep_int8=["*"]
    )
    found = kinds(onnx.load(result.qdq_model))
    assert found["wide_out"] == found["stream_out"] == onnx.TensorProto.FLOAT


def test_what_overflows_fp16_stays_in_fp32_in_a_model_that_came_with_its_pairs(rtx, tmp_path):
    model, samples = outlier_stream((16, 4, 64))
    table = trtint8.calibrate(model, samples, method="minmax")
    quantized = trtint8.quantize(model, table)
    with pytest.warns(UserWarning, match="nothing tells how large"):
        result = build_rtx(None, tmp_path / "e.engine", model=quantized, fp16=True)
    found = kinds(onnx.load(result.qdq_model))
    assert found["wide_out"] == found["stream_out"] == onnx.TensorProto.FLOAT


@pytest.mark.parametrize("float16", [False, True])
def test_a_model_that_was_quantized_without_a_layer_in_int8_is_built_as_it_is(split, tmp_path, float16):
    table = trtint8.calibrate(DEMO_MODEL, split.calibration_images[:8], method="minmax")
    options = {"target": "rtx", "keep_float": ["*"], "float16": float16, "float32_io": float16}
    onnx.save(trtint8.quantize(DEMO_MODEL, table, **options), tmp_path / "q.onnx")
    own = table.save(tmp_path / "q.table.json").read_bytes()
    with pytest.warns(UserWarning, match=r"q\.onnx.*INT8"):
        result = build_rtx(None, tmp_path / "q.engine", model=tmp_path / "q.onnx")
    assert result.info.int8_layers == (0, 9)
    assert (tmp_path / "q.table.json").read_bytes() == own  # it is not read, and nothing takes its place
    # With samples it is a float model as any other.
    again = build_rtx(
        split.calibration_images[:8], tmp_path / "p.engine", model=tmp_path / "q.onnx", fp16=False
    )
    assert again.info.int8_layers == (9, 9)


def test_only_ranges_that_are_used_are_warned_of(tmp_path):
    """Probabilities of many classes are nearly all far smaller than the largest, and get no pair."""
    g = Shaped()
    hidden = g.Relu("relu", g.MatMul("first", "x", g.weights(32, 32)))
    scores = g.MatMul("last", hidden, g.constant(9 * g.random.normal(size=(32, 4000)).astype("f4")))
    model = g.model({"x": ["N", 32]}, g.Softmax("shares", scores))
    x = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = trtint8.calibrate(model, x)
        build_rtx(table, tmp_path / "s.engine", model=model, keep_int8=["*"])
    assert "shares_out" in table.excessive_losses
    assert not [one for one in caught if "shares_out" in str(one.message)]
    narrow = dataclasses.replace(table, amax={**table.amax, "x": table.amax["x"] / 9})
    with pytest.warns(UserWarning, match="1 range loses much of the tensor's values: 'x'"):
        result = build_rtx(narrow, tmp_path / "s.engine", model=model, keep_int8=["*"])
    assert not [said for said in result.info.warnings if "loses much" in said]
