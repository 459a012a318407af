"""Outputs whose shapes depend on the values."""

import math

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import trtint8
from calibrators.data.inputs import InputSpec
from calibrators.errors import CalibrationDataError, ModelError
from tests.trtint8.onnx_models import normal, parsed
from tests.trtint8.validation.small_models import scaled
from trtint8.models.model import load_model
from trtint8.validation.accuracy import accuracy_rows
from trtint8.validation.output_shapes import DeclaredOutputs, differing_outputs, outputs_without_samples


def boxes_above(limit):
    """A "detector": the rows (k, 4) of its input (n, 4) whose largest value is above a limit, and a sum."""
    body = """largest = ReduceMax <axes = [1], keepdims = 0> (x) kept = Greater (largest, limit)
        boxes = Compress <axis = 0> (x, kept) sum = ReduceSum <keepdims = 0> (x)"""
    outputs = "float[k, 4] boxes, float sum"
    return parsed("float[n, 4] x", outputs, body, limit=np.array([limit], np.float32))


DATA = np.arange(12, dtype=np.float32).reshape(3, 4)


def validated(**options):
    models = {"reference": boxes_above(5.0), "also": {"same": boxes_above(5.0)}}
    return trtint8.validate(boxes_above(9.0), DATA, **models, **options)


def test_shapes_differ_only_where_they_are_not_fixed():
    assert DeclaredOutputs.of(load_model(boxes_above(1.0)).graph_model).shapes == {
        "boxes": (None, 4),
        "sum": (),
    }
    got, wanted = {"y": np.zeros((2, 4))}, {"y": np.zeros((3, 4))}
    assert differing_outputs(got, wanted, {"y": (None, 4)}) == {"y"}
    assert differing_outputs(got, wanted, {"y": None}) == {"y"}
    assert differing_outputs(got, {"y": np.ones((2, 4))}, {}) == frozenset()
    for declared in ({}, {"y": (3, None)}, {"y": (None, None, 4)}):
        with pytest.raises(ModelError, match=r"'y' .*\(2, 4\).*\(3, 4\)"):
            differing_outputs(got, wanted, declared)
    with pytest.raises(ModelError, match=r"INT8 are boxes, sum, .* y"):
        trtint8.validate(boxes_above(1.0), DATA, reference=scaled(1.0))


def test_such_outputs_have_no_fidelity_and_the_others_have():
    accuracy = validated()
    boxes, total = accuracy.outputs
    assert math.isnan(boxes.sqnr_db) and math.isnan(boxes.cosine) and math.isnan(boxes.max_error)
    assert total.sqnr_db == math.inf and accuracy.also["same"].outputs[0].sqnr_db == math.inf
    assert accuracy_rows(accuracy)[0] == ("SQNR of 'boxes'", "", "not comparable", "inf dB")


def test_boxes_of_a_fixed_batch_are_no_class_scores():
    """One box of four numbers for a batch of one sample looks like the scores of four classes."""
    model = boxes_above(5.0)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    accuracy = trtint8.validate(model, DATA[[1, 2]], reference=model)
    assert accuracy.agreement is None and accuracy.measures == ()
    assert "'boxes' (float32, 1x4) is no row of class scores per sample" in accuracy.chosen
    batch = InputSpec("x", np.dtype(np.float32), ("n", 4))
    fixed = InputSpec("x", np.dtype(np.float32), (1, 4))
    shapes = {"boxes": (None, 4), "scores": (1, 4), "sum": (), "unknown": None}
    assert outputs_without_samples(shapes, [fixed]) == {"boxes"}
    assert outputs_without_samples(shapes, [fixed, batch]) == frozenset()


def test_metrics_of_such_outputs():
    def found(outputs):
        return [(outputs["boxes"], np.ones(len(outputs["boxes"])), np.zeros(len(outputs["boxes"])))]

    # The boxes of all samples of a batch come in one list.
    (same,) = validated(metrics=[trtint8.DetectionAgreement(found)], batch_size=1).measures
    assert same.value == pytest.approx(2 / 3)  # one of the two boxes
    with pytest.raises(CalibrationDataError, match=r"'psnr'.*'boxes'"):
        validated(metrics=["psnr"])


