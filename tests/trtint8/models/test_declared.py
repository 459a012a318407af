"""Types and shapes that ONNX infers."""

import warnings

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

import trtint8
from calibrators.errors import CalibrationDataError, ModelError
from tests.trtint8.onnx_models import normal, parsed, sqnr_in_int8
from trtint8.models.declared import (
    clear_unknown_sizes,
    declare_inner_shapes,
    declare_shapes,
    infer_types,
)
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto
from trtint8.models.session import open_model

ROWS = "float[N, 6] x", "float[] y", "[product] product_out = MatMul (x, w) y = Relu (product_out)"


def test_a_copy_has_what_is_inferred_where_something_is():
    message = parsed(*ROWS, w=normal(6, 5))
    before = message.SerializeToString()
    (product,) = infer_types(message).graph.value_info
    assert product.name == "product_out" and product.type.tensor_type.elem_type == TensorProto.FLOAT
    assert [size.dim_value for size in product.type.tensor_type.shape.dim] == [0, 5]
    assert message.SerializeToString() == before
    message.ClearField("opset_import")
    assert infer_types(message) is None


def declared(shapes, x="1, 4, 8, 8"):
    """A Split into 3 and 5 channels, and what the model says of its shapes."""
    message = parsed(
        f"float[{x}] x",
        "float[] y",
        "c = Conv <pads = [1, 1, 1, 1]> (x, w) a, y = Split <axis = 1> (c, sizes) p = mine.Mine (a)",
        domains=["mine"],
        w=np.zeros((8, 4, 3, 3), np.float32),
        sizes=np.array([3, 5]),
    )
    for name, shape in shapes.items():
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        (message.graph.output[0] if name == "y" else message.graph.value_info.add()).CopyFrom(value)
    return message


def sizes_of(value):
    """The sizes of a tensor: numbers, names, and None where nothing is said."""
    dims = value.type.tensor_type.shape.dim
    return [dim.WhichOneof("value") and (dim.dim_param or dim.dim_value) for dim in dims]


@pytest.mark.parametrize(
    ("message", "corrected"),
    [
        *(
            (declared({"a": stale, "y": stale}), {"a": [1, 3, 8, 8], "y": [1, 5, 8, 8]})
            for stale in ([1, 4, 8, 8], [1, 8], [1, 8, 4, 4])
        ),
        # The batch was opened; an output may promise a number.
        (
            declared({"a": [1, 3, 8, 8], "y": [1, 5, 8, 8]}, x="N, 4, 8, 8"),
            {"a": ["N", 3, 8, 8], "y": [1, 5, 8, 8]},
        ),
        # What ONNX does not know.
        (
            declared({"p": [7, 7], "c": ["batch", 8, "h", 8], "y": [1, 5, 8, 8]}),
            {"p": [7, 7], "c": ["batch", 8, "h", 8], "y": [1, 5, 8, 8]},
        ),
    ],
)
def test_shapes_that_are_known_to_be_others_are_corrected(message, corrected):
    declare_shapes(message)
    values = (*message.graph.value_info, *message.graph.output)
    assert {value.name: sizes_of(value) for value in values} == corrected


def test_calibration_does_not_depend_on_stale_shapes():
    x, ranges = normal(2, 4, 8, 8), []
    for message in (declared({"c": [1, 9, 8, 8], "y": [1, 7, 8, 8]}), declared({"y": [1, 5, 8, 8]})):
        message.graph.node.pop()
        table = trtint8.calibrate(message, [{"x": x[:1]}, {"x": x[1:]}], progress=False)
        ranges.append(table.amax)
    assert ranges[0] == ranges[1]


@pytest.fixture
def model():
    """A product and its shape, of which nothing is declared."""
    return load_model(parsed(*ROWS[:2], f"{ROWS[2]} shape_out = Shape (product_out)", w=normal(6, 5)))


def inner_shapes_declared(model):
    return {value.name: value for node in model.graph_model.graph for value in node.outputs}


def test_what_is_left_out_is_inferred(model, monkeypatch):
    before = inner_shapes_declared(model)
    assert before["product_out"].shape is before["product_out"].dtype is None
    declare_inner_shapes(model.graph_model, model.light)
    after = inner_shapes_declared(model)
    assert list(after["product_out"].shape)[1] == 5 and not isinstance(after["product_out"].shape[0], int)
    assert after["product_out"].dtype == ir.DataType.FLOAT
    assert list(after["shape_out"].shape) == [2] and after["shape_out"].dtype == ir.DataType.INT64
    # Nothing is inferred where nothing is left out.
    monkeypatch.setattr("onnx.shape_inference.infer_shapes", None)
    declare_inner_shapes(model.graph_model, model.light)


