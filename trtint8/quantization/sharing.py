"""Which tensors must have one scale among them: a union-find over tensor names."""

from __future__ import annotations

from collections.abc import Iterable


class SharedScales:
    """Groups of names; every name starts alone."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def join(self, first: str, second: str) -> None:
        """Puts two names, and whatever each is grouped with, into one group."""
        self._parent[self._root(first)] = self._root(second)

    def among(self, names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """The groups of two or more that the given names form; names that were only between are left out."""
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(self._root(name), []).append(name)
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)

    def _root(self, name: str) -> str:
        path = []
        while (parent := self._parent.get(name, name)) != name:
            path.append(name)
            name = parent
        for visited in path:
            self._parent[visited] = name
        return name
