"""Layers of engines as a builder would list them, for tests of what is estimated from them."""

import dataclasses

from trtint8.auditing.gpus import Gpu
from trtint8.engine.layers import Layer, LayerReport

#: A GPU with round figures: 1 GB/s, 1, 2 and 4 operations per nanosecond, and a cache of one byte.
GPU = Gpu("Round", "8.6", 1.0, 0.001, 0.002, 0.004, 2**-20, "invented")


#: The same GPU with a cache of 16 KiB.
CACHING_GPU = dataclasses.replace(GPU, cache_mb=2**-6)


def product(node, datatype, output, elements, weights=0):
    """A convolution that reads and writes ``elements`` values."""
    return Layer(
        f"{node}_myl0_1",
        "correlation",
        (datatype,),
        (datatype,),
        (output,),
        (node,),
        ((elements,),),
        ((weights,),),
        ((elements,),),
    )


def requantization(node, elements, source="Float"):
    """The kernel after an INT8 product."""
    name = "__myl_MulAddReluMulMinMaxRounCast_myl0_2"
    return Layer(name, "kgen", (source,), (), ("Int8",), (node,), ((elements,),), (), ((elements,),))


def attention(elements, datatype="Half"):
    """Fused attention of three operands."""
    return Layer(
        "_gemm_mha_v2_myl0_8",
        "kgen",
        (datatype,) * 3,
        (),
        (datatype,),
        ("scores", "mixed"),
        ((elements,),) * 3,
        (),
        ((elements,),),
    )


def report(*layers):
    """The layers of an engine."""
    return LayerReport(tuple(layers))
