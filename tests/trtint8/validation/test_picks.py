"""Picks that a network makes by comparing what it has computed, and how many of them INT8 changes."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import trtint8
from calibrators.operators import Shown
from tests.trtint8.onnx_models import normal, parsed
from trtint8 import RayExecutor
from trtint8.cli.main import main
from trtint8.models.model import load_model, prepare
from trtint8.models.outputs.picked import ShownPicks, find_shown_picks
from trtint8.models.session import open_graph_model
from trtint8.sensitivity import results
from trtint8.validation.accuracy import accuracy_rows
from trtint8.validation.fidelity import PicksMeter, count_changes

HEAD = "h = Conv <pads = [1, 1, 1, 1]> (x, w) "
DATA = normal(12, 3, 8, 8, seed=5)
PEAKS = HEAD + "m = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (h) e = Equal (h, m) "


#: What the networks read; each of them some of these.
CONSTANTS = {
    "w": normal(4, 3, 3, 3, seed=1),
    "w2": normal(2, 4, 1, 1, seed=2),
    "w3": normal(2, 1, 1, 1, seed=2),
    "zero": np.float32(0),
    "one": np.float32(1),
    "six": np.float32(6),
    "tenth": np.float32(0.1),
    "least": np.float32([0.5]),
    "overlap": np.float32([0.3]),
    "most": np.array([5]),
    "k": np.array([9]),
    "flat": np.array([0, 4, 64]),
}

#: Nodes and outputs, and the tensor that shows what is picked, with its operator.
KINDS = {
    "classes of pixels": (
        HEAD + "y = ArgMax <axis = 1, keepdims = 0> (h)",
        "int64[N, 8, 8] y",
        "y",
        "ArgMax",
    ),
    "classes as bytes": (
        HEAD + "a = ArgMax <axis = 1> (h) y = Cast <to = 2> (a)",
        "uint8[N, 1, 8, 8] y",
        "y",
        "ArgMax",
    ),
    "the least distance": (HEAD + "y = ArgMin <axis = 1> (h)", "int64[N, 1, 8, 8] y", "y", "ArgMin"),
    "the best places": (
        HEAD + "f = Flatten (h) v, y = TopK <axis = 1> (f, k)",
        "float[N, 9] v, int64[N, 9] y",
        "y",
        "TopK",
    ),
    "places inside, of which values are gathered": (
        HEAD + "f = Flatten (h) v, i = TopK (f, k) g = Neg (f) y = GatherElements <axis = 1> (g, i)",
        "float[N, 9] y",
        "i",
        "TopK",
    ),
    "the best values without their places": (HEAD + "f = Flatten (h) y, i = TopK (f, k)", "float[N, 9] y"),
    "peaks as a mask": (PEAKS + "y = Cast <to = 1> (e)", "float[N, 4, 8, 8] y", "y", "Equal"),
    "peaks with their values": (
        PEAKS + "c = Cast <to = 1> (e) y = Mul (c, h)",
        "float[N, 4, 8, 8] y",
        "y",
        "Equal",
    ),
    "peaks above a bound": (
        PEAKS + "g = Greater (h, one) b = And (e, g) p = NonZero (b) y = Transpose (p)",
        "int64[n, 4] y",
        "b",
        "Equal",
    ),
    "peaks by Where": (PEAKS + "y = Where (e, h, zero)", "float[N, 4, 8, 8] y", "y", "Equal"),
    "a mask": (HEAD + "y = GreaterOrEqual (h, zero)", "bool[N, 4, 8, 8] y", "y", "GreaterOrEqual"),
    "a function defined piece by piece": (
        HEAD + "n = Mul (h, tenth) l = Less (h, zero) y = Where (l, n, h)",
        "float[N, 4, 8, 8] y",
    ),
    "a bound with a layer behind it": (
        HEAD + "g = Less (h, zero) c = Cast <to = 1> (g) y = Conv (c, w2)",
        "float[N, 2, 8, 8] y",
    ),
    "places with a layer behind them": (
        HEAD + "a = ArgMax <axis = 1> (h) c = Cast <to = 1> (a) y = Conv (c, w3)",
        "float[N, 2, 8, 8] y",
        "a",
        "ArgMax",
    ),
    "a guard": (HEAD + "z = Equal (h, zero) y = Where (z, one, h)", "float[N, 4, 8, 8] y"),
    "classes that nothing computes": (
        HEAD + "y = Relu (h) a = ArgMax <axis = 1> (x)",
        "float[N, 4, 8, 8] y, int64[N, 1, 8, 8] a",
    ),
    "values that are not zero": (
        HEAD + "r = Relu (h) p = NonZero (r) y = Transpose (p)",
        "int64[n, 4] y",
        "p",
        "NonZero",
    ),
    "a choice of one": (HEAD + "y = Hardmax <axis = 1> (h)", "float[N, 4, 8, 8] y", "y", "Hardmax"),
    "boxes": (
        HEAD
        + """f = Reshape (h, flat) s = Sigmoid (f) b = Transpose <perm = [0, 2, 1]> (s)
        y = NonMaxSuppression (b, s, most, overlap, least)""",
        "int64[n, 3] y",
        "y",
        "NonMaxSuppression",
    ),
}


def network(kind):
    """A network, and the tensor that shows what it picks, to the operator."""
    nodes, outputs, *wanted = KINDS[kind]
    return made(nodes, outputs), dict([wanted] if wanted else [])


def made(nodes, outputs):
    return onnx.shape_inference.infer_shapes(parsed("float[N, 3, 8, 8] x", outputs, nodes, **CONSTANTS))


@pytest.mark.parametrize("kind", KINDS)
def test_what_shows_picks_is_found(kind):
    model, wanted = network(kind)
    for graph_model in (load_model(model).graph_model, prepare(load_model(model)).graph_model):
        assert {one.tensor: one.operator for one in find_shown_picks(graph_model)} == wanted


def changes_by_hand(tensor, operator, arrays):
    """Picks, changed, lost and gained: two arrays, sample by sample, as sets of what is picked."""
    counts = np.zeros(4, int)
    if operator == "ArgMax" or operator == "ArgMin":
        changed = int((arrays[0] != arrays[1]).sum())
        return (arrays[0].size, changed, changed, changed)
    for sample in range(len(DATA)):
        wanted, got = (picked(operator, array, sample) for array in arrays)
        lost, gained = len(wanted - got), len(got - wanted)
        counts += (len(wanted), max(lost, gained), lost, gained)
    return tuple(counts.tolist())


def picked(operator, array, sample):
    if operator == "NonMaxSuppression":
        return {tuple(row) for row in array.tolist() if row[0] == sample}
    if operator == "NonZero":
        return {tuple(column) for column in array.T.tolist() if column[0] == sample}
    if operator == "TopK":
        return set(array[sample].tolist())
    return set(np.flatnonzero(array[sample]).tolist())


@pytest.mark.parametrize("kind", [kind for kind, parts in KINDS.items() if len(parts) > 2])
def test_changed_picks_are_counted_beside_the_noise(kind):
    model, wanted = network(kind)
    ((tensor, operator),) = wanted.items()
    table = trtint8.calibrate(model, DATA, tensors="placed")
    quantized = trtint8.quantize(model, table)
    accuracy = trtint8.validate(quantized, DATA, reference=model, batch_size=5)
    (found,) = accuracy.picks_changed
    assert (found.tensor, found.operator) == (tensor, operator)
    arrays = []
    for one in (model, quantized):
        session = open_graph_model(load_model(one).graph_model, () if tensor == "y" else (tensor,))
        arrays.append(
            dict(zip((*session.output_names, tensor), session.run({"x": DATA}), strict=False))[tensor]
        )
    assert (found.picks, found.changed, found.lost, found.gained) == changes_by_hand(tensor, operator, arrays)
    assert found.share == found.changed / found.picks
    measured = trtint8.measure_sensitivity(model, table, DATA, batch_size=5)
    assert measured.picks_changed == accuracy.picks_changed


def quantized(kind):
    model, _ = network(kind)
    table = trtint8.calibrate(model, DATA, tensors="placed")
    return model, table, trtint8.quantize(model, table)


def test_a_model_that_lacks_the_tensor_is_not_compared():
    model, _, int8 = quantized("peaks above a bound")
    other = onnx.ModelProto.FromString(int8.SerializeToString())
    for node in other.graph.node:
        for names in (node.input, node.output):
            names[:] = ["another" if name == "b" else name for name in names]
    whole = trtint8.validate(int8, DATA, reference=model, also={"other": other})
    assert [one.tensor for one in whole.picks_changed] == ["b"]
    assert whole.also["other"].picks_changed == ()
    assert accuracy_rows(whole)[-1][3] == "not comparable"


def test_places_of_what_was_picked_before_are_not_compared():
    nodes = """t = Transpose <perm = [0, 2, 3, 1]> (h) m = ReduceMax <axes = [3], keepdims = 0> (t)
        g = Greater (m, six) p = NonZero (g) j = Transpose (p) a = GatherND (t, j)
        y = ArgMax <axis = 1, keepdims = 0> (a)"""
    model = made(HEAD + nodes, "int64[n, 3] j, int64[n] y")
    assert [one.operator for one in find_shown_picks(load_model(model).graph_model)] == ["Greater", "ArgMax"]
    table = trtint8.calibrate(model, DATA, tensors="placed")
    accuracy = trtint8.validate(trtint8.quantize(model, table), DATA, reference=model)
    assert [one.operator for one in accuracy.picks_changed] == ["Greater"]


def test_picks_are_counted_with_metrics_of_outputs_alone():
    model, _, int8 = quantized("classes of pixels")
    for metrics, count in (("pixels", 0), (["pixels", "sqnr"], 1)):
        accuracy = trtint8.validate(int8, DATA, reference=model, metrics=metrics)
        assert len(accuracy.picks_changed) == count


@pytest.mark.parametrize("kind", ["classes of pixels", "peaks above a bound"])
def test_picks_are_shown_in_words_files_and_reports(kind, tmp_path, monkeypatch, capsys):
    def said(line):
        assert main(line.split()) == 0
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    model, table, int8 = quantized(kind)
    onnx.save(model, "m.onnx")
    onnx.save(int8, "m.qdq.onnx")
    table.save("m.table.json")
    np.savez("held.npz", x=DATA)
    validate = "validate m.qdq.onnx held.npz --reference m.onnx"
    printed = said(f"{validate} --json")
    (found,) = json.loads(printed)["picks_changed"]
    assert found["picks"] >= found["changed"] > 0
    assert found["changed"] == max(found["lost"], found["gained"]) or kind != "classes of pixels"
    assert f"{found['picks']:,}" in said(validate)
    Path("m.accuracy.json").write_text(printed)
    measured = said("sensitivity m.onnx m.table.json held.npz -o m.sensitivity.json")
    assert f"{found['changed']:,}" in measured
    loaded = trtint8.Sensitivity.load("m.sensitivity.json")
    assert [dataclasses.asdict(one) for one in loaded.picks_changed] == [found]
    sources = ["m.qdq.onnx", "m.accuracy.json", "m.sensitivity.json"]
    page = trtint8.write_report(sources, "report.html").read_text()
    assert page.count(f"{found['changed']:,} (") >= 2


def test_an_arithmetic_counts_picks_too():
    for kind, tensor in (("peaks with their values", "y"), ("peaks above a bound", "b")):
        model, table, _ = quantized(kind)
        accuracy = trtint8.validate(model, DATA, table=table, arithmetic="ncnn")
        assert [(one.tensor, one.operator) for one in accuracy.picks_changed] == [(tensor, "Equal")]


def test_a_continued_measurement_counts_all_picks(tmp_path):
    model, table, _ = quantized("the best places")
    whole = trtint8.measure_sensitivity(model, table, DATA, batch_size=4, tolerance_db=0)
    kept = tmp_path / "kept"

    def batches(stop):
        for number in range(3):
            if number == stop:
                raise KeyboardInterrupt
            yield {"x": DATA[4 * number : 4 * number + 4]}

    options = {"checkpoint": kept, "tolerance_db": 0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            trtint8.measure_sensitivity(model, table, lambda: batches(2), **options)
        assert kept.exists()
        found = trtint8.measure_sensitivity(model, table, lambda: batches(3), **options)
    assert found.picks_changed == whole.picks_changed


def test_workers_count_the_same_picks(workers_here):
    model, table, int8 = quantized("peaks above a bound")
    options = {"batch_size": 5, "threads": 1}
    judged = [
        trtint8.validate(int8, DATA, reference=model, executor=how, **options)
        for how in ("local", RayExecutor(workers=2))
    ]
    assert judged[0].picks_changed == judged[1].picks_changed != ()
    measured = trtint8.measure_sensitivity(model, table, DATA, executor=RayExecutor(workers=2), **options)
    assert measured.picks_changed == judged[0].picks_changed


def shown(kind):
    """What shows picks, by a name of ``Shown`` and an axis."""
    name, _, axis = kind.partition(" ")
    return ShownPicks("t", "Op", Shown[name], int(axis or 0))


@pytest.mark.parametrize(
    ("kind", "wanted", "got", "counts"),
    [
        ("PLACES", [[1, 2], [3, 3]], [[1, 0], [3, 1]], (4, 2, 2, 2)),
        ("PLACES", [1, 2], [1, 2, 3], None),
        # The order of places does not matter, and the larger of both numbers is how many changed.
        ("SETS -1", [[1, 2, 3], [4, 5, 6]], [[3, 1, 2], [4, 8, 9]], (6, 2, 2, 2)),
        ("SETS 1", [[1, 2, 3]], [[1, 2, 3, 4]], (3, 1, 0, 1)),
        ("SETS 0", [[1, 2], [3, 4]], [[3, 2], [1, 5]], (4, 1, 1, 1)),
        ("SETS -1", [[1], [2]], [[1]], None),
        ("SETS -1", np.zeros((2, 0)), np.zeros((2, 0)), (0, 0, 0, 0)),
        # One sample loses a peak and another gains one: two changes.
        ("MASK", [[1, 1, 0], [0, 1, 0]], [[1, 0, 0], [0, 1, 1]], (3, 2, 1, 1)),
        ("MASK", [[0.5, 0, 0.2], [0, 0, 0]], [[0, 0.1, 0.1], [0, 0, 0]], (2, 1, 1, 1)),
        ("BEYOND", [[False, False], [False, False]], [[True, False], [True, True]], (0, 3, 0, 3)),
        ("MASK", [[True]], [[True, True]], None),
        ("ROWS", [[0, 0, 3], [1, 0, 2]], [[1, 0, 2], [0, 0, 4], [0, 0, 5]], (2, 2, 1, 2)),
        ("ROWS", [[0, 0, 3], [-1, -1, -1]], [[0, 0, 3], [1, 0, 7]], (1, 1, 0, 1)),
        ("ROWS", np.zeros((0, 3)), [[0, 0, 1]], (0, 1, 0, 1)),
        ("COLUMNS", [[0, 0, 1], [3, 4, 5]], [[0, 1], [4, 6]], (3, 2, 2, 1)),
        ("COLUMNS", np.zeros((2, 0)), np.zeros((2, 0)), (0, 0, 0, 0)),
    ],
)
def test_changes_of_picks(kind, wanted, got, counts):
    assert count_changes(shown(kind), np.array(wanted), np.array(got), 2) == counts


def test_picks_that_the_float_model_does_not_make_have_no_share():
    meter = PicksMeter([shown("BEYOND")])
    meter.add({"t": np.array([[True, True]])}, {"t": np.array([[False, False]])}, 1)
    (found,) = meter.value()
    assert (found.picks, found.changed, found.gained, found.share) == (0, 2, 2, np.inf)
