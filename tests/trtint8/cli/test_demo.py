"""The demo: its files, and the figures that it prints."""

import pytest

FILES = ["digits.engine", "digits.engine.json", "digits.qdq.onnx", "digits.table.json"]


@pytest.mark.slow
def test_figures_and_files(rtx, tmp_path, as_json):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    folder = tmp_path / "new" / "demo"
    found = as_json("demo --output", folder)
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert sorted(found["files"]) == [str(folder / name) for name in FILES]
    assert found["layers_in_int8"] == found["weighted_layers"] == 9
    assert found["accuracy"]["samples"] == 597
    assert found["accuracy"]["reference_top1"]["count"] == 594
    assert abs(found["accuracy"]["top1"]["count"] - 594) <= 3
    assert found["weights_bytes"]["int8"] < 0.3 * found["weights_bytes"]["fp32"]
    assert found["seconds"] > 0


def test_a_folder_that_cannot_be_made(tmp_path, monkeypatch, refused):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for name in ("file/demo", ""):  # which is not the current folder
        refused("demo --output", name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
