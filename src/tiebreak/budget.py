"""What a step costs, and which steps fit in a budget: the one place that charges calls.

Calls are charged before they are made, and a step is made only if all of it fits. :class:`Steps` gives the steps one by
one, as a solver makes them; :func:`steps_within` counts millions of them at once, as plans need it. Both charge what
:func:`calls` says.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiebreak.checks import whole
from tiebreak.methods import Method
from tiebreak.result import Status
from tiebreak.schedules import Law, Parameters, Power, Schedule

Values = NDArray[np.float64]

__all__ = ["Batches", "Steps", "batches", "calls", "first_cost", "law_values", "limit", "steps_within"]

_LARGEST = 2**63 - 1  # calls are counted in 64 bits
_LARGE = 1e12  # a batch in which single calls do not matter
_TOO_MANY = 2 * 10**7  # steps, to be counted one after another


def calls(method: Method, parameters: Any) -> tuple[Any, Any]:
    """Calls that a step is charged at the upper and at the lower level: every sample, as often as it is evaluated.

    `parameters` are those of one step, or arrays of many by the same names.

    Examples
    --------
    >>> import tiebreak
    >>> storm = tiebreak.methods.vr_pr_sdbpg
    >>> calls(storm, storm.schedule.at(99))  # 10 and 100 samples, each at two points
    (20, 200)
    """
    times = method.estimator.evaluations
    return times * parameters.upper_batch, times * parameters.lower_batch


def first_cost(method: Method) -> int:
    """The least budget with which a run can begin."""
    return sum(calls(method, method.schedule.at(0)))


def limit(name: str, value: Any) -> int:
    """A budget or a number of steps as a user gives it, checked."""
    number = whole(name, value)
    if number > _LARGEST:
        raise ValueError(f"{name}={value!r} must be a whole number from 1 to 2^63 − 1, about 9.2e18")
    return number


class Steps(Iterator[Parameters]):
    """The steps that fit, one after another, and afterwards in `ended` the limit that ended them.

    Parameters
    ----------
    method : Method
    steps, budget : int, optional
        The limits: the number of all steps, and of all calls of both levels.
    k, spent : int
        The step to begin with, and what all earlier ones were charged.

    Attributes
    ----------
    k, spent : int
        The next step, and what all before it are charged.
    ended : Status
        RUNNING as long as there may be more, then STEPS or BUDGET.

    Examples
    --------
    >>> import tiebreak
    >>> fitting = Steps(tiebreak.methods.sdbgd, budget=30)
    >>> [p.lower_batch for p in fitting], fitting.spent, fitting.ended.name
    ([1, 5, 15], 27, 'BUDGET')
    """

    def __init__(
        self, method: Method, *, steps: int | None = None, budget: int | None = None, k: int = 0, spent: int = 0
    ) -> None:
        self.k, self.spent, self.ended = k, spent, Status.RUNNING
        self._method, self._steps, self._budget = method, steps, budget

    def __next__(self) -> Parameters:
        if self._steps is not None and self.k >= self._steps:
            self.ended = Status.STEPS
        if self.ended is not Status.RUNNING:
            raise StopIteration
        parameters = self._method.schedule.at(self.k)
        spent = self.spent + sum(calls(self._method, parameters))
        if self._budget is not None and spent > self._budget:
            self.ended = Status.BUDGET
            raise StopIteration
        if spent > _LARGEST:
            raise OverflowError(
                f"step {self.k} would bring the calls to {spent:.2e}, more than can be counted (2^63 − 1)"
            )
        self.k, self.spent = self.k + 1, spent
        return parameters


class Batches(NamedTuple):
    """Of many steps, by the names of :class:`~tiebreak.schedules.Parameters`."""

    upper_batch: Values
    lower_batch: Values


def steps_within(method: Method, budget: int, horizon: int | None = None) -> tuple[int, int, int]:
    """How many steps fit in the budget (at most `horizon`), and what they are charged at each level.

    As many as :class:`Steps` gives, without a Python loop; and numbers may be larger than any run could be charged.

    Examples
    --------
    >>> import tiebreak
    >>> steps_within(tiebreak.methods.sdbgd, 10**8)
    (275, 37950, 99164195)
    """
    schedule = method.schedule
    if schedule.constant("upper_batch", "lower_batch"):
        each = calls(method, schedule.at(0))
        fit = budget // sum(each)
        fit = fit if horizon is None else min(fit, horizon)
        return fit, fit * each[0], fit * each[1]
    steps = upper = lower = 0
    size = 1024
    while horizon is None or steps < horizon:
        size = size if horizon is None else min(size, horizon - steps)
        if steps > _TOO_MANY:
            raise ValueError(
                f"a budget of {float(budget):.0e} holds more than {steps:.0e} steps, too many to count one by one; "
                "constant batches (for a plan: kind='horizon') need no counting"
            )
        # Batches are whole, so counting them in whole numbers is exact; beyond 2^62 a float must do.
        charged = calls(method, batches(schedule, size, steps))
        small = all(level.max() < 2**62 / size for level in charged)
        uppers, lowers = (level.astype(np.int64) if small else level for level in charged)
        left = budget - upper - lower
        fit = int(np.searchsorted(np.cumsum(uppers + lowers), left if left <= _LARGEST else float(left), side="right"))
        steps, upper, lower = steps + fit, upper + int(uppers[:fit].sum()), lower + int(lowers[:fit].sum())
        if fit < size:
            break
        size *= 2
    return steps, upper, lower


def batches(schedule: Schedule, steps: int, start: int = 0) -> Batches:
    """The batch sizes of the steps `start`, …, `start` + `steps` − 1."""
    laws: Any = (schedule.upper_batch, schedule.lower_batch)
    return Batches(*(np.maximum(1, np.floor(law_values(law, steps, start))) for law in laws))


def law_values(law: Law, steps: int, start: int = 0) -> Values:
    """A law at the steps `start`, …, `start` + `steps` − 1; powers without a loop.

    Examples
    --------
    >>> law_values(Power(1, 2), 4)
    array([ 1.,  4.,  9., 16.])
    """
    if not isinstance(law, Power):
        return np.array([float(law(k)) for k in range(start, start + steps)])
    t = np.arange(start + 1, start + steps + 1, dtype=np.float64)
    found: Values = law.constant * t**law.exponent if law.exponent else np.full(steps, float(law.constant))
    # Near a whole number the last bits decide how a batch is floored, and they are to be the law's own. Large numbers
    # are all near one, and there a call more or less is nothing.
    near = (np.abs(found - np.rint(found)) <= 2e-13 * found) & (found < _LARGE)
    for i in np.flatnonzero(near) if law.exponent > 0 else ():
        found[i] = law(start + int(i))
    return found
