"""What a step costs, and which steps fit in a budget: the one place that charges calls.

Calls are charged before they are made, and a step is made only if all of it fits. :class:`Steps` gives the steps one by
one, as a solver makes them; :func:`steps_within` counts millions of them at once, as plans need it. Both charge what
:func:`calls` says.
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

#: A step's parameters, and what it is charged at the upper and at the lower level.
Charged: TypeAlias = tuple[Parameters, tuple[int, int]]

_LARGEST = 2**63 - 1  # calls are counted in 64 bits
_LARGE = 1e12  # a batch in which single calls do not matter
_AHEAD = 256  # steps whose parameters are made at once
_TOO_MANY = 2 * 10**7  # steps, to be counted one after another
_LONGEST_CYCLE = 2**20  # steps whose costs are kept


def calls(method: Method, parameters: Any) -> tuple[Any, Any]:
    """Calls that a step is charged at the upper and at the lower level: every sample, as often as it is evaluated.

    `parameters` are those of one step, or of :class:`Many`.

    Examples
    --------
    >>> import tiebreak
    >>> storm = tiebreak.methods.vr_pr_sdbpg
    >>> calls(storm, storm.at(99))  # 10 and 100 samples, each at two points
    (20, 200)
    """
    if getattr(parameters, "upper_points", None) is not None:
        return (
            parameters.upper_batch * parameters.upper_points,
            parameters.lower_batch * parameters.lower_points,
        )
    upper, lower = (method.estimator.asks(level, parameters) for level in LEVELS)
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
        self._method = method
        self._steps = steps
        self._budget = budget
        self._coming = self._from(k)

    def __next__(self) -> Parameters:
        for parameters, _ in self.block(1):
            return parameters
        raise StopIteration

    def block(
        self, count: int, upper: float = math.inf, lower: float = math.inf
    ) -> list[Charged]:
        """The next steps, `count` at most, and none after the one with which a level has had so many samples."""
        if self._steps is not None and self.ended is Status.RUNNING:
            count = min(count, self._steps - self.k)
            self.ended = Status.STEPS if count <= 0 else self.ended
        if self.ended is not Status.RUNNING:
            return []
        found: list[Charged] = []
        most = _LARGEST if self._budget is None else self._budget
        spent = self.spent
        for step in islice(self._coming, count):
            parameters, (for_upper, for_lower) = step
            after = spent + for_upper + for_lower
            if after > most:
                if self._budget is None:
                    raise OverflowError(
                        f"step {parameters.k} would bring the calls to {after:.2e}, more than can be counted (2^63 − 1)"
                    )
                self.ended = Status.BUDGET
                break
            spent = after
            found.append(step)
            upper -= parameters.upper_batch
            lower -= parameters.lower_batch
            if upper <= 0 or lower <= 0:
                break
        self.k += len(found)
        self.spent = spent
        return found

    def _from(self, k: int) -> Iterator[Charged]:
        """Step k and all that follow, and their costs; many at once where they are known."""
        size = 1
        while True:
            size = min(2 * size, _AHEAD)
            some = _known(self._method, k, size)
            if not some:
                parameters = self._method.at(k)
                some = [(parameters, calls(self._method, parameters))]
            yield from some
            k += len(some)


def _known(method: Method, k: int, count: int) -> list[Charged]:
    """So many steps from k on, with the parameters that `method.at` gives one by one; none, if not all are known.

    Those of power laws are. A function is asked when its step has come, and need not be defined beyond the last one; an
    estimator that chooses its batches likewise; and an illegal value is for `at` to tell, if the step is made.
    """
    schedule = method.schedule
    laws: dict[str, Any] = {
        name: law for name in LEGAL if (law := getattr(schedule, name)) is not None
    }
    if (
        schedule.others
        or not method.estimator.scheduled
        or not all(isinstance(v, Power) for v in laws.values())
    ):
        return []
    try:
        columns: dict[str, Any] = {
            name: law.values(k, count) for name, law in laws.items()
        }
    except OverflowError:
        return []
    # What is legal is an interval for every parameter, and powers are monotone: the first and the last value tell.
    if not all(
        LEGAL[name][1](value)
        for name, values in columns.items()
        for value in (values[0], values[-1])
    ):
        return []
    for name in WHOLE.intersection(columns):
        values = columns[name]
        small = min(values[0], values[-1]) < 1
        columns[name] = (
            [max(1, math.floor(value)) for value in values]
            if small
            else list(map(math.floor, values))
        )
    points = [method.estimator.evaluations] * count
    if k == 0:
        points[0] = method.estimator.first_points
    columns |= {
        "k": range(k, k + count),
        "upper_points": points,
        "lower_points": points,
        "others": repeat({}),
    }
    # All of them at once, in whole numbers of any size.
    batched = ("upper_batch", "lower_batch", "upper_points", "lower_points")
    whole_numbers: dict[str, Any] = {
        name: np.array(columns[name], dtype=object) for name in batched
    }
    costs = zip(
        *(level.tolist() for level in calls(method, Parameters(k, **whole_numbers))),
        strict=True,
    )
    rows = zip(
        *(columns.get(name, repeat(None)) for name in Parameters._fields), strict=False
    )
    return list(zip(map(Parameters._make, rows), costs, strict=True))


def steps_within(
    method: Method | str, budget: int, horizon: int | None = None
) -> tuple[int, int, int]:
    """How many steps fit in the budget (at most `horizon`), and what they are charged at each level.

    As many as :class:`Steps` gives, without a Python loop; and numbers may be larger than any run could be charged.

    Examples
    --------
    >>> import tiebreak
    >>> steps_within(tiebreak.methods.sdbgd, 10**8)
    (275, 37950, 99164195)
    """
    method = get(method)  # by its name, as everywhere
    schedule = method.schedule
    cycle = _cycle(method)
    if cycle is not None:
        return _repeated(method, budget, horizon, cycle)
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
        charged = [
            np.asarray(level, dtype=np.float64)
            for level in calls(method, Many(schedule, size, steps))
        ]
        small = all(level.max() < 2**62 / size for level in charged)
        uppers, lowers = (
            level.astype(np.int64) if small else level for level in charged
        )
        left = budget - upper - lower
        fit = int(
            np.searchsorted(
                np.cumsum(uppers + lowers),
                left if left <= _LARGEST else float(left),
                side="right",
            )
        )
        steps = steps + fit
        upper = upper + int(uppers[:fit].sum())
        lower = lower + int(lowers[:fit].sum())
        if fit < size:
            break
        size *= 2
    return steps, upper, lower


def _cycle(method: Method) -> int | None:
    """After how many steps the costs repeat; the first step may differ. None where nobody knows, or it is too long."""
    estimator = method.estimator
    if not method.schedule.constant("upper_batch", "lower_batch", *estimator.needs):
        return None
    cycle = estimator.cycle(method.schedule.at(0))
    return cycle if cycle is not None and cycle <= _LONGEST_CYCLE else None


def _repeated(
    method: Method, budget: int, horizon: int | None, cycle: int
) -> tuple[int, int, int]:
    """As :func:`steps_within`, of costs that repeat after `cycle` steps: exact, in whole numbers of any size."""
    first = calls(method, method.at(0))
    most = budget if horizon is None else horizon
    if sum(first) > budget or most < 1:
        return 0, 0, 0
    each = calls(method, Many(method.schedule, cycle, 1))
    sums = [
        [0, *accumulate(map(int, np.broadcast_to(level, cycle).tolist()))]
        for level in each
    ]
    total = [upper + lower for upper, lower in zip(*sums, strict=True)]
    left = budget - sum(first)
    times = (
        min(left // total[-1], (most - 1) // cycle)
        if total[-1]
        else (most - 1) // cycle
    )
    rest = (
        bisect_right(total, left - times * total[-1]) - 1
    )  # of the next, not whole, cycle
    rest = min(rest, most - 1 - times * cycle, cycle)
    upper, lower = (
        cost + times * level[-1] + level[rest]
        for cost, level in zip(first, sums, strict=True)
    )
    return 1 + times * cycle + rest, upper, lower


class Many:
    """The schedule at the steps `start`, …, as arrays by the names of its parameters, each made when it is asked for.

    Examples
    --------
    >>> import tiebreak
    >>> Many(tiebreak.methods.sdbgd.schedule, 3).lower_batch
    array([ 1.,  5., 15.])
    """

    upper_points = lower_points = None  # an estimator's matter

    def __init__(self, schedule: Schedule, steps: int, start: int = 0) -> None:
        self.k = np.arange(start, start + steps)
        self._schedule = schedule

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        law: Any = getattr(self._schedule, name)
        if isinstance(law, Mapping):  # the others
            found: Any = {own: self._values(other) for own, other in law.items()}
        else:
            found = None if law is None else self._values(law)
            found = (
                np.maximum(1, np.floor(found))
                if name in WHOLE and found is not None
                else found
            )
            if name in ("period", "upper_hold", "lower_hold") and found is not None:
                found = np.minimum(found, 2.0**62).astype(
                    np.int64
                )  # steps are divided by them, in whole numbers
        setattr(self, name, found)
        return found

    def _values(self, law: Law) -> Values:
        return law_values(law, len(self.k), int(self.k[0]) if len(self.k) else 0)


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
    t = np.arange(start + 1, start + steps + 1, dtype=np.float64)
    t = t if law.stop is None else np.minimum(t, law.stop)
    t = t if law.start == 1 else np.maximum(1.0, t / law.start)
    found: Values = (
        law.constant * t**law.exponent
        if law.exponent
        else np.full(steps, float(law.constant))
    )
    # Near a whole number the last bits decide how a batch is floored, and they are to be the law's own. Large numbers
    # are all near one, and there a call more or less is nothing.
    near = (np.abs(found - np.rint(found)) <= 2e-13 * found) & (found < _LARGE)
    for i in np.flatnonzero(near) if law.exponent > 0 else ():
        found[i] = law(start + int(i))
    return found
