"""Options of one value that look as if they might be repeated."""

from __future__ import annotations

import argparse
from typing import Any


class Once(argparse.Action):
    """Stores a value, and refuses a second one.

    A plain parser takes the last one in silence. Here that would pass for all of them, as another verb, or
    another kind of argument, takes several.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002  # named as in the base class
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        """Stores the value.

        Raises:
            argparse.ArgumentError: There is one already.
        """
        if (first := getattr(namespace, self.dest)) is not None:
            raise argparse.ArgumentError(
                self, f"it is given as {first} and as {values}, and only one is taken; give it once"
            )
        setattr(namespace, self.dest, values)
