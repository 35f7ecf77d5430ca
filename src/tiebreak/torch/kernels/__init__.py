"""Products and combinations over all parameters: each tensor by the fastest way that it allows.

Three engines of one shape: bound to rows they make ``products``, ``combine`` and ``descend``.
:mod:`~tiebreak.torch.kernels.triton_tables` (Triton, on a GPU), :mod:`~tiebreak.torch.kernels.blocked` (on a CPU) and
:mod:`~tiebreak.torch.kernels.foreach` (everything else).
"""

import importlib.util
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from tiebreak.torch.context import capturing
from tiebreak.torch.kernels.blocked import Pieces
from tiebreak.torch.kernels.foreach import Foreach
from tiebreak.torch.kernels.rows import Row, alike, ordinary, wide
from tiebreak.torch.said import warn


class Bound(Protocol):
    """What an engine makes of rows; weights have shape (groups, 2), and are on the parameters' device."""

    rows: Sequence[Row]
    by_kernels: bool  # whether it is Triton's

    def products(self) -> Tensor:
        """fg, gg and ff of every kind of parameters, of shape (kinds, 3)."""

    def combine(self, weights: Tensor, skip: Tensor | None) -> None:
        """d = a ∇f + b ∇g into the memory of ∇f, or of ∇g where that is all there is; 0 where `skip` is true."""

    def descend(self, weights: Tensor, skip: Tensor | None) -> None:
        """x ← x − a ∇f − b ∇g; nothing where `skip` is true."""


class Engines:
    """Chooses the engines, and keeps what they reuse from step to step.

    Parameters
    ----------
    fused : bool, optional
        Whether to use the Triton kernels; None where they work.
    """

    def __init__(self, fused: bool | None) -> None:
        self.fused = fused
        self._engines: dict[torch.device, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"fused": self.fused, "_engines": {}}  # addresses mean nothing elsewhere

    def bind(self, rows: Sequence[Row], kinds: int) -> "Passes":
        """The passes over these rows, each by its engine."""
        home = rows[0].parameter.device
        compiling = torch.compiler.is_compiling()
        fused = None if compiling else self._engines.get(home)
        if fused is not None and (bound := fused.known(rows, kinds)) is not None:
            return Passes(home, kinds, [bound])
        parts: dict[tuple[torch.device, Any], tuple[Any, list[Row]]] = {}
        for row in rows:
            if row.upper is not None or row.lower is not None:
                device = row.parameter.device
                real = _real(row) if row.parameter.is_complex() else row
                engine = Foreach if compiling else self._engine(real, device)
                parts.setdefault((device, engine), (engine, []))[1].append(real)
        return Passes(
            home, kinds, [engine(mine, kinds) for engine, mine in parts.values()]
        )

    def _engine(self, row: Row, device: torch.device) -> Any:
        if not ordinary(row):
            return Foreach
        if (
            device.type == "cpu" and device not in self._engines
        ):  # tests put the interpreter there
            return Pieces
        fused = self.load(device)
        return (
            fused.bind
            if fused is not None and fused.takes(row) and alike(row.tensors)
            else Foreach
        )

    def load(self, device: torch.device) -> Any:
        """The Triton engine for a device, or None; made and tried at the first call."""
        if device not in self._engines:
            self._engines[device] = None if self.fused is False else self._try(device)
        return self._engines[device]

    def _try(self, device: torch.device) -> Any:
        reason = self._missing(device)
        if reason is not None:
            if self.fused:
                raise ValueError(
                    f"fused=True needs {reason}; fused=None uses the kernels where they can run"
                )
            return None
        from tiebreak.torch.kernels.triton_tables import Fused

        try:
            return Fused(device)
        except Exception as error:
            if capturing(device):  # says what to do
                raise
            # Otherwise Triton's failures have no common class: no C compiler, no space, an old driver.
            if self.fused:
                raise RuntimeError(
                    f"fused=True, and the Triton kernels do not run on {device}: {error}"
                ) from error
            text = f"the Triton kernels do not run on {device} ({error}): the step is slower; fused=False says nothing"
            warn(text)
            return None

    def _missing(self, device: torch.device) -> str | None:
        if device.type != "cuda":
            return f"parameters on a CUDA device, and one is on {device}"
        if importlib.util.find_spec("triton") is None:
            return "Triton, which is not installed"
        if torch.version.hip is None and torch.cuda.get_device_capability(device) < (
            8,
            0,
        ):  # what Triton asks for
            return f"a GPU of compute capability 8.0, and {device} has {torch.cuda.get_device_capability(device)}"
        return None


@dataclass(eq=False)
class Passes:
    """The passes of one step."""

    home: torch.device
    kinds: int
    parts: list[Bound]

    @property
    def by_kernels(self) -> bool:
        """Whether Triton makes all of them."""
        return bool(self.parts) and all(part.by_kernels for part in self.parts)

    @property
    def on_device(self) -> bool:
        """Whether the numbers are made where the host cannot look without waiting."""
        return self.home.type != "cpu"

    def here(self) -> Any:
        """Launches go to the first parameter's device."""
        return (
            torch.cuda.device(self.home) if self.home.type == "cuda" else nullcontext()
        )

    def products(self) -> Tensor:
        """fg, gg and ff of every kind of parameters, of shape (kinds, 3), on the first parameter's device."""
        if not self.parts:
            return torch.zeros(self.kinds, 3, dtype=wide(self.home), device=self.home)
        total, *others = (part.products() for part in self.parts)
        total = total.to(device=self.home)
        for more in others:
            total = total + more.to(total)
        return total

    def combine(self, weights: Tensor, skip: Tensor | None) -> None:
        """d = a ∇f + b ∇g in the memory of ∇f, or of ∇g where that is all there is; 0 where `skip` is true."""
        for part in self.parts:
            part.combine(*_there(part.rows, weights, skip))

    def descend(self, weights: Tensor, skip: Tensor | None) -> None:
        """x ← x − a ∇f − b ∇g; nothing where `skip` is true."""
        for part in self.parts:
            part.descend(*_there(part.rows, weights, skip))


def _there(
    rows: Sequence[Row], weights: Tensor, skip: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    device = rows[0].parameter.device
    return weights.to(device), None if skip is None else skip.to(device)


def _real(row: Row) -> Row:
    u, g = (
        None if t is None else torch.view_as_real(t) for t in (row.upper, row.lower)
    )
    return row._replace(parameter=torch.view_as_real(row.parameter), upper=u, lower=g)
