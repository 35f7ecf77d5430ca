"""Plans: the schedule with the smallest computed bound for a budget, or with the smallest budget for an accuracy.

``objective="bound"`` minimises what Theorem 1 proves. At everyday budgets that is honest and nearly useless: the bound
is loose, and pays for worst cases with batches. ``objective="practice"`` keeps what the corollary's rates need, its
exponents and its caps, and tunes the constants that the rates leave free by a model of where the iterates really are
(:mod:`tiebreak.theory.practice`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tiebreak import methods
from tiebreak.budget import steps_within
from tiebreak.checks import floating, whole
from tiebreak.methods import Method
from tiebreak.schedules import Schedule
from tiebreak.theory.bounds import Bounds, penalty_bounds, residual_bounds
from tiebreak.theory.choices import CHOICES
from tiebreak.theory.constants import Constants
from tiebreak.theory.practice import predicted

__all__ = ["Plan", "plan"]

_STEP = math.log(100) / 512  # of log budget: below one percent
_LARGEST = 10**250  # calls
_TYPICAL = 4 * 512  # where to look first: 2·10^8 calls


@dataclass(frozen=True)
class Plan:
    """A schedule, what it costs and what is known of its result.

    :func:`tiebreak.minimize` takes it as it is: ``minimize(upper, lower, x0, method=plan, budget=plan.budget)``.

    Attributes
    ----------
    method : Method
        The planned method.
    budget, steps, upper_calls, lower_calls : int
        What it spends.
    bounds : Bounds
        What the theorem proves after these steps.
    prediction : Bounds or None
        What the practice model expects; an estimate, not a bound.
    objective, constants :
        What was asked.
    """

    method: Method
    budget: int
    steps: int
    upper_calls: int
    lower_calls: int
    bounds: Bounds
    prediction: Bounds | None
    objective: str
    constants: Constants

    @property
    def schedule(self) -> Schedule:
        """The planned schedule."""
        return self.method.schedule

    def rows(self) -> list[tuple[str, str]]:
        """The plan as a table of two columns."""
        first, last = self.schedule.at(0), self.schedule.at(self.steps - 1)
        rows = [
            ("method", self.method.name),
            ("objective", self.objective),
            ("budget", f"{self.budget:,}"),
            ("steps", f"{self.steps:,}"),
            ("upper calls", f"{self.upper_calls:,}"),
            ("lower calls", f"{self.lower_calls:,}"),
        ]
        for name in ("step_size", "barrier", "regularizer", "upper_batch", "lower_batch"):
            law, ends = getattr(self.schedule, name), (getattr(first, name), getattr(last, name))
            if law is not None:
                rows.append((name, f"{law}" + (f"   ({ends[0]:.4g} … {ends[1]:.4g})" if ends[0] != ends[1] else "")))
        exact = type(self.constants) is Constants
        rows.append(
            ("proved: E‖∇g‖² ≤", f"{self.bounds.lower_gradient_squared:.3g}" + " if the estimates hold" * (not exact))
        )
        rows.append(
            ("proved: E‖d‖² ≤", f"{self.bounds.direction_squared:.3g}" + " if the estimates hold" * (not exact))
        )
        if self.prediction is not None:
            rows.append(("expected ‖∇g‖²", f"{self.prediction.lower_gradient_squared:.2g} (a model, not a bound)"))
            rows.append(("expected ‖d‖²", f"{self.prediction.direction_squared:.2g} (a model, not a bound)"))
            if self.prediction.note:
                rows.append(("but", self.prediction.note))
        return rows

    def __str__(self) -> str:
        return "\n".join(f"{name:<18} {value}" for name, value in self.rows())


def plan(
    constants: Constants,
    *,
    budget: int | None = None,
    epsilon: float | None = None,
    method: str = "sdbgd",
    objective: str = "bound",
    kind: str | None = None,
    progress: Callable[[Plan], Any] | None = None,
) -> Plan:
    """Choose all free constants of a schedule.

    Parameters
    ----------
    constants : Constants
        Of the problem: exact ones, or estimates.
    budget : int
        Calls of both levels that may be spent: the plan makes the larger of both residuals as small as it can.
    epsilon : float
        The accuracy wanted of both residuals, instead of a budget: the plan makes the budget as small as it can.
    method : {"sdbgd", "penalty"}
        The methods with a computable bound.
    objective : {"bound", "practice"}
        Minimise the larger of the proved bounds, or a product of the residuals that a model of practice expects,
        ‖∇g‖³ · ‖d‖²: a product does not depend on the units of f and g, and the powers put g first.
    kind : {"horizon", "anytime"}, optional
        Constant parameters for a known number of steps, the default for "bound", or the anytime laws, the default for
        "practice" (and its only kind). The penalty method's bound is for constant parameters.
    progress : callable, optional
        Told every plan that is looked at: one for a budget, about ten for an accuracy.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> chosen = plan(problem.constants, budget=10**8, objective="practice")
    >>> upper, lower = problem.upper, problem.lower
    >>> result = tiebreak.minimize(upper, lower, problem.x0, method=chosen, budget=chosen.budget, seed=0)
    >>> result.steps == chosen.steps and result.last.lower_gradient_squared < 0.0074
    True
    """
    if not isinstance(constants, Constants):
        raise TypeError(f"constants={constants!r} must be Constants")
    if (budget is None) == (epsilon is None):
        raise ValueError(f"budget={budget!r}, epsilon={epsilon!r}: give one of them")
    chosen = methods.get(method)
    name = next((key for key, row in methods.METHODS.items() if row is chosen), chosen.name)
    kind = kind or ("anytime" if objective == "practice" else "horizon")
    if (name, objective, kind) not in CHOICES:
        legal = ", ".join(f"({m}, {o}, {k})" for m, o, k in CHOICES)
        asked = f"(method, objective, kind)=({name}, {objective}, {kind})"
        raise ValueError(f"{asked} must be one of those with a known bound or model: {legal}")
    choose = CHOICES[name, objective, kind]

    def solve(calls: int) -> Plan:
        try:
            found = _finish(choose(constants, float(calls)), constants, objective, calls)
        except (OverflowError, ZeroDivisionError):
            raise ValueError(f"no plan for {calls:.3g} calls with {constants}: its numbers are beyond floats") from None
        if progress is not None:
            progress(found)
        return found

    if epsilon is None:
        calls = whole("budget", budget)
        if calls < 2:
            raise ValueError(f"budget={budget!r} must be at least 2: one sample of each level")
        if calls > _LARGEST:
            raise ValueError(f"budget={budget!r} must be at most 10^250: that is more than enough")
        return solve(calls)
    if isinstance(epsilon, (bool, str)) or not 0 < floating(epsilon) < math.inf:
        raise ValueError(f"epsilon={epsilon!r} must be finite and > 0")
    return _cheapest(solve, epsilon)


def _cheapest(solve: Callable[[int], Plan], epsilon: float) -> Plan:
    """The plan of the smallest budget 2·100^(i/512) that reaches ε, which is the smallest to one percent.

    Residuals fall as budgets grow, nearly along a line on logarithmic axes: the line through the two budgets nearest to
    the answer says where to look next, first beyond them, then between them.
    """

    def excess(i: int) -> float:
        """log(residual/ε): at most 0 where the plan is good enough."""
        tried[i] = solve(math.floor(math.exp(math.log(2) + i * _STEP)) if i else 3)
        target = tried[i].prediction or tried[i].bounds
        return math.log(max(target.lower_gradient_squared, target.direction_squared) / epsilon)

    tried: dict[int, Plan] = {}
    low, high = 0, _TYPICAL
    above, below = math.inf, excess(high)
    if below <= 0:
        above = excess(low)
        if above <= 0:
            return tried[low]
    way = 512
    while below > 0:  # to larger budgets; not quite as far as the line says, which then leads beyond by little
        low, high, above = high, high + way, below
        if high * _STEP > 250 * math.log(10):
            raise ValueError(f"epsilon={epsilon!r} needs more than 10^250 calls")
        below = excess(high)
        slope = (above - below) / way
        way = min(4096, max(32, math.ceil(0.95 * below / slope))) if 0 < slope < math.inf else 512
    looks = 0
    while high - low > 1:
        looks += 1
        line = looks % 4 > 0 and above < math.inf  # now and then the middle, to be safe
        share = above / (above - below) if line else 0.5
        middle = min(max(low + math.ceil(share * (high - low)), low + 1), high - 1)
        found = excess(middle)
        if found <= 0:
            high, below = middle, found
        else:
            low, above = middle, found
    return tried[high]


def _finish(method: Method, constants: Constants, objective: str, budget: int) -> Plan:
    """Count what the plan really costs, floors and all, and evaluate its bounds anew."""
    steps, upper, lower = steps_within(method, budget)
    evaluate: Any = penalty_bounds if method.rule is methods.penalty.rule else residual_bounds
    bounds = evaluate(method.schedule, constants, steps)
    prediction = predicted(method.schedule, constants, steps) if objective == "practice" else None
    return Plan(method, budget, steps, upper, lower, bounds, prediction, objective, constants)
