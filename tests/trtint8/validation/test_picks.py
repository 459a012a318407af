"""Picks that a network makes by comparing what it has computed, and how many of them INT8 changes."""

import dataclasses
import json

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

IMAGE = "float[N, 3, 8, 8] x"
HEAD = "h = Conv <pads = [1, 1, 1, 1]> (x, w) "
WEIGHTS = {"w": normal(4, 3, 3, 3, seed=1)}
DATA = normal(12, 3, 8, 8, seed=5)
PEAKS = HEAD + "m = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (h) e = Equal (h, m) "


def i64(*numbers):
    return np.array(numbers, np.int64)


#: Nodes, outputs, constants, and the tensors that show what is picked, to how.
KINDS = {
    "classes of pixels": (
        HEAD + "y = ArgMax <axis = 1, keepdims = 0> (h)",
        "int64[N, 8, 8] y",
        {},
        {"y": "ArgMax"},
    ),
    "classes as bytes": (
        HEAD + "a = ArgMax <axis = 1> (h) y = Cast <to = 2> (a)",
        "uint8[N, 1, 8, 8] y",
        {},
        {"y": "ArgMax"},
    ),
    "the least distance": (HEAD + "y = ArgMin <axis = 1> (h)", "int64[N, 1, 8, 8] y", {}, {"y": "ArgMin"}),
    "the best places": (
        HEAD + "f = Flatten (h) v, y = TopK <axis = 1> (f, k)",
        "float[N, 9] v, int64[N, 9] y",
        {"k": i64(9)},
        {"y": "TopK"},
    ),
    "places inside, of which values are gathered": (
        HEAD + "f = Flatten (h) v, i = TopK (f, k) g = Neg (f) y = GatherElements <axis = 1> (g, i)",
        "float[N, 9] y",
        {"k": i64(9)},
        {"i": "TopK"},
    ),
    "the best values without their places": (
        HEAD + "f = Flatten (h) y, i = TopK (f, k)",
        "float[N, 9] y",
        {"k": i64(9)},
        {},
    ),
    "peaks as a mask": (PEAKS + "y = Cast <to = 1> (e)", "float[N, 4, 8, 8] y", {}, {"y": "Equal"}),
    "peaks with their values": (
        PEAKS + "c = Cast <to = 1> (e) y = Mul (c, h)",
        "float[N, 4, 8, 8] y",
        {},
        {"y": "Equal"},
    ),
    "peaks above a bound": (
        PEAKS + "g = Greater (h, bound) b = And (e, g) p = NonZero (b) y = Transpose (p)",
        "int64[n, 4] y",
        {"bound": np.float32(1)},
        {"b": "Equal"},
    ),
    "peaks by Where": (
        PEAKS + "y = Where (e, h, zero)",
        "float[N, 4, 8, 8] y",
        {"zero": np.float32(0)},
        {"y": "Equal"},
    ),
    "a mask": (
        HEAD + "y = GreaterOrEqual (h, bound)",
        "bool[N, 4, 8, 8] y",
        {"bound": np.float32(0)},
        {"y": "GreaterOrEqual"},
    ),
    "a function defined piece by piece": (
        HEAD + "n = Mul (h, slope) l = Less (h, zero) y = Where (l, n, h)",
        "float[N, 4, 8, 8] y",
        {"zero": np.float32(0), "slope": np.float32(0.1)},
        {},
    ),
    "a bound with a layer behind it": (
        HEAD + "g = Less (h, zero) c = Cast <to = 1> (g) y = Conv (c, v)",
        "float[N, 2, 8, 8] y",
        {"zero": np.float32(0), "v": normal(2, 4, 1, 1, seed=2)},
        {},
    ),
    "places with a layer behind them": (
        HEAD + "a = ArgMax <axis = 1> (h) c = Cast <to = 1> (a) y = Conv (c, v)",
        "float[N, 2, 8, 8] y",
        {"v": normal(2, 1, 1, 1, seed=2)},
        {"a": "ArgMax"},
    ),
    "a guard": (
        HEAD + "z = Equal (h, zero) y = Where (z, one, h)",
        "float[N, 4, 8, 8] y",
        {"zero": np.float32(0), "one": np.float32(1)},
        {},
    ),
    "classes that nothing computes": (
        HEAD + "y = Relu (h) a = ArgMax <axis = 1> (x)",
        "float[N, 4, 8, 8] y, int64[N, 1, 8, 8] a",
        {},
        {},
    ),
    "values that are not zero": (
        HEAD + "r = Relu (h) p = NonZero (r) y = Transpose (p)",
        "int64[n, 4] y",
        {},
        {"p": "NonZero"},
    ),
    "a choice of one": (HEAD + "y = Hardmax <axis = 1> (h)", "float[N, 4, 8, 8] y", {}, {"y": "Hardmax"}),
    "boxes": (
        HEAD
        + """f = Reshape (h, flat) s = Sigmoid (f) b = Transpose <perm = [0, 2, 1]> (s)
        y = NonMaxSuppression (b, s, most, overlap, least)""",
        "int64[n, 3] y",
        {"flat": i64(0, 4, 64), "most": i64(5), "overlap": np.float32([0.3]), "least": np.float32([0.5])},
        {"y": "NonMaxSuppression"},
    ),
}


