"""The direction before the step: what a trainer does to gradients between backward and step, it does to d."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState

if TYPE_CHECKING:
    from tiebreak.torch.optimizer import DynamicBarrier
    from tiebreak.torch.step_info import Step


class Held(NamedTuple):
    """What a step still has to do once its direction is in ``.grad``."""

    made: bool  # whether there is a direction; False where numbers were not finite
    scaled: bool  # whether a gradient scaler is at work
    skip: Tensor | None = None
    twin: tuple[list[Any], Tensor | None, list[Any], Any] | None = None


def combine(opt: "DynamicBarrier", scaler: Any) -> "Step":
    """Decide, and put the direction into ``.grad``, with the scale of its gradients; the parameters stay."""
    if opt._held is not None:
        raise RuntimeError(
            "opt.combine() was called before in this step: opt.step() comes next"
        )
    opt.gradients.complete()
    if scaler is None or not scaler.is_enabled():
        if opt.guard.unscaled:
            raise RuntimeError(
                "opt.unscale_(scaler) was called: give the scaler to opt.combine(scaler), too"
            )
        return opt._apply(hold=True)
    stage, found = _look(opt, scaler)
    scaled: Any = opt
    scaled.found_inf, scaled.grad_scale = (
        found,
        scaler._get_scale_async() if stage is OptState.READY else None,
    )
    try:
        return opt._apply(hold=True)
    finally:
        del scaled.found_inf, scaled.grad_scale


def _look(opt: "DynamicBarrier", scaler: Any) -> tuple[OptState, Any]:
    """Whether the gradients are unscaled yet, and whether the scaler finds one that is not finite."""
    state = scaler._per_optimizer_states[id(opt)]
    found = (
        scaler._check_inf_per_device(opt)
        if state["stage"] is OptState.READY
        else state["found_inf_per_device"]
    )
    return state["stage"], sum(found.values())


@torch.no_grad()
def release(opt: "DynamicBarrier") -> "Step":
    """Let the base step along what is in ``.grad`` now."""
    held, scale, found = (
        opt._held,
        getattr(opt, "grad_scale", None),
        getattr(opt, "found_inf", None),
    )
    assert held is not None
    assert opt.last is not None
    if found is not None and not held.scaled:
        raise RuntimeError(
            "opt.combine() did not know of the gradient scaler: opt.combine(scaler)"
        )
    last, skipped = opt.last, found is not None and bool(found)
    if held.made and not skipped:
        if scale is not None:  # nobody has unscaled the direction
            torch._foreach_mul_(
                [p.grad for p in opt.gradients.parameters() if p.grad is not None],
                1 / scale,
            )
        twin = held.twin
        if (
            twin is not None and opt.target.copy is not None
        ):  # what was set since reaches the twin, too
            twin = (
                *twin[:2],
                opt.target.copy.set_outside(opt, opt._own_rates()),
                twin[3],
            )
        opt._move(held.skip)
        opt._end(twin)
        return opt.last
    if held.made:  # a step that was tried; one that was not is counted
        opt.last = last = last._replace(skipped=torch.ones_like(last.skipped))
        opt.count += 1
        opt.guard.skip()
    opt.forget()
    return last
