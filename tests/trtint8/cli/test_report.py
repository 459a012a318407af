"""`trtint8 report` as a user meets it."""

import os
import shutil

import numpy as np
import onnx
import pytest

import trtint8
from tests.trtint8.cli.calls import succeeds
from tests.trtint8.onnx_models import conv_relu_conv
from trtint8.data import DEMO_MODEL, load_digits_split

pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install 'trtint8[demo]')")

MODEL = str(DEMO_MODEL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    split = load_digits_split()
    np.savez(folder / "heldout.npz", images=split.heldout_images[:200], labels=split.heldout_labels[:200])
    table = trtint8.calibrate(DEMO_MODEL, split.calibration_images, tensors="placed")
    out = folder / "out"
    out.mkdir()
    table.save(out / "digits.table.json")
    onnx.save(trtint8.quantize(DEMO_MODEL, table), out / "digits.qdq.onnx")
    return folder


@pytest.mark.slow
def test_a_report_with_the_worst_samples(folder, tmp_path):
    output = tmp_path / "report.html"
    (tmp_path / "names.txt").write_text("\n".join(f"digit {i}" for i in range(10)), encoding="utf-8-sig")
    arguments = ["--model", MODEL, "--data", folder / "heldout.npz", "--limit 50"]
    names = ["--classes", tmp_path / "names.txt"]
    succeeds("report", folder / "out", "-o", output, *arguments, *names)
    page = output.read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 20 and ">digit 3</th>" in page and "\ufeff" not in page
    assert "of 50 samples get another class in INT8" in page
    assert "the Q/DQ model as fake quantization in ONNX Runtime" in page
    assert f"trtint8 sensitivity {MODEL} digits.table.json HELDOUT_DATA" in page
    assert "trtint8 report " not in page


@pytest.mark.slow
def test_a_report_of_files_alone(folder, tmp_path):
    output = tmp_path / "report.html"
    succeeds("report", folder / "out" / "digits.table.json", "-o", output)
    page = output.read_text(encoding="utf-8")
    assert "not measured" in page and "trtint8 report digits.table.json -o digits.html" in page


@pytest.mark.parametrize(
    "name", ["digits.qdq.onnx", "digits.table.json", "model.onnx", "heldout.npz", "labels.npy"]
)
def test_what_is_read_is_not_overwritten(folder, tmp_path, refused, name):
    for file in (*(folder / "out").iterdir(), folder / "heldout.npz"):
        shutil.copy(file, tmp_path)
    shutil.copy(MODEL, tmp_path / "model.onnx")
    np.save(tmp_path / "labels.npy", np.zeros(200, np.int64))
    before, page = (tmp_path / name).read_bytes(), tmp_path / "page.html"
    page.symlink_to(tmp_path / name)
    files = [str(tmp_path / file) for file in ("model.onnx", "heldout.npz", "labels.npy")]
    options = [word for pair in zip(("--model", "--data", "--labels"), files, strict=True) for word in pair]
    said = refused("report", tmp_path, "-o", page, *options)
    assert f"cannot write '{page}': it is read as well; give another name" in said
    assert (tmp_path / name).read_bytes() == before


def test_a_page_is_written_under_the_name_of_a_page(tmp_path, refused):
    """Before anything is read."""
    data = tmp_path / "heldout.npz"
    data.write_bytes(b"samples")
    for output, words in (
        (str(data), f"'{data}' does not end in .html"),
        (".html", "'.html' is an ending alone"),
    ):
        assert words in refused("report nowhere -o", output)
    assert data.read_bytes() == b"samples"


def test_a_qdq_model_of_another_network_is_said_on_the_page(folder, tmp_path, prints):
    other, page = tmp_path / "other.onnx", tmp_path / "r.html"
    onnx.save(conv_relu_conv(quantized=False), other)
    qdq = str(folder / "out" / "digits.qdq.onnx")
    sentence = "The FP32 model given is of another model than the Q/DQ model"
    for given, said in ((MODEL, False), (str(other), True)):
        assert prints("report", qdq, "-o", page, "--model", given) == f"written to '{page}'\n"
        assert (sentence in page.read_text(encoding="utf-8")) is said


WORST = ["--model", MODEL, "--data", "heldout.npz"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--data", "x.npz"], "give --model"),
        *(
            (option.split(), f"{option.split()[0]} has no effect without --data")
            for option in [
                "--classes x.txt",
                "--labels x.npy",
                "--limit 3",
                "--batch-size 3",
                "--mean 0.5",
                "--state h=out",
                "--batch-axis images=0",
            ]
        ),
        (["--model", "nowhere.onnx"], "'nowhere.onnx'"),
        (["--model", MODEL, "--data", "nowhere.npz"], "'nowhere.npz'"),
        ([*WORST, "--classes", "nowhere.txt"], "cannot read the class names 'nowhere.txt'"),
        (["out/digits.table.json", *WORST], "needs the Q/DQ model or the engine"),
    ],
)
def test_mistakes(folder, tmp_path, monkeypatch, refused, options, named):
    monkeypatch.chdir(folder)
    files = [] if options[0].endswith(".json") else ["out"]
    assert named in refused("report", *files, *options, "-o", tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_an_empty_line_among_the_class_names_is_a_class_without_a_name(folder, tmp_path):
    names, output = tmp_path / "names.txt", tmp_path / "r.html"
    names.write_text("zero\n\n" + "".join(f"digit {i}\n" for i in range(2, 10)) + "\n")
    arguments = ["--model", MODEL, "--data", folder / "heldout.npz", "--limit 20"]
    succeeds("report", folder / "out", "-o", output, *arguments, "--classes", names)
    page = output.read_text(encoding="utf-8")
    assert all(f">{name}</th>" in page for name in ("zero", "1", "digit 3"))


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_class_names_that_are_no_file_are_refused_and_not_waited_for(make, folder, tmp_path, refused):
    make(tmp_path / "names")
    arguments = ["--model", MODEL, "--data", str(folder / "heldout.npz"), "--limit", "20"]
    arguments += ["--classes", str(tmp_path / "names")]
    said = refused("report", folder / "out", "-o", tmp_path / "r.html", *arguments)
    assert "cannot read the class names" in said
