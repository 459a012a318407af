"""Nodes that pass a tensor on: those that go, and those that must stay."""

from itertools import pairwise

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import trtint8
from calibrators.errors import ModelError
from calibrators.tables.table import CalibrationTable
from tests.trtint8.models.passes.applying import applied, operators, run
from tests.trtint8.onnx_models import function, normal, parsed, sqnr_in_int8
from tests.trtint8.quantization.float16.half_models import FLOAT, weights
from trtint8.models.model import load_model, prepare
from trtint8.models.passes.simplify import (
    FoldBatchNormPass,
    InferShapesPass,
    InlineFunctionsPass,
    NameNodesPass,
    RemoveIdentitiesPass,
    SumsAsAddsPass,
    settle_element_types,
)
from trtint8.models.serialization import to_proto
from trtint8.quantization.float16 import to_float16
from trtint8.quantization.placement import place


def branching():
    """An If one of whose branches is an Identity of a tensor from outside, between two convolutions."""
    return parsed(
        "float[n, 3, 8, 8] x, bool keep",
        "float[n, 4, 8, 8] y",
        """c = Conv <pads = [1, 1, 1, 1]> (x, w)
        d = If (keep) <then_branch = then () => (float[] t) { t = Identity (c) },
            else_branch = other () => (float[] e) { e = Relu (c) }>
        y = Conv <pads = [1, 1, 1, 1]> (d, v)""",
        w=0.2 * normal(8, 3, 3, 3),
        v=0.2 * normal(4, 8, 3, 3),
    )


def test_a_branch_that_passes_a_tensor_on_keeps_its_identity():
    prepared = to_proto(prepare(load_model(branching())).graph_model)
    onnx.checker.check_model(prepared)
    (node,) = [node for node in prepared.graph.node if node.op_type == "If"]
    branches = {attribute.name: attribute.g for attribute in node.attribute}
    assert [inner.op_type for inner in branches["then_branch"].node] == ["Identity"]
    assert [inner.op_type for inner in branches["else_branch"].node] == ["Relu"]


@pytest.mark.parametrize("keep", [True, False])
def test_such_a_model_is_quantized(keep):
    assert sqnr_in_int8(branching(), [{"x": normal(16, 3, 8, 8, seed=1), "keep": np.array(keep)}]) > 30


def shared(outputs):
    """y = x w, passed on under other names."""
    body = "product = MatMul (x, w)" + "".join(f" [{name}] {name} = Identity (product)" for name in "ab")
    made = parsed("float[N, 4] x", ", ".join(f"float[N, 3] {name}" for name in outputs), body, w=normal(4, 3))
    del made.graph.node[len(set(outputs) - {"product"}) + 1 :]
    return made


def test_outputs_keep_their_names_where_several_are_the_same_tensor():
    folded, modified = applied(RemoveIdentitiesPass(), shared(["product", "a", "b"]))
    assert not modified
    outputs = run(folded, x=np.ones((2, 4), np.float32))
    assert len(outputs) == 3
    np.testing.assert_array_equal(outputs[0], outputs[1])
    # An output alone takes the place of the tensor that it passes on.
    folded, modified = applied(RemoveIdentitiesPass(), shared(["a"]))
    assert modified and operators(folded) == ["MatMul"]
    assert folded.graph.node[0].output == ["a"]


def test_an_identity_of_an_input_or_of_a_constant_stays_where_it_is_an_output():
    ends = "float[N, 4] x", "float[N, 4] a, float[3] b"
    model = parsed(*ends, "a = Identity (x) b = Identity (c)", c=np.ones(3, np.float32))
    folded, modified = applied(RemoveIdentitiesPass(), model)
    assert not modified and operators(folded) == ["Identity", "Identity"]


def nested():
    """An If in a branch of an If: the inner one passes on what the outer branch returns as well."""
    return parsed(
        "float[n, 4] x, bool keep",
        "float[n, 3] y, float[n, 3] z",
        """[product] c = MatMul (x, w)
        y, z = If (keep) <
            then_branch = outer () => (float[] r, float[] i) {
                r = Relu (c)
                i = If (keep) <then_branch = one () => (float[] s) { s = Identity (r) },
                    else_branch = two () => (float[] t) { t = Identity (r) }> },
            else_branch = other () => (float[] n, float[] m) { n = Neg (c) m = Abs (c) }>""",
        w=np.eye(4, 3, dtype=np.float32),
    )


