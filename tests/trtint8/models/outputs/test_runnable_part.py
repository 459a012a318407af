"""Models that end in plugins of TensorRT, which ONNX Runtime cannot run."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.errors import ModelError
from tests.trtint8.detectors import PICKED_FROM, images, plugin_detector, unordered_detector
from tests.trtint8.onnx_models import Graph
from trtint8.models.fingerprint import fingerprint
from trtint8.models.loading.plugins import plugin_nodes
from trtint8.models.model import load_model, prepare
from trtint8.models.outputs.runnable_part import picks_of_plugins, runnable_part, with_plugins

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
