import json

import numpy as np
import pytest

from calibrators.errors import ModelError, TableError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.onnx_models import Shaped
from trtint8 import calibrate, quantize
from trtint8.cli.main import main
from trtint8.data import DEMO_MODEL
from trtint8.interop.extract import extract_table
from trtint8.interop.migration import plan_migration
from trtint8.models.model import load_model, prepare
from trtint8.quantization.placement import place


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    images = np.random.default_rng(0).random((32, 1, 8, 8), np.float32)
    path = tmp_path_factory.mktemp("cache") / "model.cache"
    return calibrate(DEMO_MODEL, images, progress=False).save(path)


@pytest.fixture(scope="module")
def placement():
    return place(prepare(load_model(DEMO_MODEL)).graph_model)


def test_a_whole_cache_needs_nothing(cache, placement):
    plan = plan_migration(placement, CalibrationTable.load(cache).amax)
    assert (plan.missing, plan.unused, plan.proposals, plan.unsolved) == ((), (), (), ())


def test_tensors_that_the_graph_lacks_are_listed(cache, placement):
    amax = {**CalibrationTable.load(cache).amax, "(Unnamed Layer* 3) [Shuffle]_output": 1.0}
    assert plan_migration(placement, amax).unused == ("(Unnamed Layer* 3) [Shuffle]_output",)


def test_a_missing_relu_follows_from_its_convolution(cache, placement):
    amax = dict(CalibrationTable.load(cache).amax)
    del amax["/block1/relu1/Relu_output_0"]
    plan = plan_migration(placement, amax)
    (proposal,) = plan.proposals
    assert plan.missing == ("/block1/relu1/Relu_output_0",)
    assert proposal.source == "/block1/bn1/BatchNormalization_output_0"
    assert proposal.amax == amax[proposal.source]
    assert proposal.reason == "fused with it"


def test_what_follows_from_nothing_is_unsolved(cache, placement):
    amax = {name: value for name, value in CalibrationTable.load(cache).amax.items() if name != "images"}
    plan = plan_migration(placement, amax)
    assert plan.unsolved == plan.missing == ("images",)


def test_scales_that_a_concatenation_makes_equal_are_told():
    g = Shaped()
    left = g.op("Relu", [g.op("Conv", ["x", g.weights(4, 4, 1, 1)], "a")], "left")
    joined = g.op("Concat", [left, "x"], "joined", axis=1)
    model = g.model({"x": ["N", 4, 8, 8]}, g.op("Conv", [joined, g.weights(4, 8, 1, 1)], "b"))
    found = place(prepare(load_model(model)).graph_model)
    plan = plan_migration(found, {"x": 1.0, left: 4.0, joined: 4.0})
    assert plan.widened == {"x": 4.0}


def test_every_scale_makes_the_round_trip(cache):
    table = CalibrationTable.load(cache)
    back = extract_table(load_model(quantize(DEMO_MODEL, table)))
    assert set(back.amax) <= set(table.amax)
    assert len(back.amax) == 9
    for name in back.amax:
        assert back.scale(name) == table.scale(name)


# The command.


def migrated(arguments, capsys):
    status = main(["migrate", str(DEMO_MODEL), *map(str, arguments), "--json"])
    captured = capsys.readouterr()
    return status, json.loads(captured.out) if captured.out else None, captured.err


def test_migrate_proves_its_result(cache, tmp_path, capsys):
    status, found, _ = migrated([cache, "-o", tmp_path / "q.onnx"], capsys)
    assert status == 0
    assert found["in_int8"] == found["weighted_layers"] == 9
    assert load_model(tmp_path / "q.onnx").is_quantized


def test_gaps_are_filled_only_when_asked(cache, tmp_path, capsys):
    table = CalibrationTable.load(cache).without(["/block1/relu?/Relu_output_0"])
    gap = table.save(tmp_path / "gap.cache")
    status, _, error = migrated([gap, "-o", tmp_path / "q.onnx"], capsys)
    assert status == 2
    assert "no range for 2 tensors that need one" in error
    assert "pass --fill to take those" in error
    assert not (tmp_path / "q.onnx").exists()
    status, found, _ = migrated([gap, "-o", tmp_path / "q.onnx", "--fill"], capsys)
    assert status == 0
    assert len(found["proposals"]) == 2
    assert found["in_int8"] == 9


def test_gaps_that_nothing_fills(cache, tmp_path, capsys):
    gap = CalibrationTable.load(cache).without(["images"]).save(tmp_path / "gap.cache")
    status, _, error = migrated([gap, "-o", tmp_path / "q.onnx", "--fill"], capsys)
    assert status == 2
    assert "for 1 tensors that need one: 'images'; calibrate the model, or add them with" in error


# Tables: extract, drop, merge, convert.


def test_extract_and_convert(cache, tmp_path, capsys):
    assert main(["migrate", str(DEMO_MODEL), str(cache), "-o", str(tmp_path / "q.onnx"), "--no-proof"]) == 0
    assert main(["table", "extract", str(tmp_path / "q.onnx"), "-o", str(tmp_path / "t.csv")]) == 0
    assert (
        main(["table", "convert", str(tmp_path / "t.csv"), str(tmp_path / "p.json"), "--format", "ppq"]) == 0
    )
    document = json.loads((tmp_path / "p.json").read_text())
    assert document["act_quant_info"] == pytest.approx(dict(CalibrationTable.load(tmp_path / "t.csv").amax))
    assert main(["table", "extract", str(DEMO_MODEL), "-o", str(tmp_path / "no.json")]) == 2
    assert "has no Q/DQ pairs on activations" in capsys.readouterr().err


def test_drop_and_merge(tmp_path):
    first = CalibrationTable({"a": 1.0, "b": 2.0}, "entropy").save(tmp_path / "first.json")
    second = CalibrationTable({"b": 3.0, "c": 4.0}, "minmax").save(tmp_path / "second.json")
    assert main(["table", "merge", str(first), str(second), "-o", str(tmp_path / "both.json")]) == 0
    both = CalibrationTable.load(tmp_path / "both.json")
    assert (both.amax, both.method, both.overridden) == (
        {"a": 1.0, "b": 3.0, "c": 4.0},
        "entropy",
        {"b", "c"},
    )
    assert main(["table", "drop", str(tmp_path / "both.json"), "b", "-o", str(tmp_path / "less.json")]) == 0
    less = CalibrationTable.load(tmp_path / "less.json")
    assert (less.amax, less.overridden) == ({"a": 1.0, "c": 4.0}, {"c"})
    with pytest.raises(TableError, match=r"'z\*' matches no tensor of the table"):
        less.without(["z*"])


def test_tables_of_different_models_are_not_merged():
    from calibrators.tables.table import Provenance

    one, two = (CalibrationTable({"a": 1.0}, provenance=Provenance(model=name)) for name in ("x", "y"))
    with pytest.raises(TableError, match=r"the tables are of different models \(x and y\)"):
        one.merged(two)


def test_a_model_with_two_scales_for_one_tensor():
    g = Shaped()
    outs = []
    for index, scale in enumerate((0.1, 0.2)):
        pair = [g.constant(np.float32(scale)), g.constant(np.int8(0))]
        quantized = g.op("QuantizeLinear", ["x", *pair], f"q{index}")
        outs.append(g.op("DequantizeLinear", [quantized, *pair], f"d{index}"))
    model = g.model({"x": ["N", 4]}, g.op("Add", outs, "add"))
    with pytest.raises(ModelError, match=r"tensor 'x' of 'model' is quantized with two scales, 0\.1"):
        extract_table(load_model(model))
