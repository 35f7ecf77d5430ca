"""What a step did."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tiebreak import stationarity
from tiebreak.tolerance import Reading

__all__ = ["Step", "record", "worry"]


_ODD = 30.0  # tolerances below its reference: nobody gives such a one on purpose


class Step(NamedTuple):
    """What a step did, as tensors: 0-d, or one value per area with ``scope="group"`` or ``"tensor"``.

    They are on the device, and reading one waits for it, unless the step had to wait anyway (``nonfinite="raise"``);
    :meth:`DynamicBarrier.log` reads all. The residuals are made of inner products, and are no finer than those are.

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
        the standard error of that excess, and λ/s, s the averaged ‖∇f‖/‖∇g‖. The promise is an excess of at most 1.
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
    multiplier: Tensor,
    products: tuple[Tensor, Tensor, Tensor],
    losses: tuple[Any, Any],
    skipped: Tensor | None,
    reading: Reading | None = None,
) -> Step:
    """The record of a step; all but the losses are unknown where `skipped` is true."""
    fg, gg, ff = products
    if skipped is not None:
        unknown = torch.where(skipped, torch.nan, 0.0).to(fg)
        multiplier, fg, gg, ff = (value + unknown for value in (multiplier, fg, gg, ff))
    both = torch.stack([multiplier, stationarity.best_multiplier(fg, gg)])
    own, least = (ff + 2 * both * fg + both**2 * gg).clamp_min(0).unbind()
    more: dict[str, Any] = {}
    if reading is not None:
        names = {
            "average_loss": "loss",
            "reference": "reference",
            "excess": "excess",
            "noise": "noise",
            "ratio": "ratio",
        }
        more = {name: _tensor(getattr(reading, field), fg) for name, field in names.items()}
    upper, lower = (None if loss is None else _tensor(loss, fg) for loss in losses)
    made = torch.zeros((), dtype=torch.bool) if skipped is None else skipped
    return Step(multiplier, fg, gg, ff, own, least, upper, lower, made, **more)


def worry(reading: Reading, tolerance: Any) -> str:
    """What a user of this tolerance must be told, or nothing."""
    if reading.noise > 1.0:
        return (
            f"the averaged excess is known to {reading.noise:.1f} tolerances only: tolerance={tolerance!r} is below "
            "what these batches can tell. Use larger batches, a larger tolerance, or a reference on the same batch."
        )
    if reading.excess < -_ODD:
        return (
            f"the lower loss lies {-reading.excess:.0f} tolerances below its reference: is that what training on it "
            "alone reaches? Everything down to there may be given up for the upper loss."
        )
    return ""


def _tensor(value: Any, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=like.dtype)
