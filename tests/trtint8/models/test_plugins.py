"""Nodes that are plugins of TensorRT."""

import json
import warnings

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.errors import ModelError
from tests.trtint8.detectors import plugin_detector
from tests.trtint8.onnx_models import Shaped
from trtint8.cli.main import main
from trtint8.models.model import load_model, prepare
from trtint8.models.plugins import DOMAIN, declare_plugins, needed_opset, plugin_nodes, unknown_nodes
from trtint8.models.serialization import to_proto
from trtint8.quantization.placement import place


def model_of(nodes, *, functions=(), domains=()):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(name, 1) for name in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)


def names(model):
    return [node.op_type for node in plugin_nodes(load_model(model).graph_model)]


@pytest.mark.parametrize("domain", ["TRT", "trt.plugins", ""])
def test_a_plugin_is_found_in_any_domain(domain):
    assert names(plugin_detector(domain=domain)) == ["EfficientNMS_TRT"]


def test_a_plugin_without_a_domain_gets_that_of_plugins():
    model = plugin_detector(domain="")
    loaded = to_proto(load_model(model).graph_model)
    onnx.checker.check_model(loaded)
    assert loaded.graph.node[-1].domain == DOMAIN
    assert {opset.domain: opset.version for opset in loaded.opset_import} == {"": 17, DOMAIN: 1}
    declare_plugins(loaded)
    assert len(loaded.opset_import) == 2, "it has the domain already"


def test_operators_of_onnx_and_of_onnx_runtime_are_no_plugins():
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Gelu", ["a"], ["y"], domain="com.microsoft"),
    ]
    assert names(model_of(nodes, domains=["com.microsoft"])) == []


def test_functions_of_the_model_are_no_plugins():
    body = [helper.make_node("Relu", ["a"], ["b"])]
    function = helper.make_function("mine", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    nodes = [helper.make_node("Twice", ["x"], ["y"], domain="mine")]
    model = model_of(nodes, functions=[function], domains=["mine"])
    assert names(model) == []
    del model.functions[:]
    assert names(model) == ["Twice"]


def test_a_plugin_inside_a_branch_makes_a_plugin_of_the_node():
    branches = {}
    for name in ("then_branch", "else_branch"):
        inner = helper.make_node("Mine" if name == "then_branch" else "Relu", ["x"], [name])
        output = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        branches[name] = helper.make_graph([inner], name, [], [output])
    constant = helper.make_node(
        "Constant", [], ["c"], value=helper.make_tensor("v", TensorProto.BOOL, [], [True])
    )
    model = model_of([constant, helper.make_node("If", ["c"], ["y"], "branches", **branches)])
    assert names(model) == ["If"]


def unknown(operator="TFL_Convolution2DTransposeBias", domain=""):
    """A layer, and behind it an operator that nobody knows; one output needs it, and the other does not."""
    g = Shaped()
    layer = g.op("MatMul", ["x", g.weights(4, 4)], "layer")
    model = g.model({"x": ["N", 4]}, layer)
    model.graph.node.append(helper.make_node(operator, [layer], ["y"], "segment", domain=domain))
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4]))
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


def test_operators_that_nobody_knows_are_named_with_what_is_left_out():
    data = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    with pytest.warns(UserWarning, match=r"'segment' \(TFL_Convolution2DTransposeBias\).*'y'"):
        loaded = load_model(unknown())
    assert [node.name for node in unknown_nodes(loaded.graph_model)] == ["segment"]
    with pytest.warns(UserWarning, match="segment"):
        table = trtint8.calibrate(unknown(), data, method="minmax", progress=False)
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
    node = helper.make_node(operator, ["x"], ["q"], name="quantizer", domain=domain)
    opsets = [helper.make_opsetid(name, 17 if not name else 1) for name in ("", domain, "own")]
    functions = [helper.make_function("own", "layer", ["x"], ["q"], [node], opsets[:2])] if inside else []
    nodes = [helper.make_node("layer", ["x"], ["q"], domain="own")] if inside else [node]
    graph = helper.make_graph(
        [*nodes, helper.make_node("Relu", ["q"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
    )
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)
    with pytest.raises(ModelError, match=f"{tool}.* node 'quantizer' is {operator}"):
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
    source = unknown(operator)
    source.graph.node.append(helper.make_node("Relu", ["y"], ["z"], "behind"))
    source.graph.output[1].name = "z"
    onnx.save(source, model)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32))
    wanted = {"segment": operator, "behind": "Relu"}
    calibrate = ("calibrate", model, tmp_path / "x.npy", "-o", table, "--method", "minmax")
    assert run_json(capsys, *calibrate)["left_out"] == wanted
    assert json.loads(table.read_text())["left_out"] == wanted
    assert trtint8.CalibrationTable.load(table).provenance.left_out == wanted
    quantized = run_json(capsys, "quantize", model, table, "-o", tmp_path / "q.onnx")
    assert quantized["left_out"] == wanted
    shown = run_json(capsys, "table", "show", table)
    assert shown["provenance"]["left_out"] == wanted


