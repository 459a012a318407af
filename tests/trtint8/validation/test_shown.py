"""A budget is judged only by samples on which a network that has lost everything would miss it.

The networks are judged beside themselves, so that nothing is lost on any samples.
"""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import trtint8
from tests.trtint8.onnx_models import normal, parsed
from trtint8.cli.main import main
from trtint8.validation.metrics import Detections

DRAWN = np.random.default_rng(0)
ROWS = DRAWN.standard_normal((120, 8)).astype(np.float32)
MAPS = DRAWN.standard_normal((12, 3, 6, 6)).astype(np.float32)
IMAGES = DRAWN.random((12, 1, 6, 6)).astype(np.float32)
IDS = DRAWN.integers(0, 20, (40, 6))


EYE = np.eye(8, 5, dtype=np.float32)
#: Added to the scores of five classes: the first one is always the largest.
ALWAYS_FIRST = np.float32([9, 0, 0, 0, 0])
ONE = np.float32([1])


def classifier(last="Identity", bias=0):
    body = f"m = MatMul (x, w) a = Add (m, b) y = {last} (a)"
    return parsed("float[n, 8] x", "float[n, 5] y", body, w=EYE, b=np.zeros(5, np.float32) + np.float32(bias))


def two_heads():
    """Of the first output the first class is always the largest."""
    body = "m = MatMul (x, w) one = Add (m, b) other = MatMul (x, w)"
    return parsed("float[n, 8] x", "float[n, 5] one, float[n, 5] other", body, w=EYE, b=ALWAYS_FIRST)


def integers():
    body = "m = MatMul (x, w) y = ArgMax <axis = 1, keepdims = 0> (m)"
    return parsed("float[n, 8] x", "int64[n] y", body, w=EYE)


def empties():
    """What is above a million, of which there is nothing."""
    body = "m = MatMul (x, w) above = Greater (m, limit) found = NonZero (above) y = Cast <to = 1> (found)"
    return parsed("float[n, 8] x", "float[2, k] y", body, w=EYE, limit=np.float32(1e6))


def segmenter(bias=0):
    weights = np.eye(4, 3, dtype=np.float32)[:, :, None, None]
    shapes = "float[n, 3, 6, 6] x", "float[n, 4, 6, 6] y"
    return parsed(*shapes, "y = Conv (x, w, b)", w=weights, b=np.float32([bias, 0, 0, 0]))


def tokens(bias=0):
    """Scores of four kinds for each of six tokens."""
    shapes, body = ("int64[n, 6] x", "float[n, 6, 4] y"), "g = Gather (table, x) y = Add (g, b)"
    return parsed(*shapes, body, table=normal(20, 4, seed=1), b=np.float32([bias, 0, 0, 0]))


def upscaler():
    return parsed("float[n, 1, 6, 6] x", "float[n, 1, 6, 6] y", "y = Mul (x, one)", one=ONE)


def detector():
    """Rows of detections as they are fed."""
    return parsed("float[n, 3, 6] x", "float[n, 3, 6] rows", "rows = Mul (x, one)", one=ONE)


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
PIXELS, MIOU, DETECTIONS = ({"metrics": name, "max_drop": 1} for name in ("pixels", "miou", "detections"))
PSNR, TOKENS = {"metrics": "psnr", "max_drop": 0.5}, {"metrics": "token_cosine", "minimum": 0.9}
#: Where each of twelve or more samples is more than a point.
TEN = {"max_drop": 10}


def judged(model, data, labels=None, **budget):
    return trtint8.validate(model, data, reference=model, labels=labels, **budget).judgement


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
        (segmenter(), MAPS, None, PIXELS),
        (segmenter(), MAPS, KINDS, MIOU),
        (tokens(), IDS, None, PIXELS),
        (tokens(), IDS, None, TOKENS),
        (upscaler(), IMAGES, IMAGES * np.float32(0.9), PSNR),
        (detector(), FOUND, None, DETECTIONS),
        (detector(), FOUND, TRUE, DETECTIONS),
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
    "one class everywhere": (segmenter(99), MAPS, None, PIXELS),
    "one class everywhere by its overlap": (segmenter(99), MAPS, None, MIOU),
    "maps of one class": (segmenter(), MAPS, KINDS * 0 + 2, PIXELS),
    "maps of one class by their overlap": (segmenter(), MAPS, KINDS * 0 + 2, MIOU),
    "maps of others": (segmenter(), MAPS, (KINDS + 1) % 4, PIXELS),
    "one token everywhere": (tokens(99), IDS, None, PIXELS),
    "one text": (tokens(), IDS[:1], None, TOKENS),
    "texts without words": (tokens(), IDS * 0, None, SQNR),
    "other images as labels": (upscaler(), IMAGES, IMAGES[::-1].copy(), PSNR),
    "no detections": (detector(), FOUND * np.float32([1, 1, 1, 1, 0.01, 1]), None, DETECTIONS),
    "one image with detections": (detector(), FOUND[:1], None, DETECTIONS),
    "true boxes elsewhere": (detector(), FOUND, TRUE + 3000, DETECTIONS),
    "true boxes of others": (detector(), FOUND, TRUE[::-1].copy(), DETECTIONS),
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
    for name in ("tuned_on", "good"):
        np.savez(f"{name}.npz", x=ROWS, labels=CLASSES)
    np.savez("shuffled.npz", x=ROWS, labels=shuffled)
    np.savez("one.npz", x=ROWS[CLASSES == 1], labels=CLASSES[CLASSES == 1])
    return tmp_path


def ran(line):
    return main(line.split())


VALIDATE = "validate m.onnx {}.npz --reference m.onnx --max-drop 10"
TUNE = "tune m.onnx tuned_on.npz tuned_on.npz --judge {}.npz --max-drop {} -o o.onnx"


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("data", "status"), [("good", 0), ("shuffled", 1), ("one", 1)])
def test_verbs_end_with_a_status_and_pages_say_why(files, capsys, data, status):
    words = "the same answer"
    assert ran(VALIDATE.format(data)) == status
    said = capsys.readouterr()
    assert (words in " ".join(said.out.split())) == (words in " ".join(said.err.split())) == bool(status)
    assert ran(VALIDATE.format(data) + " --json") == status
    printed = capsys.readouterr().out
    assert any(words in warning for warning in json.loads(printed)["warnings"]) == bool(status)
    for name in (data, "good2"):
        Path(f"{name}.accuracy.json").write_text(printed)
    assert ran(f"report {data}.accuracy.json -o page.html") == 0
    assert (words in Path("page.html").read_text()) == bool(status)
    assert ran(f"compare {data}.accuracy.json good2.accuracy.json -o both.html") == 0
    assert (words in " ".join(capsys.readouterr().out.split())) == bool(status)
    assert (words in Path("both.html").read_text()) == bool(status)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("data", "status"), [("good", 0), ("shuffled", 1), ("one", 1)])
def test_tune_ends_with_a_status(files, capsys, data, status):
    assert ran(TUNE.format(data, 10) + " --no-round-weights --json") == status
    tuned = json.loads(capsys.readouterr().out)
    assert (tuned["accuracy"]["judgement"]["unjudged"] is None) == (not status)
    assert Path("o.onnx").exists() == (not status)


def test_tune_refuses_samples_that_are_too_few_before_it_begins(files, capsys):
    np.savez("few.npz", x=ROWS[:20], labels=CLASSES[:20])
    assert ran(TUNE.format("few", 1)) == 2
    said = capsys.readouterr().err
    assert "20 samples" in said and "--max-drop" in said and not Path("o.onnx").exists()
