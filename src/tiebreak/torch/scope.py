"""Which parameters share a multiplier: all, those of a group, or each its own."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tiebreak.checks import one_of

__all__ = ["Scope"]

_Groups = Sequence[dict[str, Any]]


class Scope:
    """Divides parameter groups into areas, each with a multiplier, and slots, each with weights.

    An area's weights are the same in all its groups, but step sizes are not: with one multiplier a slot is a group,
    otherwise an area, which lies in one group.

    Parameters
    ----------
    name : {"global", "group", "tensor"}
    """

    def __init__(self, name: str) -> None:
        one_of("scope", name, ("global", "group", "tensor"))
        self.name = name

    @property
    def whole(self) -> bool:
        """Whether there is one multiplier for all."""
        return self.name == "global"

    def areas(self, groups: _Groups) -> list[list[Tensor]]:
        """The parameters of each area, in the order of the groups."""
        if self.whole:
            return [[p for group in groups for p in group["params"]]]
        if self.name == "group":
            return [list(group["params"]) for group in groups if group["params"]]
        return [[p] for group in groups for p in group["params"]]

    def columns(self, groups: _Groups) -> tuple[list[Tensor], list[int], list[int]]:
        """Every parameter, its area and its slot, in the order of the groups and so of the areas."""
        parameters = [p for group in groups for p in group["params"]]
        if self.name == "tensor":
            each = list(range(len(parameters)))
            return parameters, each, each
        if self.whole:
            return parameters, [0] * len(parameters), [i for i, group in enumerate(groups) for _ in group["params"]]
        filled = [group["params"] for group in groups if group["params"]]
        mine = [i for i, params in enumerate(filled) for _ in params]
        return parameters, mine, mine

    def count(self, groups: _Groups) -> int:
        """How many areas there are."""
        if self.whole:
            return 1
        return sum(len(g["params"]) if self.name == "tensor" else bool(g["params"]) for g in groups)

    def slots(self, groups: _Groups) -> list[int]:
        """The group of each slot."""
        if self.whole:
            return list(range(len(groups)))
        return [i for i, g in enumerate(groups) for _ in (g["params"] if self.name == "tensor" else g["params"][:1])]

    def per_slot(self, weights: Tensor, groups: _Groups) -> Tensor:
        """The weights (areas, 2) as (slots, 2)."""
        return weights.expand(len(groups), 2) if self.whole else weights

    def per_area(self, column: Tensor) -> Tensor:
        """A column of numbers of areas as a user sees it: 0-d where there is one multiplier."""
        return column[0] if self.whole else column
