"""The inference of shapes."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.trtint8.models.passes.applying import applied, run
from tests.trtint8.onnx_models import Graph
from trtint8.models.model import load_model, prepare
from trtint8.models.passes.infer_shapes import InferShapesPass
from trtint8.models.serialization import to_proto
from trtint8.quantization.float16.convert import to_float16


def found_boxes():
    """What detectors do with the boxes that they find: those above 0.5, reshaped as (boxes, 4).

    The sizes for the Reshape are those of another tensor, as PyTorch's exporter writes them.
    """
    node = helper.make_node
    nodes = [
        node("Greater", ["scores", "limit"], ["is_found"]),
        node("Compress", ["boxes", "is_found"], ["found"], axis=0),
        node("Flatten", ["found"], ["flat"], axis=1),
        node("Shape", ["flat"], ["sizes"]),
        node("Gather", ["sizes", "zero"], ["first"], axis=0),
        node("Gather", ["sizes", "one"], ["second"], axis=0),
        node("Unsqueeze", ["first", "axes"], ["first_alone"]),
        node("Unsqueeze", ["second", "axes"], ["second_alone"]),
        node("Concat", ["first_alone", "second_alone"], ["shape"], axis=0),
        node("Relu", ["found"], ["inside"]),
        node("Reshape", ["inside", "shape"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.float32(0.5), "limit"),
        numpy_helper.from_array(np.int64(0), "zero"),
        numpy_helper.from_array(np.int64(1), "one"),
        numpy_helper.from_array(np.array([0], np.int64), "axes"),
    ]
    info = helper.make_tensor_value_info
    inputs = [info("boxes", TensorProto.FLOAT, ["N", 2, 2]), info("scores", TensorProto.FLOAT, ["N"])]
    outputs = [info("y", TensorProto.FLOAT, ["found", None])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def prepared(model):
    return to_proto(prepare(load_model(model)).graph_model)


def in_float16(model):
    """As ``quantize --float16`` converts what is left around Q/DQ pairs."""
    graph_model = prepare(load_model(model)).graph_model
    return to_proto(to_float16(graph_model, float32_io=True, peaks=None, name="m")[0])


@pytest.mark.parametrize("scores", [[0.1, 0.2, 0.3], [0.9, 0.1, 0.8]], ids=["nothing found", "two found"])
@pytest.mark.parametrize("changed", [prepared, in_float16])
def test_a_detector_that_finds_nothing_runs(changed, scores):
    model = found_boxes()
    feeds = {
        "boxes": np.arange(12, dtype=np.float32).reshape(3, 2, 2),
        "scores": np.array(scores, np.float32),
    }
    (wanted,) = run(model, **feeds)
    assert wanted.shape == (sum(score > 0.5 for score in scores), 4)
    np.testing.assert_array_equal(run(changed(model), **feeds)[0], wanted)


def test_the_names_of_the_model_stay():
    model, modified = applied(InferShapesPass(), found_boxes())
    assert modified
    sizes = {
        value.name: [size.dim_param or size.dim_value or None for size in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)
    }
    assert sizes["boxes"] == ["N", 2, 2] and sizes["is_found"] == ["N"] and sizes["y"] == ["found", 4]
    assert sizes["found"] == sizes["inside"] == [None, 2, 2] and sizes["flat"] == [None, 4]
    assert sizes["shape"] == [2]


def test_other_networks_keep_the_names_of_equal_sizes():
    """With them ONNX Runtime fuses an Add with the LayerNormalization behind it."""
    g = Graph(quantized=False)
    rows = g.op("Reshape", ["x", g.constant(np.array([-1, 8], np.int64))], "rows")
    y = g.op("Relu", [rows], "relu")
    model, _ = applied(InferShapesPass(), g.model({"x": ["N", 4, 8]}, y))
    values = (*model.graph.value_info, *model.graph.output)
    names = {
        value.name: value.type.tensor_type.shape.dim[0].dim_param
        for value in values
        if value.name in (rows, y)
    }
    assert names[rows] and names[rows] == names[y]


@pytest.mark.parametrize(
    ("domain", "operator", "attributes"),
    [("", "GroupNormalization", {"num_groups": 2}), ("com.microsoft", "Gelu", {})],
)
def test_operators_of_which_onnx_infers_nothing_pass_type_and_shape_on(domain, operator, attributes):
    g = Graph(quantized=False)
    channels = [g.constant(np.ones(4, np.float32)) for _ in range(2)]
    values = ["x"]
    for number in range(2):
        inputs = values[-1:] + (channels if not domain else [])
        values.append(g.op(operator, inputs, f"made{number}", domain=domain, **attributes))
        values.append(g.op("Relu", values[-1:], f"relu{number}"))
    before = g.model({"x": ["N", 4, 6, 6]}, values[-1])
    before.opset_import[0].version = 21
    model, _ = applied(InferShapesPass(), before)
    found = {value.name: value.type.tensor_type for value in (*model.graph.value_info, *model.graph.output)}
    for name in values[1:]:
        assert found[name].elem_type == TensorProto.FLOAT
        assert [size.dim_param or size.dim_value for size in found[name].shape.dim] == ["N", 4, 6, 6]
    assert [(node.domain, node.op_type) for node in model.graph.node] == [
        (domain, operator),
        ("", "Relu"),
    ] * 2
