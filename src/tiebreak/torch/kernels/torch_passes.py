"""The passes over all parameters by torch's operations, and what all engines share.

:class:`ForeachPasses` run on any device and in any layout, and torch.compile can follow them. :class:`BlockedPasses` run
on a CPU, block by block, so that a block is still in the cache when it is read again: a step must read both gradients
for the inner products, both again and the parameters for the update, and write the parameters, six words per parameter.
Operations on whole tensors move twelve.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

LOW_PRECISION = (torch.float16, torch.bfloat16)
# Three blocks of float32 are 24 MB. Smaller blocks fit smaller caches, but the threads synchronise after each block:
# a step takes 1.2 times as long at 2^18, and far longer if the cores are busy.
BLOCK_ELEMENTS = 2**21
# The range in which a sum of float32 squares neither underflows nor overflows.
_SAFE_LOW = 1e-25
_SAFE_HIGH = 1e35


class Row(NamedTuple):
    """A parameter and its gradients; None if a loss does not reach it.

    Attributes
    ----------
    group : int
        The number of its parameter group, which may have a step size of its own.
    """

    parameter: Tensor
    upper: Tensor | None
    lower: Tensor | None
    group: int

    @property
    def gradients(self) -> list[Tensor]:
        """Those of ∇f and ∇g that exist."""
        return [gradient for gradient in self[1:3] if gradient is not None]


def directions(rows: Sequence[Row]) -> list[Tensor]:
    """The memory that `combine` writes: that of ∇f, or of ∇g if only that exists."""
    memory = [lower if upper is None else upper for _, upper, lower, _ in rows]
    return [tensor for tensor in memory if tensor is not None]


def device_context(device: torch.device) -> AbstractContextManager[object]:
    """Make `device` the current one, to which kernels are launched."""
    if device.type == "cuda":
        return torch.cuda.device(device)
    return nullcontext()


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """The dtype of sums on a device: float64 if the device has it."""
    if device.type == "mps":
        return torch.float32
    return torch.float64


def computation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of arithmetic on numbers of `dtype`, so that a sum is rounded once."""
    if dtype in LOW_PRECISION:
        return torch.float32
    return dtype


def as_vector(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The elements in one dimension, in at least float32 unless `dtype` is given."""
    if tensor.dim() == 1:
        vector = tensor
    else:
        vector = tensor.reshape(-1)
    return converted(vector, dtype or computation_dtype(tensor.dtype))


def converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in a dtype; faster than `to` if there is nothing to do."""
    if tensor.dtype == dtype:
        return tensor
    return tensor.to(dtype)


def same_memory_order(tensors: Sequence[Tensor]) -> bool:
    """Whether element i in memory is the same element in all tensors: then a pass may ignore their shapes."""
    if all(map(Tensor.is_contiguous, tensors)):
        return True
    strides = tensors[0].stride()
    if any(t.stride() != strides for t in tensors):
        return False
    # The elements fill their memory, each place once, in any order: channels last, transposed, ….
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensors[0]))


@dataclass(eq=False)
class EnginePasses:
    """The passes of one engine over its rows, all on one device.

    The weights a and b have shape (groups, 2) and are on that device, as is `skip`.
    """

    rows: Sequence[Row]
    uses_triton = False

    def products(self) -> Tensor:
        """fg, gg and ff, of shape (3,)."""
        raise NotImplementedError

    def combine(self, weights: Tensor, skip: Tensor | None) -> None:
        """d = a ∇f + b ∇g, in the memory of ∇f, or of ∇g if only that exists; 0 if `skip` is true."""
        raise NotImplementedError

    def descend(self, weights: Tensor, skip: Tensor | None) -> None:
        """x ← x − a ∇f − b ∇g; nothing if `skip` is true."""
        raise NotImplementedError


class ForeachPasses(EnginePasses):
    """The passes in torch operations; `descend` overwrites the gradients."""

    def products(self) -> Tensor:
        """One dot product for each parameter, and the norms of all parameters in a foreach kernel."""
        device = self.rows[0].parameter.device
        fg = torch.zeros((), device=device, dtype=accumulation_dtype(device))
        for _, upper, lower, _ in self.rows:
            if upper is not None and lower is not None:
                # A dot product reads both once and allocates nothing.
                fg = fg + torch.dot(as_vector(upper), as_vector(lower)).to(fg)
        gg = squared_norm([row.lower for row in self.rows])
        ff = squared_norm([row.upper for row in self.rows])
        return torch.stack([fg, gg.to(fg), ff.to(fg)])

    def combine(self, weights: Tensor, skip: Tensor | None) -> None:
        """Rows with the same weights and gradients by foreach kernels; low precision is rounded once."""
        alike: dict[Hashable, list[Row]] = defaultdict(list)
        for row in self.rows:
            dtype = row.gradients[0].dtype
            alike[row.group, dtype, row.upper is None, row.lower is None].append(row)
        for rows in alike.values():
            first = rows[0]
            dtype = first.gradients[0].dtype
            a, b = weights[first.group].to(computation_dtype(dtype)).unbind()
            uppers = [row.upper for row in rows if row.upper is not None]
            lowers = [row.lower for row in rows if row.lower is not None]
            if uppers and lowers and dtype in LOW_PRECISION:
                for u, g in zip(uppers, lowers, strict=True):
                    u.copy_(u.float().mul_(a).add_(g.float().mul_(b)))
                continue
            if uppers:
                torch._foreach_mul_(uppers, a)
            if lowers:
                torch._foreach_mul_(lowers, b)
            if uppers and lowers:
                torch._foreach_add_(uppers, lowers)
        if skip is not None:
            for direction in directions(self.rows):
                direction.masked_fill_(skip, 0.0)

    def descend(self, weights: Tensor, skip: Tensor | None) -> None:
        """By way of the direction."""
        self.combine(weights, skip)
        torch._foreach_sub_([row.parameter for row in self.rows], directions(self.rows))


def squared_norm(tensors: Sequence[Tensor | None]) -> Tensor:
    """Σ‖t‖² over the tensors that exist, in float32 or wider."""
    total = torch.zeros(())
    for i, group in enumerate(_by_device_and_dtype(tensors)):
        norms = torch._foreach_norm(group, 2, dtype=computation_dtype(group[0].dtype))
        if i == 0:
            device = group[0].device
            total = total.to(device, accumulation_dtype(device))
        total = total + torch.stack(norms).to(total).square().sum()
    return total


def max_abs(tensors: Sequence[Tensor]) -> Tensor:
    """max|t| over all tensors, not finite if an element is not."""
    device = tensors[0].device
    norms = [
        torch.stack(torch._foreach_norm(group, math.inf)).max()
        for group in _by_device_and_dtype(tensors)
    ]
    dtype = accumulation_dtype(device)
    return torch.stack([norm.to(device, dtype) for norm in norms]).max()


def _by_device_and_dtype(tensors: Sequence[Tensor | None]) -> list[list[Tensor]]:
    """Group the tensors that exist as the foreach kernels need them."""
    groups: dict[Hashable, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        if tensor is not None:
            groups[tensor.device, tensor.dtype].append(tensor)
    return list(groups.values())


# --- blocked passes ---------------------------------------------------------------


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
        # `skip` comes from the device of the first parameter.
        if skip is not None and bool(skip):
            torch._foreach_zero_(directions(self.rows))
            return
        for row, factors, dtype in self._factors(weights):
            for direction, *gradients in _blocks(*row.gradients):
                total = converted(direction, dtype).mul_(factors[0])
                for gradient in gradients:
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
            if exact:
                dtype = torch.float64
            else:
                dtype = computation_dtype(row.parameter.dtype)
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
