"""The passes over all parameters in torch operations alone: any device, any layout, and a compiler can follow them."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tiebreak.torch.kernels.rows import NARROW, Row, wide

_Kind: TypeAlias = tuple[torch.device, torch.dtype]


@dataclass(eq=False)
class Foreach:
    """The passes of :mod:`tiebreak.torch.kernels` over these rows."""

    rows: Sequence[Row]
    kinds: int
    by_kernels = False

    def products(self) -> Tensor:
        """fg, gg and ff of every kind of parameters, of shape (kinds, 3)."""
        home = self.rows[0].parameter.device
        numbers: list[Tensor] = []
        for kind in range(self.kinds):
            numbers += _products([row for row in self.rows if row.kind == kind], home)
        made = torch.stack(numbers).reshape(self.kinds, 3)
        return (
            made.full_tensor() if hasattr(made, "full_tensor") else made
        )  # a DTensor's sums are numbers like others

    def combine(self, weights: Tensor, skip: Tensor | None) -> None:
        """d = a ∇f + b ∇g, in the memory of ∇f, or of ∇g where that is all there is; 0 where `skip` is true."""
        rows = self.rows
        together: dict[tuple[int, torch.device, torch.dtype, bool, bool], list[Row]] = (
            defaultdict(list)
        )
        for row in rows:
            d = row.tensors[1]
            together[
                row.group, d.device, d.dtype, row.upper is None, row.lower is None
            ].append(row)
        for (group, device, dtype, no_upper, no_lower), mine in together.items():
            narrow = dtype in NARROW
            a, b = (
                weights[group]
                .to(device=device, dtype=torch.float32 if narrow else dtype)
                .unbind()
            )
            if no_upper or no_lower:
                torch._foreach_mul_(_directions(mine), b if no_upper else a)
                continue
            uppers, lowers = _levels(mine)
            if narrow:  # rounded once: the sum is made in float32, with all digits of λ
                for u, g in zip(uppers, lowers, strict=True):
                    u.copy_(u.float().mul_(a).add_(g.float().mul_(b)))
            else:
                torch._foreach_mul_(uppers, a)
                torch._foreach_mul_(lowers, b)
                torch._foreach_add_(uppers, lowers)
        if skip is not None:
            for d in _directions(rows):
                d.masked_fill_(skip.to(d.device), 0.0)

    def descend(self, weights: Tensor, skip: Tensor | None) -> None:
        """x ← x − a ∇f − b ∇g; uses up the gradients' memory."""
        self.combine(weights, skip)
        torch._foreach_sub_(
            [row.parameter for row in self.rows], _directions(self.rows)
        )


def _products(rows: Sequence[Row], home: torch.device) -> list[Tensor]:
    fg = torch.zeros((), device=home, dtype=wide(home))
    for row in rows:
        if (
            row.upper is not None and row.lower is not None
        ):  # a dot reads both once, and makes no product
            fg = fg + torch.dot(_flat(row.upper), _flat(row.lower)).to(fg)
    uppers, lowers = _levels(rows)
    ff = square_norm([t for t in uppers if t is not None])
    gg = square_norm([t for t in lowers if t is not None])
    return [fg, gg.to(fg), ff.to(fg)]


def square_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Σ‖t‖², in float32 or wider."""
    if not tensors:
        return torch.zeros(())
    home = tensors[0].device
    total = torch.zeros((), device=home, dtype=wide(home))
    for (_, dtype), group in _by_kind(tensors).items():
        norms = torch._foreach_norm(
            group, 2, dtype=torch.float32 if dtype in NARROW else dtype
        )
        total = (
            total + torch.stack(norms).to(device=home, dtype=total.dtype).square().sum()
        )
    return total


def largest(tensors: Sequence[Tensor]) -> Tensor:
    """max|t| over all, or what is not finite."""
    home = tensors[0].device
    norms = [
        torch.stack(torch._foreach_norm(group, math.inf)).max()
        for group in _by_kind(tensors).values()
    ]
    return torch.stack([norm.to(device=home, dtype=wide(home)) for norm in norms]).max()


def _directions(rows: Sequence[Row]) -> list[Tensor]:
    return [row.tensors[1] for row in rows]


def _levels(rows: Sequence[Row]) -> tuple[list[Any], list[Any]]:
    return [row.upper for row in rows], [row.lower for row in rows]


def _flat(tensor: Tensor) -> Tensor:
    return (tensor.float() if tensor.dtype in NARROW else tensor).reshape(-1)


def _by_kind(tensors: Sequence[Tensor]) -> dict[_Kind, list[Tensor]]:
    """Tensors by device and dtype, as the foreach kernels want them."""
    groups: dict[_Kind, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        groups[tensor.device, tensor.dtype].append(tensor)
    return groups
