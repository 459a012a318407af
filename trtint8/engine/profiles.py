"""Optimization profiles: which shapes of dynamic inputs an engine accepts, and for which it is tuned."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NoReturn, Protocol, TypeVar

import msgspec

from calibrators.checks import check_mapping
from calibrators.data.inputs import InputSpec, OpenShape
from calibrators.data.samples import SampleSizes
from calibrators.errors import Argument, BuildError, ModelError, advice, counted, such_as

#: TensorRT's profiles have sizes of 32 bits, whatever its interface takes.
_LARGEST_SIZE = 2**31 - 1

Shape = tuple[Annotated[int, msgspec.Meta(ge=0, le=_LARGEST_SIZE)], ...]


@dataclass(frozen=True)
class ShapeRange:
    """The shapes of one input in an optimization profile.

    Attributes:
        min: The smallest shape that the engine accepts.
        opt: The shape that it is tuned for.
        max: The largest shape that it accepts.

    Raises:
        BuildError: A shape is not a sequence of integers.

    Examples:
        >>> profile = {"images": trtint8.ShapeRange((1, 1, 8, 8), (8, 1, 8, 8), (32, 1, 8, 8))}
        >>> built = trtint8.build_int8_engine("model.onnx", "table.json", "model.engine", profiles=[profile])
    """

    min: Shape
    opt: Shape
    max: Shape

    def __post_init__(self) -> None:
        for name in ("min", "opt", "max"):
            shape = getattr(self, name)
            try:
                # Sizes that come from NumPy are written into files like any others.
                object.__setattr__(self, name, tuple(map(operator.index, shape)))
            except TypeError as error:
                raise BuildError(
                    f"{name} of a ShapeRange is {shape!r}; give a shape, such as (1, 3, 224, 224)"
                ) from error

    def __str__(self) -> str:
        return ",".join("x".join(map(str, shape)) for shape in (self.min, self.opt, self.max))


Profile = Mapping[str, ShapeRange]


class _Shaped(Protocol):
    """An input of a model or of an engine; an open size is the name of its dimension, or None."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> OpenShape: ...


_Spec = TypeVar("_Spec", bound=_Shaped)

# The min, opt and max of one dimension.
_DimRange = tuple[int, int, int]

_DEFAULT_BATCH_SIZES: _DimRange = (1, 8, 32)


def parse_profile(text: str) -> tuple[str, ShapeRange]:
    """Reads ``NAME=MIN,OPT,MAX``, as in ``images=1x3x224x224,8x3x224x224,32x3x224x224``.

    Args:
        text: The text that the user wrote.

    Returns:
        The input's name and its shapes.

    Raises:
        BuildError: ``text`` does not have that form.
    """
    # Input names may contain "=", shapes never do. Python reads no number of thousands of digits.
    name, _, shapes = text.rpartition("=")
    if not name or not re.fullmatch(r"\d{1,30}(x\d{1,30})*(,\d{1,30}(x\d{1,30})*){2}", shapes):
        raise BuildError(
            f"the profile '{text}' is not NAME=MIN,OPT,MAX; write for example "
            f"images=1x3x224x224,8x3x224x224,32x3x224x224"
        )
    smallest, optimal, largest = (tuple(map(int, shape.split("x"))) for shape in shapes.split(","))
    return name, ShapeRange(smallest, optimal, largest)


def profile_rows(profiles: Sequence[Profile]) -> list[tuple[str, str]]:
    """Profiles as rows of a table for a person: inputs of the same shapes share a row.

    Args:
        profiles: The profiles of an engine.
    """
    rows = []
    for number, profile in enumerate(profiles):
        names: dict[str, list[str]] = {}
        for name, shapes in profile.items():
            names.setdefault(str(shapes), []).append(name)
        for text, (first, *others) in names.items():
            more = f" and {counted(len(others), 'other')}" if others else ""
            rows.append((f"profile {number}, '{first}'{more}", text))
    return rows