def test_what_is_declared_stays(model):
    value = inner_shapes_declared(model)["product_out"]
    value.shape, value.type = ir.Shape(["samples", "features"]), ir.TensorType(ir.DataType.FLOAT16)
    declare_inner_shapes(model.graph_model, model.light)
    assert str(value.shape) == "[samples,features]" and value.dtype == ir.DataType.FLOAT16


def test_a_graph_that_contradicts_itself_stays_as_it_is(model):
    product = next(node for node in model.light.message.graph.node if node.op_type == "MatMul")
    product.input[0] = product.input[1]
    declare_inner_shapes(model.graph_model, model.light)
    assert inner_shapes_declared(model)["product_out"].shape is None


def bounds(body, kind="int64", **constants):
    """The largest number of different values that the input may have, as far as the nodes tell it."""
    model = parsed(f"{kind}[N, 6] ids", "float[] y", body, table=np.zeros((50, 4), np.float32), **constants)
    return [spec.bound for spec in load_model(model).inputs]


@pytest.mark.parametrize(
    ("moved", "constants"),
    [
        ("m = Identity (ids)", {}),
        ("c = Cast <to = 6> (ids) m = Reshape (c, shape)", {"shape": [-1]}),
        ("m = Slice (ids, start, end, axis)", {"start": [0], "end": [4], "axis": [1]}),
        ("m = Slice (ids, start, end)", {"start": [1], "end": [3]}),
        ("m = Gather <axis = 1> (ids, columns)", {"columns": [0, 2]}),
        ("m = Tile (ids, repeats)", {"repeats": [1, 2]}),
        ("i = Reshape (ids, images) m = DepthToSpace <blocksize = 1> (i)", {"images": [-1, 1, 1, 6]}),
        ("m = ReverseSequence <time_axis = 0, batch_axis = 1> (ids, lengths)", {"lengths": [2] * 6}),
        ("m = Concat <axis = 0> (ids, padding)", {"padding": [[0] * 6]}),
    ],
)
def test_tokens_are_rows_of_a_table_also_where_they_are_moved_first(moved, constants):
    constants = {name: np.array(values) for name, values in constants.items()}
    assert bounds(f"{moved} y = Gather (table, m)", **constants) == [50]


ONE = np.ones((1, 1), np.float32)


@pytest.mark.parametrize(
    ("body", "constants", "found"),
    [
        ("y = Gather (table, ids) z = Gather (small, ids)", {"small": np.zeros((7, 2), np.float32)}, 7),
        ("y = Gather <axis = 1> (table, ids)", {}, None),
        ("y = Gather <axis = -1> (table, ids)", {}, None),
        # A mask is converted to booleans, or subtracted from one.
        (
            "u = Unsqueeze (ids, axes) b = Cast <to = 9> (u) y = Where (b, one, one)",
            {"axes": np.array([1]), "one": np.ones((), np.float32)},
            2,
        ),
        ("f = Cast <to = 1> (ids) y = Sub (one, f)", {"one": ONE}, 2),
        ("f = Cast <to = 1> (ids) y = Sub (one, f)", {"one": np.full((), 3, np.float32)}, None),
        ("y = Cast <to = 1> (ids)", {}, None),
    ],
)
def test_what_nodes_tell_of_integers(body, constants, found):
    assert bounds(body, **constants) == [found]


def test_nothing_is_said_of_floats():
    assert bounds("y = Relu (ids)", "float") == [None]


def attention(before="", mask="mask", shape="N, 1, 4", softmax="Softmax"):
    """Scores, a mask that is an input, and values."""
    return parsed(
        f"float[N, 4, 8] x, float[{shape}] mask",
        "float[N, 4, 8] y",
        f"""q = MatMul (x, w) k = Transpose <perm = [0, 2, 1]> (x) s = MatMul (q, k) {before}
        m = Add (s, {mask}) p = {softmax} (m) y = MatMul (p, x)""",
        w=np.eye(8, dtype=np.float32),
        zero=np.array([0]),
        one=np.array([1]),
        last=np.array([2]),
        four=np.array([4]),
    )


@pytest.mark.parametrize(
    ("model", "hides"),
    [
        (attention(), True),
        (attention("wide = Unsqueeze (mask, one)", mask="wide", shape="N, 4"), True),
        (attention("part = Slice (mask, zero, four, last)", mask="part", shape="N, 1, 6"), True),
        (attention("c = Clip (mask)", mask="c"), False),
        (attention(softmax="Relu"), False),
        (attention("e = Exp (mask)", mask="e"), False),
        (attention("also = MatMul (mask, k)"), False),
    ],
    ids=["added", "unsqueezed", "cut", "clipped", "no softmax", "other values", "another reader"],
)
def test_masks_of_scores_are_known_by_the_softmax_behind_them(model, hides):
    found = {spec.name: spec.hides_scores for spec in load_model(model).inputs}
    assert found == {"x": False, "mask": hides}


