"""The passes over all parameters on a CPU, block by block, so that a block is still in the cache when it is read again.

A step must read both gradients for the inner products, both again and the parameters for the update, and write the
parameters: six words per parameter. Operations on whole tensors move twelve.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiebreak.torch.kernels.foreach import Row, computation_dtype, same_memory_order

# Three blocks of float32 are 24 MB. Smaller blocks fit smaller caches, but the threads synchronise after each block:
# a step takes 1.2 times as long at 2^18, and far longer if other programs use the cores.
BLOCK_ELEMENTS = 2**21
# The range in which a sum of float32 squares neither underflows nor overflows.
_SAFE_RANGE = (1e-25, 1e35)


@dataclass(eq=False)
class BlockedPasses:
    """The passes over rows on a CPU, as in :class:`tiebreak.torch.kernels.EnginePasses`."""

    rows: Sequence[Row]
    layout_kinds: int
    uses_triton = False

    def products(self) -> Tensor:
        """fg, gg and ff of each kind of parameters, of shape (layout_kinds, 3), in float64."""
        totals = [[0.0, 0.0, 0.0] for _ in range(self.layout_kinds)]
        for row in self.rows:
            products = _row_products(row, None)
            if not _in_safe_range(row, products):
                products = _row_products(row, torch.float64)
            total = totals[row.layout_kind]
            for i, product in enumerate(products):
                total[i] += product
        return torch.tensor(totals, dtype=torch.float64)

    def combine(self, weights: Tensor, skip: Tensor | None) -> None:
        """d = a ∇f + b ∇g, in the memory of the first gradient; 0 if `skip` is true."""
        # `skip` comes from another device, on which other parameters are.
        if skip is not None and bool(skip):
            for row in self.rows:
                row.gradients[0].zero_()
            return
        weights_by_group = weights.tolist()
        for row in self.rows:
            factors = _present_factors(row, weights_by_group[row.group])
            for direction, *addends in _blocks(*row.gradients):
                _scale_and_add(direction, factors[0], addends, factors[1:])

    def descend(self, weights: Tensor, skip: Tensor | None) -> None:
        """x ← x − a ∇f − b ∇g; the gradients stay as they are."""
        if skip is not None and bool(skip):
            return
        weights_by_group = (-weights).tolist()
        for row in self.rows:
            factors = _present_factors(row, weights_by_group[row.group])
            for parameter, *gradients in _blocks(row.parameter, *row.gradients):
                _scale_and_add(parameter, 1.0, gradients, factors)


def _present_factors(row: Row, factors: Sequence[float]) -> list[float]:
    """The factors of the gradients that a row has."""
    gradients = (row.upper, row.lower)
    return [f for t, f in zip(gradients, factors, strict=True) if t is not None]


def _scale_and_add(
    target: Tensor, scale: float, addends: Sequence[Tensor], factors: Sequence[float]
) -> None:
    """target ← scale · target + Σ factor · addend, rounded once."""
    dtype = computation_dtype(target.dtype)
    if not all(map(_fits_float32, (scale, *factors))):
        dtype = torch.float64
    total = target.to(dtype)
    if scale != 1:
        total.mul_(scale)
    for addend, factor in zip(addends, factors, strict=True):
        total.add_(addend, alpha=factor)
    if total is not target:
        target.copy_(total)


def _fits_float32(factor: float) -> bool:
    """Whether float32 holds a factor, and not inf or 0 in its place."""
    return factor == 0 or 1e-37 < abs(factor) < 1e38


def _row_products(row: Row, dtype: torch.dtype | None) -> tuple[float, float, float]:
    """fg, gg and ff of one parameter, in at least float32 unless `dtype` is given."""
    fg = gg = ff = 0.0
    for blocks in _blocks(*row.gradients):
        vectors = [_vector(block, dtype) for block in blocks]
        if row.upper is not None:
            ff += torch.dot(vectors[0], vectors[0]).item()
        if row.lower is not None:
            gg += torch.dot(vectors[-1], vectors[-1]).item()
        if len(vectors) == 2:
            fg += torch.dot(*vectors).item()
    return fg, gg, ff


def _in_safe_range(row: Row, products: Sequence[float]) -> bool:
    _, gg, ff = products
    low, high = _SAFE_RANGE
    safe_lower = row.lower is None or low < gg < high
    return safe_lower and (row.upper is None or low < ff < high)


def _vector(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.reshape(-1).to(dtype or computation_dtype(tensor.dtype))


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of at most `BLOCK_ELEMENTS` elements that cover the tensors, the same elements of each."""
    count = tensors[0].numel()
    if count <= BLOCK_ELEMENTS:
        yield tensors
    elif same_memory_order(tensors):
        vectors = (t.as_strided((count,), (1,)) for t in tensors)
        yield from zip(*(torch.split(v, BLOCK_ELEMENTS) for v in vectors), strict=True)
    else:
        # The layouts differ: cut along the longest side until the blocks are small.
        shape = tensors[0].shape
        side = max(range(len(shape)), key=shape.__getitem__)
        length = shape[side] * BLOCK_ELEMENTS // count
        length = max(1, min(shape[side] - 1, length))
        for parts in zip(*(torch.split(t, length, side) for t in tensors), strict=True):
            yield from _blocks(*parts)