def complete_profile(
    profile: Profile, inputs: Sequence[InputSpec], sizes: Mapping[str, SampleSizes] | None = None
) -> dict[str, ShapeRange]:
    """Checks a user's profile and adds the dynamic inputs that it leaves out.

    A dynamic first dimension is the number of samples, 1 to 32, and 8 at best. Other dimensions get the sizes
    that samples had, and the engine is tuned for the largest. A dimension that has the name of a dimension of
    a given input gets the same sizes, so that inputs with the same batch dimension have the same batch sizes.

    Args:
        profile: Shapes of some or all inputs.
        inputs: The model's inputs.
        sizes: Input name to the sizes that samples had; may lack inputs.

    Returns:
        ``profile`` with the defaults of the other dynamic inputs; empty where all inputs are static.

    Raises:
        BuildError: The profile contradicts the model (:func:`check_profile`), or a dimension other than the
            first one is dynamic and no sizes of it are known, so the user must give them.
        ModelError: An input's rank is unknown.
    """
    check_profile(profile, inputs)
    missing = _left_out(profile, inputs)
    known = _known_sizes(profile, inputs)
    elsewhere = _without_samples_first(inputs)
    usable = {name: one for name, one in (sizes or {}).items() if name not in elsewhere}
    return {**profile, **{spec.name: _default_range(spec, known, usable.get(spec.name)) for spec in missing}}


def _left_out(profile: Profile, inputs: Sequence[_Spec]) -> list[_Spec]:
    """The dynamic inputs that a profile does not name."""
    return [spec for spec in inputs if spec.name not in profile and _is_dynamic(spec)]


def _known_sizes(profile: Profile, inputs: Sequence[_Shaped]) -> dict[str, _DimRange]:
    """Sizes of dimensions by their names: those of the inputs in a profile, and numbers of samples."""
    known: dict[str, _DimRange] = {}
    for spec in inputs:
        if spec.name in profile and spec.shape is not None:
            given = profile[spec.name]
            for dim, three in zip(spec.shape, zip(given.min, given.opt, given.max, strict=True), strict=True):
                if isinstance(dim, str):
                    known[dim] = three
    for spec in _left_out(profile, inputs):
        if spec.shape and isinstance(spec.shape[0], str):
            # The samples of another input may lie along a later axis, as those of an LSTM's state do.
            known.setdefault(spec.shape[0], _DEFAULT_BATCH_SIZES)
    return known


def _without_samples_first(inputs: Sequence[InputSpec]) -> set[str]:
    """Inputs whose first dimension is fixed where that of others is the number of samples, as of states."""
    fixed = {spec.name for spec in inputs if spec.shape and isinstance(spec.shape[0], int)}
    return fixed if len(fixed) < len(inputs) else set()


def as_sampled(
    profiles: Sequence[Profile], inputs: Sequence[_Shaped], sizes: Mapping[str, SampleSizes]
) -> list[str]:
    """The inputs that get sizes of samples from :func:`complete_profile`.

    Args:
        profiles: The user's profiles; empty for one of defaults.
        inputs: The inputs of the model, or of its engine.
        sizes: Input name to the sizes that samples had.

    Returns:
        Their names, in the order of ``inputs``.
    """
    found: set[str] = set()
    for profile in profiles or [{}]:
        known = _known_sizes(profile, inputs)
        found |= {
            spec.name
            for spec in _left_out(profile, inputs)
            if any(not isinstance(dim, int) and dim not in known for dim in (spec.shape or ())[1:])
        }
    return [spec.name for spec in inputs if spec.name in found & sizes.keys()]


def largest_shapes(
    profiles: Sequence[Profile], inputs: Sequence[InputSpec], sizes: Mapping[str, SampleSizes] | None = None
) -> dict[str, tuple[int, ...]]:
    """The largest shape of every dynamic input in any profile.

    Args:
        profiles: The user's profiles; empty for one of defaults.
        inputs: The model's inputs.
        sizes: Input name to the sizes that samples had: see :func:`complete_profile`.

    Raises:
        BuildError: A profile contradicts the model, or has to give sizes that have no default.
        ModelError: An input's rank is unknown.
    """
    largest: dict[str, tuple[int, ...]] = {}
    for profile in profiles or [{}]:
        for name, shapes in complete_profile(profile, inputs, sizes).items():
            largest[name] = tuple(map(max, shapes.max, largest.get(name, shapes.max)))
    return largest


