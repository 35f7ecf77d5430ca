"""The gradients of both levels for every parameter, kept apart; and those of a twin, where there is one."""

from collections.abc import Sequence
from itertools import repeat
from operator import is_
from typing import Any

import torch
from torch import Tensor

from tiebreak.torch.distributed import Ranks
from tiebreak.torch.distributed.layout import local, placed
from tiebreak.torch.distributed.message import ONE_LEVEL
from tiebreak.torch.kernels.foreach import Row, max_abs

LEVELS = ("upper", "lower")
_ABSENT = (0, 0)


class Touched(RuntimeError):
    """``.grad`` was changed after its block."""


class NoGradient(RuntimeError):
    """A backward pass left nothing in ``.grad``."""


class Gradients:
    """The gradients of each level; ``.grad`` holds those of the level that was active last.

    That way whatever looks at ``.grad`` (a scaler, a clipper, a hook) sees real gradients, and no copy is made.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, ranks: Ranks) -> None:
        self._optimizer = optimizer  # its groups are looked up anew: loading a state replaces the list
        self.ranks = ranks
        self.clear()

    def clear(self) -> None:
        """Forget all levels; does not touch ``.grad``."""
        self.seen: set[str] = set()
        self.owner: str | None = None
        self._away: dict[str, dict[int, Tensor]] = {
            level: {} for level in (*LEVELS, "reference")
        }  # by parameter's id
        self._mark: list[tuple[int, int]] = []
        self._entered: list[tuple[int, int]] = []
        self._sample: Tensor | None = None
        self.faulty = False  # whether .grad was changed after its block
        self.touched: Tensor | None = (
            None  # whether .grad was changed after its block, where the versions do not say
        )

    def parameters(self) -> list[Tensor]:
        """Every parameter, in the order of the groups."""
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def activate(self, level: str) -> None:
        """Make ``.grad`` the place where this level's gradients accumulate."""
        parameters = self.parameters()
        empty = False  # whether this level has no gradient yet, so that there is nothing to look at
        if (
            self.owner is None
        ):  # what is in .grad now is the last step's direction, no gradient of this one
            self.ranks.look(parameters)
            for p in parameters:
                p.grad = None
            empty = True
        elif self.owner != level:
            self.untouched()
            self.ranks.between()
            mine, grads = self._away[level], [p.grad for p in parameters]
            self._away[self.owner] |= {
                id(p): g
                for p, g in zip(parameters, grads, strict=True)
                if g is not None
            }
            empty, anew = not mine, self.ranks.anew
            for p in parameters:
                p.grad = None if p in anew else mine.pop(id(p), None)
        self._entered = [_ABSENT] * len(parameters) if empty else self._versions()
        self.owner, self._mark = level, []

    def finish(self, level: str) -> None:
        """A block of this level is over: it must have left gradients."""
        now = self._versions()
        if (
            self.ranks.anew
        ):  # their wrapper found no gradient, or it would have written it elsewhere
            for p in self.ranks.anew:
                if (before := self._away[level].pop(id(p), None)) is not None:
                    p.grad = before if p.grad is None else p.grad.add_(before)
            now = self._versions()
        if now == self._entered and self.ranks.alone:  # else another rank may have some
            self.clear()
            raise NoGradient(
                f"no gradient came out of `with opt.{level}(…):`: put loss.backward() inside, of a loss that depends "
                "on the parameters of this optimizer (was the model copied or re-created after it? are they frozen, "
                f"requires_grad=False?); only to evaluate, `with torch.no_grad(), opt.{level}():` (DeepSpeed's ZeRO "
                "takes gradients away: use FSDP); the step begins anew"
            )
        self.seen.add(level)
        self._mark, self._sample = now, self._some_numbers()

    def mark(self) -> None:
        """What is in ``.grad`` is as it should be: a later change shows in the tensors' versions."""
        self._mark, self._sample = self._versions(), self._some_numbers()

    def _some_numbers(self) -> Tensor | None:
        """Of tensors whose versions say nothing, those of FSDP and DTensor: what clipping would change."""
        if not self.ranks.mute:
            return None
        grads = [local(p.grad) for p in self.parameters() if usable(p.grad)]
        some = [
            g.view(-1)[:64] for g in grads[:: 1 + len(grads) // 8] if g.is_contiguous()
        ]
        if not some:
            return None
        return torch.stack(
            [
                norm.to(some[0].device, torch.float32)
                for norm in torch._foreach_norm(some)
            ]
        )

    def _versions(self) -> list[tuple[int, int]]:
        grads = [p.grad for p in self.parameters()]
        found = [
            _ABSENT if grad is None else (id(grad), grad._version) for grad in grads
        ]
        if (
            anew := self.ranks.anew
        ):  # a forward pass makes other views of the same memory
            places = zip(self.parameters(), grads, found, strict=True)
            found = [
                (g.data_ptr(), 0) if g is not None and p in anew else at
                for p, g, at in places
            ]
        return found

    def present(self) -> tuple[bool, ...]:
        """Whether there are gradients of the upper and of the lower level."""
        parameters = self.parameters()
        return tuple(
            any(g is not None for g in self.of(level, parameters)) for level in LEVELS
        )

    def untouched(self) -> None:
        """Raise if ``.grad`` was changed after its block: that reached one level, and not the other."""
        if self._mark and not torch.compiler.is_compiling():
            now = self._versions()
            if (before := self._sample) is not None and (
                after := self._some_numbers()
            ) is not None:
                # Every rank has to know, so that none waits for the others: bits, because NaN differs from itself.
                changed = (
                    before.view(torch.int32) != after.view(torch.int32)
                    if len(before) == len(after)
                    else before > -1
                )
                found = changed.any()
                self.touched = (
                    found
                    if self.touched is None
                    else self.touched.to(found.device) | found
                )
            # One set to None is missed elsewhere, with its own sentence.
            if now != self._mark and any(
                a != b != _ABSENT for a, b in zip(self._mark, now, strict=False)
            ):
                if not self.ranks.alone:  # all ranks are told, with the step's sum
                    self.touched, self.faulty = torch.tensor(True), True
                    return
                raise Touched(
                    f"the {self.owner} gradients were changed after `with opt.{self.owner}():`, {ONE_LEVEL}"
                )

    def complete(self) -> None:
        """Raise unless both levels had a backward pass; where there are ranks all are told, with the step's sum."""
        for level in LEVELS:
            if level not in self.seen and (self.ranks.alone or not self.seen):
                raise RuntimeError(
                    f"no {level} gradients in this step: put the backward pass in `with opt.{level}():`, or give both "
                    "losses, opt.step(lower=lambda: …, upper=lambda: …)"
                )

    def of(self, level: str, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """This level's gradients."""
        if self.owner == level:
            return [p.grad for p in parameters]
        away = self._away[level]
        return [away.get(id(p)) for p in parameters]

    def put(self, level: str, parameter: Tensor, grad: Tensor) -> None:
        """Give a parameter a gradient of this level."""
        if self.owner == level:
            parameter.grad = grad
        else:
            self._away[level][id(parameter)] = grad

    def rows(self) -> list[Row]:
        """Every parameter with both gradients, in the order of the groups."""
        parameters = self.parameters()
        groups = [
            i
            for i, group in enumerate(self._optimizer.param_groups)
            for _ in group["params"]
        ]
        uppers, lowers = self.of("upper", parameters), self.of("lower", parameters)
        # Asked of every gradient at every step: all at once, one by one only where there is something to say.
        if any(map(is_, uppers, lowers)):
            _refuse_one_tensor(parameters, uppers, lowers)
        for level, grads in (("upper", uppers), ("lower", lowers)):
            there = [g for g in grads if g is not None]
            if not there and self.ranks.alone:
                raise RuntimeError(
                    f"the {level} gradients are gone: something set them to None between `with opt.{level}():` and the "
                    "step (model.zero_grad(), a copy of the optimizer)"
                )
            if there and {g.layout for g in there} != {torch.strided}:
                pairs = zip(parameters, grads, strict=True)
                shape = next(
                    tuple(p.shape)
                    for p, g in pairs
                    if g is not None and g.layout != torch.strided
                )
                raise TypeError(
                    f"a parameter of shape {shape} has a sparse gradient; use sparse=False"
                )
            if (
                any(map(Tensor.is_neg, there))
                or any(map(Tensor.is_conj, there))
                or self.ranks.cut
            ):
                grads[:] = [
                    self._resolved(level, p, g)
                    for p, g in zip(parameters, grads, strict=True)
                ]
        return list(map(Row, parameters, uppers, lowers, repeat(0), groups))

    def resolved(self, level: str) -> list[Tensor | None]:
        """This level's gradients of all parameters, over the ranks where the parameters are."""
        parameters = self.parameters()
        grads = self.of(level, parameters)
        if not self.ranks.cut:
            return grads
        return [
            self._resolved(level, p, g) for p, g in zip(parameters, grads, strict=True)
        ]

    def _resolved(self, level: str, p: Tensor, grad: Tensor | None) -> Tensor | None:
        """A gradient with its signs in memory, and over the ranks where its parameter is.

        Autograd may keep signs as a bit, which no kernel sees, and sums over ranks as a promise.
        """
        if grad is not None and (grad.is_neg() or grad.is_conj()):
            grad = grad.resolve_conj().resolve_neg()
            self.put(level, p, grad)
        if grad is not None and (there := placed(grad, p)) is not grad:
            grad = there
            self.put(level, p, grad)
        return grad

    def __getstate__(self) -> dict[str, Any]:
        # A copy of a parameter has no .grad: what is there goes along with the rest.
        parameters = self.parameters()
        levels = {
            level: list(zip(parameters, self.of(level, parameters), strict=True))
            for level in self._away
        }
        return self.__dict__ | {"_away": levels, "_mark": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"_away": {level: {} for level in state["_away"]}})
        for level, pairs in state["_away"].items():
            for p, grad in pairs:
                if grad is not None:
                    self.put(level, p, grad)

    def settle(self) -> None:
        """Make ``.grad`` the place of the direction: where ∇f was, or ∇g where that is all there is."""
        parameters = self.parameters()
        uppers, lowers = self.of("upper", parameters), self.of("lower", parameters)
        if self.owner == "upper" and all(u is not None for u in uppers):
            return  # as after closures: it is there
        for p, u, g in zip(parameters, uppers, lowers, strict=True):
            p.grad = g if u is None else u

    def put_away(self) -> list[Tensor]:
        """The gradients that are not in ``.grad``."""
        return [
            g
            for level, away in self._away.items()
            if level != self.owner
            for g in away.values()
        ]

    def poison(self) -> None:
        """Let a non-finite gradient that is put away show in ``.grad``, where a gradient scaler looks for it."""
        away = [local(g) for g in self.put_away() if usable(g)]
        here = next((local(p.grad) for p in self.parameters() if usable(p.grad)), None)
        if (
            away and here is None
        ):  # this rank's pieces have none of the level in .grad: 0 is as good
            p = next(
                p for p in self.parameters() if local(p).numel() and p.requires_grad
            )
            p.grad = torch.zeros_like(p)
            here = local(p.grad)
        if away and here is not None:
            here[(0,) * here.dim()].add_(
                (0 * max_abs(away)).to(device=here.device, dtype=here.dtype)
            )


def usable(grad: Tensor | None) -> bool:
    """Whether there is a dense gradient with numbers in it, on this rank."""
    return grad is not None and grad.layout == torch.strided and local(grad).numel() > 0


def _refuse_one_tensor(
    parameters: Sequence[Tensor], uppers: Sequence[Any], lowers: Sequence[Any]
) -> None:
    for p, u, g in zip(parameters, uppers, lowers, strict=True):
        if u is g and u is not None:
            raise RuntimeError(
                f"both gradients of a parameter of shape {tuple(p.shape)} are one tensor, as with "
                "DistributedDataParallel(gradient_as_bucket_view=True): leave that at False"
            )
