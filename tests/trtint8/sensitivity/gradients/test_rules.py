"""Gradients of all operators, and through several nodes, beside differences; and what has none."""

import itertools
import re

import numpy as np
import pytest

from tests.trtint8.sensitivity.gradients.differences import assert_gradients, network, run, with_gradients
from trtint8.sensitivity.gradients.backward import RULES
from trtint8.sensitivity.gradients.rule import NoGradientError

RANDOM = np.random.default_rng(1)

#: Values at a distance from the places where the functions have a kink.
AWAY = (RANDOM.integers(-4, 4, (2, 3, 5)) + np.float32(0.5)) * np.float32(0.9)
POSITIVE = np.abs(AWAY) + np.float32(0.3)

ROWS, TABLE, PIXELS, IMAGES = (
    f"float[{shape}] x" for shape in ("N, 3, 5", "N, 4, 6", "N, 6, 2, 3", "N, 4, 7, 6")
)
RESIZED, FIXED = "float[N, 3, 4, 5] x", "float[2, 3, 4, 5] x"

#: By their inputs and what these hold.
CASES = [
    (
        ROWS,
        {"x": AWAY},
        [
            "y = Abs (x)",
            "y = Asinh (x)",
            "y = Atan (x)",
            "y = Cast <to = 1> (x)",
            "y = Celu <alpha = 0.7> (x)",
            "y = Clip (x)",
            "y = Clip (x, low, high) where float low = {-1}, float high = {2}",
            "y = Cos (x)",
            "y = Cosh (x)",
            "y = Dropout (x)",
            "y = Elu <alpha = 0.7> (x)",
            "y = Erf (x)",
            "y = Exp (x)",
            "y = HardSigmoid <alpha = 0.3> (x)",
            "y = HardSwish (x)",
            "y = Identity (x)",
            "y = LeakyRelu <alpha = 0.3> (x)",
            "y = Neg (x)",
            "y = PRelu (x, slopes) where float[3, 1] slopes = {0.1, 0.2, 0.3}",
            "y = Pow (x, two) where float two = {2}",
            "y = Relu (x)",
            "y = Selu (x)",
            "y = Sigmoid (x)",
            "y = Sin (x)",
            "y = Sinh (x)",
            "y = Softplus (x)",
            "y = Softsign (x)",
            "y = Tanh (x)",
            "y = ThresholdedRelu <alpha = 1.0> (x)",
        ],
    ),
    (ROWS, {"x": POSITIVE}, ["y = Log (x)", "y = Reciprocal (x)", "y = Sqrt (x)"]),
    (ROWS, {"x": POSITIVE + 1}, ["y = Acosh (x)"]),
    (ROWS, {"x": AWAY / 4}, ["y = Acos (x)", "y = Asin (x)", "y = Atanh (x)", "y = Tan (x)"]),
    (
        ROWS,
        {"x": np.linspace(0.5, 2, 30)},
        ["y = Pow (x, powers) where float[5] powers = {2, 3, 2, 1, 2.5}"],
    ),
    (
        "float[N, 1] x",
        {"x": [0.5, 2]},
        ["y = Pow (x, powers) where float[1, 1, 2] powers = {2, 3}"],
    ),
    ("float[1] x", {"x": [0.5]}, ["y = Pow (x, powers) where float[2, 1] powers = {1.5, 2}"]),
    (
        f"{ROWS}, float[N, 3, 5] w",
        {"x": AWAY, "w": POSITIVE},
        [
            "chosen = Greater (z, zero) y = Where (chosen, x, w) "
            "where float[5] z = {-2, 3, 1, -4, 2}, float zero = {0}"
        ],
    ),
    (
        TABLE,
        {},
        [
            "y = ReduceL1 <axes = [2]> (x)",
            "y = ReduceL2 <axes = [-1], keepdims = 0> (x)",
            "y = ReduceLogSumExp <axes = [1, 2]> (x)",
            "y = ReduceMax <axes = [-1]> (x)",
            "y = ReduceMean <axes = [1, -1], keepdims = 0> (x)",
            "y = ReduceMin <axes = [1, 2], keepdims = 0> (x)",
            "y = ReduceSum (x, axes) where int64[1] axes = {2}",
            "y = ReduceSumSquare <axes = [1]> (x)",
        ],
    ),
    (
        ROWS,
        {},
        [
            "y = BatchNormalization (x, s, b, m, v) where float[3] s = {1, 2, 3}, float[3] b = {0, 1, 2}, "
            "float[3] m = {0.5, 0, 1}, float[3] v = {1, 2, 3}",
            "y = InstanceNormalization <epsilon = 0.1> (x, s, b) "
            "where float[3] s = {1, 2, 3}, float[3] b = {0, 1, 2}",
            "y = LayerNormalization <axis = -1> (x, s, b) "
            "where float[5] s = {1, 2, 3, 4, 5}, float[5] b = {0, 1, 0, 1, 0}",
            "y = LogSoftmax <axis = 1> (x)",
            "y = LpNormalization <axis = 1> (x)",
            "y = Softmax <axis = 1> (x)",
        ],
    ),
    (
        PIXELS,
        {},
        [
            "y = LRN <size = 3, alpha = 2.0, beta = 0.6, bias = 0.7> (x)",
            "y = LRN <size = 5, alpha = 3.0> (x)",
        ],
    ),
    (
        TABLE,
        {},
        [
            "r = Relu (x) y = Concat <axis = 2> (x, r, x)",
            *(
                f"y = CumSum <reverse = {reverse}, exclusive = {exclusive}> (x, axis) "
                f"where int64 axis = {{{axis}}}"
                for axis, reverse, exclusive in itertools.product((1, -1), (0, 1), (0, 1))
            ),
            "r = Reshape (x, to) y = DepthToSpace <blocksize = 2> (r) where int64[4] to = {0, 4, 2, 3}",
            'r = Reshape (x, to) y = DepthToSpace <blocksize = 2, mode = "CRD"> (r) '
            "where int64[4] to = {0, 8, 1, 3}",
            "m = ReduceMean <axes = [1]> (x) y = Expand (m, to) where int64[4] to = {5, 1, 4, 1}",
            "y = Flatten (x)",
            "y = Pad (x, pads) where int64[6] pads = {0, 1, 0, 0, 2, 3}",
            "y = Pad (x, pads) where int64[6] pads = {0, -1, 2, 0, -1, -3}",
            "pads = Neg (less) y = Pad (x, pads) where int64[6] less = {0, -1, 0, 0, -2, -3}",
            'y = Pad <mode = "reflect"> (x, pads) where int64[6] pads = {0, 1, 2, 0, 2, 3}',
            'y = Pad <mode = "edge"> (x, pads) where int64[6] pads = {0, 1, 2, 0, 2, 3}',
            "y = Reshape (x, to) where int64[3] to = {0, 3, 8}",
            "r = Reshape (x, to) y = SpaceToDepth <blocksize = 2> (r) where int64[4] to = {0, 1, 4, 6}",
            "a, b, c = Split <axis = 1> (x, sizes) y = Mul (a, c) where int64[3] sizes = {1, 2, 1}",
            "m = ReduceMean <axes = [1]> (x) y = Squeeze (m, axes) where int64[1] axes = {1}",
            "y = Tile (x, times) where int64[3] times = {1, 2, 3}",
            "times = Neg (less) y = Tile (x, times) where int64[3] less = {-1, -3, -2}",
            "y = Transpose <perm = [2, 0, 1]> (x)",
            "y = Unsqueeze (x, axes) where int64[1] axes = {1}",
            # What is picked: some elements, one, in another order, in a row, and one twice.
            "y = Gather <axis = 1> (x, p) where int64[2, 2] p = {0, 3, 3, -1}",
            "y = Gather <axis = 2> (x, p) where int64 p = {-2}",
            "y = Gather <axis = -1> (x, p) where int64[3] p = {4, 0, 2}",
            "y = Gather <axis = 1> (x, p) where int64[2] p = {1, 2}",
            "y = Gather <axis = 1> (x, p) where int64[3] p = {1, 1, 0}",
            "y = GatherElements <axis = 2> (x, p) where int64[2, 2, 2] p = {0, 5, 1, 1, -1, 2, 3, 3}",
            "y = GatherND (x, p) where int64[3, 2] p = {0, 3, 1, -1, 0, 3}",
            "y = ScatterElements <axis = 1> (x, p, new) where int64[2, 1, 6] p = "
            "{2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, float[2, 1, 6] new = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}",
            "y = ScatterND (x, p, new) where int64[2, 2] p = {0, 3, 1, 1}, "
            "float[2, 6] new = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}",
            "y, places = TopK <axis = 1> (x, k) where int64[1] k = {3}",
            # With steps, every other one, backwards to the first, beyond the end, and some samples.
            "y = Slice (x, start, end, axes, steps) where int64[2] start = {1, 5}, int64[2] end = {4, -7}, "
            "int64[2] axes = {1, 2}, int64[2] steps = {2, -2}",
            "y = Slice (x, start, end, axes, steps) where int64[2] start = {0, 0}, "
            "int64[2] end = {4611686018427387904, 4611686018427387904}, int64[2] axes = {-1, -2}, "
            "int64[2] steps = {2, 2}",
            "y = Slice (x, start, end, axes, steps) where int64[1] start = {-1}, "
            "int64[1] end = {-4611686018427387904}, int64[1] axes = {1}, int64[1] steps = {-1}",
            "y = Slice (x, start, end, axes) where int64[1] start = {-3}, int64[1] end = {100}, "
            "int64[1] axes = {2}",
            "y = Slice (x, start, end) where int64[1] start = {1}, int64[1] end = {100}",
        ],
    ),
    # The last token of every sample, whose place is computed.
    (
        "float[2, 4, 6] x",
        {},
        ["y = GatherND <batch_dims = 1> (x, p) where int64[2, 1] p = {3, 1}"],
    ),
    # A tensor that is read twice, and one that does not depend on the input and needs no rule.
    (
        "float[N, 2] x",
        {},
        ["a = MatMul (x, w) b = Tanh (a) c = Mul (a, b) y = Add (c, x) where float[2, 2] w"],
    ),
    ("float[N, 2] x", {}, ["s = Sign (c) y = Add (x, s) where float[1, 2] c"]),
    # To the size of another tensor, as PyTorch exports it: computed, but known.
    (
        "float[N, 3, 4, 6] x",
        {},
        [
            "half = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (x) whole = Shape (x) "
            'y = Resize <mode = "linear"> (half, none, none, whole) where float[0] none = {}'
        ],
    ),
    (
        IMAGES,
        {},
        [
            "y = AveragePool <kernel_shape = [7, 6]> (x)",
            "y = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (x)",
            "y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x)",
            "y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1> (x)",
            "y = GlobalAveragePool (x)",
            "y = GlobalMaxPool (x)",
        ],
    ),
    (
        IMAGES,
        {"x": RANDOM.permutation(336)},  # the largest of a window stays the largest
        [
            "y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], "
            f"storage_order = {order}> (x)"
            for order in (0, 1)
        ],
    ),
    (
        IMAGES,
        {},
        [
            "y = Conv <pads = [1, 1, 1, 1]> (x, w) where float[6, 4, 3, 3] w",
            "y = Conv <pads = [0, 1, 2, 0]> (x, w) where float[6, 4, 3, 3] w",
            "y = Conv <strides = [2, 2]> (x, w) where float[6, 4, 1, 1] w",
            "y = Conv <strides = [2, 3], pads = [1, 1, 1, 1]> (x, w) where float[6, 4, 3, 3] w",
            "y = Conv <group = 4, pads = [1, 1, 1, 1]> (x, w) where float[4, 1, 3, 3] w",
            "y = Conv <group = 2, strides = [2, 2]> (x, w) where float[6, 2, 3, 3] w",
            "y = Conv <dilations = [2, 3]> (x, w) where float[6, 4, 2, 2] w",
            "y = Conv <pads = [1, 1, 1, 1]> (x, w) where float[6, 4, 1, 1] w",
            'y = Conv <auto_pad = "VALID"> (x, w) where float[6, 4, 3, 3] w',
            'y = Conv <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w) where float[6, 4, 3, 3] w',
            'y = Conv <auto_pad = "SAME_UPPER"> (x, w) where float[6, 4, 2, 4] w',
            'y = Conv <auto_pad = "SAME_LOWER", strides = [1, 2]> (x, w) where float[6, 4, 2, 4] w',
            "y = ConvTranspose <strides = [2, 2]> (x, w) where float[4, 3, 2, 2] w",
            "y = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]> (x, w) "
            "where float[4, 3, 3, 3] w",
            "y = ConvTranspose <group = 4> (x, w) where float[4, 1, 3, 3] w",
        ],
    ),
    ("float[N, 5] x", {}, ["y = Gemm <transB = 1, alpha = 0.5> (x, w, b) where float[3, 5] w, float[3] b"]),
    ("float[N, 5] x", {}, ["y = Gemm <alpha = 0.5> (x, w, b) where float[5, 3] w, float[3] b"]),
    (ROWS, {}, ["y = MatMul (x, w) where float[5, 4] w"]),
    *(
        (f"float[{first}] x, float[{second}] z", {}, ["y = MatMul (x, z)"])
        for first, second in [
            ("N, 2, 3, 5", "N, 2, 5, 4"),
            ("2, 4, 3, 5", "1, 4, 5, 6"),
            ("N, 4, 3, 5", "4, 5, 6"),
            ("N, 4, 3, 5", "5, 6"),
            ("3, 5", "N, 4, 5, 6"),
            ("2, 1, 3, 5", "1, 4, 5, 6"),
        ]
    ),
    *(
        (f"{IMAGES}, float[{second}] z", {}, [f'y = Einsum <equation = "{equation}"> (x, z)'])
        for equation, second in [
            ("nchw,ck->nkhw", "4, 5"),
            ("nchw, nchv -> nhwv", "N, 4, 7, 3"),
            ("nchw,h->nwc", "7"),
        ]
    ),
    *(
        (f"{ROWS}, float[{second}] z", {"x": AWAY, "z": values}, [f"y = {kind} (x, z)" for kind in kinds])
        for second, (values, kinds) in itertools.product(
            ("N, 3, 5", "3, 1", "5"),
            [
                (AWAY.ravel()[::-1] + np.float32(0.2), ("Max", "Min")),
                (POSITIVE, ("Add", "Sub", "Mul", "Div", "Sum", "Mean")),
            ],
        )
    ),
    (
        ROWS,
        {"x": AWAY},
        [
            f"y = {kind} (x, c) where float[{second}] c"
            for second in ("1, 3, 5", "3, 1", "5")
            for kind in ("Add", "Sub", "Mul", "Div", "Sum", "Mean")
        ],
    ),
    (
        RESIZED,
        {},
        [
            f'y = Resize <mode = "{mode}", coordinate_transformation_mode = "{transformation}"> '
            f"(x, none, s) where float[0] none = {{}}, float[4] s = {{1, 1, {scales}}}"
            for transformation in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
            for mode in ("nearest", "linear", "cubic")
            for scales in ("2, 3", "1, 2", "1.5, 2.4", "0.5, 1")
        ],
    ),
    (
        RESIZED,
        {},
        [
            f'y = Resize <nearest_mode = "{nearest}", coordinate_transformation_mode = "{transformation}"> '
            f"(x, none, s) where float[0] none = {{}}, float[4] s = {{1, 1, {scales}}}"
            for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
            for transformation in ("half_pixel", "asymmetric", "pytorch_half_pixel")
            # Of the last two the sizes are whole multiples, and the scales are not.
            for scales in ("2, 3", "4, 1", "2.1, 2.1", "2.2, 3")
        ],
    ),
    (
        FIXED,
        {},
        [
            f'y = Resize <mode = "{mode}"> (x, none, none, sizes) '
            f"where float[0] none = {{}}, int64[4] sizes = {{2, 3, {sizes}}}"
            for mode in ("nearest", "linear")
            for sizes in ("8, 15", "7, 5", "2, 3")
        ],
    ),
]

