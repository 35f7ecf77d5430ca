"""Batches for as many steps as a method may make: epoch after epoch, each in a new order, drawn on the device."""

import torch
from torch import Tensor

__all__ = ["Epochs"]


class Epochs:
    """``epochs(step)``: the rows of that step's batch. Every step, however late, has one, and it is always the same.

    Parameters
    ----------
    rows : int or Tensor
        How many there are, or which.
    size : int
        Of a batch. The last, smaller batch of an epoch is left out; `size` is at most the number of rows.
    seed : int
        Epochs have generators of their own: the order of the third does not depend on the second.
    device : str
        Where the indices are to be.

    Examples
    --------
    >>> epochs = Epochs(5, 2, seed=0)
    >>> len(set((*epochs(0).tolist(), *epochs(1).tolist())))
    4
    >>> torch.equal(epochs(1), Epochs(5, 2, seed=0)(1))
    True
    """

    def __init__(
        self, rows: int | Tensor, size: int, seed: int, device: str = "cpu"
    ) -> None:
        self.rows = (
            torch.arange(rows, device=device)
            if isinstance(rows, int)
            else rows.to(device)
        )
        self.size = min(size, len(self.rows))
        if self.size < 1:
            raise ValueError(
                f"size={size} and {len(self.rows)} rows: a batch must have at least 1 of them"
            )
        self.seed, self.epoch = seed, -1
        self.order = self.rows

    def __call__(self, step: int) -> Tensor:
        epoch, place = divmod(step, len(self.rows) // self.size)
        if epoch != self.epoch:
            # Drawn on the CPU, so that a GPU sees the same batches.
            drawn = torch.randperm(
                len(self.rows),
                generator=torch.Generator().manual_seed(self.seed * 1_000_003 + epoch),
            )
            self.order, self.epoch = self.rows[drawn.to(self.rows.device)], epoch
        return self.order[place * self.size : (place + 1) * self.size]
