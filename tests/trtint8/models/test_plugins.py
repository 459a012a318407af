"""Nodes that are plugins of TensorRT."""

import json
import warnings

import numpy as np
import onnx
import pytest
from onnx import helper

import trtint8
from calibrators.errors import ModelError
from tests.trtint8.detectors import plugin_detector
from tests.trtint8.onnx_models import function, normal, parsed, sqnr_in_int8
from tests.trtint8.quantization.float16.half_models import run
from trtint8.cli.main import main
from trtint8.models.model import load_model, prepare
from trtint8.models.plugins import DOMAIN, declare_plugins, needed_opset, plugin_nodes, unknown_nodes
from trtint8.models.serialization import to_proto
from trtint8.quantization.placement import place


def names(body, functions="", domains=()):
    model = parsed("float[N, 4] x", "float[N, 4] y", body, functions, domains=domains, c=np.array(True))
    return [node.op_type for node in plugin_nodes(load_model(model).graph_model)]


@pytest.mark.parametrize("domain", ["TRT", "trt.plugins", ""])
def test_a_plugin_is_found_in_any_domain(domain):
    loaded = load_model(plugin_detector(domain=domain)).graph_model
    assert [node.op_type for node in plugin_nodes(loaded)] == ["EfficientNMS_TRT"]


def test_a_plugin_without_a_domain_gets_that_of_plugins():
    model = plugin_detector(domain="")
    loaded = to_proto(load_model(model).graph_model)
    onnx.checker.check_model(loaded)
    assert loaded.graph.node[-1].domain == DOMAIN
    assert {opset.domain: opset.version for opset in loaded.opset_import} == {"": 17, DOMAIN: 1}
    declare_plugins(loaded)
    assert len(loaded.opset_import) == 2, "it has the domain already"


BRANCHES = """[branches] y = If (c) <then_branch = t () => (float[] t) { t = Mine (x) },
    else_branch = e () => (float[] e) { e = Relu (x) }>"""


@pytest.mark.parametrize(
    ("body", "functions", "found"),
    [
        ("a = Relu (x) y = com.microsoft.Gelu (a)", "", []),
        ("y = own.Twice (x)", function("Twice", "a", "b", "b = Relu (a)"), []),
        ("y = own.Twice (x)", "", ["Twice"]),
        (BRANCHES, "", ["If"]),
    ],
    ids=["known", "a function of the model", "no function", "inside a branch"],
)
def test_what_no_other_part_knows_is_a_plugin(body, functions, found):
    assert names(body, functions, ["com.microsoft", "own"]) == found


def unknown(operator="TFL_Convolution2DTransposeBias", domain="", behind="", functions=""):
    """A layer, and behind it an operator that nobody knows; one output needs it, and the other does not."""
    last = "z" if behind else "y"
    node = f"[segment] y = {domain + '.' if domain else ''}{operator} (layer_out) {behind}"
    ends = "float[N, 4] x", f"float[N, 4] layer_out, float[N, 4] {last}"
    body, domains = f"[layer] layer_out = MatMul (x, w) {node}", [domain] * bool(domain)
    return parsed(*ends, body, functions, domains=domains, w=normal(4, 4))


def test_operators_that_nobody_knows_are_named_with_what_is_left_out():
    with pytest.warns(UserWarning, match=r"'segment' \(TFL_Convolution2DTransposeBias\).*'y'"):
        loaded = load_model(unknown())
    assert [node.name for node in unknown_nodes(loaded.graph_model)] == ["segment"]
    with pytest.warns(UserWarning, match="segment"):
        table = trtint8.calibrate(unknown(), normal(8, 4), method="minmax", progress=False)
    assert set(table.amax) == {"x", "layer_out"}
    assert table.provenance.left_out == {"segment": "TFL_Convolution2DTransposeBias"}
    placement = place(prepare(loaded).graph_model)
    decision = next(one for one in placement.decisions if one.node == "segment")
    assert not decision.quantized and "operator" in decision.reason