SAMPLED = "float[N, 3, 5, 7] x, float[N, 4, 6, 2] grid"
BOTH = "float[2, 4, 6] x, float[2, 2, 6] new"

#: Of operators, or forms of them, that are new in later opsets.
LATER = [
    (20, ROWS, {"x": AWAY}, ["y = Gelu (x)"]),
    (18, ROWS, {"x": AWAY}, ["y = Mish (x)"]),
    (
        18,
        TABLE,
        {},
        [
            "y = ReduceL2 (x, axes) where int64[1] axes = {2}",
            "y = Pad (x, pads, , axes) where int64[2] pads = {1, 2}, int64[1] axes = {-1}",
            *(
                f'y = Pad <mode = "{mode}"> (x, pads, zero, axes) where int64[4] pads = {{1, 2, 0, 3}}, '
                "float zero = {0}, int64[2] axes = {1, 2}"
                for mode in ("reflect", "edge")
            ),
        ],
    ),
    (
        18,
        "float[2, 4, 6] x",
        {},
        [f"y = {kind} <noop_with_empty_axes = 0> (x)" for kind in ("ReduceMean", "ReduceL2", "ReduceMax")],
    ),
    (
        18,
        PIXELS,
        {},
        ["y = GroupNormalization <num_groups = 2> (x, s, b) where float[2] s = {1, 2}, float[2] b = {0, 1}"],
    ),
    (
        21,
        PIXELS,
        {},
        ["y = GroupNormalization <num_groups = 3, epsilon = 0.1> (x, s, b) where float[6] s, float[6] b"],
    ),
    (
        23,
        ROWS,
        {},
        [
            "y = RMSNormalization <epsilon = 0.1> (x, s) where float[5] s",
            "y = RMSNormalization <axis = 1> (x, s) where float[3, 5] s",
        ],
    ),
    (
        18,
        BOTH,
        {},
        [
            text
            for reduction in ("none", "add")
            for text in (
                f'y = ScatterND <reduction = "{reduction}"> (x, p, new) '
                "where int64[2, 2, 2] p = {0, 3, 0, 1, 1, 0, 1, 2}",
                f'y = ScatterElements <axis = 1, reduction = "{reduction}"> (x, p, new) where int64[2, 2, 6] '
                "p = {3, 3, 3, 3, 3, 3, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2}",
            )
        ],
    ),
]

