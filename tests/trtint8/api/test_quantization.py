"""Q/DQ pairs by the public call."""

import warnings
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import trtint8
from calibrators.errors import CalibrationDataError, ModelError, TableError, UnsupportedError
from tests.trtint8.onnx_models import Shaped, normal, parsed
from trtint8.data import DEMO_MODEL
from trtint8.interop.unquantize import extract_table
from trtint8.models.model import load_model
from trtint8.report.files import find_report_files

FLOAT = onnx.TensorProto.FLOAT


def test_keep_float_keeps_a_node_out_of_int8(table):
    model = trtint8.quantize(DEMO_MODEL, table, keep_float=["/fc/*"])
    gemm = next(node for node in model.graph.node if node.op_type == "Gemm")
    assert not gemm.input[0].endswith("_dequantized") and not gemm.input[1].endswith("_dequantized")


def test_a_stale_table_is_refused(split, table):
    model = onnx.load(DEMO_MODEL)
    weight = model.graph.initializer[0]
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * 2, weight.name))
    with pytest.raises(TableError, match="stale"):
        trtint8.quantize(model, table)


def test_patterns_are_compared_with_the_model_whatever_they_are_for(table):
    with pytest.raises(ModelError, match=r"keep_int8.*'nowhere'"):
        trtint8.quantize(DEMO_MODEL, table, float16=True, keep_int8=["nowhere"])


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"keep_int8": ["*"]}, "float16=True"),
        ({"float32_io": True}, "float16=True"),
        ({"limit": 3}, "equalize=DATA"),
        ({"skip_bad": True}, "equalize=DATA"),
        ({"compute_capability": "8.6"}, "target=..."),
    ],
)
def test_what_would_have_no_effect_is_refused(table, given, advice):
    with pytest.raises((ModelError, UnsupportedError)) as refused:
        trtint8.quantize(DEMO_MODEL, table, **given)
    assert next(iter(given)) in str(refused.value) and advice in str(refused.value)


@pytest.mark.parametrize("target", ["tensorrt", "rtx"])
def test_what_is_no_compute_capability_is_refused(table, target):
    with pytest.raises(UnsupportedError, match=r"GPU 'abc'; choose .*give a compute capability"):
        trtint8.quantize(DEMO_MODEL, table, target=target, compute_capability="abc")
    if target != "tensorrt":
        trtint8.quantize(DEMO_MODEL, table, target=target, compute_capability=8.6)


@pytest.mark.parametrize("ranges", [{"images": 1.0}, None])
def test_what_is_no_table_is_refused(ranges):
    with pytest.raises(TableError, match=f"given as {type(ranges).__name__}; give a CalibrationTable"):
        trtint8.quantize(DEMO_MODEL, ranges)


def test_options_of_data_are_checked_without_data(table):
    with pytest.raises(CalibrationDataError, match=r"limit.*is -3"):
        trtint8.quantize(DEMO_MODEL, table, limit=-3)


def test_names_of_nodes_are_strings(table):
    with pytest.raises(ModelError, match=r"keep_float.*5"):
        trtint8.quantize(DEMO_MODEL, table, keep_float=[5])


@pytest.mark.parametrize("spread", [0, 2])
def test_an_equalized_model_knows_how_large_all_its_tensors_become(spread):
    """Of which only some have pairs. Nothing is equalized where channels are even."""
    random = np.random.default_rng(0)
    g = Shaped(quantized=False)
    uneven = (random.normal(size=(32, 32)) * np.exp(spread * random.normal(size=32))).astype(np.float32)
    hidden = g.op("Relu", [g.op("MatMul", ["x", g.constant(uneven)], "first")], "relu")
    second = g.op("MatMul", [hidden, g.weights(32, 32)], "second")
    wide = g.op("Mul", [g.op("Softsign", [second], "even"), g.constant(np.float32(6e4))], "wide")
    model = g.model({"x": ["n", 32]}, g.op("Tanh", [g.op("Exp", [second], "exp")], "tanh"))
    model.graph.output.append(helper.make_tensor_value_info(wide, FLOAT, None))
    samples = {"x": random.normal(size=(64, 32)).astype(np.float32)}
    table = trtint8.calibrate(model, samples, method="minmax", tensors="placed")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        made = trtint8.quantize(model, table, equalize=samples, float16=True, float32_io=True)
    assert not any("no range tells" in str(one.message) for one in found)
    assert any("equalization gains nothing" in str(one.message) for one in found) is (spread == 0)
    kinds = {value.name: value.type.tensor_type.elem_type for value in made.graph.value_info}
    assert (kinds["relu_out"], kinds["even_out"]) == (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT16)


