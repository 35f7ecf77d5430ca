"""Plans of penalty methods with upper batches that are held, SPIDER and STORM: by their bounds, integers to the end.

A smooth search comes first, over logarithms. It leaves a method whose bound is then improved step by step: with whole
batches and periods, the steps that the exact charge leaves, and the bound of just that schedule.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebreak import methods
from tiebreak.budget import steps_within
from tiebreak.estimators import Spider
from tiebreak.methods import Method
from tiebreak.penalties import schedule as penalty_schedule
from tiebreak.schedules import Schedule
from tiebreak.theory.bounds import Laws
from tiebreak.theory.choices import BATCHES, Choice, Pair, fixed_penalty
from tiebreak.theory.constants import Constants
from tiebreak.theory.penalties import lazy_residuals, penalty_smoothness
from tiebreak.theory.proved import proved
from tiebreak.theory.reduction import largest_spider_step, spider_residuals, storm_residuals
from tiebreak.theory.search import Found, improved, search

Values = NDArray[np.float64]

__all__ = [
    "finished",
    "fixed_lazy",
    "fixed_spider",
    "fixed_storm",
    "or_with_more_noise",
    "steps_of_plan",
    "storm_anytime",
    "worst",
]

_LONGEST_HOLD = 2**20  # steps; whose costs are counted cycle by cycle
_EDGE = 1 - 1e-9  # of the largest legal step: rounding must not take it over the edge


def fixed_lazy(c: Constants, budget: float, ell: Pair | None) -> tuple[Method, Found]:
    """β and the batches, for few upper calls: η = 1/(2L), and a batch is held for √2 L/L_f steps, which is allowed.

    For the least total nothing would be held: upper calls are few anyway, and a held batch is an older one. So what
    makes upper calls few is not searched for: both levels have half of the variance, 2σ_f²/B_f = β²σ_g²/B_g.
    """

    def held(beta: Any, noise: Any) -> tuple[Any, Any, Any]:
        """For how long, and both batches, for this variance."""
        hold = np.minimum(_LONGEST_HOLD, np.sqrt(2) * penalty_smoothness(beta, c) / c.L_f)
        return hold, 4 * c.sigma_f**2 / noise, 2 * (beta * c.sigma_g) ** 2 / noise

    def value(*logs: Values) -> Values:
        beta, noise = (np.exp(log) for log in logs)
        hold, *batches = held(beta, noise)
        upper, lower = (np.maximum(1, batch) for batch in batches)
        p = Laws(0.5 / penalty_smoothness(beta, c), beta, 0 * beta, upper, lower)
        steps = budget / (upper / hold + lower)
        larger = np.maximum(*lazy_residuals(p, c, steps, np.maximum(1, np.floor(hold))))
        return np.where((steps >= 1) & (upper + lower <= budget), larger, np.inf)

    def method(beta: float, noise: float) -> Method:
        hold, upper, lower = (max(1, math.floor(size)) for size in held(beta, noise))
        own = Schedule(0.5 / penalty_smoothness(beta, c), beta, None, upper, lower, upper_hold=hold, selection=1)
        return methods.lazy_penalty.replace(schedule=own)

    low, high = _barriers(c, budget)
    found = search(value, [low, -80.0], [high, 20.0], ("barrier", "batches"), ("batches",))
    return finished(method, found, c, budget, ell)


def fixed_spider(c: Constants, budget: float, ell: Pair | None) -> tuple[Method, Found]:
    """β, the period and all four batches of SPIDER; η as large as they allow."""
    assert ell is not None

    def value(*logs: Values) -> Values:
        beta, q, b_f, b_g, B_f, B_g = (np.exp(log) for log in logs)
        p = Laws(largest_spider_step(c, ell, Laws(beta, beta, 0 * beta, b_f, b_g), q), beta, 0 * beta, b_f, b_g)
        steps = budget / ((B_f + B_g) / q + 2 * (1 - 1 / q) * (b_f + b_g))
        larger = np.maximum(*spider_residuals(p, c, ell, steps, q, (B_f, B_g)))
        return np.where((steps >= 1) & (B_f + B_g <= budget), larger, np.inf)

    def method(beta: float, *sizes: float) -> Method:
        q, b_f, b_g, B_f, B_g = (max(1, round(size)) for size in sizes)
        one, weight, none, *sizes_ = (np.asarray(v, dtype=np.float64) for v in (1, beta, 0, b_f, b_g))
        p = Laws(one, weight, none, sizes_[0], sizes_[1])
        eta = _EDGE * float(largest_spider_step(c, ell, p, q))
        own = Schedule(eta, beta, None, b_f, b_g, period=q, upper_refresh=B_f, lower_refresh=B_g, selection=1)
        return methods.spider_penalty.replace(schedule=own)

    (low, high), size = _barriers(c, budget), math.log(budget / 2)
    names = ("barrier", "period", *BATCHES, *_REFRESHES)
    found = search(value, [low, *[0.0] * 5], [high, *[size] * 5], names, names[1:])
    return finished(method, found, c, budget, ell)


_REFRESHES = ("upper_refresh", "lower_refresh")


def fixed_storm(c: Constants, budget: float, ell: Pair | None) -> tuple[Method, Found]:
    """β, η, α and both batches of STORM, all of them constant."""
    assert ell is not None

    def value(*logs: Values) -> Values:
        beta, share, alpha, b_f, b_g = (np.exp(log) for log in logs)
        p = Laws(share / penalty_smoothness(beta, c), beta, 0 * beta, b_f, b_g)
        steps = budget / (2 * (b_f + b_g)) + 0.5
        larger = np.maximum(*storm_residuals(p, c, ell, steps, alpha, (b_f, b_g)))
        return np.where(steps >= 1, larger, np.inf)

    def method(beta: float, share: float, alpha: float, *sizes: float) -> Method:
        b_f, b_g = (max(1, round(size)) for size in sizes)
        eta = min(share, _EDGE) / penalty_smoothness(beta, c)
        return methods.storm_penalty.replace(
            schedule=Schedule(eta, beta, None, b_f, b_g, momentum=min(alpha, 1.0), selection=1)
        )

    (low, high), size = _barriers(c, budget), math.log(budget / 2)
    names = ("barrier", "step_size", "momentum", *BATCHES)
    found = search(value, [low, -14.0, -size, 0.0, 0.0], [high, 0.0, 0.0, size, size], names, BATCHES)
    return finished(method, found, c, budget, ell)


def _barriers(c: Constants, budget: float) -> Pair:
    """Where to look for log β: around that of plain descent, which variance reduction takes further."""
    plain = math.log(fixed_penalty(c, budget, None)[0].schedule.at(0).barrier)
    return plain - 4, plain + 10


def _storm_anytime(c: Constants, budget: float, ell: Pair | None) -> tuple[Method, Found]:
    """β_0 and the batches' factors of anytime STORM, by its closed form; then the bound of the recursion."""
    assert ell is not None

    def value(*logs: Values) -> Values:
        beta, over_f, over_g = (np.exp(log) for log in logs)
        bar, m_f, m_g = _factors(c, ell, beta, over_f, over_g)
        steps = (budget / (4 / 3 * m_g)) ** (2 / 3)
        steps = np.minimum(steps, budget / (2 * m_f))
        U = c.sigma_g**2 / m_g + c.sigma_f**2 / (beta**2 * m_f)
        gap = 4 * bar * (c.delta_g + c.delta_f / beta) + 2 * U + 4 * U * np.log(steps + 1)
        direction = beta**2 * gap / (2 * np.sqrt(steps))  # Σ β^−2 = β_0^−2 Σ t^−1/2
        rest = c.G_f * np.sqrt(np.log(steps + 1) / (2 * np.sqrt(steps))) / beta
        larger = np.maximum(direction, (rest + np.sqrt(direction) / beta) ** 2)
        return np.where(steps >= 2, larger, np.inf)

    def method(beta: float, over_f: float, over_g: float) -> Method:
        bar, m_f, m_g = _factors(c, ell, np.float64(beta), np.float64(over_f), np.float64(over_g))
        # A batch is floored: m_g + 1 has ⌊(m_g+1)√t⌋ ≥ m_g√t at every t.
        sizes = {"upper_batch": math.ceil(m_f), "lower_batch": float(m_g) + (ell[1] > 0)}
        return methods.storm_penalty.replace(
            schedule=penalty_schedule("storm_penalty", step_size=float(1 / (2 * bar * beta)), barrier=beta, **sizes)
        )

    found = search(value, [-5.0, 0.0, 0.0], [30.0, 25.0, 25.0], ("barrier", *BATCHES), BATCHES)
    return method(*map(math.exp, found.point)), found


