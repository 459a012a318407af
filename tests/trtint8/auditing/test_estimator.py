import dataclasses

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from calibrators.data.samples import SampleSizes
from calibrators.errors import BuildError, UnsupportedError
from tests.trtint8.auditing.kernels import CACHING_GPU, GPU, attention, product, report, requantization
from tests.trtint8.engine.ifs import IfGraph, absolute, relu
from tests.trtint8.onnx_models import Shaped, conv_relu_conv, normal, parsed
from trtint8.auditing import audit as module
from trtint8.auditing.audit import (
    Estimator,
    EstimatorOptions,
    Work,
    at_shapes,
    count_work,
    estimate_engine,
    seconds_per_node,
)
from trtint8.auditing.gpus import find_gpu
from trtint8.auditing.results import AuditedPart
from trtint8.builder.config import BuildOptions
from trtint8.engine.kernels import Traffic
from trtint8.engine.layers import Layer
from trtint8.engine.profiles import ShapeRange
from trtint8.models.model import load_model, prepare


@pytest.fixture
def prepared():
    return prepare(load_model(conv_relu_conv(quantized=False).SerializeToString()))


def opened(prepared, sizes=None, **options):
    return Estimator.open(prepared, sizes or {}, find_gpu("A10"), EstimatorOptions("rtx", **options))


def test_shapes_and_work(rtx, prepared):
    estimator = opened(prepared)
    assert estimator.shapes == {"images": (8, 3, 16, 16)}
    assert estimator.compute_capability == "8.6"
    assert estimator.work.multiply_adds == {
        "first": 8 * 16 * 16 * 16 * 3 * 9,
        "second": 8 * 16 * 16 * 16 * 16 * 9,
    }
    profile = {"images": ShapeRange((1, 3, 16, 16), (2, 3, 16, 16), (4, 3, 16, 16))}
    assert opened(prepared, profile=profile).shapes == {"images": (2, 3, 16, 16)}


def test_open_sizes_are_those_of_the_samples(rtx):
    model = conv_relu_conv(quantized=False, size=("height", "width"))
    prepared = prepare(load_model(model.SerializeToString()))
    sizes = {"images": SampleSizes((3, 16, 8), (3, 32, 8))}
    assert opened(prepared, sizes).shapes == {"images": (8, 3, 32, 8)}


def test_types_of_an_engine(rtx, prepared):
    estimator = opened(prepared)
    found = {}
    for precision, fp16 in (("FP32", False), ("FP16", True)):
        engine = estimator.estimate(precision, estimator.model.graph_model, {"images": 1.0}, fp16=fp16)
        assert engine.precision == precision and engine.seconds > 0
        found[precision] = engine.multiply_adds
    total = sum(estimator.work.multiply_adds.values())
    assert found == {"FP32": {"FP32": total}, "FP16": {"FP16": total}}


def test_a_profile_that_does_not_fit(rtx, prepared):
    with pytest.raises(BuildError, match="give three shapes of 4 dimensions"):
        opened(prepared, profile={"images": ShapeRange((1,), (1,), (1,))})


def test_layers_that_are_not_listed(rtx, prepared, monkeypatch):
    run = module.Build.run
    monkeypatch.setattr(module.Build, "run", lambda *a, **k: dataclasses.replace(run(*a, **k), report=None))
    estimator = opened(prepared, build=BuildOptions())
    with pytest.raises(UnsupportedError, match="does not list the layers of its engines"):
        estimator.estimate("FP32", estimator.model.graph_model, {}, fp16=False)


def estimated(*layers, work=None, gpu=GPU, precision="FP16"):
    return estimate_engine(precision, report(*layers), work or {}, gpu, 100)


def test_a_kernel_takes_as_long_as_its_bytes_or_its_products():
    layers = product("narrow", "Half", "Half", 1000, 50), product("wide", "Half", "Half", 1000)
    engine = estimated(*layers, work={"narrow": 1000, "wide": 10_000})
    narrow, wide = engine.kernels
    assert narrow.traffic == Traffic(2100, 2000)
    # 4100 bytes at 1 GB/s; 2 operations for each of 1000 multiply-adds at 2 per nanosecond; 1 us to start.
    assert (narrow.seconds, narrow.bound) == (pytest.approx(5.1e-6), "memory")
    assert (wide.seconds, wide.bound) == (pytest.approx(1.1e-5), "compute")
    assert engine.seconds == pytest.approx(1.61e-5)
    assert engine.ends == (engine.seconds, engine.seconds)  # nothing is known of the cache
    assert engine.traffic == Traffic(4100, 4000)
    assert engine.multiply_adds == {"FP16": 11_000}
    assert engine.parts == (AuditedPart("float compute", 2, Traffic(4100, 4000), engine.seconds),)
    assert engine.weights_bytes == 100