def branching(taken):
    """A product before an If, one branch of which gives a name that a pair would get."""
    nodes = [[helper.make_node("Relu", ["m"], [taken])], [helper.make_node("Neg", ["m"], ["e"])]]
    info = [helper.make_tensor_value_info(name, FLOAT, [2, 8]) for name in (taken, "e", "x", "y")]
    then, other = (helper.make_graph(one, "branch", [], [out]) for one, out in zip(nodes, info, strict=False))
    flag = helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, [])
    weights = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    main = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("If", ["flag"], ["y"], "if", then_branch=then, else_branch=other),
    ]
    constants = [onnx.numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph(main, "g", [info[2], flag], [info[3]], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("method", ["minmax", "auto"])
@pytest.mark.parametrize("taken", ["x_quantized", "x_dequantized", "x_scale", "w_quantized", "m_float16"])
def test_names_within_branches_are_not_given_again(taken, method):
    model = branching(taken)
    feed = {"x": np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32), "flag": np.array(True)}
    table = trtint8.calibrate(model, [feed], method=method)
    for options in ({}, {"float16": True, "float32_io": True, "target": "rtx", "keep_int8": ["*"]}):
        made = trtint8.quantize(model, table, **options)
        onnx.checker.check_model(made, full_check=True)
        wanted, got = (
            ort.InferenceSession(one.SerializeToString()).run(None, feed)[0] for one in (model, made)
        )
        assert np.abs(wanted - got).max() < 0.1


def test_the_bits_of_a_float_stay_those_of_fp32():
    """Opset 26, whose BitCast makes an INT32 of a float32."""
    if onnx.defs.onnx_opset_version() < 26:
        pytest.skip("this version of ONNX has no BitCast")
    body = "product = MatMul (x, w) bits = BitCast <to = 6> (product) y = Cast <to = 1> (bits)"
    model = parsed("float[2, 8] x", "float[2, 8] y", body, opset=26, ir_version=11, w=0.1 * normal(8, 8))
    table = trtint8.CalibrationTable({"x": 1.0, "product": 3.0, "y": 1e9})
    made = trtint8.quantize(model, table, float16=True, float32_io=True, target="rtx", keep_int8=["*"])
    onnx.checker.check_model(made, full_check=True)


def test_joined_pairs_are_loaded_by_onnx_runtime_in_fp16():
    body = "f = MatMul (x, a) s = MatMul (x, b) joined = Concat <axis = 1> (f, s) y = MatMul (joined, c)"
    weights = {name: 0.1 * normal(size, 8, seed=size) for name, size in (("a", 8), ("b", 8), ("c", 16))}
    model = parsed("float[4, 8] x", "float[4, 8] y", body, **weights)
    x = {"x": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)}
    table = trtint8.calibrate(model, x, method="minmax")
    made = trtint8.quantize(model, table, float16=True, float32_io=True, target="rtx", keep_int8=["*"])
    assert sum(node.op_type == "QuantizeLinear" for node in made.graph.node) >= 6
    wanted, got = (ort.InferenceSession(one.SerializeToString()).run(None, x)[0] for one in (model, made))
    assert np.abs(wanted - got).max() < 0.05 * np.abs(wanted).max()


CUT = ["/block1/relu2/Relu_output_0"]