def network(kind):
    nodes, outputs, constants, wanted = KINDS[kind]
    return onnx.shape_inference.infer_shapes(parsed(IMAGE, outputs, nodes, **WEIGHTS, **constants)), wanted


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


@pytest.mark.parametrize("kind", [kind for kind, (*_, wanted) in KINDS.items() if wanted])
def test_changed_picks_are_counted_beside_the_noise(kind):
    model, wanted = network(kind)
    ((tensor, operator),) = wanted.items()
    table = trtint8.calibrate(model, DATA, tensors="placed", progress=False)
    quantized = trtint8.quantize(model, table)
    accuracy = trtint8.validate(quantized, DATA, reference=model, batch_size=5, progress=False)
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
    measured = trtint8.measure_sensitivity(model, table, DATA, batch_size=5, progress=False)
    assert measured.picks_changed == accuracy.picks_changed


def quantized(kind):
    model, _ = network(kind)
    table = trtint8.calibrate(model, DATA, tensors="placed", progress=False)
    return model, table, trtint8.quantize(model, table)


def test_a_model_that_lacks_the_tensor_is_not_compared():
    model, _, int8 = quantized("peaks above a bound")
    other = onnx.ModelProto.FromString(int8.SerializeToString())
    for node in other.graph.node:
        for names in (node.input, node.output):
            names[:] = ["another" if name == "b" else name for name in names]
    whole = trtint8.validate(int8, DATA, reference=model, also={"other": other}, progress=False)
    assert [one.tensor for one in whole.picks_changed] == ["b"]
    assert whole.also["other"].picks_changed == ()
    assert accuracy_rows(whole)[-1][3] == "not comparable"


def test_places_of_what_was_picked_before_are_not_compared():
    nodes = (
        HEAD
        + """t = Transpose <perm = [0, 2, 3, 1]> (h) m = ReduceMax <axes = [3], keepdims = 0> (t)
        g = Greater (m, bound) p = NonZero (g) j = Transpose (p) v = GatherND (t, j)
        y = ArgMax <axis = 1, keepdims = 0> (v)"""
    )
    outputs = "int64[n, 3] j, int64[n] y"
    made = parsed(IMAGE, outputs, nodes, **WEIGHTS, bound=np.float32(6))
    model = onnx.shape_inference.infer_shapes(made)
    assert [one.operator for one in find_shown_picks(load_model(model).graph_model)] == ["Greater", "ArgMax"]
    table = trtint8.calibrate(model, DATA, tensors="placed", progress=False)
    accuracy = trtint8.validate(trtint8.quantize(model, table), DATA, reference=model, progress=False)
    assert [one.operator for one in accuracy.picks_changed] == ["Greater"]


def test_picks_are_counted_with_metrics_of_outputs_alone():
    model, _, int8 = quantized("classes of pixels")
    for metrics, count in (("pixels", 0), (["pixels", "sqnr"], 1)):
        accuracy = trtint8.validate(int8, DATA, reference=model, metrics=metrics, progress=False)
        assert len(accuracy.picks_changed) == count


