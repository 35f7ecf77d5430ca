"""What may go on around a step: a gradient scaler, a CUDA graph being captured."""

from typing import Any, NoReturn

import torch
from torch import Tensor

__all__ = ["cannot_repeat", "cannot_wait", "capturing", "copied", "keep", "load", "scaling", "unscale"]


def scaling(optimizer: Any) -> tuple[Tensor | None, Tensor | None]:
    """What a GradScaler left here: 1/scale, and whether it saw a gradient that is not finite."""
    scale, found = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
    unscaled = optimizer.__dict__.pop("_unscaled", False)
    if found is not None and scale is None and not unscaled:
        raise RuntimeError("scaler.unscale_(opt) reaches one of the two gradients only: use opt.unscale_(scaler)")
    return (None if scale is None else 1 / scale), found


def unscale(optimizer: Any, scaler: Any) -> None:
    """``scaler.unscale_``, for the gradients of both levels."""
    away = optimizer.gradients.put_away()
    scaler.unscale_(optimizer)
    inverse = 1 / scaler._get_scale_async() if scaler.is_enabled() else None
    if inverse is not None:
        for g in away:
            g.mul_(inverse.to(g.device))
    optimizer._unscaled = True


def capturing(device: torch.device) -> bool:
    """Whether what is launched now goes into a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def cannot_wait(device: torch.device, what: str) -> None:
    """Say what would wait for the device, before CUDA says that something did."""
    if capturing(device):
        raise RuntimeError(f"{what} waits for the device, which a captured step cannot: nonfinite='ignore' never does")


def cannot_repeat() -> NoReturn:
    """Say that a step changes from one to the next, where it is to be captured once and repeated."""
    raise RuntimeError(
        "a captured step repeats its numbers: barrier, regularizer, … must be constants, estimator='minibatch'"
    )


def keep(state: dict[str, Any], name: str, value: Tensor) -> None:
    """Store in place where that is possible: a captured step finds its state where it left it."""
    before = state[name]
    if before is not None and (before.device, before.dtype) == (value.device, value.dtype):
        before.copy_(value)
    else:
        state[name] = value.clone()


def load(state: dict[str, Any], saved: dict[str, Any]) -> None:
    """Take up a saved state, in place: a captured step goes on with it."""
    for name, value in saved.items():
        if isinstance(value, Tensor):
            before = state[name]
            keep(state, name, value if before is None else value.to(before))
        else:
            state[name] = value


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """A state of its own: what is saved does not change with what goes on, nor do two that load it share it."""
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
