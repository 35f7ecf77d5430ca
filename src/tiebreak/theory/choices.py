"""The constants that a plan leaves free, chosen for a budget: one search for each kind of plan."""

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tiebreak import methods
from tiebreak.budget import calls
from tiebreak.methods import Method
from tiebreak.penalties import schedule as penalty_schedule
from tiebreak.schedules import Schedule, anytime, corollary_powers
from tiebreak.theory.bounds import Adding, Laws, theorem_1, ways_to_add
from tiebreak.theory.constants import Constants
from tiebreak.theory.penalties import penalty_residuals, penalty_smoothness
from tiebreak.theory.practice import model, travel_time
from tiebreak.theory.search import Found, search

Values = NDArray[np.float64]
Pair: TypeAlias = tuple[float, float]
#: (constants, budget, (ℓ_f, ℓ_g) or None) ↦ the method, and how the search for it ended.
Choice: TypeAlias = Callable[[Constants, float, Pair | None], tuple[Method, Found]]
BATCHES = ("upper_batch", "lower_batch")

__all__ = ["BATCHES", "SDBGD_CHOICES", "Choice", "Pair", "fixed_penalty", "integrated", "penalty_anytime"]


def _horizon(c: Constants, budget: float, ell: Pair | None) -> tuple[Method, Found]:
    """All five constants, by Theorem 1."""

    def worst(*logs: Values) -> Values:
        p = Laws(*(np.exp(log)[None] for log in logs))
        steps = (budget / sum(calls(methods.sdbgd, p)))[0]
        found = theorem_1(p, c, total=lambda values: values[0] * steps, last=lambda values: values[0])
        return np.where(steps >= 1, np.maximum(found.lower_gradient_squared, found.falling), np.inf)

    cap, size = math.log(c.largest_step_size), _largest_batch(budget)
    low = [cap - 18, -18.0, -60.0, 0.0, 0.0]
    names = ("step_size", "barrier", "regularizer", *BATCHES)
    found = search(worst, low, [cap, 0.0, 10.0, size, size], names, BATCHES)
    eta, beta, rho, upper, lower = map(math.exp, found.point)
    schedule = Schedule(min(eta, c.largest_step_size), min(beta, 1.0), rho, _whole(upper), _whole(lower))
    return methods.sdbgd.replace(schedule=schedule), _inner(found, low)


def fixed_penalty(c: Constants, budget: float, ell: Pair | None) -> tuple[Method, Found]:
    """β and both batches, by the bound of plain penalty descent; η as large as it may be."""

    def worst(*logs: Values) -> Values:
        beta, upper, lower = (np.exp(log)[None] for log in logs)
        p = Laws(1 / penalty_smoothness(beta, c), beta, 0 * beta, upper, lower)
        steps = (budget / sum(calls(methods.penalty, p)))[0]
        found = penalty_residuals(p, c, ways_to_add(steps, fixed=True))
        return np.where(steps >= 1, np.maximum(*found), np.inf)

    size = _largest_batch(budget)
    found = search(worst, [-25.0, 0.0, 0.0], [60.0, size, size], ("barrier", *BATCHES), BATCHES)
    beta, upper, lower = map(math.exp, found.point)
    schedule = Schedule(1 / penalty_smoothness(beta, c), beta, None, _whole(upper), _whole(lower), selection=1)
    return methods.penalty.replace(schedule=schedule), found


def penalty_anytime(c: Constants, budget: float, ell: Pair | None) -> tuple[Method, Found]:
    """β_0 and both batches' factors of the anytime penalty, β ~ t^1/4, B_f ~ t^1/2, B_g ~ t."""

    def worst(*logs: Values) -> Values:
        beta, upper, lower = (np.exp(log) for log in logs)
        steps = steps_of(budget, ((upper, np.full_like(upper, 0.5)), (lower, np.ones_like(lower))))
        t = np.exp(NODES * np.log(steps))
        eta, rising = t**-0.25 / penalty_smoothness(beta, c), beta * t**0.25
        sizes = np.maximum(1, upper * np.sqrt(t)), np.maximum(1, lower * t)
        p = Laws(eta, rising, 0 * t, *sizes, selection=t**-0.5)
        return np.asarray(np.maximum(*penalty_residuals(p, c, integrated(steps))))

    size = _largest_batch(budget)
    found = search(worst, [-15.0, -25.0, -25.0], [40.0, size, size], ("barrier", *BATCHES), BATCHES)
    beta, upper, lower = map(math.exp, found.point)
    # η_k ≤ 1/L_k at every step: t^−1/4 (L_f + β_0 t^1/4 L_g) is largest at t = 1.
    eta = (1 - 1e-12) / penalty_smoothness(beta, c)
    own = penalty_schedule("penalty", step_size=eta, barrier=beta, upper_batch=upper, lower_batch=lower)
    return methods.penalty.replace(schedule=own), found


def _anytime(c: Constants, budget: float, ell: Pair | None) -> tuple[Method, Found]:
    """a and the constants of the anytime laws, by Theorem 1."""

    def worst(a: Values, *logs: Values) -> Values:
        constants, powers = [np.exp(log) for log in logs], corollary_powers(a)
        steps = steps_of(budget, zip(constants[-2:], (powers[name] for name in BATCHES), strict=True))
        p = _corollary_at(NODES * np.log(steps), constants, powers)
        add = integrated(steps)
        found = theorem_1(p, c, add.total, add.last)
        direction = np.where(powers["barrier"] <= powers["step_size"], found.falling, found.rising)
        return np.asarray(np.maximum(found.lower_gradient_squared, direction))

    cap, size = math.log(c.largest_step_size), _largest_batch(budget)
    low = [0.01, cap - 12, -12.0, -40.0, -25.0, -40.0]
    names = ("a", "step_size", "barrier", "regularizer", *BATCHES)
    found = search(worst, low, [0.33, cap, 0.0, 20.0, size, size], names, BATCHES)
    a, *logs = found.point
    eta, beta, *rest = map(math.exp, logs)
    return _corollary_method(a, min(eta, c.largest_step_size), min(beta, 1.0), *rest), _inner(found, low)


