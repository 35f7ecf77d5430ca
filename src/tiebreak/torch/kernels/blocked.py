"""The passes over all parameters on a CPU: piece by piece, so that what is read once is still in the cache.

A step must read both gradients for the inner products, both again and the parameters for the update, and write the
parameters: six words per parameter. Whole-tensor operations move twelve, because each reads everything anew.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tiebreak.torch.kernels.rows import NARROW, Row, alike, beyond_float32

# Elements: three pieces of float32 are 24 MB. Smaller ones stay in smaller caches, but threads meet after each piece:
# it takes 1.2 times as long at 2^18, and far worse where other programs hold the cores: milliseconds a meeting.
PIECE = 2**21
_SAFE = (
    1e-25,
    1e35,
)  # where a sum of float32 squares has neither lost nor overflowed anything that matters


@dataclass(eq=False)
class Pieces:
    """The passes of :mod:`tiebreak.torch.kernels` over these rows."""

    rows: Sequence[Row]
    kinds: int
    by_kernels = False

    def products(self) -> Tensor:
        """fg, gg and ff of every kind of parameters, of shape (kinds, 3), in float64."""
        found = [[0.0, 0.0, 0.0] for _ in range(self.kinds)]
        low, high = _SAFE
        for row in self.rows:
            fg, gg, ff = _row_products(row, None)
            # Zero, not finite, or beyond float32: look again.
            if not (
                (row.lower is None or low < gg < high)
                and (row.upper is None or low < ff < high)
            ):
                fg, gg, ff = _row_products(row, torch.float64)
            total = found[row.kind]
            total[0] += fg
            total[1] += gg
            total[2] += ff
        return torch.tensor(found, dtype=torch.float64)

    def combine(self, weights: Tensor, skip: Tensor | None) -> None:
        """d = a ∇f + b ∇g, in the memory of ∇f, or of ∇g where that is all there is."""
        if skip is not None and bool(
            skip
        ):  # known on another device, where other parameters are
            for row in self.rows:
                row.tensors[1].zero_()
            return
        factors = weights.tolist()
        for row in self.rows:
            u, g, (a, b) = row.upper, row.lower, factors[row.group]
            far = u is not None and u.dtype != torch.float64 and beyond_float32(a, b)
            if u is None or g is None:
                only, factor = row.tensors[1], b if u is None else a
                only.copy_(only.double() * factor) if far else only.mul_(factor)
                continue
            for x, y in _pieces(u, g):
                if far:
                    x.copy_(x.double().mul_(a).add_(y.double(), alpha=b))
                elif (
                    u.dtype in NARROW
                ):  # rounded once: the sum is made in float32, with all digits of λ
                    x.copy_(x.float().mul_(a).add_(y, alpha=b))
                else:
                    x.mul_(a).add_(y, alpha=b)

    def descend(self, weights: Tensor, skip: Tensor | None) -> None:
        """x ← x − a ∇f − b ∇g; the gradients stay as they are."""
        if skip is not None and bool(skip):
            return
        factors = weights.tolist()
        for row in self.rows:
            given = [
                (t, f)
                for t, f in zip((row.upper, row.lower), factors[row.group], strict=True)
                if t is not None
            ]
            for p, *gradients in _pieces(row.parameter, *(t for t, _ in given)):
                far = p.dtype != torch.float64 and beyond_float32(
                    *(factor for _, factor in given)
                )
                x = p.double() if far else p.float() if p.dtype in NARROW else p
                for gradient, (_, factor) in zip(gradients, given, strict=True):
                    x.add_(gradient.double() if far else gradient, alpha=-factor)
                if x is not p:
                    p.copy_(x)


def _row_products(row: Row, dtype: torch.dtype | None) -> list[float]:
    u, g = row.upper, row.lower
    if u is None or g is None:
        vectors = (_vector(t, dtype) for (t,) in _pieces(row.tensors[1]))
        square = sum(torch.dot(x, x).item() for x in vectors)
        return [0.0, 0.0, square] if g is None else [0.0, square, 0.0]
    fg = gg = ff = 0.0
    for a, b in _pieces(u, g):
        x, y = _vector(a, dtype), _vector(b, dtype)
        fg += torch.dot(x, y).item()
        gg += torch.dot(y, y).item()
        ff += torch.dot(x, x).item()
    return [fg, gg, ff]


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of at most `PIECE` elements that cover the tensors, the same elements of each; no copies."""
    count = tensors[0].numel()
    if count <= PIECE:
        yield tensors
    elif alike(tensors):
        yield from zip(
            *(torch.split(t.as_strided((count,), (1,)), PIECE) for t in tensors),
            strict=True,
        )
    else:  # layouts that differ: cut along the longest side until pieces are small
        shape = tensors[0].shape
        side = max(range(len(shape)), key=shape.__getitem__)
        length = max(1, min(shape[side] - 1, shape[side] * PIECE // count))
        for parts in zip(*(torch.split(t, length, side) for t in tensors), strict=True):
            yield from _pieces(*parts)


def _vector(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    wanted = dtype or (torch.float32 if tensor.dtype in NARROW else tensor.dtype)
    flat = tensor if tensor.dim() == 1 else tensor.reshape(-1)
    return flat if flat.dtype == wanted else flat.to(wanted)
