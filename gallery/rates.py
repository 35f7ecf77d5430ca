"""Learning rates: schedules, and steps with an optimizer whose rate follows one."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from gallery.example import Task

__all__ = ["adam", "cosine", "move", "scaling", "scheduled"]


def cosine(share: float) -> float:
    """From 1 down to 0 along half a wave."""
    return (1 + math.cos(math.pi * min(share, 1.0))) / 2


def adam(rate: float) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """A function that makes an Adam of this learning rate."""
    return lambda parameters: torch.optim.Adam(parameters, lr=rate)


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


def scheduled(
    task: Task, steps: int, factor: float = 1.0
) -> Iterator[tuple[int, torch.optim.Optimizer]]:
    """The numbers of so many steps, and the task's base optimizer with the learning rate of each, times `factor`."""
    optimizer = task.base([p for p in task.model.parameters() if p.requires_grad])
    scale = scaling(optimizer)
    for step in range(steps):
        scale(factor * task.rate(step / steps))
        yield step, optimizer


def move(optimizer: torch.optim.Optimizer, direction: Sequence[Tensor]) -> None:
    """A step of an optimizer with one group of parameters, along a `direction` in the place of the gradient."""
    for p, d in zip(optimizer.param_groups[0]["params"], direction, strict=True):
        p.grad = d
    optimizer.step()
