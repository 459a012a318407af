"""What each ONNX operator is: a row for it, and everything that asks for a property asks this table.

A row says facts that ONNX's definition of the operator gives, or that follow from its arithmetic. Which
kernels a TensorRT has for it differs between targets, and stands in ``trtint8/quantization/targets.py``. What
a property means for one node, given its attributes, is decided where the property is used.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

_INFINITY = math.inf

#: ONNX Runtime's own domains. It knows one version of each, whether a model says so or not.
RUNTIME_DOMAINS = ("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc")


class Values(enum.IntEnum):
    """How an operator's results come from the values of its data, from the least to the most that happens.

    Attributes:
        SAME: The results are the data, in their place and shape. A Dropout counts as it is in inference.
        CONVERTED: The same in another element type.
        RESHAPED: The same values in the same order, in another shape.
        REORDERED: Each value once, at another place.
        PLACED: Values of the data, some of them left out or repeated. No value of the data decides which.
        CHOSEN: Values of the data that are chosen by their size, such as the largest.
        AVERAGED: Means of values of the data, whose weights add up to 1.
        AVERAGED_WITH_ZEROS: The same, with zeros among the values.
        COMPUTED: Anything else.
    """

    SAME = 0
    CONVERTED = 1
    RESHAPED = 2
    REORDERED = 3
    PLACED = 4
    CHOSEN = 5
    AVERAGED = 6
    AVERAGED_WITH_ZEROS = 7
    COMPUTED = 8


class Axes(enum.Enum):
    """What the axes of an operator's data mean to it.

    Attributes:
        ELEMENTWISE: Nothing: each element is computed from those at the same place, with broadcasting.
        IMAGES: The first input is (samples, channels, spatial...), and each sample is computed by itself.
            Coordinates are those of each sample, and all else that is read are weights.
        ONE: It works along the axis of its attribute ``axis``, or along that and all behind it.
        SEVERAL: It works along the axes of its attribute or its input ``axes``.
    """

    ELEMENTWISE = enum.auto()
    IMAGES = enum.auto()
    ONE = enum.auto()
    SEVERAL = enum.auto()


class Product(enum.Enum):
    """Which products of matrices an operator computes.

    Attributes:
        CONVOLUTION: Windows of images with a kernel.
        MATRICES: Two matrices, or stacks of them.
        RECURRENT: The steps of a sequence, one after another.
        OTHER: Products of another form.
    """

    CONVOLUTION = enum.auto()
    MATRICES = enum.auto()
    RECURRENT = enum.auto()
    OTHER = enum.auto()


class Picks(enum.Enum):
    """What an operator picks by the values of its data.

    Attributes:
        ELEMENTS: Elements in the order of their values, or so many as there are.
        PLACES: The place of one element in each row, such as its class.
    """

    ELEMENTS = enum.auto()
    PLACES = enum.auto()


class Shown(enum.Enum):
    """How a result shows what its operator picks by comparing values.

    Attributes:
        PLACES: Each element is the place of one pick.
        SETS: Each row along the axis holds places, whose order does not matter.
        ROWS: Each row is one pick, and begins with the number of its sample.
        COLUMNS: Each column is one pick, and begins with the number of its sample.
        MASK: What is not zero is picked. All that is compared is computed.
        BEYOND: What is not zero is picked, because it lies beyond a bound or beyond another value.
    """

    PLACES = enum.auto()
    SETS = enum.auto()
    ROWS = enum.auto()
    COLUMNS = enum.auto()
    MASK = enum.auto()
    BEYOND = enum.auto()


class Integers(enum.Enum):
    """Where the scales of an operator come from that computes on the integers of quantized tensors.

    Attributes:
        CONSTANT_SCALES: From its inputs, which are constants.
        RUN_TIME_SCALES: From the values of a batch, or from nodes around it.
    """

    CONSTANT_SCALES = enum.auto()
    RUN_TIME_SCALES = enum.auto()


@dataclass(frozen=True)
class Bound:
    """How large a result may be: ``factor`` times the magnitude of the first input, and ``added`` to that.

    Attributes:
        factor: The factor.
        added: What may be added.
        alpha: Whether the attribute ``alpha`` may make both larger.
    """

    factor: float = 1.0
    added: float = 0.0
    alpha: bool = False


@dataclass(frozen=True)
class Operator:
    """One row: the properties of an operator.

    Every default says that nothing is known: the operator stays in float, its samples are not taken apart, no
    pair and no factor passes through it, and its results have no bounds. An operator without a row has all
    defaults, and stays in FP32 as well.

    Attributes:
        values: How its results come from the values of its data.
        data: Indices of the inputs that hold its data; None for all.
        results: Indices of the outputs that hold its results; None for all. Others are places or masks.
        axes: What the axes of its data mean to it.
        axis: The default of its attribute ``axis``.
        axes_input: Index of the input that holds its axes, where no attribute does.
        homogeneous: Whether f(s x) = s f(x) for every factor s > 0 of its first input.
        affine: Indices of the constants with which it ends: a factor and an offset per channel.
        product: Which products of matrices it computes.
        no_pairs: Why it gets no Q/DQ pairs although it computes products, in words for the user.
        weights_axis: The axis of the output channels in its weights; None where attributes or ranks decide.
        weights: Indices of the weights that it multiplies by, which are finite; empty where it computes with
            constants that may be infinite, and None where they may be NaN as well.
        addends: Indices of the inputs that are added to something; of an operator with weights, its bias.
        ends: The lowest and the highest value that a result may have, whatever the input.
        bound: How large a result may be beside the first input; None where ``values`` or ``ends`` tell, or
            nothing does.
        decides: Indices of the inputs by whose values it decides.
        compares: Whether it compares two tensors element by element.
        coordinates: Indices of the inputs that hold coordinates, or from which it makes some.
        steep: Whether a small change of its input may change its result at will: a function of angles, which
            may be far beyond one turn, or a logarithm of what may be near zero.
        loses_in_fp16: What it does that FP16 may not hold, in words after "it". Squares, sums and
            exponentials of ordinary values leave FP16's range, above or below. Roots, quotients and
            logarithms of values that were rounded to zero are infinite or undefined.
        few_large: Whether its results are few large values among many small ones, or the reverse, which one
            INT8 scale serves badly.
        hides: Index of the input from which it takes minus infinity for what is hidden.
        reads_shape: Whether it reads the shape of a tensor and none of its values.
        random: Whether its results are random. A Dropout is not: in inference it drops nothing.
        picks: What it picks by the values of its data.
        shows: How one of its results shows what it picks, if one does.
        shown_in: Index of that result.
        narrows: Whether a result is zero, or false, wherever one of its inputs is.
        open_size: Whether its results are as many as it finds, which may be none.
        no_tensors: Whether it makes sequences or optional values.
        writes_into: Whether it writes into a copy of its first input.
        pools: Whether it pools a window that moves over its data, with paddings and rounded sizes.
        half_of_pair: Whether it is one of the two operators of Q/DQ pairs.
        integers: Where its scales come from, if it computes on the integers of quantized tensors.
        integer_weights: Indices of its integer weights and of their zero point, which may be left out.
        stand_in: An operator of ONNX whose output has the same type and shape, for where ONNX infers nothing.
        runs_below: The opset from which on ONNX Runtime does not have it, if it is none of ONNX's operators.
    """

    values: Values = Values.COMPUTED
    data: tuple[int, ...] | None = (0,)
    results: tuple[int, ...] | None = (0,)
    axes: Axes | None = None
    axis: int = 0
    axes_input: int = 1
    homogeneous: bool = False
    affine: tuple[int, ...] = ()
    product: Product | None = None
    no_pairs: str = ""
    weights_axis: int | None = None
    weights: tuple[int, ...] | None = None
    addends: tuple[int, ...] = ()
    ends: tuple[float, float] = (-_INFINITY, _INFINITY)
    bound: Bound | None = None
    decides: tuple[int, ...] = ()
    compares: bool = False
    coordinates: tuple[int, ...] = ()
    steep: bool = False
    loses_in_fp16: str = ""
    few_large: bool = False
    hides: int | None = None
    reads_shape: bool = False
    random: bool = False
    picks: Picks | None = None
    shows: Shown | None = None
    shown_in: int = 0
    narrows: bool = False
    open_size: bool = False
    no_tensors: bool = False
    writes_into: bool = False
    pools: bool = False
    half_of_pair: bool = False
    integers: Integers | None = None
    integer_weights: tuple[int, int] | None = None
    stand_in: str = ""
    runs_below: float = 0

    @property
    def multiplies(self) -> bool:
        """Whether it computes products of matrices: of these INT8 is counted."""
        return self.product is not None

    @property
    def is_weighted(self) -> bool:
        """Whether it computes products and gets Q/DQ pairs: those are what quantization speeds up."""
        return self.product is not None and not self.no_pairs

    @property
    def is_convolution(self) -> bool:
        """Whether it computes products with kernels and gets Q/DQ pairs."""
        return self.is_weighted and self.product is Product.CONVOLUTION

    @property
    def keeps_order(self) -> bool:
        """Whether its first output has the values of its first input in their order, perhaps converted."""
        return self.values <= Values.RESHAPED

    @property
    def rearranges(self) -> bool:
        """Whether its first output has the values of its first input, each as often."""
        return self.values <= Values.REORDERED and self.values is not Values.CONVERTED

    @property
    def moves(self) -> bool:
        """Whether its results are values of its data, wherever; which ones, no value of the data decides."""
        return self.values <= Values.PLACED and self.values is not Values.CONVERTED

    @property
    def selects(self) -> bool:
        """Whether its results are values of its data, whatever decides which ones."""
        return self.values <= Values.CHOSEN and self.values is not Values.CONVERTED

    def data_among(self, inputs: int) -> tuple[int, ...]:
        """Indices of the inputs that hold its data.

        Args:
            inputs: How many inputs the node has.
        """
        return tuple(index for index in (range(inputs) if self.data is None else self.data) if index < inputs)


class _Node(Protocol):
    """A node of onnx-ir, or a message of ONNX."""

    @property
    def domain(self) -> str: ...

    @property
    def op_type(self) -> str: ...


def operator_of(node: _Node) -> Operator:
    """Returns the row of a node's operator; the safe side where the operator has none."""
    return operator_named(node.op_type, node.domain)


