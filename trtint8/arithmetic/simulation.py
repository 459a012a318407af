"""A float network as a backend computes it with integers, as a model that ONNX Runtime runs.

Integers are carried as floats. A sum of products of integers is exact in float32 while it stays below 2^24 on
the way, and in float64 while it stays below 2^53, in whatever order it is added up. Matrix products are
computed in the type that holds them. Convolutions, which ONNX Runtime has in float32 alone, have their
weights taken apart into digits so small that no sum can reach 2^24; the sums of the digits are put together
in float64. So sums are known exactly even where an accumulator of 32 bits could not hold them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import Array, FeedDict, Float32s
from calibrators.errors import ModelError, counted, enumerated
from calibrators.operators import operator_of
from calibrators.tables.table import CalibrationTable
from trtint8.arithmetic.storage import (
    InnerTensor,
    Pairs,
    Read,
    Stored,
    bias_of,
    further_outputs,
    stored,
    take_pairs,
)
from trtint8.interop.pairs import replace_value
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph import (
    constant_input,
    graph_values,
    is_constant,
    read_constant,
    take_name,
    value_names,
)
from trtint8.models.graph_writer import GraphWriter, Term
from trtint8.models.model import Model, prepare
from trtint8.models.outputs.picked import computed_among, computes_all
from trtint8.models.session import open_graph_model
from trtint8.quantization.config import Arithmetic, Rounding, State, TensorQuantConfig, quantize

#: Below it float32 holds every integer.
_EXACT = 2**24

#: The largest float32 below one half. Added to any magnitude in float32, and rounded down, it gives what is
#: rounded half away from zero; one half itself would round 0.49999997 up.
_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))


@dataclass(frozen=True)
class Integers:
    """How a float model is computed in integers.

    Attributes:
        arithmetic: The backend.
        table: The ranges of its activations; None where Q/DQ pairs in the model say them.
        keep_float: Names of layers that stay in float.
    """

    arithmetic: Arithmetic
    table: CalibrationTable | None = None
    keep_float: tuple[str, ...] = ()

    def ranges_alone(self) -> Integers:
        """The same without what a table says besides ranges, which may be large.

        Its histograms stay where the two sides of a range need not be the same, because they tell the sides.
        """
        if self.table is None or not self.arithmetic.activations.symmetric:
            return self
        origin = self.table.provenance
        return replace(self, table=CalibrationTable(self.table.amax, provenance=origin))


@dataclass(frozen=True)
class InIntegers:
    """What a backend computed in integers.

    Attributes:
        arithmetic: The backend's name.
        largest_sums: Name of each node that multiplies integers to the largest magnitude of its sums.
        accumulator: The largest magnitude that the backend's accumulator holds.
        in_float: Operator to the number of its nodes that compute in float.
        without_range: Names of the activations that stay in float because the table has no range for them.
    """

    arithmetic: str
    largest_sums: Mapping[str, int]
    accumulator: int
    in_float: Mapping[str, int] = field(default_factory=dict)
    without_range: tuple[str, ...] = ()

    def joined(self, other: InIntegers) -> InIntegers:
        """The same of more batches.

        Args:
            other: What the same backend computed of the same model on other batches.
        """
        sums = {name: max(largest, other.largest_sums[name]) for name, largest in self.largest_sums.items()}
        return replace(self, largest_sums=sums)

    @property
    def summary(self) -> str:
        """One sentence about the sums, and what stays in float."""
        layer, largest = max(self.largest_sums.items(), key=lambda item: item[1])
        layers = counted(len(self.largest_sums), "layer")
        words = (
            f"{layers} in integers; the largest sum, {largest} in '{layer}', takes "
            f"{100 * largest / self.accumulator:.2g} % of the accumulator"
        )
        if self.in_float:
            counts = (f"{count} {operator}" for operator, count in self.in_float.items())
            words += f"; in float: {', '.join(counts)}"
        if self.without_range:
            words += f"; without a range, and so in float: {enumerated(self.without_range)}"
        return words


@dataclass(frozen=True)
class Simulation:
    """A network as a backend computes it.

    Attributes:
        arithmetic: The backend.
        graph_model: The model; its last output is ``sums``.
        sums: Name of the output that holds the largest magnitude of the sums of every layer, float64.
        layers: Names of the nodes that multiply integers, in the order of ``sums``.
        stored: What is computed on integers.
        inside: Name of each wanted tensor that the backend has, to where it is.
    """

    arithmetic: Arithmetic
    graph_model: ir.Model
    sums: str
    layers: tuple[str, ...]
    stored: Stored
    inside: Mapping[str, InnerTensor] = field(default_factory=dict)


@pause_garbage_collection()
def simulate(
    prepared: Model,
    table: CalibrationTable | None,
    arithmetic: Arithmetic,
    tensors: Sequence[str] = (),
    keep_float: Sequence[str] = (),
) -> Simulation:
    """Makes the model that computes what a backend computes.

    Args:
        prepared: A model from :func:`trtint8.models.model.prepare`; not changed.
        table: The calibration table of a float model; None for a model with Q/DQ pairs.
        arithmetic: The backend.
        tensors: Names of tensors that are wanted; the backend may lack some.
        keep_float: Names of layers that stay in float.

    Raises:
        TableError: The table lacks a range that the backend needs, or was made for another model.
        ModelError: Nothing of the model runs on integers there, a layer scales its sums up, which the backend
            cannot, or a pair is one that the backend has not.
    """
    ranges: CalibrationTable | Pairs = take_pairs(prepared, arithmetic) if table is None else table
    if isinstance(ranges, Pairs):
        prepared = ranges.model
    found = stored(prepared, ranges, arithmetic, keep_float)
    graph_model = prepared.graph_model.clone()
    network = _Network(graph_model, arithmetic, found)
    layers = network.write()
    if not layers:
        raise ModelError(
            f"'{prepared.name}' has no layer that '{arithmetic.name}' computes on integers; leave it in float"
        )
    inside = network.inner_tensors(tensors)
    return Simulation(arithmetic, graph_model, network.sums_output(), layers, found, inside)


class IntegerRuns:
    """A model that is run in integers, batch by batch.

    Args:
        model: The float model, or the Q/DQ model; not changed.
        integers: How it is computed.
        sources: Names of tensors that become outputs, if the model still computes all of them.
        tensors: Names of tensors that become outputs behind them, as far as the backend has them.
        shown: Names of tensors that show what is picked, which become outputs too, as far as they are there.
        threads: Threads for the model; ONNX Runtime's choice where None.

    Attributes:
        outputs: Names of the outputs, in order.
        sources: Names of the tensors behind them.
        inside: Name of each tensor that was wanted, and that the backend has, to where it is.
        further: Names of all values that are given behind the outputs, ``sources`` first.
        description: How the model is run, in words.

    Raises:
        TableError: See :func:`simulate`.
        ModelError: See there.
    """

    def __init__(
        self,
        model: Model,
        integers: Integers,
        sources: Sequence[str],
        tensors: Sequence[str] = (),
        *,
        shown: Sequence[str] = (),
        threads: int | None = None,
    ) -> None:
        self._simulation = simulate(
            prepare(model), integers.table, integers.arithmetic, tensors, integers.keep_float
        )
        graph_model, sums = self._simulation.graph_model, self._simulation.sums
        self.outputs = tuple(value.name or "" for value in graph_model.graph.outputs if value.name != sums)
        self.sources = tuple(sources) if computes_all(graph_model, sources) else ()
        self.description = f"the model '{model.name}' in the arithmetic '{integers.arithmetic.name}'"
        self._largest = np.zeros(len(self._simulation.layers))
        self.inside = self._simulation.inside
        shown = computed_among(graph_model, shown)
        self.further = further_outputs(graph_model, (*self.sources, *shown), self.inside)
        self._session = open_graph_model(graph_model, self.further, threads=threads)

    def run(self, feed: FeedDict) -> list[Array]:
        """Runs a batch.

        Args:
            feed: Input name to array.

        Returns:
            ``outputs``, and ``further`` behind them.

        Raises:
            ModelError: A sum is larger than the accumulator; the first such layer is named.
        """
        found = dict(zip(self._session.output_names, self._session.run(feed), strict=True))
        # Of values that are no numbers there is no largest one.
        self._largest = np.fmax(self._largest, found[self._simulation.sums])
        limit = self._simulation.arithmetic.largest_sum
        for layer, largest in zip(self._simulation.layers, self._largest, strict=True):
            if largest > limit:
                raise ModelError(
                    f"a sum in node '{layer}' reaches {largest:.0f}, and the accumulator of "
                    f"'{self._simulation.arithmetic.name}' holds {limit}; divide its products among two nodes"
                )
        return [found[name] for name in (*self.outputs, *self.further)]

    def found(self) -> InIntegers:
        """Returns what was computed in integers, over all batches so far."""
        simulation = self._simulation
        return InIntegers(
            simulation.arithmetic.name,
            dict(zip(simulation.layers, map(int, self._largest), strict=True)),
            simulation.arithmetic.largest_sum,
            dict(simulation.stored.in_float),
            simulation.stored.without_range,
        )


class _Network:
    """Rewrites a graph."""

    def __init__(self, model: ir.Model, arithmetic: Arithmetic, found: Stored) -> None:
        self._graph, self._arithmetic, self._stored = model.graph, arithmetic, found
        self._writer = GraphWriter(model.graph)
        self._integers: dict[tuple[str, float, int], Term] = {}
        self._rounded: dict[tuple[str, float, int], Term] = {}
        self._largest: list[Term] = []
        #: Names of the activations that are integers, to their configs with scales.
        self._configs = dict(found.outputs)
        self._made: set[ir.Value] = set()

    def write(self) -> tuple[str, ...]:
        """Rewrites all nodes; returns the names of those that multiply integers."""
        layers = []
        for node in tuple(self._graph):
            name = node.name or ""
            for index, value in enumerate(node.inputs):
                if value is not None and (config := self._stored.activations.get((name, index))):
                    self._configs[value.name or ""] = config
            if name in self._stored.products:
                first, second = self._operand(node, 0), self._operand(node, 1)
                if first is not None and second is not None and self._multiply(node, first, second):
                    layers.append(name)
                    continue
            for index, value in enumerate(node.inputs):
                config = self._stored.activations.get((name, index))
                if value is not None and config is not None:
                    node.replace_input_with(index, self._dequantized(value, config).value)
        self._round_outputs()
        return tuple(layers)

    def inner_tensors(self, names: Sequence[str]) -> dict[str, InnerTensor]:
        """Where those of the named tensors are that are still computed."""
        values = {value.name: value for value in graph_values(self._graph)}
        found = {}
        for name in names:
            value, config = values.get(name), self._configs.get(name)
            if value is not None and config is not None and config.scale is not None:
                output = self._dequantized(value, config).value.name or ""
                found[name] = InnerTensor(output, float(config.scale))
            elif value is not None:
                found[name] = InnerTensor(name)
        return found

    def _round_outputs(self) -> None:
        """Rounds the model's outputs that are stored as integers and that no product has made."""
        names = value_names(self._graph)
        for index, value in enumerate(self._graph.outputs):
            name = value.name or ""
            config = self._stored.outputs.get(name)
            if config is None or value in self._made:
                continue
            rounded = self._dequantized(value, config).value
            value.name = take_name(f"{name}_float", names)
            rounded.name = name
            self._graph.outputs[index] = rounded

    def sums_output(self) -> str:
        """Makes the largest sums an output, and puts all nodes into an order in which they can run."""
        largest = self._writer.op("Concat", *self._largest, axis=0).value
        largest.type, largest.shape = ir.TensorType(ir.DataType.DOUBLE), ir.Shape([len(self._largest)])
        self._graph.outputs.append(largest)
        self._graph.sort()
        return largest.name or ""

    def _operand(self, node: ir.Node, index: int) -> _Operand | None:
        value = node.inputs[index]
        assert value is not None, "a product has two operands"
        key = (node.name or "", index)
        config = self._stored.activations.get(key)
        if config is not None:
            return _Operand(self._quantized(value, config), config, None)
        if key not in self._stored.weights:
            return None
        weights = read_constant(value)
        assert weights is not None
        config = self._weight_config(weights, key, node)
        return _Operand(Term(self._writer, value), config, quantize(weights, config) - config.offset)

    def _weight_config(self, weights: Array, read: Read, node: ir.Node) -> TensorQuantConfig:
        if (kept := self._stored.kept_weights.get(read)) is not None:
            return kept
        axis = self._stored.weights[read]
        config = self._arithmetic.weights.along(axis)
        if not np.isfinite(weights).all():
            raise ModelError(f"the weights of node '{node.name}' hold NaN or infinity; correct them")
        if config.symmetric:
            others = tuple(index for index in range(weights.ndim) if index != axis)
            return config.with_amax(np.abs(weights).max(axis=None if axis is None else others)).to(
                State.BAKED
            )
        return config.with_range(float(weights.min()), float(weights.max())).to(State.BAKED)

    def _multiply(self, node: ir.Node, first: _Operand, second: _Operand) -> bool:
        """Puts integer products in the place of a node; returns False where it has to stay in float."""
        convolves = operator_of(node).is_convolution
        if convolves and (second.weights is None or first.weights is not None):
            return False
        sums = self._convolved(node, first, second) if convolves else self._product(node, first, second)
        scale = self._scale(node, first, second)
        output = node.outputs[0]
        ends = self._chain(output) if self._arithmetic.fixed_point else (output,)
        config = self._stored.outputs.get(ends[-1].name or "")
        if config is None:
            self._note(sums)
            result = _as(sums, ir.DataType.FLOAT) * scale
            if (bias := self._bias(node)) is not None:
                result += bias
        else:
            behind = [one for value in ends[1:] if (one := value.producer()) is not None]
            biases = [bias for one in behind if (bias := bias_of(one)) is not None]
            result = self._requantized(node, sums, scale, config, biases)
            for one in behind:
                if bias_of(one) is None:
                    result = _between(result, one, config)
            key = (ends[-1].name or "", float(config.scale or 0), config.offset)
            self._integers[key] = result
            result = self._rounded[key] = result * config.scale
        result.value.type = ir.TensorType(ir.DataType.FLOAT)
        self._made.add(result.value)
        following = [value.producer() for value in ends]
        replace_value(ends[-1], result.value)
        for each in reversed(following):
            if each is not None:
                self._graph.remove(each, safe=True)
        return True

    def _chain(self, output: ir.Value) -> tuple[ir.Value, ...]:
        """The output of a product, and those of the bias and the function that its kernel computes behind it.

        It ends where the backend stores integers; where it does not, there is the output alone.
        """
        chain = [output]
        while chain[-1].name not in self._stored.outputs:
            readers = tuple(chain[-1].uses())
            if len(readers) != 1 or chain[-1].is_graph_output():
                return (output,)
            reader = readers[0][0]
            others = [value for value in reader.inputs if value is not None and value is not chain[-1]]
            joins = bias_of(reader) is not None or reader.op_type in self._arithmetic.fused
            if not joins or not all(is_constant(value) for value in others):
                return (output,)
            chain.append(reader.outputs[0])
        return tuple(chain)

    def _convolved(self, node: ir.Node, values: _Operand, kernel: _Operand) -> Term:
        """The sums of a convolution: float32 where no sum can reach 2^24, else float64."""
        assert kernel.weights is not None
        digits = self._digits(node, values, kernel.weights)
        (first, part), *others = (
            (factor, self._writer.copy(node, [values.term, digit.astype(np.float32)]))
            for factor, digit in digits
        )
        if not others:
            return part
        whole = part.cast(ir.DataType.DOUBLE) * np.float64(first)
        for factor, part in others:
            whole += part.cast(ir.DataType.DOUBLE) * np.float64(factor)
        whole.value.type = ir.TensorType(ir.DataType.DOUBLE)
        return whole

    def _digits(
        self, node: ir.Node, values: _Operand, weights: NDArray[np.int32]
    ) -> list[tuple[int, NDArray[np.int32]]]:
        """Weights as sums of factors times digits, whose sums of products all stay below 2^24."""
        others = tuple(axis for axis in range(weights.ndim) if axis != operator_of(node).weights_axis)
        for bits in (16, 8, 4, 2, 1):
            digits: list[tuple[int, NDArray[np.int32]]] = []
            rest, base, factor = np.abs(weights), 1 << bits, 1
            while not digits or rest.any():
                digits.append((factor, np.sign(weights) * (rest % base)))
                rest, factor = rest // base, factor * base
            if all(
                np.abs(digit).sum(axis=others).max(initial=0) * values.largest < _EXACT for _, digit in digits
            ):
                return digits
        raise ModelError(
            f"node '{node.name}' adds up too many products to be followed exactly; keep it in float"
        )

    def _product(self, node: ir.Node, first: _Operand, second: _Operand) -> Term:
        """The sums of a matrix product: float32 where no sum can reach 2^24, else float64."""
        exact = _largest_sum(node, first, second) < _EXACT
        to = ir.DataType.FLOAT if exact else ir.DataType.DOUBLE
        operands = [
            _as(one.term, to) if one.weights is None else one.weights.astype(to.numpy())
            for one in (first, second)
        ]
        turned = {name: node.attributes.get_int(name, 0) for name in ("transA", "transB")}
        sums = self._writer.op(node.op_type, *operands, **(turned if node.op_type == "Gemm" else {}))
        sums.value.type = ir.TensorType(to)
        return sums

    def _scale(self, node: ir.Node, first: _Operand, second: _Operand) -> Float32s:
        """What a sum is multiplied by, float32, in the shape that broadcasts over the output."""
        scales = []
        for operand in (first, second):
            assert operand.config.scale is not None
            scale = operand.config.scale
            if operator_of(node).is_convolution and operand.config.axis is not None:
                assert operand.weights is not None
                scale = scale.reshape(-1, *[1] * (operand.weights.ndim - 2))
            scales.append(np.float32(1) / scale if operand.config.inverse else scale)
        product = scales[0] * scales[1]
        if first.config.inverse:
            product = np.float32(1) / product
        if node.op_type == "Gemm":
            product = product * np.float32(node.attributes.get_float("alpha", 1.0))
        return np.asarray(product, np.float32)

    def _bias(self, node: ir.Node) -> ir.Value | None:
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is None:
            return None
        if operator_of(node).is_convolution:
            kernel = node.inputs[1]
            rank = len(kernel.shape) if kernel is not None and kernel.shape is not None else 4
            return self._writer.op("Reshape", bias, [-1, *[1] * (rank - 2)]).value
        beta = node.attributes.get_float("beta", 1.0)
        return bias if beta == 1.0 else self._writer.op("Mul", bias, beta).value

    def _requantized(
        self,
        node: ir.Node,
        sums: Term,
        scale: Float32s,
        config: TensorQuantConfig,
        further: Sequence[ir.Value],
    ) -> Term:
        """The integers of an output, less its offset, by QNNPACK's fixed-point multiplication."""
        assert config.scale is not None
        sums = _as(sums, ir.DataType.DOUBLE)
        for bias in (self._bias(node), *further):
            if bias is not None:
                assert self._arithmetic.biases is not None, "sums of integers take biases of integers"
                whole = self._quantized(bias, self._arithmetic.biases.with_scale(scale))
                sums += whole.cast(ir.DataType.DOUBLE)
        self._note(sums)
        # The mantissa of 24 bits stands in the upper bits of a multiplier of 31 bits.
        ratio = np.float32(scale / config.scale)
        if not ratio < 1:
            raise ModelError(
                f"node '{node.name}' multiplies its sums by {float(ratio):g}, and '{self._arithmetic.name}' "
                "takes factors below 1 only; give its output a wider range"
            )
        mantissa, exponent = np.frexp(np.float64(ratio))
        upper = (sums * mantissa + np.float64(0.5)).op("Floor")
        rounded = _half_away(upper * np.float64(2.0) ** int(exponent), np.float64(0.5))
        return _clipped(rounded, config, np.float64).cast(ir.DataType.FLOAT)

    def _quantized(self, value: ir.Value, config: TensorQuantConfig) -> Term:
        """The integers of an activation, less its offset, as float32."""
        assert config.scale is not None
        key = (value.name or "", float(config.scale), config.offset)
        if key not in self._integers:
            term = Term(self._writer, value)
            quotients = term * (np.float32(1) / config.scale) if config.inverse else term / config.scale
            self._integers[key] = _clipped(_round(quotients, config.rounding), config, np.float32)
        return self._integers[key]

    def _dequantized(self, value: ir.Value, config: TensorQuantConfig) -> Term:
        assert config.scale is not None
        key = (value.name or "", float(config.scale), config.offset)
        if key not in self._rounded:
            self._rounded[key] = (self._quantized(value, config) * config.scale).like(value)
        return self._rounded[key]

    def _note(self, sums: Term) -> None:
        """Adds the largest magnitude of a layer's sums to what is reported.

        It also gives sums a second reader. Without one ONNX Runtime would fold the scale that follows into
        the weights, which would be no integers any more.
        """
        largest = sums.op("ReduceMax", keepdims=0).op("Max", -sums.op("ReduceMin", keepdims=0))
        self._largest.append(largest.cast(ir.DataType.DOUBLE).op("Reshape", [1]))


