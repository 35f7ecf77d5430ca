"""The passes over all parameters on a GPU: Triton kernels, and the tables that tell the kernels where tensors are.

A launch visits many tensors. Each tensor is a line of a table on the device, with addresses and a length, so nothing is
copied into a flat buffer. Chunks of equal size share the work evenly. Sums are in float64 and in an order that depends
on the shapes alone: the same gradients give the same bits.

An allocator puts the gradients at other addresses in most steps. The engine therefore keeps a *template* of the table
for the parameters, and the latest few tables by the addresses of the gradients.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from tiebreak.torch.devices import capturing
from tiebreak.torch.kernels.foreach import Row, device_context, same_memory_order

# Measured on an H200: the products then take 0.94, the update 0.99 of the time of a copy of as many bytes.
CHUNK = tl.constexpr(16384)  # elements of one program
BLOCK = tl.constexpr(1024)  # elements that a program processes at a time
SUM_BLOCK = tl.constexpr(4096)  # partial sums that a program adds at a time
_CACHED = 8  # templates, and tables of each
# Columns of a table: addresses of parameter, ∇f and ∇g; length; first chunk; parameter group.
_COLUMNS = tl.constexpr(6)
_TYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}

_Integers: TypeAlias = NDArray[np.int64]


# The kernels. Triton reads their bodies as a language of its own: it takes a branch on a constexpr while compiling. A
# missing gradient is None, and so is its dtype.


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
    else:  # noqa: RET505  # Triton wants one return per branch
        return tl.load(address + offsets, offsets < count, 0.0).to(TYPE)


@triton.jit
def _chunk_products(upper, lower, count, FULL: tl.constexpr):
    fg = tl.zeros([BLOCK], tl.float64)
    gg = tl.zeros([BLOCK], tl.float64)
    ff = tl.zeros([BLOCK], tl.float64)
    for i in tl.static_range(0, CHUNK, BLOCK):
        offsets = i + tl.arange(0, BLOCK)
        if upper is not None:
            u = _read(upper, offsets, count, FULL, tl.float64)
            ff += u * u
        if lower is not None:
            g = _read(lower, offsets, count, FULL, tl.float64)
            gg += g * g
        if (upper is not None) and (lower is not None):
            fg += u * g
    return tl.sum(fg), tl.sum(gg), tl.sum(ff)


@triton.jit
def products_kernel(
    table,
    owners,
    partials,
    chunks,
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
    if count >= CHUNK:
        fg, gg, ff = _chunk_products(upper, lower, count, True)
    else:
        fg, gg, ff = _chunk_products(upper, lower, count, False)
    chunk = tl.program_id(0)
    tl.store(partials + chunk, fg)
    tl.store(partials + chunks + chunk, gg)
    tl.store(partials + 2 * chunks + chunk, ff)


@triton.jit
def sum_kernel(partials, chunks, bounds, out):
    """Sum the chunks of one kind of parameters, always in the same order."""
    kind = tl.program_id(0)
    column = tl.program_id(1)
    end = tl.load(bounds + kind + 1)
    total = tl.zeros([SUM_BLOCK], tl.float64)
    start = tl.load(bounds + kind)
    while start < end:
        chunk = start + tl.arange(0, SUM_BLOCK)
        total += tl.load(partials + column * chunks + chunk, chunk < end, 0.0)
        start += SUM_BLOCK
    tl.store(out + kind * 3 + column, tl.sum(total))


@triton.jit
def _chunk_combine(
    target,
    upper,
    lower,
    a,
    b,
    skipped,
    count,
    WIDE: tl.constexpr,
    DESCEND: tl.constexpr,
    FULL: tl.constexpr,
):
    for i in tl.static_range(0, CHUNK, BLOCK):
        offsets = i + tl.arange(0, BLOCK)
        d = tl.zeros([BLOCK], WIDE)
        if upper is not None:
            d += a * _read(upper, offsets, count, FULL, WIDE)
        if lower is not None:
            d += b * _read(lower, offsets, count, FULL, WIDE)
        if DESCEND:  # noqa: SIM108  # branches on a constexpr
            d = _read(target, offsets, count, FULL, WIDE) - d
        else:
            d = tl.where(skipped, 0.0, d)
        if FULL:
            tl.store(target + offsets, d)
        else:
            tl.store(target + offsets, d, offsets < count)


@triton.jit
def combine_kernel(
    table,
    owners,
    weights,
    skip,
    P: tl.constexpr,
    U: tl.constexpr,
    G: tl.constexpr,
    WIDE: tl.constexpr,
    DESCEND: tl.constexpr,
    ALIGNED: tl.constexpr,
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
    if count >= CHUNK:
        _chunk_combine(target, upper, lower, a, b, skipped, count, WIDE, DESCEND, True)
    elif count > 0:
        _chunk_combine(target, upper, lower, a, b, skipped, count, WIDE, DESCEND, False)


# The tables.


class _Launch(NamedTuple):
    """What one launch visits: the tensors of equal dtypes.

    Attributes
    ----------
    types : tuple
        Triton's dtypes of parameter, ∇f and ∇g.
    constants : dict
        What both passes are compiled for.
    owners : tensor
        Of each chunk the line of its tensor.
    bounds : tensor
        The first chunk of each kind of parameters, and the number of chunks.
    """

    types: tuple[Any, ...]
    constants: dict[str, Any]
    owners: Tensor
    bounds: Tensor


class _Template(NamedTuple):
    """The launches of a step and their table.

    Attributes
    ----------
    lines : array
        The table, with the gradients of the first step.
    tables : dict
        The latest few tables on the device, by stream and addresses of the gradients.
    pinned : list of tensor
        Host memory for the tables of captured steps.
    """

    launches: list[_Launch]
    lines: _Integers
    tables: dict[Hashable, Tensor]
    pinned: list[Tensor]


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
        self._captured: list[object] = []  # what CUDA graphs read at their replays
        parameter, upper, lower = torch.ones(3, 4, device=device)
        passes = self.bind([Row(parameter, upper, lower, 0, 0)], 1)
        passes.products()
        passes.descend(torch.zeros(1, 2, device=device), None)

    @staticmethod
    def accepts(row: Row) -> bool:
        """Whether the kernels can process these tensors."""
        tensors = [row.parameter, *row.gradients]
        return all(t.dtype in _TYPES for t in tensors) and same_memory_order(tensors)

    def bind_again(
        self, rows: Sequence[Row], layout_kinds: int
    ) -> "TritonPasses | None":
        """The passes over the parameters of an earlier step: the fast path of most steps; None if there was none."""
        columns = self._columns(rows, layout_kinds)
        if columns is None or columns[0] not in self.templates:
            return None
        return self._bind(rows, layout_kinds, *columns)

    def bind(self, rows: Sequence[Row], layout_kinds: int) -> "TritonPasses":
        """The passes over these rows, each of which has a gradient."""
        columns = self._columns(rows, layout_kinds)
        if columns is None:
            # Gradients are missing, or tensors are not contiguous or not aligned.
            lines = _lines(rows)
            key = (lines[:, [0, 3, 4, 5]].tobytes(), *map(_variant, rows))
            columns = ((layout_kinds, key), lines[:, 1:3].T)
        if columns[0] not in self.templates:
            _make_room(self.templates)
            self.templates[columns[0]] = self._template(rows, layout_kinds)
        return self._bind(rows, layout_kinds, *columns)

    def _columns(
        self, rows: Sequence[Row], layout_kinds: int
    ) -> tuple[Hashable, _Integers] | None:
        """The key of the template and the addresses of the gradients; None unless all are contiguous and aligned.

        Every step does this for every parameter: hence column by column, each in one call without a loop in Python.
        """
        parameters, uppers, lowers, kinds, groups = zip(*rows, strict=True)
        tensors = (*parameters, *uppers, *lowers)
        if not {*map(type, tensors)} <= {Tensor, torch.nn.Parameter}:
            return None
        index = -1 if self.device.index is None else self.device.index
        if {*map(Tensor.get_device, parameters)} != {index}:
            return None
        if not all(map(Tensor.is_contiguous, tensors)):
            return None
        addresses = np.array([*map(Tensor.data_ptr, tensors)]).reshape(3, -1)
        if (addresses & 15).any():
            return None
        lengths = tuple(map(Tensor.numel, parameters))
        dtypes = tuple(map(_dtype, tensors))
        key = (layout_kinds, addresses[0].tobytes(), lengths, kinds, groups, dtypes)
        return key, addresses[1:]

    def _template(self, rows: Sequence[Row], layout_kinds: int) -> _Template:
        if capturing(self.device):
            raise RuntimeError("take a step with these parameters before capturing one")
        members_by_variant: dict[Any, list[int]] = defaultdict(list)
        for i, row in enumerate(rows):
            if row.parameter.numel():
                members_by_variant[_variant(row)].append(i)
        lines = _lines(rows)
        launches = []
        for (types, aligned), members in members_by_variant.items():
            counts = -(-lines[members, 3] // CHUNK.value)
            owners = np.repeat(members, counts)
            # Rows come kind by kind, so that the chunks of a kind are adjacent.
            bounds = np.searchsorted(lines[owners, 4], np.arange(layout_kinds + 1))
            lines[members, 4] = np.cumsum(counts) - counts
            constants = {"U": types[1], "G": types[2], "ALIGNED": aligned}
            launches.append(
                _Launch(types, constants, self._upload(owners), self._upload(bounds))
            )
        return _Template(launches, lines, {}, [])

    def _bind(
        self,
        rows: Sequence[Row],
        layout_kinds: int,
        key: Hashable,
        addresses: _Integers,
    ) -> "TritonPasses":
        template = self.templates[key]
        table = self._table(template, addresses)
        return TritonPasses(self, rows, layout_kinds, template.launches, table)

    def _table(self, template: _Template, addresses: _Integers) -> Tensor:
        """The table on the device, with the gradients at these addresses."""
        captured = capturing(self.device)
        cuda = self.device.type == "cuda"
        # A table is uploaded in the order of one stream.
        stream = torch.cuda.current_stream(self.device).cuda_stream if cuda else 0
        key = (stream, addresses.tobytes())
        if key in template.tables and not captured:
            return template.tables[key]
        lines = template.lines.copy()
        lines[:, 1:3] = addresses.T
        if captured:
            # A captured copy reads its source again at every replay, and a capture cannot allocate pinned memory.
            if not template.pinned:
                raise RuntimeError(
                    "take a step with these parameters before capturing one"
                )
            source = template.pinned.pop().copy_(torch.from_numpy(lines))
            table = source.to(self.device, non_blocking=True)
            self._captured.append((template, source, table))
            return table
        if cuda and not template.pinned:
            shape = (_CACHED, *lines.shape)
            buffers = torch.empty(shape, dtype=torch.int64, pin_memory=True)
            template.pinned.extend(buffers)
        _make_room(template.tables)
        template.tables[key] = self._upload(lines)
        return template.tables[key]

    def _upload(self, values: _Integers) -> Tensor:
        """Copy integers to the device without waiting for it."""
        source = torch.from_numpy(values)
        if self.device.type == "cuda":
            source = source.pin_memory()
        return source.to(self.device, non_blocking=True)


@dataclass(eq=False)
class TritonPasses:
    """The passes over rows on one device, as in :class:`tiebreak.torch.kernels.EnginePasses`."""

    engine: TritonEngine
    rows: Sequence[Row]
    layout_kinds: int
    launches: list[_Launch]
    table: Tensor
    uses_triton = True

    def products(self) -> Tensor:
        """fg, gg and ff of each kind of parameters, of shape (layout_kinds, 3), in float64."""
        device = self.engine.device
        kinds = self.layout_kinds
        totals = []
        with device_context(device):
            for _, constants, owners, bounds in self.launches:
                chunks = len(owners)
                partials = torch.empty(3, chunks, dtype=torch.float64, device=device)
                total = torch.empty(kinds, 3, dtype=torch.float64, device=device)
                products_kernel[(chunks,)](
                    self.table, owners, partials, chunks, num_warps=4, **constants
                )
                sum_kernel[(kinds, 3)](partials, chunks, bounds, total, num_warps=8)
                totals.append(total)
        if not totals:
            return torch.zeros(kinds, 3, dtype=torch.float64, device=device)
        return reduce(torch.add, totals)

    def combine(self, weights: Tensor, skip: Tensor | None) -> None:
        """d = a ∇f + b ∇g, in the memory of ∇f, or of ∇g if only that exists; 0 if `skip` is true."""
        self._combine(weights, skip, descend=False)
        # Autograd does not see writes of kernels: a graph from before would use the new numbers without an error.
        torch.autograd.graph.increment_version([row.gradients[0] for row in self.rows])

    def descend(self, weights: Tensor, skip: Tensor | None) -> None:
        """x ← x − a ∇f − b ∇g, nothing if `skip` is true; the gradients stay as they are."""
        self._combine(weights, skip, descend=True)
        torch.autograd.graph.increment_version([row.parameter for row in self.rows])

    def _combine(self, weights: Tensor, skip: Tensor | None, descend: bool) -> None:
        factors = weights.to(torch.float64).contiguous()
        with device_context(self.engine.device):
            for types, constants, owners, _ in self.launches:
                combine_kernel[(len(owners),)](
                    self.table,
                    owners,
                    factors,
                    self.engine.never_skip if skip is None else skip,
                    P=types[0],
                    WIDE=tl.float64 if tl.float64 in types else tl.float32,
                    DESCEND=descend,
                    num_warps=4,
                    **constants,
                )


_dtype = attrgetter("dtype")


def _addresses(row: Row) -> list[int]:
    """The addresses of parameter, ∇f and ∇g; 0 if missing."""
    return [0 if t is None else t.data_ptr() for t in row[:3]]


def _lines(rows: Sequence[Row]) -> _Integers:
    """The table of rows, with the kind of parameters in place of the first chunk."""
    return np.array([[*_addresses(r), r.parameter.numel(), *r[3:]] for r in rows])


def _variant(row: Row) -> tuple[tuple[Any, ...], bool]:
    """Triton's dtypes of a row, None if missing; and whether all addresses are aligned."""
    types = tuple(None if t is None else _TYPES[t.dtype] for t in row[:3])
    return types, all(address % 16 == 0 for address in _addresses(row))


def _make_room(cache: dict[Hashable, Any]) -> None:
    """Drop the oldest entries of a cache that is full."""
    while len(cache) >= _CACHED:
        cache.pop(next(iter(cache)))