def operator_named(name: str, domain: str = "") -> Operator:
    """Returns the row of an operator; the safe side where it has none.

    Args:
        name: The operator, such as ``Conv``.
        domain: Its domain; the empty one is ONNX's.
    """
    return OPERATORS.get((domain, name), _OF_RUNTIME if domain in RUNTIME_DOMAINS else _UNKNOWN)


#: The row of operators that have none.
_UNKNOWN = Operator(loses_in_fp16="computes something unknown")

#: Why ONNX Runtime's own layers stay in float.
_FROM_OPTIMIZER = (
    "ONNX Runtime's optimizer or one of its quantizers wrote it; give the model from before that"
)

#: The row of ONNX Runtime's own operators that have none. They may be layers, and count as layers in float.
_OF_RUNTIME = Operator(
    product=Product.OTHER, no_pairs=_FROM_OPTIMIZER, loses_in_fp16="computes something unknown"
)

#: Why recurrent operators stay in float.
_NO_RECURRENT = "TensorRT has no INT8 kernel for recurrent operators"

# What several rows have in common.
_elementwise = functools.partial(Operator, axes=Axes.ELEMENTWISE)
_on_images = functools.partial(Operator, axes=Axes.IMAGES)
_along_axes = functools.partial(Operator, axes=Axes.SEVERAL)
_ONE = Axes.ONE
_AS_LARGE = Bound()
_POSITIVE = (0.0, _INFINITY)


