"""The engine on a GPU: the Triton kernels, and the tables that tell them where the tensors are."""

from collections.abc import Sequence
from contextlib import nullcontext
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from tiebreak.torch.context import capturing
from tiebreak.torch.kernels import triton_passes as kernels
from tiebreak.torch.kernels.rows import Row

# Measured on an H200: reading two tensors for three float64 sums then takes 0.94, the update 0.99 of a copy's time.
CHUNK = 16384  # elements that one program works on
BLOCK = 1024  # elements that it has in hand at a time
_WARPS = 4
_REDUCED = 4096  # partial sums in hand at a time
_KEPT = 8  # tables on the device: gradients mostly return to the same few addresses
_TYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}


_dtype = attrgetter("dtype")


class _Layout(NamedTuple):
    """How chunks fall on tensors and kinds of parameters: depends on shapes alone."""

    owners: Tensor
    bounds: Tensor
    first: list[int]
    chunks: int


class _Launch(NamedTuple):
    """One kind of tensors: what the kernels are compiled for, and their tables."""

    types: tuple[Any, Any, Any]
    aligned: bool
    table: Tensor
    layout: _Layout

    def options(self) -> dict[str, Any]:
        """What both passes are compiled for."""
        _, u, g = self.types
        return {
            "U": u,
            "G": g,
            "ALIGNED": self.aligned,
            "CHUNK": CHUNK,
            "BLOCK": BLOCK,
            "num_warps": _WARPS,
        }


class _Template(NamedTuple):
    """The launches of some rows before their tables are on the device."""

    layouts: list[
        tuple[Any, _Layout]
    ]  # types and alignment of a launch, and its layout
    order: NDArray[np.int64]  # of the rows, kind by kind
    lines: NDArray[
        np.int64
    ]  # of the table; the gradients' addresses are those of the first rows
    filled: dict[
        bytes, list[_Launch]
    ]  # the latest few tables, by where the gradients are


