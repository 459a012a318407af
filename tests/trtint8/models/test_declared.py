"""Types and shapes that ONNX infers."""

import warnings

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.errors import CalibrationDataError, ModelError
from tests.trtint8.onnx_models import Graph
from trtint8.models.declared import (
    clear_unknown_sizes,
    correct_shapes,
    declare_inner_shapes,
    declare_output_shapes,
    declare_sequences,
    infer_types,
)
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto
from trtint8.models.session import open_model


@pytest.fixture
def message():
    g = Graph(quantized=False)
    return g.model({"x": ["N", 6]}, g.op("Relu", [g.op("MatMul", ["x", g.weights(6, 5)], "product")], "y"))


def test_a_copy_has_what_is_inferred(message):
    before = message.SerializeToString()
    (product,) = infer_types(message).graph.value_info
    assert product.name == "product_out" and product.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert [size.dim_value for size in product.type.tensor_type.shape.dim] == [0, 5]
    assert message.SerializeToString() == before


def test_a_model_of_which_onnx_infers_nothing(message):
    message.ClearField("opset_import")
    assert infer_types(message) is None


def declared(shapes, x=(1, 4, 8, 8)):
    """A Split into 3 and 5 channels, and what the model says of its shapes."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Split", ["c", "sizes"], ["a", "y"], axis=1),
        helper.make_node("Mine", ["a"], ["p"], domain="mine"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shapes.get("y"))],
        [
            numpy_helper.from_array(np.zeros((8, 4, 3, 3), np.float32), "w"),
            numpy_helper.from_array(np.array([3, 5]), "sizes"),
        ],
        value_info=[
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in shapes.items()
            if name != "y"
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def shapes_after(message):
    correct_shapes(message)
    values = (*message.graph.value_info, *message.graph.output)
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in values
    }


@pytest.mark.parametrize("stale", [[1, 4, 8, 8], [1, 8], [1, 8, 4, 4]])
def test_shapes_that_tensors_had_before_an_edit_are_corrected(stale):
    found = shapes_after(declared({"a": stale, "y": stale}))
    assert found == {"a": [1, 3, 8, 8], "y": [1, 5, 8, 8]}


def test_a_batch_of_one_is_corrected_where_the_input_was_opened():
    found = shapes_after(declared({"a": [1, 3, 8, 8], "y": [1, 5, 8, 8]}, x=("N", 4, 8, 8)))
    assert found == {"a": ["N", 3, 8, 8], "y": [1, 5, 8, 8]}, "an output may promise a number"


def test_what_onnx_does_not_know_stays():
    found = shapes_after(declared({"p": [7, 7], "c": ["batch", 8, "h", 8], "y": [1, 5, 8, 8]}))
    assert found == {"p": [7, 7], "c": ["batch", 8, "h", 8], "y": [1, 5, 8, 8]}


def test_calibration_does_not_depend_on_stale_shapes():
    x = np.random.default_rng(0).standard_normal((2, 4, 8, 8)).astype(np.float32)
    stale, right = declared({"c": [1, 9, 8, 8], "y": [1, 7, 8, 8]}), declared({"y": [1, 5, 8, 8]})
    for message in (stale, right):
        message.graph.node.pop()
    tables = [trtint8.calibrate(one, [{"x": x[:1]}, {"x": x[1:]}], progress=False) for one in (stale, right)]
    assert tables[0].amax == tables[1].amax


@pytest.fixture
def model():
    """A product and a sum of its shape, of which nothing is declared."""
    g = Graph(quantized=False)
    product = g.op("MatMul", ["x", g.weights(6, 5)], "product")
    g.op("Shape", [product], "shape")
    return load_model(g.model({"x": ["N", 6]}, g.op("Relu", [product], "y")))


def inner_shapes_declared(model):
    return {value.name: value for node in model.graph_model.graph for value in node.outputs}


def test_what_is_left_out_is_inferred(model):
    before = inner_shapes_declared(model)
    assert before["product_out"].shape is before["product_out"].dtype is None
    declare_inner_shapes(model.graph_model, model.light)
    after = inner_shapes_declared(model)
    assert list(after["product_out"].shape)[1] == 5 and not isinstance(after["product_out"].shape[0], int)
    assert after["product_out"].dtype == ir.DataType.FLOAT
    assert list(after["shape_out"].shape) == [2] and after["shape_out"].dtype == ir.DataType.INT64


def test_what_is_declared_stays(model):
    value = inner_shapes_declared(model)["product_out"]
    value.shape, value.type = ir.Shape(["samples", "features"]), ir.TensorType(ir.DataType.FLOAT16)
    declare_inner_shapes(model.graph_model, model.light)
    assert str(value.shape) == "[samples,features]" and value.dtype == ir.DataType.FLOAT16


def test_nothing_is_inferred_where_nothing_is_left_out(model, monkeypatch):
    declare_inner_shapes(model.graph_model, model.light)
    monkeypatch.setattr("onnx.shape_inference.infer_shapes", None)
    declare_inner_shapes(model.graph_model, model.light)


def test_a_graph_that_contradicts_itself_stays_as_it_is(model):
    product = next(node for node in model.light.message.graph.node if node.op_type == "MatMul")
    product.input[0] = product.input[1]
    declare_inner_shapes(model.graph_model, model.light)
    assert inner_shapes_declared(model)["product_out"].shape is None


def bounds(nodes, *, initializers=(), outputs=("y",), dtype=TensorProto.INT64):
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("ids", dtype, ["N", 6])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in dict(initializers).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return [spec.bound for spec in load_model(model).inputs]


TABLE = {"table": np.zeros((50, 4), np.float32)}


def test_tokens_are_rows_of_the_table():
    assert bounds([helper.make_node("Gather", ["table", "ids"], ["y"])], initializers=TABLE) == [50]


def test_tokens_may_be_converted_and_reshaped_first():
    nodes = [
        helper.make_node("Cast", ["ids"], ["c"], to=TensorProto.INT32),
        helper.make_node("Reshape", ["c", "shape"], ["r"]),
        helper.make_node("Gather", ["table", "r"], ["y"]),
    ]
    assert bounds(nodes, initializers=TABLE | {"shape": np.array([-1])}) == [50]


def test_tokens_may_be_cut_first():
    nodes = [
        helper.make_node("Slice", ["ids", "from", "to", "axis"], ["first"]),
        helper.make_node("Gather", ["table", "first"], ["y"]),
    ]
    cut = {"from": np.array([0]), "to": np.array([4]), "axis": np.array([1])}
    assert bounds(nodes, initializers=TABLE | cut) == [50]


def test_the_smallest_of_several_tables_counts():
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["y"]),
        helper.make_node("Gather", ["small", "ids"], ["z"]),
    ]
    tables = TABLE | {"small": np.zeros((7, 2), np.float32)}
    assert bounds(nodes, initializers=tables, outputs=("y", "z")) == [7]


@pytest.mark.parametrize(
    ("operator", "others", "attributes"),
    [
        ("Slice", {"starts": [1], "ends": [3]}, {}),
        ("Gather", {"columns": [0, 2]}, {"axis": 1}),
        ("Tile", {"repeats": [1, 2]}, {}),
        ("DepthToSpace", None, {}),
        ("ReverseSequence", {"lengths": [2] * 6}, {"time_axis": 0, "batch_axis": 1}),
        ("Concat", {"padding": [[0] * 6]}, {"axis": 0}),
    ],
)
def test_tokens_may_be_moved_first(operator, others, attributes):
    if others is None:
        nodes = [
            helper.make_node("Reshape", ["ids", "images"], ["i"]),
            helper.make_node(operator, ["i"], ["m"], blocksize=1),
        ]
        constants = {"images": np.array([-1, 1, 1, 6])}
    else:
        nodes = [helper.make_node(operator, ["ids", *others], ["m"], **attributes)]
        constants = {name: np.array(values) for name, values in others.items()}
    nodes.append(helper.make_node("Gather", ["table", "m"], ["y"]))
    assert bounds(nodes, initializers=TABLE | constants) == [50]


@pytest.mark.parametrize("axis", [1, -1])
def test_columns_are_no_rows(axis):
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"], axis=axis)]
    assert bounds(nodes, initializers=TABLE) == [None]


def test_a_mask_is_converted_to_booleans_or_subtracted_from_one():
    to_bool = [
        helper.make_node("Unsqueeze", ["ids", "axes"], ["u"]),
        helper.make_node("Cast", ["u"], ["b"], to=TensorProto.BOOL),
        helper.make_node("Where", ["b", "one", "one"], ["y"]),
    ]
    constants = {"axes": np.array([1]), "one": np.ones((), np.float32)}
    assert bounds(to_bool, initializers=constants) == [2]
    subtracted = [
        helper.make_node("Cast", ["ids"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "f"], ["y"]),
    ]
    assert bounds(subtracted, initializers={"one": np.ones((1, 1), np.float32)}) == [2]
    assert bounds(subtracted, initializers={"one": np.full((), 3, np.float32)}) == [None]


def test_nothing_is_said_of_floats_and_of_other_integers():
    assert bounds([helper.make_node("Cast", ["ids"], ["y"], to=TensorProto.FLOAT)]) == [None]
    relu = [helper.make_node("Relu", ["ids"], ["y"])]
    assert bounds(relu, dtype=TensorProto.FLOAT) == [None]


W = np.eye(8, dtype=np.float32)


def attention(*mask_nodes, mask="mask", shape=("N", 1, 4), opset=17, softmax=True):
    """Scores, a mask that is an input, and values."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q"]),
        helper.make_node("Transpose", ["x"], ["k"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        *mask_nodes,
        helper.make_node("Add", ["s", mask], ["m"]),
        helper.make_node("Softmax" if softmax else "Relu", ["m"], ["p"]),
        helper.make_node("MatMul", ["p", "x"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4, 8]),
            helper.make_tensor_value_info("mask", TensorProto.FLOAT, shape),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4, 8])],
        [
            numpy_helper.from_array(W, "w"),
            *(
                numpy_helper.from_array(np.array([number]), name)
                for name, number in (("zero", 0), ("one", 1), ("last", 2), ("four", 4))
            ),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def masked(model):
    return {spec.name: spec.hides_scores for spec in load_model(model).inputs}


def test_masks_of_scores_are_known_by_the_softmax_behind_them():
    assert masked(attention()) == {"x": False, "mask": True}
    unsqueezed = helper.make_node("Unsqueeze", ["mask", "one"], ["wide"])
    assert masked(attention(unsqueezed, mask="wide", shape=("N", 4)))["mask"]
    cut = helper.make_node("Slice", ["mask", "zero", "four", "last"], ["part"])
    assert masked(attention(cut, mask="part", shape=("N", 1, 6)))["mask"]
    assert not masked(attention(helper.make_node("Clip", ["mask"], ["c"]), mask="c"))["mask"]
    assert not masked(attention(softmax=False))["mask"]
    assert not masked(attention(helper.make_node("Exp", ["mask"], ["e"]), mask="e"))["mask"]
    assert not masked(attention(helper.make_node("MatMul", ["mask", "k"], ["also"])))["mask"]


def test_minus_infinity_is_taken_in_a_mask_of_scores_and_nowhere_else():
    x = np.random.default_rng(0).standard_normal((8, 4, 8)).astype(np.float32)
    mask = np.zeros((8, 1, 4), np.float32)
    mask[:, :, 3] = -np.inf
    model = attention()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = trtint8.calibrate(model, {"x": x, "mask": mask}, progress=False)
    least = np.where(mask < 0, np.finfo(np.float32).min, mask)
    assert "mask" not in table.amax, "no pair or range may stand where values are infinite"
    of_least = trtint8.calibrate(model, {"x": x, "mask": least}, progress=False)
    assert table.amax["q"] == of_least.amax["q"]
    quantized = trtint8.quantize(model, table, progress=False)
    data = {"x": x, "mask": mask}
    (result,) = trtint8.validate(quantized, data, reference=model, progress=False).outputs
    assert result.sqnr_db > 25
    for wrong in ({"x": x, "mask": -mask}, {"x": np.where(x > 2, -np.inf, x), "mask": mask}):
        with pytest.raises(CalibrationDataError, match="infinite"):
            trtint8.calibrate(model, wrong, progress=False)


def output_shapes_model(operator="Relu", domain=""):
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
        onnx.checker.check_model(output_shapes_model())
    (output,) = load_model(output_shapes_model()).graph_model.graph.outputs
    assert [dim if isinstance(dim, int) else dim.value for dim in output.shape] == ["n", 8, 8, 8]


def test_other_outputs_stay():
    declared = load_model(output_shapes_model())
    message = onnx.ModelProto()
    message.CopyFrom(output_shapes_model())
    message.graph.output[0].type.tensor_type.shape.dim.add().dim_param = "any"
    before = message.SerializeToString()
    declare_output_shapes(message)
    assert message.SerializeToString() == before
    assert declared.name == "model"


def test_outputs_of_which_no_shape_is_known_are_taken():
    loaded = load_model(output_shapes_model("Unknown", "somebody"))
    (output,) = loaded.graph_model.graph.outputs
    assert output.shape is None and loaded.output_shapes == (None,)


@pytest.mark.filterwarnings("ignore:every layer in INT8")
def test_a_network_of_whose_output_no_shape_is_known_goes_all_the_way(tmp_path):
    """ONNX infers nothing of GroupNormalization."""
    source, random = output_shapes_model("Relu"), np.random.default_rng(0)
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


@pytest.mark.parametrize(("listed", "kept"), [("yy", "y"), ("yxyx", "yx"), ("xxy", "xy")])
def test_outputs_are_listed_once(listed, kept):
    source = output_shapes_model()
    declared = {"y": source.graph.output[0], "x": source.graph.input[0]}
    outputs = [onnx.ValueInfoProto.FromString(declared[name].SerializeToString()) for name in listed]
    del source.graph.output[:]
    source.graph.output.extend(outputs)
    with pytest.warns(UserWarning, match=f"lists the output '{listed[0]}' more than once"):
        loaded = load_model(source)
    assert "".join(output.name for output in loaded.graph_model.graph.outputs) == kept


@pytest.mark.filterwarnings("ignore:.* lists the output", "ignore:every layer in INT8")
@pytest.mark.parametrize("float16", [False, True])
def test_an_output_that_is_listed_twice_keeps_its_name(float16):
    source = output_shapes_model()
    source.graph.output.append(source.graph.output[0])
    samples = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    table = trtint8.calibrate(source, samples, method="minmax", progress=False)
    options = {"float16": True, "float32_io": True, "target": "rtx", "keep_int8": ["*"]} if float16 else {}
    quantized = trtint8.quantize(source, table, **options)
    assert [output.name for output in quantized.graph.output] == ["y"]
    accuracy = trtint8.validate(quantized, samples, reference=source, metrics=["sqnr"], progress=False)
    assert [output.name for output in accuracy.outputs] == ["y"]


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_outputs_without_a_type(domain):
    bare = output_shapes_model("Relu" if not domain else "Gelu", domain)
    bare.graph.output[0].ClearField("type")
    (output,) = load_model(bare).graph_model.graph.outputs
    assert domain or (output.dtype.name, tuple(output.shape)[1:]) == ("FLOAT", (8, 8, 8))
    data = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    table = trtint8.calibrate(bare, data, method="minmax", progress=False)
    accuracy = trtint8.validate(
        trtint8.quantize(bare, table, progress=False), data, reference=bare, progress=False
    )
    assert accuracy.samples == 4


FLOAT = TensorProto.FLOAT
X = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)


