"""One parameter with its two gradients, and what the fast paths must know of how they lie in memory."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["NARROW", "Row", "alike", "dense", "plain", "wide"]

NARROW = (torch.float16, torch.bfloat16)


class Row(NamedTuple):
    """A parameter and its gradients; None where a loss does not reach it.

    Attributes
    ----------
    area : int
        Which multiplier it has.
    slot : int
        Which weights: an area and a parameter group.
    """

    parameter: Tensor
    upper: Tensor | None
    lower: Tensor | None
    area: int
    slot: int

    @property
    def tensors(self) -> list[Tensor]:
        """What is there of the parameter and its gradients."""
        return [t for t in (self.parameter, self.upper, self.lower) if t is not None]


def wide(device: torch.device) -> torch.dtype:
    """The dtype of sums on a device: float64, where it has that."""
    return torch.float32 if device.type == "mps" else torch.float64


def plain(tensors: Sequence[Tensor]) -> bool:
    """Whether these are ordinary dense tensors in memory, and not a subclass that means something else."""
    return all(type(t) in (Tensor, torch.nn.Parameter) for t in tensors)


def alike(tensors: Sequence[Tensor]) -> bool:
    """Whether element i in memory is the same element in all of them: then a pass may forget their shapes."""
    first = tensors[0]
    if all(t.is_contiguous() for t in tensors):
        return True
    strides = first.stride()
    return all(t.stride() == strides for t in tensors) and dense(first)


def dense(tensor: Tensor) -> bool:
    """Whether the elements fill their memory, each place once, in whatever order: channels last, transposed, …."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