@pytest.mark.parametrize("kind", ["classes of pixels", "peaks above a bound"])
def test_picks_are_shown_in_words_files_and_reports(kind, tmp_path, capsys):
    model, table, int8 = quantized(kind)
    onnx.save(model, tmp_path / "m.onnx")
    onnx.save(int8, tmp_path / "m.qdq.onnx")
    table.save(tmp_path / "m.table.json")
    np.savez(tmp_path / "held.npz", x=DATA)
    names = {name: str(tmp_path / name) for name in ("m.onnx", "m.qdq.onnx", "m.table.json", "held.npz")}
    validated = ["validate", names["m.qdq.onnx"], names["held.npz"], "--reference", names["m.onnx"]]
    assert main([*validated, "--json"]) == 0
    printed = capsys.readouterr().out
    (found,) = json.loads(printed)["picks_changed"]
    assert found["picks"] >= found["changed"] > 0
    assert found["changed"] == max(found["lost"], found["gained"]) or kind != "classes of pixels"
    assert main(validated) == 0
    assert f"{found['picks']:,}" in capsys.readouterr().out
    (tmp_path / "m.accuracy.json").write_text(printed)
    output = tmp_path / "m.sensitivity.json"
    measured = ["sensitivity", names["m.onnx"], names["m.table.json"], names["held.npz"], "-o", str(output)]
    assert main(measured) == 0
    assert f"{found['changed']:,}" in capsys.readouterr().out
    loaded = trtint8.Sensitivity.load(output)
    assert [dataclasses.asdict(one) for one in loaded.picks_changed] == [found]
    sources = [names["m.qdq.onnx"], tmp_path / "m.accuracy.json", output]
    trtint8.write_report(sources, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count(f"{found['changed']:,} (") >= 2


def test_an_arithmetic_counts_picks_too():
    model, table, _ = quantized("peaks with their values")
    accuracy = trtint8.validate(model, DATA, table=table, arithmetic="ncnn", progress=False)
    assert [(one.tensor, one.operator) for one in accuracy.picks_changed] == [("y", "Equal")]
    model, table, _ = quantized("peaks above a bound")
    accuracy = trtint8.validate(model, DATA, table=table, arithmetic="ncnn", progress=False)
    assert [(one.tensor, one.operator) for one in accuracy.picks_changed] == [("b", "Equal")]


def test_a_continued_measurement_counts_all_picks(tmp_path):
    model, table, _ = quantized("the best places")
    whole = trtint8.measure_sensitivity(model, table, DATA, batch_size=4, progress=False, tolerance_db=0)
    kept = tmp_path / "kept"

    def batches(stop):
        for number in range(3):
            if number == stop:
                raise KeyboardInterrupt
            yield {"x": DATA[4 * number : 4 * number + 4]}

    options = {"checkpoint": kept, "progress": False, "tolerance_db": 0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            trtint8.measure_sensitivity(model, table, lambda: batches(2), **options)
        assert kept.exists()
        found = trtint8.measure_sensitivity(model, table, lambda: batches(3), **options)
    assert found.picks_changed == whole.picks_changed


def test_workers_count_the_same_picks(workers_here):
    model, table, int8 = quantized("peaks above a bound")
    options = {"batch_size": 5, "threads": 1, "progress": False}
    judged = [
        trtint8.validate(int8, DATA, reference=model, executor=how, **options)
        for how in ("local", RayExecutor(workers=2))
    ]
    assert judged[0].picks_changed == judged[1].picks_changed != ()
    measured = trtint8.measure_sensitivity(model, table, DATA, executor=RayExecutor(workers=2), **options)
    assert measured.picks_changed == judged[0].picks_changed


def shown(shows, axis=0):
    return ShownPicks("t", "Op", shows, axis)


@pytest.mark.parametrize(
    ("one", "wanted", "got", "counts"),
    [
        (shown(Shown.PLACES), [[1, 2], [3, 3]], [[1, 0], [3, 1]], (4, 2, 2, 2)),
        (shown(Shown.PLACES), [1, 2], [1, 2, 3], None),
        # The order of places does not matter, and the larger of both numbers is how many changed.
        (shown(Shown.SETS, -1), [[1, 2, 3], [4, 5, 6]], [[3, 1, 2], [4, 8, 9]], (6, 2, 2, 2)),
        (shown(Shown.SETS, 1), [[1, 2, 3]], [[1, 2, 3, 4]], (3, 1, 0, 1)),
        (shown(Shown.SETS, 0), [[1, 2], [3, 4]], [[3, 2], [1, 5]], (4, 1, 1, 1)),
        (shown(Shown.SETS, -1), [[1], [2]], [[1]], None),
        (shown(Shown.SETS, -1), np.zeros((2, 0)), np.zeros((2, 0)), (0, 0, 0, 0)),
        # One sample loses a peak and another gains one: two changes.
        (shown(Shown.MASK), [[1, 1, 0], [0, 1, 0]], [[1, 0, 0], [0, 1, 1]], (3, 2, 1, 1)),
        (shown(Shown.MASK), [[0.5, 0, 0.2], [0, 0, 0]], [[0, 0.1, 0.1], [0, 0, 0]], (2, 1, 1, 1)),
        (shown(Shown.BEYOND), [[False, False], [False, False]], [[True, False], [True, True]], (0, 3, 0, 3)),
        (shown(Shown.MASK), [[True]], [[True, True]], None),
        (shown(Shown.ROWS), [[0, 0, 3], [1, 0, 2]], [[1, 0, 2], [0, 0, 4], [0, 0, 5]], (2, 2, 1, 2)),
        (shown(Shown.ROWS), [[0, 0, 3], [-1, -1, -1]], [[0, 0, 3], [1, 0, 7]], (1, 1, 0, 1)),
        (shown(Shown.ROWS), np.zeros((0, 3)), [[0, 0, 1]], (0, 1, 0, 1)),
        (shown(Shown.COLUMNS), [[0, 0, 1], [3, 4, 5]], [[0, 1], [4, 6]], (3, 2, 2, 1)),
        (shown(Shown.COLUMNS), np.zeros((2, 0)), np.zeros((2, 0)), (0, 0, 0, 0)),
    ],
)
def test_changes_of_picks(one, wanted, got, counts):
    assert count_changes(one, np.array(wanted), np.array(got), 2) == counts


def test_picks_that_the_float_model_does_not_make_have_no_share():
    meter = PicksMeter([shown(Shown.BEYOND)])
    meter.add({"t": np.array([[True, True]])}, {"t": np.array([[False, False]])}, 1)
    (found,) = meter.value()
    assert (found.picks, found.changed, found.gained, found.share) == (0, 2, 2, np.inf)
