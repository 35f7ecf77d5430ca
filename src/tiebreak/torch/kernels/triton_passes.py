"""The passes over all parameters on a GPU: Triton kernels, and the tables that tell the kernels where tensors are.

A launch visits many tensors. Each tensor is a line of a table on the device, with addresses and a length, so nothing is
copied into a flat buffer. Chunks of equal size share the work evenly. Sums are in float64 and in an order that depends
on the shapes alone: the same gradients give the same bits.

An allocator puts the gradients at other addresses in most steps. The engine therefore keeps a *template* of the table
for the parameters, and the latest few tables by the addresses of the gradients.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from tiebreak.torch.devices import capturing
from tiebreak.torch.kernels.torch_passes import (
    EnginePasses,
    Row,
    device_context,
    directions,
    same_memory_order,
)

# Measured on an H200: the products then take 0.94, the update 0.99 of the time of a copy of as many bytes.
CHUNK = tl.constexpr(16384)  # elements of a program
BLOCK = tl.constexpr(1024)  # elements of an operation
_CACHED = 8  # templates, and tables of each
# Columns of a table: addresses of parameter, ∇f and ∇g; length; first chunk; parameter group.
_COLUMNS = tl.constexpr(6)
_TYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bool: None,
}
# In place of a missing gradient; no gradient is bool. Its address is 0.
_MISSING = torch.empty(0, dtype=torch.bool)

_Integers: TypeAlias = NDArray[np.int64]


# The kernels, in Triton's language: a branch on a constexpr is taken while compiling. A missing gradient is None, and
# so is the dtype.


@triton.jit
def _chunk(table, owners):
    """The line of this program's chunk, the chunk's offset in its tensor, and how many elements follow."""
    chunk = tl.program_id(0)
    line = tl.load(owners + chunk)
    start = (chunk - tl.load(table + line * _COLUMNS + 4)) * CHUNK
    return line, start, tl.load(table + line * _COLUMNS + 3) - start


@triton.jit
def _address(
    table, line, column: tl.constexpr, TYPE: tl.constexpr, ALIGNED: tl.constexpr, start
):
    """The address of this program's chunk of a tensor."""
    address = tl.load(table + line * _COLUMNS + column).to(tl.pointer_type(TYPE))
    if ALIGNED:  # then a thread reads and writes 16 bytes at once
        address = tl.multiple_of(address, 16)
    return address + start


@triton.jit
def _read(address, offsets, count, FULL: tl.constexpr, TYPE: tl.constexpr):
    """A block as TYPE. A full chunk has no mask, because a mask breaks wide reads into single ones."""
    if FULL:
        return tl.load(address + offsets).to(TYPE)
    else:  # noqa: RET505  # Triton needs a return in each branch
        return tl.load(address + offsets, offsets < count, 0.0).to(TYPE)


