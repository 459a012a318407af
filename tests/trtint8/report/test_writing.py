"""A report from files and data to one HTML file; cli/test_report.py has it on the demo model."""

import json

import numpy as np
import onnx
import pytest

import tests.trtint8.report.extra  # noqa: F401
import trtint8
from calibrators.errors import CalibrationDataError, ModelError, OutputError, TableError
from tests.trtint8.detectors import images, suppressing_detector
from trtint8.report.comparison import compare_runs
from trtint8.report.writing import write_comparison, write_report


def write(found, output, **options):
    return write_report([found.paths["table"].parent], output, **options)


def test_one_file_is_written(found, tmp_path):
    output = tmp_path / "report.html"
    assert write(found, output) == output
    assert output.read_text().lstrip().startswith("<!DOCTYPE html>")


def test_what_is_missing_is_said_before_anything_is_written(found, tmp_path):
    output = tmp_path / "report.html"
    with pytest.raises(ModelError, match="needs the float model too; give model="):
        write(found, output, data="heldout.npz")
    with pytest.raises(CalibrationDataError, match="class_names"):
        write(found, output, class_names=["cat"])
    with pytest.raises(OutputError, match="does not exist"):
        write(found, tmp_path / "no" / "report.html")
    assert not output.exists()


@pytest.mark.parametrize("kind", ["engine", "qdq", "table", "tuning"])
def test_what_is_read_is_not_overwritten(found, kind, tmp_path):
    path, link = found.paths[kind], tmp_path / "page.html"
    before = path.read_bytes()
    for read in (path, path.with_name("net.engine.json")):
        link.unlink(missing_ok=True)
        link.symlink_to(read)
        with pytest.raises(OutputError, match="it is read as well; give another name"):
            write(found, link)
    assert path.read_bytes() == before


def test_a_file_of_another_kind_is_not_replaced_by_a_page(found, tmp_path):
    data = tmp_path / "heldout.npz"
    data.write_bytes(b"samples")
    compared = compare_runs([found.paths["table"], found.paths["table"]])
    for call in (lambda: write(found, data), lambda: write_comparison(compared, data)):
        with pytest.raises(OutputError, match=r"heldout\.npz' does not end in \.html or \.htm, as"):
            call()
    assert data.read_bytes() == b"samples"


def test_half_a_character_in_a_name_is_replaced(found, tmp_path):
    path = found.paths["sensitivity"]
    whole = path.read_text()
    (name,) = [layer["node"] for layer in json.loads(whole)["layers"]][:1]
    try:
        path.write_text(whole.replace(json.dumps(name), json.dumps(f"{name}\ud800")))
        page = write(found, tmp_path / "report.html").read_text()
    finally:
        path.write_text(whole)
    assert f"{name}?" in page


@pytest.mark.filterwarnings("ignore:.*much of the tensor")
def test_the_worst_samples_of_a_detector_are_those_that_its_boxes_are_picked_from(tmp_path):
    """After non-maximum suppression, INT8 has another number of boxes."""
    model = suppressing_detector()
    table = trtint8.calibrate(model, images(8), batch_size=1)
    onnx.save(model, tmp_path / "detector.onnx")
    onnx.save(trtint8.quantize(model, table), tmp_path / "detector.qdq.onnx")
    table.save(tmp_path / "detector.table.json")
    sources = [tmp_path / "detector.qdq.onnx", tmp_path / "detector.table.json"]
    page = write_report(
        sources,
        tmp_path / "report.html",
        model=tmp_path / "detector.onnx",
        data=images(6, seed=1),
        batch_size=1,
    )
    assert page.read_text().count('<p class="muted">no.&nbsp;') == 6


def test_a_quantized_model_is_not_shown_as_fp32(found, tmp_path):
    qdq, output = found.paths["qdq"], tmp_path / "report.html"
    sentence = (
        "'net.qdq.onnx' holds Q/DQ pairs, and a report shows it as FP32; give the float model as model, "
        "and the quantized one among the files to report on"
    )
    for data in (None, np.zeros((1, 3, 16, 16), np.float32)):
        with pytest.raises(ModelError) as refused:
            write(found, output, model=qdq, data=data)
        assert str(refused.value) == sentence
    assert not output.exists()


def test_what_is_no_path_and_no_comparison(tmp_path):
    output = tmp_path / "page.html"
    with pytest.raises(TableError) as refused:
        write_report([1], output)
    assert str(refused.value) == "a folder or file to report on is given as int; give the path"
    with pytest.raises(TableError) as refused:
        write_comparison(["a", "b"], output)
    assert str(refused.value) == (
        "a page is made of what compare_runs() returns, and got list; compare the runs first"
    )
    assert not output.exists()
