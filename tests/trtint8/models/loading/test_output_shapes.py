"""Outputs whose shape an exporter left out."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from trtint8.models.loading.output_shapes import declare_output_shapes
from trtint8.models.model import load_model


def model(operator="Relu", domain=""):
    weights = numpy_helper.from_array(np.zeros((8, 3, 3, 3), np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node(operator, ["c"], ["y"], domain=domain),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])]
    bare = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", inputs, [bare], [weights])
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_the_inferred_shape_is_declared():
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model())
    (output,) = load_model(model()).graph_model.graph.outputs
    assert [dim if isinstance(dim, int) else dim.value for dim in output.shape] == ["n", 8, 8, 8]


def test_other_outputs_stay():
    declared = load_model(model())
    message = onnx.ModelProto()
    message.CopyFrom(model())
    message.graph.output[0].type.tensor_type.shape.dim.add().dim_param = "any"
    before = message.SerializeToString()
    declare_output_shapes(message)
    assert message.SerializeToString() == before
    assert declared.name == "model"


def test_outputs_of_which_no_shape_is_known_are_taken():
    loaded = load_model(model("Unknown", "somebody"))
    (output,) = loaded.graph_model.graph.outputs
    assert output.shape is None and loaded.output_shapes == (None,)


@pytest.mark.filterwarnings("ignore:every layer in INT8")
def test_a_network_of_whose_output_no_shape_is_known_goes_all_the_way(tmp_path):
    """ONNX infers nothing of GroupNormalization."""
    source, random = model("Relu"), np.random.default_rng(0)
    source.opset_import[0].version, source.ir_version = 21, 10
    graph = source.graph
    graph.initializer[0].CopyFrom(
        numpy_helper.from_array(random.standard_normal((8, 3, 3, 3)).astype(np.float32), "w")
    )
    graph.node[1].CopyFrom(
        helper.make_node("GroupNormalization", ["c", "scale", "bias"], ["y"], num_groups=2)
    )
    graph.initializer.extend(
        numpy_helper.from_array(np.full(8, value, np.float32), name)
        for name, value in (("scale", 1), ("bias", 0))
    )
    data = random.standard_normal((16, 3, 8, 8)).astype(np.float32)
    table = trtint8.calibrate(source, data, progress=False)
    quantized = trtint8.quantize(source, table)
    accuracy = trtint8.validate(quantized, data, reference=source, progress=False)
    assert accuracy.outputs[0].sqnr_db > 30


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_outputs_without_a_type(domain):
    bare = model("Relu" if not domain else "Gelu", domain)
    bare.graph.output[0].ClearField("type")
    (output,) = load_model(bare).graph_model.graph.outputs
    assert domain or (output.dtype.name, tuple(output.shape)[1:]) == ("FLOAT", (8, 8, 8))
    data = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    table = trtint8.calibrate(bare, data, method="minmax", progress=False)
    accuracy = trtint8.validate(
        trtint8.quantize(bare, table, progress=False), data, reference=bare, progress=False
    )
    assert accuracy.samples == 4


def test_outputs_that_are_listed_twice():
    twice = model()
    twice.graph.output.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, None))
    twice.graph.output.append(twice.graph.output[0])
    assert [output.name for output in load_model(twice).graph_model.graph.outputs] == ["y", "c"]
    data = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    table = trtint8.calibrate(twice, data, method="minmax", progress=False)
    quantized = trtint8.quantize(twice, table, progress=False)
    accuracy = trtint8.validate(quantized, data, reference=twice, progress=False)
    assert [output.name for output in accuracy.outputs] == ["y", "c"]
    assert [output.name for output in quantized.graph.output] == ["y", "c"]