def _practice(c: Constants, budget: float, ell: Pair | None) -> tuple[Method, Found]:
    """a, ρ₀ and the batches by the model; η₀ and β₀ at their caps, because they set the pace."""
    eta0 = c.largest_step_size

    def product(a: Values, *logs: Values) -> Values:
        constants, powers = [eta0, 1.0, *(np.exp(log) for log in logs)], corollary_powers(a)
        steps = steps_of(budget, zip(constants[-2:], (powers[name] for name in BATCHES), strict=True))
        found = model(
            _corollary_at(np.log(steps), constants, powers),
            c,
            steps,
            (powers["barrier"] - powers["regularizer"]) / 3,
        )
        # The model speaks of the time after the transient, so time is needed: some e-foldings at rate βL_g to settle on
        # g, which is a must, and `travel_time` to travel with f, which g may make unnecessary.
        settling, travelling = 1 + powers["step_size"] + powers["barrier"], 1 + powers["step_size"]
        settled = np.minimum(1, eta0 * steps**settling / settling * c.L_g / 5)
        travelled = np.minimum(1, eta0 * steps**travelling / travelling / (travel_time(c) + 1e-300))
        noisy = np.maximum(1, 4 * found.noise_share)  # the model needs ‖∇g‖² to stand out of the noise
        value = found.lower_gradient_squared**1.5 * found.direction_squared * noisy**6 / (settled**6 * travelled)
        return np.where(found.stiffness < 1, value, np.inf)  # half of what is stable

    size = _largest_batch(budget)
    names = ("a", "regularizer", *BATCHES)
    found = search(product, [0.05, -20.0, -20.0, -35.0], [0.32, 20.0, size, size], names, BATCHES)
    a, *logs = found.point
    return _corollary_method(a, eta0, 1.0, *map(math.exp, logs)), found


def _inner(found: Found, low: list[float]) -> Found:
    """The same without step_size and barrier at their caps, which are the theorem's and not the search's."""
    names = ("step_size", "barrier", "regularizer")
    capped = [name for name, at, least in zip(names, found.point[-5:], low[-5:], strict=False) if at > least + 1]
    return found._replace(edges=tuple(e for e in found.edges if e not in capped or e == "regularizer"))


def _largest_batch(budget: float) -> float:
    """The logarithm of half the budget."""
    return math.log(budget / 2) + 1e-9


def _whole(batch: float) -> int:
    return max(1, math.floor(batch))


def _corollary_at(log_t: Values, constants: Any, powers: Mapping[str, Values]) -> Laws:
    """The laws of Corollary 1 at any t; batches are at least 1 but not floored, for smoothness."""
    names = ("step_size", "barrier", "regularizer", "upper_batch", "lower_batch")
    each = [c * np.exp(powers[name] * log_t) for name, c in zip(names, constants, strict=True)]
    return Laws(*each[:3], *(np.maximum(1, batch) for batch in each[3:]))


def _corollary_method(a: float, eta: float, beta: float, rho: float, upper: float, lower: float) -> Method:
    schedule = anytime(a, step_size=eta, barrier=beta, regularizer=rho, upper_batch=upper, lower_batch=lower)
    return methods.sdbgd.replace(schedule=schedule)


def steps_of(budget: float, laws: Iterable[tuple[Any, Any]]) -> Values:
    """K with Σ_{t≤K} max(1, c t^e), summed over both levels' (c, e), ≈ budget: by bisection on log K."""
    laws = list(laws)
    low, high = np.zeros_like(laws[0][0]), np.full_like(laws[0][0], math.log(budget / 2 + 1))
    for _ in range(40):
        middle = (low + high) / 2
        steps = np.exp(middle)
        cost = sum(np.maximum(steps, c * np.exp(e * middle) * (steps / (e + 1) + 0.5)) for c, e in laws)
        low, high = np.where(cost <= budget, middle, low), np.where(cost <= budget, high, middle)
    return np.asarray(np.exp(low))


NODES = np.linspace(0, 1, 60)[:, None]  # of log t / log K


def integrated(steps: Values) -> Adding:
    """How to add up over K steps from values at the nodes t = K^NODES: sums over steps become integrals over log t."""
    t = np.exp(NODES * np.log(steps))

    def total(values: Values) -> Values:
        areas = (values * t)[1:] + (values * t)[:-1]
        inner = areas.sum(axis=0) / 2 * np.log(steps) / (len(NODES) - 1)
        return np.asarray(inner + (values[0] + values[-1]) / 2)

    return Adding(total, lambda values: values[-1], lambda values: values.max(axis=0))


#: SDBGD's, by (method, objective, kind).
SDBGD_CHOICES: Mapping[tuple[str, str, str], Choice] = MappingProxyType(
    {
        ("sdbgd", "bound", "horizon"): _horizon,
        ("sdbgd", "bound", "anytime"): _anytime,
        ("sdbgd", "practice", "anytime"): _practice,
    }
)
