"""The cost of a step, and the steps that fit in a budget: the only place that charges calls.

Calls are charged before they are made, and a step is made only if its whole cost fits. :class:`Steps` gives the steps one
by one for the solver; :func:`steps_within` counts millions of them at once for plans. Both charge :func:`calls`.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate, islice, repeat
from typing import Any, TypeAlias

import numpy as np

from tiebreak.checks import whole
from tiebreak.estimators.contract import LEVELS
from tiebreak.methods import Method, get
from tiebreak.result import Status
from tiebreak.schedules import LEGAL, WHOLE, Capped, Law, Parameters, Power, Schedule
from tiebreak.stationarity import Values

#: A step's parameters, and its calls at the upper and at the lower level.
Charged: TypeAlias = tuple[Parameters, tuple[int, int]]

_LARGEST = 2**63 - 1  # calls are counted in 64 bits
_LARGE = 1e12  # a batch in which single calls do not matter
_AHEAD = 256  # steps whose parameters are computed at once
_TOO_MANY = 2 * 10**7  # steps to be counted singly
_LONGEST_CYCLE = 2**20  # steps whose costs are kept


def calls(method: Method, parameters: Any) -> tuple[Any, Any]:
    """Calls that a step is charged at the upper and at the lower level: samples times points of evaluation.

    `parameters` are those of one step, or of :class:`Many`.

    Examples
    --------
    >>> import tiebreak
    >>> storm = tiebreak.methods.vr_pr_sdbpg
    >>> calls(storm, storm.at(99))  # 10 and 100 samples, each at two points
    (20, 200)
    """
    p = parameters
    if p.upper_points is not None:
        return p.upper_batch * p.upper_points, p.lower_batch * p.lower_points
    upper, lower = (method.estimator.asks(level, p) for level in LEVELS)
    return upper[0] * upper[1], lower[0] * lower[1]


def first_cost(method: Method) -> int:
    """The least budget with which a run can begin."""
    return sum(calls(method, method.at(0)))


def limit(name: str, value: Any) -> int:
    """A budget or a number of steps as a user gives it, checked."""
    number = whole(name, value)
    if number > _LARGEST:
        raise ValueError(
            f"{name}={value!r} must be a whole number from 1 to 2^63 − 1, about 9.2e18"
        )
    return number


class Steps(Iterator[Parameters]):
    """The steps that fit, one after another, and afterwards in `ended` the limit that ended them.

    Parameters
    ----------
    method : Method
    steps, budget : int, optional
        The limits: the number of all steps, and of all calls of both levels.
    k, spent : int
        The step to begin with, and the calls of all earlier steps.

    Attributes
    ----------
    k, spent : int
        The next step, and the calls of all steps before it.
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
        self,
        method: Method,
        *,
        steps: int | None = None,
        budget: int | None = None,
        k: int = 0,
        spent: int = 0,
    ) -> None:
        self.k = k
        self.spent = spent
        self.ended = Status.RUNNING
        self._steps = steps
        self._budget = budget
        self._coming = _steps_from(method, k)

    def __next__(self) -> Parameters:
        for parameters, _ in self.block(1):
            return parameters
        raise StopIteration

    def block(
        self, count: int, upper: float = math.inf, lower: float = math.inf
    ) -> list[Charged]:
        """The next steps: at most `count`, and none after a level has drawn `upper` or `lower` samples."""
        if self.ended is not Status.RUNNING:
            return []
        if self._steps is not None:
            count = min(count, self._steps - self.k)
            if count <= 0:
                self.ended = Status.STEPS
                return []
        block: list[Charged] = []
        for parameters, cost in islice(self._coming, count):
            spent = self.spent + sum(cost)
            if self._budget is not None and spent > self._budget:
                self.ended = Status.BUDGET
                break
            if spent > _LARGEST:
                raise OverflowError(
                    f"step {parameters.k} would bring the calls to {spent:.2e}, more than can be counted (2^63 − 1)"
                )
            self.spent = spent
            block.append((parameters, cost))
            upper -= parameters.upper_batch
            lower -= parameters.lower_batch
            if upper <= 0 or lower <= 0:
                break
        self.k += len(block)
        return block


