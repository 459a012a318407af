"""Outputs whose shapes depend on the values, such as those of detectors with non-maximum suppression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from calibrators.data.feeds import Array, NamedArrays
from calibrators.data.inputs import InputSpec, shape_text
from calibrators.errors import CalibrationDataError, ModelError
from calibrators.operators import Axes, Product, Values, operator_of
from trtint8.arithmetic.storage import InnerTensor
from trtint8.models.outputs.joined import OutputPart, cached_outputs, giving, output_parts
from trtint8.models.outputs.picked import (
    NO_PICKS,
    Picks,
    ShownPicks,
    before_picks,
    find_picks,
    sources_inside,
)
from trtint8.models.shapes import declared_sizes
from trtint8.validation.batch import BatchForm, DeclaredShape
from trtint8.validation.meters import Measurand


@dataclass(frozen=True)
class DeclaredOutputs:
    """What a model says of its outputs before it is run.

    Attributes:
        shapes: Output name to shape.
        parts: The parts that are measured by themselves, of the outputs that are compared and of what outputs
            are picked from; see :func:`trtint8.models.outputs.joined.output_parts`.
        picked: Names of the outputs that hold what the model picks; see
            :mod:`trtint8.models.outputs.picked`.
        sources: Names of the tensors inside the model that they are picked from.
        left_out: The outputs that plugins of TensorRT compute, which are left out of all models, and the
            tensors that take their place.
        cached: Names of the outputs that hold what the model caches, which are not compared; see
            :mod:`trtint8.models.outputs.joined`.
        inside: Names of the tensors inside the model that are compared, to where they are.
        absent: Why models that were made from this one lack some of these tensors, by name.
        shown: The tensors that show what the model picks, where changes of picks are counted.
        further: Names of all values that the model gives behind its outputs, ``sources`` first.
        maps: The shapes of outputs, with the axis of the classes as the only one of a fixed length where the
            graph shows which it is.
    """

    shapes: Mapping[str, DeclaredShape]
    parts: tuple[OutputPart, ...]
    picked: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    left_out: Picks = NO_PICKS
    cached: tuple[str, ...] = ()
    inside: Mapping[str, InnerTensor] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    shown: tuple[ShownPicks, ...] = ()
    further: tuple[str, ...] = ()
    maps: Mapping[str, DeclaredShape] = field(default_factory=dict)

    @classmethod
    def of(cls, graph_model: ir.Model, left_out: Picks = NO_PICKS) -> DeclaredOutputs:
        """What a model declares.

        Args:
            graph_model: The model.
            left_out: What was left out of it.
        """
        picks = find_picks(graph_model)
        given = before_picks(graph_model, picks)
        left = set(cached_outputs(given))
        names = [value.name or "" for value in given.graph.outputs]
        parts = output_parts(giving(given, (name for name in names if name not in left)))
        sources = sources_inside(graph_model, picks)
        cached = cached_outputs(graph_model)
        shapes = {str(value.name): declared_sizes(value) for value in graph_model.graph.outputs}
        maps = {str(value.name): _fixing_classes(value) for value in graph_model.graph.outputs}
        return cls(shapes, parts, picks.outputs, sources, left_out, cached, further=sources, maps=maps)

    @property
    def shown_inside(self) -> tuple[str, ...]:
        """Names of the tensors that show what the model picks, except those that are outputs themselves."""
        return tuple(one.tensor for one in self.shown if one.tensor not in self.shapes)

    def form_of(
        self, outputs: NamedArrays, labels: Array | None, rows: int, without_samples: frozenset[str]
    ) -> BatchForm:
        """The form of a batch.

        Args:
            outputs: The model's outputs, by name.
            labels: The labels of the batch, or None.
            rows: Number of samples in the batch.
            without_samples: What :func:`outputs_without_samples` finds.
        """
        declared = {**self.shapes, **self.maps}
        return BatchForm.of(outputs, labels, rows, without_samples, self.picked, self.cached, declared)


def _fixing_classes(output: ir.Value) -> DeclaredShape:
    """The shape that a model declares for an output, with a length for the axis of the classes alone.

    That is the axis along which values are normalized, as by a Softmax, or else that of the channels of the
    layer before. Where the graph does not show it, the shape is as it is declared.
    """
    declared = declared_sizes(output)
    value, rank = output, len(declared or ())
    # Where each axis of the output is in the value, as far as that is known.
    places = dict(enumerate(range(rank)))
    while declared and (node := value.producer()) is not None:
        operator, axis = operator_of(node), None
        if operator.axes is Axes.ONE and operator.axis < 0 and operator.values is Values.COMPUTED:
            axis = node.attributes.get_int("axis", operator.axis) % rank
        elif operator.product is Product.MATRICES:
            axis = rank - 1
        elif operator.axes is Axes.IMAGES:
            axis = 1
        if axis is not None:
            found = [at for at, place in places.items() if place == axis]
            fixed = (length or 0 if at in found else None for at, length in enumerate(declared))
            return tuple(fixed) if found else declared
        read = [one for one in node.inputs if one is not None and one.producer() is not None]
        sizes = (read and declared_sizes(read[0])) or ()
        if node.op_type == "Transpose":
            turned = node.attributes.get_ints("perm", range(rank)[::-1])
            places = {at: turned[place] for at, place in places.items()}
        elif operator.values is Values.RESHAPED and sizes[-1:] == (declared_sizes(value) or ())[-1:] != (
            None,
        ):
            places = {at: len(sizes) - 1 for at, place in places.items() if place == rank - 1}
            rank = len(sizes)
        elif operator.axes is Axes.ELEMENTWISE:
            read = [one for one in read if len(declared_sizes(one) or range(rank)) == rank]
        else:
            break
        if not read:
            break
        value = read[0]
    return declared


def outputs_without_samples(
    declared: Mapping[str, DeclaredShape], inputs: Sequence[InputSpec]
) -> frozenset[str]:
    """The outputs whose axis 0 is not the samples: its length is not fixed although the batch is.

    Args:
        declared: The shapes that a model declares for its outputs, by name.
        inputs: The model's inputs.
    """
    if any(spec.static_batch is None for spec in inputs):
        return frozenset()
    return frozenset(name for name, shape in declared.items() if shape and shape[0] is None)


def differing_outputs(
    got: NamedArrays, wanted: NamedArrays, declared: Mapping[str, DeclaredShape]
) -> frozenset[str]:
    """The outputs that two models give in different shapes for one batch.

    Args:
        got: A model's outputs, by name.
        wanted: The reference's outputs, by name.
        declared: The shapes that the reference declares; a name that is missing has a fixed shape.

    Returns:
        The names of the outputs that cannot be compared element by element.

    Raises:
        ModelError: Shapes differ in a dimension that the reference declares as fixed.
    """
    different = frozenset(name for name, array in wanted.items() if got[name].shape != array.shape)
    for name in different:
        shape, other = got[name].shape, wanted[name].shape
        if not _may_differ(shape, other, declared.get(name, other)):
            raise ModelError(
                f"output '{name}' has shape {shape}, the reference's {other}; "
                "compare with the model that it was made from"
            )
    return different


def check_comparable(asked: Sequence[Measurand], different: frozenset[str], got: NamedArrays) -> None:
    """Refuses metrics that compare outputs element by element where these have different shapes.

    Args:
        asked: The metrics.
        different: Names of the outputs whose shapes differ from the reference's.
        got: The model's outputs, by name.

    Raises:
        CalibrationDataError: A metric compares one of these outputs.
    """
    for measurand in asked:
        if measurand.output in different:
            raise CalibrationDataError(
                f"metric '{measurand.name}' compares output '{measurand.output}' element by element, but its "
                f"shape depends on the values: {shape_text(got[measurand.output].shape)} for a model, and "
                "another one for the float model; take another metric, such as detections or a function"
            )


def _may_differ(shape: Sequence[int], other: Sequence[int], declared: DeclaredShape) -> bool:
    if declared is None:
        return True
    return len(shape) == len(other) == len(declared) and all(
        one == two or fixed is None for one, two, fixed in zip(shape, other, declared, strict=True)
    )