def tensor(name, *shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def plain():
    return [helper.make_node("SequenceConstruct", ["a", "a"], ["s"])]


def branches():
    """An If whose branches make a sequence in steps, each of which has no declared type."""
    graphs = []
    for name in ("then", "else"):
        nodes = [
            helper.make_node("SequenceEmpty", [], [f"{name}_none"]),
            helper.make_node("SequenceInsert", [f"{name}_none", "a"], [f"{name}_one"]),
            helper.make_node("SequenceInsert", [f"{name}_one", "a"], [f"{name}_two"]),
        ]
        output = helper.make_tensor_sequence_value_info(f"{name}_two", FLOAT, None)
        graphs.append(helper.make_graph(nodes, name, [], [output]))
    return [helper.make_node("If", ["yes"], ["s"], then_branch=graphs[0], else_branch=graphs[1])]


def around(nodes):
    weights = [numpy_helper.from_array(X[::-1].copy(), "w"), numpy_helper.from_array(X.T.copy(), "v")]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        *nodes,
        helper.make_node("ConcatFromSequence", ["s"], ["b"], axis=0),
        helper.make_node("MatMul", ["b", "v"], ["y"]),
    ]
    weights.append(numpy_helper.from_array(np.bool_(True), "yes"))
    graph = helper.make_graph(nodes, "g", [tensor("x", 4, 4)], [tensor("y", 8, 4)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X})[0]


