"""The core's estimators on the gradients of parameters: what the rule sees, and what is remembered of it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tiebreak.estimators import Estimator, Minibatch, enters_direction
from tiebreak.schedules import Parameters
from tiebreak.torch.buffers import Buffers
from tiebreak.torch.exchange import let_go
from tiebreak.torch.gradients import LEVELS, Gradients, Touched
from tiebreak.torch.losses import itself, propagate, returned
from tiebreak.torch.packing import Kept
from tiebreak.torch.rows import NARROW, Row

if TYPE_CHECKING:
    from tiebreak.torch.optimizer import DynamicBarrier

__all__ = ["Estimates", "backward", "check_repeats"]

_Memory = dict[str, dict[Tensor, tuple[Any, ...]]]


class Estimates:
    """An estimator and what it remembers, per level and parameter; with two evaluations the previous point, too."""

    def __init__(self, estimator: Estimator, model: nn.Module | None = None) -> None:
        self.estimator = estimator
        self.memory: _Memory = {level: {} for level in LEVELS}
        self.points: dict[Tensor, Tensor] = {}
        self._new: _Memory = {}
        self._before: dict[str, dict[Tensor, Tensor]] = {}
        self._buffers = Buffers(model)

    @property
    def batch_alone(self) -> bool:
        """Whether the rule sees the batch's own gradient, with all its noise."""
        return type(self.estimator) is Minibatch

    @property
    def twice(self) -> bool:
        """Whether every batch is evaluated at two points."""
        return self.estimator.evaluations == 2

    @property
    def in_direction(self) -> bool:
        """Whether the estimates make up the direction, too."""
        return enters_direction(self.estimator)

    def look_back(
        self, optimizer: "DynamicBarrier", upper: Callable[[], Tensor], lower: Callable[[], Tensor]
    ) -> dict[str, Tensor]:
        """This step's batch at the previous point (at first, where it is): its gradients are kept, losses returned."""
        parameters = list(optimizer.gradients.parameters())
        let_go(optimizer)
        here = [p.detach().clone() for p in parameters]
        try:
            _set(parameters, [self.points.get(p, p) for p in parameters])
            self._buffers.refresh()
            with self._buffers.exchanged(keep=False):
                losses = backward(optimizer, upper, lower)
            for level in LEVELS:
                pairs = zip(parameters, optimizer.gradients.resolved(level), strict=True)
                self._before[level] = {p: g for p, g in pairs if g is not None}
        finally:  # whatever a closure does, the parameters are where they were
            optimizer.forget()
            let_go(optimizer)
            _set(parameters, here)
        return losses

    def seen(
        self, gradients: Gradients, rows: Sequence[Row], parameters: Parameters, inverse_scale: Tensor | None
    ) -> list[Row]:
        """The rows as the rule sees them, without a scaler's scale; nothing is remembered before :meth:`accept`."""
        self._new = {level: {} for level in LEVELS}
        found = []
        for row in rows:
            pair = [
                self._estimate(gradients, level, row.parameter, grad, parameters, inverse_scale)
                for level, grad in zip(LEVELS, (row.upper, row.lower), strict=True)
            ]
            found.append(row._replace(upper=pair[0], lower=pair[1]))
        return found

    def _estimate(
        self,
        gradients: Gradients,
        level: str,
        p: Tensor,
        grad: Tensor | None,
        parameters: Parameters,
        inverse_scale: Tensor | None,
    ) -> Tensor | None:
        memory = self.memory[level].get(p)
        if not p.requires_grad or (grad is None and memory is None):  # frozen: what is remembered moves it no more
            return None
        here = torch.zeros_like(p) if grad is None else grad
        fresh = _unscaled(here, inverse_scale)
        before = self._before.get(level, {}).get(p)
        before = fresh if before is None else _unscaled(before, inverse_scale)
        memory = self.estimator.begin(level, torch.zeros_like(fresh), 0.0) if memory is None else memory
        if any(isinstance(v, Tensor) and v.dtype != fresh.dtype for v in memory):  # the model was moved since
            memory = tuple(_placed(v, p, fresh.dtype) for v in memory)
        estimate, memory = self.estimator.update(level, fresh, before, memory, parameters)
        if memory:  # the gradient's own memory is used up by the step
            self._new[level][p] = tuple(v.clone() if v is fresh or v is here else v for v in memory)
        if self.in_direction and estimate is not fresh:
            if grad is None:
                gradients.put(level, p, here)
            here.copy_(estimate if inverse_scale is None else estimate / inverse_scale.to(estimate.device))
        found: Tensor = estimate
        return found

    def accept(self) -> None:
        """The step will be made: remember what it found. A batch that is skipped leaves nothing behind."""
        for level in LEVELS:
            self.memory[level] |= self._new.get(level, {})
        self._new, self._before = {}, {}

    def leave(self, gradients: Gradients) -> None:
        """Before the parameters move: note where they are, because the next batch is evaluated here, too."""
        if self.twice:
            self.points = {p: p.detach().clone() for p in gradients.parameters()}

    def kept(self, p: Tensor) -> Kept:
        """What is remembered for a parameter, to be saved."""
        found: Kept = {
            level: {str(i): value for i, value in enumerate(self.memory[level][p])}
            for level in LEVELS
            if p in self.memory[level]
        }
        return found | ({"point": {"value": self.points[p]}} if p in self.points else {})

    def blank(self, p: Tensor) -> Kept:
        """The same of a parameter that nothing is remembered for."""
        zeros = {
            level: torch.zeros_like(p, dtype=_wide(p.dtype)) for level in LEVELS
        }  # each its own: all are read into
        begun = {level: self.estimator.begin(level, zeros[level], 0.0) for level in LEVELS}
        found: Kept = {level: {str(i): v for i, v in enumerate(memory)} for level, memory in begun.items() if memory}
        return found | ({"point": {"value": torch.zeros_like(p)}} if self.twice else {})

    def check(self, kind: str) -> None:
        """Raise if the state of an estimator of this kind cannot be taken up."""
        mine = type(self.estimator).__name__
        if kind != mine:
            raise ValueError(f"an optimizer with the estimator {mine} cannot load a state of {kind}")

    def load(self, parameters: Sequence[Tensor], kept: Sequence[Kept]) -> None:
        """Take up what `kept` gave for each parameter."""
        pairs = list(zip(parameters, kept, strict=True))
        self.memory = {
            level: {
                p: tuple(_placed(mine[level][str(i)], p, _wide(p.dtype)) for i in range(len(mine[level])))
                for p, mine in pairs
                if level in mine
            }
            for level in LEVELS
        }
        self.points = {p: _placed(mine["point"]["value"], p, p.dtype) for p, mine in pairs if "point" in mine}