def _alike(row: Operator, *names: str) -> dict[str, Operator]:
    """Operators that have the same row."""
    return dict.fromkeys(names, row)


#: The operators of ONNX's own domain.
_ONNX: Mapping[str, Operator] = {
    # --- Layers: products of matrices ---
    "Attention": Operator(
        product=Product.OTHER,
        no_pairs="its softmax is inside the operator, where no Q/DQ pair can stand; exported with an opset "
        "older than 23, it could be quantized",
        hides=3,
    ),
    "CausalConvWithState": Operator(),
    "Conv": _on_images(product=Product.CONVOLUTION, weights_axis=0, addends=(2,), weights=(1,)),
    "ConvTranspose": _on_images(product=Product.CONVOLUTION, weights_axis=1, addends=(2,), weights=(1,)),
    "DeformConv": Operator(
        product=Product.CONVOLUTION,
        no_pairs="TensorRT has no INT8 kernel for deformable convolutions",
        weights_axis=0,
        addends=(3,),
        weights=(1,),
    ),
    "Einsum": Operator(
        product=Product.OTHER,
        no_pairs="it is no product of two matrices, so it cannot become a MatMul, which would be quantized",
        weights=(0, 1),
    ),
    **_alike(
        Operator(product=Product.RECURRENT, no_pairs=_NO_RECURRENT, weights=(1, 2)), "GRU", "LSTM", "RNN"
    ),
    "Gemm": Operator(product=Product.MATRICES, addends=(2,), weights=(0, 1)),
    "LinearAttention": Operator(),
    "MatMul": Operator(product=Product.MATRICES, weights=(0, 1)),
    # --- What computes on the integers of quantized tensors, and the pairs themselves ---
    "ConvInteger": Operator(integers=Integers.RUN_TIME_SCALES),
    "DequantizeLinear": Operator(half_of_pair=True),
    "DynamicQuantizeLinear": Operator(),
    "MatMulInteger": Operator(integers=Integers.RUN_TIME_SCALES, integer_weights=(1, 3)),
    "QLinearConv": Operator(integers=Integers.CONSTANT_SCALES),
    "QLinearMatMul": Operator(integers=Integers.CONSTANT_SCALES),
    "QuantizeLinear": Operator(half_of_pair=True, weights=(0,)),
    # --- What moves values ---
    "Cast": _elementwise(Values.CONVERTED),
    "CastLike": _elementwise(Values.CONVERTED),
    "Compress": Operator(Values.PLACED, picks=Picks.ELEMENTS, open_size=True),
    "Concat": Operator(Values.PLACED, data=None, axes=_ONE),
    "DepthToSpace": _on_images(Values.REORDERED),
    # One whose mode is computed at run time counts as in inference too.
    "Dropout": _elementwise(Values.SAME, homogeneous=True),
    **_alike(Operator(Values.PLACED), "Expand", "GatherElements", "GatherND", "Tile"),
    "Flatten": Operator(Values.RESHAPED),
    "Gather": Operator(Values.PLACED, axes=_ONE),
    "Identity": _elementwise(Values.SAME, homogeneous=True),
    "Pad": Operator(Values.PLACED, data=(0, 2)),
    "Reshape": Operator(Values.RESHAPED),
    "ReverseSequence": Operator(Values.REORDERED),
    "Scatter": Operator(Values.PLACED, data=(0, 2), writes_into=True),
    # With an attribute ``reduction`` they add or multiply what they write.
    "ScatterElements": Operator(data=(0, 2), writes_into=True),
    "ScatterND": Operator(data=(0, 2), writes_into=True),
    "Slice": _along_axes(Values.PLACED, axes_input=3),
    "SpaceToDepth": _on_images(Values.REORDERED),
    "Split": Operator(Values.PLACED, results=None, axes=_ONE),
    "Squeeze": _along_axes(Values.RESHAPED),
    "TensorScatter": Operator(Values.PLACED, data=(0, 1), writes_into=True),
    "Transpose": Operator(Values.REORDERED),
    "Unsqueeze": _along_axes(Values.RESHAPED),
    "Where": _elementwise(Values.PLACED, data=(1, 2)),
    # --- What chooses values by their size ---
    # Its ends are values that it may give out.
    "Clip": _elementwise(Values.CHOSEN, data=(0, 1, 2)),
    "GlobalMaxPool": _on_images(Values.CHOSEN, homogeneous=True),
    "Max": _elementwise(Values.CHOSEN, data=None),
    "MaxPool": _on_images(Values.CHOSEN, homogeneous=True, pools=True),
    "Min": _elementwise(Values.CHOSEN, data=None),
    "ReduceMax": _along_axes(Values.CHOSEN, homogeneous=True),
    "ReduceMin": _along_axes(Values.CHOSEN, homogeneous=True),
    "TopK": Operator(
        Values.CHOSEN,
        axes=_ONE,
        axis=-1,
        decides=(0,),
        picks=Picks.ELEMENTS,
        shows=Shown.SETS,
        shown_in=1,
    ),
    "Unique": Operator(Values.CHOSEN, decides=(0,), picks=Picks.ELEMENTS, open_size=True),
    # --- What averages values, or looks them up between places ---
    "AffineGrid": Operator(coordinates=(0,)),
    "AveragePool": _on_images(Values.AVERAGED_WITH_ZEROS, homogeneous=True, pools=True),
    **_alike(Operator(Values.AVERAGED_WITH_ZEROS), "CenterCropPad", "MaxUnpool", "Trilu"),
    "GlobalAveragePool": _on_images(Values.AVERAGED, homogeneous=True),
    # Cubic interpolation overshoots.
    "GridSample": _on_images(Values.AVERAGED_WITH_ZEROS, homogeneous=True, coordinates=(1,)),
    "MaxRoiPool": Operator(Values.AVERAGED_WITH_ZEROS, coordinates=(1,)),
    "Mean": _elementwise(Values.AVERAGED, data=None),
    "ReduceMean": _along_axes(Values.AVERAGED, homogeneous=True, loses_in_fp16="sums"),
    # Cubic interpolation overshoots, and that of the nearest element places values.
    "Resize": Operator(Values.AVERAGED, coordinates=(1, 2)),
    "RoiAlign": Operator(Values.AVERAGED_WITH_ZEROS, coordinates=(1,)),
    "Upsample": Operator(Values.AVERAGED, coordinates=(1,)),
    # --- Arithmetic ---
    "Abs": _elementwise(homogeneous=True, ends=_POSITIVE, bound=_AS_LARGE),
    "Add": _elementwise(addends=(0, 1), weights=()),
    **_alike(_elementwise(bound=Bound(1.0, 1.0), decides=(0,)), "Ceil", "Floor", "Round"),
    "CumProd": Operator(loses_in_fp16="multiplies"),
    "CumSum": Operator(loses_in_fp16="sums"),
    "Det": Operator(loses_in_fp16="multiplies"),
    "Div": _elementwise(loses_in_fp16="divides", weights=()),
    "Erf": _elementwise(ends=(-1.0, 1.0)),
    "Exp": _elementwise(ends=_POSITIVE, loses_in_fp16="exponentiates"),
    "Log": _elementwise(loses_in_fp16="takes a logarithm", steep=True),
    "Mod": _elementwise(decides=(0, 1)),
    "Mul": _elementwise(weights=(), narrows=True),
    "Neg": _elementwise(homogeneous=True, bound=_AS_LARGE),
    "Pow": _elementwise(loses_in_fp16="raises to a power"),
    "Reciprocal": _elementwise(loses_in_fp16="divides"),
    "Sign": _elementwise(ends=(-1.0, 1.0), decides=(0,)),
    "Sqrt": _elementwise(ends=_POSITIVE, bound=Bound(1.0, 1.0), loses_in_fp16="takes a root"),
    "Sub": _elementwise(addends=(0, 1), weights=()),
    "Sum": _elementwise(weights=()),
    # --- Functions of angles ---
    "Acos": _elementwise(ends=(0.0, math.pi)),
    "Acosh": _elementwise(ends=_POSITIVE, loses_in_fp16="takes a logarithm"),
    "Asin": _elementwise(ends=(-math.pi / 2, math.pi / 2)),
    "Asinh": _elementwise(bound=_AS_LARGE, loses_in_fp16="takes a logarithm"),
    "Atan": _elementwise(ends=(-math.pi / 2, math.pi / 2)),
    "Atanh": _elementwise(loses_in_fp16="takes a logarithm", steep=True),
    "Cos": _elementwise(ends=(-1.0, 1.0), steep=True),
    "Cosh": _elementwise(ends=(1.0, _INFINITY), loses_in_fp16="exponentiates"),
    "Sin": _elementwise(ends=(-1.0, 1.0), steep=True),
    "Sinh": _elementwise(loses_in_fp16="exponentiates"),
    "Tan": _elementwise(steep=True),
    # --- Activation functions ---
    "Celu": _elementwise(bound=Bound(1.0, 1.0, alpha=True)),
    "Elu": _elementwise(bound=Bound(1.0, 1.0, alpha=True)),
    **_alike(_elementwise(bound=_AS_LARGE), "Gelu", "HardSwish", "Mish", "Swish"),
    "HardSigmoid": _elementwise(ends=(0.0, 1.0)),
    "LeakyRelu": _elementwise(homogeneous=True, bound=Bound(1.0, 0.0, alpha=True)),
    "PRelu": _elementwise(homogeneous=True, weights=()),
    "Relu": _elementwise(homogeneous=True, bound=_AS_LARGE),
    "Selu": _elementwise(bound=Bound(1.06, 1.8, alpha=True)),
    "Shrink": _elementwise(),
    "Sigmoid": _elementwise(ends=(0.0, 1.0)),
    "Softplus": _elementwise(ends=_POSITIVE, bound=Bound(1.0, 0.7), loses_in_fp16="exponentiates"),
    "Softsign": _elementwise(ends=(-1.0, 1.0)),
    "SwiGLU": Operator(),
    "Tanh": _elementwise(ends=(-1.0, 1.0)),
    "ThresholdedRelu": _elementwise(bound=_AS_LARGE, stand_in="Identity"),
    # --- Reductions ---
    "ReduceL1": _along_axes(homogeneous=True, ends=_POSITIVE, loses_in_fp16="sums"),
    "ReduceL2": _along_axes(homogeneous=True, ends=_POSITIVE, loses_in_fp16="sums squares"),
    "ReduceLogSum": _along_axes(loses_in_fp16="sums", steep=True),
    "ReduceLogSumExp": _along_axes(loses_in_fp16="sums exponentials"),
    "ReduceProd": _along_axes(loses_in_fp16="multiplies"),
    "ReduceSum": _along_axes(homogeneous=True, loses_in_fp16="sums"),
    "ReduceSumSquare": _along_axes(ends=_POSITIVE, loses_in_fp16="sums squares"),
    "GlobalLpPool": _on_images(homogeneous=True, ends=_POSITIVE, loses_in_fp16="sums powers"),
    "LpPool": _on_images(homogeneous=True, ends=_POSITIVE, loses_in_fp16="sums powers", pools=True),
    # --- Normalizations ---
    # In training it takes its statistics from all samples.
    "BatchNormalization": _on_images(affine=(1, 2), weights=(1,)),
    # Before opset 21 it has a factor and an offset per group, and not per channel.
    "GroupNormalization": _on_images(
        loses_in_fp16="sums squares", few_large=True, stand_in="Identity", weights=(1,)
    ),
    "InstanceNormalization": _on_images(
        affine=(1, 2), loses_in_fp16="sums squares", few_large=True, weights=(1,)
    ),
    "LRN": _on_images(loses_in_fp16="sums squares"),
    "LayerNormalization": Operator(
        axes=_ONE,
        axis=-1,
        affine=(1, 2),
        loses_in_fp16="sums squares",
        few_large=True,
        stand_in="Identity",
        weights=(1,),
    ),
    "LpNormalization": Operator(axes=_ONE, axis=-1, ends=(-1.0, 1.0), loses_in_fp16="sums squares"),
    "MeanVarianceNormalization": Operator(loses_in_fp16="sums squares"),
    "RMSNormalization": Operator(
        axes=_ONE, axis=-1, affine=(1,), loses_in_fp16="sums squares", few_large=True, weights=(1,)
    ),
    # ONNX Runtime and TensorRT have it in ONNX's domain: RMSNormalization of before opset 23.
    "SimplifiedLayerNormalization": Operator(
        axes=_ONE,
        axis=-1,
        affine=(1,),
        loses_in_fp16="sums squares",
        few_large=True,
        runs_below=_INFINITY,
        stand_in="Identity",
        weights=(1,),
    ),
    "Hardmax": Operator(axes=_ONE, axis=-1, ends=(0.0, 1.0), decides=(0,), shows=Shown.MASK),
    "LogSoftmax": Operator(
        axes=_ONE, axis=-1, ends=(-_INFINITY, 0.0), loses_in_fp16="takes a logarithm", hides=0
    ),
    "Softmax": Operator(axes=_ONE, axis=-1, ends=(0.0, 1.0), few_large=True, hides=0),
    # --- Comparisons, and what finds places ---
    "And": _elementwise(narrows=True),
    "ArgMax": Operator(axes=_ONE, decides=(0,), picks=Picks.PLACES, shows=Shown.PLACES),
    "ArgMin": Operator(axes=_ONE, decides=(0,), picks=Picks.PLACES, shows=Shown.PLACES),
    "Equal": _elementwise(decides=(0, 1), compares=True, shows=Shown.MASK),
    **_alike(
        _elementwise(decides=(0, 1), compares=True, shows=Shown.BEYOND),
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
    ),
    "IsInf": _elementwise(decides=(0,)),
    **_alike(_elementwise(), "IsNaN", "Not", "Or", "Xor"),
    "NonMaxSuppression": Operator(decides=(0, 1), picks=Picks.ELEMENTS, shows=Shown.ROWS, open_size=True),
    "NonZero": Operator(decides=(0,), picks=Picks.ELEMENTS, shows=Shown.COLUMNS, open_size=True),
    "OneHot": Operator(decides=(0, 1)),
    # --- Shapes and constants ---
    **_alike(Operator(), "Constant", "ConstantOfShape", "EyeLike"),
    "Range": Operator(decides=(0, 1, 2)),
    "Shape": Operator(reads_shape=True),
    "Size": Operator(reads_shape=True),
    # --- Random numbers ---
    **_alike(
        Operator(random=True),
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    ),
    # --- Sequences, optional values and graphs inside nodes ---
    **_alike(
        Operator(),
        "ConcatFromSequence",
        "If",
        "Loop",
        "OptionalGetElement",
        "OptionalHasElement",
        "Scan",
        "SequenceAt",
        "SequenceLength",
    ),
    **_alike(
        Operator(no_tensors=True),
        "Optional",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceMap",
        "SplitToSequence",
    ),
    # --- Bits, signals, texts and losses, of which nothing is known that matters here ---
    **_alike(
        Operator(),
        "BitCast",
        "BlackmanWindow",
        "Col2Im",
        "HammingWindow",
        "HannWindow",
        "ImageDecoder",
        "MelWeightMatrix",
        "NegativeLogLikelihoodLoss",
        "RegexFullMatch",
        "RotaryEmbedding",
        "StringConcat",
        "StringNormalizer",
        "StringSplit",
        "TfIdfVectorizer",
    ),
    **_alike(_elementwise(), "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"),
    "DFT": Operator(loses_in_fp16="sums"),
    "STFT": Operator(loses_in_fp16="sums"),
    "SoftmaxCrossEntropyLoss": Operator(loses_in_fp16="takes a logarithm"),
    # --- What ONNX once tried ---
    **_alike(Operator(stand_in="Identity", runs_below=10), "ImageScaler", "ParametricSoftplus", "ScaledTanh"),
}

