"""Chooses the optimization profile for the shapes of a feed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from calibrators.data.inputs import shape_text
from calibrators.errors import CalibrationDataError
from trtint8.engine.profiles import Profile, Shape


def choose_profile(shapes: Mapping[str, Shape], profiles: Sequence[Profile], active: int) -> int:
    """Chooses the profile for a feed.

    Args:
        shapes: Input name to its shape in the feed.
        profiles: Input name to accepted shapes, for every profile; inputs that a profile leaves out are
            static.
        active: Index of the profile in use; it is kept where it fits as well as any other, because switching
            takes time.

    Returns:
        The index of the fitting profile whose optimal shapes are nearest.

    Raises:
        CalibrationDataError: No profile accepts these shapes; the message lists the shapes that each accepts.
    """
    fitting = [index for index, profile in enumerate(profiles) if _fits(shapes, profile)]
    if not fitting:
        raise CalibrationDataError(_refusal(shapes, profiles))
    return min(fitting, key=lambda index: (_distance(shapes, profiles[index]), index != active))


def _fits(shapes: Mapping[str, Shape], profile: Profile) -> bool:
    return all(
        len(sizes.min) == len(shapes[name])
        and all(
            low <= size <= high for low, size, high in zip(sizes.min, shapes[name], sizes.max, strict=True)
        )
        for name, sizes in profile.items()
    )


def _distance(shapes: Mapping[str, Shape], profile: Profile) -> float:
    """How far the numbers of elements are from those of the optimal shapes, in factors of two."""
    return sum(
        abs(math.log2(max(1, math.prod(shapes[name])) / max(1, math.prod(sizes.opt))))
        for name, sizes in profile.items()
    )


def _refusal(shapes: Mapping[str, Shape], profiles: Sequence[Profile]) -> str:
    accepted = " or ".join(
        ", ".join(
            f"'{name}' {shape_text(sizes.min)} to {shape_text(sizes.max)}" for name, sizes in profile.items()
        )
        for profile in profiles
    )
    named = {name for profile in profiles for name in profile}
    given = ", ".join(f"'{name}' {shape_text(shape)}" for name, shape in shapes.items() if name in named)
    return (
        f"the engine takes {accepted}, and the data has {given}; change the batch size or build with other "
        "profiles"
    )
