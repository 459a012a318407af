"""Outputs that hold what a network picks."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.trtint8.detectors import PICKED_FROM, images, ranking_detector, suppressing_detector
from tests.trtint8.onnx_models import Shaped
from trtint8.models.fingerprint import fingerprint
from trtint8.models.model import load_model, prepare
from trtint8.models.outputs.picked import (
    Picks,
    before_picks,
    computes_all,
    find_picks,
    sources_inside,
    with_outputs,
)
from trtint8.models.session import open_graph_model

NOTHING = Picks()


def graph_model(model):
    return load_model(model).graph_model


def two_outputs(g, inputs, first, second):
    """A model with an output that is a float, and one of indices."""
    model = g.model(inputs, first)
    model.graph.output.append(helper.make_tensor_value_info(second, TensorProto.INT64, None))
    return onnx.shape_inference.infer_shapes(model)


def classifier(g, source="x"):
    return g.op("MatMul", [source, g.weights(4, 6)], "scores")


def run(model, feed):
    session = open_graph_model(model)
    return dict(zip(session.output_names, session.run(feed), strict=True))


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (ranking_detector, Picks(("rows_out",), PICKED_FROM)),
        (suppressing_detector, Picks(("kept_out", "own_out", "classes_out"), PICKED_FROM)),
    ],
)
def test_detections_are_picked_from_boxes_and_scores(build, wanted):
    assert find_picks(graph_model(build())) == wanted
    assert find_picks(prepare(load_model(build())).graph_model) == wanted


def test_types_that_the_model_does_not_say_are_inferred():
    model = suppressing_detector()
    del model.graph.value_info[:]
    assert find_picks(graph_model(model)).sources == PICKED_FROM


def test_the_classes_of_a_classifier_are_picked_from_its_scores():
    g = Shaped()
    model = g.model({"x": ["N", 4]}, g.op("ArgMax", [classifier(g)], "best", axis=1))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    assert find_picks(graph_model(model)) == Picks(("best_out",), ("scores_out",))


def test_values_at_places_that_are_picked_can_be_compared():
    """A weighted mean around the largest value, as pitch detectors compute it."""
    g = Shaped()
    scores = classifier(g)
    place = g.op("ArgMax", [scores], "place", axis=1, keepdims=1)
    model = two_outputs(g, {"x": ["N", 4]}, g.op("GatherElements", [scores, place], "value", axis=1), place)
    assert find_picks(graph_model(model)) == Picks(("place_out",), ("scores_out",))


def test_classes_that_are_joined_to_boxes_and_scores():
    """One row per position, as DeepStream's exports have it."""
    g = Shaped()
    boxes, scores = g.op("MatMul", ["x", g.weights(4, 4)], "boxes"), classifier(g)
    best = g.op("ReduceMax", [scores], "best", axes=[1])
    kind = g.op("Cast", [g.op("ArgMax", [scores], "place", axis=1)], "kind", to=TensorProto.FLOAT)
    model = g.model({"x": ["N", 4]}, g.op("Concat", [boxes, best, kind], "rows", axis=1))
    assert find_picks(graph_model(model)) == Picks(("rows_out",), ("boxes_out", "scores_out"))


def test_what_is_computed_from_places_in_floats_can_be_compared():
    g = Shaped()
    kind = g.op("Cast", [g.op("ArgMax", [classifier(g)], "place", axis=1)], "kind", to=TensorProto.FLOAT)
    model = g.model({"x": ["N", 4]}, g.op("Mul", [kind, g.constant(np.float32(0.5))], "pitch"))
    assert find_picks(graph_model(model)) == NOTHING


def filtered(g, scores, data):
    """The elements of data whose score is large, as torchvision's detectors filter."""
    large = g.op("Greater", [scores, g.constant(np.float32(0.5))], "large")
    places = g.op("Transpose", [g.op("NonZero", [large], "found")], "places")
    return g.op("GatherND", [data, places], "kept")


def test_elements_above_a_threshold_are_picked_by_what_is_compared():
    g = Shaped()
    data = g.op("MatMul", ["x", g.weights(4, 6)], "data")
    model = g.model({"x": ["N", 4]}, filtered(g, classifier(g), data))
    assert find_picks(graph_model(model)) == Picks(("kept_out",), ("data_out", "scores_out"))


