"""The configs of all tensors of a model, and which tensors share one config: a union-find structure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from calibrators.tables.scales import scale_of
from trtint8.quantization.config import State, TensorQuantConfig


class JointConfigs:
    """Tensor names to configs, in groups: one tensor of each group dominates, and the others take its scale.

    A dominated tensor is *overlapped*: it holds the same integers under another name, or is never stored
    because the operator that computes it is fused with the next one.
    """

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}
        self._configs: dict[str, TensorQuantConfig] = {}

    def add(self, tensor: str, config: TensorQuantConfig) -> None:
        """Gives a tensor a config; the config becomes overlapped where another tensor dominates this one."""
        dominated = config.state is State.INITIAL and self.dominator(tensor) != tensor
        self._configs[tensor] = config.overlapped() if dominated else config

    def join(self, tensor: str, dominator: str) -> None:
        """Puts the group of ``tensor`` under the dominator of another tensor.

        Args:
            tensor: A tensor; all tensors of its group move with it.
            dominator: A tensor whose dominator becomes that of the group.
        """
        root, other = self.dominator(tensor), self.dominator(dominator)
        if root == other:
            return
        self._parent[root] = other
        if root in self._configs and self._configs[root].state is State.INITIAL:
            self._configs[root] = self._configs[root].overlapped()

    def dominator(self, tensor: str) -> str:
        """The tensor whose config counts for ``tensor``; a tensor that was never joined dominates itself."""
        path = []
        while (parent := self._parent.get(tensor, tensor)) != tensor:
            path.append(tensor)
            tensor = parent
        for visited in path:
            self._parent[visited] = tensor
        return tensor

    def __getitem__(self, tensor: str) -> TensorQuantConfig:
        """The tensor's own config, which may be overlapped."""
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
        """The groups of two or more of the given tensors; other members of the groups are left out."""
        groups: dict[str, list[str]] = {}
        for tensor in tensors:
            groups.setdefault(self.dominator(tensor), []).append(tensor)
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)

    def activated(self, ranges: Mapping[str, float]) -> dict[str, TensorQuantConfig]:
        """Configs with scales for tensors of known range; each group takes the widest range of its tensors.

        Args:
            ranges: Tensor name to amax, which is positive.

        Returns:
            Tensor name to the activated config of the tensor's dominator.
        """
        widest: dict[str, float] = {}
        for tensor, amax in ranges.items():
            root = self.dominator(tensor)
            widest[root] = max(amax, widest.get(root, 0.0))
        activated = {}
        for tensor in ranges:
            root = self.dominator(tensor)
            # A dominator without a config of its own takes that of the tensors that it dominates.
            config = dataclasses.replace(self._configs.get(root, self._configs[tensor]), state=State.INITIAL)
            activated[tensor] = config.with_scale(scale_of(widest[root]))
        return activated
