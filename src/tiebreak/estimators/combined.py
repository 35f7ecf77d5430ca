"""Estimators made of others: one that is held for several steps, and one for each level."""

import math
from dataclasses import dataclass, field
from typing import Any

from tiebreak.estimators.contract import (
    LEVELS,
    Estimator,
    Memory,
    Update,
    Value,
    points,
)
from tiebreak.estimators.plain import Minibatch
from tiebreak.schedules import Parameters


class _Slower:
    """The parameters of a step, counted in steps of the held estimator."""

    def __init__(self, parameters: Any, k: Any) -> None:
        self.k = k
        self._parameters = parameters

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parameters, name)


@dataclass(frozen=True)
class Held(Estimator):
    """An estimate that is made every m-th step and held for the others, which then cost nothing.

    The schedule sets m: `upper_hold` and `lower_hold`. Lazy upper batches, with which the penalty method needs fewer
    upper calls, are ``PerLevel(upper=Held(), lower=Minibatch())``.

    Parameters
    ----------
    inner : Estimator
        What is made every m-th step: a mini-batch, or one with differences, then between the points where it is made.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> schedule = tiebreak.Schedule(0.1, barrier=1, regularizer=0.1, upper_hold=3, lower_hold=1)
    >>> method = tiebreak.methods.sdbgd.replace(schedule=schedule, estimator=Held())
    >>> result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, method=method, steps=9, seed=0)
    >>> result.upper_calls, result.lower_calls
    (3, 9)
    """

    inner: Estimator = field(default_factory=Minibatch)

    @property
    def evaluations(self) -> int:
        """Those of the estimator inside."""
        return self.inner.evaluations

    @property
    def needs(self) -> tuple[str, ...]:
        """What the schedule has to set."""
        return ("upper_hold", "lower_hold", *self.inner.needs)

    def asks(self, level: str, parameters: Any) -> tuple[Any, Any]:
        """What the estimator inside asks for, or nothing."""
        hold = getattr(parameters, f"{level}_hold")
        batch, count = self.inner.asks(level, _Slower(parameters, parameters.k // hold))
        return batch, count * (parameters.k % hold == 0)

    def cycle(self, parameters: Any) -> int | None:
        """After how many steps the costs repeat, where the laws are constant."""
        inner = self.inner.cycle(parameters)
        holds = [
            int(hold)
            for hold in (parameters.upper_hold, parameters.lower_hold)
            if hold is not None
        ]
        if inner is None:
            return None
        return inner * math.lcm(*holds)

    def begin(self, level: str, zeros: Value, zero: Value) -> Memory:
        """The estimate that is held, and what the estimator inside remembers."""
        return (zeros, *self.inner.begin(level, zeros, zero))

    def update(
        self,
        level: str,
        fresh: Value,
        before: Value,
        memory: Memory,
        parameters: Parameters,
    ) -> Update:
        """A new estimate, or the one that is held."""
        if points(self, level, parameters) == 0:
            return memory[0], memory
        estimate, inner = self.inner.update(
            level, fresh, before, memory[1:], parameters
        )
        return estimate, (estimate, *inner)


@dataclass(frozen=True)
class PerLevel(Estimator):
    """An estimator for each level.

    Parameters
    ----------
    upper, lower : Estimator

    Examples
    --------
    >>> from tiebreak.estimators import Spider
    >>> PerLevel(upper=Held(), lower=Spider()).needs
    ('upper_hold', 'period', 'lower_refresh')
    """

    upper: Estimator
    lower: Estimator

    def __post_init__(self) -> None:
        for level in LEVELS:
            part = getattr(self, level)
            if not part.direction or part.momentum is not None:
                raise ValueError(
                    f"{level}={part!r}: an estimator for one level enters the direction, and has its momentum from the "
                    f"schedule, as {level}_momentum"
                )

    @property
    def evaluations(self) -> int:
        """The larger number of both."""
        return max(self.upper.evaluations, self.lower.evaluations)

    @property
    def needs(self) -> tuple[str, ...]:
        """What the schedule has to set."""
        needed = []
        for level, other in (LEVELS, LEVELS[::-1]):
            names = getattr(self, level).needs
            needed += [
                f"{level}_momentum" if name == "momentum" else name
                for name in names
                if not name.startswith(other)
            ]
        return tuple(dict.fromkeys(needed))

    def asks(self, level: str, parameters: Any) -> tuple[Any, Any]:
        """What the level's own asks for."""
        part: Estimator = getattr(self, level)
        return part.asks(level, parameters)

    def cycle(self, parameters: Any) -> int | None:
        """After how many steps the costs repeat, where the laws are constant."""
        upper = self.upper.cycle(parameters)
        lower = self.lower.cycle(parameters)
        if upper is None or lower is None:
            return None
        return math.lcm(upper, lower)

    def begin(self, level: str, zeros: Value, zero: Value) -> Memory:
        """What the level's own remembers."""
        part: Estimator = getattr(self, level)
        return part.begin(level, zeros, zero)

    def update(
        self,
        level: str,
        fresh: Value,
        before: Value,
        memory: Memory,
        parameters: Parameters,
    ) -> Update:
        """The level's own estimate."""
        part: Estimator = getattr(self, level)
        return part.update(level, fresh, before, memory, parameters)
