"""What is known of an engine, for a person."""

import dataclasses

from tests.trtint8.report.samples import engine_info, table
from trtint8.engine.file import engine_rows
from trtint8.engine.layers import Layer, LayerReport

INFO = engine_info(table())


def test_an_engine_for_a_person():
    rows = dict(engine_rows(INFO))
    assert rows["weighted layers in INT8"] == "1 of 2"
    assert rows["weight memory"] == "5.2 kB"
    unlisted = dict(engine_rows(dataclasses.replace(INFO, layers=None)))
    assert unlisted["weighted layers in INT8"] == (
        "not listed: profiling verbosity was not 'detailed', the default, or this TensorRT lists none"
    )
    assert "kernels" not in unlisted


def kernels(*shape):
    conv = Layer("c", "correlation", ("Int8",), ("Int8",), ("Float",), ("conv",), (shape,), ((1,),), (shape,))
    name = "__myl_MulMinMaxRounCast_myl0_0"
    return LayerReport((Layer(name, "kgen", ("Float",), (), ("Int8",), (), (shape,), (), (shape,)), conv))


def test_kernels_by_part_and_their_bytes():
    rows = dict(engine_rows(dataclasses.replace(INFO, layers=kernels(1, 1000), profiles=())))
    assert rows["kernels"] == "2: 1 INT8 compute, 1 requantization"
    assert rows["bytes per inference"] == "0.005 MB read, 0.005 MB written"
    large = dict(engine_rows(dataclasses.replace(INFO, layers=kernels(8, 1_000_000), profiles=())))
    assert large["bytes per inference"] == "40.0 MB read, 40.0 MB written"


def test_kernels_of_one_of_several_profiles():
    quantize, conv = kernels(1, 1000).layers
    of_second = dataclasses.replace(conv, name="c [profile 1]_myl1_0")
    one, both = (
        dict(engine_rows(dataclasses.replace(INFO, layers=LayerReport(layers), quantized_nodes=("conv",))))
        for layers in ((quantize, conv), (quantize, conv, of_second))
    )
    assert both == {**one, "kernels and bytes": "those of profile 0"}
    assert both["kernels"] == "2: 1 INT8 compute, 1 requantization"


def test_nodes_in_a_part_that_is_compiled_as_a_whole():
    whole = Layer("{ForeignNode[a...b]}", "Myelin", (), (), (), ("a",), (), (), ())
    listed = dataclasses.replace(INFO, layers=kernels(1, 1000), quantized_nodes=("conv", "/MatMul"))
    compiled = dataclasses.replace(listed, layers=LayerReport((*kernels(1, 1000).layers, whole)))
    assert (listed.int8_layers, compiled.int8_layers) == ((1, 2), None)
    assert dataclasses.replace(compiled, quantized_nodes=("conv",)).int8_layers == (1, 1)
    for info, text in (
        (listed, "1 of 2"),
        (compiled, "1 seen; TensorRT tells nothing of parts that it compiled"),
    ):
        rows = dict(engine_rows(info))
        assert rows["weighted layers in INT8"].startswith(text)
        assert rows["not in the engine's list"] == "/MatMul"


def test_bytes_that_are_not_known():
    dynamic = dataclasses.replace(INFO, layers=kernels(-1, 1000))
    assert dict(engine_rows(dynamic))["bytes per inference"] == (
        "not known for dynamic shapes; 'trtint8 audit' gives them at the optimal ones"
    )
    static = dict(engine_rows(dataclasses.replace(dynamic, profiles=())))
    assert (
        static["bytes per inference"] == "not known, because the builder does not list all shapes and types"
    )


def test_tensors_without_a_range_are_named_up_to_a_number():
    missing = tuple((f"tensor{index}", "layer") for index in range(30))
    rows = engine_rows(dataclasses.replace(INFO, missing_ranges=missing))
    assert ("tensors without a range", "30") in rows
    assert sum(value == "of layer 'layer'" for _, value in rows) == 20


def test_why_nodes_stay_in_float():
    nodes = (("a", "too small"), ("b", "recurrent"), ("c", "too small"))
    rows = engine_rows(dataclasses.replace(INFO, float_nodes=nodes))
    start = rows.index(("nodes that stay in float", "3"))
    assert rows[start + 1 : start + 3] == [("  2 of them", "too small"), ("  1 of them", "recurrent")]
    assert not any(name == "nodes that stay in float" for name, _ in engine_rows(INFO))
