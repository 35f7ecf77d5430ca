"""Two gradients for every parameter: kept apart, multiplied, combined. All operations on tensors of parameter size."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

__all__ = ["LEVELS", "Gradients", "combine", "dots", "regions", "silence", "square_norm", "usable"]

LEVELS = ("upper", "lower")
_NARROW = (torch.float16, torch.bfloat16)

#: One entry per parameter; None where the loss does not reach it.
Grads: TypeAlias = Sequence[Tensor | None]


class Gradients:
    """The gradients of both levels; ``.grad`` holds those of the level that was active last.

    That way whatever looks at ``.grad`` (a scaler, a clipper, a hook) sees real gradients, and no copy is made.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer  # its groups are looked up anew: loading a state replaces the list
        self.clear()

    def clear(self) -> None:
        """Forget both levels; does not touch ``.grad``."""
        self.seen: set[str] = set()
        self.owner: str | None = None
        self._kept: dict[str, dict[Tensor, Tensor]] = {level: {} for level in LEVELS}

    def parameters(self) -> Iterator[Tensor]:
        """Every parameter, in the order of the groups."""
        for group in self._optimizer.param_groups:
            yield from group["params"]

    def activate(self, level: str) -> None:
        """Make ``.grad`` the place where this level's gradients accumulate."""
        if self.owner is None:  # what is in .grad now is the last step's direction, no gradient of this one
            for p in self.parameters():
                p.grad = None
        elif self.owner != level:
            mine, others = self._kept[level], self._kept[self.owner]
            for p in self.parameters():
                if p.grad is not None:
                    others[p] = p.grad
                p.grad = mine.pop(p, None)
        self.owner = level
        self.seen.add(level)

    def of(self, level: str, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """This level's gradients."""
        if self.owner == level:
            return [p.grad for p in parameters]
        return [self._kept[level].get(p) for p in parameters]

    def put_away(self) -> list[Tensor]:
        """The gradients that are not in ``.grad``."""
        return [] if self.owner is None else list(self._kept[LEVELS[self.owner == "upper"]].values())

    def poison(self) -> None:
        """Let a non-finite gradient that is put away show in ``.grad``, where a gradient scaler looks for it."""
        away = [g for g in self.put_away() if g.layout == torch.strided]
        here = next((p.grad for p in self.parameters() if usable(p.grad)), None)
        if away and here is not None:
            here.view(-1)[:1].add_((0 * square_norm(away)).to(device=here.device, dtype=here.dtype))


def usable(grad: Tensor | None) -> bool:
    """Whether there is a dense gradient with numbers in it."""
    return grad is not None and grad.layout == torch.strided and grad.numel() > 0


def regions(groups: list[dict[str, Any]], scope: str) -> list[list[Tensor]]:
    """The parameters that share a multiplier: all of them, those of a group, or each by itself."""
    if scope == "global":
        return [[p for group in groups for p in group["params"]]]
    if scope == "group":
        return [list(group["params"]) for group in groups if group["params"]]
    return [[p] for group in groups for p in group["params"]]


def dots(parameters: Sequence[Tensor], upper: Grads, lower: Grads) -> tuple[Tensor, Tensor, Tensor]:
    """fg, gg and ff as 0-d tensors on the device, in float32 or wider; a missing gradient is 0."""
    home = parameters[0]
    wide = torch.float64 if home.dtype == torch.float64 or home.device.type == "cpu" else torch.float32
    fg = torch.zeros((), device=home.device, dtype=wide)
    for u, g in zip(upper, lower, strict=True):
        if u is not None and g is not None:  # torch.dot reads both once; a product would be of parameter size
            fg = fg + torch.dot(_widen(u).reshape(-1), _widen(g).reshape(-1)).to(device=fg.device, dtype=wide)
    squares = [
        square_norm([g for g in level if g is not None]).to(device=fg.device, dtype=wide) for level in (lower, upper)
    ]
    return fg, squares[0], squares[1]


def square_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Σ‖t‖², in float32 or wider."""
    if not tensors:
        return torch.zeros(())
    home = tensors[0].device
    total = torch.zeros((), device=home, dtype=torch.float64 if home.type == "cpu" else torch.float32)
    for (_, dtype), group in _alike(tensors).items():
        norms = torch._foreach_norm(group, 2, dtype=torch.float32 if dtype in _NARROW else dtype)
        total = total + torch.stack(norms).to(device=home, dtype=total.dtype).square().sum()
    return total


def combine(parameters: Sequence[Tensor], upper: Grads, lower: Grads, multiplier: Tensor, scale: Tensor | None) -> None:
    """Put scale · (∇f + λ∇g) into ``.grad``, in the memory that the gradients have."""
    together: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
    for p, u, g in zip(parameters, upper, lower, strict=True):
        if g is not None:
            factor = multiplier.to(device=g.device, dtype=torch.float32 if g.dtype in _NARROW else g.dtype)
            if u is None:
                g.mul_(factor)
            elif g.dtype in _NARROW:  # rounded once: the sum is made in float32, with all digits of λ
                u.copy_(torch.addcmul(u.float(), g.float(), factor))
            elif g.is_cuda:  # few launches for many tensors; on the CPU one pass each is faster
                for tensors, tensor in zip(together[g.device, g.dtype], (u, g), strict=True):
                    tensors.append(tensor)
            else:
                u.addcmul_(g, factor)
        p.grad = g if u is None else u
    for (device, dtype), (uppers, lowers) in together.items():
        torch._foreach_mul_(lowers, multiplier.to(device=device, dtype=dtype))
        torch._foreach_add_(uppers, lowers)
    if scale is not None:
        for (device, dtype), group in _alike([p.grad for p in parameters if p.grad is not None]).items():
            torch._foreach_mul_(group, scale.to(device=device, dtype=torch.float32 if dtype in _NARROW else dtype))


def silence(
    pairs: Sequence[tuple[Grads, Grads]], products: Sequence[tuple[Tensor, Tensor, Tensor]]
) -> tuple[list[tuple[Tensor, Tensor, Tensor]], Tensor]:
    """Set all gradients and products to zero if any is not finite, without asking; and whether, on the device."""
    bad = ~torch.isfinite(
        torch.stack([square.to(products[0][1]) for product in products for square in product[1:]])
    ).all()
    for grads in (g for pair in pairs for g in pair):
        for g in grads:
            if g is not None:
                g.masked_fill_(bad.to(g.device), 0.0)
    quiet = [tuple(torch.where(bad.to(v.device), torch.zeros_like(v), v) for v in product) for product in products]
    return [(q[0], q[1], q[2]) for q in quiet], bad


def _alike(tensors: Sequence[Tensor]) -> dict[tuple[torch.device, torch.dtype], list[Tensor]]:
    """Tensors by device and dtype, as the foreach kernels want them."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        groups[tensor.device, tensor.dtype].append(tensor)
    return groups


def _widen(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _NARROW else tensor