def _steps_from(method: Method, k: int) -> Iterator[Charged]:
    """Step k and all that follow, with their costs; many are computed at once if that is possible."""
    size = 1
    while True:
        size = min(2 * size, _AHEAD)
        some = _power_steps(method, k, size)
        if not some:
            parameters = method.at(k)
            some = [(parameters, calls(method, parameters))]
        yield from some
        k += len(some)


def _power_steps(method: Method, k: int, count: int) -> list[Charged]:
    """So many steps from k on under power laws: the parameters that `method.at` gives one by one.

    Empty for other laws: a function is called when its step is due, and need not be defined beyond the last one. The same
    holds for an estimator that chooses its batches. An illegal value is left to `method.at`, if the step is made.
    """
    schedule = method.schedule
    laws: dict[str, Any] = {name: getattr(schedule, name) for name in LEGAL}
    laws = {name: law for name, law in laws.items() if law is not None}
    powers = all(isinstance(law, Power) for law in laws.values())
    if schedule.others or not method.estimator.scheduled or not powers:
        return []
    columns: dict[str, Any] = {}
    for name, law in laws.items():
        try:
            column = law.values(k, count)
        except OverflowError:
            return []
        # A legal range is an interval and powers are monotone, so the first and the last value decide.
        legal = LEGAL[name][1]
        if not (legal(column[0]) and legal(column[-1])):
            return []
        if name in WHOLE:
            column = list(map(math.floor, column))
            if min(column[0], column[-1]) < 1:
                column = [max(1, size) for size in column]
        columns[name] = column
    points = [method.estimator.evaluations] * count
    if k == 0:
        points[0] = method.estimator.first_points
    columns["k"] = range(k, k + count)
    columns["upper_points"] = columns["lower_points"] = points
    columns["others"] = repeat({})
    rows = zip(
        *(columns.get(name, repeat(None)) for name in Parameters._fields), strict=False
    )
    steps = [Parameters._make(row) for row in rows]
    return [(p, calls(method, p)) for p in steps]


def steps_within(
    method: Method | str, budget: int, horizon: int | None = None
) -> tuple[int, int, int]:
    """How many steps fit in the budget (at most `horizon`), and their calls at each level.

    The same number as :class:`Steps` gives, without a Python loop; and larger than any run could be charged.

    Examples
    --------
    >>> import tiebreak
    >>> steps_within(tiebreak.methods.sdbgd, 10**8)
    (275, 37950, 99164195)
    """
    method = get(method)
    cycle = _cycle(method)
    if cycle is not None:
        most = budget if horizon is None else horizon
        return _steps_of_cycles(method, budget, most, cycle)
    steps = upper = lower = 0
    size = 1024
    while horizon is None or steps < horizon:
        if horizon is not None:
            size = min(size, horizon - steps)
        if steps > _TOO_MANY:
            raise ValueError(
                f"a budget of {float(budget):.0e} holds more than {steps:.0e} steps, too many to count one by one; "
                "constant batches (for a plan: kind='horizon') need no counting"
            )
        costs = calls(method, Many(method.schedule, size, steps))
        charged = [np.asarray(level, dtype=np.float64) for level in costs]
        # Whole batches are counted exactly in whole numbers; beyond 2^62 a float must do.
        if all(level.max() < 2**62 / size for level in charged):
            charged = [level.astype(np.int64) for level in charged]
        budget_left = budget - upper - lower
        room = budget_left if budget_left <= _LARGEST else float(budget_left)
        fit = int(np.searchsorted(np.cumsum(sum(charged)), room, side="right"))
        steps += fit
        upper += int(charged[0][:fit].sum())
        lower += int(charged[1][:fit].sum())
        if fit < size:
            break
        size *= 2
    return steps, upper, lower


