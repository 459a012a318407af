"""Loads modules when they are first used, that others import and that neither verbs nor workers need."""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

#: onnx-ir computes symbolic shapes by SymPy, which takes 0.3 to 0.5 s to load; nothing here
#: has them computed.
_LAZY = ("sympy", "onnx_ir._symbolic_shapes")


class _LazyFinder(MetaPathFinder):
    """Finds the first import of a module as usual, and has it loaded when an attribute of it is read."""

    def __init__(self) -> None:
        self._found: set[str] = set()

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """The specification of the module with a loader that waits; None for all other modules."""
        if fullname not in _LAZY or fullname in self._found:
            return None
        self._found.add(fullname)
        spec = importlib.util.find_spec(fullname)  # which asks this finder again
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def import_lazily() -> None:
    """Lets the first imports of these modules cost nothing until an attribute is read."""
    if not any(isinstance(finder, _LazyFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LazyFinder())
