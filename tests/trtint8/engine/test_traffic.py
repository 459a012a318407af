import dataclasses

from trtint8.engine.layers import Layer, LayerReport
from trtint8.engine.traffic import (
    PartTotal,
    Traffic,
    activation_sizes,
    part_totals,
    total_traffic,
    traffic_of,
)

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