@pytest.mark.parametrize("keep", [True, False])
def test_a_branch_in_a_branch_returns_what_it_returned(keep):
    feed = {"x": normal(5, 4, seed=2), "keep": np.array(keep)}
    made = prepared(nested())
    onnx.checker.check_model(made)
    for found, wanted in zip(run(made, **feed), run(nested(), **feed), strict=True):
        np.testing.assert_array_equal(found, wanted)


def summed(names):
    """A Sum of inputs of four channels, whose last one is broadcast."""
    inputs = ", ".join(f"float[N, 4, {1 if name == names[-1] else 3}] {name}" for name in names)
    return parsed(inputs, "float[N, 4, 3] y", f"[total] y = Sum ({', '.join(names)})")


@pytest.mark.parametrize("names", ["ab", "abc", "abcd"])
def test_the_same_sum(names):
    model = summed(names)
    feeds = {name: normal(2, 4, 1 if name == names[-1] else 3, seed=ord(name)) for name in names}
    rewritten, modified = applied(SumsAsAddsPass(), model)
    onnx.checker.check_model(rewritten, full_check=True)
    assert modified and operators(rewritten) == ["Add"] * (len(names) - 1)
    last = rewritten.graph.node[-1]
    assert (last.name, list(last.output)) == ("total", ["y"])
    assert [value.name for value in rewritten.graph.output] == ["y"]
    np.testing.assert_allclose(run(rewritten, **feeds)[0], run(model, **feeds)[0], rtol=1e-6, atol=1e-6)


def test_a_sum_of_one_tensor_stays():
    rewritten, modified = applied(SumsAsAddsPass(), parsed("float[N, 4] x", "float[] y", "y = Sum (x)"))
    assert (modified, operators(rewritten)) == (False, ["Sum"])


def shortcut(kind):
    """A convolution, another one behind it, and the sum of both."""
    body = f"""[first] f = Conv <pads = [1, 1, 1, 1]> (x, w) r = Relu (f)
        [second] s = Conv <pads = [1, 1, 1, 1]> (r, v) [sum] t = {kind} (s, f) y = Relu (t)"""
    weights = {"w": 0.1 * normal(8, 4, 3, 3), "v": 0.1 * normal(8, 8, 3, 3)}
    return parsed("float[N, 4, 6, 6] x", "float[] y", body, **weights)


def test_shortcuts_are_quantized_as_those_of_an_add():
    found = []
    for kind in ("Sum", "Add"):
        made = prepare(load_model(shortcut(kind))).graph_model
        placement = place(made)
        found.append((operators(to_proto(made)), set(placement.tensors), set(placement.quantized_nodes)))
    assert found[0] == found[1]
    assert "f" in found[0][1]


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["same", "same", "", "own"], ["same", "Relu_b", "Relu_c", "own"]),
        # A made-up name leaves the own name of a later node alone.
        (["", "Relu_a", "c", "d"], [None, "Relu_a", "c", "d"]),
    ],
)
def test_nodes_get_unique_names_and_keep_those_they_have(names, wanted):
    body = "a = Relu (x) b = Relu (a) c = Relu (b) d = Relu (c)"
    model = parsed("float[N] x", "float[] d", body)
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    named, modified = applied(NameNodesPass(), model)
    found = [node.name for node in named.graph.node]
    assert modified and len(set(found)) == 4
    assert all(right in (name, None) for name, right in zip(found, wanted, strict=True))
    again, modified = applied(NameNodesPass(), named)
    assert not modified and again.graph.node == named.graph.node


def test_nodes_without_a_name_are_named_after_their_function():
    inner = function("Inner", "a", "c", "b = Relu (a) [turn] c = Neg (b)")
    outer = function("Outer", "a", "c", "b = Exp (a) c = own.Inner (b)", domains=["own"])
    body = "h = own.Outer (x) y = own.Inner (h)"
    model = ir.from_proto(parsed("float[N] x", "float[N] y", body, inner + outer, domains=["own"]))
    assert InlineFunctionsPass()(model).modified and not model.functions
    names = [node.name for node in model.graph]
    assert names[0] == "Outer_Exp" and len(set(names)) == 5
    # Which numbers are behind them is onnx-ir's matter.
    assert [name.rstrip("_0123456789") for name in names[1:]] == ["Inner_Relu", "turn"] * 2


