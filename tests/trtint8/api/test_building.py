"""An engine, and the ranges of a network of one's own, by the public calls."""

import sys
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.errors import (
    BuildError,
    CalibrationDataError,
    ModelError,
    OutputError,
    TableError,
    UnsupportedError,
)
from calibrators.histograms.histogram import Histogram
from calibrators.tensorrt.calibrator import Calibrator
from calibrators.tensorrt.flavor import Flavor
from tests.trtint8.builder.networks import Noting, NotingConfig, add_residual, implicit_module, new_network
from tests.trtint8.onnx_models import Graph, constants_of, normal
from trtint8.auditing.audit import Estimator
from trtint8.data import DEMO_MODEL
from trtint8.engine.qdq import load_engine_qdq
from trtint8.tuning.stopwatch import Timing


@pytest.fixture
def build(tmp_path):
    """Builds ``m.engine``, of the network of the demonstration unless told otherwise."""

    def build(calibration, model=DEMO_MODEL, **options):
        return trtint8.build_int8_engine(model, calibration, tmp_path / "m.engine", **options)

    return build


@pytest.fixture
def on_rtx(rtx, build):
    """The same with TensorRT for RTX."""
    return partial(build, target="rtx")


def refused(folder, build, error, words, *calibration, **options):
    """Checks that a build is refused, and writes nothing."""
    before = {path.name for path in folder.iterdir()}
    with pytest.raises(error, match=words):
        build(*calibration, **options)
    assert {path.name for path in folder.iterdir()} == before


def test_keywords_reach_the_build(on_rtx, table, tmp_path):
    options = {"compute_capabilities": ["8.6"], "keep_float": ["/fc/*"], "dynamic_ranges": {"images": 3.5}}
    result = on_rtx(table, fp16=False, **options)
    assert result.table.amax["images"] == 3.5
    assert constants_of(onnx.load(result.qdq_model))["images_scale"] == np.float32(3.5 / 127)
    assert result.info.compute_capabilities == ("8.6",)
    assert result.info.int8_layers == (8, 9)  # one was kept in float
    assert {path.name for path in tmp_path.iterdir()} >= {"m.engine", "m.engine.json", "m.qdq.onnx"}


def test_profiles_and_patterns_may_come_from_a_generator(on_rtx, table):
    shapes = trtint8.ShapeRange((1, 1, 8, 8), (4, 1, 8, 8), (8, 1, 8, 8))
    iterators = {"profiles": ({"images": shapes} for _ in range(1)), "keep_float": iter(["/fc/*"])}
    result = on_rtx(table, compute_capabilities=["8.6"], fp16=False, **iterators)
    assert result.info.profiles == ({"images": shapes},)
    assert result.info.int8_layers == (8, 9)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"route": "implict"}, UnsupportedError, "route.*'implict'"),
        ({"target": "tensorrt-10"}, UnsupportedError, "target.*'tensorrt-10'"),
        ({"profiles": {"images": None}}, BuildError, "profiles is a dict; give a list"),
        ({"profiles": "images=1"}, BuildError, "profiles.*'images=1'"),
        ({"profiles": 5}, BuildError, "profiles is 5; give a list"),
        ({"options": {"fp16": True}}, BuildError, "options.*'fp16'"),
        ({"options": {}}, BuildError, r"options is {}; give trtint8\.BuildOptions"),
        ({"dynamic_ranges": [("images", 2)]}, TableError, "dynamic_ranges.*'images'.*2"),
        ({"compute_capabilities": 8.6}, UnsupportedError, r"8\.6 is given where names are expected"),
    ],
)
def test_misspelt_options_are_refused(wrong, error, words, table, build, tmp_path):
    refused(tmp_path, build, error, words, table, **wrong)


@pytest.mark.parametrize("options", [{"fp16": False}, {"options": trtint8.BuildOptions(fp16=False)}])
def test_layers_to_keep_in_int8_are_refused_without_fp16(options, on_rtx, table, tmp_path):
    refused(tmp_path, on_rtx, ModelError, r"keep_int8.*fp16", table, keep_int8=["*"], **options)


@pytest.mark.parametrize("capabilities", ["8.6", [8.6], ["sm_86", "A10"]])
def test_one_compute_capability_by_itself(on_rtx, capabilities, table):
    result = on_rtx(table, compute_capabilities=capabilities, keep_int8=["*"])
    assert result.info.compute_capabilities == ("8.6",)


