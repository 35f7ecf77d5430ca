"""What base optimizers can be told: to step, and on the device not to."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_FUSED = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
)  # torch has them in one kernel, with a flag to skip


def is_plain_sgd(base: Optimizer) -> bool:
    """Whether a step is x − η d and nothing else: then a zero gradient is no step at all."""
    extras = ("momentum", "weight_decay", "maximize")
    return type(base) is torch.optim.SGD and not any(
        group[name] for group in base.param_groups for name in extras
    )


def let_skip(base: Optimizer) -> None:
    """Have torch's fused kernels make the steps, where torch may choose: they can be told on the device not to.

    Only of SGD, Adam and AdamW made with neither ``foreach=`` nor ``fused=``, on ordinary parameters on a GPU.
    """
    if type(base) not in _FUSED or is_plain_sgd(base):
        return
    groups, known = base.param_groups, _takes_found_inf(base)
    momentum = any(group.get("momentum") for group in groups)
    if known and not momentum:
        return
    if any(
        group["fused"] is False
        or group["foreach"] is not None
        or group["differentiable"]
        for group in groups
    ):
        return
    parameters = [p for group in groups for p in group["params"]]
    if not known and not all(map(_ordinary, parameters)):
        return
    # torch's fused SGD wants the momentum of all parameters or of none: where one joins, the others' way is taken.
    states: Any = base.state
    ready = not momentum or all(
        "momentum_buffer" in states.get(p, ()) for p in parameters if p.requires_grad
    )
    if ready == known:
        return
    for group in groups:
        group["fused"] = True if ready else None
    base._step_supports_amp_scaling = ready  # type: ignore[attr-defined]  # what torch's own constructor sets
    for p in parameters:
        if "step" in states.get(p, ()):
            states[p]["step"] = states[p]["step"].to(
                p.device, torch.float32, non_blocking=True
            )


def _ordinary(p: Tensor) -> bool:
    return (
        type(p) in (Tensor, torch.nn.Parameter)
        and p.device.type in _DEVICES
        and p.is_floating_point()
    )


_DEVICES = ("cuda",)


def can_skip(base: Optimizer) -> bool:
    """Whether a step can be skipped without the host knowing."""
    return is_plain_sgd(base) or (_takes_found_inf(base) and _begun(base))


def step(base: Optimizer, skip: Tensor | None) -> None:
    """A step; where `skip` is true none, if the base can be told so. A plain one has a zero gradient instead."""
    if skip is None or not _takes_found_inf(base):
        base.step()
        return
    scaled: Any = base
    scaled.grad_scale, scaled.found_inf = (
        None,
        skip.float(),
    )  # as a gradient scaler tells it
    try:
        base.step()
    finally:
        del scaled.grad_scale, scaled.found_inf


def _takes_found_inf(base: Optimizer) -> bool:
    # A state that is loaded may bring another way of stepping along, and torch says nothing of it.
    known = bool(getattr(base, "_step_supports_amp_scaling", False))
    return known and all(group.get("fused", True) for group in base.param_groups)


def _begun(base: Optimizer) -> bool:
    # torch's fused SGD leaves its momentum uninitialised where its first step is skipped.
    kept = any(
        state.get("momentum_buffer") is not None for state in base.state.values()
    )
    return kept or not any(group.get("momentum") for group in base.param_groups)