def model(*functions, body="y = own.F0 (x)"):
    return parsed("float[N] x", "float[N] y", body, " ".join(functions), domains=["own"])


def in_branches(call):
    """Both branches of an If call a function."""
    branches = [
        f"{kind}_branch = b () => (float[] {kind}) {{ {kind} = {call} }}" for kind in ("then", "else")
    ]
    return f"k = Constant <value = bool {{1}}> () y = If (k) <{', '.join(branches)}>"


def chain(depth, times):
    """Functions of which each calls the next one so many times."""
    functions = []
    for level in range(depth):
        tensors = ["a", *(f"b{turn}" for turn in range(times))]
        calls = [f"{new} = own.F{level + 1} ({old})" for old, new in pairwise(tensors)]
        functions.append(function(f"F{level}", "a", tensors[-1], " ".join(calls), domains=["own"]))
    return [*functions, function(f"F{depth}", "a", "c", "c = Relu (a)")]


@pytest.mark.parametrize(
    ("functions", "body", "named"),
    [
        *(
            (chain(depth, 2), "y = own.F0 (x)", f"'model'.* {shown} nodes")
            for depth, shown in ((24, "50,331,646"), (60, "more than 1,000,000,000"), (99, "1,000,000,000"))
        ),
        (chain(40, 2), "y = Relu (x)", "'model'.* more than"),
        (chain(40, 2), in_branches("own.F0 (x)"), "'model'.* more than"),
        (chain(150, 1), "y = own.F0 (x)", "'model'.* 100 "),
    ],
    ids=["24 deep", "60 deep", "99 deep", "not called", "inside a branch", "too deep"],
)
def test_functions_that_come_to_too_many_nodes(functions, body, named):
    with pytest.raises(ModelError, match=named):
        load_model(model(*functions, body=body))


def test_functions_that_are_called_often_and_come_to_few_nodes():
    made = prepare(load_model(model(*chain(8, 2)))).graph_model
    assert len(list(made.graph)) == 2**8
    made = prepare(load_model(model(*chain(90, 1)))).graph_model
    assert [node.op_type for node in made.graph] == ["Relu"]


INNER = in_branches("own.F0 (a)")
RELU = "c = Relu (a)"


@pytest.mark.parametrize(
    ("functions", "body", "named"),
    [
        ([("F0", "c", "c = own.F0 (a)", "own")], "y = own.F0 (x)", r"'own\.F0' of 'model' calls itself"),
        (
            [("F0", "c", "c = own.F1 (a)", "own"), ("F1", "c", "c = own.F0 (a)", "own")],
            "y = own.F0 (x)",
            r"'own\.F[01]' of 'model' calls itself",
        ),
        ([("F0", "y", INNER, "own")], "y = own.F0 (x)", r"'own\.F0' of 'model' calls itself"),
        ([("F0", "c", RELU, "own")] * 2, "y = own.F0 (x)", "'model'.*'.*F0' twice"),
        ([("F0", "c", RELU, ""), ("F0", "c", RELU, "ai.onnx")], "y = own.F0 (x)", "'model'.*'.*F0' twice"),
        ([("Relu", "c", "c = Neg (a)", "")], "y = Relu (x)", "'Relu'"),
        ([("F0", "c", RELU, "own")], "y = own.F0 (x, x)", r"'own\.F0' of 'model'"),
        ([("F0", "c", RELU, "own")], "y, z = own.F0 (x)", r"'own\.F0' of 'model'"),
    ],
    ids=["itself", "each other", "in a branch", "twice", "two names", "an operator", "inputs", "outputs"],
)
def test_functions_that_cannot_be(functions, body, named):
    made = []
    for name, output, nodes, domain in functions:
        text = function(name, "a", output, nodes, domains=["own"])
        made.append(text.replace('<domain: "own"', f'<domain: "{domain}"'))
    with pytest.raises(ModelError, match=named):
        load_model(model(*made, body=body))


