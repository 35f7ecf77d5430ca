"""The core's estimators on the gradients of parameters: what the rule sees, and what is remembered of it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tiebreak.estimators import Estimator, Minibatch
from tiebreak.estimators.contract import enters_direction
from tiebreak.schedules import Parameters
from tiebreak.torch.gradients import LEVELS, Gradients
from tiebreak.torch.kernels.foreach import LOW_PRECISION, Row
from tiebreak.torch.packing import Kept

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

    def rows_for_rule(
        self,
        gradients: Gradients,
        rows: Sequence[Row],
        parameters: Parameters,
        inverse_scale: Tensor | None,
    ) -> list[Row]:
        """The rows as the rule sees them, without a scaler's scale; nothing is remembered before :meth:`accept`."""
        self._new = {level: {} for level in LEVELS}
        estimated = []
        for row in rows:
            pair: dict[str, Any] = {}
            for level in LEVELS:
                pair[level] = self._estimate(
                    gradients, level, row, parameters, inverse_scale
                )
            estimated.append(row._replace(**pair))
        return estimated

    def _estimate(
        self,
        gradients: Gradients,
        level: str,
        row: Row,
        parameters: Parameters,
        inverse_scale: Tensor | None,
    ) -> Tensor | None:
        p = row.parameter
        grad = getattr(row, level)
        memory = self.memory[level].get(p)
        if not p.requires_grad or (
            grad is None and memory is None
        ):  # frozen: what is remembered moves it no more
            return None
        here = torch.zeros_like(p) if grad is None else grad
        fresh = _unscaled(here, inverse_scale)
        memory = (
            self.estimator.begin(level, torch.zeros_like(fresh), 0.0)
            if memory is None
            else memory
        )
        if any(
            isinstance(v, Tensor) and v.dtype != fresh.dtype for v in memory
        ):  # the model was moved since
            memory = tuple(_placed(v, p, fresh.dtype) for v in memory)
        estimate, memory = self.estimator.update(
            level, fresh, fresh, memory, parameters
        )
        if memory:  # the gradient's own memory is used up by the step
            self._new[level][p] = tuple(
                v.clone() if v is fresh or v is here else v for v in memory
            )
        if self.in_direction and estimate is not fresh:
            if grad is None:
                gradients.put(level, p, here)
            here.copy_(
                estimate
                if inverse_scale is None
                else estimate / inverse_scale.to(estimate.device)
            )
        found: Tensor = estimate
        return found

    def accept(self) -> None:
        """The step will be made: remember what it found. A batch that is skipped leaves nothing behind."""
        for level in LEVELS:
            self.memory[level] |= self._new.get(level, {})
        self._new = {}

    def kept(self, p: Tensor) -> Kept:
        """What is remembered for a parameter, to be saved."""
        return _named(
            {level: memory[p] for level, memory in self.memory.items() if p in memory}
        )

    def blank(self, p: Tensor) -> Kept:
        """The same of a parameter that nothing is remembered for."""
        begun = {}
        for level in LEVELS:  # each level has its own zeros: all are read into
            begun[level] = self.estimator.begin(
                level, torch.zeros_like(p, dtype=_wide(p.dtype)), 0.0
            )
        return _named({level: memory for level, memory in begun.items() if memory})

    def check(self, kind: str) -> None:
        """Raise if the state of an estimator of this kind cannot be taken up."""
        mine = type(self.estimator).__name__
        if kind != mine:
            raise ValueError(
                f"an optimizer with the estimator {mine} cannot load a state of {kind}"
            )

    def load(self, parameters: Sequence[Tensor], kept: Sequence[Kept]) -> None:
        """Take up what `kept` gave for each parameter."""
        self.memory = {level: {} for level in LEVELS}
        for p, saved in zip(parameters, kept, strict=True):
            for level in self.memory.keys() & saved.keys():
                values = (saved[level][str(i)] for i in range(len(saved[level])))
                self.memory[level][p] = tuple(
                    _placed(value, p, _wide(p.dtype)) for value in values
                )


def _named(memory: dict[str, tuple[Any, ...]]) -> Kept:
    return {
        level: {str(i): value for i, value in enumerate(values)}
        for level, values in memory.items()
    }


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in LOW_PRECISION else dtype


def _unscaled(grad: Tensor, inverse_scale: Tensor | None) -> Tensor:
    wide = grad.to(_wide(grad.dtype))
    return (
        wide
        if inverse_scale is None
        else wide * inverse_scale.to(device=wide.device, dtype=wide.dtype)
    )


def _placed(value: Any, p: Tensor, dtype: torch.dtype) -> Any:
    return (
        value.clone().to(device=p.device, dtype=dtype)
        if isinstance(value, Tensor)
        else value
    )