def test_minus_infinity_is_taken_in_a_mask_of_scores_and_nowhere_else():
    x, mask, model = normal(8, 4, 8), np.zeros((8, 1, 4), np.float32), attention()
    mask[:, :, 3] = -np.inf
    data = {"x": x, "mask": mask}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = trtint8.calibrate(model, data, progress=False)
    assert "mask" not in table.amax, "no pair or range may stand where values are infinite"
    least = np.where(mask < 0, np.finfo(np.float32).min, mask)
    of_least = trtint8.calibrate(model, {"x": x, "mask": least}, progress=False)
    assert table.amax["q"] == of_least.amax["q"]
    assert sqnr_in_int8(model, data) > 25
    for wrong in ({"x": x, "mask": -mask}, {"x": np.where(x > 2, -np.inf, x), "mask": mask}):
        with pytest.raises(CalibrationDataError, match="infinite"):
            trtint8.calibrate(model, wrong, progress=False)


def output_shapes_model(last="Relu (c)", opset=17, domains=()):
    body = f"c = Conv <pads = [1, 1, 1, 1]> (x, w) y = {last}"
    constants = {"w": normal(8, 3, 3, 3), "scale": np.ones(8, np.float32), "bias": np.zeros(8, np.float32)}
    ends = "float[n, 3, 8, 8] x", "float[] y"
    return parsed(*ends, body, opset=opset, ir_version=10, domains=domains, **constants)


def test_the_inferred_shape_is_declared_and_other_outputs_stay():
    message = output_shapes_model()
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(message)
    (output,) = load_model(message).graph_model.graph.outputs
    assert [dim if isinstance(dim, int) else dim.value for dim in output.shape] == ["n", 8, 8, 8]
    for axis in range(4):
        message.graph.output[0].type.tensor_type.shape.dim.add().dim_param = f"any{axis}"
    before = message.SerializeToString()
    declare_shapes(message)
    assert message.SerializeToString() == before


def test_declared_shapes_reach_outputs_of_which_no_shape_can_be_inferred():
    body = "s = Mul (sizes, one) t = Reshape (x, s) y = Relu (t)"
    message = parsed("float[n, 384] x, int64[4] sizes", "float[] y", body, one=np.array([1]))
    tensor = onnx.helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, ["n", 6, 8, 8])
    message.graph.value_info.append(tensor)
    (output,) = load_model(message).graph_model.graph.outputs
    assert [dim if isinstance(dim, int) else dim.value for dim in output.shape] == ["n", 6, 8, 8]


def test_outputs_of_which_no_shape_is_known_are_taken():
    loaded = load_model(output_shapes_model("somebody.Unknown (c)", domains=["somebody"]))
    (output,) = loaded.graph_model.graph.outputs
    assert output.shape is None and loaded.output_shapes == (None,)


@pytest.mark.filterwarnings("ignore:every layer in INT8")
def test_a_network_of_whose_output_no_shape_is_known_goes_all_the_way():
    """ONNX infers nothing of GroupNormalization."""
    source = output_shapes_model("GroupNormalization <num_groups = 2> (c, scale, bias)", opset=21)
    assert sqnr_in_int8(source, normal(16, 3, 8, 8, seed=1)) > 30


@pytest.mark.parametrize(("listed", "kept"), [("yy", "y"), ("yxyx", "yx"), ("xxy", "xy")])
def test_outputs_are_listed_once(listed, kept):
    source = output_shapes_model()
    declared = {"y": source.graph.output[0], "x": source.graph.input[0]}
    outputs = [onnx.ValueInfoProto.FromString(declared[name].SerializeToString()) for name in listed]
    del source.graph.output[:]
    source.graph.output.extend(outputs)
    with pytest.warns(UserWarning, match=rf"'{listed[0]}' more than once"):
        loaded = load_model(source)
    assert "".join(output.name for output in loaded.graph_model.graph.outputs) == kept


@pytest.mark.filterwarnings("ignore:.* lists the output", "ignore:every layer in INT8")
@pytest.mark.parametrize("float16", [False, True])
def test_an_output_that_is_listed_twice_keeps_its_name(float16):
    source, samples = output_shapes_model(), normal(4, 3, 8, 8)
    source.graph.output.append(source.graph.output[0])
    table = trtint8.calibrate(source, samples, method="minmax", progress=False)
    options = {"float16": True, "float32_io": True, "target": "rtx", "keep_int8": ["*"]} if float16 else {}
    quantized = trtint8.quantize(source, table, **options)
    assert [output.name for output in quantized.graph.output] == ["y"]
    accuracy = trtint8.validate(quantized, samples, reference=source, metrics=["sqnr"], progress=False)
    assert [output.name for output in accuracy.outputs] == ["y"]


