"""The engineer's mode: keep the lower loss within a tolerance of a reference, spend the rest on the upper loss."""

import math
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tiebreak.checks import tolerated
from tiebreak.torch.context import keep

__all__ = ["Target"]

_SLOW = 0.02  # weight of the newest squares in the unit: it is to follow the training, not the batches


class Target:
    """Follows the lower loss by an exponential average and says where it has to be.

    Parameters
    ----------
    tolerance : float or str
        0.01 for an absolute tolerance, "2%" for one relative to the reference.
    reference : float, optional
        A loss known to be attainable; without it, the best average so far.
    momentum : float
        Weight of the newest loss in the average.
    """

    def __init__(self, tolerance: float | str, reference: float | None, momentum: float) -> None:
        self.amount, self.relative = tolerated(tolerance, reference)
        self.reference, self.momentum, self._told = reference, momentum, False
        self.state: dict[str, Any] = {"total": None, "weight": None, "best": None, "ff": None, "gg": None}

    def update(self, loss: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The averaged loss, its target and the tolerance, as tensors on the loss's device."""
        if not self._told:
            self._told = True
            _warn_ranks()
        s = self.state
        # A loss that is not finite ends a step, not the averages: their weight stays as it was, too.
        fine = torch.isfinite(loss)
        counted = fine.to(loss.dtype)  # a float times a comparison would be float32
        rest = 1 - self.momentum * counted
        total, weight = (_or_zero(s[name], loss) for name in ("total", "weight"))
        keep(self.state, "total", rest * total + self.momentum * torch.where(fine, loss, torch.zeros_like(loss)))
        keep(self.state, "weight", rest * weight + self.momentum * counted)
        average = s["total"] / (s["weight"] + (s["weight"] == 0))
        average = torch.where(s["weight"] == 0, loss, average)
        if self.reference is None:
            best = torch.full_like(loss, math.inf) if s["best"] is None else s["best"].to(loss.device)
            keep(self.state, "best", torch.fmin(best, average))
            base = s["best"]
        else:
            base = torch.full_like(average, self.reference)
        tolerance = self.amount * (base.abs().clamp_min(1e-12) if self.relative else torch.ones_like(base))
        return average, base + tolerance, tolerance

    def unit(self, ff: Tensor, gg: Tensor) -> Tensor:
        """‖∇f‖/‖∇g‖, averaged: what a multiplier is large or small against."""
        for name, value in (("ff", ff), ("gg", gg)):
            before = self.state[name]
            now = value if before is None else before.to(value) + _SLOW * (value - before.to(value))
            last = torch.zeros_like(value) if before is None else before.to(value)
            keep(self.state, name, torch.where(torch.isfinite(now), now, last))
        unit: Tensor = (self.state["ff"] / (self.state["gg"] + 1e-30)).sqrt()
        return unit


def _or_zero(value: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if value is None else value.to(like.device)


def _warn_ranks() -> None:
    """Gradients are averaged over ranks, losses are not; a multiplier made of one's own loss is nobody else's."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        text = "every rank tells its own lower loss, and the multipliers will differ: tell the mean over all ranks"
        warnings.warn(text + ", opt.lower(mean) (said once, whether or not you do)", RuntimeWarning, stacklevel=8)
