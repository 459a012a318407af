"""Models that name the domains of their operators otherwise than ONNX's checker wants."""

import numpy as np
import onnx
import pytest
from onnx import helper

import trtint8
from calibrators.errors import ModelError
from tests.trtint8.onnx_models import Shaped
from trtint8.models.loading.domains import settle_domains
from trtint8.models.model import load_model
from trtint8.models.serialization import to_proto

DATA = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


def model(domains=("", "", ""), imports=(("", 17),), middle="Relu"):
    g = Shaped()
    x = g.op("MatMul", ["x", g.weights(8, 8)], "first")
    x = g.op(middle, [x], "middle")
    made = g.model({"x": ["N", 8]}, g.op("MatMul", [x, g.weights(8, 8)], "last"))
    for node, domain in zip(made.graph.node, domains, strict=True):
        node.domain = domain
    del made.opset_import[:]
    made.opset_import.extend(helper.make_opsetid(*opset) for opset in imports)
    return made


def opsets(message):
    return {opset.domain: opset.version for opset in message.opset_import}


@pytest.mark.parametrize(
    ("domains", "imports"),
    [
        (("ai.onnx",) * 3, [("", 17)]),
        (("", "ai.onnx", ""), [("", 17)]),
        (("",) * 3, [("ai.onnx", 17)]),
        (("ai.onnx",) * 3, [("ai.onnx", 17)]),
        (("",) * 3, [("", 17), ("ai.onnx", 17)]),
    ],
)
def test_onnx_has_one_domain_under_two_names(domains, imports):
    source, plain = model(domains, imports), model()
    quantized, expected = (
        trtint8.quantize(one, trtint8.calibrate(one, DATA, method="minmax", progress=False), progress=False)
        for one in (source, plain)
    )
    assert opsets(quantized) == {"": 17}
    assert [node.domain for node in quantized.graph.node] == [""] * len(expected.graph.node)
    assert load_model(source).fingerprint == load_model(plain).fingerprint


def test_functions_as_well():
    body = [helper.make_node("Relu", ["a"], ["b"], domain="ai.onnx")]
    function = helper.make_function("my", "Mine", ["a"], ["b"], body, [helper.make_opsetid("ai.onnx", 17)])
    source = model(("", "my", ""), [("", 17), ("my", 1)], middle="Mine")
    source.functions.append(function)
    settle_domains(source, "model")
    assert opsets(source.functions[0]) == {"": 17}
    assert source.functions[0].node[0].domain == ""


def test_two_versions_of_one_domain():
    with pytest.raises(ModelError, match="opset 17, and of opset 13"):
        load_model(model(imports=[("", 17), ("ai.onnx", 13)]))


def test_operators_of_onnx_runtime_need_no_import():
    source = model(("", "com.microsoft", ""), middle="Gelu")
    assert opsets(to_proto(load_model(source).graph_model)) == {"": 17, "com.microsoft": 1}
    table = trtint8.calibrate(source, DATA, method="minmax", progress=False)
    assert "middle_out" in table.amax


def test_onnx_needs_none_beside_others():
    source = model(("", "com.microsoft", ""), [("com.microsoft", 1)], middle="Gelu")
    assert load_model(source).graph_model.opset_imports[""] >= 17
    with pytest.raises(ModelError, match="opset"):
        load_model(model(imports=()))


def test_other_domains_need_one():
    with pytest.raises(ModelError, match="my"):
        load_model(model(("", "my", ""), middle="Mine"))
    onnx.checker.check_model(to_proto(load_model(model()).graph_model))
