"""Gradient scalers of mixed precision: their scale and their findings, read at the door of a step.

``torch.amp.GradScaler`` looks at ``.grad``, which has the gradients of one level alone. This module makes up for that.
"""

from typing import Any, NamedTuple

from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer


class Scaling(NamedTuple):
    """What a gradient scaler left for one step.

    Attributes
    ----------
    inverse_scale : tensor or None
        1 over the scale of the gradients and of the losses' factors.
    found_inf : tensor or None
        Not 0 if a gradient is not finite; None without a scaler.
    """

    inverse_scale: Tensor | None
    found_inf: Tensor | None


NO_SCALER = Scaling(None, None)


def read_scaling(scale: Any, found_inf: Any) -> Scaling:
    """Return the scaling of a step from the attributes that ``scaler.step`` sets at an optimizer."""
    if isinstance(found_inf, (int, float)):  # the scaler found no gradient at all
        raise RuntimeError(
            "scaler.step(opt, upper=…, lower=…): a scaler looks at .grad before closures run; use blocks"
        )
    if scale is None:
        raise RuntimeError(
            "scaler.unscale_(opt) reaches one of the two gradients only: call opt.combine(scaler) before"
        )
    return Scaling(1 / scale, found_inf)


def inspect_gradients(scaler: GradScaler, optimizer: Optimizer) -> tuple[Any, Any]:
    """Return the scale of the gradients, None if they are unscaled, and whether one of them is not finite.

    ``scaler.step`` finds the same out; this comes before it, for ``opt.combine(scaler)``.
    """
    is_scaled = scaler._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY
    found_inf = scaler._check_inf_per_device(optimizer)
    if is_scaled:
        scale = scaler._get_scale_async()
    else:
        scale = None
    return scale, sum(found_inf.values())