#: What says how samples are used.
OF_SAMPLES = {"method": "minmax", "preprocessing": trtint8.Preprocessing(), "batch_size": 4, "limit": 5}


@pytest.mark.parametrize("option", OF_SAMPLES)
def test_what_says_how_samples_are_used_is_refused_without_samples(option, table, build, tmp_path):
    inputs, by_hand = trtint8.model_inputs(DEMO_MODEL), {"dynamic_ranges": {"images": 1.0}}
    calibrator = Calibrator(np.zeros((4, 1, 8, 8), np.float32), inputs)
    for calibration, given, begin, end in (
        (None, by_hand, "there are no samples to calibrate with", "leave it out, or give samp"),
        (calibrator, by_hand, "the ranges are those of a calibrator", "give it to the calibr"),
        (table, {}, "the ranges are those of a table", "leave it out, or give"),
        (None, {"model": trtint8.quantize(DEMO_MODEL, table)}, "Q/DQ pairs and is built as it is", ""),
    ):
        given = {**given, option: OF_SAMPLES[option]}
        words = f"{begin}, so {option} has no effect; {end}"
        refused(tmp_path, build, CalibrationDataError, words, calibration, **given)


@pytest.mark.parametrize(
    ("calibration", "given", "words"),
    [
        ("nowhere.npz", {}, "is built as it is, so calibration data, or a table, has no"),
        (None, {"dynamic_ranges": {"images": 1.0}}, "so dynamic_ranges has no effect"),
        (None, {"keep_float": "*"}, "keep_float"),
        (None, {"keep_int8": ["*"]}, "so keep_int8 has no effect"),
    ],
)
def test_what_says_which_ranges_are_used_is_refused_with_pairs(
    calibration, given, words, table, build, tmp_path
):
    model = trtint8.quantize(DEMO_MODEL, table)
    refused(tmp_path, build, CalibrationDataError, words, calibration, model, **given)


def test_a_model_with_pairs_may_stand_where_it_would_be_written(on_rtx, table, tmp_path):
    given = tmp_path / "m.qdq.onnx"
    onnx.save(trtint8.quantize(DEMO_MODEL, table), given)
    before = given.read_bytes()
    words = r"cannot write '.*m\.qdq\.onnx': it is read as well"
    refused(tmp_path, on_rtx, OutputError, words, None, given, fp16=True)
    result = on_rtx(None, given)
    assert given.read_bytes() == before and result.qdq_model == given
    assert load_engine_qdq(given, result.info).is_quantized


@pytest.fixture
def residual(rtx):
    with new_network(rtx.module) as network:
        add_residual(rtx.module, network)
        yield network


@pytest.fixture
def network(rtx, residual, monkeypatch):
    """A real network of TensorRT for RTX that notes the ranges which TensorRT 8.6 would get."""
    flavor = Flavor("tensorrt", "8.6.1")
    monkeypatch.setitem(sys.modules, "tensorrt", implicit_module(rtx))
    monkeypatch.setattr("trtint8.api.building.flavor_of", lambda _: flavor)
    return Noting(residual)


#: Ranges of the tensors from which no others follow.
RANGES = {"x": 2.0, "r": 4.0, "c2": 3.0, "y": 5.0, "z": 8.0}


def test_ranges_of_a_network_of_ones_own(network):
    config = NotingConfig()
    done = trtint8.set_dynamic_ranges(network, RANGES, config=config, keep_float=["relu1"])
    assert done.given == RANGES
    assert done.followed.keys() >= {"s", "pooled", "flat", "w", "b", "p"}
    assert (done.missing, done.unused) == ((), ())
    assert network.noted["ranges"] == {**done.given, **done.followed}
    assert network.noted["precisions"] == {"relu1": "FLOAT"}
    assert set(config.flags) == {"INT8", "OBEY_PRECISION_CONSTRAINTS"}


def test_every_tensor_without_a_range_is_named(network):
    done = trtint8.set_dynamic_ranges(network, {})
    assert done.given == {}
    assert done.missing == tuple(
        trtint8.MissingRange(tensor, layer)
        for tensor, layer in (
            ("x", "input"),
            ("(Unnamed Layer* 0) [Convolution]_output", "(Unnamed Layer* 0) [Convolution]"),
            *(("r", "relu1"), ("c2", "conv2"), ("s", "add"), ("y", "relu2"), ("pooled", "pool")),
            *(("flat", "flatten"), ("xw", "product"), ("z", "fc")),
        )
    )


