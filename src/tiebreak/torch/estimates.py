"""The core's estimators on the gradients of parameters: what the rule sees, and what is remembered of it."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tiebreak.estimators import Estimator, Minibatch
from tiebreak.schedules import Parameters
from tiebreak.torch.checkpoint import Entries
from tiebreak.torch.gradients import LEVELS, Gradients
from tiebreak.torch.kernels.torch_passes import LOW_PRECISION, Row

#: What an estimator remembers, by level and parameter.
_Memory: TypeAlias = dict[str, dict[Tensor, tuple[Any, ...]]]


class Estimates:
    """An estimator and its memory.

    Parameters
    ----------
    estimator : Estimator

    Attributes
    ----------
    kind : str
        The estimator's class, which a saved state must share.
    is_minibatch : bool
        Whether the rule sees the batch's own gradient, with all its noise.
    in_direction : bool
        Whether the estimates make up the direction, too.
    """

    def __init__(self, estimator: Estimator) -> None:
        self.estimator = estimator
        self.kind = type(estimator).__name__
        self.is_minibatch = type(estimator) is Minibatch
        self.in_direction = estimator.direction
        self.memory: _Memory = {level: {} for level in LEVELS}
        self._new: _Memory = {}

    def rows_for_rule(
        self,
        gradients: Gradients,
        rows: Sequence[Row],
        parameters: Parameters,
        inverse_scale: Tensor | None,
    ) -> list[Row]:
        """Return the rows as the rule sees them, without a scaler's scale; :meth:`accept` remembers them."""
        self._new = {level: {} for level in LEVELS}
        estimated = []
        for row in rows:
            upper, lower = (
                self._estimate(gradients, level, row, parameters, inverse_scale)
                for level in LEVELS
            )
            estimated.append(row._replace(upper=upper, lower=lower))
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
        grad: Tensor | None = getattr(row, level)
        memory = self.memory[level].get(p)
        # What is remembered of a frozen parameter moves it no more.
        if not p.requires_grad or (grad is None and memory is None):
            return None
        if grad is None:
            batch = torch.zeros_like(p)
        else:
            batch = grad
        fresh = batch.to(_memory_dtype(batch.dtype))
        if inverse_scale is not None:
            fresh = fresh * inverse_scale.to(device=fresh.device, dtype=fresh.dtype)
        if memory is None:
            memory = self.estimator.begin(level, torch.zeros_like(fresh), 0.0)
        # The model may have been moved since.
        memory = tuple(_moved(value, p, fresh.dtype) for value in memory)
        estimate: Tensor
        estimate, memory = self.estimator.update(
            level, fresh, fresh, memory, parameters
        )
        if memory:
            # The step uses up the memory of the gradient itself.
            self._new[level][p] = tuple(
                value.clone() if value is fresh or value is batch else value
                for value in memory
            )
        if self.in_direction and estimate is not fresh:
            if grad is None:
                gradients.put(level, p, batch)
            scaled = estimate
            if inverse_scale is not None:
                scaled = estimate / inverse_scale.to(estimate.device)
            batch.copy_(scaled)
        return estimate

    def accept(self) -> None:
        """Remember the estimates of a step that will be made; a skipped batch leaves nothing behind."""
        for level, memory in self._new.items():
            self.memory[level] |= memory
        self._new = {}

    def entries(self, p: Tensor) -> Entries:
        """Return what is remembered for a parameter."""
        return _by_name({n: m[p] for n, m in self.memory.items() if p in m})

    def placeholders(self, p: Tensor, state: Mapping[str, Any]) -> Entries:
        """Return zeros in the place of :meth:`entries`."""
        dtype = _memory_dtype(p.dtype)
        memories = {}
        for level in LEVELS:  # each level has its own zeros, which are read into
            zeros = torch.zeros_like(p, dtype=dtype)
            memories[level] = self.estimator.begin(level, zeros, 0.0)
        return _by_name({level: memory for level, memory in memories.items() if memory})

    def load(self, entries: Mapping[Tensor, Entries]) -> None:
        """Restore the memory."""
        self.memory = {level: {} for level in LEVELS}
        for p, saved in entries.items():
            dtype = _memory_dtype(p.dtype)
            for level in self.memory.keys() & saved.keys():
                values = saved[level]
                self.memory[level][p] = tuple(
                    _moved(values[str(i)], p, dtype, copy=True)
                    for i in range(len(values))
                )


def _by_name(memories: Mapping[str, tuple[Any, ...]]) -> Entries:
    entries: Entries = {}
    for level, memory in memories.items():
        entries[level] = {str(i): value for i, value in enumerate(memory)}
    return entries


def _memory_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype in LOW_PRECISION:
        return torch.float32
    return dtype


def _moved(value: object, p: Tensor, dtype: torch.dtype, copy: bool = False) -> Any:
    """The value on the device of a parameter, if it is a tensor."""
    if not isinstance(value, Tensor):
        return value
    return value.to(device=p.device, dtype=dtype, copy=copy)