def test_int8_products_and_their_requantization():
    engine = estimated(product("a", "Int8", "Float", 1000), requantization("a", 1000), work={"a": 1000})
    assert [kernel.part for kernel in engine.kernels] == ["INT8 compute", "requantization"]
    # The kernel beside the product computes none of it.
    assert [kernel.multiply_adds for kernel in engine.kernels] == [1000, 0]
    assert engine.part("requantization").traffic == Traffic(4000, 1000)
    assert engine.part("reformat") == AuditedPart("reformat", 0, Traffic(0, 0), 0.0)


def test_attention_computes_both_of_its_products():
    engine = estimated(attention(100), work={"scores": 30, "mixed": 70})
    assert engine.multiply_adds == {"FP16": 100}
    assert engine.kernels[0].part == "attention"


def test_a_node_of_several_kernels_is_counted_once():
    engine = estimated(*[product("a", "Half", "Half", 10)] * 2, work={"a": 7})
    assert [kernel.multiply_adds for kernel in engine.kernels] == [3, 4]


def test_a_product_that_became_pointwise():
    small = Layer("__myl_MulSum_myl0_1", "kgen", ("Float",), (), ("Float",), ("dot",), ((8,),), (), ((1,),))
    engine = estimated(small, work={"dot": 8, "gone": 3})
    assert engine.multiply_adds == {"FP32": 8}
    assert engine.unplaced == ("gone",)


def test_what_is_not_known():
    layers = product("a", "Half", "Half", -1), product("b", "Half", "Half", 1)
    engine = estimated(*layers, work={"a": 1, "b": 1})
    assert engine.kernels[0].seconds is engine.kernels[0].bound is engine.kernels[0].traffic is None
    assert engine.seconds is engine.traffic is None
    assert engine.part("float compute") == AuditedPart("float compute", 2, None, None)


def test_entries_without_a_kernel_are_left_out():
    engine = estimated(Layer("s", "shape_call", (), (), (), ()))
    assert (engine.kernels, engine.seconds) == ((), 0)


def test_what_may_stay_in_the_cache():
    # Half of the cache is 8 KiB: the activations of the first kernel, and the smaller ones of the second.
    layers = product("a", "Half", "Half", 4096, 9000), product("b", "Int8", "Float", 4096)
    engine = estimated(*layers, gpu=CACHING_GPU)
    assert engine.cacheable == 2 * 8192 + 4096
    assert engine.traffic.total == 2 * 8192 + 2 * 9000 + 5 * 4096


def test_the_end_with_the_cache():
    # The first kernel's activations fit, and those of the second do not; weights never count.
    gpu = dataclasses.replace(CACHING_GPU, cache_gbs=4 * CACHING_GPU.bandwidth_gbs)
    layers = product("a", "Half", "Half", 4096, 9000), product("b", "Half", "Half", 8192)
    engine = estimated(*layers, gpu=gpu)
    byte = 1e-9 / gpu.bandwidth_gbs
    fits, other = engine.kernels
    assert fits.seconds == pytest.approx(1e-6 + (2 * 8192 + 18_000) * byte)
    assert fits.cached_seconds == pytest.approx(1e-6 + (2 * 8192 / 4 + 18_000) * byte)
    assert other.cached_seconds == other.seconds
    assert engine.ends == (engine.seconds, pytest.approx(fits.cached_seconds + other.seconds))


def moving(read, written):
    """A kernel that selects ``written`` of ``read`` values in FP16."""
    name = "__myl_Slic_myl0_3"
    return Layer(name, "kgen", ("Half",), (), ("Half",), ("s",), ((read,),), (), ((written,),))


def test_what_is_not_read_is_not_in_the_cache():
    # Of 4096 values, as many as are written are read.
    engine = estimated(moving(4096, 100), gpu=CACHING_GPU)
    assert (engine.cacheable, engine.traffic) == (400, Traffic(200, 200))
    # Nor is what is selected of a tensor that is larger than half of the cache.
    engine = estimated(moving(4097, 100), gpu=CACHING_GPU)
    assert (engine.cacheable, engine.traffic) == (200, Traffic(200, 200))
    # A kernel whose bytes are not known counts for none.
    assert estimated(product("a", "Half", "Half", 10, -1), gpu=CACHING_GPU).cacheable == 0


