"""One parameter with its two gradients, and what the fast paths must know of how they lie in memory."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

NARROW = (torch.float16, torch.bfloat16)


class Row(NamedTuple):
    """A parameter and its gradients; None where a loss does not reach it.

    Attributes
    ----------
    kind : int
        Which ranks hold it: the number of a kind in :class:`tiebreak.torch.distributed.layout.Layout`, 0 on one rank.
    group : int
        The number of its parameter group, which may have a step size of its own.
    """

    parameter: Tensor
    upper: Tensor | None
    lower: Tensor | None
    kind: int
    group: int

    @property
    def tensors(self) -> list[Tensor]:
        """What is there of the parameter and its gradients."""
        return [t for t in (self.parameter, self.upper, self.lower) if t is not None]


def wide(device: torch.device) -> torch.dtype:
    """The dtype of sums on a device: float64, where it has that."""
    return torch.float32 if device.type == "mps" else torch.float64


def beyond_float32(*factors: float) -> bool:
    """Whether float32 cannot hold a factor: it would be inf or 0 where its product with a gradient is neither."""
    return any(factor != 0 and not 1e-37 < abs(factor) < 1e38 for factor in factors)


# The next two are asked of every parameter at a step: hence the common case first.


def ordinary(row: Row) -> bool:
    """Whether these are ordinary tensors in memory, and not a subclass that means something else."""
    p, u, g, _, _ = row
    ours = (Tensor, torch.nn.Parameter)
    return (
        type(p) in ours
        and (u is None or type(u) in ours)
        and (g is None or type(g) in ours)
    )


def alike(tensors: Sequence[Tensor]) -> bool:
    """Whether element i in memory is the same element in all tensors: then a pass may forget their shapes."""
    if all(map(Tensor.is_contiguous, tensors)):
        return True
    strides = tensors[0].stride()
    return all(t.stride() == strides for t in tensors) and dense(tensors[0])


def dense(tensor: Tensor) -> bool:
    """Whether the elements fill their memory, each place once, in whatever order: channels last, transposed, …."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