def optimal_shapes(
    profiles: Sequence[Profile], inputs: Sequence[InputSpec], sizes: Mapping[str, SampleSizes] | None = None
) -> dict[str, tuple[int, ...]]:
    """The shape of every dynamic input that an engine is tuned for, that of its first profile.

    Takes and raises the same as :func:`largest_shapes`.
    """
    first = profiles[0] if profiles else {}
    return {name: shapes.opt for name, shapes in complete_profile(first, inputs, sizes).items()}


def check_profile(profile: Profile, inputs: Sequence[InputSpec]) -> None:
    """Compares a user's profile with the model.

    Args:
        profile: Shapes of some or all inputs.
        inputs: The model's inputs.

    Raises:
        BuildError: The model lacks an input or has another rank or static dimension, the first size is not
            positive, another one is negative, one is larger than TensorRT's are, min <= opt <= max does not
            hold, shapes are no :class:`ShapeRange`, or the profile is no dict.
    """
    check_mapping("a profile", profile, "from input name to trtint8.ShapeRange(min, opt, max)", BuildError)
    specs = {spec.name: spec for spec in inputs}
    for name, shapes in profile.items():
        if name not in specs:
            raise BuildError(
                f"the profile names an input '{name}' that the model lacks; it has {such_as(specs)}"
            )
        if not isinstance(shapes, ShapeRange):
            raise BuildError(
                f"the profile of input '{name}' is {shapes!r:.80}; give trtint8.ShapeRange(min, opt, max)"
            )
        _check_range(specs[name], shapes)


def _check_range(spec: InputSpec, shapes: ShapeRange) -> None:
    def refuse(words: str) -> NoReturn:
        raise BuildError(f"the profile of input '{spec.name}' is {shapes}{words}")

    ranks = {len(shapes.min), len(shapes.opt), len(shapes.max)}
    rank = next(iter(ranks)) if spec.shape is None else len(spec.shape)
    if ranks != {rank}:
        raise BuildError(f"the profile of input {spec} is {shapes}; give three shapes of {rank} dimensions")
    for axis, sizes in enumerate(zip(shapes.min, shapes.opt, shapes.max, strict=True)):
        dim = None if spec.shape is None else spec.shape[axis]
        if not axis and min(sizes) < 1:
            refuse("; it must begin with at least 1")
        if not 0 <= min(sizes) <= max(sizes) <= _LARGEST_SIZE:
            refuse(f"; TensorRT takes sizes from 0 to {_LARGEST_SIZE}")
        if isinstance(dim, int) and set(sizes) != {dim}:
            refuse(f", but dimension {axis} is always {dim} in the model; write {dim} there")
        if not sizes[0] <= sizes[1] <= sizes[2]:
            refuse(f"; dimension {axis} must grow from min over opt to max")


def _default_range(spec: InputSpec, known: Mapping[str, _DimRange], sizes: SampleSizes | None) -> ShapeRange:
    if spec.shape is None:
        raise ModelError(f"input '{spec.name}' has no shape in the model; export the model with one")
    columns: list[_DimRange] = []
    for axis, dim in enumerate(spec.shape):
        if isinstance(dim, int):
            columns.append((dim, dim, dim))
        elif dim is not None and dim in known:
            columns.append(known[dim])
        elif axis == 0:
            columns.append(_DEFAULT_BATCH_SIZES)
        elif sizes is not None and len(sizes.largest) == len(spec.shape) - 1:
            smallest_size, largest_size = sizes.smallest[axis - 1], sizes.largest[axis - 1]
            columns.append((smallest_size, largest_size, largest_size))
        else:
            form = f"'{spec.name}=MIN,OPT,MAX', three shapes like {_example(spec)}"
            raise BuildError(
                f"input {spec} has a dynamic dimension {axis} ('{dim or '?'}') besides the batch; "
                + advice(
                    f"give its sizes with {Argument('profiles')} {form}",
                    f"give its sizes with {Argument('profile')} {form}",
                    "give a model whose sizes are fixed",
                )
            )
    smallest, optimal, largest = zip(*columns, strict=True)
    return ShapeRange(smallest, optimal, largest)


def _example(spec: InputSpec) -> str:
    shape = spec.shape or ()
    return "x".join(
        str(d) if isinstance(d, int) else ("8" if axis == 0 else "SIZE") for axis, d in enumerate(shape)
    )


def _is_dynamic(spec: _Shaped) -> bool:
    return spec.shape is None or not all(isinstance(dim, int) for dim in spec.shape)
