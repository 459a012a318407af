"""A budget is judged only by samples on which a network that has lost everything would miss it.

The networks are judged beside themselves, so that nothing is lost on any samples.
"""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from trtint8.cli.main import main
from trtint8.validation.metrics import Detections

DRAWN = np.random.default_rng(0)
ROWS = DRAWN.standard_normal((120, 8)).astype(np.float32)
MAPS = DRAWN.standard_normal((12, 3, 6, 6)).astype(np.float32)
IMAGES = DRAWN.random((12, 1, 6, 6)).astype(np.float32)
IDS = DRAWN.integers(0, 20, (40, 6))


def _model(nodes, inputs, outputs, **constants):
    io = [
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in one.items()]
        for one in (inputs, outputs)
    ]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    made = [
        helper.make_node(kind, takes, gives, name=f"n{number}", **attributes)
        for number, (kind, takes, gives, attributes) in enumerate(nodes)
    ]
    graph = helper.make_graph(made, "g", *io, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


FLOAT, INTEGER = TensorProto.FLOAT, TensorProto.INT64
EYE = np.eye(8, 5, dtype=np.float32)
#: Added to the scores of five classes: the first one is always the largest.
ALWAYS_FIRST = np.float32([9, 0, 0, 0, 0])


def classifier(last="Identity", bias=0):
    nodes = [
        ("MatMul", ["x", "w"], ["m"], {}),
        ("Add", ["m", "b"], ["a"], {}),
        (last, ["a"], ["y"], {}),
    ]
    constants = {"w": EYE, "b": np.zeros(5, np.float32) + np.float32(bias)}
    return _model(nodes, {"x": (FLOAT, ["n", 8])}, {"y": (FLOAT, ["n", 5])}, **constants)


def two_heads():
    """Of the first output the first class is always the largest."""
    nodes = [
        ("MatMul", ["x", "w"], ["m"], {}),
        ("Add", ["m", "b"], ["one"], {}),
        ("MatMul", ["x", "w"], ["other"], {}),
    ]
    outputs = {name: (FLOAT, ["n", 5]) for name in ("one", "other")}
    return _model(nodes, {"x": (FLOAT, ["n", 8])}, outputs, w=EYE, b=ALWAYS_FIRST)


def integers():
    nodes = [("MatMul", ["x", "w"], ["m"], {}), ("ArgMax", ["m"], ["y"], {"axis": 1, "keepdims": 0})]
    return _model(nodes, {"x": (FLOAT, ["n", 8])}, {"y": (INTEGER, ["n"])}, w=EYE)


def empties():
    """What is above a million, of which there is nothing."""
    nodes = [
        ("MatMul", ["x", "w"], ["m"], {}),
        ("Greater", ["m", "limit"], ["above"], {}),
        ("NonZero", ["above"], ["found"], {}),
        ("Cast", ["found"], ["y"], {"to": 1}),
    ]
    constants = {"w": EYE, "limit": np.float32(1e6)}
    return _model(nodes, {"x": (FLOAT, ["n", 8])}, {"y": (FLOAT, [2, "k"])}, **constants)


def segmenter(bias=0):
    weights = np.eye(4, 3, dtype=np.float32)[:, :, None, None]
    nodes = [("Conv", ["x", "w", "b"], ["y"], {})]
    shapes = {"x": (FLOAT, ["n", 3, 6, 6])}, {"y": (FLOAT, ["n", 4, 6, 6])}
    return _model(nodes, *shapes, w=weights, b=np.float32([bias, 0, 0, 0]))


def tokens(bias=0):
    """Scores of four kinds for each of six tokens."""
    nodes = [("Gather", ["table", "x"], ["g"], {}), ("Add", ["g", "b"], ["y"], {})]
    table = np.random.default_rng(1).standard_normal((20, 4)).astype(np.float32)
    constants = {"table": table, "b": np.float32([bias, 0, 0, 0])}
    return _model(nodes, {"x": (INTEGER, ["n", 6])}, {"y": (FLOAT, ["n", 6, 4])}, **constants)


def upscaler():
    nodes = [("Mul", ["x", "one"], ["y"], {})]
    shapes = {"x": (FLOAT, ["n", 1, 6, 6])}, {"y": (FLOAT, ["n", 1, 6, 6])}
    return _model(nodes, *shapes, one=np.float32([1]))


def detector():
    """Rows of detections as they are fed."""
    nodes = [("Mul", ["x", "one"], ["rows"], {})]
    shape = (FLOAT, ["n", 3, 6])
    return _model(nodes, {"x": shape}, {"rows": shape}, one=np.float32([1]))


def detections(images):
    rows = np.zeros((images, 3, 6), np.float32)
    rows[..., :2] = DRAWN.uniform(0, 200, (images, 3, 2))
    rows[..., 2:4] = rows[..., :2] + DRAWN.uniform(30, 90, (images, 3, 2))
    rows[..., 4] = DRAWN.uniform(0.5, 0.95, (images, 3))
    rows[..., 5] = DRAWN.integers(0, 3, (images, 3))
    return rows


FOUND = detections(20)
TRUE = np.concatenate([FOUND[..., :4], FOUND[..., 5:]], axis=-1)
CLASSES = (ROWS @ EYE).argmax(1)
KINDS = np.concatenate([MAPS, np.zeros_like(MAPS[:, :1])], 1).argmax(1)
POINT, SQNR = {"max_drop": 1}, {"metrics": "sqnr", "minimum": 20}
#: Where each of twelve or more samples is more than a point.
TEN = {"max_drop": 10}


def judged(model, data, labels=None, **budget):
    return trtint8.validate(model, data, reference=model, labels=labels, progress=False, **budget).judgement


@pytest.mark.parametrize(
    ("model", "data", "labels", "budget"),
    [
        (classifier(), ROWS, None, POINT),
        (classifier(), ROWS, CLASSES, POINT),
        (classifier(), ROWS, CLASSES, {"metrics": "top2", "max_drop": 1}),
        (classifier(), ROWS[:12], None, TEN),
        (classifier(), np.repeat(ROWS[:12], 10, axis=0), None, TEN),
        (classifier(), ROWS[:12], None, {"max_drop": 0}),
        (classifier(), ROWS[:2], None, SQNR),
        (two_heads(), ROWS, None, {"metrics": "agreement:other", "max_drop": 1}),
        (two_heads(), ROWS, None, {"metrics": "agreement_all", "max_drop": 1}),
        (integers(), ROWS, None, SQNR),
        (segmenter(), MAPS, None, {"metrics": "pixels", "max_drop": 1}),
        (segmenter(), MAPS, KINDS, {"metrics": "miou", "max_drop": 1}),
        (tokens(), IDS, None, {"metrics": "pixels", "max_drop": 1}),
        (tokens(), IDS, None, {"metrics": "token_cosine", "minimum": 0.9}),
        (upscaler(), IMAGES, IMAGES * np.float32(0.9), {"metrics": "psnr", "max_drop": 0.5}),
        (detector(), FOUND, None, {"metrics": "detections", "max_drop": 1}),
        (detector(), FOUND, TRUE, {"metrics": "detections", "max_drop": 1}),
        (detector(), FOUND, TRUE, {"metrics": "map50", "max_drop": 1}),
    ],
)
def test_samples_that_show_something_judge(model, data, labels, budget):
    if budget.get("metrics") == "map50":
        pytest.importorskip("faster_coco_eval")
    found = judged(model, data, labels, **budget)
    assert (found.fits, found.unjudged) == (True, None)


def _some_below(rows):
    some = rows + 9
    some[::10] -= 99
    return some


NOTHING_SHOWN = {
    "one sample": (classifier(), ROWS[:1], None, {"max_drop": 0}),
    "one sample by its SQNR": (classifier(), ROWS[:1], None, SQNR),
    "three samples": (classifier(), ROWS[:3], None, {"max_drop": 40}),
    "a point of ten samples": (classifier(), ROWS[:10], None, POINT),
    "one sample that repeats": (classifier(), np.repeat(ROWS[:1], 120, axis=0), None, POINT),
    "three samples that repeat": (classifier(), np.repeat(ROWS[:3], 40, axis=0), None, POINT),
    "a point of ten samples that repeat": (classifier(), np.repeat(ROWS[:10], 12, axis=0), None, POINT),
    "zeros": (classifier(), np.zeros_like(ROWS), None, POINT),
    "zeros by their SQNR": (classifier(), np.zeros_like(ROWS), None, SQNR),
    "one class": (classifier(bias=ALWAYS_FIRST), ROWS, None, POINT),
    "one class of a head": (two_heads(), ROWS, None, {"metrics": "agreement:one", "max_drop": 1}),
    "labels of one class": (classifier(), ROWS[CLASSES == 1], CLASSES[CLASSES == 1], TEN),
    "shuffled labels": (classifier(), ROWS, np.random.default_rng(1).permutation(CLASSES), POINT),
    "labels one too large": (classifier(), ROWS, (CLASSES + 1) % 5, POINT),
    "a budget beyond chance": (classifier(), ROWS, None, {"max_drop": 95}),
    "a least value below chance": (classifier(), ROWS, None, {"minimum": 5}),
    "no numbers": (classifier("Sqrt"), _some_below(ROWS), None, POINT),
    "no numbers by their SQNR": (classifier("Sqrt"), _some_below(ROWS), None, SQNR),
    "infinity": (classifier("Log"), np.zeros_like(ROWS), None, POINT),
    "infinity by its SQNR": (classifier("Log"), np.abs(ROWS) * (np.arange(8) > 0), None, SQNR),
    "one integer": (integers(), ROWS[:1], None, SQNR),
    "integers that are all alike": (integers(), np.abs(ROWS[:9]) * (np.arange(8) == 2), None, SQNR),
    "outputs without elements": (empties(), ROWS, None, SQNR),
    "one class everywhere": (segmenter(99), MAPS, None, {"metrics": "pixels", "max_drop": 1}),
    "one class everywhere by its overlap": (segmenter(99), MAPS, None, {"metrics": "miou", "max_drop": 1}),
    "maps of one class": (segmenter(), MAPS, KINDS * 0 + 2, {"metrics": "pixels", "max_drop": 1}),
    "maps of one class by their overlap": (
        segmenter(),
        MAPS,
        KINDS * 0 + 2,
        {"metrics": "miou", "max_drop": 1},
    ),
    "maps of others": (segmenter(), MAPS, (KINDS + 1) % 4, {"metrics": "pixels", "max_drop": 1}),
    "one token everywhere": (tokens(99), IDS, None, {"metrics": "pixels", "max_drop": 1}),
    "one text": (tokens(), IDS[:1], None, {"metrics": "token_cosine", "minimum": 0.9}),
    "texts without words": (tokens(), IDS * 0, None, SQNR),
    "other images as labels": (upscaler(), IMAGES, IMAGES[::-1].copy(), {"metrics": "psnr", "max_drop": 0.5}),
    "no detections": (
        detector(),
        FOUND * np.float32([1, 1, 1, 1, 0.01, 1]),
        None,
        {"metrics": "detections", "max_drop": 1},
    ),
    "one image with detections": (detector(), FOUND[:1], None, {"metrics": "detections", "max_drop": 1}),
    "true boxes elsewhere": (detector(), FOUND, TRUE + 3000, {"metrics": "detections", "max_drop": 1}),
    "true boxes of others": (detector(), FOUND, TRUE[::-1].copy(), {"metrics": "detections", "max_drop": 1}),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", NOTHING_SHOWN)
def test_samples_that_show_nothing_judge_nothing(kind):
    model, data, labels, budget = NOTHING_SHOWN[kind]
    found = judged(model, data, labels, **budget)
    assert (found.fits, found.value, found.drop) == (False, None, None)
    assert found.unjudged in found.notes[0]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_precision_by_boxes_elsewhere_judges_nothing():
    pytest.importorskip("faster_coco_eval")
    boxes = TRUE.copy()
    boxes[..., :4] += 3000
    for metric in ("map", "map50"):
        assert judged(detector(), FOUND, boxes, metrics=metric, max_drop=1).unjudged
    truth = [(image[:, :4], image[:, 4]) for image in boxes]
    own = trtint8.MeanAveragePrecision(lambda outputs: [_boxes_of(rows) for rows in outputs["rows"]], truth)
    assert judged(detector(), FOUND, metrics=[own], max_drop=0.01).unjudged


def _boxes_of(rows):
    return Detections(rows[:, :4], rows[:, 4], rows[:, 5])


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A classifier, and labelled samples: good ones, shuffled labels, and one class."""
    monkeypatch.chdir(tmp_path)
    onnx.save(classifier(), "m.onnx")
    shuffled = np.random.default_rng(1).permutation(CLASSES)
    np.savez("tuned_on.npz", x=ROWS, labels=CLASSES)
    np.savez("good.npz", x=ROWS, labels=CLASSES)
    np.savez("shuffled.npz", x=ROWS, labels=shuffled)
    np.savez("one.npz", x=ROWS[CLASSES == 1], labels=CLASSES[CLASSES == 1])
    return tmp_path


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("data", "status"), [("good", 0), ("shuffled", 1), ("one", 1)])
def test_verbs_end_with_a_status_and_pages_say_why(files, capsys, data, status):
    words = "the same answer"
    validate = ["validate", "m.onnx", f"{data}.npz", "--reference", "m.onnx", "--max-drop", "10"]
    assert main(validate) == status
    said = capsys.readouterr()
    assert (words in " ".join(said.out.split())) == (words in " ".join(said.err.split())) == bool(status)
    assert main([*validate, "--json"]) == status
    printed = capsys.readouterr().out
    assert any(words in warning for warning in json.loads(printed)["warnings"]) == bool(status)
    Path(f"{data}.accuracy.json").write_text(printed)
    assert main(["report", f"{data}.accuracy.json", "-o", "page.html"]) == 0
    assert (words in Path("page.html").read_text()) == bool(status)
    Path("good2.accuracy.json").write_text(printed)
    compare = ["compare", f"{data}.accuracy.json", "good2.accuracy.json", "-o", "both.html"]
    assert main(compare) == 0
    assert (words in " ".join(capsys.readouterr().out.split())) == bool(status)
    assert (words in Path("both.html").read_text()) == bool(status)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("data", "status"), [("good", 0), ("shuffled", 1), ("one", 1)])
def test_tune_ends_with_a_status(files, capsys, data, status):
    line = ["tune", "m.onnx", "tuned_on.npz", "tuned_on.npz", "--judge", f"{data}.npz", "--max-drop", "10"]
    assert main([*line, "-o", "o.onnx", "--no-round-weights", "--json"]) == status
    tuned = json.loads(capsys.readouterr().out)
    assert (tuned["accuracy"]["judgement"]["unjudged"] is None) == (not status)
    assert Path("o.onnx").exists() == (not status)


def test_tune_refuses_samples_that_are_too_few_before_it_begins(files, capsys):
    np.savez("few.npz", x=ROWS[:20], labels=CLASSES[:20])
    line = [
        "tune",
        "m.onnx",
        "tuned_on.npz",
        "tuned_on.npz",
        "--judge",
        "few.npz",
        "--max-drop",
        "1",
        "-o",
        "o.onnx",
    ]
    assert main(line) == 2
    said = capsys.readouterr().err
    assert "20 samples" in said and "--max-drop" in said and not Path("o.onnx").exists()
