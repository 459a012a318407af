"""The modules of PyTorch that nodes come from: shown beside their names, and taken in place of them."""

import json

import numpy as np
import onnx
import pytest
from onnx import helper

import trtint8
from tests.trtint8.onnx_models import Shaped
from trtint8.cli.main import main

X = {"x": np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)}
MODULES = ("encoder.layer.0.dense", "encoder.layer.1.dense", "head")


def scoped(node, *modules, classes=()):
    """A node with the properties of PyTorch's exporter, which lists all modules around it."""
    node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=repr(["", *modules, node.name]))
    node.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=repr([*classes, node.op_type]))
    return node


def of_exporter(opset=18):
    """Three layers as the exporter names them, the second with a Sum and an Einsum, which are rewritten."""
    g = Shaped()
    tensor = "x"
    for index, module in enumerate(MODULES):
        parts = module.split(".")
        modules = [".".join(parts[: count + 1]) for count in range(len(parts))]
        operator, attributes = ("Einsum", {"equation": "ij,jk->ik"}) if index == 1 else ("MatMul", {})
        tensor = g.op(operator, [tensor, g.weights(16, 16)], f"node_{operator}_{index}", **attributes)
        scoped(g.nodes[-1], *modules)
        if index == 1:
            tensor = g.op("Sum", [tensor, tensor, g.weights(16)], "node_Sum")
            scoped(g.nodes[-1], *modules)
    model = g.model({"x": ["N", 16]}, tensor)
    model.opset_import[0].version = opset
    return model


def of_older_exporter():
    g = Shaped()
    tensor = "x"
    for name in ("/encoder/layer.0/dense/MatMul", "/encoder/layer.1/layer.1.dense/MatMul_1", "/head/MatMul"):
        tensor = g.op("MatMul", [tensor, g.weights(16, 16)], name)
    return g.model({"x": ["N", 16]}, tensor)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """``m.onnx``, its samples and its table."""
    path = tmp_path_factory.mktemp("modules")
    onnx.save(of_exporter(), path / "m.onnx")
    np.savez(path / "x.npz", **X)
    table = trtint8.calibrate(path / "m.onnx", X, method="minmax")
    table.save(path / "t.json")
    return path


@pytest.mark.parametrize("make", [of_exporter, lambda: of_exporter(12), of_older_exporter])
@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ("head", MODULES[2:]),
        ("encoder", MODULES[:2]),
        ("encoder.layer.1", MODULES[1:2]),
        ("encoder.layer.?.dense", MODULES[:2]),
        ("*dense", MODULES[:2]),
        ("*", MODULES),
    ],
)
def test_patterns_name_modules_and_all_that_is_in_them(make, pattern, kept, tmp_path):
    model = make()
    table = trtint8.calibrate(model, X, method="minmax")
    written = trtint8.write_quantized(model, table, tmp_path / "q.onnx", keep_float=pattern)
    decisions = written.quantized.placement.decisions
    assert [one.module for one in decisions if one.cause == "keep_float"] == list(kept)
    assert [one.module for one in decisions] == list(MODULES)


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("nothing", r"'node_MatMul_0' \(encoder\.layer\.0\.dense\)"),
        ("encoder.layer.1.dens", r"'encoder\.layer\.1\.dense'"),
    ],
)
def test_what_is_no_module_is_refused_with_those_that_are_near(pattern, named, folder):
    table = trtint8.CalibrationTable.load(folder / "t.json")
    with pytest.raises(trtint8.ModelError, match=named):
        trtint8.quantize(folder / "m.onnx", table, keep_float=[pattern])


