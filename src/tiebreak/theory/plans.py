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

import numpy as np
from numpy.typing import NDArray

from tiebreak import methods
from tiebreak.checks import whole
from tiebreak.methods import Method
from tiebreak.schedules import Schedule, anytime
from tiebreak.theory.bounds import Bounds, laws, penalty_bounds, residual_bounds, terms
from tiebreak.theory.constants import Constants
from tiebreak.theory.practice import model, predicted, travel_time
from tiebreak.theory.search import search

Values = NDArray[np.float64]

__all__ = ["Plan", "plan", "steps_within"]


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
    solve = {
        ("sdbgd", "bound", "horizon"): _horizon,
        ("sdbgd", "bound", "anytime"): _anytime,
        ("sdbgd", "practice", "anytime"): _practice,
        ("penalty", "bound", "horizon"): _penalty,
    }
    kind = kind or ("anytime" if objective == "practice" else "horizon")
    if (name, objective, kind) not in solve:
        legal = ", ".join(f"({m}, {o}, {k})" for m, o, k in solve)
        asked = f"(method, objective, kind)=({name}, {objective}, {kind})"
        raise ValueError(f"{asked} must be one of those with a known bound or model: {legal}")
    make = solve[name, objective, kind]
    if epsilon is None:
        calls = whole("budget", budget)
        if calls < 2:
            raise ValueError(f"budget={budget!r} must be at least 2: one sample of each level")
        return _finish(make(constants, float(calls)), constants, objective, calls)
    if isinstance(epsilon, (bool, str)) or not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon={epsilon!r} must be finite and > 0")
    return _cheapest(lambda calls: _finish(make(constants, calls), constants, objective, math.floor(calls)), epsilon)


def _cheapest(solve: Callable[[float], Plan], epsilon: float) -> Plan:
    """The smallest budget whose plan reaches ε, to one percent; residuals fall as budgets grow."""

    def reached(found: Plan) -> bool:
        target = found.bounds if found.prediction is None else found.prediction
        return bool(max(target.lower_gradient_squared, target.direction_squared) <= epsilon)

    low, high = math.log(2), math.log(2)
    best = solve(math.exp(high) + 1)
    while not reached(best):
        if high > 250 * math.log(10):
            raise ValueError(f"epsilon={epsilon!r} needs more than 10^250 calls")
        low, high = high, high + math.log(100)
        best = solve(math.exp(high))
    while high - low > 0.01:
        middle = (low + high) / 2
        found = solve(math.exp(middle))
        low, high, best = (low, middle, found) if reached(found) else (middle, high, best)
    return best


def _finish(planned: tuple[Method, int | None], constants: Constants, objective: str, budget: int) -> Plan:
    """Count what the plan really costs, floors and all, and evaluate its bounds anew."""
    method, horizon = planned
    steps, upper, lower = steps_within(method.schedule, budget, horizon)
    evaluate: Any = penalty_bounds if method.rule is methods.penalty.rule else residual_bounds
    bounds = evaluate(method.schedule, constants, steps)
    prediction = predicted(method.schedule, constants, steps) if objective == "practice" else None
    return Plan(method, budget, steps, upper, lower, bounds, prediction, objective, constants)


def steps_within(schedule: Schedule, budget: int, horizon: int | None = None) -> tuple[int, int, int]:
    """How many steps of one evaluation fit in the budget (at most `horizon`), and what they cost at each level.

    Examples
    --------
    >>> import tiebreak
    >>> steps_within(tiebreak.methods.sdbgd.schedule, 10**8)
    (275, 37950, 99164195)
    """
    if schedule.constant("upper_batch", "lower_batch"):
        first = schedule.at(0)
        fit = budget // (first.upper_batch + first.lower_batch)
        fit = fit if horizon is None else min(fit, horizon)
        return fit, fit * first.upper_batch, fit * first.lower_batch
    steps = upper = lower = 0
    size = 1024
    while horizon is None or steps < horizon:
        size = size if horizon is None else min(size, horizon - steps)
        if steps > 2 * 10**7:
            raise ValueError(f"more than {steps:.0e} steps would fit: too many to count one by one; use kind='horizon'")
        # Batches are whole, so counting them in whole numbers is exact; beyond 2^62 a float must do.
        batches = _batches(schedule, steps, size)
        small = all(b.max() < 2**62 / size for b in batches)
        uppers, lowers = (b.astype(np.int64) if small else b for b in batches)
        total = np.cumsum(uppers + lowers)
        fit = int(np.searchsorted(total, budget - upper - lower, side="right"))
        steps, upper, lower = steps + fit, upper + int(uppers[:fit].sum()), lower + int(lowers[:fit].sum())
        if fit < size:
            break
        size *= 2
    return steps, upper, lower