def test_how_many_elements_are_picked_is_a_pick():
    """PaddleDetection gives the number of boxes too."""
    g = Shaped()
    data = g.op("MatMul", ["x", g.weights(4, 6)], "data")
    kept = filtered(g, classifier(g), data)
    number = g.op("Gather", [g.op("Shape", [kept], "shape"), g.constant(np.int64(0))], "number")
    model = two_outputs(g, {"x": ["N", 4]}, kept, number)
    assert find_picks(graph_model(model)) == Picks(("kept_out", "number_out"), ("data_out", "scores_out"))


def test_what_follows_from_shapes_is_no_activation():
    """Anchors are made for the sizes of feature maps."""
    g = Shaped()
    scores = classifier(g)
    length = g.op("Gather", [g.op("Shape", [scores], "shape"), g.constant(np.int64([1]))], "length")
    anchors = g.op("Expand", [g.constant(np.float32([[3]])), length], "anchors")
    anchors = g.op("Add", [anchors, g.constant(np.zeros((5, 6), np.float32))], "all_anchors")
    model = g.model({"x": [5, 4]}, filtered(g, scores, anchors))
    assert find_picks(graph_model(model)) == Picks(("kept_out",), ("scores_out",))


def test_what_layers_read_is_no_output():
    """A decoder that picks its queries computes with them."""
    g = Shaped()
    values = classifier(g)
    g.nodes.append(helper.make_node("TopK", [values, g.constant(np.int64([4]))], ["top", "places"]))
    model = g.model({"x": ["N", 4]}, g.op("MatMul", ["top", g.weights(4, 2)], "decoded"))
    assert find_picks(graph_model(model)) == NOTHING


def test_what_is_picked_without_layers_does_not_count():
    """The last token of a sentence, found in the input."""
    g = Shaped()
    place = g.op("ArgMax", ["x"], "place", axis=1, keepdims=1)
    model = two_outputs(g, {"x": ["N", 4]}, classifier(g), place)
    assert find_picks(graph_model(model)) == NOTHING


def test_a_network_that_picks_nothing():
    g = Shaped()
    assert find_picks(graph_model(g.model({"x": ["N", 4]}, classifier(g)))) == NOTHING


@pytest.mark.parametrize(("domain", "wanted"), [("com.microsoft", ()), ("mine", ("best_out",))])
def test_operators_of_another_domain_pick_nothing_unless_they_are_plugins(domain, wanted):
    g = Shaped()
    model = g.model({"x": ["N", 4]}, g.op("ArgMax", [classifier(g)], "best", axis=1))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    changed = graph_model(model)
    changed.graph[-1].domain = domain
    assert find_picks(changed).outputs == wanted


@pytest.mark.parametrize("build", [ranking_detector, suppressing_detector])
def test_the_model_before_the_picks_computes_what_they_are_picked_from(build):
    model = graph_model(build())
    picks, before = find_picks(model), fingerprint(model)
    found = before_picks(model)
    assert fingerprint(model) == before, "it is not changed"
    assert [value.name for value in found.graph.outputs] == list(picks.sources)
    assert [value.name for value in found.graph.inputs] == ["images"]
    assert not {"TopK", "NonMaxSuppression"} & {node.op_type for node in found.graph}
    assert found.graph.num_nodes() < model.graph.num_nodes()
    feed = {"images": images(1)}
    everything = run(with_outputs(model, picks.sources), feed)
    assert list(everything) == [value.name for value in model.graph.outputs] + list(picks.sources)
    for name, array in run(found, feed).items():
        np.testing.assert_array_equal(array, everything[name])


def test_other_outputs_stay_where_they_are_and_none_is_there_twice():
    g = Shaped()
    scores = classifier(g)
    place = g.op("ArgMax", [scores], "place", axis=1)
    model = two_outputs(g, {"x": ["N", 4]}, scores, place)
    model.graph.output.extend([helper.make_tensor_value_info("x_out", TensorProto.FLOAT, ["N", 4])])
    model.graph.node.append(helper.make_node("Relu", ["x"], ["x_out"]))
    found = before_picks(graph_model(model))
    assert [value.name for value in found.graph.outputs] == ["scores_out", "x_out"]
    picks = find_picks(graph_model(model))
    assert picks.sources == ("scores_out",) and sources_inside(graph_model(model), picks) == ()


def test_a_model_without_picks_is_returned_as_it_is():
    g = Shaped()
    model = graph_model(g.model({"x": ["N", 4]}, classifier(g)))
    assert before_picks(model) is model and with_outputs(model, ()) is model


def test_a_model_that_computes_some_tensors():
    model = graph_model(suppressing_detector())
    assert computes_all(model, PICKED_FROM) and computes_all(model, ())
    assert not computes_all(model, (*PICKED_FROM, "images"))
