"""A network that says what the error of every layer does to its outputs, for all layers in one run.

To first order, the outputs with one layer in INT8 differ from the float network's by J d, where d is the
error at the layer's output and J the derivative of the outputs with respect to it. For a direction v in the
space of outputs, v J d is the product of d with the gradient of v at the layer's output, and one pass
backwards gives these gradients for all layers. With v of random signs, the mean of its square is the sum of
the squares of J d: the noise of the layer.

Layers that outputs depend on by decisions alone, such as which element is the largest, are found here too.
The gradient of a decision is zero wherever there is one, and yet a decision that turns out differently
changes the outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from calibrators.data.feeds import FeedDict, Flags, Float32s, Floats
from calibrators.data.inputs import InputShapes
from calibrators.operators import operator_of
from trtint8.models.garbage_collection import pause_garbage_collection
from trtint8.models.graph import values_read, weight_bytes
from trtint8.models.graph_writer import GraphWriter, Term, reached_from, static_shape
from trtint8.models.session import ModelSession, open_graph_model
from trtint8.sensitivity.gradients.backward import append_gradients
from trtint8.sensitivity.gradients.rule import BATCH, NoGradientError, elements_per_sample, infer_shapes
from trtint8.simulation.networks import BesideFloat, Layer, Quantizer
from trtint8.simulation.segments import Tensors

#: Directions of a network with small and with large samples, each with a pass backwards of its own. More of
#: them make the noise of a sample more certain, but not that of the other samples: two reach a given interval
#: in a sixth less time than one. Where single samples take long, so few are given that time comes first.
_DIRECTIONS_SMALL, _DIRECTIONS_LARGE = 2, 1

#: Of fewer samples than so many, each has at least so many directions, which make most of what is uncertain
#: then. With 13 and 16 images of two detectors, four of them raised the rank correlation with every layer run
#: by itself from 0.93 and 0.95 to 0.98.
_DIRECTIONS_OF_FEW = ((16, 4), (32, 2))

#: The input that says for which samples the margin is asked for.
_MARGINS = "trtint8_margins"

#: Bytes of layers' outputs that are wanted per run, where samples are not larger. Errors and gradients of the
#: same size come on top. With 4 MiB a ResNet-56 took a tenth more time, with 16 MiB 3 % and a quarter more
#: memory. Larger samples are run one at a time.
_WANTED = 8 << 20

#: The operator that picks what has the largest scores, as detectors pick queries, and how many layers may
#: decide by it alone: each is run by itself, which takes a session with all weights.
_PICKS, _MOST_PICKING = "TopK", 4

#: Bytes of a session of a few hundred nodes without weights; how often it holds these, in float, rounded, and
#: turned around for gradients; and how many times what the layers give for one run it keeps.
_SESSION, _COPIES, _LAYERS_OUTPUTS = 2 << 20, 3, 6

#: The oldest version of the operators in which elements can be added up at given places.
_OLDEST_OPSET = 16


@dataclass(frozen=True)
class Responses:
    """What one run of an :class:`ErrorNetwork` shows.

    Attributes:
        reference: The float network's outputs by name.
        products: For every direction and layer v J d, float64 of shape (directions, layers, samples); of
            shape (directions, layers, 1), and summed over the samples of the batch, where samples cannot be
            told apart.
    """

    reference: Tensors
    products: Floats


class ErrorNetwork:
    """The float network, the error of each layer, and gradients of the outputs: one ONNX Runtime session.

    Args:
        graph_model: From :func:`trtint8.models.model.prepare`; not changed.
        quantizer: How the model's tensors are quantized.
        sizes: Input name to the shape of a batch, for inputs that leave other sizes open than the number of
            samples. The network then takes samples of this shape alone.
        samples: How many samples will be measured in all, where that is known.

    Attributes:
        directed: Names of the outputs that a direction is given for: the floating-point ones.
        directions: How many directions a run takes.
        splits: Whether samples lie along the first axis of all inputs and outputs: then any number of them up
            to ``samples_per_run`` may be run, and products are known for each sample.
        has_margins: Whether samples lie so, and the first output is one row of classes per sample.
        samples_per_run: How many samples one run takes, to keep memory small.
        sample_size: Bytes that the outputs of all layers take for one sample.
        fits_beside_others: Whether a run takes so little memory that several may go on at once.
        runs_at_once: How many runs may go on at once, as it was opened.
        picking: Names of the layers that only decide which elements a TopK picks; their products are zero.

    Raises:
        NoGradientError: The gradient of one of the network's operators is not known, or layers decide
            something that gradients do not show.
    """

    @pause_garbage_collection()
    def __init__(
        self,
        graph_model: ir.Model,
        quantizer: Quantizer,
        sizes: InputShapes | None = None,
        samples: int | None = None,
    ) -> None:
        beside = BesideFloat(graph_model, quantizer)
        model, writer, layers = beside.model, beside.writer, beside.layers
        graph, nodes, outputs = model.graph, beside.nodes, list(model.graph.outputs)
        infer_shapes(model, sizes)
        # Nothing that has a gradient changed its meaning between the oldest opset that is prepared and this.
        graph.opset_imports[""] = max(graph.opset_imports.get("", 0), _OLDEST_OPSET)
        errors = {layer.name: beside.error(layer) for layer in layers}
        made = [layer.node.outputs[0] for layer in layers]
        floats = [output for output in outputs if output.dtype == ir.DataType.FLOAT]
        for output in outputs:
            if output not in floats and output.dtype is not None and output.dtype.is_floating_point():
                raise NoGradientError(f"output '{output.name}' is of the type {output.dtype.name}")
        if not floats:
            raise NoGradientError("no output is of a floating-point type")
        self.directed = tuple(output.name or "" for output in floats)
        self.splits = all(map(_is_batched, outputs))
        self.has_margins = self.splits and _is_class_scores(outputs[0])
        self.sample_size = size = max(1, 4 * sum(map(elements_per_sample, made)))
        # Where the samples lie elsewhere in a layer's output than along its first axis, as where tokens or
        # windows were joined to them, only a run of a single one shows what the layer does to this sample.
        self.samples_per_run = max(1, _WANTED // size) if all(map(_is_batched, made)) else 1
        self.fits_beside_others = self.splits and size <= _WANTED
        self.directions = _DIRECTIONS_SMALL if size <= _WANTED else _DIRECTIONS_LARGE
        for fewer_than, directions in _DIRECTIONS_OF_FEW:
            if samples is not None and samples < fewer_than:
                self.directions = max(self.directions, directions)
        self._outputs = [output.name or "" for output in outputs]
        for number in range(self.directions):
            inputs = {output: _direction(output, number) for output in floats}
            graph.inputs.extend(inputs.values())
            starts = {output: Term(writer, value) for output, value in inputs.items()}
            if self.has_margins and number == 0:
                starts[outputs[0]] += _margins(writer, outputs[0])
            gradients = append_gradients(writer, nodes, starts, made)
            if number == 0:
                unseen = [layer for layer, value in zip(layers, made, strict=True) if value not in gradients]
                self.picking = _picking(deciding_operators(nodes, floats, unseen))
            for layer, value in zip(layers, made, strict=True):
                beside.give(self._product(gradients.get(value), errors[layer.name]))
        self.runs_at_once = 1
        self._weight_bytes = weight_bytes(graph_model)
        self._model: ir.Model | None = model
        self._session: ModelSession | None = None

    @property
    def is_open(self) -> bool:
        """Whether the session is open."""
        return self._session is not None

    def memory(self, samples: int) -> int:
        """About how many bytes the network takes while it is open, after runs of batches.

        Args:
            samples: Samples per batch.
        """
        outputs = self.sample_size * min(samples, self.samples_per_run)
        return _SESSION + _COPIES * self._weight_bytes + _LAYERS_OUTPUTS * outputs

    def open(self, threads: int | None, runs_at_once: int = 1) -> None:
        """Opens the session, which takes memory; before the first run.

        Args:
            threads: Threads per operator; ONNX Runtime's choice where None.
            runs_at_once: How many runs are to go on at once.

        Raises:
            ModelError: ONNX Runtime refuses the network.
        """
        assert self._model is not None, "it is open already"
        model, self._model = self._model, None
        self.runs_at_once = runs_at_once
        # It has the weights several times over already.
        self._session = open_graph_model(model, threads=threads, pack_weights=False, used_up=True)

    def _product(self, gradient: Term | None, error: Term) -> Term:
        """The product with the error, for each sample or for all: shape (samples,) or (1,)."""
        if gradient is None:  # no output depends on the layer
            return error.writer.op("Identity", np.zeros(1, np.float32))
        if self.splits and _is_batched(error.value):
            return (gradient * error).op("Flatten", axis=1).reduced("ReduceSum", [1], keep=False)
        return (gradient * error).op("Reshape", [-1]).reduced("ReduceSum", [0])

    def run(
        self,
        feed: FeedDict,
        directions: Sequence[Mapping[str, Float32s]],
        margins: Flags | None = None,
    ) -> Responses:
        """Runs the network, which is open, on a batch; several threads may do so at once.

        Args:
            feed: Input name to array.
            directions: As many as ``directions`` says; each has for each of ``directed`` an array of the
                output's shape.
            margins: For which samples the margin between the two likeliest classes is added to the first
                direction, bool of shape (samples,); for none where None. Only where there are margins.

        Raises:
            CalibrationDataError: ONNX Runtime fails on the batch.
        """
        assert self._session is not None, "it is not open"
        inputs = {
            _direction_name(name, number): array
            for number, one in enumerate(directions)
            for name, array in one.items()
        }
        if self.has_margins:
            rows = len(next(iter(directions[0].values())))
            chosen = np.zeros(rows, bool) if margins is None else margins
            inputs[_MARGINS] = chosen.astype(np.float32)[:, None]
        found = self._session.run({**feed, **inputs})
        products = found[len(self._outputs) :]
        length = max(len(product) for product in products)
        stacked = np.stack([np.broadcast_to(product, (length,)) for product in products])
        by_direction = stacked.astype(np.float64).reshape(self.directions, -1, length)
        return Responses(dict(zip(self._outputs, found, strict=False)), by_direction)


def _picking(deciding: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """The layers that decide by TopK alone, where all that decide do so and they are few."""
    others = {name: sorted(operators - {_PICKS}) for name, operators in deciding.items()}
    for name, operators in others.items():
        if operators:
            raise NoGradientError(f"layer '{name}' decides something by {' and '.join(operators)} alone")
    if len(others) > _MOST_PICKING:
        raise NoGradientError(f"{len(others)} layers only decide which elements a TopK picks")
    return tuple(others)


def _is_batched(value: ir.Value) -> bool:
    return (static_shape(value) or [])[:1] == [BATCH]


def _is_class_scores(output: ir.Value) -> bool:
    shape = static_shape(output)
    if shape is None or len(shape) != 2 or output.dtype != ir.DataType.FLOAT:
        return False
    return isinstance(shape[1], int) and shape[1] > 1


def _margins(writer: GraphWriter, output: ir.Value) -> Term:
    """The largest score less the second largest for the chosen samples, as a direction; zeros for others."""
    chosen = ir.Value(name=_MARGINS, shape=ir.Shape([BATCH, 1]), type=ir.TensorType(ir.DataType.FLOAT))
    writer.graph.inputs.append(chosen)
    classes = (static_shape(output) or [])[1]
    best = writer.op("TopK", output, [2], outputs=2, axis=1)
    both = best.op("OneHot", [int(classes or 0)], np.array([0, 1], np.float32), axis=-1)
    signed = both * np.array([[1], [-1]], np.float32)
    return signed.reduced("ReduceSum", [1], keep=False) * chosen


def random_signs(shape: tuple[int, ...], random: np.random.Generator) -> Float32s:
    """Draws 1 or -1 for every value of an output, float32 of a shape."""
    return np.asarray(2 * random.integers(0, 2, shape, np.int8) - 1, np.float32)


def _direction(output: ir.Value, number: int) -> ir.Value:
    """The input that holds one of the directions of an output."""
    return ir.Value(name=_direction_name(output.name or "", number), shape=output.shape, type=output.type)


def _direction_name(output: str, number: int) -> str:
    return f"trtint8_direction_{number}_{output}"


def deciding_operators(
    nodes: Sequence[ir.Node], outputs: Iterable[ir.Value], layers: Iterable[Layer]
) -> Mapping[str, frozenset[str]]:
    """The operators by which layers decide something that outputs depend on.

    Args:
        nodes: The nodes of a graph, in graph order.
        outputs: The outputs that count.
        layers: Layers that no output depends on by floating-point values.

    Returns:
        Name of a layer to its operators, such as ``TopK``; without layers that no output depends on at all.
    """
    leading = _leading_to(nodes, outputs)
    found = {}
    for layer in layers:
        reached = reached_from(nodes, [layer.node.outputs[0]])
        operators = frozenset(
            node.op_type
            for node in nodes
            if not operator_of(node).reads_shape
            and any(value in reached for value in values_read(node))
            and any(output in leading and output not in reached for output in node.outputs)
        )
        if operators:
            found[layer.name] = operators
    return found


def _leading_to(nodes: Sequence[ir.Node], outputs: Iterable[ir.Value]) -> set[ir.Value]:
    """The values that outputs depend on in any way."""
    leading = set(outputs)
    for node in reversed(nodes):
        if any(output in leading for output in node.outputs):
            leading.update(values_read(node))
    return leading