def test_the_files_of_a_model_that_is_cut(split, tmp_path):
    ranges = tmp_path / "t.json"
    images = split.calibration_images[:8]
    table = trtint8.calibrate(DEMO_MODEL, images, method="minmax", cut_at=CUT, output=ranges)
    assert trtint8.CalibrationTable.load(ranges) == table
    written = trtint8.write_quantized(DEMO_MODEL, ranges, tmp_path / "q.onnx", cut_at=CUT)
    assert (written.tail, written.float_model) == (tmp_path / "q.tail.onnx", tmp_path / "q.float.onnx")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"t.json", "q.onnx", "q.tail.onnx", "q.float.onnx"}
    assert [output.name for output in onnx.load(written.model).graph.output] == CUT
    assert written.quantized.placement.quantized_nodes and written.target == "tensorrt"


def test_ranges_up_to_a_cut_are_those_of_the_whole_model(split, table, tmp_path):
    def scales(path):
        graph = onnx.load(path).graph
        constants = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
        pairs = (node for node in graph.node if node.op_type == "QuantizeLinear")
        return {node.input[0]: constants[node.input[1]].tolist() for node in pairs}

    images = split.calibration_images[:8]
    part = trtint8.calibrate(DEMO_MODEL, images, method="minmax", cut_at=CUT)
    whole = trtint8.write_quantized(DEMO_MODEL, table, tmp_path / "whole.onnx")
    cut = trtint8.write_quantized(DEMO_MODEL, table, tmp_path / "cut.onnx", cut_at=CUT)
    assert scales(cut.model).items() < scales(whole.model).items()
    stem = ["/stem/relu/Relu_output_0"]
    shorter = trtint8.write_quantized(DEMO_MODEL, part, tmp_path / "stem.onnx", cut_at=stem)
    assert len(shorter.quantized.placement.quantized_nodes) == 1
    with pytest.raises(trtint8.TableError, match=r"'/block2/relu1/Relu_output_0'.*cut_at"):
        trtint8.write_quantized(DEMO_MODEL, part, tmp_path / "behind.onnx")
    trtint8.quantize(DEMO_MODEL, part.override(dict.fromkeys(table.amax.keys() - part.amax.keys(), 1.0)))


def test_a_written_model_is_the_one_that_is_returned(table, tmp_path):
    written = trtint8.write_quantized(DEMO_MODEL, table, tmp_path / "q.onnx", keep_float=["/fc/*"])
    assert onnx.load(written.model) == trtint8.quantize(DEMO_MODEL, table, keep_float=["/fc/*"])
    with pytest.raises(trtint8.OutputError, match=r"q\.onnx'"):
        trtint8.write_quantized(tmp_path / "q.onnx", table, tmp_path / "q.onnx")


def test_a_table_is_not_written_over_what_is_read(split, tmp_path):
    data = tmp_path / "d.npy"
    np.save(data, split.calibration_images[:4])
    (tmp_path / "t.json").symlink_to(data)
    with pytest.raises(trtint8.OutputError, match=r"t\.json'"):
        trtint8.calibrate(DEMO_MODEL, data, output=tmp_path / "t.json")


def test_what_a_table_warns_of_is_known_of_all_that_is_made_of_it(table, split, tmp_path):
    doubtful = replace(table, warnings=("one of a kind",))
    model = trtint8.quantize(DEMO_MODEL, doubtful)
    accuracy = trtint8.validate(model, split.heldout_images[:8], reference=DEMO_MODEL)
    assert "one of a kind" in accuracy.warnings
    assert extract_table(load_model(model)).warnings == ("one of a kind",)
    onnx.save(model, tmp_path / "q.onnx")
    assert "one of a kind" in find_report_files([tmp_path / "q.onnx"]).warnings
    assert table.merged(doubtful).warnings == (*table.warnings, "one of a kind")
    (kept,) = (entry for entry in model.metadata_props if entry.key == "trtint8.warnings")
    kept.value = "[3]"
    with pytest.raises(ModelError, match=r"trtint8\.warnings"):
        trtint8.validate(model, split.heldout_images[:8], reference=DEMO_MODEL)