def storm_anytime(c: Constants, budget: float, ell: Pair | None) -> tuple[Method, Found]:
    """The constants of anytime STORM."""
    return or_with_more_noise(_storm_anytime, c, budget, ell)


def _factors(c: Constants, ell: Pair, beta: Any, over_f: Any, over_g: Any) -> tuple[Any, Any, Any]:
    """ℓ̄, m_f and m_g: at least what the theorem asks for, and 1."""
    bar = c.L_g + c.L_f / beta
    least = np.maximum(1, 4 * ell[0] ** 2 / (beta * bar) ** 2), np.maximum(1, 4 * ell[1] ** 2 / bar**2)
    return bar, over_f * least[0], over_g * least[1]


def or_with_more_noise(choose: Choice, c: Constants, budget: float, ell: Pair | None) -> tuple[Method, Found]:
    """The better of two choices: for these constants, and as if ∇f had as much noise as ∇g.

    What is proved with more noise holds with less. Shapes of batches that follow σ_f, and closed forms, are not best
    where it is small: the plan would get worse as noise gets less.
    """
    choices = [choose(c, budget, ell)]
    if c.sigma_f < c.sigma_g:
        choices.append(choose(c.replace(sigma_f=c.sigma_g), budget, ell))
    return min(choices, key=lambda one: worst(one[0], c, budget, ell))