def _as(term: Term, to: ir.DataType) -> Term:
    """A tensor in a type, which it may have already."""
    return term if term.value.dtype == to else term.cast(to)


def _between(integers: Term, node: ir.Node, config: TensorQuantConfig) -> Term:
    """Integers between the ends of the function behind a product, which are rounded to integers."""
    assert config.scale is not None
    limits = [np.float32(0 if node.op_type == "Relu" else -np.inf), np.float32(np.inf)]
    if node.op_type == "Clip":
        for index, limit in enumerate(limits):
            end = constant_input(node, index + 1)
            limits[index] = limit if end is None else np.rint(np.float32(end) / config.scale)
    return integers.op("Clip", *limits)


def _round(values: Term, rounding: Rounding) -> Term:
    """Rounds float32 to integers, as :func:`trtint8.quantization.config.round_values` does."""
    match rounding:
        case Rounding.HALF_EVEN:
            return values.op("Round")
        case Rounding.UP:
            return values.op("Ceil")
        case Rounding.HALF_UP:
            # The largest number below one half is no half, on either side; above 2^22 there are no halves.
            return (((values + values).op("Floor") + 1) * 0.5).op("Floor")
        case Rounding.HALF_DOWN:
            return -_round(-values, Rounding.HALF_UP)
        case Rounding.HALF_TOWARD_ZERO:
            return values.op("Sign") * _round(values.op("Abs"), Rounding.HALF_DOWN)
    away = rounding is Rounding.HALF_AWAY_FROM_ZERO
    return _half_away(values, _BELOW_HALF if away else np.float32(0.5))


