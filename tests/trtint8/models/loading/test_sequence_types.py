"""Values that are sequences of tensors."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtint8
from calibrators.errors import ModelError
from trtint8.models.loading.sequence_types import declare_sequences
from trtint8.models.model import load_model, prepare
from trtint8.models.serialization import to_proto
from trtint8.models.session import open_model

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