def test_a_cache_without_data(network, tmp_path):
    table = trtint8.CalibrationTable({**RANGES, "removed": 1.0}, "entropy")
    for given in (table, table.save(tmp_path / "m.cache"), table.save(tmp_path / "m.table.json")):
        done = trtint8.set_dynamic_ranges(network, given)
        assert done.given == pytest.approx(RANGES)
        assert (done.missing, done.unused) == ((), ("removed",))


def test_a_range_by_hand_takes_precedence(network):
    table = trtint8.CalibrationTable(RANGES, "entropy")
    assert trtint8.set_dynamic_ranges(network, table.override({"x": 0.5})).given == {**RANGES, "x": 0.5}


def test_ranges_by_hand_in_a_file(network, tmp_path):
    file = tmp_path / "ranges"
    file.write_text("x: -2, 2\nr: 4\n")
    assert trtint8.set_dynamic_ranges(network, file).given == {"x": 2.0, "r": 4.0}


def test_a_range_that_gets_wider_is_told(network):
    with pytest.warns(UserWarning, match=r"'x'.*-1.*3"):
        done = trtint8.set_dynamic_ranges(network, {"x": (-1.0, 3.0), "r": (-4.0, 4.0)})
    assert done.given == {"x": 3.0, "r": 4.0}


@pytest.mark.parametrize(
    ("ranges", "error", "words"),
    [
        ({"x": 1.0, "other": 1.0}, BuildError, "given for 'other'"),
        ({"x": -1.0}, TableError, "the dynamic range of 'x' is -1"),
        ({"x": float("nan")}, TableError, "the dynamic range of 'x' is nan"),
        ({"x": 1e39}, TableError, "'x'.*39"),
        (trtint8.CalibrationTable({"other": 1.0}), BuildError, "none of the 1 tensor with a range"),
        ("nowhere.cache", TableError, "nowhere.cache"),
        (5, TableError, "is 5; give a dict from tensor name to range, or a file"),
    ],
)
def test_ranges_that_are_refused(network, ranges, error, words):
    with pytest.raises(error, match=words):
        trtint8.set_dynamic_ranges(network, ranges)
    assert not network.noted["ranges"]


def test_a_table_whose_ranges_lose_too_much(network):
    histogram = Histogram()
    histogram.observe(normal(5000))
    table = trtint8.CalibrationTable({"x": 0.01}, "entropy", histograms={"x": histogram})
    with pytest.warns(UserWarning, match=r"1.*'x'"):
        assert trtint8.set_dynamic_ranges(network, table).given == {"x": 0.01}


def test_a_network_without_dynamic_ranges(residual):
    with pytest.raises(UnsupportedError, match=r"^TensorRT for RTX .* has no dynamic ranges.*explicit route"):
        trtint8.set_dynamic_ranges(residual, RANGES)


@pytest.mark.parametrize("given", [None, "model.onnx", Noting])
def test_what_is_no_network(given):
    name = type(given).__name__
    with pytest.raises(BuildError, match=f"network is a {name}; give the INetworkDefinition"):
        trtint8.set_dynamic_ranges(given, RANGES)


def test_an_engine_of_the_first_part_of_a_model(on_rtx, split, tmp_path):
    cut = ["/block1/relu2/Relu_output_0"]
    result = on_rtx(split.calibration_images[:8], method="minmax", cut_at=cut, fp16=False)
    assert [spec.name for spec in result.info.outputs] == cut
    assert result.float_model == tmp_path / "m.float.onnx"
    assert (tmp_path / "m.tail.onnx").is_file()


def test_ranges_by_hand_are_not_overwritten(table, build, tmp_path):
    ranges = tmp_path / "m.table.json"
    ranges.write_text('{"images": 1}')
    refused(tmp_path, build, OutputError, r"m\.table\.json'", table, dynamic_ranges=ranges)
    assert ranges.read_text() == '{"images": 1}'


