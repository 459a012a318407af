"""How engines of others are loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from calibrators.checks import several


@dataclass(frozen=True)
class LoadingOptions:
    """How engines are loaded; see :meth:`trtint8.runtime.engine.Engine.load`.

    Attributes:
        allow_host_code: Whether code that an engine contains may run.
        plugins: Paths of shared libraries with the plugins that engines use.
    """

    allow_host_code: bool = False
    plugins: Sequence[str | os.PathLike[str]] = ()

    def __post_init__(self) -> None:
        # A single path by itself is one, not its letters.
        object.__setattr__(self, "plugins", tuple(several(self.plugins)))


#: Engines that contain code are refused, and no plugins are loaded.
NO_CODE = LoadingOptions()
