"""The two passes of a barrier step as Triton kernels: the inner products, then the combination.

A launch visits many tensors. Each is a line in a table on the device, with addresses and a length, so nothing is copied
into a flat buffer; chunks of equal size share the work evenly. Sums are made in float64, and in an order that depends
on the shapes alone: the same gradients give the same bits.

Triton reads the bodies as a language of its own: a branch on a constexpr is taken while compiling.
"""

import triton
import triton.language as tl

_COLUMNS = tl.constexpr(
    6
)  # of the table: addresses of parameter, upper, lower; length; first chunk; group


@triton.jit
def _chunk(table, owners, CHUNK: tl.constexpr):
    """The row of this program's chunk, where in the tensor the chunk begins, and how many elements follow."""
    chunk = tl.program_id(0)
    row = tl.load(owners + chunk)
    start = (chunk - tl.load(table + row * _COLUMNS + 4)) * CHUNK
    return row, start, tl.load(table + row * _COLUMNS + 3) - start


@triton.jit
def _part(
    table, row, column: tl.constexpr, TYPE: tl.constexpr, ALIGNED: tl.constexpr, start
):
    """Where this program's chunk of a tensor begins."""
    address = tl.load(table + row * _COLUMNS + column).to(tl.pointer_type(TYPE))
    if ALIGNED:  # then a thread reads and writes 16 bytes at once
        address = tl.multiple_of(address, 16)
    return address + start


@triton.jit
def _read(at, offsets, left, WHOLE: tl.constexpr, TYPE: tl.constexpr):
    """A block, widened; without a mask where all of it is there, because a mask breaks wide reads into single ones."""
    if WHOLE:
        return tl.load(at + offsets).to(TYPE)
    else:  # noqa: RET505  # Triton wants one return per branch
        return tl.load(at + offsets, offsets < left, 0.0).to(TYPE)


@triton.jit
def _chunk_products(
    us,
    gs,
    left,
    U: tl.constexpr,
    G: tl.constexpr,
    WHOLE: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    fg = tl.zeros([BLOCK], tl.float64)
    gg = tl.zeros([BLOCK], tl.float64)
    ff = tl.zeros([BLOCK], tl.float64)
    for i in tl.static_range(0, CHUNK, BLOCK):
        offsets = i + tl.arange(0, BLOCK)
        if U is not None:
            u = _read(us, offsets, left, WHOLE, tl.float64)
            ff += u * u
        if G is not None:
            g = _read(gs, offsets, left, WHOLE, tl.float64)
            gg += g * g
        if (U is not None) and (G is not None):
            fg += u * g
    return tl.sum(fg), tl.sum(gg), tl.sum(ff)


@triton.jit
def products(
    table,
    owners,
    partials,
    chunks,
    U: tl.constexpr,
    G: tl.constexpr,
    ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """⟨u, g⟩, ‖g‖² and ‖u‖² of one chunk; a missing tensor (dtype None) is 0."""
    row, start, left = _chunk(table, owners, CHUNK)
    us, gs = None, None
    if U is not None:
        us = _part(table, row, 1, U, ALIGNED, start)
    if G is not None:
        gs = _part(table, row, 2, G, ALIGNED, start)
    if left >= CHUNK:
        fg, gg, ff = _chunk_products(us, gs, left, U, G, True, CHUNK, BLOCK)
    else:
        fg, gg, ff = _chunk_products(us, gs, left, U, G, False, CHUNK, BLOCK)
    chunk = tl.program_id(0)
    tl.store(partials + chunk, fg)
    tl.store(partials + chunks + chunk, gg)
    tl.store(partials + 2 * chunks + chunk, ff)


@triton.jit
def reduce(partials, chunks, bounds, out, BLOCK: tl.constexpr):
    """Sum the chunks of one kind of parameters, always in the same order."""
    kind = tl.program_id(0)
    column = tl.program_id(1)
    end = tl.load(bounds + kind + 1)
    total = tl.zeros([BLOCK], tl.float64)
    start = tl.load(bounds + kind)
    while start < end:
        at = start + tl.arange(0, BLOCK)
        total += tl.load(partials + column * chunks + at, at < end, 0.0)
        start += BLOCK
    tl.store(out + kind * 3 + column, tl.sum(total))


@triton.jit
def _chunk_combine(
    to,
    us,
    gs,
    a,
    b,
    still,
    left,
    TO: tl.constexpr,
    U: tl.constexpr,
    G: tl.constexpr,
    WIDE: tl.constexpr,
    DESCEND: tl.constexpr,
    WHOLE: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    for i in tl.static_range(0, CHUNK, BLOCK):
        offsets = i + tl.arange(0, BLOCK)
        d = tl.zeros([BLOCK], WIDE)
        if U is not None:
            d += a * _read(us, offsets, left, WHOLE, WIDE)
        if G is not None:
            d += b * _read(gs, offsets, left, WHOLE, WIDE)
        d = (
            _read(to, offsets, left, WHOLE, WIDE) - d
            if DESCEND
            else tl.where(still, 0.0, d)
        )
        if WHOLE:
            tl.store(to + offsets, d.to(TO))
        else:
            tl.store(to + offsets, d.to(TO), offsets < left)


@triton.jit
def combine(
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
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """d = a u + b g, into the gradient's own memory; or p − d, into the parameter. Where `skip` is true: d = 0."""
    row, start, left = _chunk(table, owners, CHUNK)
    group = tl.load(table + row * _COLUMNS + 5)
    a = tl.load(weights + group * 2).to(WIDE)
    b = tl.load(weights + group * 2 + 1).to(WIDE)
    still = tl.load(skip) != 0
    us, gs = None, None
    if U is not None:
        us = _part(table, row, 1, U, ALIGNED, start)
    if G is not None:
        gs = _part(table, row, 2, G, ALIGNED, start)
    TO: tl.constexpr = P if DESCEND else (G if U is None else U)
    if DESCEND:
        to = _part(table, row, 0, P, ALIGNED, start)
        left = tl.where(still, 0, left)  # a parameter that stays is not written at all
    else:
        to = gs if U is None else us
    if left >= CHUNK:
        _chunk_combine(
            to, us, gs, a, b, still, left, TO, U, G, WIDE, DESCEND, True, CHUNK, BLOCK
        )
    elif left > 0:
        _chunk_combine(
            to, us, gs, a, b, still, left, TO, U, G, WIDE, DESCEND, False, CHUNK, BLOCK
        )