class Fused:
    """What is kept from step to step for the tensors of one device.

    Parameters
    ----------
    device : torch.device
        The kernels are tried there at once, so that whatever is missing shows before a step.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.never = torch.zeros((), dtype=torch.bool, device=device)
        self._layouts: dict[Any, _Layout] = {}
        self._launches: dict[Any, list[_Launch]] = {}
        self._templates: dict[Any, _Template] = {}
        self._spare: list[Tensor] = []
        self._held: list[Any] = []
        ones = [torch.ones(3, device=device) for _ in range(3)]
        row = Row(ones[0], ones[1], ones[2], 0, 0)
        bound = self.bind([row], 1)
        bound.products()
        bound.descend(torch.zeros(1, 2, dtype=torch.float64, device=device), None)

    @staticmethod
    def takes(row: Row) -> bool:
        """Whether the kernels know these dtypes."""
        return all(t.dtype in _TYPES for t in row.tensors)

    def known(self, rows: Sequence[Row], kinds: int) -> "Bound | None":
        """The engine for tensors of an earlier step, wherever the gradients are now: what most steps find."""
        found = None if capturing(self.device) else self._columns(rows, kinds)
        if found is None or found[0] not in self._templates:
            return None
        with self.here():
            return Bound(self, rows, kinds, self._tables(*found))

    def bind(self, rows: Sequence[Row], kinds: int) -> "Bound":
        """The engine for these tensors."""
        with self.here():
            if capturing(
                self.device
            ):  # the tables are filled at a replay: of no use elsewhere
                return Bound(self, rows, kinds, self._build(rows, kinds))
            found = self._columns(rows, kinds)
            if found is not None:
                return Bound(self, rows, kinds, self._tables(*found, rows))
            key = self._long_key(rows, kinds)
            if key not in self._launches:
                _make_room(self._launches)
                self._launches[key] = self._build(rows, kinds)
            return Bound(self, rows, kinds, self._launches[key])

    def _columns(
        self, rows: Sequence[Row], kinds: int
    ) -> tuple[Any, NDArray[np.int64]] | None:
        """What the template for ordinary tensors depends on, and where their gradients are; None for others.

        Of every parameter at every step: so by columns, each gone over without a line of Python.
        """
        there = [row for row in rows if row[1] is not None or row[2] is not None]
        if not there:
            return None
        ps, us, gs, at, groups = zip(*there, strict=True)
        if {*map(type, us), *map(type, gs)} != {Tensor} or not {*map(type, ps)} <= {
            Tensor,
            torch.nn.Parameter,
        }:
            return None
        index = -1 if self.device.index is None else self.device.index
        columns = (ps, us, gs)
        if {*map(Tensor.get_device, ps)} != {index} or not all(
            all(map(Tensor.is_contiguous, c)) for c in columns
        ):
            return None
        parameters = tuple(map(Tensor.data_ptr, ps))
        gradients = np.array(
            [[*map(Tensor.data_ptr, us)], [*map(Tensor.data_ptr, gs)]], dtype=np.int64
        )
        if (gradients & 15).any() or any(place & 15 for place in parameters):
            return None
        stream = (
            torch.cuda.current_stream(self.device).cuda_stream if index >= 0 else 0
        )  # a table belongs to one
        dtypes = (tuple(map(_dtype, column)) for column in columns)
        return (
            kinds,
            stream,
            parameters,
            tuple(map(Tensor.numel, ps)),
            at,
            groups,
            *dtypes,
        ), gradients

    def _tables(
        self, key: Any, gradients: NDArray[np.int64], rows: Sequence[Row] = ()
    ) -> list[_Launch]:
        """The launches with the gradients where they are: an allocator hands out other places every step."""
        if key not in self._templates:
            _make_room(self._templates)
            there = [row for row in rows if row[1] is not None or row[2] is not None]
            self._templates[key] = self._template(there, key[0])
        template, place = self._templates[key], gradients.tobytes()
        if place not in template.filled:
            _make_room(template.filled)
            lines = template.lines.copy()
            lines[:, 1:3] = gradients[:, template.order].T
            template.filled[place] = self._filled(template, lines)
        return template.filled[place]

    def _filled(self, template: _Template, lines: NDArray[np.int64]) -> list[_Launch]:
        """The launches of a template with these lines of their tables."""
        tables = torch.split(
            self._upload(lines), [len(layout.first) for _, layout in template.layouts]
        )
        return [
            _Launch(types, aligned, table, layout)
            for ((types, aligned), layout), table in zip(
                template.layouts, tables, strict=True
            )
        ]

    def _template(self, rows: Sequence[Row], kinds: int) -> _Template:
        by_type: dict[Any, list[int]] = {}
        for i, row in enumerate(rows):
            if row.parameter.numel():
                aligned = all(t.data_ptr() % 16 == 0 for t in row.tensors)
                types = tuple(None if t is None else _TYPES[t.dtype] for t in row[:3])
                by_type.setdefault((types, aligned), []).append(i)
        layouts = [
            self._layout([rows[i] for i in places], kinds)
            for places in by_type.values()
        ]
        order = [i for places in by_type.values() for i in places]
        firsts = [first for layout in layouts for first in layout.first]
        lines = []
        for i, first in zip(order, firsts, strict=True):
            addresses = [0 if t is None else t.data_ptr() for t in rows[i][:3]]
            lines.append([*addresses, rows[i].parameter.numel(), first, rows[i].group])
        table = np.array(lines, dtype=np.int64).reshape(-1, 6)
        return _Template(
            list(zip(by_type, layouts, strict=True)),
            np.array(order, dtype=np.int64),
            table,
            {},
        )

    @staticmethod
    def _long_key(rows: Sequence[Row], kinds: int) -> Any:
        places = (
            [(t.data_ptr(), t.dtype) if t is not None else None for t in row[:3]]
            for row in rows
        )
        return kinds, *(
            (*at, r.parameter.numel(), r.kind, r.group)
            for at, r in zip(places, rows, strict=True)
        )

    def here(self) -> Any:
        """Launches go to the current device."""
        return (
            torch.cuda.device(self.device)
            if self.device.type == "cuda"
            else nullcontext()
        )

    def _build(self, rows: Sequence[Row], kinds: int) -> list[_Launch]:
        template = self._template(rows, kinds)
        if not template.layouts:
            return []
        if capturing(self.device):
            self._held.append(
                template.layouts
            )  # a graph reads them as long as it lives
        return self._filled(template, template.lines)

    def _layout(self, rows: Sequence[Row], kinds: int) -> _Layout:
        key = (kinds, *((row.parameter.numel(), row.kind) for row in rows))
        if key not in self._layouts:
            if capturing(self.device):
                raise RuntimeError(
                    "take a step with these parameters before capturing one"
                )
            _make_room(self._layouts, 4 * _KEPT)
            counts = np.array([-(-row.parameter.numel() // CHUNK) for row in rows])
            owners = np.repeat(np.arange(len(rows)), counts)
            # Rows come kind by kind, so that the chunks of a kind lie side by side.
            ends = np.searchsorted(
                np.array([row.kind for row in rows])[owners], np.arange(kinds + 1)
            )
            both = self._upload(np.concatenate([owners, ends]))
            first = (np.cumsum(counts) - counts).tolist()
            self._layouts[key] = _Layout(
                both[: len(owners)], both[len(owners) :], first, len(owners)
            )
        return self._layouts[key]

    def _upload(self, values: NDArray[np.int64]) -> Tensor:
        """To the device without waiting for it."""
        source = torch.from_numpy(values)
        if self.device.type != "cuda":
            return source.clone()
        if not capturing(self.device):
            if len(self._spare) < _KEPT or all(
                spare.numel() < source.numel() for spare in self._spare
            ):
                self._spare = [*self._spare, torch.empty_like(source, pin_memory=True)][
                    -_KEPT:
                ]
            return source.pin_memory().to(self.device, non_blocking=True)
        # A captured copy reads its source again at every replay; and pinned memory cannot be had while capturing.
        fitting = [
            i for i, spare in enumerate(self._spare) if spare.numel() >= source.numel()
        ]
        if not fitting:
            raise RuntimeError("take a step with these parameters before capturing one")
        host = (
            self._spare[fitting[0]]
            .view(-1)[: source.numel()]
            .view(source.shape)
            .copy_(source)
        )
        self._spare.pop(fitting[0])
        there = host.to(self.device, non_blocking=True)
        self._held.append((host, there))
        return there


class Bound:
    """The passes of :mod:`tiebreak.torch.kernels` over the tensors of one step."""

    by_kernels = True

    def __init__(
        self, fused: Fused, rows: Sequence[Row], kinds: int, launches: list[_Launch]
    ) -> None:
        self.rows, self.kinds = rows, kinds
        self._fused, self._launches = fused, launches

    def products(self) -> Tensor:
        """fg, gg and ff of every kind of parameters, of shape (kinds, 3), in float64."""
        home, kinds, total = self._fused.device, self.kinds, None
        with self._fused.here():
            for launch in self._launches:
                owners, bounds, _, chunks = launch.layout
                partials = torch.empty(3, chunks, dtype=torch.float64, device=home)
                out = torch.empty(kinds, 3, dtype=torch.float64, device=home)
                kernels.products[(chunks,)](
                    launch.table, owners, partials, chunks, **launch.options()
                )
                kernels.reduce[(kinds, 3)](
                    partials, chunks, bounds, out, BLOCK=_REDUCED, num_warps=8
                )
                total = out if total is None else total + out
        return (
            torch.zeros(kinds, 3, dtype=torch.float64, device=home)
            if total is None
            else total
        )

    def combine(self, weights: Tensor, skip: Tensor | None) -> None:
        """d = a ∇f + b ∇g into the memory of ∇f, or of ∇g where that is all there is; 0 where `skip` is true."""
        self._combine(weights, skip, descend=False)
        # Autograd cannot see what kernels write: a graph from before would use it, and say nothing.
        directions = [g if u is None else u for _, u, g, _, _ in self.rows]
        torch.autograd.graph.increment_version([d for d in directions if d is not None])

    def descend(self, weights: Tensor, skip: Tensor | None) -> None:
        """x ← x − a ∇f − b ∇g; the gradients stay as they are, and where `skip` is true x does, too."""
        self._combine(weights, skip, descend=True)
        torch.autograd.graph.increment_version([row.parameter for row in self.rows])

    def _combine(self, weights: Tensor, skip: Tensor | None, descend: bool) -> None:
        factors = weights.to(torch.float64).contiguous()
        still = self._fused.never if skip is None else skip
        with self._fused.here():
            for launch in self._launches:
                types = {
                    "P": launch.types[0],
                    "WIDE": tl.float64 if tl.float64 in launch.types else tl.float32,
                }
                kernels.combine[(launch.layout.chunks,)](
                    launch.table,
                    launch.layout.owners,
                    factors,
                    still,
                    DESCEND=descend,
                    **types,
                    **launch.options(),
                )


def _make_room(kept: dict[Any, Any], most: int = _KEPT) -> None:
    while len(kept) >= most:
        kept.pop(next(iter(kept)))