def test_the_gpu_that_is_named_decides_which_layers_stay_in_fp16(on_rtx):
    # On an A100 INT8 pays only where many input channels are read.
    g, y = Graph(quantized=False), "x"
    for name, channels in {"first": (128, 128), "second": (16, 128), "third": (16, 16)}.items():
        y = g.Relu(f"{name}_relu", y) if y != "x" else y
        y = g.Conv(name, y, g.weights(*channels, 3, 3), pads=[1] * 4)
    model = g.model({"x": [8, 128, 32, 32]}, y)
    images = normal(8, 128, 32, 32)
    table = trtint8.calibrate(model, images, method="minmax", tensors="all")
    layers = {("8.0",): ("first",), ("8.9",): ("first", "second")}
    layers |= {(): layers["8.9",], ("8.0", "8.9"): layers["8.9",]}
    for capabilities, in_int8 in layers.items():
        built = on_rtx(table, model, compute_capabilities=capabilities)
        assert built.info.quantized_nodes == in_int8
    for capability, in_int8 in {"8.0": 1, "A100": 1, "8.9": 2, None: 2}.items():
        quantized = trtint8.quantize(model, table, target="rtx", compute_capability=capability, float16=True)
        integers = [one for one in quantized.graph.initializer if len(one.dims) == 4 and one.data_type == 3]
        assert len(integers) == in_int8


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr("trtint8.tuning.measured.gpu_problem", lambda: "there is none")


@pytest.fixture
def l4(monkeypatch):
    """A machine with an L4, on which engines take the times that are given."""

    def times_are(measure):
        monkeypatch.setattr("trtint8.tuning.measured.measure_built", measure)

    monkeypatch.setattr("trtint8.tuning.measured.gpu_problem", lambda: None)
    monkeypatch.setattr("trtint8.tuning.measured.compute_capability", lambda _device: "8.9")
    monkeypatch.setattr("trtint8.tuning.measured.gpu_names", lambda: ["NVIDIA L4"])
    return times_are


def rows(width, count=8):
    return normal(count, width)


#: Options of a build for one GPU, and the same with every layer in INT8.
ADA = {"compute_capabilities": ["8.9"]}
ALL_INT8 = {"keep_int8": ["*"], **ADA}


def deep(samples):
    """Matrix products with many columns, which gain from INT8 on every GPU."""
    g, y = Graph(quantized=False), "x"
    for name in ("first", "second", "third"):
        y = g.Relu(f"{name}_relu", y) if y != "x" else y
        y = g.MatMul(name, y, g.weights(512, 512))
    return g.model({"x": [samples, 512]}, y)


@pytest.mark.parametrize(("samples", "profiles", "taken"), [(64, (), 64), ("N", (), 8), ("N", (4, 128), 128)])
@pytest.mark.usefixtures("no_gpu")
def test_what_to_expect_on_the_gpu_that_is_named(samples, profiles, taken, on_rtx):
    model, options = deep(samples), {"method": "minmax", "keep_int8": ["*"], "compute_capabilities": ["8.6"]}
    if profiles:
        least, most = profiles
        options["profiles"] = [{"x": trtint8.ShapeRange((least, 512), *[(most, 512)] * 2)}]
    built = on_rtx(rows(512, 64), model, **options)
    shape = {"x": trtint8.ShapeRange(*[(taken, 512)] * 3)} if samples == "N" else None
    audit = trtint8.audit(model, built.table_file, "RTX 3090", target="rtx", keep_int8=["*"], profile=shape)
    expected = built.expected
    assert (expected.gpu, expected.source, expected.shapes) == ("RTX 3090", "estimated", {"x": (taken, 512)})
    assert expected.seconds == pytest.approx(audit.engine("INT8+FP16").ends)
    assert expected.fp16_seconds == pytest.approx(audit.engine("FP16").ends)
    least, most = expected.of_fp16
    shares = [one / other for one, other in zip(expected.seconds, expected.fp16_seconds, strict=True)]
    assert (least, most) == (min(shares), max(shares))
    assert all(f"{end:.2f}" in expected.sentence for end in (least, most))


@pytest.mark.usefixtures("no_gpu")
def test_what_to_expect_of_a_model_that_comes_with_its_pairs(on_rtx):
    """As of the float model, which is in it."""
    built = on_rtx(rows(2048), wide(), **ADA)
    again = on_rtx(None, onnx.load(built.qdq_model), **ADA)
    assert again.info.int8_layers == built.info.int8_layers == (1, 1)
    assert again.expected.fp16_seconds == pytest.approx(built.expected.fp16_seconds)
    assert again.expected.seconds == pytest.approx(built.expected.seconds)


