"""The passes over all parameters on a CPU, block by block, so that a block is still in the cache when it is read again.

A step must read both gradients for the inner products, both again and the parameters for the update, and write the
parameters: six words per parameter. Operations on whole tensors move twelve.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from tiebreak.torch.kernels.foreach import (
    EnginePasses,
    Row,
    as_vector,
    computation_dtype,
    converted,
    directions,
    same_memory_order,
)

# Three blocks of float32 are 24 MB. Smaller blocks fit smaller caches, but the threads synchronise after each block:
# a step takes 1.2 times as long at 2^18, and far longer if other programs use the cores.
BLOCK_ELEMENTS = 2**21
# The range in which a sum of float32 squares neither underflows nor overflows.
_SAFE_LOW = 1e-25
_SAFE_HIGH = 1e35


class BlockedPasses(EnginePasses):
    """The passes on a CPU; `descend` leaves the gradients as they are."""

    def products(self) -> Tensor:
        """Blocks in float32, added up in float64."""
        total = [0.0, 0.0, 0.0]
        for row in self.rows:
            fg, gg, ff = _row_products(row)
            safe_lower = row.lower is None or _SAFE_LOW < gg < _SAFE_HIGH
            safe_upper = row.upper is None or _SAFE_LOW < ff < _SAFE_HIGH
            if not (safe_lower and safe_upper):
                fg, gg, ff = _row_products(row, torch.float64)
            total[0] += fg
            total[1] += gg
            total[2] += ff
        return torch.tensor(total, dtype=torch.float64)

    def combine(self, weights: Tensor, skip: Tensor | None) -> None:
        """Each block is rounded once."""
        # `skip` comes from another device, on which other parameters are.
        if skip is not None and bool(skip):
            torch._foreach_zero_(directions(self.rows))
            return
        for row, factors, dtype in self._factors(weights):
            for direction, *others in _blocks(*row.gradients):
                total = converted(direction, dtype).mul_(factors[0])
                for gradient in others:
                    total.add_(gradient, alpha=factors[1])
                if total is not direction:
                    direction.copy_(total)

    def descend(self, weights: Tensor, skip: Tensor | None) -> None:
        """Each block is rounded once."""
        if skip is not None and bool(skip):
            return
        for row, factors, dtype in self._factors(weights):
            for parameter, *gradients in _blocks(row.parameter, *row.gradients):
                total = converted(parameter, dtype)
                for gradient, factor in zip(gradients, factors, strict=False):
                    total.add_(gradient, alpha=-factor)
                if total is not parameter:
                    parameter.copy_(total)

    def _factors(
        self, weights: Tensor
    ) -> Iterator[tuple[Row, list[float], torch.dtype]]:
        """Each row, the factors from that of its first gradient on, and the dtype of a sum that is rounded once."""
        factors_by_group = weights.tolist()
        exact_by_group = [any(map(_exceeds_float32, fs)) for fs in factors_by_group]
        for row in self.rows:
            factors = factors_by_group[row.group]
            if row.upper is None:
                factors = factors[1:]
            exact = exact_by_group[row.group]
            dtype = torch.float64 if exact else computation_dtype(row.parameter.dtype)
            yield row, factors, dtype


def _exceeds_float32(factor: float) -> bool:
    """Whether float32 would hold inf or 0 in place of a factor."""
    return factor != 0 and not 1e-37 < abs(factor) < 1e38


def _row_products(
    row: Row, dtype: torch.dtype | None = None
) -> tuple[float, float, float]:
    """fg, gg and ff of one parameter, in at least float32 unless `dtype` is given."""
    fg = gg = ff = 0.0
    for blocks in _blocks(*row.gradients):
        first = as_vector(blocks[0], dtype)
        if len(blocks) == 2:
            lower = as_vector(blocks[1], dtype)
            fg += torch.dot(first, lower).item()
            gg += torch.dot(lower, lower).item()
        square = torch.dot(first, first).item()
        if row.upper is None:
            gg += square
        else:
            ff += square
    return fg, gg, ff


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of `BLOCK_ELEMENTS` elements, the same of each tensor; tensors that lie in another order each are one block."""
    count = tensors[0].numel()
    if count <= BLOCK_ELEMENTS or not same_memory_order(tensors):
        yield tensors
        return
    vectors = [t.as_strided((count,), (1,)) for t in tensors]
    yield from zip(*(torch.split(v, BLOCK_ELEMENTS) for v in vectors), strict=True)