@pytest.mark.parametrize(
    ("operator", "given"),
    [("Add", "x, "), ("Add", ", x"), ("Add", "x"), ("Sum", "x, "), ("MatMul", "")],
)
def test_calls_that_leave_out_what_a_node_needs(operator, given):
    called = function("F0", "a, b", "c", f"[n] c = {operator} (a, b)")
    with pytest.raises(ModelError, match=rf"'n.*' \({operator}\) of 'model'"):
        load_model(model(called, body=f"y = own.F0 ({given})"))


def test_calls_that_leave_out_what_no_node_needs():
    called = function("F0", "a, low, high", "c", "c = Clip (a, low, high)")
    made = prepare(load_model(model(called, body="y = own.F0 (x, )")))
    assert [node.op_type for node in made.graph_model.graph] == ["Clip"]


def test_calls_that_leave_out_an_attribute():
    body = "[cast] c = Cast <to: int = @kind> (a) [constant] k = Constant <value_float: float = @number> ()"
    called = function("F0<kind, number>", "a", "c", body)

    def given(attributes):
        return model(called, body=f"y = own.F0 <{attributes}> (x)")

    assert load_model(given("kind = 1, number = 1.0"))
    with pytest.raises(ModelError, match=r"'cast' \(Cast\) of 'model'.* 'to'"):
        load_model(given("number = 1.0"))
    with pytest.raises(ModelError, match=r"'constant' \(Constant\) of 'model'"):
        load_model(given("kind = 1"))


def test_functions_with_graphs_as_attributes():
    inner = helper.make_graph([helper.make_node("Relu", ["a"], ["t"])], "b", [], [])
    body = helper.make_attribute("body", inner)
    default, referring, given = (model(function("F0", "a", "c", RELU)) for _ in range(3))
    default.functions[0].attribute_proto.append(body)
    referring.functions[0].attribute.append("body")
    reference = onnx.AttributeProto(name="x", ref_attr_name="body", type=onnx.AttributeProto.GRAPH)
    referring.functions[0].node[0].attribute.append(reference)
    given.graph.node[0].attribute.append(body)
    for refused in (default, referring, given):
        with pytest.raises(ModelError, match=r"'own\.F0' of 'model'.* graph"):
            load_model(refused)


def normalized(operator="Conv", bias=True, more="", output="norm_out", **changed):
    """A normalization behind a layer."""
    shape = (5, 4, 3, 3) if operator == "Conv" else (4, 5, 3, 3)
    norm = "a, b, m, v"
    body = f"""[conv] conv_out = {operator} (x, w{", bias" if bias else ""})
        [norm] norm_out = BatchNormalization (conv_out, {norm}) {more}"""
    constants = {name: 0.1 * normal(5, seed=seed) for seed, name in enumerate(("bias", "a", "b", "m"))}
    constants |= {"w": 0.1 * normal(*shape), "v": np.full(5, 0.7, np.float32)} | changed
    return parsed("float[N, 4, 6, 6] x", f"float[] {output}", body, **constants)


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_is_folded(operator, bias):
    model = normalized(operator, bias)
    folded, modified = applied(FoldBatchNormPass(), model)
    assert modified and operators(folded) == [operator]
    assert folded.graph.output[0].name == "norm_out"
    x = normal(2, 4, 6, 6, seed=1)
    np.testing.assert_allclose(run(folded, x=x)[0], run(model, x=x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        normalized(more="y = Add (norm_out, conv_out)", output="y"),
        normalized(output="norm_out, float[] conv_out"),
        normalized(v=np.full(5, -1, np.float32)),
    ],
    ids=["a second reader", "an output of the graph", "a negative variance"],
)
def test_batch_norm_stays(model):
    folded, modified = applied(FoldBatchNormPass(), model)
    assert not modified and operators(folded) == operators(model)


def test_folded_parameters_get_names_that_no_activation_has():
    model = normalized(more="w_folded = Relu (norm_out)", output="w_folded")
    folded, _ = applied(FoldBatchNormPass(), model)
    names = [tensor.name for tensor in folded.graph.initializer if "_folded" in tensor.name]
    assert names == ["w_folded_1", "w_folded_bias"]
    assert folded.graph.output[0].name == "w_folded"