@pytest.mark.parametrize("operator", ["Mine", "BatchedNMS_TRT"])
@pytest.mark.filterwarnings("ignore:ONNX has no such operator:UserWarning")
def test_unknown_operators_inside_functions(operator):
    source = unknown(operator)
    node = source.graph.node[-1]
    imports = [helper.make_opsetid("", 17)]
    inner = helper.make_node(operator, ["a"], ["b"], "inner")
    source.functions.append(helper.make_function("own", "Segment", ["a"], ["b"], [inner], imports))
    node.op_type, node.domain = "Segment", "own"
    source.opset_import.append(helper.make_opsetid("own", 1))
    data = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    table = trtint8.calibrate(source, data, method="minmax", progress=False)
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


RANDOM = np.random.default_rng(0)
ONES, BIAS = np.ones(8, np.float32), RANDOM.standard_normal(8).astype(np.float32)
NORM = {"axis": -1, "epsilon": 1e-5}


def model(opset, operator, constants=(), shape=(2, 8), layer="MatMul", **attributes):
    """The operator behind a layer, and a layer behind it."""
    wide = 8 if layer == "MatMul" else shape[1]
    kernel = RANDOM.standard_normal((wide, wide, *[1] * (len(shape) - 2 if layer == "Conv" else 0)))
    weights = {"w": kernel.astype(np.float32)} | {f"c{i}": one for i, one in enumerate(constants)}
    nodes = [
        helper.make_node(layer, ["x", "w"], ["a"], "first"),
        helper.make_node(operator, ["a", *list(weights)[1:]], ["b"], "middle", **attributes),
        helper.make_node(layer, ["b", "w"], ["y"], "last"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *shape[1:]]) for name in "xy"]
    initializers = [numpy_helper.from_array(np.asarray(one), name) for name, one in weights.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], initializers)
    ir_version = onnx.helper.find_min_ir_version_for([helper.make_opsetid("", opset)])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=max(ir_version, 4)
    )


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
    shape = [dim.dim_value or 2 for dim in source.graph.input[0].type.tensor_type.shape.dim]
    data = RANDOM.standard_normal(shape).astype(np.float32)
    table = trtint8.calibrate(source, data, method="minmax", progress=False)
    kept = trtint8.quantize(source, table, keep_float=["*"], progress=False)
    expected, found = (
        ort.InferenceSession(one.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, {"x": data}
        )
        for one in (source, kept)
    )
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-4)
    quantized = trtint8.quantize(source, table, progress=False)
    (result,) = trtint8.validate(quantized, data, reference=source, progress=False).outputs
    assert result.sqnr_db > 20


def test_a_model_is_read_in_the_opset_that_has_its_operators():
    assert needed_opset(TAKEN["LayerNormalization 12"]) == 17
    assert needed_opset(TAKEN["GroupNormalization 18"]) == 18
    assert load_model(model(13, "HardSwish")).graph_model.opset_imports[""] == 14


def test_operators_that_onnx_runtime_refuses_too():
    sizes = np.array([1, 1, 2, 2], np.float32)
    with pytest.raises(ModelError, match="Upsample"):
        load_model(model(10, "Upsample", [sizes], **IMAGE))
