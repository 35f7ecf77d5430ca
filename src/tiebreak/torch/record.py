"""What a step did."""

from typing import NamedTuple

import torch
from torch import Tensor

from tiebreak import stationarity

__all__ = ["Step", "record"]


class Step(NamedTuple):
    """What a step did, as tensors: 0-d, or one value per region with ``scope="group"`` or ``"tensor"``.

    They are on the device, and reading one waits for it, unless the step had to wait anyway (``nonfinite="raise"``);
    :meth:`DynamicBarrier.log` reads all. The residuals are made of inner products, and are no finer than those are.
    """

    multiplier: Tensor
    fg: Tensor
    gg: Tensor
    ff: Tensor
    direction_squared: Tensor
    stationarity_squared: Tensor
    upper_loss: Tensor | None
    lower_loss: Tensor | None
    skipped: Tensor


def record(
    multiplier: Tensor, fg: Tensor, gg: Tensor, ff: Tensor, losses: dict[str, Tensor], skipped: Tensor | None
) -> Step:
    """The record of a step; all but the losses are unknown where `skipped` is true."""
    if skipped is not None:
        unknown = torch.where(skipped, torch.nan, 0.0).to(fg)
        multiplier, fg, gg, ff = (value + unknown for value in (multiplier, fg, gg, ff))
    both = torch.stack([multiplier, stationarity.best_multiplier(fg, gg)])
    own, least = (ff + 2 * both * fg + both**2 * gg).clamp_min(0).unbind()
    told = (losses.get("upper"), losses.get("lower"))
    return Step(
        multiplier, fg, gg, ff, own, least, *told, torch.zeros((), dtype=torch.bool) if skipped is None else skipped
    )
