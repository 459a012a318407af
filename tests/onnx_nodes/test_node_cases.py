"""Every operator of ONNX, as in ONNX's own tests, works between two layers or is refused with a reason."""

import collections

import pytest
from onnx import TensorProto, helper

from tests.onnx_nodes.cases import NodeCase, Verdict, all_cases, between_layers, judge
from tests.onnx_nodes.expectations import REFUSALS, explained

#: Of how many cases one is in every run.
SAMPLE = 48


@pytest.mark.slow
def test_onnx_own_tests(nightly):
    cases = all_cases()[:: 1 if nightly else SAMPLE]
    verdicts = {case.name: judge(between_layers(case)) for case in cases}
    wrong = {name: str(found) for name, found in verdicts.items() if not explained(name, found)}
    assert wrong == {}
    counts = collections.Counter(found.stage for found in verdicts.values())
    # How many depends on the types and operators that the installed ONNX Runtime has.
    assert counts["all"] > 0.65 * len(cases), counts


def test_a_difference_and_an_error_of_another_kind_are_faults():
    assert not explained("test_abs", Verdict("float", "fault AssertionError", "Not equal"))
    assert not explained("test_abs", Verdict("quantize", "ModelError", "something else"))
    assert explained("test_abs", Verdict("all"))
    assert all(refusal.reason for refusal in REFUSALS)


def test_a_case_stands_between_layers():
    (absolute,) = (case for case in all_cases() if case.name == "test_abs")
    made = between_layers(absolute)
    assert [node.op_type for node in made.model.graph.node] == ["MatMul", "Abs", "MatMul"]
    assert judge(made) == Verdict("all")
    node = helper.make_node("Identity", ["x"], ["y"])
    values = [helper.make_tensor_value_info(name, TensorProto.STRING, [2, 2]) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    text = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    refused = judge(NodeCase("text", text, {"x": None}))
    assert (refused.stage, refused.error) == ("load", "ModelError") and "'x'" in refused.words