def finished(
    method: Callable[..., Method], found: Found, c: Constants, budget: float, ell: Pair | None
) -> tuple[Method, Found]:
    """The best method near the point that was found, with whole numbers and the exact charge."""

    def value(*point: float) -> float:
        return worst(method(*point), c, budget, ell)

    return method(*improved(value, [math.exp(x) for x in found.point])), found


def worst(method: Method, c: Constants, budget: float, ell: Pair | None) -> float:
    """The larger of the two residuals that are proved for a budget; infinite where nothing is."""
    steps = steps_of_plan(method, int(budget))[0]
    if steps < 1:
        return math.inf
    try:
        bounds = proved(method, c, steps, ell)
    except ValueError:
        return math.inf
    return float(max(bounds.lower_gradient_squared, bounds.direction_squared))


def steps_of_plan(method: Method, budget: int) -> tuple[int, int, int]:
    """As :func:`steps_within`; SPIDER's constant costs without going through a period that may be astronomical."""
    p = method.schedule.at(0)
    if not isinstance(method.estimator, Spider) or not method.schedule.constant():
        return steps_within(method, budget)
    q, refresh, small = p.period, (p.upper_refresh, p.lower_refresh), (2 * p.upper_batch, 2 * p.lower_batch)
    whole_periods, left = divmod(budget, sum(refresh) + (q - 1) * sum(small))
    further = left >= sum(refresh)
    rest = min(q - 1, (left - sum(refresh)) // sum(small)) if further else 0
    anew, between = whole_periods + further, whole_periods * (q - 1) + rest
    upper, lower = (anew * big + between * little for big, little in zip(refresh, small, strict=True))
    return anew + between, upper, lower
