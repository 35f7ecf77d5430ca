"""Every replica on its own, now and then: the inner products notice only what is a part of them."""

import random
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tiebreak.torch.kernels.foreach import LOW_PRECISION, accumulation_dtype

_LOOK = 64  # steps between two looks, after the first ones of a run


def looks(step: int) -> bool:
    """Whether to look at this step, counted from the first one of a run, which has nothing to compare with yet."""
    return 0 < step <= 4 or (step > 0 and step % _LOOK == 0)


def each(
    levels: Iterable[Sequence[Tensor | None]],
    sizes: Tensor,
    inverse_scale: Tensor | None = None,
) -> Tensor | None:
    """One number of the gradients of each level, in which every tensor counts as much, however small it is.

    The logarithms of the squared norms with random weights: where one tensor differs from that of another rank, so does
    the number; by how much does not depend on the other tensors.

    Parameters
    ----------
    levels : iterable of sequences of tensors
        The gradients of the replicas, level by level.
    sizes : tensor
        About the squared norm of all gradients of each level, the same on every rank.
    inverse_scale : tensor, optional
        1 over a gradient scaler's scale.

    Examples
    --------
    >>> large, small = torch.ones(1000), torch.full((1,), 0.01)
    >>> numbers = [each([[large, t]], torch.tensor([1000.0])) for t in (small, 2 * small)]
    >>> bool((numbers[0] - numbers[1]).abs() > 0.1)
    True
    """
    total: Tensor | None = None
    for salt, (grads, size) in enumerate(zip(levels, sizes, strict=True)):
        there = [
            (i, g)
            for i, g in enumerate(grads)
            if g is not None and g.numel() and g.layout == torch.strided
        ]
        if not there:
            continue
        home = there[0][1].device
        squares = torch.stack([_beside_rounding(g).to(home) for _, g in there])
        if inverse_scale is not None:
            squares = squares * inverse_scale.to(squares) ** 2
        draw = random.Random(salt)
        numbers = [draw.uniform(0.5, 1.0) * draw.choice((-1, 1)) for _ in grads]
        weights = torch.tensor([numbers[i] for i, _ in there]).to(squares)
        mine = (weights * (1 + squares / size.to(squares)).log()).sum() / len(
            grads
        ) ** 0.5
        total = mine if total is None else total.to(mine.device) + mine
    return total


def _beside_rounding(grad: Tensor) -> Tensor:
    """‖grad‖², in units of what may be rounding beside a gradient of norm 1, and may differ between ranks."""
    norm = torch.linalg.vector_norm(
        grad, dtype=torch.float32 if grad.dtype in LOW_PRECISION else None
    )
    square: Tensor = (
        norm.to(accumulation_dtype(grad.device)) / (10 * torch.finfo(grad.dtype).eps)
    ).square()
    return square
