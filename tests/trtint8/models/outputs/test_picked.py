"""Outputs that hold what a network picks."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.errors import ModelError
from tests.trtint8.detectors import (
    PICKED_FROM,
    images,
    plugin_detector,
    ranking_detector,
    suppressing_detector,
    unordered_detector,
)
from tests.trtint8.onnx_models import Graph, Shaped
from trtint8.models.model import load_model, prepare
from trtint8.models.outputs.picked import (
    Picks,
    before_picks,
    computes_all,
    find_picks,
    picks_of_plugins,
    runnable_part,
    sources_inside,
    with_outputs,
    with_plugins,
)
from trtint8.models.plugins import plugin_nodes
from trtint8.models.serialization import fingerprint
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


QUIET = {"progress": False}


def outputs(graph_model):
    return [value.name for value in graph_model.graph.outputs]


@pytest.mark.parametrize("ready", [lambda model: model, prepare])
def test_plugins_at_the_end_are_left_out_and_put_back(ready):
    whole = ready(load_model(plugin_detector()))
    part = runnable_part(whole)
    assert outputs(part.graph_model) == list(PICKED_FROM)
    assert not plugin_nodes(part.graph_model) and part.fingerprint == whole.fingerprint
    assert picks_of_plugins(whole).sources == PICKED_FROM
    again = with_plugins(part.graph_model, whole.graph_model)
    assert outputs(again) == outputs(whole.graph_model) == ["num", "nms_boxes", "nms_scores", "nms_classes"]
    assert fingerprint(again) == fingerprint(whole.graph_model)
    assert with_plugins(part.graph_model, part.graph_model) is part.graph_model


def test_a_model_without_plugins_is_returned_as_it_is():
    model = load_model(unordered_detector())
    assert runnable_part(model) is model and not picks_of_plugins(model).outputs


def layer(g, source, name):
    return g.op("MatMul", [source, g.weights(4, 4)], name)


def custom(g, source, name):
    g.nodes.append(helper.make_node("Custom", [source], [f"{name}_out"], name, domain="mine"))
    return f"{name}_out"


def loaded(g, output):
    model = g.model({"x": ["N", 4]}, output)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(output, TensorProto.FLOAT, ["N", 4]))
    model.opset_import.append(helper.make_opsetid("mine", 1))
    return load_model(model)


def test_layers_behind_a_plugin_are_refused():
    g = Graph()
    model = loaded(g, layer(g, custom(g, layer(g, "x", "first"), "mid"), "last"))
    with pytest.raises(ModelError) as caught:
        runnable_part(model)
    assert str(caught.value) == (
        "node 'mid' of 'model' has the operator 'Custom', which ONNX Runtime does not know, and it is not at "
        "the end of the network: cut the model before it (cut_at 'first_out'), or take the implicit route, "
        "on which TensorRT calibrates (route)"
    )


def test_a_plugin_that_reads_inputs_alone_is_refused():
    g = Graph()
    model = loaded(g, layer(g, custom(g, "x", "start"), "last"))
    with pytest.raises(ModelError, match="at the end of the network: take the implicit route"):
        runnable_part(model)


def table_of(model):
    return trtint8.calibrate(model, images(16, seed=1), tensors="placed", **QUIET)


@pytest.mark.parametrize("domain", ["TRT", ""])
def test_everything_but_the_plugin_is_as_without_it(domain):
    whole, part = plugin_detector(domain=domain), unordered_detector()
    table, other = table_of(whole), table_of(part)
    assert table.amax == other.amax and table.choice == other.choice
    quantized = trtint8.quantize(whole, table)
    assert [node.op_type for node in quantized.graph.node][-1] == "EfficientNMS_TRT"
    options = {**QUIET, "data": images(6)}
    found = trtint8.validate(quantized, reference=whole, **options)
    wanted = trtint8.validate(trtint8.quantize(part, other), reference=part, **options)
    assert found.outputs == wanted.outputs and len(found.outputs) == 2
    assert found.judged == f"{wanted.judged}, up to its plugins of TensorRT"
    layers = trtint8.measure_sensitivity(whole, table, images(6), **QUIET).layers
    others = trtint8.measure_sensitivity(part, other, images(6), **QUIET).layers
    assert [layer.only for layer in layers] == [layer.only for layer in others]


def test_what_tuning_finds_has_the_plugin_and_a_table_of_its_own(tmp_path):
    model = plugin_detector()
    tuned = trtint8.tune(model, images(16, seed=1), images(8), **QUIET)
    assert tuned.changed_weights
    assert outputs(tuned.graph_model) == ["num", "nms_boxes", "nms_scores", "nms_classes"]
    candidate = tuned.candidate
    assert plugin_nodes(candidate.model.graph_model)
    assert candidate.table.provenance.model == candidate.model.fingerprint
    again = candidate.quantized()
    assert fingerprint(again) == fingerprint(tuned.graph_model)


@pytest.mark.filterwarnings("ignore:.*much of the tensor")
def test_equalization_keeps_the_plugin():
    model = plugin_detector()
    weights = {value.name: value for value in model.graph.initializer}
    first, *readers = (weights[node.input[1]] for node in model.graph.node if node.op_type == "Conv")
    for tensor, factor, channel in (
        (first, 64, 0),
        *((reader, 1 / 64, (slice(None), 0)) for reader in readers),
    ):
        values = numpy_helper.to_array(tensor).copy()
        values[channel] *= np.float32(factor)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    quantized = trtint8.quantize(model, table_of(model), equalize=images(8), **QUIET)
    assert quantized.graph.node[-1].op_type == "EfficientNMS_TRT"
    (found,) = [value for value in quantized.graph.initializer if value.name == first.name]
    of_channels = np.abs(numpy_helper.to_array(found)).max(axis=(1, 2, 3))
    assert of_channels.max() < 8 * np.median(of_channels)