@pytest.mark.parametrize("change", [{"compute_capabilities": ()}, {"compute_capabilities": ["8.6", "8.9"]}])
@pytest.mark.usefixtures("no_gpu")
def test_nothing_is_expected_where_no_one_gpu_is_named(change, on_rtx):
    assert on_rtx(rows(512), deep("N"), keep_int8=["*"], **change).expected is None


def test_an_engine_for_the_gpu_of_this_machine_is_timed_beside_fp16(on_rtx, l4):
    timed = []

    def measure(engines, device):
        timed.append([engine.report.weighted_summary(["first"]) for engine in engines])
        return [Timing(seconds, 0.9 * seconds, 1.1 * seconds) for seconds in (0.004, 0.002)]

    l4(measure)
    expected = on_rtx(rows(512), deep("N"), **ALL_INT8).expected
    assert timed == [[{"FP16": ["first"]}, {"INT8": ["first"]}]]
    assert (expected.gpu, expected.source, expected.shapes) == ("NVIDIA L4", "measured here", {"x": (8, 512)})
    assert expected.seconds == (0.9 * 0.002, 1.1 * 0.002)
    assert expected.of_fp16 == pytest.approx((0.45, 0.55))


def test_an_engine_that_is_written_is_none_the_worse_for_an_estimate_that_fails(on_rtx, monkeypatch):
    def fail(*_, **__):
        raise BuildError("no FP16 here")

    monkeypatch.setattr("trtint8.auditing.audit.Estimator.estimate", fail)
    built = on_rtx(rows(512), deep("N"), **ALL_INT8)
    assert built.expected is None and built.engine.exists()


def wide(inputs=2048, outputs=2048):
    """A matrix product with so many weights that INT8 gains with few samples."""
    g = Graph(quantized=False)
    return g.model({"x": ["N", inputs]}, g.MatMul("product", "x", g.weights(inputs, outputs)))


@pytest.mark.parametrize(
    ("seconds", "insisted", "in_int8"), [(3e-3, (), 0), (2.2e-3, (), 1), (3e-3, ("*",), 1)]
)
def test_an_engine_that_is_slower_than_fp16_is_built_in_fp16(seconds, insisted, in_int8, on_rtx, l4):
    """It is slower only beyond the interval of its times."""
    l4(lambda *_: [Timing(one, 0.8 * one, 1.2 * one) for one in (2e-3, seconds)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        built = on_rtx(rows(2048), wide(), keep_int8=insisted, **ADA)
    assert built.info.int8_layers == (in_int8, 1)
    assert (built.expected is None) == (not in_int8)
    assert [node for node, _ in built.info.float_nodes] == [] if in_int8 else ["product"]
    assert any("keep_int8" in str(warning.message) for warning in caught) == (not in_int8)


@pytest.mark.usefixtures("no_gpu")
def test_an_engine_that_is_estimated_to_be_slower_is_built_in_fp16(on_rtx, monkeypatch):
    estimate = Estimator.estimate

    def pessimistic(self, precision, *arguments, **options):
        found = estimate(self, precision, *arguments, **options)
        factor = 3 if "INT8" in precision else 1
        return replace(found, seconds=factor * found.seconds, cached_seconds=factor * found.cached_seconds)

    built = on_rtx(rows(2048), wide(), **ADA)
    assert built.info.int8_layers == (1, 1) and built.expected.of_fp16[1] < 1
    monkeypatch.setattr(Estimator, "estimate", pessimistic)
    with pytest.warns(UserWarning, match="keep_int8"):
        built = on_rtx(built.table, wide(), **ADA)
    assert built.info.int8_layers == (0, 1) and built.expected is None


@pytest.mark.parametrize(("optimal", "in_int8"), [(8, 1), (4096, 0)])
@pytest.mark.filterwarnings("ignore:INT8 would be slower")
@pytest.mark.usefixtures("no_gpu")
def test_layers_are_placed_for_the_optimal_shapes(optimal, in_int8, on_rtx):
    """Those are what the last line of a build is for, too."""
    profile = {"x": trtint8.ShapeRange((1, 256), (optimal, 256), (4096, 256))}
    built = on_rtx(rows(256), wide(256, 16384), profiles=[profile], **ADA)
    assert built.info.int8_layers == (in_int8, 1)
    if in_int8:
        assert built.expected.shapes == {"x": (8, 256)} and built.expected.of_fp16[1] < 1
