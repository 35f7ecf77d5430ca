"""What a step did: the record that `step` returns, and that logs write down."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tiebreak.decision import residuals
from tiebreak.tolerance import Reading

#: The numbers of the record that every step has, in the order of :func:`record`.
PRODUCTS = ("multiplier", "fg", "gg", "ff")
#: Those that a step with a tolerance adds; each is a field of the rule's reading.
READINGS = ("reference", "excess", "ratio")


class Step(NamedTuple):
    """What a step did, as tensors without dimensions.

    They are on the device, and reading one waits for it; :meth:`DynamicBarrier.log` reads all. The residuals are made
    of inner products, and are no finer than those are.

    Attributes
    ----------
    upper_loss, lower_loss : tensor or None
        The losses of the batch, if they were given.
    reference, excess, ratio : tensor or None
        With a tolerance: the averaged reference, how far the averaged lower loss lies above it in tolerances, and λ/s,
        s the averaged ‖∇f‖/‖∇g‖. The promise is an excess of at most 1. The averages are over recent steps; the last
        iterate may differ if the learning rate does not fall.
    multiplier : tensor
        λ.
    fg, gg, ff : tensor
        ⟨∇f, ∇g⟩, ‖∇g‖² and ‖∇f‖², as the rule saw them.
    skipped : tensor
        Whether the step was not made.

    Examples
    --------
    >>> import torch, tiebreak.torch
    >>> x = torch.nn.Parameter(torch.tensor([2.0]))
    >>> method = tiebreak.methods.sdbgd.replace(barrier=1.0, regularizer=0.0)
    >>> opt = tiebreak.torch.DynamicBarrier(torch.optim.SGD([x], lr=0.1), method=method)
    >>> info = opt.step(upper=lambda: x.sum(), lower=lambda: x.square().sum())
    >>> info.multiplier.item(), info.lower_loss.item(), info.direction_squared.item(), bool(info.skipped)
    (0.75, 4.0, 16.0, False)
    """

    upper_loss: Tensor | None
    lower_loss: Tensor | None
    reference: Tensor | None
    excess: Tensor | None
    ratio: Tensor | None
    multiplier: Tensor
    fg: Tensor
    gg: Tensor
    ff: Tensor
    skipped: Tensor

    @property
    def direction_squared(self) -> Tensor:
        """‖∇f + λ∇g‖²."""
        own: Tensor = residuals(self.multiplier, self.fg, self.gg, self.ff)[0]
        return own

    @property
    def stationarity_squared(self) -> Tensor:
        """The least ‖∇f + λ∇g‖² over λ ≥ 0."""
        least: Tensor = residuals(self.multiplier, self.fg, self.gg, self.ff)[1]
        return least


def record(
    numbers: Sequence[Tensor],
    losses: Sequence[Any],
    skipped: Tensor | None,
    reading: Reading | None = None,
) -> Step:
    """The record of a step from the numbers of `PRODUCTS`; all but the losses are unknown where `skipped` is true."""
    like = numbers[0]
    if skipped is not None:
        unknown = torch.where(skipped, torch.nan, 0.0).to(like)
        numbers = [value + unknown for value in numbers]
    fields: dict[str, Any] = dict.fromkeys(READINGS)
    if reading is not None:
        fields = {name: _tensor(getattr(reading, name), like) for name in READINGS}
    fields |= dict(zip(PRODUCTS, numbers, strict=True))
    upper, lower = (None if loss is None else _tensor(loss, like) for loss in losses)
    flag = torch.zeros((), dtype=torch.bool) if skipped is None else skipped
    return Step(upper_loss=upper, lower_loss=lower, skipped=flag, **fields)


def _tensor(value: Any, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=like.dtype)