ALL = [
    (opset, inputs, values, text)
    for opset, inputs, values, texts in [*((17, *case) for case in CASES), *LATER]
    for text in texts
]


@pytest.mark.parametrize(("opset", "inputs", "values", "text"), ALL, ids=[case[-1] for case in ALL])
def test_a_gradient_is_that_of_differences(opset, inputs, values, text):
    assert_gradients(inputs, text, opset, **values)


def test_every_rule_is_tested():
    tested = {kind for case in ALL for kind in re.findall(r"= (\w+) (?:<.*?> )?\(", case[-1])}
    assert RULES.keys() - tested == {"GridSample"}, "which has a test of its own"


@pytest.mark.parametrize(
    ("text", "slopes"),
    [
        ("square = Mul (x, x) y = Sqrt (square)", [0, 1]),
        ("square = Mul (x, x) y = Log (square)", [0, 1]),
        ("square = Mul (x, x) y = Pow (square, p) where float p = {0.5}", [0, 1]),
        ("square = Mul (x, x) y = Pow (square, p) where float p = {0}", [0, 0]),
        ("y = ReduceL2 <axes = [0], keepdims = 1> (x)", [0, 1]),
        ("y = LpNormalization <axis = 0> (x)", [1e12, 0]),
    ],
)
def test_slopes_at_zero_are_finite(text, slopes):
    """So that what comes before may make nothing of them: the root of a square, as of a spectrogram."""
    feed = {"x": np.float32([[0, 2]]), "direction": np.ones((1, 2), np.float32)}
    found = run(with_gradients(network("float[1, 2] x", text), "x"), feed)
    np.testing.assert_allclose(found[1], [slopes], rtol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "text", "kinds"),
    [
        # What cannot be picked is left to ONNX Runtime to refuse.
        (TABLE, "y = Gather <axis = 1> (x, p) where int64[2] p = {0, 4}", {"ScatterElements"}),
        (
            TABLE,
            "y = Slice (x, start, end, axes, steps) where int64[1] start = {0}, int64[1] end = {2}, "
            "int64[1] axes = {1}, int64[1] steps = {0}",
            {"ScatterElements"},
        ),
        # Blocks of equal elements are averaged.
        (
            RESIZED,
            "y = Resize (x, none, s) where float[0] none = {}, float[4] s = {1, 1, 2, 3}",
            {"Resize", "AveragePool", "Mul"},
        ),
    ],
)
def test_how_a_gradient_is_computed(inputs, text, kinds):
    made = {node.op_type for node in with_gradients(network(inputs, text), "x").graph}
    assert made == kinds if "Resize" in kinds else kinds <= made


