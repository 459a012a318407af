"""One batch with what models made of it, and the form of its arrays, by which metrics are chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from calibrators.data.feeds import Array, FeedDict, NamedArrays, batch_rows, is_float
from calibrators.data.inputs import shape_text
from calibrators.data.samples import numbered
from trtint8.validation.detection.decoding import (
    Activation,
    Grid,
    RowOrder,
    activation_of,
    are_corners,
    filled_rows,
    grid_of,
    holds_rows,
    mask_count,
    row_order,
)

#: By how much the length of a row, or the sum of its probabilities, may differ from 1: float16 resolves a
#: thousandth.
_UNIT = 2e-3

#: How far coordinates from 0 to 1 may lie outside, as those of points outside of an image.
_OUTSIDE = 0.1

#: Class scores are rarely beyond this: a softmax gives one class everything from a difference of 20 on.
_LARGEST_SCORE = 100.0

#: Training leaves the mean of a row of class scores near zero, or below. Numbers beyond the first of these,
#: whose mean is more than the second times their standard deviation, are something else.
_LARGE, _OFF_CENTRE = 16.0, 0.75

#: The shape that a model declares for an output: None for a dimension, or for the rank, that is not fixed.
DeclaredShape: TypeAlias = tuple[int | None, ...] | None


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch with a model's outputs and the reference's.

    Attributes:
        feeds: The model's inputs.
        outputs: The model's outputs.
        reference: The reference's outputs.
        labels: One label per sample along axis 0, class indices (int64) or arrays; or None.
        rows: Number of samples in the batch.
        first: Number of samples before this batch, for messages.
        name_of: Returns the name of a sample in messages, by its number in the order of iteration.
    """

    feeds: FeedDict
    outputs: NamedArrays
    reference: NamedArrays
    labels: Array | None
    rows: int
    first: int = 0
    name_of: Callable[[int], str] = numbered


def count_rows(feed: FeedDict, outputs: NamedArrays) -> int:
    """How many samples a batch has: by what is fed, or else by the first output.

    Args:
        feed: What the model is fed.
        outputs: What it gives out.
    """
    first = next(iter(outputs.values()))
    return batch_rows(feed) or (len(first) if first.ndim else 1)


def copied(arrays: NamedArrays) -> dict[str, Array]:
    """Arrays for a function of the user's, which may compute in place.

    Read-only views would not do: PyTorch writes into them all the same, and compiled code often refuses them.

    Args:
        arrays: Arrays that others read later: metrics, models, or the user.
    """
    return {name: array.copy() for name, array in arrays.items()}


class Rows(Enum):
    """What the rows of a table may be, by their values, and the same in words."""

    PROBABILITIES = "rows of probabilities, or of their logarithms"
    SCORES = "class scores, or anything else of their size"
    UNIT = "numbers from about 0 to 1, and the rows do not add up to 1"
    BEYOND = "numbers that class scores rarely are, such as coordinates"

    @classmethod
    def of(cls, table: Array) -> Rows:
        """What the rows of a table may be.

        Args:
            table: Floating-point numbers, shape (rows, columns). Rows with numbers that are not finite say
                nothing, nor does one number over and over.
        """
        rows = table[np.isfinite(table).all(axis=1)].astype(np.float64)
        if not rows.size or rows.min() == rows.max():
            return cls.SCORES
        if rows.min() >= 0 or rows.max() <= 0:
            shares = rows if rows.min() >= 0 else np.exp(rows)
            if (np.abs(shares.sum(axis=1) - 1) < _UNIT).all():
                return cls.PROBABILITIES
        if rows.min() >= -_OUTSIDE and rows.max() <= 1 + _OUTSIDE:
            return cls.UNIT
        largest = np.abs(rows).max()
        off_centre = largest > _LARGE and rows.mean() > _OFF_CENTRE * rows.std()
        return cls.BEYOND if off_centre or largest > _LARGEST_SCORE else cls.SCORES


