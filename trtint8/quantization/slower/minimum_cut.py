"""The cheapest values of variables that are true or false, where pairs of different values cost more."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Hashable

_SOURCE, _SINK = 0, 1


class BinaryChoice:
    """Variables that are true or false, and the costs of their values, alone and in pairs.

    A minimum cut finds the exact optimum: a variable is true where it is on the source's side of the cut.
    Costs are integers that are not negative.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        #: For each vertex, its neighbours and the capacities that are left.
        self._capacities: list[dict[int, int]] = [{}, {}]

    def add_cost(self, variable: Hashable, *, true: int = 0, false: int = 0) -> None:
        """Adds what a variable costs in each of its states."""
        number = self._number(variable)
        self._add(_SOURCE, number, false)
        self._add(number, _SINK, true)

    def add_pair(self, true: Hashable, false: Hashable, cost: int) -> None:
        """Adds what it costs that one variable is true and another one false."""
        self._add(self._number(true), self._number(false), cost)

    def solve(self) -> frozenset[Hashable]:
        """The variables that are true in the cheapest choice; as few as possible where several are as cheap.

        It can be called once, because it uses the capacities up.
        """
        while True:
            levels = self._levels()
            if _SINK not in levels:
                return frozenset(name for name, number in self._numbers.items() if number in levels)
            self._saturate(levels)

    def _number(self, variable: Hashable) -> int:
        if variable not in self._numbers:
            self._numbers[variable] = len(self._capacities)
            self._capacities.append({})
        return self._numbers[variable]

    def _add(self, begin: int, end: int, capacity: int) -> None:
        if capacity:
            self._capacities[begin][end] = self._capacities[begin].get(end, 0) + capacity
            self._capacities[end].setdefault(begin, 0)

    def _levels(self) -> dict[int, int]:
        """The distance from the source of every vertex that can still be reached."""
        levels, pending = {_SOURCE: 0}, deque([_SOURCE])
        while pending:
            vertex = pending.popleft()
            for other, capacity in self._capacities[vertex].items():
                if capacity and other not in levels:
                    levels[other] = levels[vertex] + 1
                    pending.append(other)
        return levels

    def _saturate(self, levels: dict[int, int]) -> None:
        """Pushes flow along shortest paths until none is left (Dinic's algorithm)."""
        untried = {vertex: iter(list(self._capacities[vertex])) for vertex in levels}
        # The edge that each vertex tries; one that is full or leads to no sink is never tried again.
        current = {vertex: next(edges, None) for vertex, edges in untried.items()}
        path = [_SOURCE]
        while path:
            vertex = path[-1]
            if vertex == _SINK:
                path = self._push(path)
                continue
            other = current[vertex]
            if other is None:
                path.pop()
                if path:
                    current[path[-1]] = next(untried[path[-1]], None)
            elif self._capacities[vertex][other] and levels.get(other) == levels[vertex] + 1:
                path.append(other)
            else:
                current[vertex] = next(untried[vertex], None)

    def _push(self, path: list[int]) -> list[int]:
        """Uses up what a path has left; returns the path as far as its first edge that is full now."""
        edges = list(itertools.pairwise(path))
        flow = min(self._capacities[begin][end] for begin, end in edges)
        for begin, end in edges:
            self._capacities[begin][end] -= flow
            self._capacities[end][begin] += flow
        full = next(index for index, (begin, end) in enumerate(edges) if not self._capacities[begin][end])
        return path[: full + 1]
