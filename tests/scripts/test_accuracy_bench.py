"""What bench_accuracy is made of: the detector's decoder, the networks, and our own methods."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from accuracy_bench import yolo_fastest
from accuracy_bench.cases import open_cases, sample_count
from accuracy_bench.methods import OWN, Workbench

import trtint8


def nothing():
    """Outputs of the detector for one image without objects."""
    return {
        "p2": np.full((1, 22, 22, 95), 0.001, np.float32),
        "p3": np.full((1, 11, 11, 95), 0.001, np.float32),
    }


def put(cells, row, column, anchor, shape, score, label):
    cells[0, row, column, 4 * anchor : 4 * anchor + 4] = shape
    cells[0, row, column, 12 + anchor] = score
    cells[0, row, column, 15 + label] = 1.0


def test_a_box_is_read_from_its_cell_and_anchor():
    outputs = nothing()
    put(outputs["p3"], 4, 6, 1, (0.5, 0.75, 0.5, 0.25), 0.8, 17)
    ((boxes, scores, classes),) = yolo_fastest.decode(outputs)
    # Center ((1 - 0.5 + 6) 32, (1.5 - 0.5 + 4) 32), size (131.57, 214.55 / 4).
    x, y, width, height = 208.0, 160.0, 131.57, 214.55 / 4
    np.testing.assert_allclose(
        boxes, [[x - width / 2, y - height / 2, x + width / 2, y + height / 2]], rtol=1e-6
    )
    np.testing.assert_allclose(scores, [0.8], rtol=1e-6)
    assert classes.tolist() == [17]


def test_of_boxes_of_one_class_that_overlap_the_one_with_the_highest_score_is_kept():
    outputs = nothing()
    for column, anchor, score in ((6, 2, 0.8), (7, 2, 0.9), (7, 1, 0.7)):
        put(outputs["p2"], 4, column, anchor, (0.5,) * 4, score, 17)
    ((_, scores, classes),) = yolo_fastest.decode(outputs)
    # Anchor 1 covers a quarter of anchor 2.
    np.testing.assert_allclose(scores, [0.9, 0.7], rtol=1e-6)
    assert classes.tolist() == [17, 17]


def test_networks_without_files_are_left_out(tmp_path, capsys):
    (case,) = open_cases(tmp_path, ["digits", "vit"])
    assert (case.name, sample_count(case.calibration), sample_count(case.held_out)) == ("digits", 500, 597)
    missing = tmp_path / "cifar10" / "vit.onnx"
    assert capsys.readouterr().out == f"vit is left out, because there is no file '{missing}'.\n"


@pytest.fixture(scope="module")
def workbench():
    (case,) = open_cases(Path(), ["digits"])
    return Workbench(case, 64)


def test_a_fixed_method_has_the_ranges_of_a_calibration_with_it(workbench):
    table = trtint8.calibrate(
        workbench.case.model, workbench.case.calibration, method="mse", limit=64, tensors="placed", spend=0
    )
    model, _ = OWN["mse"](workbench)
    assert model == trtint8.quantize(workbench.case.model, table)


@pytest.mark.parametrize(
    ("method", "changed"), [("auto, biases", {"bias"}), ("auto, rounding", {"weight"}), ("auto, both", None)]
)
def test_remedies_change_weights_and_biases_only(workbench, method, changed):
    plain, _ = OWN["auto"](workbench)
    model, _ = OWN[method](workbench)
    assert [node.op_type for node in model.graph.node] == [node.op_type for node in plain.graph.node]
    before, after = (constants(one) for one in (plain, model))
    different = {name for name in after if name in before and not np.array_equal(before[name], after[name])}
    assert different
    if changed == {"bias"}:
        assert all(before[name].ndim == 1 for name in different)
    if changed == {"weight"}:
        assert all(before[name].ndim > 1 for name in different)


def constants(model):
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