@pytest.mark.parametrize("nodes", [plain, branches])
def test_models_with_sequences_are_calibrated_and_quantized(nodes):
    model = around(nodes())
    np.testing.assert_allclose(run(to_proto(prepare(load_model(model)).graph_model)), run(model), rtol=1e-6)
    table = trtint8.calibrate(model, [{"x": X}], progress=False)
    assert set(table.amax) == {"x", "a", "b", "y"}
    # Not by integer kernels, which saturate on processors without VNNI.
    (quantized,) = open_model(load_model(trtint8.quantize(model, table))).run({"x": X})
    np.testing.assert_allclose(quantized, run(model), atol=0.2)


def test_types_are_declared_in_branches_too():
    model = around(branches())
    declare_sequences(model)
    (branch,) = (a.g for a in model.graph.node[1].attribute if a.name == "then_branch")
    graphs = [model.graph, branch]
    declared = [{value.name: value.type.WhichOneof("value") for value in one.value_info} for one in graphs]
    assert declared == [{"s": "sequence_type"}, dict.fromkeys(["then_none", "then_one"], "sequence_type")]


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        (helper.make_tensor_sequence_value_info("s", FLOAT, None), "a sequence"),
        (
            helper.make_value_info(
                "s", helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, None))
            ),
            "optional",
        ),
    ],
)
def test_outputs_that_are_no_tensors_are_refused(declared, kind):
    model = around(plain())
    model.graph.output.append(declared)
    with pytest.raises(ModelError, match=f"^output 's' of 'model' is {kind}, which TensorRT does not take"):
        trtint8.calibrate(model, [{"x": X}], progress=False)