def _half_away(values: Term, half: np.floating) -> Term:
    return values.op("Sign") * (values.op("Abs") + half).op("Floor")


def _clipped(values: Term, config: TensorQuantConfig, kind: type[np.floating]) -> Term:
    return values.op("Clip", kind(config.quant_min - config.offset), kind(config.quant_max - config.offset))


@dataclass(frozen=True)
class _Operand:
    """One operand of a product of integers.

    Attributes:
        term: Its integers, less the offset, as float32; of weights the value that was read.
        config: Its config, with the scale.
        weights: The integers of weights, less the offset; None for an activation.
    """

    term: Term
    config: TensorQuantConfig
    weights: NDArray[np.int32] | None

    @property
    def largest(self) -> int:
        """The largest magnitude that its integers may have."""
        return max(abs(end - self.config.offset) for end in (self.config.quant_min, self.config.quant_max))


def _largest_sum(node: ir.Node, first: _Operand, second: _Operand) -> float:
    """What no sum of a matrix product exceeds, on the way either; infinite where the inner size is open."""
    gemm = node.op_type == "Gemm"
    inner = 0 if node.attributes.get_int("transA", 0) else -1
    if second.weights is not None:
        along = 1 if node.attributes.get_int("transB", 0) else 0 if gemm or second.weights.ndim == 1 else -2
        return float(np.abs(second.weights).sum(axis=along).max(initial=0)) * first.largest
    if first.weights is not None:
        return float(np.abs(first.weights).sum(axis=inner).max(initial=0)) * second.largest
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    size = shape[inner] if shape is not None and len(shape) else None
    return size * first.largest * second.largest if isinstance(size, int) else math.inf
