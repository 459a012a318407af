"""The configs of all tensors of a model, and which of them stand for others: a union-find."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from trtint8.quantization.config import State, TensorQuantConfig


class JointConfigs:
    """Tensor names to configs, in groups: one tensor of each dominates, and its scale is that of all.

    A dominated tensor is *overlapped*: it holds the same whole numbers under another name, or was fused
    away and holds none.
    """

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}
        self._configs: dict[str, TensorQuantConfig] = {}

    def add(self, tensor: str, config: TensorQuantConfig) -> None:
        """Gives a tensor a config; overlapped where another one dominates it already."""
        dominated = config.state is State.INITIAL and self.dominator(tensor) != tensor
        self._configs[tensor] = config.to(State.OVERLAPPED) if dominated else config

    def join(self, tensor: str, dominator: str) -> None:
        """Puts a tensor, and all that it dominates, under another one's dominator."""
        root, other = self.dominator(tensor), self.dominator(dominator)
        if root == other:
            return
        self._parent[root] = other
        if root in self._configs and self._configs[root].state is State.INITIAL:
            self._configs[root] = self._configs[root].to(State.OVERLAPPED)

    def dominator(self, tensor: str) -> str:
        """The tensor whose config counts; a tensor that was never joined is its own."""
        path = []
        while (parent := self._parent.get(tensor, tensor)) != tensor:
            path.append(tensor)
            tensor = parent
        for visited in path:
            self._parent[visited] = tensor
        return tensor

    def __getitem__(self, tensor: str) -> TensorQuantConfig:
        """The tensor's own config."""
        return self._configs[tensor]

    def __contains__(self, tensor: object) -> bool:
        return tensor in self._configs

    def __iter__(self) -> Iterator[str]:
        return iter(self._configs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JointConfigs):
            return NotImplemented
        names = {*self._parent, *other._parent}
        same_groups = all(self.dominator(name) == other.dominator(name) for name in names)
        return same_groups and self._configs == other._configs

    __hash__ = None  # type: ignore[assignment]

    def groups(self, tensors: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """The groups of two or more that the given tensors form; those in between are left out."""
        groups: dict[str, list[str]] = {}
        for tensor in tensors:
            groups.setdefault(self.dominator(tensor), []).append(tensor)
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)

    def activated(self, ranges: Mapping[str, float]) -> dict[str, TensorQuantConfig]:
        """Configs with scales for tensors of known range; each group takes its widest.

        Args:
            ranges: Tensor name to amax, positive.

        Returns:
            Tensor name to its dominator's config, activated.
        """
        widest: dict[str, float] = {}
        for tensor, amax in ranges.items():
            root = self.dominator(tensor)
            widest[root] = max(amax, widest.get(root, 0.0))
        activated = {}
        for tensor in ranges:
            root = self.dominator(tensor)
            # A dominator that no pair reads has a config all the same, of those that it dominates.
            config = dataclasses.replace(self._configs.get(root, self._configs[tensor]), state=State.INITIAL)
            activated[tensor] = config.with_scale(config.scale_of(widest[root]))
        return activated
