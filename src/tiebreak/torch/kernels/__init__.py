"""The passes over all parameters: inner products and combinations of the gradients, by the fastest engine per tensor.

Three engines make the same passes: Triton kernels on a GPU (:mod:`~tiebreak.torch.kernels.triton_passes`), and blocked
passes on a CPU and foreach passes for everything else (:mod:`~tiebreak.torch.kernels.torch_passes`).
"""

import importlib.util
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import add
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from tiebreak.torch.devices import capturing
from tiebreak.torch.diagnostics import warn_at_caller
from tiebreak.torch.kernels.torch_passes import (
    BlockedPasses,
    EnginePasses,
    ForeachPasses,
    Row,
    accumulation_dtype,
)

if TYPE_CHECKING:
    from tiebreak.torch.kernels.triton_passes import TritonEngine  # imports Triton


_PLAIN_TYPES = {Tensor, torch.nn.Parameter, type(None)}
_Bind: TypeAlias = Callable[[Sequence[Row]], EnginePasses]


class PassEngines:
    """Chooses the engine of each tensor, and keeps the Triton engines between steps.

    Parameters
    ----------
    fused : bool, optional
        Whether to use the Triton kernels; None: if they work.

    Attributes
    ----------
    triton_engines : dict
        Device → its Triton engine, or None if there is none.
    """

    def __init__(self, fused: bool | None) -> None:
        self.fused = fused
        self.triton_engines: dict[torch.device, TritonEngine | None] = {}

    def __getstate__(self) -> dict[str, object]:
        # Memory addresses are valid in a single process.
        return {"fused": self.fused, "triton_engines": {}}

    def bind(self, rows_by_kind: Sequence[Sequence[Row]]) -> "Passes":
        """The passes over these rows, whose inner products are added up kind by kind."""
        device = rows_by_kind[0][0].parameter.device
        return Passes(device, [self._bind_kind(device, rows) for rows in rows_by_kind])

    def _bind_kind(
        self, device: torch.device, rows: Sequence[Row]
    ) -> list[EnginePasses]:
        rows = [row for row in rows if row[1] is not None or row[2] is not None]
        compiling = torch.compiler.is_compiling()
        if compiling:
            triton = None
        else:
            triton = self.triton_engines.get(device)
        if triton is not None and rows:
            passes = triton.bind_usual(rows)
            if passes is not None:
                return [passes]
        parts: dict[tuple[torch.device, _Bind], list[Row]] = defaultdict(list)
        for row in rows:
            if row.parameter.is_complex():
                real = _as_real(row)
            else:
                real = row
            bind: _Bind = ForeachPasses
            if not compiling:
                bind = self._choose(real)
            parts[row.parameter.device, bind].append(real)
        return [bind(part) for (_, bind), part in parts.items()]

    def _choose(self, row: Row) -> _Bind:
        device = row.parameter.device
        # A subclass of Tensor may lie elsewhere than in plain memory.
        if not {*map(type, row[:3])} <= _PLAIN_TYPES:
            return ForeachPasses
        # Tests put an engine with Triton's interpreter on the CPU.
        if device.type == "cpu" and device not in self.triton_engines:
            return BlockedPasses
        triton = self.load_triton(device)
        if triton is not None and triton.accepts(row):
            return triton.bind
        return ForeachPasses

    def load_triton(self, device: torch.device) -> "TritonEngine | None":
        """The Triton engine of a device, or None; the first call makes and tries it."""
        if device not in self.triton_engines:
            if self.fused is False:
                triton = None
            else:
                triton = self._try_triton(device)
            self.triton_engines[device] = triton
        return self.triton_engines[device]

    def _try_triton(self, device: torch.device) -> "TritonEngine | None":
        requirement = unmet_requirement(device)
        if requirement is not None:
            if self.fused:
                raise ValueError(
                    f"fused=True needs {requirement}; fused=None uses the kernels where they can run"
                )
            return None
        from tiebreak.torch.kernels.triton_passes import TritonEngine

        try:
            return TritonEngine(device)
        except Exception as error:
            if capturing(device):
                raise  # the error says what to do
            # Failures of Triton have no common class: no C compiler, a full disk, an old driver.
            if self.fused:
                raise RuntimeError(
                    f"fused=True, and the Triton kernels do not run on {device}: {error}"
                ) from error
            warn_at_caller(
                f"the Triton kernels do not run on {device} ({error}): the step is slower; fused=False says nothing"
            )
            return None


def unmet_requirement(device: torch.device) -> str | None:
    """What the Triton kernels need and do not have on a device, in words."""
    if device.type != "cuda":
        return f"parameters on a CUDA device, and one is on {device}"
    if importlib.util.find_spec("triton") is None:
        return "Triton, which is not installed"
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and capability < (8, 0):
        return f"a GPU of compute capability 8.0, and {device} has {capability}"
    return None


@dataclass(eq=False)
class Passes:
    """The passes of one step over all parameters, by one or more engines.

    Attributes
    ----------
    device : torch.device
        Of the first parameter; the inner products come there.
    engines_by_kind : list of lists of EnginePasses
        For each kind of parameters in :class:`tiebreak.torch.distributed.layout.Layout`; one kind on one rank.
    """

    device: torch.device
    engines_by_kind: list[list[EnginePasses]]

    @property
    def uses_triton(self) -> bool:
        """Whether Triton makes all passes."""
        parts = self._parts()
        return bool(parts) and all(part.uses_triton for part in parts)

    @property
    def on_device(self) -> bool:
        """Whether the host must wait to read the inner products."""
        return self.device.type != "cpu"

    def _parts(self) -> list[EnginePasses]:
        return list(chain.from_iterable(self.engines_by_kind))

    def products(self) -> Tensor:
        """fg, gg and ff of each kind of parameters, of shape (kinds, 3), on the first parameter's device."""
        rows = []
        for parts in self.engines_by_kind:
            products = [part.products().to(self.device) for part in parts]
            if not products:
                dtype = accumulation_dtype(self.device)
                products = [torch.zeros(3, dtype=dtype, device=self.device)]
            rows.append(reduce(add, products))
        return torch.stack(rows)

    def combine(self, weights: Tensor, skip: Tensor | None) -> None:
        """d = a ∇f + b ∇g, in the memory of ∇f, or of ∇g if only that exists; 0 if `skip` is true."""
        for part in self._parts():
            part.combine(*_on_device_of(part, weights, skip))

    def descend(self, weights: Tensor, skip: Tensor | None) -> None:
        """x ← x − a ∇f − b ∇g; nothing if `skip` is true."""
        for part in self._parts():
            part.descend(*_on_device_of(part, weights, skip))


def _on_device_of(
    part: EnginePasses, weights: Tensor, skip: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    device = part.rows[0].parameter.device
    return weights.to(device), None if skip is None else skip.to(device)


def _as_real(row: Row) -> Row:
    """The row with complex numbers as pairs of real ones."""
    tensors = [None if t is None else torch.view_as_real(t) for t in row[:3]]
    return Row._make([*tensors, *row[3:]])
