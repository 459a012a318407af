"""Layers that stay in float because they make much of the noise and take next to no time."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.errors import CalibrationDataError, TableError
from calibrators.tables.choice import FloatLayers, RangeChoice
from calibrators.tables.ranges import noise_warning
from tests.trtint8.onnx_models import Graph, normal
from trtint8.cli.main import main
from trtint8.interop.unquantize import extract_table
from trtint8.models.model import load_model, prepare
from trtint8.quantization.attention import find_attentions
from trtint8.quantization.slower import FloatCosts, Products
from trtint8.quantization.targets import KernelCosts


def noisy_head(before="head"):
    """Three large products and a small one, and one large value everywhere in the input of one of them."""
    g, y = Graph(quantized=False), "x"
    for name in ("first", "second", "third"):
        bias = np.zeros(256, np.float32)
        bias[0] = 1000 * (name == {"head": "third", "third": "second"}[before])
        y = g.Relu(f"{name}_relu", g.Gemm(name, y, g.weights(256, 256), g.constant(bias)))
    weights = normal(256, 4)
    weights[0] = 0.5
    return g.model({"x": ["N", 256]}, g.Gemm("head", y, g.constant(weights)))


def calibrated(model, samples=32, **options):
    return trtint8.calibrate(model, normal(samples, 256), progress=False, **options)


@pytest.fixture(scope="module")
def table():
    return calibrated(noisy_head())


def products_in_int8(model):
    pairs = {node.output[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    return [node.name for node in model.graph.node if node.op_type == "Gemm" and node.input[1] in pairs]


BODY = ["first", "second", "third"]


def test_the_layer_that_makes_the_noise_stays_in_float(table):
    found = table.float_layers
    assert (found.layers, found.of, found.allowed, found.reason) == (("head",), 4, 0.01, "")
    assert found.share <= 0.01 and found.sqnr_db > found.int8_db + 5 and found.samples == 16
    sqnr = []
    for spend, layers in ((None, BODY), (0, [*BODY, "head"])):
        quantized = trtint8.quantize(noisy_head(), table, spend=spend)
        assert products_in_int8(quantized) == layers
        held_out = trtint8.validate(
            quantized, normal(40, 256, seed=5), reference=noisy_head(), progress=False
        )
        sqnr.append(held_out.outputs[0].sqnr_db)
    assert sqnr[0] > sqnr[1] + 10


@pytest.mark.parametrize("method", ["entropy", "minmax"])
@pytest.mark.parametrize("tensors", ["all", "placed"])
def test_whatever_the_method(method, tensors):
    found = calibrated(noisy_head(), method=method, tensors=tensors)
    assert found.layers_in_float == ("head",)
    assert products_in_int8(trtint8.quantize(noisy_head(), found)) == BODY


@pytest.mark.parametrize(
    ("model", "samples", "options", "reason"),
    [
        (noisy_head(), 11, {}, "too few"),
        (noisy_head(), 32, {"spend": 1e-6}, "% of the time"),
        # Another layer makes nearly all of the noise.
        (noisy_head(before="third"), 32, {}, "gain"),
    ],
)
def test_nothing_is_spent_where_nothing_is_shown(model, samples, options, reason):
    found = calibrated(model, samples, **options)
    assert found.layers_in_float == () and reason in found.float_layers.reason
    assert reason in str(found.float_layers)


def test_without_gradients_the_ends_are_tried():
    # No rule says how the gradient of a Mod goes on.
    g = Graph(quantized=False)
    one = g.constant(np.float32([1e6]))
    y = g.Gemm("before", "x", g.weights(256, 8))
    y = g.op("Mod", [g.Gemm("after", y, g.weights(8, 256)), one], "mod", fmod=1)
    for name in BODY:
        bias = np.zeros(256, np.float32)
        bias[0] = 1000.0 * (name == "third")
        y = g.Gemm(name, y, g.weights(256, 256), g.constant(bias))
    weights = normal(256, 1)
    weights[0] = 0.5
    model = g.model({"x": ["N", 256]}, g.Gemm("head", y, g.constant(weights)))
    assert calibrated(model, spend=0.05).layers_in_float[-1:] == ("head",)


def test_of_several_outputs_the_worst_counts():
    g = Graph(quantized=False)
    y = g.Gemm("first", "x", g.weights(256, 256))
    bias = np.zeros(256, np.float32)
    bias[0] = 1000
    y = g.Relu("relu", g.Gemm("second", y, g.weights(256, 256), g.constant(bias)))
    weights = normal(256, 2)
    weights[0] = 0.5
    worst = g.Gemm("head", y, g.constant(weights))
    side = g.Gemm("side", "x", g.weights(256, 2))
    model = g.model({"x": ["N", 256]}, worst)
    model.graph.output.append(onnx.helper.make_tensor_value_info(side, 1, ["N", 2]))
    # There is time for one of the two.
    found = calibrated(model, spend=0.005).float_layers
    assert found.layers == ("head",) and found.sqnr_db > found.int8_db + 3


@pytest.mark.parametrize("first", [{}, {"keep_float": "first"}, {"keep_float": ["first"]}])
def test_layers_by_name_are_left_too(table, first):
    data = normal(8, 256, seed=3)
    measured = trtint8.measure_sensitivity(noisy_head(), table, data, progress=False, **first)
    assert [one.node for one in measured.layers] == BODY[len(first) :]


def test_a_table_of_another_model_is_refused_as_such(table):
    with pytest.raises(TableError, match="stale"):
        trtint8.measure_sensitivity(noisy_head(before="third"), table, normal(8, 256), progress=False)


def test_what_is_read_from_pairs_is_quantized_again(table, tmp_path):
    onnx.save(trtint8.quantize(noisy_head(), table), tmp_path / "q.onnx")
    read = extract_table(load_model(tmp_path / "q.onnx"))
    assert products_in_int8(trtint8.quantize(noisy_head(), read)) == BODY


def test_it_does_not_depend_on_the_order_or_the_batch():
    data = normal(32, 256)
    first = trtint8.calibrate(noisy_head(), data, progress=False, batch_size=32, threads=1)
    again = trtint8.calibrate(noisy_head(), data[::-1].copy(), progress=False, batch_size=32, threads=1)
    assert first.float_layers == again.float_layers


def test_what_is_named_wins(table):
    options = {"float16": True, "keep_int8": ["head"]}
    quantized = trtint8.quantize(noisy_head(), table, **options)
    assert "head" in products_in_int8(quantized)
    with_other = trtint8.quantize(noisy_head(), table, keep_float=["first"])
    assert products_in_int8(with_other) == ["second", "third"]


def test_a_file_holds_it(table, tmp_path):
    path = table.save(tmp_path / "t.json")
    assert trtint8.CalibrationTable.load(path).float_layers == table.float_layers
    assert table.to_json()["float_layers"]["layers"] == ["head"]
    assert table.override({"x": 3.0}).layers_in_float == ("head",)
    with pytest.warns(UserWarning, match="head"):
        table.save(tmp_path / "t.cache")
    assert trtint8.CalibrationTable.load(tmp_path / "t.cache").float_layers is None
    other = table.with_method("minmax").float_layers
    assert other.layers == ("head",) and not other.samples
    plain = trtint8.CalibrationTable({"x": 1.0}, provenance=table.provenance)
    assert plain.merged(table).layers_in_float == ("head",)


def test_another_share_needs_samples(table):
    with pytest.warns(UserWarning, match="no effect"):
        trtint8.quantize(noisy_head(), table, spend=0.5)
    with pytest.warns(UserWarning, match="no effect"):
        trtint8.quantize(noisy_head(), trtint8.CalibrationTable(table.amax), spend=0.01)


@pytest.mark.parametrize("spend", [-0.01, 1.01, float("nan"), "1%", True])
def test_what_is_no_share(spend, table):
    for call in (
        lambda: calibrated(noisy_head(), spend=spend),
        lambda: trtint8.quantize(noisy_head(), table, spend=spend),
    ):
        with pytest.raises(CalibrationDataError, match="spend"):
            call()


def test_an_engine_has_it(rtx, table, tmp_path):
    options = {"target": "rtx", "compute_capabilities": ["8.6"], "fp16": False, "progress": False}
    built = trtint8.build_int8_engine(noisy_head(), table, tmp_path / "m.engine", **options)
    assert dict(built.info.float_causes) == {"head": "accuracy"} and built.info.int8_layers == (3, 4)
    built = trtint8.build_int8_engine(noisy_head(), table, tmp_path / "n.engine", spend=0, **options)
    assert built.info.int8_layers == (4, 4)


def test_sensitivity_and_simulations_see_what_is_built(table):
    data = normal(8, 256, seed=3)
    layers = [
        one.node for one in trtint8.measure_sensitivity(noisy_head(), table, data, progress=False).layers
    ]
    assert layers == BODY
    found = trtint8.validate(noisy_head(), data, table=table, arithmetic="explicit", progress=False)
    wanted = trtint8.validate(
        trtint8.quantize(noisy_head(), table), data, reference=noisy_head(), progress=False
    )
    assert found.outputs[0].sqnr_db == pytest.approx(wanted.outputs[0].sqnr_db, abs=0.1)


def test_tune_begins_with_it(table):
    tuned = trtint8.tune(
        noisy_head(), table, normal(48, 256, seed=7), metric="sqnr", minimum=20.0, progress=False
    )
    assert tuned.candidate.placement.quantized_nodes == tuple(BODY) and tuned.fits
    assert not tuned.candidate.keep_float and tuned.candidate.table.layers_in_float == ("head",)


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(noisy_head(), "m.onnx")
    np.savez("d.npz", x=normal(32, 256))
    assert main(["calibrate", "m.onnx", "d.npz", "-o", "t.json", "--spend", "2%", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["float_layers"]
    assert (said["layers"], said["allowed"]) == (["head"], 0.02)
    assert main(["quantize", "m.onnx", "t.json", "-o", "q.onnx", "--explain", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["node"]: one["cause"] for one in found["decisions"]}["head"] == "accuracy"
    assert found["float_layers"] == said
    for share in ("150%", "-1%", "much", "%"):
        assert main(["calibrate", "m.onnx", "d.npz", "-o", "u.json", f"--spend={share}"]) == 2
        assert "--spend" in capsys.readouterr().err and not (tmp_path / "u.json").exists()
    assert main(["build", "q.onnx", "-o", "e.engine", "--target", "rtx", "--spend", "1%"]) == 2
    assert "--spend" in capsys.readouterr().err


def test_what_layers_in_float_cost():
    model = prepare(load_model(noisy_head())).graph_model
    nodes = {node.name: node for node in model.graph if node.op_type == "Gemm"}
    products = Products(list(nodes.values()), (), [one.nodes for one in find_attentions(model)])

    costs = FloatCosts(model, products, [KernelCosts()], {"x": (4096, 256)})

    def share(*names):
        return costs.share([nodes[name] for name in names])

    assert share() == 0
    assert share("head") < 0.05
    # Many more products take the time then.
    assert share(*BODY) != share("head")


def test_a_format_that_holds_only_ranges_names_the_layers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(noisy_head(), "m.onnx")
    np.savez("d.npz", x=normal(32, 256))
    for name, told in (("t.json", False), ("t.csv", True), ("t.cache", True)):
        assert main(f"calibrate m.onnx d.npz -o {name} --method entropy".split()) == 0
        assert ("quantize: head" in capsys.readouterr().err.replace("\n", " ")) == told


def test_outputs_that_layers_in_float_mend_are_not_warned_of():
    choice = RangeChoice("mse", {"mse": 3.0}, {"mse": 16})
    layers = FloatLayers(("head",), 0.01, 0.005, 4, 3.0, 30.0, 16)
    assert noise_warning(choice, replace(layers, sqnr_db=9.0)) and noise_warning(
        choice, FloatLayers((), 0.01)
    )
    assert noise_warning(choice, layers) is None