@dataclass(frozen=True)
class ArrayForm:
    """An array without its values.

    Attributes:
        dtype: The element type.
        shape: The shape.
        is_embedding: Whether it is a table of two rows or more that have the length 1, and are no
            probabilities: so are vectors that are compared by their angles.
        rows: What its rows may be, if it is a table.
        has_corners: Whether its rows begin with the corners x1, y1, x2, y2 of boxes, if they begin with
            boxes: in nearly all of them x2 and y2 are not below x1 and y1, as a size often is below a centre.
        row_order: How its rows hold detections, if they do by their values; else None.
        grid: How it holds the boxes of a grid, if it does by its values; else None.
        activation: What turns its numbers into scores, if an output of boxes is beside it.
        holds_rows: Whether its values may show the last four: see
            :func:`trtint8.validation.detection.decoding.holds_rows`.
        declared: The shape that the model declares for it.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_embedding: bool = field(default=False, compare=False)
    rows: Rows = field(default=Rows.SCORES, compare=False)
    has_corners: bool = field(default=True, compare=False)
    row_order: RowOrder | None = field(default=None, compare=False)
    grid: Grid | None = field(default=None, compare=False)
    activation: Activation = field(default=Activation.NONE, compare=False)
    holds_rows: bool = field(default=False, compare=False)
    declared: DeclaredShape = field(default=None, compare=False)

    @classmethod
    def of(cls, array: Array, masks: int = 0) -> ArrayForm:
        """The form of an array.

        Args:
            array: The array.
            masks: How many coefficients of masks belong to a box, where boxes have some.
        """
        is_table = cls(array.dtype, array.shape).is_table
        return cls(
            array.dtype,
            array.shape,
            is_table and _has_unit_rows(array),
            Rows.of(array) if is_table else Rows.SCORES,
            _has_corners(array),
            row_order(array, masks),
            grid_of(array, masks),
            holds_rows=holds_rows(array),
        )

    @property
    def is_float(self) -> bool:
        """Whether the element type is a floating-point type."""
        return is_float(self.dtype)

    @property
    def is_table(self) -> bool:
        """Whether it has rows of two floating-point numbers or more."""
        return self.is_float and len(self.shape) == 2 and self.shape[1] > 1

    @property
    def is_integer(self) -> bool:
        """Whether the element type is an integer type or bool."""
        return self.dtype.kind in "biu"

    def __str__(self) -> str:
        return f"{self.dtype}, {shape_text(self.shape)}"


@dataclass(frozen=True)
class BatchForm:
    """A batch without its values.

    Attributes:
        outputs: The form of each output of the reference, by name and in order.
        labels: The form of the labels; None where there are none.
        rows: Number of samples in the batch.
        without_samples: Names of outputs whose axis 0 is known not to be the samples, whatever its length.
        picked: Names of outputs that hold what the network picks; see
            :mod:`trtint8.models.outputs.picked`.
        cached: Names of outputs that hold what the network caches, which are not compared; see
            :mod:`trtint8.models.outputs.joined`.
    """

    outputs: Mapping[str, ArrayForm]
    labels: ArrayForm | None
    rows: int
    without_samples: frozenset[str] = frozenset()
    picked: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        outputs: NamedArrays,
        labels: Array | None,
        rows: int,
        without_samples: frozenset[str] = frozenset(),
        picked: tuple[str, ...] = (),
        cached: tuple[str, ...] = (),
        declared: Mapping[str, DeclaredShape] = MappingProxyType({}),
    ) -> BatchForm:
        """The form of a batch.

        Args:
            outputs: The reference's outputs, by name.
            labels: The labels of the batch, or None.
            rows: Number of samples in the batch.
            without_samples: Names of outputs whose axis 0 is known not to be the samples.
            picked: Names of outputs that hold what the network picks.
            cached: Names of outputs that hold what the network caches.
            declared: The shapes that the reference declares for its outputs, by name; may lack outputs.
        """
        masks = mask_count(outputs)
        forms = {
            name: replace(ArrayForm.of(array, masks), declared=declared.get(name))
            for name, array in outputs.items()
        }
        boxes = {form.shape[:-1] for form in forms.values() if len(form.shape) > 1 and form.shape[-1] == 4}
        beside = [name for name, form in forms.items() if len(form.shape) > 1 and form.shape[:-1] in boxes]
        forms |= {name: replace(forms[name], activation=activation_of(outputs[name])) for name in beside}
        return cls(
            forms, None if labels is None else ArrayForm.of(labels), rows, without_samples, picked, cached
        )

    @property
    def first_output(self) -> str:
        """The name of the first output that is not cached: what metrics mean that name no output."""
        return next(name for name in self.outputs if name not in self.cached)

    @property
    def has_class_indices(self) -> bool:
        """Whether the labels are one class index per sample."""
        return self.labels is not None and len(self.labels.shape) == 1 and self.labels.dtype.kind in "iu"

    def is_class_scores(self, name: str) -> bool:
        """Whether an output is one row of scores per sample, of two classes or more."""
        form = self.outputs[name]
        return form.is_table and form.shape[0] == self.rows and name not in self.without_samples

    @property
    def class_outputs(self) -> tuple[str, ...]:
        """The outputs that are taken for class scores where nobody says what they are.

        Rows of probabilities are class scores. What is of the size of class scores is taken for them where
        all outputs may be: beside an output that is something else, such as coordinates or a map, it may be
        another quantity as well. Labels that are class indices are of one output: the first of these; else
        the first that may be of class scores, or has numbers from 0 to 1, or is the only output.
        """
        compared = [name for name in self.outputs if name not in self.cached]
        tables = [
            name for name in compared if self.is_class_scores(name) and not self.outputs[name].is_embedding
        ]

        def having(*rows: Rows) -> list[str]:
            return [name for name in tables if self.outputs[name].rows in rows]

        likely = having(Rows.PROBABILITIES, Rows.SCORES)
        found = likely if len(likely) == len(compared) else having(Rows.PROBABILITIES)
        if self.has_class_indices and not found:
            found = (likely or having(Rows.UNIT) or (tables if len(compared) == 1 else []))[:1]
        return tuple(found)

    def read_like(self, other: BatchForm) -> BatchForm:
        """The form where tables are what they are in another batch, whatever their values are here.

        Args:
            other: The form of a batch of the same outputs.
        """
        return self._taking(("is_embedding", "rows"), other.outputs)

    def with_layouts(self, forms: Mapping[str, ArrayForm]) -> BatchForm:
        """The form where these outputs hold detections as they do in other batches.

        Args:
            forms: The forms of outputs in another batch; the names of others may lack.
        """
        return self._taking(("has_corners", "row_order", "grid", "activation"), forms)

    def _taking(self, fields: Sequence[str], forms: Mapping[str, ArrayForm]) -> BatchForm:
        """The form where some fields of outputs are those in other forms."""
        taken = {name: {field: getattr(one, field) for field in fields} for name, one in forms.items()}
        own = {name: replace(form, **taken.get(name, {})) for name, form in self.outputs.items()}
        return replace(self, outputs=own)


def _has_unit_rows(array: Array) -> bool:
    # The scores of one sample may have the length 1 by chance.
    if len(array) < 2 or array.min() >= 0:
        return False
    lengths = np.linalg.norm(array.astype(np.float64), axis=1)
    return bool((np.abs(lengths - 1) < _UNIT).all())


def _has_corners(array: Array) -> bool:
    may_hold_boxes = is_float(array.dtype) and 2 <= array.ndim <= 4 and array.shape[-1] in (4, 6)
    if not may_hold_boxes:
        return True
    rows = filled_rows(array, array.shape[-1])
    return not len(rows) or are_corners(rows)


def by_sample(array: Array, rows: int) -> Array:
    """An array as one row per sample, or as a single row where its axis 0 is not the samples.

    Args:
        array: An array of any shape.
        rows: Number of samples in the batch.

    Returns:
        The array, of shape (rows, elements) or (1, elements).
    """
    has_samples = array.ndim > 0 and len(array) == rows
    return array.reshape(rows if has_samples else 1, -1)