@triton.jit
def products_kernel(
    table,
    owners,
    partials,
    chunks,
    P: tl.constexpr,
    U: tl.constexpr,
    G: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """fg, gg and ff of one chunk."""
    line, start, count = _chunk(table, owners)
    upper = None
    lower = None
    if U is not None:
        upper = _address(table, line, 1, U, ALIGNED, start)
    if G is not None:
        lower = _address(table, line, 2, G, ALIGNED, start)
    for FULL in tl.static_range(2):
        if (count >= CHUNK) == (FULL == 1):
            fg = tl.zeros([BLOCK], tl.float64)
            gg = tl.zeros([BLOCK], tl.float64)
            ff = tl.zeros([BLOCK], tl.float64)
            for i in tl.static_range(0, CHUNK, BLOCK):
                offsets = i + tl.arange(0, BLOCK)
                if U is not None:
                    u = _read(upper, offsets, count, FULL, tl.float64)
                    ff += u * u
                if G is not None:
                    g = _read(lower, offsets, count, FULL, tl.float64)
                    gg += g * g
                if (U is not None) and (G is not None):
                    fg += u * g
            chunk = tl.program_id(0)
            tl.store(partials + chunk, tl.sum(fg))
            tl.store(partials + chunks + chunk, tl.sum(gg))
            tl.store(partials + 2 * chunks + chunk, tl.sum(ff))


@triton.jit
def combine_kernel(
    table,
    owners,
    weights,
    skip,
    P: tl.constexpr,
    U: tl.constexpr,
    G: tl.constexpr,
    ALIGNED: tl.constexpr,
    WIDE: tl.constexpr,
    DESCEND: tl.constexpr,
):
    """d = a u + b g into a gradient's memory, 0 if `skip` is true; or p − d into the parameter, if it is false."""
    line, start, count = _chunk(table, owners)
    group = tl.load(table + line * _COLUMNS + 5)
    a = tl.load(weights + group * 2).to(WIDE)
    b = tl.load(weights + group * 2 + 1).to(WIDE)
    skipped = tl.load(skip) != 0
    upper = None
    lower = None
    if U is not None:
        upper = _address(table, line, 1, U, ALIGNED, start)
    if G is not None:
        lower = _address(table, line, 2, G, ALIGNED, start)
    if DESCEND:
        target = _address(table, line, 0, P, ALIGNED, start)
        count = tl.where(skipped, 0, count)  # write nothing in a skipped step
    else:
        target = lower if U is None else upper
    for FULL in tl.static_range(2):
        if (count > 0) & ((count >= CHUNK) == (FULL == 1)):
            for i in tl.static_range(0, CHUNK, BLOCK):
                offsets = i + tl.arange(0, BLOCK)
                d = tl.zeros([BLOCK], WIDE)
                if U is not None:
                    d += a * _read(upper, offsets, count, FULL, WIDE)
                if G is not None:
                    d += b * _read(lower, offsets, count, FULL, WIDE)
                if DESCEND:  # branches on a constexpr
                    d = _read(target, offsets, count, FULL, WIDE) - d
                else:
                    d = tl.where(skipped, 0.0, d)
                if FULL:
                    tl.store(target + offsets, d)
                else:
                    tl.store(target + offsets, d, offsets < count)


# The tables.


class _Launch(NamedTuple):
    """What one launch visits: the tensors of one variant.

    Attributes
    ----------
    variant : tuple
        Triton's dtypes of parameter, ∇f and ∇g, and whether all addresses are aligned.
    owners : tensor
        Of each chunk the line of its tensor.
    """

    variant: tuple[Any, ...]
    owners: Tensor


class _Template(NamedTuple):
    """The launches of a step and their table.

    Attributes
    ----------
    lines : array
        The table, with the addresses of the latest step.
    tables : dict
        The latest few tables on the device, by stream and addresses of the gradients.
    pinned : list of tensor
        Host memory for the tables of captured steps.
    """

    launches: list[_Launch]
    lines: _Integers
    tables: dict[Hashable, Tensor]
    pinned: list[Tensor]


#: Rows by columns: the tensors of all parameters, then of all ∇f, then of all ∇g; their dtypes; the groups.
_Columns: TypeAlias = tuple[list[Tensor], tuple[torch.dtype, ...], tuple[int, ...]]


def _columns(rows: Sequence[Row]) -> _Columns:
    """Every step calls this: each column in one call, without a line of Python for each parameter."""
    parameters, uppers, lowers, groups = zip(*rows, strict=True)
    column = (*parameters, *uppers, *lowers)
    tensors = [_MISSING if t is None else t for t in column]
    return tensors, tuple(map(_dtype, tensors)), groups


class TritonEngine:
    """Binds the passes on one device, and keeps templates between steps.

    Parameters
    ----------
    device : torch.device
        The constructor runs the kernels on it, so that whatever is missing shows before a step.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.templates: dict[Hashable, _Template] = {}
        self.never_skip = torch.zeros((), dtype=torch.bool, device=device)
        self._captured: list[object] = []  # read by CUDA graphs at replays
        passes = self.bind([Row._make([*torch.ones(3, 4, device=device), 0])])
        passes.products()
        passes.descend(torch.zeros(1, 2, device=device), None)

    @staticmethod
    def accepts(row: Row) -> bool:
        """Whether the kernels can process these tensors."""
        tensors = [row.parameter, *row.gradients]
        return all(t.dtype in _TYPES for t in tensors) and same_memory_order(tensors)

    def bind_usual(self, rows: Sequence[Row]) -> "TritonPasses | None":
        """The passes if all tensors are plain, contiguous and on this device: the fast path of most steps; else None."""
        columns = _columns(rows)
        tensors, dtypes, _ = columns
        index = -1 if self.device.index is None else self.device.index
        if (
            {*map(type, tensors)} <= {Tensor, torch.nn.Parameter}
            and {*map(Tensor.get_device, tensors[: len(rows)])} == {index}
            and all(map(Tensor.is_contiguous, tensors))
            and {*dtypes} <= _TYPES.keys()
        ):
            return self._bind(rows, columns)
        return None

    def bind(self, rows: Sequence[Row]) -> "TritonPasses":
        """The passes over these rows, each of which has a gradient."""
        return self._bind(rows, _columns(rows))

    def _bind(self, rows: Sequence[Row], columns: _Columns) -> "TritonPasses":
        tensors, dtypes, groups = columns
        addresses = np.array([*map(Tensor.data_ptr, tensors)]).reshape(3, -1)
        aligned = np.bitwise_or.reduce(addresses) % 16 == 0
        lengths = tuple(map(Tensor.numel, tensors[: len(rows)]))
        places = (addresses[0].tobytes(), aligned.tobytes())
        key = (dtypes, groups, lengths, places)
        if key not in self.templates:
            first_chunks = [0] * len(rows)
            lines = np.array([*addresses, lengths, first_chunks, groups]).T.copy()
            types = np.reshape([_TYPES[dtype] for dtype in dtypes], (3, -1))
            variants = list(zip(*types, aligned.tolist(), strict=True))
            _make_room(self.templates)
            self.templates[key] = self._template(lines, variants)
        template = self.templates[key]
        table = self._table(template, addresses)
        return TritonPasses(rows, self, template.launches, table)

    def _template(self, lines: _Integers, variants: list[Any]) -> _Template:
        """The launches of tensors with these lines, which get the first chunk of each tensor."""
        if capturing(self.device):
            raise RuntimeError(_UNPREPARED)
        launches = []
        for variant in dict.fromkeys(variants):
            same = [other == variant for other in variants]
            members = np.flatnonzero(same & (lines[:, 3] > 0))
            counts = -(-lines[members, 3] // CHUNK.value)
            owners = np.repeat(members, counts)
            lines[members, 4] = np.cumsum(counts) - counts
            if len(owners):
                launches.append(_Launch(variant, self._upload(owners)))
        return _Template(launches, lines, {}, [])

    def _table(self, template: _Template, addresses: _Integers) -> Tensor:
        """The table on the device, with the gradients at these addresses."""
        captured = capturing(self.device)
        cuda = self.device.type == "cuda"
        # Uploads are ordered within a stream only.
        stream = torch.cuda.current_stream(self.device).cuda_stream if cuda else 0
        key = (stream, addresses.tobytes())
        if key in template.tables and not captured:
            return template.tables[key]
        template.lines[:, :3] = addresses.T
        lines = torch.from_numpy(template.lines)
        if captured:
            # A captured copy reads the source again at every replay, and a capture cannot allocate pinned memory.
            if not template.pinned:
                raise RuntimeError(_UNPREPARED)
            source = template.pinned.pop().copy_(lines)
            table = source.to(self.device, non_blocking=True)
            self._captured.append((template, source, table))
            return table
        if not template.pinned:
            template.pinned.extend(
                torch.empty(_CACHED, *lines.shape, dtype=lines.dtype, pin_memory=cuda)
            )
        _make_room(template.tables)
        template.tables[key] = self._upload(template.lines)
        return template.tables[key]

    def _upload(self, values: _Integers) -> Tensor:
        """Copy integers to the device without waiting for it."""
        source = torch.tensor(values)
        if self.device.type == "cuda":
            source = source.pin_memory()
        return source.to(self.device, non_blocking=True)


@dataclass(eq=False)
class TritonPasses(EnginePasses):
    """The passes by Triton's kernels; `descend` leaves the gradients as they are."""

    engine: TritonEngine
    launches: list[_Launch]
    table: Tensor
    uses_triton = True

    def products(self) -> Tensor:
        """A sum of each chunk in float64, then the sum over the chunks."""
        device = self.engine.device
        shape = (len(self.launches), 3)
        products = torch.empty(shape, dtype=torch.float64, device=device)
        with device_context(device):
            for (variant, owners), total in zip(self.launches, products, strict=True):
                chunks = len(owners)
                partials = torch.empty(3, chunks, dtype=torch.float64, device=device)
                products_kernel[(chunks,)](
                    self.table,
                    owners,
                    partials,
                    chunks,
                    *variant,
                    num_warps=4,
                )
                torch.sum(partials, 1, out=total)
        return products[0] if len(products) == 1 else products.sum(0)

    def combine(self, weights: Tensor, skip: Tensor | None) -> None:
        """One launch for each variant of the kernel."""
        self._combine(weights, skip, descend=False)
        # Autograd does not see writes of kernels: a graph from before would use the new numbers without an error.
        torch.autograd.graph.increment_version(directions(self.rows))

    def descend(self, weights: Tensor, skip: Tensor | None) -> None:
        """One launch for each variant of the kernel."""
        self._combine(weights, skip, descend=True)
        torch.autograd.graph.increment_version([row.parameter for row in self.rows])

    def _combine(self, weights: Tensor, skip: Tensor | None, descend: bool) -> None:
        factors = weights.to(torch.float64).contiguous()
        with device_context(self.engine.device):
            for variant, owners in self.launches:
                combine_kernel[(len(owners),)](
                    self.table,
                    owners,
                    factors,
                    self.engine.never_skip if skip is None else skip,
                    *variant,
                    tl.float64 if tl.float64 in variant else tl.float32,
                    descend,
                    num_warps=4,
                )


_dtype = attrgetter("dtype")
_UNPREPARED = "take a step with these parameters before capturing one"


def _make_room(cache: dict[Hashable, Any]) -> None:
    """Drop the oldest entries of a cache that is full."""
    while len(cache) >= _CACHED:
        cache.pop(next(iter(cache)))
