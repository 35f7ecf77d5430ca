"""Plans: the schedule with the smallest computed bound for a budget, or with the smallest budget for an accuracy.

``objective="bound"`` minimises what a theorem proves: the paper's for SDBGD, which at everyday budgets is honest and
nearly useless, and those of our own for penalties, which are nearly tight. ``objective="practice"`` minimises what a
model of where the iterates really are expects (:mod:`tiebreak.theory.practice`); for SDBGD it keeps the exponents and
caps that the corollary's rates need.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tiebreak import methods
from tiebreak.checks import nonnegative, one_of, whole
from tiebreak.estimators.contract import LEVELS, of_level
from tiebreak.methods import Method
from tiebreak.schedules import LEGAL, Schedule
from tiebreak.theory.bounds import Bounds
from tiebreak.theory.choices import PROVED, Choice, Goal, steps_of_plan
from tiebreak.theory.complexity import TABLE, Complexity, known_orders
from tiebreak.theory.constants import Constants, Pair
from tiebreak.theory.practice import EXPECTED, Prediction, practical_penalty, predicted
from tiebreak.theory.proved import proved, reduces, smoothness_needed

#: By (method, objective, kind), all for which a bound or a model is known.
CHOICES: Mapping[tuple[str, str, str], Callable[[Goal], Choice]] = MappingProxyType(
    {(method, "bound", kind): choose for (method, kind), choose in PROVED.items()}
    | {
        (method, "practice", kind): choose
        for (method, kind), choose in EXPECTED.items()
    }
)
#: Methods whose bound has constants; SPIDER's and STORM's ask for the smoothness of the noise.
COMPUTED = tuple(method for method, kind in PROVED if kind == "horizon")

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
        What the theorem proves after these steps. :func:`tiebreak.theory.proved` has it for a run that goes on.
    prediction : Prediction or None
        What the practice model expects; an estimate, not a bound.
    objective, constants :
        What was asked.
    noise_smoothness : pair or None
        (ℓ_f, ℓ_g), for variance reduction.
    edges : tuple of str
        The constants for which the search ended at the edge of its box: a better plan may lie beyond.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> found = tiebreak.theory.plan(problem.constants, budget=10**6)
    >>> found.budget, found.upper_calls + found.lower_calls <= 10**6
    (1000000, True)
    >>> result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, method=found, budget=found.budget, seed=0)
    >>> result.steps == found.steps
    True
    """

    method: Method
    budget: int
    steps: int
    upper_calls: int
    lower_calls: int
    bounds: Bounds
    prediction: Prediction | None
    objective: str
    constants: Constants
    noise_smoothness: Pair | None = None
    edges: tuple[str, ...] = ()

    @property
    def schedule(self) -> Schedule:
        """The planned schedule."""
        return self.method.schedule

    @property
    def vacuous(self) -> bool:
        """Whether the bounds say less than the constants alone: ‖∇g(x_0)‖² ≤ 2L_gΔ_g, and ‖d‖² ≤ G_f² without g."""
        c = self.constants
        lower = self.bounds.lower_gradient_squared > 2 * c.L_g * c.delta_g
        return bool(lower or self.bounds.direction_squared > c.G_f**2)

    @property
    def plain(self) -> str:
        """The method that this is without its variance reduction, where the plan makes none of it; else empty."""
        first = self.schedule.at(0)
        if not reduces(self.method):
            return ""
        alpha = [of_level(first, "momentum", level) for level in LEVELS]
        if first.period == 1 or alpha == [1.0, 1.0]:
            return self.method.name.partition("-")[2]
        return ""

    def rows(self) -> list[tuple[str, str]]:
        """The plan as a table of two columns."""
        first = self.schedule.at(0)
        last = self.schedule.at(self.steps - 1)
        rows = [
            ("method", self.method.name),
            ("objective", self.objective),
            ("budget", f"{self.budget:,}"),
            ("steps", f"{self.steps:,}"),
            ("upper calls", f"{self.upper_calls:,}"),
            ("lower calls", f"{self.lower_calls:,}"),
        ]
        for name in LEGAL:
            law = getattr(self.schedule, name)
            if law is None or name == "selection":
                continue
            start = getattr(first, name)
            end = getattr(last, name)
            text = f"{law}"
            if start != end:
                text = f"{law}   ({start:.4g} … {end:.4g})"
            elif name.endswith("_batch"):  # the drawn number: a law may be below 1
                text = f"{start:g}"
            rows.append((name, text))
        exact = type(self.constants) is Constants
        word = "proved" if exact else "proved, if the estimates hold"
        rows.append((f"{word}: E‖∇g‖² ≤", f"{self.bounds.lower_gradient_squared:.3g}"))
        rows.append((f"{word}: E‖d‖² ≤", f"{self.bounds.direction_squared:.3g}"))
        if self.vacuous:
            c = self.constants
            trivial = f"‖∇g‖² ≤ {2 * c.L_g * c.delta_g:.3g} at the start, ‖∇f‖² ≤ {c.G_f**2:.3g} anywhere"
            rows.append(("the bounds", f"mean nothing with this budget: {trivial}"))
        if self.noise_smoothness is not None:
            rows.append(
                (
                    "noise smoothness",
                    f"ℓ_f = {self.noise_smoothness[0]:g}, ℓ_g = {self.noise_smoothness[1]:g}",
                )
            )
        if self.prediction is not None:
            rows.append(
                (
                    "expected ‖∇g‖²",
                    f"{self.prediction.lower_gradient_squared:.2g} (a model, not a bound)",
                )
            )
            rows.append(
                (
                    "expected ‖d‖²",
                    f"{self.prediction.direction_squared:.2g} (a model, not a bound)",
                )
            )
            rows += [("but", note) for note in self.prediction.note.split("; ")]
            if not exact:  # measured: an L_f that the pilots saw a quarter of made the residual a thousand times larger
                words = "where L_f or L_g is larger than estimated, steps are too long and none of this holds"
                rows.append(("but", f"{words}: constants.with_margin(2) is safer"))
        if self.plain:
            twice = "" if first.period == 1 else ", at twice its calls"
            rows.append(
                (
                    "variance reduction",
                    f"does not pay with this budget: this is {self.plain} itself{twice}",
                )
            )
        if self.edges:
            rows.append(
                (
                    "search",
                    f"ended at the edge of its box in {', '.join(self.edges)}: better may lie beyond",
                )
            )
        return rows

    def __str__(self) -> str:
        return "\n".join(f"{name:<18} {value}" for name, value in self.rows())


