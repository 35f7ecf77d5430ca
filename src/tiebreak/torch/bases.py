"""What base optimizers can be told: to step, and on the device not to."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["can_skip", "is_plain_sgd", "step"]


def is_plain_sgd(base: Optimizer) -> bool:
    """Whether a step is x − η d and nothing else: then a zero gradient is no step at all."""
    extras = ("momentum", "weight_decay", "maximize")
    return type(base) is torch.optim.SGD and not any(group[name] for group in base.param_groups for name in extras)


def can_skip(base: Optimizer) -> bool:
    """Whether a step can be skipped without the host knowing."""
    return is_plain_sgd(base) or (_takes_found_inf(base) and _begun(base))


def step(base: Optimizer, skip: Tensor | None) -> None:
    """A step; where `skip` is true none, if the base can be told so. A plain one has a zero gradient instead."""
    if skip is None or not _takes_found_inf(base):
        base.step()
        return
    scaled: Any = base
    scaled.grad_scale, scaled.found_inf = None, skip.float()  # as a gradient scaler tells it
    try:
        base.step()
    finally:
        del scaled.grad_scale, scaled.found_inf


def _takes_found_inf(base: Optimizer) -> bool:
    return bool(getattr(base, "_step_supports_amp_scaling", False))


def _begun(base: Optimizer) -> bool:
    # torch's fused SGD leaves its momentum uninitialised where its first step is skipped.
    kept = any(state.get("momentum_buffer") is not None for state in base.state.values())
    return kept or not any(group.get("momentum") for group in base.param_groups)
