"""Dataset files of ultralytics as data."""

import json
import pickle

import numpy as np
import onnx
import pytest

pytest.importorskip("PIL")
pytest.importorskip("yaml")

from PIL import Image

import trtint8
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.images.true_boxes import read_dataset
from calibrators.data.opening import open_batches
from calibrators.errors import CalibrationDataError
from calibrators.imports import install_command
from tests.calibrators.specs import floats
from tests.trtint8.detectors import detector
from trtint8.cli.main import main

INPUTS = [floats("images", "N", 3, 8, 8)]


def write_images(folder, names, shade=100, boxes="0 0.5 0.5 0.5 0.5\n"):
    """Images of one shade each, and a box for each in the folder ``labels`` that belongs to theirs."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = type(folder)(str(folder).replace("images", "labels"))
    labels.mkdir(parents=True, exist_ok=True)
    for index, name in enumerate(names):
        Image.fromarray(np.full((8, 8, 3), shade + index, np.uint8)).save(folder / f"{name}.png")
        (labels / f"{name}.txt").write_text(boxes)


@pytest.fixture
def dataset(tmp_path):
    """A dataset as ultralytics has it; gives its file."""
    root = tmp_path / "toy"
    write_images(root / "images" / "train", ["a", "b", "c"], 10)
    write_images(root / "images" / "val", ["d", "e"], 100)
    write_images(root / "images" / "val" / "more", ["f"], 110, "1 0.25 0.25 0.5 0.5\n")
    file = root / "toy.yaml"
    file.write_text("path: .\ntrain: images/train\nval: images/val\ntest:\nnames:\n  0: cat\n  1: dog\n")
    return file


def shades(file, split="val", **options):
    """The shade of every image, and the class of the first box of each."""
    options = {"preprocessing": Preprocessing(scale=1.0), **options}
    batches = open_batches(file, INPUTS, split=split, **options)
    found = [feeds["images"][:, 0, 0, 0] for feeds in batches]
    labels = batches.labels
    return np.concatenate(found).tolist(), None if labels is None else labels[:, 0, 4].tolist()


def test_splits_with_their_boxes(dataset):
    assert shades(dataset, "train") == ([10, 11, 12], [0, 0, 0])
    assert shades(dataset) == ([100, 101, 110], [0, 0, 1])
    assert shades(dataset, limit=2) == ([100, 101], [0, 0])


@pytest.mark.parametrize(
    "text",
    [
        "path: {root}\nval: images/val\nnames: [cat, dog]\n",
        "val: images/val\nnc: 2\n",
        "path: toy\nval: images/val\nnames: [cat, dog]\n",  # relative to where it is run
        "path: not/there\nval: images/val\nnames: [cat, dog]\n",
        "val: ../images/val\nnames: [cat, dog]\n",  # as Roboflow writes it
        "val: [images/val]\nnames: {{1: dog, 0: cat}}\n",
        "val: val.txt\nnames: [cat, dog]\ndownload: |\n  import os\n  os.abort()\n",
        "val: lists/val.txt\nnames: [cat, dog]\n",
        "val: {root}/images/val\nnames: [cat, dog]\n",
        "---\n# a comment\nval: images/val\nnames: [yes, 7]\nnc: 2\nkpt_shape: [17, 3]\n",
        "path: null\nval: images/val\ntest: ~\nnames: {{'0': cat, 1: dog}}\nnc: 2\n",
    ],
)
def test_forms_of_a_dataset(dataset, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    root = dataset.parent
    (root / "val.txt").write_text(
        "./images/val/d.png\nimages/val/e.png\n\n" + str(root / "images/val/more/f.png")
    )
    (root / "lists").mkdir()
    (root / "lists" / "val.txt").write_text("images/val/d.png\nimages/val/e.png\nimages/val/more/f.png\n")
    dataset.write_text(text.format(root=root))
    assert shades(dataset) == ([100, 101, 110], [0, 0, 1])


def test_class_names_stay_as_they_are_written(dataset):
    dataset.write_text("val: images/val\nnames: [yes, 007, 1_0, 2001-01-01, ~, 1e3]\n")
    assert read_dataset(dataset).class_names == ("yes", "007", "1_0", "2001-01-01", "~", "1e3")


def test_several_folders_and_lists(dataset):
    root = dataset.parent
    (root / "more.txt").write_text("images/train/b.png\n")
    dataset.write_text("val: [images/val/more, more.txt]\nnames: [cat, dog]\n")
    assert shades(dataset) == ([110, 11], [1, 0])


def test_images_without_boxes(dataset):
    for file in dataset.parent.rglob("*.txt"):
        file.unlink()
    assert shades(dataset) == ([100, 101, 110], None)


def test_a_worker_opens_it_anew(dataset):
    batches = open_batches(dataset, INPUTS, preprocessing=Preprocessing(scale=1.0))
    source = pickle.loads(pickle.dumps(batches.source))
    feeds, _ = source.read(np.arange(3))
    assert feeds["images"][:, 0, 0, 0].tolist() == [100, 101, 110]


BOMB = "a: &a [x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

HOSTILE = {
    "aliases of aliases": BOMB + "val: images/val\nnames: *i\n",
    "merged keys": "base: &b {val: images/val}\n<<: *b\nnames: [a]\n",
    "a tag of Python": "val: !!python/object/apply:os.system ['touch pwned']\nnames: [a]\n",
    "a name of Python": "val: images/val\nnames: !!python/name:os.system\n",
    "out of the folder": "path: images\nval: ../../../etc\nnames: [a]\n",
    "elsewhere": "val: /etc\nnames: [a]\n",
    "a list that leads out": "val: out.txt\nnames: [a, b]\n",
    "a list of missing images": "val: missing.txt\nnames: [a, b]\n",
    "no split": "path: .\nnames: [a]\n",
    "no such folder": "val: images/nothing\nnames: [a]\n",
    "an empty folder": "val: empty\nnames: [a]\n",
    "an absent root": "path: /no/such/folder\nval: images/val\nnames: [a]\n",
    "no names": "val: images/val\n",
    "names that are a text": "val: images/val\nnames: cat\n",
    "names with a gap": "val: images/val\nnames: {0: a, 2: b}\n",
    "names that are lists": "val: images/val\nnames: [[a], [b]]\n",
    "other numbers of classes": "val: images/val\nnc: 3\nnames: [a, b]\n",
    "fewer classes than boxes have": "val: images/val\nnames: [a]\n",
    "a number of classes that is none": "val: images/val\nnc: many\n",
    "a number for a split": "val: 7\nnames: [a]\n",
    "a dict for a split": "val: {a: b}\nnames: [a]\n",
    "an empty list": "val: []\nnames: [a]\n",
    "a list with a number": "val: [images/val, 3]\nnames: [a]\n",
    "a path that is a list": "path: [a]\nval: images/val\nnames: [a]\n",
    "a list": "- a\n- b\n",
    "a text": "hello\n",
    "nothing": "",
    "no YAML": "a: [\n",
    "a tab": "\tval: x\n",
    "a date that is none": "val: 2001-99-99\nnames: [a]\n",
    "deep lists": "val: " + "[" * 90_000,
    "deep dicts": "val: " + "{a: " * 20_000,
    "deep keys": "? " * 45_000,
    "deep lines": "- " * 45_000,
    "a number of many parts": "val: images/val\nnc: 1" + ":1" * 45_000,
    "a number of many digits": "val: 0x" + "f" * 90_000 + "\nnames: [a]\n",
    "two documents": "val: images/val\n---\nval: images/val\n",
    "a NUL": 'val: "a\\0b"\nnames: [a]\n',
    "a line break in a name": 'val: images/val\nnames: ["a\\nb", c]\n',
    "a large number": "val: images/val\nnc: 99999999999999999999\n",
    "too large": "val: images/val\nnames: [a, b]\n#" + "x" * (96 << 10),
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_datasets_get_one_sentence(dataset, tmp_path, monkeypatch, capsys, text):
    root = dataset.parent
    (root / "empty").mkdir()
    (root / "out.txt").write_text("../../../../../etc/hostname\n")
    (root / "missing.txt").write_text("images/val/none.png\n")
    dataset.write_text(text)
    monkeypatch.chdir(tmp_path)
    onnx.save(detector(), tmp_path / "net.onnx")
    # No option for the preprocessing would be a mistake of its own.
    command = ["run", "net.onnx", str(dataset), "-o", "out.npz", "--scale", "1/255"]
    assert main(command) == 2
    shown = capsys.readouterr().err
    assert "Traceback" not in shown and len(shown.strip().splitlines()) == 1
    assert not (tmp_path / "pwned").exists() and not (tmp_path / "out.npz").exists()


def test_without_pyyaml_the_extra_is_named(dataset, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(trtint8.UnsupportedError) as caught:
        open_batches(dataset, INPUTS, preprocessing=Preprocessing())
    assert install_command("images") in str(caught.value)


def test_calibration_reads_train_and_everything_else_val(dataset, tmp_path, capsys):
    onnx.save(detector(), tmp_path / "net.onnx")
    table = trtint8.calibrate(tmp_path / "net.onnx", dataset, preprocessing=Preprocessing())
    assert table.provenance.samples == 3
    assert table.amax["images"] == pytest.approx(12 / 255, rel=0.01)
    onnx.save(trtint8.quantize(tmp_path / "net.onnx", table), tmp_path / "q.onnx")
    command = ["validate", str(tmp_path / "q.onnx"), str(dataset), "--reference", str(tmp_path / "net.onnx")]
    assert main([*command, "--letterbox", "8", "--json", "--metric", "sqnr"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 3


def test_a_split_that_is_missing_is_named(dataset, tmp_path):
    dataset.write_text("val: images/val\nnames: [cat, dog]\n")
    onnx.save(detector(), tmp_path / "net.onnx")
    with pytest.raises(CalibrationDataError, match="'train'"):
        trtint8.calibrate(tmp_path / "net.onnx", dataset, preprocessing=Preprocessing())
