"""The information about a step: `step` returns it, and the loggers write it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tiebreak.decision import residuals

#: The numbers that each step has, besides its losses.
PRODUCTS = ("multiplier", "fg", "gg", "ff")
#: The fields of the reading that a step with a tolerance has as well.
READINGS = ("reference", "excess", "ratio")


class Step(NamedTuple):
    """The numbers of a step, as tensors without dimensions.

    The tensors are on the device, and reading a number waits for the device; :meth:`DynamicBarrier.log` reads all. The
    residuals are computed from the inner products and inherit their rounding errors.

    Attributes
    ----------
    upper_loss, lower_loss : tensor or None
        The losses of the batch; None if they were not given.
    reference, excess, ratio : tensor or None
        With a tolerance: the averaged reference, the distance of the averaged lower loss above it in tolerances, and
        λ/s, where s is the averaged ‖∇f‖/‖∇g‖. The promise is an excess of at most 1. The averages are over recent
        steps; the last iterate may differ if the learning rate does not fall.
    multiplier : tensor
        λ.
    fg, gg, ff : tensor
        ⟨∇f, ∇g⟩, ‖∇g‖² and ‖∇f‖², the input of the rule.
    skipped : tensor
        Whether the parameters did not move.

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
        return self._residuals()[0]

    @property
    def stationarity_squared(self) -> Tensor:
        """The minimum of ‖∇f + λ∇g‖² over λ ≥ 0."""
        return self._residuals()[1]

    def _residuals(self) -> tuple[Tensor, Tensor]:
        return residuals(self.multiplier, self.fg, self.gg, self.ff)


def make_step(
    numbers: Mapping[str, Any], dtype: torch.dtype, skipped: Tensor | None
) -> Step:
    """Make a `Step` from numbers by name; those of `PRODUCTS` become NaN if `skipped` is true."""
    # One call makes tensors of all numbers of the host.
    host = {name: v for name, v in numbers.items() if isinstance(v, float)}
    values = torch.tensor(list(host.values()), dtype=dtype).unbind()
    fields: dict[str, Any] = dict.fromkeys(Step._fields) | dict(numbers)
    fields |= zip(host, values, strict=True)
    if skipped is None:
        skipped = torch.zeros((), dtype=torch.bool)
    else:
        unknown = torch.where(skipped, torch.nan, 0.0)
        for name in PRODUCTS:
            fields[name] = fields[name] + unknown.to(fields[name])
    return Step(**fields | {"skipped": skipped})


def unknown_step(
    like: Tensor, losses: Mapping[str, Any] = MappingProxyType({})
) -> Step:
    """Make the `Step` of a step that was not made, of which only the `losses` are known, by name."""
    numbers = dict(losses) | dict.fromkeys(PRODUCTS, like * torch.nan)
    return make_step(numbers, like.dtype, torch.ones_like(like, dtype=torch.bool))