@pytest.mark.parametrize("name", ["a", "b", "m", "v"])
def test_parameters_of_another_length_are_refused_by_name(name):
    model = normalized(**{name: 0.1 * normal(4)})
    output = helper.make_tensor_value_info("norm_out", TensorProto.FLOAT, [2, 5, 4, 4])
    model.graph.output[0].CopyFrom(output)
    with pytest.raises(ModelError, match=rf"'{name}'.* \[4\].* 'norm' .* 5 .*'conv'"):
        prepare(load_model(model))


def found_boxes():
    """What detectors do with the boxes that they find: those above 0.5, reshaped as (boxes, 4).

    The sizes for the Reshape are those of another tensor, as PyTorch's exporter writes them.
    """
    return parsed(
        "float[N, 2, 2] boxes, float[N] scores",
        "float[found, ?] y",
        """is_found = Greater (scores, limit) found = Compress <axis = 0> (boxes, is_found)
        flat = Flatten <axis = 1> (found) sizes = Shape (flat)
        first = Gather <axis = 0> (sizes, zero) second = Gather <axis = 0> (sizes, one)
        first_alone = Unsqueeze (first, axes) second_alone = Unsqueeze (second, axes)
        shape = Concat <axis = 0> (first_alone, second_alone)
        inside = Relu (found) y = Reshape (inside, shape)""",
        limit=np.float32(0.5),
        zero=np.int64(0),
        one=np.int64(1),
        axes=np.array([0]),
    )


def prepared(model):
    return to_proto(prepare(load_model(model)).graph_model)


def in_float16(model):
    """As ``quantize --float16`` converts what is left around Q/DQ pairs."""
    graph_model = prepare(load_model(model)).graph_model
    return to_proto(to_float16(graph_model, float32_io=True, peaks=None, name="m")[0])


@pytest.mark.parametrize("scores", [[0.1, 0.2, 0.3], [0.9, 0.1, 0.8]], ids=["nothing found", "two found"])
@pytest.mark.parametrize("changed", [prepared, in_float16])
def test_a_detector_that_finds_nothing_runs(changed, scores):
    model, boxes = found_boxes(), np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    feeds = {"boxes": boxes, "scores": np.float32(scores)}
    (wanted,) = run(model, **feeds)
    assert wanted.shape == (sum(score > 0.5 for score in scores), 4)
    np.testing.assert_array_equal(run(changed(model), **feeds)[0], wanted)


def sizes_of(model):
    return {
        value.name: [size.dim_param or size.dim_value or None for size in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)
    }


def test_the_names_of_the_model_stay():
    model, modified = applied(InferShapesPass(), found_boxes())
    assert modified
    sizes = sizes_of(model)
    assert sizes["boxes"] == ["N", 2, 2] and sizes["is_found"] == ["N"] and sizes["y"] == ["found", 4]
    assert sizes["found"] == sizes["inside"] == [None, 2, 2] and sizes["flat"] == [None, 4]
    assert sizes["shape"] == [2]


def test_other_networks_keep_the_names_of_equal_sizes():
    """With them ONNX Runtime fuses an Add with the LayerNormalization behind it."""
    body = "rows = Reshape (x, shape) y = Relu (rows)"
    model, _ = applied(
        InferShapesPass(), parsed("float[N, 4, 8] x", "float[] y", body, shape=np.array([-1, 8]))
    )
    sizes = sizes_of(model)
    assert sizes["rows"][0] and sizes["rows"][0] == sizes["y"][0]


@pytest.mark.parametrize(
    ("domain", "node"),
    [
        ("", "GroupNormalization <num_groups = 2> ({}, scale, bias)"),
        ("com.microsoft", "com.microsoft.Gelu ({})"),
    ],
)
def test_operators_of_which_onnx_infers_nothing_pass_type_and_shape_on(domain, node):
    body = f"a = {node.format('x')} b = Relu (a) c = {node.format('b')} d = Relu (c)"
    channels = {name: np.ones(4, np.float32) for name in ("scale", "bias")}
    before = parsed(
        "float[N, 4, 6, 6] x", "float[] d", body, opset=21, domains=[domain] * bool(domain), **channels
    )
    model, _ = applied(InferShapesPass(), before)
    assert {name: sizes_of(model)[name] for name in "xabcd"} == {name: ["N", 4, 6, 6] for name in "xabcd"}
    for value in (*model.graph.value_info, *model.graph.output):
        assert value.type.tensor_type.elem_type == TensorProto.FLOAT
    assert [node.domain for node in model.graph.node] == [domain, ""] * 2


