"""Gradient scalers of mixed precision: their scale and their findings, read at the door of a step.

``torch.amp.GradScaler`` looks at ``.grad``, which has the gradients of one level alone. This module makes up for that.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

from tiebreak.torch.distributed.layout import local_tensor


class Scaling(NamedTuple):
    """What a gradient scaler left for one step.

    Attributes
    ----------
    inverse_scale : tensor or None
        1 over the scale of the gradients; None if they are unscaled.
    inverse_loss_scale : tensor or None
        1 over the scale of the losses' factors.
    found_inf : tensor or None
        Not 0 if a gradient is not finite; None without a scaler.
    is_active : bool
        Whether a scaler is at work.
    changed_grad : bool
        Whether the scaler has just written to ``.grad``, to look at it.
    """

    inverse_scale: Tensor | None
    inverse_loss_scale: Tensor | None
    found_inf: Tensor | None
    is_active: bool
    changed_grad: bool


NO_SCALER = Scaling(None, None, None, is_active=False, changed_grad=False)


def read_scaling(
    scale: Any, found_inf: Any, inverse_unscaled: Tensor | None
) -> Scaling:
    """Return the scaling of a step from the attributes that ``scaler.step`` sets at an optimizer.

    `inverse_unscaled` is 1 over the scale that ``opt.unscale_`` took out.
    """
    if isinstance(found_inf, (int, float)):  # the scaler found no gradient at all
        raise RuntimeError(
            "scaler.step(opt, upper=…, lower=…): a scaler looks at .grad before closures run; use blocks"
        )
    has_unscaled = inverse_unscaled is not None
    if found_inf is not None and scale is None and not has_unscaled:
        raise RuntimeError(
            "scaler.unscale_(opt) reaches one of the two gradients only: use opt.unscale_(scaler), "
            "or opt.combine(scaler) before"
        )
    inverse = None if scale is None else 1 / scale
    loss_inverse = inverse_unscaled if has_unscaled else inverse
    is_active = found_inf is not None
    changed_grad = is_active and not has_unscaled
    return Scaling(inverse, loss_inverse, found_inf, is_active, changed_grad)


def unscale_stored(scaler: GradScaler, gradients: Iterable[Tensor]) -> Tensor | None:
    """Unscale gradients that are not in ``.grad``; return 1 over the scale, None if the scaler is disabled."""
    if not scaler.is_enabled():
        return None
    scale: Any = scaler._get_scale_async()
    inverse: Tensor = 1 / scale
    for grad in gradients:
        local_tensor(grad).mul_(inverse.to(grad.device))
    return inverse


def inspect_gradients(scaler: GradScaler, optimizer: Optimizer) -> tuple[Any, Any]:
    """Return the scale of the gradients, None if they are unscaled, and whether one of them is not finite.

    ``scaler.step`` finds the same out; this comes before it, for ``opt.combine(scaler)``.
    """
    state = scaler._per_optimizer_states[id(optimizer)]
    if state["stage"] is OptState.READY:
        found_inf = scaler._check_inf_per_device(optimizer)
        return scaler._get_scale_async(), sum(found_inf.values())
    return None, sum(state["found_inf_per_device"].values())
