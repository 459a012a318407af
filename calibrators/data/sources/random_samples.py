"""Random samples, for timing and for trying commands out, and the shapes that go with ``random:COUNT``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrators.checks import warn_user
from calibrators.data.batches import IndexedSource
from calibrators.data.feeds import Binding, FeedDict, Indices, fits, is_float, listed
from calibrators.data.inputs import DataOptions, InputShapes, InputSpec, Shape, named_sizes, shape_text
from calibrators.errors import CalibrationDataError

#: How data begins that is made of random samples.
RANDOM = "random:"

#: The most values of a random sample of an input: 1 GiB of float32. A model can declare any shape.
_MOST_VALUES = 1 << 28

_COUNT = re.compile(r"(0*[1-9][0-9]{0,6})(?:,(.*))?", re.DOTALL)
_SHAPE = re.compile(r"(?P<name>.+?)=(?P<shape>[0-9]{1,9}(?:x[0-9]{1,9})*)(?:,|$)", re.DOTALL)


def warn_of_random(data: object) -> None:
    """Warns where the samples that ranges are found on are random.

    Args:
        data: Calibration data of any kind.
    """
    if isinstance(data, str) and data.startswith(RANDOM):
        warn_user(
            f"the calibration data is '{data}': the ranges of random values mean nothing for a trained "
            "network, so use them for trials and for timing only; for accuracy calibrate with typical "
            "samples"
        )


@dataclass(frozen=True, eq=False)
class RandomSamples(IndexedSource):
    """Random values: for timing and smoke tests, useless for calibration.

    Floating-point inputs get standard normal values, and integers all values below the input's bound with the
    same probability. Where these are zeros and ones, as in masks, ones come first along the last axis, at
    least one, and zeros after them.

    Attributes:
        inputs: The model's inputs.
        shapes: Input name to the shape of a sample, without the batch axis.
        seed: Seed of the values: those of sample i depend on ``seed`` and i only.
    """

    inputs: Sequence[InputSpec]
    shapes: Mapping[str, Shape]
    seed: int

    @classmethod
    def open(cls, data: str, binding: Binding, options: DataOptions) -> RandomSamples:
        """Prepares random samples for a model.

        Args:
            data: ``random:`` and the number of samples, and after it the shape of one sample for inputs with
                dynamic dimensions, as in ``random:64,images=3x480x640,tokens=128``. A dimension of the same
                name in another input gets the same size.
            binding: Says what feeds the model.
            options: Has the seed.

        Raises:
            CalibrationDataError: The number is not from 1 to 9999999, a shape is malformed or does not fit
                its input, an input cannot be filled or is too large, or all of them are empty.
        """
        (count, given), inputs = _parse(data), binding.inputs
        if unknown := [name for name in given if name not in {spec.name for spec in inputs}]:
            raise CalibrationDataError(
                f"the random data has a shape for '{unknown[0]}', and the model's inputs are "
                f"{listed(inputs)}; name one of these"
            )
        known = named_sizes(inputs, given)
        shapes = {spec.name: _sample_shape(spec, given.get(spec.name), known) for spec in inputs}
        for spec in inputs:
            _check_values(spec, shapes[spec.name])
        if all(0 in shape for shape in shapes.values()):
            raise CalibrationDataError(
                f"the random data has no values: every sample of {listed(inputs)} is empty; give one of "
                "them a shape without 0"
            )
        source = cls(inputs, shapes, options.seed, count=count, is_random=True)
        binding.check(source.first())
        return source

    def read(self, batch: Indices) -> tuple[FeedDict, None]:
        """What the model is fed."""
        generators = (np.random.default_rng([self.seed, int(index)]) for index in batch)
        samples = [
            {spec.name: drawn(spec, self.shapes[spec.name], generator) for spec in self.inputs}
            for generator in generators
        ]
        return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}, None


def with_shapes(data: str, inputs: Sequence[InputSpec], shapes: InputShapes) -> str:
    """Random data with the shapes of inputs that it says nothing about.

    Args:
        data: Data that begins with :data:`RANDOM`.
        inputs: The model's inputs.
        shapes: Input name to a shape of this input, batch axis included; may lack inputs.

    Returns:
        ``data``, and after it the shapes of the inputs with dynamic dimensions that are in ``shapes`` and not
        in ``data``.

    Raises:
        CalibrationDataError: ``data`` is malformed.
    """
    _, said = _parse(data)
    added = [
        f",{spec.name}={'x'.join(map(str, shapes[spec.name][1:]))}"
        for spec in inputs
        if spec.name in shapes
        and spec.name not in said
        and spec.has_open_sizes
        and len(shapes[spec.name]) == len(spec.shape or ())
    ]
    return data + "".join(added)


def _parse(data: str) -> tuple[int, dict[str, Shape]]:
    """The number of samples that ``random:COUNT,NAME=SHAPE,...`` asks for, and their shapes by input."""
    text = data.removeprefix(RANDOM)
    found = _COUNT.fullmatch(text)
    if not found:
        raise CalibrationDataError(
            f"'{RANDOM}{text[:40]}' needs a number of samples from 1 to 9999999, such as random:64"
        )
    shapes: dict[str, Shape] = {}
    rest = found[2] or ""
    while rest:
        entry = _SHAPE.match(rest)
        if not entry or entry["name"] in shapes:
            raise CalibrationDataError(
                f"'{rest[:40]}' of '{RANDOM}...' is not NAME=SHAPE with each input once; write the shape of "
                "one sample without the batch, such as random:64,images=3x480x640"
            )
        shapes[entry["name"]] = tuple(map(int, entry["shape"].split("x")))
        rest = rest[entry.end() :]
    return int(found[1]), shapes


def _sample_shape(spec: InputSpec, given: Shape | None, known: Mapping[str, int]) -> Shape:
    """The shape of one sample, without the batch axis."""
    if spec.shape == ():
        raise CalibrationDataError(
            f"cannot make random data for input {spec}: it has no batch axis; pass data of your own"
        )
    if given is not None:
        declared = given if spec.shape is None else spec.shape[1:]
        if len(given) != len(declared) or not fits(given, declared):
            raise CalibrationDataError(
                f"the random data has the shape {shape_text(given)} for a sample of input {spec}, "
                "which does not fit; leave the batch out, and give every other dimension"
            )
        return given
    sizes = [known.get(dim) if isinstance(dim, str) else dim for dim in (spec.shape or ())[1:]]
    shape = tuple(size for size in sizes if size is not None)
    if spec.shape is None or len(shape) < len(sizes):
        example = "x".join(str(size or 64) for size in sizes) or "3x64x64"
        raise CalibrationDataError(
            f"cannot make random data for input {spec}: a dimension other than the batch is not fixed; say "
            f"the shape of one sample, as in random:8,{spec.name}={example}, or pass data of your own"
        )
    return shape


def _check_values(spec: InputSpec, shape: Shape) -> None:
    """Refuses an input whose values cannot be drawn."""
    if not is_float(spec.dtype) and _bound(spec) is None:
        raise CalibrationDataError(
            f"cannot make random data for input {spec}: it is not floating-point, and the graph does not "
            "tell which integers it takes; pass data of your own"
        )
    values = math.prod(shape)
    if values > _MOST_VALUES:
        raise CalibrationDataError(
            f"cannot make random data for input {spec}: a sample has {values:,} values, and "
            f"{_MOST_VALUES:,} are the most; pass data of your own"
        )


def _bound(spec: InputSpec) -> int | None:
    """The least integer above all values that an input may have; None where it is not known."""
    if spec.dtype == np.bool_:
        return 2
    if spec.bound is None or spec.dtype.kind not in "iu":
        return None
    return min(spec.bound, int(np.iinfo(spec.dtype).max) + 1)


def drawn(spec: InputSpec, shape: Shape, generator: np.random.Generator) -> NDArray[np.generic]:
    """Draws one sample of an input: see :class:`RandomSamples`.

    Args:
        spec: The input. Its integers are zeros and ones where it has no bound.
        shape: The shape of the sample.
        generator: Where values come from.
    """
    bound = _bound(spec) or 2
    if is_float(spec.dtype):
        return generator.standard_normal(shape, np.float32).astype(spec.dtype, copy=False)
    if bound == 2 and shape and shape[-1]:
        # As padding makes masks: with a zero in front, causal attention would have nothing to attend to.
        ones = generator.integers(1, shape[-1] + 1, (*shape[:-1], 1))
        return (np.arange(shape[-1]) < ones).astype(spec.dtype)
    return generator.integers(0, bound, shape).astype(spec.dtype)