def test_modules_are_shown_and_kept_in_files(folder, capsys):
    def said(*arguments):
        main([*arguments[:1], *(str(folder / one) if "." in one else one for one in arguments[1:])])
        return capsys.readouterr().out

    titles = [f"node_MatMul_{index} ({MODULES[index]})" for index in (0, 2)]
    explained = said("quantize", "m.onnx", "t.json", "-o", "q.onnx", "--explain")
    shown = said("sensitivity", "m.onnx", "t.json", "x.npz", "-o", "s.json")
    listed = said("table", "show", "t.json")
    assert all(title.split()[1][1:-1] in text for title in titles for text in (explained, shown))
    assert "(head)" in listed and "(encoder.layer.1.dense)" in listed
    measured = trtint8.Sensitivity.load(folder / "s.json")
    assert {one.module for one in measured.layers} == set(MODULES)
    assert {one.title for one in measured.layers} >= set(titles)
    assert set(trtint8.CalibrationTable.load(folder / "t.json").provenance.modules.values()) == set(MODULES)
    assert "pkg.torch.onnx" in (folder / "q.onnx").read_bytes().decode(errors="replace")


def test_an_engine_and_its_report_have_the_modules(folder, tmp_path):
    pytest.importorskip("tensorrt_rtx")
    for name, kept in (("a", ()), ("b", ("head",))):
        engine = tmp_path / f"{name}.engine"
        options = {"target": "rtx", "keep_int8": "*", "keep_float": kept}
        trtint8.build_int8_engine(folder / "m.onnx", folder / "t.json", engine, **options)
        modules = json.loads(engine.with_name(f"{name}.engine.json").read_text())["modules"]
        assert list(modules.values()) == list(MODULES)
    page = trtint8.write_report([tmp_path / "a.engine"], tmp_path / "r.html").read_text()
    assert "encoder.layer.1.dense" in page


def test_tuning_has_the_modules_of_layers_in_float(folder):
    table = trtint8.CalibrationTable.load(folder / "t.json")
    tuned = trtint8.tune(folder / "m.onnx", table, X, metric="sqnr", minimum=45.0, float16=False)
    kept = tuned.to_json()["keep_float"]
    assert kept and tuned.to_json()["modules"].keys() == set(kept)
    assert all(module in tuned.candidate.in_float for module in tuned.candidate.modules.values())


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("['', \"it's\", 'op']", "it's"),
        ("['op']", ""),
        ("", ""),
        ("[" * 100_000, ""),
        ("no list", ""),
        ("['', 'a\\ud800', 'op']", "a\\ud800"),
    ],
)
def test_properties_of_any_form_are_read(text, module):
    g = Shaped()
    model = g.model({"x": ["N", 16]}, g.op("MatMul", ["x", g.weights(16, 16)], "node"))
    model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=text)
    table = trtint8.calibrate(model, X, method="minmax")
    assert trtint8.measure_sensitivity(model, table, X).layers[0].module == module


def test_a_convolution_that_the_exporter_joined_with_a_normalization_has_its_own_module(tmp_path):
    weights = helper.make_tensor("stem.conv.weight", 1, [8, 4, 1, 1], np.ones(32, np.float32))
    node = helper.make_node("Conv", ["x", "stem.conv.weight"], ["y"], name="node_Conv_7")
    scoped(node, "stem", "stem.bn", classes=("Net", "Stem", "torch.nn.modules.batchnorm.BatchNorm2d"))
    ends = (helper.make_tensor_value_info(name, 1, [1, size, 4, 4]) for name, size in (("x", 4), ("y", 8)))
    graph = helper.make_graph([node], "g", [next(ends)], [next(ends)], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    table = trtint8.CalibrationTable({"x": 1.0})
    made = trtint8.write_quantized(model, table, tmp_path / "q.onnx", keep_int8="*", float16=True)
    assert [one.title for one in made.quantized.placement.decisions] == ["node_Conv_7 (stem.conv)"]
    (convolution,) = (one for one in onnx.load(made.model).graph.node if one.op_type == "Conv")
    assert repr(["stem.conv", "node_Conv_7"]) in [one.value for one in convolution.metadata_props]
    assert trtint8.write_quantized(
        model, table, tmp_path / "f.onnx", keep_float="stem.conv"
    ).quantized.placement