@pytest.mark.filterwarnings("ignore:ONNX Runtime's optimizer")
@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_outputs_without_a_type(domain):
    bare = output_shapes_model(
        f"{domain}.Gelu (c)" if domain else "Relu (c)", domains=[domain] * bool(domain)
    )
    bare.graph.output[0].ClearField("type")
    (output,) = load_model(bare).graph_model.graph.outputs
    assert domain or (output.dtype.name, tuple(output.shape)[1:]) == ("FLOAT", (8, 8, 8))
    assert sqnr_in_int8(bare, normal(4, 3, 8, 8)) > 30


X = normal(4, 4)
PLAIN = "s = SequenceConstruct (a, a)"
#: An If whose branches make a sequence in steps, each of which has no declared type.
BRANCHES = " ".join(
    [
        "s = If (yes) <",
        ", ".join(
            f"""{kind}_branch = b () => (seq(float[4, 4]) {kind}_two) {{
            {kind}_none = SequenceEmpty () {kind}_one = SequenceInsert ({kind}_none, a)
            {kind}_two = SequenceInsert ({kind}_one, a) }}"""
            for kind in ("then", "else")
        ),
        ">",
    ]
)


def around(body):
    body = f"a = MatMul (x, w) {body} b = ConcatFromSequence <axis = 0> (s) y = MatMul (b, v)"
    constants = {"w": X[::-1].copy(), "v": X.T.copy(), "yes": np.bool_(True)}
    return parsed("float[4, 4] x", "float[8, 4] y", body, **constants)


def run(model):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X})[0]


@pytest.mark.parametrize("body", [PLAIN, BRANCHES], ids=["plain", "branches"])
def test_models_with_sequences_are_calibrated_and_quantized(body):
    model = around(body)
    np.testing.assert_allclose(run(to_proto(prepare(load_model(model)).graph_model)), run(model), rtol=1e-6)
    table = trtint8.calibrate(model, [{"x": X}], progress=False)
    assert set(table.amax) == {"x", "a", "b", "y"}
    # Not by integer kernels, which saturate on processors without VNNI.
    (quantized,) = open_model(load_model(trtint8.quantize(model, table))).run({"x": X})
    np.testing.assert_allclose(quantized, run(model), atol=0.2)


def test_types_are_declared_in_branches_too():
    model = around(BRANCHES)
    declare_shapes(model)
    (branch,) = (a.g for a in model.graph.node[1].attribute if a.name == "then_branch")
    graphs = [model.graph, branch]
    declared = [{value.name: value.type.WhichOneof("value") for value in one.value_info} for one in graphs]
    assert declared == [{"s": "sequence_type"}, dict.fromkeys(["then_none", "then_one"], "sequence_type")]


@pytest.mark.parametrize(("declared", "kind"), [("seq(float)", "sequence"), ("optional(float)", "optional")])
def test_outputs_that_are_no_tensors_are_refused(declared, kind):
    model = around(PLAIN)
    model.graph.output.append(parsed("float[4] x", f"{declared} s", "s = Identity (x)").graph.output[0])
    with pytest.raises(ModelError, match=rf"'s' of 'model'.*{kind}"):
        trtint8.calibrate(model, [{"x": X}], progress=False)


def test_other_models_stay():
    model = around("s = Concat <axis = 0> (a, a)")
    del model.graph.node[2]
    model.graph.node[2].input[0] = "s"
    before = model.SerializeToString()
    declare_shapes(model)
    assert model.SerializeToString() == before


def unknown_sizes_model(shape, output=("N", 3)):
    """A product of vectors, with its input's shape as some converters declare it."""
    made = parsed("float[] x", "float[] y", "[matmul] y = MatMul (x, w)", w=np.eye(4, 3, dtype=np.float32))
    made.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, shape))
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, output))
    return made


def test_minus_one_and_a_question_mark_are_no_sizes():
    message, inner = unknown_sizes_model([-1, "?", "?", 4], ["N", 0, -1]), unknown_sizes_model([-1, 4]).graph
    message.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner))
    clear_unknown_sizes(message)
    assert sizes_of(message.graph.input[0]) == [None, None, None, 4]
    assert sizes_of(message.graph.output[0]) == ["N", 0, None]
    for attribute in message.graph.node[1].attribute:
        assert sizes_of(attribute.g.input[0]) == [None, 4]


@pytest.mark.parametrize("size", [-1, "?", ""])
def test_a_model_with_them_is_calibrated_in_batches_of_any_size(size):
    data, source = normal(10, 4), unknown_sizes_model([size, 4], [size, 3])
    assert load_model(source).inputs[0].shape == (None, 4)
    table = trtint8.calibrate(source, data, batch_size=4, progress=False)
    assert table.amax["x"] == pytest.approx(np.abs(data).max(), rel=0.1)
    accuracy = trtint8.validate(trtint8.quantize(source, table), data, reference=source, progress=False)
    assert accuracy.samples == 10
