"""The record that a callback receives after a step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from tiebreak.oracles import Array
from tiebreak.schedules import Parameters
from tiebreak.solver.checkpoint import Configuration
from tiebreak.solver.history import Columns, Measurer
from tiebreak.solver.step import StepState, frozen


@dataclass(frozen=True)
class Record:
    """The state after a step, for a callback; read-only.

    `x`, `multiplier` (the λ̂ just used) and the measures have a leading axis for the living runs, `runs`, if runs were
    asked for. The measures are those of :class:`tiebreak.result.Point` (`direction_squared`, `lower_gradient_squared`,
    `stationarity_squared`, …), with exact gradients, evaluated at the first access.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> def close(record):
    ...     return record.lower_gradient_squared < 0.5  # ends the run
    >>> result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, steps=10**4, seed=0, callback=close)
    >>> result.status.name, result.steps < 10**4
    ('CALLBACK', True)
    """

    step: int
    upper_calls: int
    lower_calls: int
    x: Array
    multiplier: Any
    parameters: Parameters
    runs: tuple[int, ...]
    _measure: Callable[[], Columns]
    _single: bool

    @property
    def calls(self) -> int:
        """Calls of both levels, so far."""
        return self.upper_calls + self.lower_calls

    @cached_property
    def _measures(self) -> Mapping[str, Any]:
        columns = self._measure()
        return {
            name: column[0] if self._single else column
            for name, column in columns.items()
        }

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._measures:
            raise AttributeError(
                f"{name!r} is not known here; known are {sorted(self._measures)}"
            )
        return self._measures[name]


def record_of(
    state: StepState,
    parameters: Parameters,
    configuration: Configuration,
    alive: Sequence[int],
    measurer: Measurer,
) -> Record:
    """Return the record of the step just made, with views that cannot be written to."""
    single = configuration.single
    x = state.x.reshape(len(alive), *configuration.shape).view()
    multiplier = frozen(state.multipliers.view())
    return Record(
        state.k,
        state.upper_calls,
        state.lower_calls,
        frozen(x[0] if single else x),
        multiplier[0] if single else multiplier,
        parameters,
        tuple(configuration.runs[row] for row in alive),
        partial(measurer.at, state.x, [parameters], state.rule),
        single,
    )


def asks_to_stop(callback: Callable[[Record], Any], record: Record) -> bool:
    """Call the callback; say whether it stops the run."""
    try:
        answer = callback(record)
    except StopIteration:
        return True
    if np.size(answer) != 1:
        raise ValueError(
            f"callback returned {answer!r}; it must be one truth value: True to stop"
        )
    return bool(answer)