def grid_of(pixels, align_corners):
    """Places in pixels of an image of 5 by 7, x and y along the last axis, as GridSample takes them."""
    sizes = np.float32([7, 5])
    reach = sizes - 1 if align_corners else sizes
    return (pixels - (sizes - 1) / 2) / (reach / 2)


@pytest.mark.parametrize(("opset", "mode"), [(16, "bilinear"), (20, "linear")])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_images_and_places(opset, mode, align_corners):
    random = np.random.default_rng(1)
    # Between two pixels and as far as two outside of the image, but not close to where the slope changes.
    pixels = random.integers(-2, [8, 6], (2, 4, 6, 2)) + random.uniform(0.3, 0.7, (2, 4, 6, 2))
    text = f'y = GridSample <mode = "{mode}", align_corners = {align_corners}> (x, grid)'
    assert_gradients(SAMPLED, text, opset, grid=grid_of(pixels, align_corners))


def test_a_place_between_four_pixels_by_hand():
    feed = {
        "x": np.arange(35, dtype=np.float32).reshape(1, 1, 5, 7),
        "grid": grid_of(np.float32([[[[2.25, 3.5]]]]), 0),
        "direction": np.full((1, 1, 1, 1), 2, np.float32),
    }
    model = network("float[1, 1, 5, 7] x, float[1, 1, 1, 2] grid", "y = GridSample (x, grid)")
    value, images, places = run(with_gradients(model, "x", "grid"), feed)
    assert value.item() == pytest.approx(2.25 + 3.5 * 7)
    expected = np.zeros((5, 7))
    expected[3:5, 2:4] = 2 * np.outer([0.5, 0.5], [0.75, 0.25])
    np.testing.assert_allclose(images[0, 0], expected, atol=1e-5)
    # A step of one pixel to the right adds 1, one down adds the width.
    np.testing.assert_allclose(places.ravel(), [2 * 7 / 2, 2 * 7 * 5 / 2], rtol=1e-4)


