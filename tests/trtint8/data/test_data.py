"""The demo's model and its images: what the rest of the demo relies on."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest

from calibrators.errors import UnsupportedError
from trtint8.data import DEMO_MODEL, DigitsSplit, load_digits_split


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.load_model(DEMO_MODEL)


@pytest.fixture(scope="module")
def split() -> DigitsSplit:
    pytest.importorskip("sklearn")
    return load_digits_split()


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(DEMO_MODEL), providers=["CPUExecutionProvider"])


def test_file_is_small_and_valid(model):
    assert DEMO_MODEL.stat().st_size < 300_000
    onnx.checker.check_model(model, full_check=True)


def test_float32_weights_dominate_the_file(model):
    assert {tensor.data_type for tensor in model.graph.initializer} == {onnx.TensorProto.FLOAT}
    weights = sum(4 * int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    assert weights > 0.95 * DEMO_MODEL.stat().st_size


def test_graph_has_the_operators_that_the_demo_shows(model):
    assert Counter(node.op_type for node in model.graph.node) == {
        "Conv": 8,
        "BatchNormalization": 8,
        "Relu": 7,
        "Add": 3,
        "MaxPool": 1,
        "GlobalAveragePool": 1,
        "Flatten": 1,
        "Gemm": 1,
    }


def test_one_shortcut_is_a_strided_projection(model):
    attributes = {
        node.name: {attribute.name: list(attribute.ints) for attribute in node.attribute}
        for node in model.graph.node
        if node.op_type == "Conv"
    }
    projections = [name for name, values in attributes.items() if values["kernel_shape"] == [1, 1]]
    assert projections == ["/block2/shortcut/conv/Conv"]
    assert attributes[projections[0]]["strides"] == [2, 2]


def test_names_are_unique_and_nothing_is_unused(model):
    names = [node.name for node in model.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)

    initializers = [tensor.name for tensor in model.graph.initializer]
    consumed = Counter(name for node in model.graph.node for name in node.input if name in initializers)
    assert consumed == Counter(initializers)  # each by exactly one node


def test_carries_no_trace_of_where_it_was_exported(model):
    described = [model, model.graph, *model.graph.node, *model.graph.initializer]
    assert all(not item.doc_string and not item.metadata_props for item in described)
    assert all(tensor.data_location == onnx.TensorProto.DEFAULT for tensor in model.graph.initializer)


def test_interface(model):
    def describe(value: onnx.ValueInfoProto) -> tuple[str, int, list[str | int]]:
        tensor = value.type.tensor_type
        return value.name, tensor.elem_type, [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]

    assert [describe(value) for value in model.graph.input] == [
        ("images", onnx.TensorProto.FLOAT, ["batch", 1, 8, 8])
    ]
    assert [describe(value) for value in model.graph.output] == [
        ("logits", onnx.TensorProto.FLOAT, ["batch", 10])
    ]
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_batch_is_dynamic(session, batch):
    (logits,) = session.run(None, {"images": np.zeros((batch, 1, 8, 8), np.float32)})
    assert logits.shape == (batch, 10)
    np.testing.assert_allclose(logits, np.broadcast_to(logits[:1], logits.shape), atol=1e-5)


def test_split_has_the_promised_shapes(split):
    assert split.train_images.shape == (1200, 1, 8, 8)
    assert split.train_labels.shape == (1200,)
    assert split.calibration_images.shape == (500, 1, 8, 8)
    assert split.heldout_images.shape == (597, 1, 8, 8)
    assert split.heldout_labels.shape == (597,)
    for name in ("train_images", "calibration_images", "heldout_images"):
        assert getattr(split, name).dtype == np.float32
    assert set(split.train_labels) == set(split.heldout_labels) == set(range(10))


def test_heldout_images_are_in_neither_training_nor_calibration(split):
    train, calibration, heldout = (
        {image.tobytes() for image in images}
        for images in (split.train_images, split.calibration_images, split.heldout_images)
    )
    assert (len(train), len(calibration), len(heldout)) == (1200, 500, 597)  # no image occurs twice
    assert calibration < train
    assert heldout.isdisjoint(train)


def test_split_never_changes(split):
    again = load_digits_split()
    for field in dataclasses.fields(DigitsSplit):
        np.testing.assert_array_equal(getattr(split, field.name), getattr(again, field.name))
    assert split.train_labels[:10].tolist() == [1, 8, 9, 7, 9, 8, 9, 9, 9, 6]
    assert split.heldout_labels[:10].tolist() == [1, 7, 3, 3, 8, 5, 2, 7, 0, 5]


def test_images_are_normalized(split):
    assert split.train_images.mean() == pytest.approx(0.0, abs=0.01)
    assert split.train_images.std() == pytest.approx(1.0, abs=0.01)
    assert split.train_images.min() == pytest.approx((0 - 0.305) / 0.376)
    assert split.train_images.max() == pytest.approx((1 - 0.305) / 0.376)


def test_heldout_top1(session, split):
    (logits,) = session.run(["logits"], {"images": split.heldout_images})
    top1 = 100 * np.mean(logits.argmax(axis=1) == split.heldout_labels)
    assert top1 >= 99.5 - 0.2


def test_missing_scikit_learn_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UnsupportedError, match=r"pip install .*scikit-learn"):
        load_digits_split()