def _cycle(method: Method) -> int | None:
    """After how many steps the costs repeat; the first step may differ. None if unknown or too long."""
    batches = ("upper_batch", "lower_batch", *method.estimator.needs)
    if not method.schedule.constant(*batches):
        return None
    cycle = method.estimator.cycle(method.schedule.at(0))
    if cycle is not None and cycle <= _LONGEST_CYCLE:
        return cycle
    return None


def _steps_of_cycles(
    method: Method, budget: int, most: int, cycle: int
) -> tuple[int, int, int]:
    """As :func:`steps_within`, for costs that repeat after `cycle` steps: exact, in whole numbers of any size."""
    first = calls(method, method.at(0))
    if sum(first) > budget or most < 1:
        return 0, 0, 0
    sums = []
    for level in calls(method, Many(method.schedule, cycle, 1)):
        costs = map(int, np.broadcast_to(level, cycle).tolist())
        sums.append(list(accumulate(costs, initial=0)))
    total = [upper + lower for upper, lower in zip(*sums, strict=True)]
    budget_left = budget - sum(first)
    cycles = (most - 1) // cycle
    if total[-1]:
        cycles = min(budget_left // total[-1], cycles)
    remainder = (
        bisect_right(total, budget_left - cycles * total[-1]) - 1
    )  # steps of an incomplete cycle
    remainder = min(remainder, most - 1 - cycles * cycle, cycle)
    upper, lower = (
        cost + cycles * level[-1] + level[remainder]
        for cost, level in zip(first, sums, strict=True)
    )
    return 1 + cycles * cycle + remainder, upper, lower


class Many:
    """The schedule at the steps `start`, …, as arrays by the names of its parameters, each computed at its first use.

    Examples
    --------
    >>> import tiebreak
    >>> Many(tiebreak.methods.sdbgd.schedule, 3).lower_batch
    array([ 1.,  5., 15.])
    """

    upper_points = lower_points = None  # known to an estimator only

    def __init__(self, schedule: Schedule, steps: int, start: int = 0) -> None:
        self.k = np.arange(start, start + steps)
        self._schedule = schedule
        self._range = (steps, start)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        law: Any = getattr(self._schedule, name)
        values: Any = None
        if isinstance(law, Mapping):  # the others
            values = {
                key: law_values(other, *self._range) for key, other in law.items()
            }
        elif law is not None:
            values = law_values(law, *self._range)
            if name in WHOLE:
                values = np.maximum(1, np.floor(values))
            if name in ("period", "upper_hold", "lower_hold"):
                # Steps are divided by these parameters, in whole numbers.
                values = np.minimum(values, 2.0**62).astype(np.int64)
        setattr(self, name, values)
        return values


def law_values(law: Law, steps: int, start: int = 0) -> Values:
    """A law at the steps `start`, …, `start` + `steps` − 1; powers without a loop.

    Examples
    --------
    >>> law_values(Power(1, 2), 4)
    array([ 1.,  4.,  9., 16.])
    """
    if isinstance(law, Capped):
        return np.minimum(law_values(law.law, steps, start), float(law.largest))
    if not isinstance(law, Power):
        return np.array([float(law(k)) for k in range(start, start + steps)])
    if not law.exponent:
        return np.full(steps, float(law.constant))
    t = np.arange(start + 1, start + steps + 1, dtype=np.float64)
    if law.stop is not None:
        t = np.minimum(t, law.stop)
    if law.start != 1:
        t = np.maximum(1.0, t / law.start)
    values: Values = law.constant * t**law.exponent
    if law.exponent > 0:
        # Near a whole number the last bits decide how a batch is floored, so the law itself is called. In large batches
        # a single call does not matter.
        near = (np.abs(values - np.rint(values)) <= 2e-13 * values) & (values < _LARGE)
        for i in np.flatnonzero(near).tolist():
            values[i] = law(start + i)
    return values