#: The operators of ONNX Runtime's own domain.
_RUNTIME: Mapping[str, Operator] = {
    **_alike(Operator(stand_in="Identity"), "BiasGelu", "FastGelu", "Gelu", "QuickGelu"),
    "DequantizeLinear": Operator(half_of_pair=True),
    "DynamicQuantizeLSTM": Operator(integers=Integers.RUN_TIME_SCALES),
    "DynamicQuantizeMatMul": Operator(integers=Integers.RUN_TIME_SCALES, integer_weights=(1, 3)),
    "FusedConv": Operator(
        product=Product.CONVOLUTION, no_pairs=_FROM_OPTIMIZER, stand_in="Conv", weights=(1,)
    ),
    "FusedGemm": Operator(
        product=Product.MATRICES, no_pairs=_FROM_OPTIMIZER, stand_in="Gemm", weights=(0, 1)
    ),
    "MatMulIntegerToFloat": Operator(integers=Integers.RUN_TIME_SCALES, integer_weights=(1, 5)),
    "QAttention": Operator(integers=Integers.CONSTANT_SCALES, integer_weights=(1, 7)),
    **_alike(
        Operator(integers=Integers.CONSTANT_SCALES),
        "QGemm",
        "QLinearAdd",
        "QLinearAveragePool",
        "QLinearConcat",
        "QLinearGlobalAveragePool",
        "QLinearLeakyRelu",
        "QLinearMul",
        "QLinearReduceMean",
        "QLinearSigmoid",
        "QLinearSoftmax",
        "QLinearWhere",
    ),
    "QuantizeLinear": Operator(half_of_pair=True, weights=(0,)),
    "SkipLayerNormalization": Operator(stand_in="Identity", weights=()),
}

#: Domain and name of each operator to its row.
OPERATORS: Mapping[tuple[str, str], Operator] = {
    **{("", name): row for name, row in _ONNX.items()},
    **{(RUNTIME_DOMAINS[0], name): row for name, row in _RUNTIME.items()},
}