def around(body):
    """Two products around nodes that make ``b`` of ``a``; those of ONNX Runtime are called ``ms.``."""
    body = f"a = MatMul (x, w) {body.replace('ms.', 'com.microsoft.')} y = MatMul (b, w)"
    constants = {"w": weights(32, 32), "bias": weights(32), "sizes": np.array([4, 32])}
    ends = "float[4, 32] x", "float[4, 32] y"
    return parsed(*ends, body, domains=["com.microsoft", "trt.plugins"], **constants)


FORMS = {
    "gelu": "b = ms.QuickGelu (a)",
    "product": "b = ms.FusedMatMul <alpha = 0.5> (a, w)",
    "gemm": """b = ms.FusedGemm <activation = "Relu"> (a, w, bias)""",
    "two with known ones between": """c = ms.FusedMatMul (a, w) d = Relu (c) e = Sigmoid (d)
        f = ms.FusedMatMul (e, w) b = Add (f, bias)""",
    "in a row": "c = ms.QuickGelu (a) d = ms.FusedMatMul (c, w) b = Neg (d)",
    "decided by": "c = ms.FusedMatMul (a, w) b = Floor (c)",
    "moved": "c = ms.FusedMatMul (a, w) b = Reshape (c, sizes)",
}


@pytest.mark.filterwarnings("ignore:ONNX Runtime's optimizer")
@pytest.mark.parametrize("target", ["tensorrt-11", "rtx"])
@pytest.mark.parametrize("float32_io", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_is_valid_and_computes_the_same(form, float32_io, target):
    model, x = around(FORMS[form]), normal(4, 32)
    table = trtint8.calibrate(model, {"x": x}, method="minmax", progress=False)
    options = {"target": target, "keep_int8": ["*"], "float16": True, "float32_io": float32_io}
    made = trtint8.quantize(model, table, progress=False, **options)
    onnx.checker.check_model(made, full_check=True)
    (wanted,) = run(model, x=x)
    got = run(made, x=x if float32_io else x.astype(np.float16))[0].astype(np.float32)
    assert np.abs(got - wanted).max() < 0.2 * np.abs(wanted).max() + (form == "decided by")


@pytest.mark.parametrize("float32_io", [False, True])
def test_a_plugin_between_layers_reads_and_gives_float32(float32_io):
    model = around("b = MyPlugin_TRT (a)")
    table = CalibrationTable({"x": 3.0, "a": 9.0, "b": 9.0, "y": 30.0})
    made = trtint8.quantize(model, table, target="rtx", keep_int8=["*"], float16=True, float32_io=float32_io)
    constants = {one.name: one.data_type for one in made.graph.initializer}
    plugin = next(node for node in made.graph.node if node.op_type == "MyPlugin_TRT")
    cast = next(node for node in made.graph.node if plugin.input[0] in node.output)
    (reader,) = (node for node in made.graph.node if plugin.output[0] in node.input)
    assert (cast.op_type, cast.attribute[0].i) == ("Cast", FLOAT)
    assert (reader.op_type, constants[reader.input[1]]) == ("QuantizeLinear", FLOAT)


def test_types_follow_from_what_stands_beside_and_stay_open_where_nothing_tells():
    body = "c = Relu (a) d = ms.QuickGelu (c) e = Sigmoid (d) b = Add (e, bias)"
    graph_model = load_model(around(body)).graph_model
    for node in graph_model.graph:
        for value in node.outputs:
            value.type = None
    settle_element_types(graph_model)
    assert {node.outputs[0].dtype for node in graph_model.graph} == {TensorProto.FLOAT}
    graph_model = load_model(around("c = ms.A (a) d = Relu (c) b = ms.B (d)")).graph_model
    settle_element_types(graph_model)
    assert [node.outputs[0].dtype for node in graph_model.graph][1:3] == [None, None]