def test_time_per_node():
    joined = Layer(
        "g", "gemm", ("Half",), ("Half",), ("Half",), ("q", "k", "dq"), ((500,),), ((0,),), ((500,),)
    )
    moved = Layer("__myl_Tran_myl0_1", "kgen", ("Half",), (), ("Half",), ("q",), ((9,),), (), ((9,),))
    layers = joined, moved, product("a", "Int8", "Float", 1000), requantization("a", 1000)
    work = {"q": 1, "k": 1, "a": 1}
    found = seconds_per_node(estimated(*layers, work=work), work)
    assert found == {"q": pytest.approx(1.5e-6), "k": pytest.approx(1.5e-6), "a": pytest.approx(1.2e-5)}


def test_products_behind_an_if_with_a_constant_condition(rtx):
    g = IfGraph()
    x = g.conv("x", "first")
    x = g.conv(g.choose(True, "if", relu(x), absolute(x)), "second")
    work = {"first": 100, "second": 200, "third": 400}
    layers = g.build(g.conv(x, "third"), rtx, batch=1)
    engine = estimate_engine("INT8", layers, work, GPU)
    assert engine.multiply_adds == {"INT8": 700}
    assert engine.unplaced == ()
    computing = [kernel for kernel in engine.kernels if kernel.part == "INT8 compute"]
    assert [(kernel.onnx_nodes[0], kernel.multiply_adds) for kernel in computing] == list(work.items())
    assert list(seconds_per_node(engine, work)) == ["first", "second", "third"]


def work(model, **shapes):
    return count_work(at_shapes(prepare(load_model(model.SerializeToString())), shapes).graph_model)


def counted(make, inputs, **shapes):
    g = Shaped(quantized=False)
    return work(g.model(inputs, make(g)), **shapes).multiply_adds


def matmul(g):
    return g.op("MatMul", ["x", g.weights(64, 32)], "node")


def test_shapes_that_the_graph_computes():
    """Heads of attention, split by a Reshape to a shape that Shape, Div and Concat compute."""
    body = (
        "batch = Shape <start = 0, end = 1> (x) width = Shape <start = 2, end = 3> (x) "
        "head = Div (width, four) shape = Concat <axis = 0> (batch, middle, head) heads = Reshape (x, shape) "
        "left = Transpose <perm = [0, 2, 1, 3]> (heads) right = Transpose <perm = [0, 2, 3, 1]> (heads) "
        "[scores] y = MatMul (left, right)"
    )
    constants = {"four": np.array([4]), "middle": np.array([10, 4])}
    model = parsed("float[N, 10, 64] x", "float[N, 4, 10, 10] y", body, **constants)
    assert work(model, x=(3, 10, 64)) == Work({"scores": 3 * 4 * 10 * 10 * 16}, ())


def test_a_shape_that_is_not_known():
    assert counted(matmul, {"x": ["N", 10, 64]}) == {}
    g = Shaped(quantized=False)
    assert work(g.model({"x": ["N", 10, 64]}, matmul(g))).uncounted == ("node",)


def test_graphs_inside_nodes_are_not_counted():
    g = Shaped(quantized=False)
    inner = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "inner",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
    )
    flag = g.op("Equal", [g.op("ReduceSum", ["x"], "sum", keepdims=0), g.constant(np.float32(0))], "flag")
    model = g.model({"x": [2, 4]}, g.op("If", [flag], "choice", then_branch=inner, else_branch=inner))
    assert work(model) == Work({}, ("choice",))


def test_products_that_only_shapes_decide_are_not_counted():
    """As of an embedding of positions, which the builder computes."""
    body = (
        "shape = Shape (x) zeros = ConstantOfShape (shape) [positions] p = MatMul (zeros, w) "
        "[product] q = MatMul (x, w) y = Add (q, p)"
    )
    model = parsed("float[N, 64] x", "float[N, 8] y", body, w=normal(64, 8))
    assert work(model, x=(5, 64)) == Work({"product": 5 * 64 * 8}, ())


def test_the_model_keeps_its_fingerprint_and_is_not_changed():
    g = Shaped(quantized=False)
    prepared = prepare(load_model(g.model({"x": ["N", 64]}, matmul(g)).SerializeToString()))
    fixed = at_shapes(prepared, {"x": (5, 64)})
    assert fixed.fingerprint == prepared.fingerprint
    assert [spec.shape for spec in fixed.inputs] == [(5, 64)]
    assert [spec.shape for spec in prepared.inputs] == [("N", 64)]


@pytest.mark.parametrize(("operator", "shape"), [("Gemm", [3]), ("MatMul", [])])
def test_products_of_too_few_dimensions_are_not_counted(operator, shape):
    nodes = [helper.make_node(operator, ["x", "w"], ["y"], name="product")]
    weights = helper.make_tensor("w", TensorProto.FLOAT, [3, 3], np.ones(9))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = ir.from_proto(helper.make_graph(nodes, "g", values[:1], values[1:], [weights]))
    assert count_work(ir.Model(graph, ir_version=8)) == Work({}, ("product",))
