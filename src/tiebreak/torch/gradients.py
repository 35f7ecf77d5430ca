"""Two gradients for every parameter, kept apart."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tiebreak.torch.foreach import largest
from tiebreak.torch.rows import Row

__all__ = ["LEVELS", "Gradients", "regions", "usable"]

LEVELS = ("upper", "lower")


class Gradients:
    """The gradients of both levels; ``.grad`` holds those of the level that was active last.

    That way whatever looks at ``.grad`` (a scaler, a clipper, a hook) sees real gradients, and no copy is made.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer  # its groups are looked up anew: loading a state replaces the list
        self.clear()

    def clear(self) -> None:
        """Forget both levels; does not touch ``.grad``."""
        self.seen: set[str] = set()
        self.owner: str | None = None
        self._kept: dict[str, dict[int, Tensor]] = {level: {} for level in LEVELS}  # by the parameter's id

    def parameters(self) -> Iterator[Tensor]:
        """Every parameter, in the order of the groups."""
        for group in self._optimizer.param_groups:
            yield from group["params"]

    def activate(self, level: str) -> None:
        """Make ``.grad`` the place where this level's gradients accumulate."""
        if self.owner is None:  # what is in .grad now is the last step's direction, no gradient of this one
            for p in self.parameters():
                p.grad = None
        elif self.owner != level:
            mine, others = self._kept[level], self._kept[self.owner]
            for p in self.parameters():
                grad = p.grad
                if grad is not None:
                    others[id(p)] = grad
                p.grad = mine.pop(id(p), None)
        self.owner = level
        self.seen.add(level)

    def of(self, level: str, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """This level's gradients."""
        if self.owner == level:
            return [p.grad for p in parameters]
        kept = self._kept[level]
        return [kept.get(id(p)) for p in parameters]

    def rows(self, scope: str) -> tuple[list[Row], int]:
        """Every parameter with both gradients, in the order of the areas that share a multiplier; and how many."""
        groups, rows, area, whole = self._optimizer.param_groups, [], 0, scope == "global"
        for number, group in enumerate(groups):
            parameters = group["params"]
            pairs = zip(self.of("upper", parameters), self.of("lower", parameters), strict=True)
            for p, (u, g) in zip(parameters, pairs, strict=True):
                if u is not None and u is g:
                    raise RuntimeError(
                        f"both gradients of a parameter of shape {tuple(p.shape)} are one tensor, as with "
                        "DistributedDataParallel(gradient_as_bucket_view=True): leave that at False"
                    )
                if (u is not None and u.layout != torch.strided) or (g is not None and g.layout != torch.strided):
                    raise TypeError(f"a parameter of shape {tuple(p.shape)} has a sparse gradient; use sparse=False")
                u, g = self._resolved("upper", p, u), self._resolved("lower", p, g)
                rows.append(Row(p, u, g, area, number if whole else area))
                area += scope == "tensor"
            area += scope == "group" and len(parameters) > 0
        return rows, 1 if whole else area

    def _resolved(self, level: str, p: Tensor, grad: Tensor | None) -> Tensor | None:
        """A gradient with its signs in memory: autograd may keep them as a bit, which no kernel sees."""
        if grad is not None and (grad.is_neg() or grad.is_conj()):
            grad = grad.resolve_conj().resolve_neg()
            if self.owner == level:
                p.grad = grad
            else:
                self._kept[level][id(p)] = grad
        return grad

    def slots(self, scope: str) -> list[int]:
        """The group of each slot: with one multiplier a slot is a group, otherwise an area, which lies in one group."""
        groups = self._optimizer.param_groups
        if scope == "global":
            return list(range(len(groups)))
        return [i for i, g in enumerate(groups) for _ in (g["params"] if scope == "tensor" else g["params"][:1])]

    def __getstate__(self) -> dict[str, Any]:
        pairs = {
            level: [(p, kept[id(p)]) for p in self.parameters() if id(p) in kept] for level, kept in self._kept.items()
        }
        return self.__dict__ | {"_kept": pairs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept = {level: {id(p): grad for p, grad in pairs} for level, pairs in state["_kept"].items()}
        self.__dict__.update(state | {"_kept": kept})

    def settle(self) -> None:
        """Make ``.grad`` the place of the direction: where ∇f was, or ∇g where that is all there is."""
        uppers, lowers = self._kept["upper"], self._kept["lower"]
        for p in self.parameters():
            if self.owner == "lower" and id(p) in uppers:
                p.grad = uppers[id(p)]
            elif p.grad is None:
                p.grad = lowers.get(id(p))

    def put_away(self) -> list[Tensor]:
        """The gradients that are not in ``.grad``."""
        return [] if self.owner is None else list(self._kept[LEVELS[self.owner == "upper"]].values())

    def poison(self) -> None:
        """Let a non-finite gradient that is put away show in ``.grad``, where a gradient scaler looks for it."""
        away = [g for g in self.put_away() if usable(g)]
        here = next((p.grad for p in self.parameters() if usable(p.grad)), None)
        if away and here is not None:
            here[(0,) * here.dim()].add_((0 * largest(away)).to(device=here.device, dtype=here.dtype))


def usable(grad: Tensor | None) -> bool:
    """Whether there is a dense gradient with numbers in it."""
    return grad is not None and grad.layout == torch.strided and grad.numel() > 0


def regions(groups: list[dict[str, Any]], scope: str) -> list[list[Tensor]]:
    """The parameters that share a multiplier: all of them, those of a group, or each by itself."""
    if scope == "global":
        return [[p for group in groups for p in group["params"]]]
    if scope == "group":
        return [list(group["params"]) for group in groups if group["params"]]
    return [[p] for group in groups for p in group["params"]]
