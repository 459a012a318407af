"""The parser of a verb."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class VerbParser(argparse.ArgumentParser):
    """A parser that takes options between positional arguments, too, as in ``build MODEL -o ENGINE DATA``.

    A plain parser gives a positional argument that may be left out, or repeated, nothing more once an option
    has come after the first.
    """

    _within = False

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parses as any parser, and where something was not understood, options before the rest.

        Args:
            args: The arguments.
            namespace: None: the attributes are those of a new one.

        Returns:
            The namespace, and the arguments that were not understood.
        """
        found, left = super().parse_known_args(args, namespace)
        # A verb with verbs of its own cannot be parsed in two passes, which are calls of this method.
        if not left or self._within or self._subparsers is not None:
            return found, left
        self._within = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._within = False
