import dataclasses

import pytest

from tests.trtint8.builder.building import build
from tests.trtint8.onnx_models import Graph, conv_relu_conv
from trtint8.engine.kernels import (
    PartTotal,
    Traffic,
    activation_sizes,
    moves_only,
    operations,
    part_totals,
    parts_of,
    total_traffic,
    traffic_of,
)
from trtint8.engine.layers import Layer, LayerReport


def kernel(kind, name, *types):
    """A layer with the types of inputs, constants and outputs, and the names of its nodes."""
    return Layer(name, kind, *(tuple(one.split()) for one in (*types, *[""] * (4 - len(types)))))


INT8_CONV = kernel("correlation", "conv_myl0_1", "Int8", "Int8 Float", "Float", "conv dq")


def part(layer):
    return parts_of(LayerReport((INT8_CONV, layer)))[1]


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (INT8_CONV, "INT8 compute"),
        (kernel("gemm", "g", "Int8 Int8", "Float", "Half"), "INT8 compute"),
        (kernel("correlation", "c", "Half", "Half", "Half"), "float compute"),
        (kernel("runtime_fusion", "__myl_CorrSiluAdd_myl0_9", "Half", "Half", "Half"), "float compute"),
        (kernel("runtime_fusion", "__myl_FcAdd_myl0_4", "Half", "Half", "Half"), "float compute"),
        (kernel("kgen", "_gemm_mha_v2_myl0_8", "Half Half Half", "", "Half"), "attention"),
        (kernel("kgen", "_gemm_mha_v2_myl0_8", "Bool Int8 Int8 Int8", "", "Int8"), "attention"),
        (
            kernel("kgen", "__myl_MulAddReluMulMinMaxRounCast_myl0_2", "Float", "Float", "Int8", "conv"),
            "requantization",
        ),
        # The first quantization of an input.
        (
            kernel("kgen", "__myl_MulMinMaxRounCastConc_myl0_0", "Float", "Float", "Int8"),
            "requantization",
        ),
        # The scale and the bias of a last INT8 product, whose result is an output of the network.
        (
            kernel("kgen", "__myl_MulAdd_myl0_105", "Float", "Float", "Float", "conv"),
            "requantization",
        ),
        # Normalizations would run in FP16 too.
        (
            kernel(
                "kgen",
                "__myl_MulAddMeanSubMulMeanAddSqrtDivMulMulAddMulMinMaxRounCast_myl0_1",
                "Half",
                "",
                "Int8",
                "conv",
            ),
            "pointwise",
        ),
        (kernel("kgen", "__myl_CastMulCastErfCastAddMul_myl0_12", "Half", "", "Half"), "pointwise"),
        (kernel("kgen", "__myl_ReshTran_myl0_6", "Half", "", "Half"), "reformat"),
        (kernel("kgen", "__myl_CastConc_myl0_0", "Float", "Half", "Half"), "reformat"),
        (kernel("runtime_function", "__myl_Conc_myl0_35", "Half", "", "Half"), "reformat"),
        (kernel("Reformat", "Reformatting CopyNode", "Float", "", "Int8"), "reformat"),
        (kernel("maxpool", "p", "Int8", "Float", "Int8"), "pooling"),
        (kernel("CaskPooling", "p", "Int8", "", "Int8"), "pooling"),
        (kernel("PointWiseV2", "PWN(relu)", "Half", "", "Half"), "pointwise"),
        (kernel("Scale", "q", "Float", "", "Int8"), "requantization"),
        (kernel("Quantize", "q", "Float", "", "Int8"), "requantization"),
        (kernel("PluginV2", "nms", "Float", "", "Float"), "other"),
        (kernel("shape_call", "s"), None),
        (kernel("NoOp", "s", "Float", "", "Float"), None),
    ],
)
def test_part_of_a_kernel(layer, expected):
    assert part(layer) == expected


def test_a_scale_and_a_bias_after_a_float_product_are_pointwise():
    half = kernel("correlation", "c", "Half", "Half", "Half", "conv")
    after = kernel("kgen", "__myl_MulAdd_myl0_2", "Half", "Half", "Half", "conv")
    assert parts_of(LayerReport((half, after))) == ("float compute", "pointwise")


def test_operations_in_a_name():
    assert operations(kernel("kgen", "__myl_MulAddRelu_myl0_3")) == ("Mul", "Add", "Relu")
    assert operations(kernel("correlation", "__myl_MulAdd_myl0_3")) == ()
    assert operations(kernel("kgen", "_gemm_mha_v2_myl0_8")) == ()


def test_what_only_moves_values():
    assert moves_only(kernel("kgen", "__myl_SlicConc_myl0_10"))
    assert not moves_only(kernel("kgen", "__myl_SlicMul_myl0_10"))
    assert not moves_only(kernel("correlation", "conv"))