@pytest.mark.parametrize(
    ("operator", "domain"),
    [
        ("BatchedNMS_TRT", ""),
        ("CustomEmbLayerNormPluginDynamic", ""),
        ("Mine", "trt.plugins"),
        ("Mine", "my"),
    ],
)
def test_plugins_are_taken_without_a_word(operator, domain):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load_model(unknown(operator, domain))
    assert unknown_nodes(loaded.graph_model) == []
    assert [node.op_type for node in plugin_nodes(loaded.graph_model)] == [operator]


@pytest.mark.parametrize(
    ("domain", "operator", "tool"),
    [
        ("org.openvinotoolkit", "FakeQuantize", "NNCF"),
        ("qonnx.custom_op.general", "Quant", "Brevitas"),
        ("aimet.customop.cpu", "QcQuantizeOp", "AIMET"),
        ("trt", "TRT_INT8QuantizeLinear", "Model Optimizer"),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_quantizers_of_other_tools_are_named(domain, operator, tool, inside):
    node = f"[quantizer] q = {domain}.{operator} (x)"
    layer = function("layer", "x", "q", node, domains=[domain]) if inside else ""
    body = f"{'q = own.layer (x)' if inside else node} y = Relu (q)"
    model = parsed("float[1, 4] x", "float[1, 4] y", body, layer, domains=[domain, "own"])
    with pytest.raises(ModelError, match=rf"{tool}.* 'quantizer' is {operator}"):
        load_model(model)


def run_json(capsys, *arguments):
    """What a verb prints with ``--json``."""
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("operator", ["TFL_Convolution2DTransposeBias", "BatchedNMS_TRT"])
@pytest.mark.filterwarnings("ignore:ONNX has no such operator:UserWarning")
def test_results_name_what_was_not_run(operator, tmp_path, capsys):
    model, table = tmp_path / "m.onnx", tmp_path / "t.json"
    onnx.save(unknown(operator, behind="[behind] z = Relu (y)"), model)
    np.save(tmp_path / "x.npy", normal(8, 4))
    wanted = {"segment": operator, "behind": "Relu"}
    calibrate = ("calibrate", model, tmp_path / "x.npy", "-o", table, "--method", "minmax")
    assert run_json(capsys, *calibrate)["left_out"] == wanted
    assert json.loads(table.read_text())["left_out"] == wanted
    assert trtint8.CalibrationTable.load(table).provenance.left_out == wanted
    quantized = run_json(capsys, "quantize", model, table, "-o", tmp_path / "q.onnx")
    assert quantized["left_out"] == wanted
    assert run_json(capsys, "table", "show", table)["provenance"]["left_out"] == wanted


@pytest.mark.parametrize("operator", ["Mine", "BatchedNMS_TRT"])
@pytest.mark.filterwarnings("ignore:ONNX has no such operator:UserWarning")
def test_unknown_operators_inside_functions(operator):
    source = unknown("Segment", "own", functions=function("Segment", "a", "b", f"[inner] b = {operator} (a)"))
    table = trtint8.calibrate(source, normal(8, 4), method="minmax", progress=False)
    assert list(table.provenance.left_out.values()) == [operator]
    assert set(table.amax) == {"x", "layer_out"}
    quantized = trtint8.quantize(source, table, progress=False)
    assert [one.op_type for one in quantized.graph.node][-1] == operator
    if operator == "Mine":
        with pytest.warns(UserWarning, match=r"\(Mine\)"):
            load_model(source)


def test_tables_that_do_not_say_what_was_left_out_are_read(tmp_path):
    """As those of 0.2.0."""
    table = tmp_path / "t.json"
    trtint8.CalibrationTable({"x": 1.0}).save(table)
    written = json.loads(table.read_text())
    del written["left_out"]
    table.write_text(json.dumps(written))
    assert trtint8.CalibrationTable.load(table).provenance.left_out == {}


ONES, BIAS = np.ones(8, np.float32), normal(8)
NORM = {"axis": -1, "epsilon": 1e-5}


def model(opset, operator, constants=(), shape=(2, 8), layer="MatMul", **attributes):
    """The operator behind a layer, and a layer behind it."""
    wide = 8 if layer == "MatMul" else shape[1]
    weights = {"w": normal(wide, wide, *[1] * (len(shape) - 2 if layer == "Conv" else 0), seed=1)}
    weights |= {f"c{i}": one for i, one in enumerate(constants)}
    dims = ", ".join(map(str, shape[1:]))
    body = f"[first] a = {layer} (x, w) [middle] b = Middle (a) [last] y = {layer} (b, w)"
    ir_version = max(4, helper.find_min_ir_version_for([helper.make_opsetid("", opset)]))
    ends = f"float[N, {dims}] x", f"float[N, {dims}] y"
    made = parsed(*ends, body, opset=opset, ir_version=ir_version, **weights)
    node = helper.make_node(operator, ["a", *list(weights)[1:]], ["b"], "middle", **attributes)
    made.graph.node[1].CopyFrom(node)
    return made


IMAGE = {"shape": (2, 4, 6, 6), "layer": "Conv"}
TAKEN = {
    "LayerNormalization 9": model(9, "LayerNormalization", [ONES, BIAS], **NORM),
    "LayerNormalization 12": model(12, "LayerNormalization", [ONES, BIAS], **NORM),
    "LayerNormalization 16": model(16, "LayerNormalization", [ONES], **NORM),
    "SimplifiedLayerNormalization 12": model(12, "SimplifiedLayerNormalization", [ONES], **NORM),
    "SimplifiedLayerNormalization 17": model(17, "SimplifiedLayerNormalization", [ONES], **NORM),
    "ThresholdedRelu 9": model(9, "ThresholdedRelu", alpha=1.0),
    "MeanVarianceNormalization 8": model(8, "MeanVarianceNormalization", **IMAGE),
    "GroupNormalization 18": model(18, "GroupNormalization", [ONES[:2], BIAS[:2]], num_groups=2, **IMAGE),
    "GroupNormalization 20": model(20, "GroupNormalization", [ONES[:2], BIAS[:2]], num_groups=2, **IMAGE),
    "ImageScaler 8": model(8, "ImageScaler", scale=0.5, bias=[0.1, 0.2, 0.3, 0.4], **IMAGE),
    "ImageScaler 7": model(7, "ImageScaler", scale=0.5, bias=[0.0] * 4, **IMAGE),
    "ParametricSoftplus 8": model(8, "ParametricSoftplus", alpha=0.5, beta=2.0),
    "ScaledTanh 9": model(9, "ScaledTanh", alpha=0.5, beta=2.0),
}


@pytest.mark.filterwarnings("ignore:output .y. of one sample changes")  # a mean over axis 0 as well
@pytest.mark.parametrize("name", TAKEN)
def test_the_network_computes_what_onnx_runtime_computes(name):
    source = TAKEN[name]
    data = normal(*(dim.dim_value or 2 for dim in source.graph.input[0].type.tensor_type.shape.dim), seed=2)
    table = trtint8.calibrate(source, data, method="minmax", progress=False)
    kept = trtint8.quantize(source, table, keep_float=["*"], progress=False)
    np.testing.assert_allclose(run(kept, {"x": data}), run(source, {"x": data}), rtol=1e-4, atol=1e-4)
    assert sqnr_in_int8(source, data) > 20


def test_a_model_is_read_in_the_opset_that_has_its_operators():
    assert needed_opset(TAKEN["LayerNormalization 12"]) == 17
    assert needed_opset(TAKEN["GroupNormalization 18"]) == 18
    assert load_model(model(13, "HardSwish")).graph_model.opset_imports[""] == 14


def test_operators_that_onnx_runtime_refuses_too():
    with pytest.raises(ModelError, match="Upsample"):
        load_model(model(10, "Upsample", [np.float32([1, 1, 2, 2])], **IMAGE))
