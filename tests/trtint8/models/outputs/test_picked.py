"""Outputs that hold what a network picks."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

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
from tests.trtint8.onnx_models import normal, parsed
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


def classified(body, outputs, scores="float[N, 4] x", **constants):
    """The graph model of nodes behind the scores of a classifier, and of data computed likewise."""
    layers = "data = MatMul (x, v) scores = MatMul (x, w)"
    weights = {"w": normal(4, 6, seed=1), "v": normal(4, 6, seed=2)}
    made = parsed(scores, outputs, f"{layers} {body}", **weights, **constants)
    return graph_model(onnx.shape_inference.infer_shapes(made))


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


#: The elements of data whose score is large, as torchvision's detectors filter.
FILTERED = (
    "large = Greater (scores, half) f = NonZero (large) places = Transpose (f) kept = GatherND ({}, places)"
)
#: Nodes, outputs, and what is picked from what.
PICKED = {
    "the class": ("best = ArgMax <axis = 1> (scores)", "int64[] best", Picks(("best",), ("scores",))),
    # A weighted mean around the largest value, as pitch detectors compute it.
    "values at a place": (
        """place = ArgMax <axis = 1, keepdims = 1> (scores)
        value = GatherElements <axis = 1> (scores, place)""",
        "float[] value, int64[] place",
        Picks(("place",), ("scores",)),
    ),
    # One row per position, as DeepStream's exports have it.
    "joined to boxes and scores": (
        """best = ReduceMax <axes = [1]> (scores) place = ArgMax <axis = 1> (scores)
        kind = Cast <to = 1> (place) rows = Concat <axis = 1> (data, best, kind)""",
        "float[] rows",
        Picks(("rows",), ("data", "scores")),
    ),
    "floats computed from places": (
        "place = ArgMax <axis = 1> (scores) kind = Cast <to = 1> (place) pitch = Mul (kind, half)",
        "float[] pitch",
        NOTHING,
    ),
    "above a threshold": (FILTERED.format("data"), "float[] kept", Picks(("kept",), ("data", "scores"))),
    # PaddleDetection gives the number of boxes too.
    "how many": (
        f"{FILTERED.format('data')} shape = Shape (kept) number = Gather (shape, zero)",
        "float[] kept, int64[] number",
        Picks(("kept", "number"), ("data", "scores")),
    ),
    # Anchors are made for the sizes of feature maps.
    "what follows from shapes": (
        f"""shape = Shape (scores) length = Gather (shape, ones) a = Expand (three, length)
        anchors = Add (a, table) {FILTERED.format("anchors")}""",
        "float[] kept",
        Picks(("kept",), ("scores",)),
    ),
    # A decoder that picks its queries computes with them.
    "read by layers": (
        "top, places = TopK (scores, four) decoded = MatMul (top, u)",
        "float[] decoded",
        NOTHING,
    ),
    # The last token of a sentence, found in the input.
    "without layers": (
        "place = ArgMax <axis = 1, keepdims = 1> (x)",
        "float[] scores, int64[] place",
        NOTHING,
    ),
    "nothing": ("", "float[] scores", NOTHING),
}
CONSTANTS = {
    "half": np.float32(0.5),
    "zero": np.int64(0),
    "ones": np.int64([1]),
    "four": np.int64([4]),
    "three": np.float32([[3]]),
    "table": np.zeros((5, 6), np.float32),
    "u": normal(4, 2, seed=3),
}


@pytest.mark.parametrize("kind", PICKED)
def test_what_is_picked_from_what(kind):
    body, outputs, wanted = PICKED[kind]
    inputs = "float[5, 4] x" if "shapes" in kind else "float[N, 4] x"
    constants = {name: array for name, array in CONSTANTS.items() if name in body}
    assert find_picks(classified(body, outputs, inputs, **constants)) == wanted


def test_types_that_the_model_does_not_say_are_inferred():
    model = suppressing_detector()
    del model.graph.value_info[:]
    assert find_picks(graph_model(model)).sources == PICKED_FROM


@pytest.mark.parametrize(("domain", "wanted"), [("com.microsoft", ()), ("mine", ("best",))])
def test_operators_of_another_domain_pick_nothing_unless_they_are_plugins(domain, wanted):
    changed = classified(*PICKED["the class"][:2])
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
    body = "place = ArgMax <axis = 1> (scores) x_out = Relu (x)"
    model = classified(body, "float[] scores, int64[] place, float[N, 4] x_out")
    assert [value.name for value in before_picks(model).graph.outputs] == ["scores", "x_out"]
    picks = find_picks(model)
    assert picks.sources == ("scores",) and sources_inside(model, picks) == ()
    plain = classified("", "float[] scores")
    assert before_picks(plain) is plain and with_outputs(plain, ()) is plain


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


@pytest.mark.parametrize(
    ("before", "named"),
    [("first_out = MatMul (x, w)", ["'mid'", "'model'", "'Custom'", "'first_out'"]), ("", ["implicit"])],
    ids=["behind a layer", "behind an input"],
)
def test_layers_behind_a_plugin_are_refused(before, named):
    body = f"{before} [mid] m = mine.Custom ({'first_out' if before else 'x'}) y = MatMul (m, w)"
    model = parsed("float[N, 4] x", "float[N, 4] y", body, domains=["mine"], w=normal(4, 4))
    with pytest.raises(ModelError) as caught:
        runnable_part(load_model(model))
    assert all(word in caught.value.template for word in named)


@pytest.mark.parametrize(("call", "has"), [("calibrate", {"cut_at"}), ("measure_sensitivity", set())])
def test_only_what_a_call_takes_is_advised(call, has):
    body = "first_out = MatMul (x, w) [mid] m = mine.Custom (first_out) y = MatMul (m, w)"
    model = parsed("float[N, 4] x", "float[N, 4] y", body, domains=["mine"], w=normal(4, 4))
    table = () if call == "calibrate" else (trtint8.CalibrationTable({"x": 1.0}),)
    with pytest.raises(ModelError, match="'mid'") as caught:
        getattr(trtint8, call)(model, *table, normal(8, 4), progress=False)
    assert {name for name in ("cut_at", "route") if name in str(caught.value)} == has


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
    tuned = trtint8.tune(model, images(16, seed=1), images(32), **QUIET)
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