def test_int8_convolutions_of_a_real_engine(rtx):
    engine = build(conv_relu_conv(), rtx, compute_capabilities=["8.6"])
    assert [part for part in parts_of(engine.report) if part] == [
        "requantization",
        "INT8 compute",
        "requantization",
        "INT8 compute",
        "requantization",
    ]


def test_float_convolutions_of_a_real_engine(rtx):
    engine = build(conv_relu_conv(quantized=False), rtx, compute_capabilities=["8.6"])
    assert {part for part in parts_of(engine.report) if part} == {"float compute", "reformat"}


def test_a_matrix_product_of_a_real_engine(rtx):
    g = Graph()
    y = g.Gemm("fc", g.qdq("x"), g.qdq(g.weights(64, 32), 1, 32), g.weights(32))
    engine = build(g.model({"x": [8, 64]}, y), rtx, compute_capabilities=["8.6"])
    assert [part for part in parts_of(engine.report) if part] == [
        "requantization",
        "INT8 compute",
        "requantization",
    ]


CONV = Layer(
    "conv_myl0_1",
    "correlation",
    ("Int8",),
    ("Int8", "Float"),
    ("Float",),
    ("conv",),
    ((8, 4, 16, 16),),
    ((32, 4, 3, 3), (1, 32, 1, 1)),
    ((8, 32, 16, 16),),
)


def moving(name, inputs, outputs, constants=()):
    return Layer(
        name,
        "kgen",
        ("Half",) * len(inputs),
        ("Half",) * len(constants),
        ("Half",) * len(outputs),
        (),
        tuple(inputs),
        tuple(constants),
        tuple(outputs),
    )


def test_a_convolution_reads_activations_and_weights_and_writes_its_sums():
    read = 8 * 4 * 16 * 16 + 32 * 4 * 3 * 3 + 4 * 32
    assert traffic_of(CONV) == Traffic(read, 4 * 8 * 32 * 16 * 16)
    assert traffic_of(CONV).total == read + 262144


def test_a_kernel_that_slices_reads_only_what_it_writes():
    assert traffic_of(moving("__myl_Slic_myl0_7", [(1, 32, 8, 8)], [(1, 16, 8, 8)])) == Traffic(2048, 2048)
    # Everything is read where something is computed.
    assert traffic_of(moving("__myl_SlicMul_myl0_7", [(1, 32, 8, 8)], [(1, 16, 8, 8)])) == Traffic(4096, 2048)


def test_a_kernel_that_gathers_reads_no_more_of_a_table_than_it_writes():
    layer = moving("__myl_GathMul_myl0_0", [(4,)], [(4, 8)], constants=[(1000, 8), (8,)])
    assert traffic_of(layer) == Traffic(2 * (4 + 32 + 8), 64)


def test_what_is_not_known():
    dynamic = moving("__myl_Mul_myl0_0", [(-1, 8)], [(-1, 8)])
    assert traffic_of(dynamic) is None
    assert traffic_of(Layer("a", "Scale", ("Int8",), (), ("Int8",), ())) is None
    strange = Layer("a", "kgen", ("Complex",), (), (), (), ((4,),))
    assert traffic_of(strange) is None
    assert traffic_of(Layer("s", "shape_call", (), (), (), ())) == Traffic(0, 0)
    assert total_traffic([Traffic(1, 2), None]) is None
    assert total_traffic([Traffic(1, 2), Traffic(3, 4)]) == Traffic(4, 6)


def test_sizes_of_activations():
    assert activation_sizes(CONV) == (8192, 262144)
    assert activation_sizes(moving("__myl_Mul_myl0_0", [(-1, 8)], [(1, 8)])) == ()


def test_totals_by_part():
    slices = [moving(f"__myl_Slic_myl0_{index}", [(1, 16)], [(1, 16)]) for index in range(2)]
    report = LayerReport((Layer("s", "shape_call", (), (), (), ()), *slices, CONV))
    assert part_totals(report) == (
        PartTotal("INT8 compute", 1, traffic_of(CONV)),
        PartTotal("reformat", 2, Traffic(64, 64)),
    )
    dynamic = moving("__myl_Tran_myl0_3", [(-1, 16)], [(-1, 16)])
    assert part_totals(LayerReport((*slices, dynamic))) == (PartTotal("reformat", 3, None),)


def test_one_profile_is_counted():
    other = dataclasses.replace(CONV, name="conv [profile 1]_myl1_0", input_shapes=((64, 16, 32, 32),))
    assert part_totals(LayerReport((CONV, other))) == (PartTotal("INT8 compute", 1, traffic_of(CONV)),)
