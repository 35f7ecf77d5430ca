"""What a step did."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tiebreak.tolerance import Reading

__all__ = ["READINGS", "RESIDUES", "Stall", "Step", "oversized", "record", "worry"]


_FAR, _FALL = 3.0, 0.1  # at rest: so many tolerances above, without falling by that share of itself
_PATIENCE, _PART = 500, 0.25  # in so many steps, and in that part of all steps so far: long trainings fall slowly
_SOONER, _HALF = 200, 0.5  # the same where it is as far above as nobody means it: short trainings end before
_ODD = 30.0  # tolerances below its reference: nobody gives such a one on purpose


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
    """What a step did, as tensors: 0-d, or one value per area with ``scope="group"`` or ``"tensor"``.

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

    Examples
    --------
    >>> import torch, tiebreak.torch
    >>> x = torch.nn.Parameter(torch.tensor([2.0]))
    >>> opt = tiebreak.torch.DynamicBarrier(torch.optim.SGD([x], lr=0.1), barrier=1.0, regularizer=0.0)
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


class Stall:
    """Whether a lower loss has come to rest far above a reference that is one number."""

    def __init__(self) -> None:
        self._mark: tuple[int, float] | None = None  # since when it is far above, and how far it was then

    def seen(self, count: int, reading: Reading) -> str:
        """What a user must be told after this step, or nothing."""
        excess = float(reading.excess)
        if not excess > _FAR:
            self._mark = None
        elif self._mark is None or excess < (1 - _FALL) * self._mark[1]:
            self._mark = (count, excess)
            return ""
        rested = 0 if self._mark is None else count - self._mark[0]
        sooner = excess > _ODD and rested >= max(_SOONER, _HALF * count)
        if sooner or rested >= max(_PATIENCE, _PART * count):
            return (
                f"the lower loss has been at rest {excess:.0f} tolerances above its reference for "
                f"{rested} steps, "
                "although nearly all of each step is on it: is the number out of reach (another loss, data or mode)? "
                'Train on the lower loss alone to find it, or take reference="twin".'
            )
        return ""


def oversized(reading: Reading, tolerance: Any) -> str:
    """What a user must be told at the first step, where the tolerance is more than all there is; or nothing."""
    size = max(abs(float(reading.loss)), abs(float(reading.reference)))
    if not isinstance(tolerance, str) and tolerance >= 1 and tolerance > size > 0:  # 0.01 of a loss near 0 is sound
        return (
            f"tolerance={tolerance!r} is a number in the unit of the lower loss, and more than all of that loss, "
            f'{size:.3g} at the first step: everything may be given up for the upper loss. A share is written "2%".'
        )
    return ""


def worry(reading: Reading, tolerance: Any, same_batch: bool) -> str:
    """What a user of this tolerance must be told, or nothing; whether the reference is on the same batch already."""
    if reading.noise > 1.0:
        use = "larger batches or a larger tolerance"
        if not same_batch:
            use = 'larger batches, a larger tolerance, or a reference on the same batch: reference="twin" or "start"'
        return (
            f"the averaged excess is known to {reading.noise:.1f} tolerances only: tolerance={tolerance!r} is below "
            f"what these batches can measure. Use {use}."
        )
    if reading.excess < -_ODD:
        return (
            f"the lower loss lies {-reading.excess:.0f} tolerances below its reference: is that what training on it "
            "alone reaches? Everything down to there may be given up for the upper loss."
        )
    return ""


def _tensor(value: Any, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=like.dtype)
