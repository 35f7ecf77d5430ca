"""Learning rates that a factor moves, whatever optimizer has them."""

from collections.abc import Callable

import torch

__all__ = ["scaling"]


def scaling(optimizer: torch.optim.Optimizer) -> Callable[[float], None]:
    """``scale(factor)``: every group's learning rate becomes what it is now times the factor.

    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    >>> scaling(optimizer)(0.1)
    >>> optimizer.param_groups[0]["lr"]
    0.05
    """
    rates = [group["lr"] for group in optimizer.param_groups]

    def scale(factor: float) -> None:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor

    return scale