def backward(
    optimizer: "DynamicBarrier", upper: Callable[[], Tensor], lower: Callable[[], Tensor], reference: Any = None
) -> dict[str, Tensor]:
    """Both losses of two closures, and their gradients in the optimizer.

    Forward and backward of one level, then of the other: the only order that DistributedDataParallel averages right.
    """
    losses: dict[str, Tensor] = {}
    try:
        for level, closure in (("lower", lower), ("upper", upper)):
            with torch.enable_grad():
                loss = returned(level, closure())
                compared = reference if level == "lower" else None
                try:
                    with optimizer._level(level, loss, compared, 1.0, factor=1.0):  # the backward pass is ours
                        propagate(level, loss)
                except Touched:  # by the closure, which is all that ran since
                    raise RuntimeError(f"{itself(level)}.") from None
            losses[level] = loss.detach()
    except BaseException:  # half a step is none: the next one begins anew
        optimizer.forget()
        raise
    return losses


def check_repeats(level: str, first: Tensor, again: Tensor, why: str) -> None:
    """Raise if a closure gave two losses at one point, with the same random numbers: it does not keep to one batch."""
    one, two = float(first), float(again)
    if abs(one - two) > 1e-3 * max(abs(one), abs(two)):  # a device may sum in another order; batches differ by more
        raise RuntimeError(
            f"the {level} closure gave {one:.6g} and {two:.6g} at the same point; {why}, so it must give the same loss "
            "again: draw the batch outside the closure, or name its random generators, generators=[…]"
        )


@torch.no_grad()
def _set(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for p, value in zip(parameters, values, strict=True):
        if p is not value:
            p.copy_(value)
    torch.clear_autocast_cache()  # it may hold what was there before, in another precision


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in NARROW else dtype


def _unscaled(grad: Tensor, inverse_scale: Tensor | None) -> Tensor:
    wide = grad.to(_wide(grad.dtype))
    return wide if inverse_scale is None else wide * inverse_scale.to(device=wide.device, dtype=wide.dtype)


def _placed(value: Any, p: Tensor, dtype: torch.dtype) -> Any:
    return value.clone().to(device=p.device, dtype=dtype) if isinstance(value, Tensor) else value