def _batches(schedule: Schedule, start: int, size: int) -> tuple[Values, Values]:
    known = schedule.replace(barrier=1, regularizer=1)  # the batches alone matter here
    p = laws(known, size, start)
    return p.upper_batch, p.lower_batch


@dataclass(frozen=True)
class _Candidates:
    """Parameters of many plans at once, named as the formulas in bounds expect."""

    step_size: Values
    barrier: Values
    regularizer: Values
    upper_batch: Values
    lower_batch: Values


def _horizon(constants: Constants, budget: float) -> tuple[Method, int | None]:
    c = constants

    def candidates(*logs: Values) -> tuple[_Candidates, Values]:
        eta, beta, rho, upper, lower = (np.exp(log) for log in logs)
        cost = upper + lower
        return _Candidates(eta, beta, rho, upper, lower), budget / cost

    def worst(*logs: Values) -> Values:
        p, steps = candidates(*logs)
        t = terms(p, c)
        weight = steps * p.step_size * p.barrier
        eta, beta, L_g = p.step_size, p.barrier, c.L_g
        lower = (8 * eta * L_g * c.delta_f + (16 * eta * beta * L_g + 4) * c.delta_g) / weight
        lower = lower + 2 * (eta * L_g * t.R + t.C_g) / beta
        direction = (4 * beta * c.delta_f + (8 * beta**2 + beta / (eta * L_g)) * c.delta_g) / weight + t.R
        return np.where(steps >= 1, np.maximum(lower, direction), np.inf)

    cap, size = math.log(c.largest_step_size), math.log(budget / 2) + 1e-9
    low = [cap - 18, -18.0, -60.0, 0.0, 0.0]
    best = search(worst, low, [cap, 0.0, 10.0, size, size])
    eta, beta, rho, upper, lower = (math.exp(value) for value in best)
    batches = max(1, math.floor(upper)), max(1, math.floor(lower))
    steps = max(1, int(budget // sum(batches)))
    schedule = Schedule(min(eta, c.largest_step_size), min(beta, 1.0), rho, *batches)
    return methods.sdbgd.replace(schedule=schedule), steps


def _penalty(constants: Constants, budget: float) -> tuple[Method, int | None]:
    c = constants

    def worst(*logs: Values) -> Values:
        beta, upper, lower = (np.exp(log) for log in logs)
        steps, smoothness = budget / (upper + lower), c.L_f + beta * c.L_g
        direction = 2 * smoothness * (c.delta_f + beta * c.delta_g) / steps
        direction = direction + c.sigma_f**2 / upper + beta**2 * c.sigma_g**2 / lower
        return np.where(steps >= 1, np.maximum(direction, 2 * (direction + c.G_f**2) / beta**2), np.inf)

    size = math.log(budget / 2) + 1e-9
    beta, upper, lower = (math.exp(v) for v in search(worst, [-5.0, 0.0, 0.0], [60.0, size, size]))
    batches = max(1, math.floor(upper)), max(1, math.floor(lower))
    schedule = Schedule(1 / (c.L_f + beta * c.L_g), beta, None, *batches)
    return methods.penalty.replace(schedule=schedule), max(1, int(budget // sum(batches)))


def _steps_of(budget: float, laws: list[tuple[Values, Values]]) -> Values:
    """K with Σ_{t≤K} max(1, c t^e) summed over the laws ≈ budget, by bisection on log K."""
    low, high = np.zeros_like(laws[0][0]), np.full_like(laws[0][0], math.log(budget / 2 + 1))
    for _ in range(40):
        middle = (low + high) / 2
        steps = np.exp(middle)
        cost = sum(np.maximum(steps, c * steps ** (e + 1) / (e + 1) + c * steps**e / 2) for c, e in laws)
        low, high = np.where(cost <= budget, middle, low), np.where(cost <= budget, high, middle)
    return np.exp(low)


def _anytime(constants: Constants, budget: float) -> tuple[Method, int | None]:
    c = constants
    nodes = np.linspace(0, 1, 60)[:, None]  # of log t / log K; sums over steps become integrals over them

    def worst(a: Values, *logs: Values) -> Values:
        eta0, beta0, rho0, upper0, lower0 = (np.exp(log) for log in logs)
        steps = _steps_of(budget, [(upper0, 2 - 4 * a), (lower0, 4 - 6 * a)])
        t = steps**nodes
        p = _Candidates(
            eta0 * t**-a,
            beta0 * t ** (3 * a - 1),
            rho0 * t ** (2 * a - 2),
            np.maximum(1, upper0 * t ** (2 - 4 * a)),
            np.maximum(1, lower0 * t ** (4 - 6 * a)),
        )
        found = terms(p, c)

        def total(values: Values) -> Values:
            areas = (values * t)[1:] + (values * t)[:-1]
            inner = areas.sum(axis=0) / 2 * np.log(steps) / (len(nodes) - 1)
            return np.asarray(inner + (values[0] + values[-1]) / 2)

        weight, L_g = total(p.step_size * p.barrier), c.L_g
        lower = 8 * eta0 * L_g * c.delta_f + (16 * eta0 * beta0 * L_g + 4) * c.delta_g
        lower = (lower + 2 * total(p.step_size**2 * L_g * found.R + p.step_size * found.C_g)) / weight
        falling = 4 * beta0 * c.delta_f + (8 * beta0**2 + beta0 / (eta0 * L_g)) * c.delta_g
        falling = (falling + total(p.step_size * p.barrier * found.R)) / weight
        rising = 4 * eta0 * c.delta_f + (8 * beta0 * eta0 + 1 / L_g) * c.delta_g + total(p.step_size**2 * found.R)
        rising = rising * (p.barrier[-1] / p.step_size[-1]) / weight
        return np.asarray(np.maximum(lower, np.where(a <= 0.25, falling, rising)))

    cap, size = math.log(c.largest_step_size), math.log(budget / 2) + 1e-9
    low = [0.01, cap - 12, -12.0, -40.0, -25.0, -40.0]
    best = search(worst, low, [0.33, cap, 0.0, 20.0, size, size])
    eta, beta, rho, upper, lower = (math.exp(v) for v in best[1:])
    return _corollary_method(best[0], min(eta, c.largest_step_size), min(beta, 1.0), rho, upper, lower), None


def _corollary_method(a: float, eta: float, beta: float, rho: float, upper: float, lower: float) -> Method:
    schedule = anytime(a, step_size=eta, barrier=beta, regularizer=rho, upper_batch=upper, lower_batch=lower)
    return methods.sdbgd.replace(schedule=schedule)


def _practice(constants: Constants, budget: float) -> tuple[Method, int | None]:
    """a, ρ₀ and the batches by the model; η₀ and β₀ at their caps, because they set the pace."""
    c, eta0 = constants, constants.largest_step_size

    def product(a: Values, *logs: Values) -> Values:
        rho0, upper0, lower0 = (np.exp(log) for log in logs)
        steps = _steps_of(budget, [(upper0, 2 - 4 * a), (lower0, 4 - 6 * a)])
        p = _Candidates(
            eta0 * steps**-a,
            steps ** (3 * a - 1),
            rho0 * steps ** (2 * a - 2),
            np.maximum(1, upper0 * steps ** (2 - 4 * a)),
            np.maximum(1, lower0 * steps ** (4 - 6 * a)),
        )
        found = model(p, c, steps, (1 + a) / 3)
        # The model speaks of the time after the transient, so time is needed: some e-foldings at rate βL_g to settle on
        # g, which is a must, and `travel_time` to travel with f, which g may make unnecessary.
        settled = np.minimum(1, eta0 * steps ** (2 * a) / (2 * a) * c.L_g / 5)
        travelled = np.minimum(1, eta0 * steps ** (1 - a) / (1 - a) / (travel_time(c) + 1e-300))
        noisy = np.maximum(1, 4 * found.noise_share)  # the model needs ‖∇g‖² to stand out of the noise
        value = found.lower_gradient_squared**1.5 * found.direction_squared * noisy**6 / (settled**6 * travelled)
        return np.where(found.stiffness < 1, value, np.inf)  # half of what is stable

    size = math.log(budget / 2) + 1e-9
    best = search(product, [0.05, -20.0, -20.0, -35.0], [0.32, 20.0, size, size])
    rho, upper, lower = (math.exp(v) for v in best[1:])
    return _corollary_method(best[0], eta0, 1.0, rho, upper, lower), None