def plan(
    constants: Constants,
    *,
    budget: int | None = None,
    epsilon: float | None = None,
    method: str | None = None,
    objective: str = "bound",
    kind: str | None = None,
    noise_smoothness: float | Pair | None = None,
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
    method : str, optional
        The methods with a computable bound: "sdbgd", "penalty", "lazy_penalty", "spider_penalty", "storm_penalty",
        "spider_sdbgd", "storm_sdbgd". Without one, "sdbgd" for "bound" and "penalty" for "practice".
    objective : {"bound", "practice"}
        Minimise the larger of the proved bounds, or what a model of practice expects: of the penalty the larger
        residual, of SDBGD a product, ‖∇g‖³ · ‖d‖², that does not depend on the units of f and g and puts g first.
    kind : {"horizon", "anytime"}, optional
        Parameters for a known number of steps, or the anytime laws. Not all methods have both; without one, "horizon",
        and "anytime" for SDBGD in practice.
    noise_smoothness : float or pair, optional
        ℓ, or (ℓ_f, ℓ_g), which the bounds of variance reduction need: how fast a sample's error changes with x. Never
        assumed; estimates of constants bring their own.
    progress : callable, optional
        Told every plan that is looked at: one for a budget, ten to twenty for an accuracy.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> chosen = plan(problem.constants, budget=10**8, objective="practice")
    >>> upper, lower = problem.upper, problem.lower
    >>> result = tiebreak.minimize(upper, lower, problem.x0, method=chosen, budget=chosen.budget, seed=0)
    >>> larger = max(result.last.lower_gradient_squared, result.last.direction_squared)
    >>> bool(result.steps == chosen.steps and larger < 6e-4)
    True
    >>> spider = plan(problem.constants, budget=10**8, method="spider_penalty", noise_smoothness=1.0)
    >>> bool(max(spider.bounds.lower_gradient_squared, spider.bounds.direction_squared) < 7e-3)  # proved
    True
    """
    problem: Any = constants
    if isinstance(getattr(problem, "constants", None), Constants):
        raise TypeError(
            f"constants is a {type(problem).__name__}; it must be Constants: give problem.constants"
        )
    if not isinstance(problem, Constants):
        raise TypeError(
            f"constants={problem!r} must be Constants, or estimates of them (theory.estimate_constants)"
        )
    if (budget is None) == (epsilon is None):
        raise ValueError(f"budget={budget!r}, epsilon={epsilon!r}: give one of them")
    one_of("objective", objective, ("bound", "practice"))
    chosen = methods.get(method or ("penalty" if objective == "practice" else "sdbgd"))
    choose = _choice(chosen, objective, kind)
    ell = smoothness_needed(chosen, constants, noise_smoothness)

    def solve(calls: int) -> Plan:
        try:
            planned, edges = choose(Goal(constants, float(calls), ell, epsilon))
            steps, upper, lower = steps_of_plan(planned, calls)
            bounds = proved(planned, constants, steps, ell)
        except (OverflowError, ZeroDivisionError):
            raise ValueError(
                f"no plan for {calls:.3g} calls with {constants}: its numbers are beyond floats"
            ) from None
        prediction = None
        if objective == "practice":
            prediction = predicted(planned.schedule, constants, steps)
        result = Plan(
            planned,
            calls,
            steps,
            upper,
            lower,
            bounds,
            prediction,
            objective,
            constants,
            ell,
            edges,
        )
        if progress is not None:
            progress(result)
        return result

    if epsilon is not None:
        nonnegative("epsilon", epsilon, positive=True)
        return _cheapest(solve, epsilon, patient=choose is practical_penalty)
    calls = whole("budget", budget)
    if calls < 2:
        raise ValueError(
            f"budget={budget!r} must be at least 2: one sample of each level"
        )
    if calls > _LARGEST:
        raise ValueError(
            f"budget={budget!r} must be at most 10^250: that is more than enough"
        )
    return solve(calls)


def _choice(
    method: Method, objective: str, kind: str | None
) -> Callable[[Goal], Choice]:
    """The search for a method's constants, by a bound or a model that is known."""
    name = next(
        (key for key, row in methods.METHODS.items() if row is method), method.name
    )
    kind = kind or (
        "anytime" if (name, objective) == ("sdbgd", "practice") else "horizon"
    )
    if (name, objective, kind) in CHOICES:
        return CHOICES[name, objective, kind]
    legal = ", ".join(f"({m}, {o}, {k})" for m, o, k in CHOICES)
    message = f"(method, objective, kind)=({name}, {objective}, {kind}) must be one of those with a known bound or model"
    orders = "" if any(m == name for m, _, _ in CHOICES) else known_orders(name)
    if orders:
        legal += f". Of {method.name} only orders are known, {orders}: no constants that a plan could choose by"
    raise ValueError(f"{message}: {legal}")


def _cheapest(solve: Callable[[int], Plan], epsilon: float, patient: bool) -> Plan:
    """The plan of the smallest budget 2·100^(i/512) that reaches ε, which is the smallest to one percent.

    A model is not that precise: there it is the smallest to 15 percent. If the choice is `patient`, ε is reached also
    for a slow f. Residuals fall as budgets grow, so the budget is found by halving.
    """
    plans: dict[int, Plan] = {}

    def reached(i: int) -> bool:
        """Whether the plan is good enough, with its transient over."""
        budget = math.floor(math.exp(math.log(2) + i * _STEP)) if i else 3
        plan = plans[i] = solve(budget)
        expected = plan.prediction
        if expected is None:
            return bool(plan.bounds.larger <= epsilon)
        larger = expected.larger
        if patient:
            larger = max(larger, expected.at_worst)
        return bool(max(expected.shortfall, larger / epsilon) <= 1)

    low = 0
    high = _TYPICAL
    most = math.floor(math.log(_LARGEST) / _STEP)
    while not reached(high):
        if high == most:
            raise ValueError(f"epsilon={epsilon!r} needs more than 10^250 calls")
        low = high
        high = min(2 * high, most)
    if low == 0 and reached(low):
        return plans[low]
    precision = 1 if plans[high].prediction is None else 16
    while high - low > precision:
        middle = (low + high) // 2
        if reached(middle):
            high = middle
        else:
            low = middle
    return plans[high]


def oracle_complexity(
    epsilon: float,
    method: str = "sdbgd",
    constants: Constants | None = None,
    noise_smoothness: float | Pair | None = None,
) -> Complexity:
    """Steps and calls that a theorem says are enough for E‖d‖² ≤ ε and E‖∇g‖² ≤ ε.

    With the problem's constants, for the methods that have a computable bound (:data:`COMPUTED`): the smallest
    budget of any constant schedule whose bound is ε; variance reduction asks for `noise_smoothness` besides. Without
    them, for any method: the table's power of 1/ε, an order and no more.

    Examples
    --------
    >>> import tiebreak
    >>> constants = tiebreak.problems.paper().constants
    >>> enough = oracle_complexity(0.1, "penalty", constants)
    >>> enough.exact, 10**5 < enough.lower_calls < 10**7
    (True, True)
    >>> oracle_complexity(0.1, "sdbgd")
    Complexity(iterations=100.0, upper_calls=10000.0, lower_calls=10000000.0, exact=False)
    """
    nonnegative("epsilon", epsilon, positive=True)
    chosen = methods.get(method)
    row = next(
        (row for row in TABLE if row.key and methods.METHODS[row.key] is chosen), None
    )
    if row is None:
        raise ValueError(
            f"method={method!r} has no known complexity; known are {[r.key for r in TABLE if r.key]}"
        )
    if constants is None:
        try:
            iterations, upper, lower = (
                (1 / epsilon) ** power
                for power in (row.iterations, row.upper, row.lower)
            )
        except OverflowError:
            raise ValueError(
                f"epsilon={epsilon!r} is so small that no float holds the calls it takes"
            ) from None
        return Complexity(iterations, upper, lower, exact=False)
    if row.key not in COMPUTED:
        raise ValueError(
            f"method={method!r} has no computable bound; with constants, give one of {list(COMPUTED)}"
        )
    cheapest = plan(
        constants, epsilon=epsilon, method=row.key, noise_smoothness=noise_smoothness
    )
    return Complexity(
        cheapest.steps, cheapest.upper_calls, cheapest.lower_calls, exact=True
    )