def detector(*, refining):
    """A convolution whose positions with a large score are rows (k, 6): the output, or what refines them."""
    body = (
        "[conv] conv_out = Conv <pads = [1, 1, 1, 1]> (x, w) "
        "moved = Transpose <perm = [0, 2, 3, 1]> (conv_out) rows = Reshape (moved, shape) "
        "largest = ReduceMax <axes = [1], keepdims = 0> (rows) "
        "kept = Greater (largest, half) boxes = Compress <axis = 0> (rows, kept)"
    )
    constants = {"w": 0.1 * normal(6, 3, 3, 3), "shape": np.array([-1, 6]), "half": np.float32([0.5])}
    if refining:
        body, constants["v"] = f"{body} refined_out = MatMul (boxes, v)", 0.1 * normal(6, 6, seed=1)
    output = "refined_out" if refining else "boxes"
    return parsed("float[1, 3, 8, 8] x", f"float[k, 6] {output}", body, **constants)


IMAGES = np.random.default_rng(0).standard_normal((12, 3, 8, 8)).astype(np.float32)
TUNING = {"calibration": IMAGES[:6], "data": IMAGES[6:]}


@pytest.mark.filterwarnings("ignore:.*cannot be divided")
def test_such_outputs_are_tuned_by_detections_only():
    """Where layers compute with what was picked, there is nothing else to compare."""
    model = detector(refining=True)

    def first_number(feeds, outputs):
        return float(outputs["refined_out"].shape[1])

    assert trtint8.tune(model, metric=first_number, max_drop=0.0, **TUNING).fits
    with pytest.raises(CalibrationDataError, match="'sqnr'"):
        trtint8.tune(model, **TUNING)
    table = trtint8.calibrate(model, IMAGES, method="minmax")
    with pytest.raises(CalibrationDataError, match="'refined_out'"):
        trtint8.measure_sensitivity(model, table, IMAGES)


@pytest.mark.filterwarnings("ignore:.*cannot be divided")
def test_such_outputs_are_tuned_by_what_they_are_picked_from():
    model = detector(refining=False)
    tuned = trtint8.tune(model, **TUNING)
    assert tuned.fits and str(tuned.goal) == "sqnr: at least 20 dB"
    assert [output.name for output in tuned.accuracy.outputs] == ["conv_out"]
    assert tuned.accuracy.outputs[0].sqnr_db > 20
    table = trtint8.calibrate(model, IMAGES)
    (layer,) = trtint8.measure_sensitivity(model, table, IMAGES).layers
    assert layer.node == "conv" and 30 < layer.only.sqnr_db < 60


@pytest.mark.parametrize(
    ("ending", "shape", "axis"),
    [
        ("y = MatMul (x, last)", [5, 9], 2),
        ("m = MatMul (x, last) y = Add (m, bias)", [5, 9], 2),
        ("m = MatMul (x, last) y = Softmax <axis = -1> (m)", [5, 9], 2),
        ("m = MatMul (x, last) y = Softmax <axis = 1> (m)", [5, 9], 1),
        ("m = MatMul (x, last) n = Sigmoid (m) c = Clip (n) y = LogSoftmax <axis = 2> (c)", [5, 9], 2),
        ("m = MatMul (x, last) y = Transpose <perm = [0, 2, 1]> (m)", [9, 5], 1),
        ("y = Conv (x, kernel)", [9, 4], 1),
        ("c = Conv (x, kernel) n = Tanh (c) y = Transpose <perm = [0, 2, 1]> (n)", [4, 9], 2),
        ("f = Flatten <axis = 2> (x) m = MatMul (f, last) s = Softmax (m) y = Reshape (s, rows)", [5, 9], 2),
        ("m = MatMul (x, last) n = Mul (mask, m) y = Identity (n)", [5, 9], 2),
        ("m = MatMul (x, last) y = LayerNormalization (m, bias)", [5, 9], 2),
    ],
)
def test_the_graph_shows_which_axis_of_a_map_of_fixed_size_has_the_classes(tmp_path, ending, shape, axis):
    """Labels of the reference's own classes are right everywhere."""
    weights = {"last": normal(4, 9), "bias": normal(9), "kernel": normal(9, 5, 1)}
    weights |= {"mask": np.float32([[[1.0]]]), "rows": np.array([-1, 5, 9])}
    used = {name: array for name, array in weights.items() if f"{name})" in ending or f"({name}," in ending}
    outputs = f"float[n, {shape[0]}, {shape[1]}] y"
    model = onnx.shape_inference.infer_shapes(parsed("float[n, 5, 4] x", outputs, ending, **used))
    data = normal(6, 5, 4)
    (wanted,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": data})
    np.savez(tmp_path / "data.npz", x=data, labels=wanted.argmax(axis=axis))
    accuracy = trtint8.validate(model, tmp_path / "data.npz", reference=model, metrics=["pixels"])
    assert [measure.value for measure in accuracy.measures] == [1.0]
