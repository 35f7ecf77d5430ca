"""What a step did."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tiebreak.tolerance import Reading

#: What the record has of the inner products, in its order.
RESIDUES = ("multiplier", "fg", "gg", "ff", "direction_squared", "stationarity_squared")
#: And of the law of a tolerance, with its own names.
READINGS = {
    "average_loss": "loss",
    "reference": "reference",
    "excess": "excess",
    "noise": "noise",
    "ratio": "ratio",
}


class Step(NamedTuple):
    """What a step did, as tensors without dimensions.

    They are on the device, and reading one waits for it; :meth:`DynamicBarrier.log` reads all. The residuals are made
    of inner products, and are no finer than those are.

    Attributes
    ----------
    multiplier : tensor
        λ.
    fg, gg, ff : tensor
        ⟨∇f, ∇g⟩, ‖∇g‖² and ‖∇f‖², as the rule saw them.
    direction_squared, stationarity_squared : tensor
        ‖∇f + λ∇g‖², and the least of it over λ ≥ 0.
    upper_loss, lower_loss : tensor or None
        As given.
    skipped : tensor
        Whether the step was not made.
    average_loss, reference, excess, noise, ratio : tensor or None
        With a tolerance: the averaged lower loss and its reference, how far the one lies above the other in tolerances,
        the standard error of that excess, and λ/s, s the averaged ‖∇f‖/‖∇g‖. The promise is an excess of at most 1. All
        are averaged over recent steps; the last iterate may differ where the learning rate does not fall.
    returns : tensor or None
        With a twin: how many times the model was set to it, up to this step and with it.

    Examples
    --------
    >>> import torch, tiebreak.torch
    >>> x = torch.nn.Parameter(torch.tensor([2.0]))
    >>> method = tiebreak.methods.sdbgd.replace(barrier=1.0, regularizer=0.0)
    >>> opt = tiebreak.torch.DynamicBarrier(torch.optim.SGD([x], lr=0.1), method=method)
    >>> done = opt.step(upper=lambda: x.sum(), lower=lambda: x.square().sum())
    >>> done.multiplier.item(), done.lower_loss.item(), bool(done.skipped)
    (0.75, 4.0, False)
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
    average_loss: Tensor | None = None
    reference: Tensor | None = None
    excess: Tensor | None = None
    noise: Tensor | None = None
    ratio: Tensor | None = None
    returns: Tensor | None = None


def record(
    numbers: Sequence[Tensor], losses: Sequence[Any], skipped: Tensor | None, reading: Reading | None = None
) -> Step:
    """The record of a step from the numbers of `RESIDUES`; all but the losses are unknown where `skipped` is true."""
    like = numbers[0]
    if skipped is not None:
        unknown = torch.where(skipped, torch.nan, 0.0).to(like)
        numbers = [value + unknown for value in numbers]
    more: dict[str, Any] = {}
    if reading is not None:
        more = {name: _tensor(getattr(reading, field), like) for name, field in READINGS.items()}
    upper, lower = (None if loss is None else _tensor(loss, like) for loss in losses)
    made = torch.zeros((), dtype=torch.bool) if skipped is None else skipped
    named = dict(zip(RESIDUES, numbers, strict=True))
    return Step(**named, upper_loss=upper, lower_loss=lower, skipped=made, **more)


def _tensor(value: Any, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=like.dtype)
