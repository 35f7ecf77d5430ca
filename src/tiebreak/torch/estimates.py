"""The core's estimators on the gradients of parameters: what the rule sees, and what is remembered of it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tiebreak.estimators import Estimator, Minibatch
from tiebreak.estimators.contract import enters_direction
from tiebreak.schedules import Parameters
from tiebreak.torch.gradients import LEVELS, Gradients
from tiebreak.torch.packing import Kept
from tiebreak.torch.rows import NARROW, Row

_Memory = dict[str, dict[Tensor, tuple[Any, ...]]]


class Estimates:
    """An estimator and its memory, per level and parameter."""

    def __init__(self, estimator: Estimator) -> None:
        self.estimator = estimator
        self.memory: _Memory = {level: {} for level in LEVELS}
        self._new: _Memory = {}

    @property
    def batch_alone(self) -> bool:
        """Whether the rule sees the batch's own gradient, with all its noise."""
        return type(self.estimator) is Minibatch

    @property
    def in_direction(self) -> bool:
        """Whether the estimates make up the direction, too."""
        return enters_direction(self.estimator)

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
        memory = self.estimator.begin(level, torch.zeros_like(fresh), 0.0) if memory is None else memory
        if any(isinstance(v, Tensor) and v.dtype != fresh.dtype for v in memory):  # the model was moved since
            memory = tuple(_placed(v, p, fresh.dtype) for v in memory)
        estimate, memory = self.estimator.update(level, fresh, fresh, memory, parameters)
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
        self._new = {}

    def kept(self, p: Tensor) -> Kept:
        """What is remembered for a parameter, to be saved."""
        return {
            level: {str(i): value for i, value in enumerate(self.memory[level][p])}
            for level in LEVELS
            if p in self.memory[level]
        }

    def blank(self, p: Tensor) -> Kept:
        """The same of a parameter that nothing is remembered for."""
        zeros = {
            level: torch.zeros_like(p, dtype=_wide(p.dtype)) for level in LEVELS
        }  # each its own: all are read into
        begun = {level: self.estimator.begin(level, zeros[level], 0.0) for level in LEVELS}
        return {level: {str(i): v for i, v in enumerate(memory)} for level, memory in begun.items() if memory}

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


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in NARROW else dtype


def _unscaled(grad: Tensor, inverse_scale: Tensor | None) -> Tensor:
    wide = grad.to(_wide(grad.dtype))
    return wide if inverse_scale is None else wide * inverse_scale.to(device=wide.device, dtype=wide.dtype)


def _placed(value: Any, p: Tensor, dtype: torch.dtype) -> Any:
    return value.clone().to(device=p.device, dtype=dtype) if isinstance(value, Tensor) else value