def test_other_models_stay():
    model = around([helper.make_node("Concat", ["a", "a"], ["s"], axis=0)])
    del model.graph.node[2]
    model.graph.node[2].input[0] = "s"
    before = model.SerializeToString()
    declare_sequences(model)
    assert model.SerializeToString() == before


def unknown_sizes_model(shape, output=("N", 3)):
    """A product of vectors, with its input's shape as some converters declare it."""
    weights = np.eye(4, 3, dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])


def shape_of(value):
    return [
        dim.WhichOneof("value") and (dim.dim_param or dim.dim_value)
        for dim in value.type.tensor_type.shape.dim
    ]


def test_minus_one_and_a_question_mark_are_no_sizes():
    message = unknown_sizes_model([-1, "?", "?", 4], ["N", 0, -1])
    clear_unknown_sizes(message)
    assert shape_of(message.graph.input[0]) == [None, None, None, 4]
    assert shape_of(message.graph.output[0]) == ["N", 0, None]


def test_also_within_graphs_of_nodes():
    message = unknown_sizes_model(["N", 4])
    inner = unknown_sizes_model([-1, 4]).graph
    message.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner))
    clear_unknown_sizes(message)
    for attribute in message.graph.node[1].attribute:
        assert shape_of(attribute.g.input[0]) == [None, 4]


@pytest.mark.parametrize("size", [-1, "?", ""])
def test_a_model_with_them_is_calibrated_in_batches_of_any_size(size):
    data = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    source = unknown_sizes_model([size, 4], [size, 3])
    assert load_model(source).inputs[0].shape == (None, 4)
    table = trtint8.calibrate(source, data, batch_size=4, progress=False)
    assert table.amax["x"] == pytest.approx(np.abs(data).max(), rel=0.1)
    accuracy = trtint8.validate(trtint8.quantize(source, table), data, reference=source, progress=False)
    assert accuracy.samples == 10
