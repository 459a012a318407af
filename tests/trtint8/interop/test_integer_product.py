"""What around a ConvInteger or MatMulInteger does not fit, in words; such a model stays as it is."""

import numpy as np
import onnx_ir as ir
import pytest

from tests.trtint8.integer_models import operators
from tests.trtint8.interop.pairs_by_hand import proto_of
from trtint8.interop.integer_models import FloatOperatorsPass, expand_dynamic

PRODUCT = "q, c, z = DynamicQuantizeLinear (x) node = MatMulInteger (q, w, z) "
SCALED = PRODUCT + "cast = Cast <to = 1> (node) "


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            PRODUCT + "other = Cast <to = 11> (node) abs = Abs (other) y = Cast <to = 1> (abs)",
            "'other' casts to something else than float32",
        ),
        (
            PRODUCT + "abs = Abs (node) y = Cast <to = 1> (abs)",
            "'node' is read by Abs, and not by one Cast alone",
        ),
        (
            SCALED + "scales = Mul (c, s) scaled = Mul (cast, scales) y = Add (scaled, cast)",
            "'cast' is read by Mul, Add, and not by one Mul alone",
        ),
        (
            SCALED + "y = Mul (cast, s)",
            "the scale of 'q' is not in the product 's', with which its output is multiplied",
        ),
        (
            SCALED + "m = ReduceMax <keepdims = 0> (x) scales = Mul (c, m) y = Mul (cast, scales)",
            "its output is multiplied with 'm', which is no operand's scale",
        ),
        (
            "q = Cast <to = 2> (x) node = MatMulInteger (q, w) cast = Cast <to = 1> (node) y = Mul (cast, s)",
            "'q' comes from the Cast 'q', and not from a quantizer",
        ),
        (
            SCALED.replace("w, z", "w, u") + "scales = Mul (c, s) y = Mul (cast, scales)",
            "its zero point for 'q' is not that of 'q'",
        ),
        (
            SCALED + "scales = Mul (c, column) y = Mul (cast, scales)",
            "the scales or zero points of 'w' have shape (8, 1), and not one number per output channel",
        ),
        (
            SCALED + "scales = Mul (c, none) y = Mul (cast, scales)",
            "a scale of 'w' is not positive and finite",
        ),
    ],
)
def test_what_does_not_fit_is_told_and_stays(body, words):
    numbers = {"u": np.uint8(0), "column": np.full((8, 1), 0.1, np.float32), "none": 0.0}
    model = proto_of(body, w=np.ones((8, 8), np.int8), **numbers)
    graph_model = ir.from_proto(model)
    expansion = FloatOperatorsPass(expand_dynamic)
    assert not expansion(graph_model).modified
    assert [node.op_type for node in graph_model.graph] == operators(model)
    assert expansion.obstacles["node"] == words