def test_gradients_of_tensors_inside():
    text = "a = MatMul (x, w) y = MatMul (a, w) where float[2, 2] w = {1, 2, 3, 4}"
    made = with_gradients(network("float[N, 2] x", text), "a", "y")
    direction = np.array([[1, -1]], np.float32)
    _, inside, last = run(made, {"x": np.ones((1, 2), np.float32), "direction": direction})
    np.testing.assert_array_equal(inside, direction @ [[1, 3], [2, 4]])
    np.testing.assert_array_equal(last, direction)


@pytest.mark.parametrize(
    ("inputs", "text", "reason"),
    [
        (ROWS, "y = Max (x, x)", "it reads a tensor twice"),  # and would get the gradient twice
        (
            TABLE,
            "shape = Shape <start = 1, end = 2> (x) axes = Sub (shape, three) y = ReduceMean (x, axes) "
            "where int64[1] three = {3}",
            "its input 1 is computed",
        ),
        *(
            (TABLE, f"y = {kind} <noop_with_empty_axes = 1> (x)", "it reduces no axis")
            for kind in ("ReduceMean", "ReduceL2", "ReduceMax")
        ),
        (PIXELS, "y = LRN <size = 2> (x)", "its window has no channel in the middle"),
        (ROWS, "y = LpNormalization <p = 1> (x)", "it divides by another norm than the Euclidean one"),
        (
            BOTH,
            'y = ScatterND <reduction = "mul"> (x, p, new) where int64[2, 2, 2] p = {0, 3, 0, 1, 1, 0, 1, 2}',
            "its reduction is 'mul'",
        ),
        (
            RESIZED,
            'y = Resize <mode = "linear", antialias = 1> (x, none, s) '
            "where float[0] none = {}, float[4] s = {1, 1, 0.5, 0.5}",
            "what it resizes is no image, or it smooths it",
        ),
        (
            FIXED,
            'y = Resize <keep_aspect_ratio_policy = "not_larger"> (x, none, none, sizes) '
            "where float[0] none = {}, int64[4] sizes = {2, 3, 8, 8}",
            "it keeps the ratio",
        ),
        (
            RESIZED,
            'y = Resize <coordinate_transformation_mode = "tf_crop_and_resize"> (x, none, s) '
            "where float[0] none = {}, float[4] s = {1, 1, 2, 2}",
            "it resizes a part",
        ),
        *(
            (IMAGES, f'y = Einsum <equation = "{equation}"> (x, w) where float[4, 6] w', f"'{equation}'")
            for equation in ("nchw,ck->nkh", "...hw,kw->...hk")
        ),
        (
            "float[N, 4, 4, 6] x",
            'y = Einsum <equation = "nccw,ck->nkw"> (x, w) where float[4, 6] w',
            "'nccw,ck->nkw'",
        ),
        (
            "float[1, 3] x",
            'y = Einsum <equation = "bc,bc->bc"> (x, w) where float[4, 3] w',
            "it broadcasts 'b'",
        ),
        ("float[N, K, 3, 5] x, float[N, 1, 5, 6] z", "y = MatMul (x, z)", "whether 'x' is broadcast"),
        (
            IMAGES,
            'y = ConvTranspose <auto_pad = "SAME_UPPER"> (x, w) where float[4, 6, 3, 3] w',
            "its padding is chosen when it runs",
        ),
        (
            "float[2, 5] x",
            "y = Gemm <transA = 1> (x, w) where float[2, 3] w",
            "its first operand is transposed",
        ),
        (
            "float[N, 4, h, w] x",
            "y = Conv <strides = [2, 2]> (x, c) where float[6, 4, 1, 1] c",
            "the shape of 'x' depends on the data",
        ),
        *(
            (SAMPLED, f"y = GridSample <{attribute}> (x, grid)", "its mode is")
            for attribute in ('mode = "nearest"', 'padding_mode = "border"', 'padding_mode = "reflection"')
        ),
        (
            "float[N, 3, 2, 5, 7] x, float[N, 1, 4, 6, 3] grid",
            "y = GridSample (x, grid)",
            "what it samples are no images",
        ),
        (
            "float[N, 3, 1, 7] x, float[N, 4, 6, 2] grid",
            "y = GridSample <align_corners = 1> (x, grid)",
            "its images are one pixel wide or high",
        ),
        ("float[N, 2, 2] x", "y = Det (x)", "the gradient of this operator is not known"),
        ("float[1, 4, 7] x, float[6, 4, 1] z", "y = Conv (x, z)", "its input 1 is computed"),
        (
            "float[1, 4, 7] x, float[6] b",
            "y = Conv (x, w, b) where float[6, 4, 1] w",
            "the gradient of its input 2 is not known",
        ),
        # Inputs that a rule leaves out: a scale, biases, a bound, and what is padded with.
        *(
            (
                "float[1, 2] x",
                f"a = ReduceMean <keepdims = 0> (x, axes) y = {text} where int64[{len(axes)}] "
                f"axes = {{{', '.join(axes)}}}, float[2] ones = {{1, 1}}, int64[4] pads = {{0, 1, 0, 1}}",
                f"the gradient of its input {missing} is not known",
            )
            for text, axes, missing in [
                ("LayerNormalization (x, a)", "0", 1),
                ("LayerNormalization (x, ones, a)", "0", 2),
                ("Clip (x, , a)", "01", 2),
                ("Pad (x, pads, a)", "01", 2),
                ("BatchNormalization (x, ones, a, ones, ones)", "0", 2),
            ]
        ),
        *(
            ("float[N, 2] x", f"a = Cast <to = {kind}> (x) b = Cast <to = 1> (a) y = Add (x, b)", None)
            for kind in (10, 11)
        ),
    ],
)
def test_what_has_no_gradient(inputs, text, reason):
    made = network(inputs, text, 20 if "GridSample" in text else 18)
    wanted = r"Cast '.': it changes the type" if reason is None else rf"\w+ 'y': .*{re.escape(reason)}"
    with pytest.raises(NoGradientError, match=wanted):
        with_gradients(made, *(value.name for value in made.graph.inputs))
