"""The constants that a plan leaves free, chosen for a budget: one search for each kind of plan."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tiebreak import methods
from tiebreak.budget import calls
from tiebreak.methods import Method
from tiebreak.schedules import Schedule, anytime, corollary_powers
from tiebreak.theory.bounds import Laws, penalty_residuals, theorem_1
from tiebreak.theory.constants import Constants
from tiebreak.theory.practice import model, travel_time
from tiebreak.theory.search import search

Values = NDArray[np.float64]
Choice: TypeAlias = Callable[[Constants, float], Method]

__all__ = ["CHOICES"]


def _horizon(c: Constants, budget: float) -> Method:
    """All five constants, by Theorem 1."""

    def worst(*logs: Values) -> Values:
        p = Laws(*(np.exp(log)[None] for log in logs))
        steps = (budget / sum(calls(methods.sdbgd, p)))[0]
        found = theorem_1(p, c, total=lambda values: values[0] * steps, last=lambda values: values[0])
        return np.where(steps >= 1, np.maximum(found.lower_gradient_squared, found.falling), np.inf)

    cap, size = math.log(c.largest_step_size), _largest_batch(budget)
    low = [cap - 18, -18.0, -60.0, 0.0, 0.0]
    eta, beta, rho, upper, lower = map(math.exp, search(worst, low, [cap, 0.0, 10.0, size, size]))
    schedule = Schedule(min(eta, c.largest_step_size), min(beta, 1.0), rho, _whole(upper), _whole(lower))
    return methods.sdbgd.replace(schedule=schedule)


def _penalty(c: Constants, budget: float) -> Method:
    """β and both batches, by the bound of plain penalty descent; η as large as it may be."""

    def worst(*logs: Values) -> Values:
        beta, upper, lower = (np.exp(log) for log in logs)
        p = Laws(1 / (c.L_f + beta * c.L_g), beta, np.zeros(1), upper, lower)
        steps = budget / sum(calls(methods.penalty, p))
        return np.where(steps >= 1, np.maximum(*penalty_residuals(p, c, steps)), np.inf)

    size = _largest_batch(budget)
    beta, upper, lower = map(math.exp, search(worst, [-5.0, 0.0, 0.0], [60.0, size, size]))
    schedule = Schedule(1 / (c.L_f + beta * c.L_g), beta, None, _whole(upper), _whole(lower))
    return methods.penalty.replace(schedule=schedule)


def _anytime(c: Constants, budget: float) -> Method:
    """a and the constants of the anytime laws, by Theorem 1."""
    nodes = np.linspace(0, 1, 60)[:, None]  # of log t / log K; sums over steps become integrals over them

    def worst(a: Values, *logs: Values) -> Values:
        constants, powers = [np.exp(log) for log in logs], corollary_powers(a)
        steps = _steps_of(budget, constants[-2:], powers)
        p = _corollary_at(nodes * np.log(steps), constants, powers)
        t = np.exp(nodes * np.log(steps))

        def total(values: Values) -> Values:
            areas = (values * t)[1:] + (values * t)[:-1]
            inner = areas.sum(axis=0) / 2 * np.log(steps) / (len(nodes) - 1)
            return np.asarray(inner + (values[0] + values[-1]) / 2)

        found = theorem_1(p, c, total, last=lambda values: values[-1])
        direction = np.where(powers["barrier"] <= powers["step_size"], found.falling, found.rising)
        return np.asarray(np.maximum(found.lower_gradient_squared, direction))

    cap, size = math.log(c.largest_step_size), _largest_batch(budget)
    low = [0.01, cap - 12, -12.0, -40.0, -25.0, -40.0]
    a, *logs = search(worst, low, [0.33, cap, 0.0, 20.0, size, size])
    eta, beta, *rest = map(math.exp, logs)
    return _corollary_method(a, min(eta, c.largest_step_size), min(beta, 1.0), *rest)


def _practice(c: Constants, budget: float) -> Method:
    """a, ρ₀ and the batches by the model; η₀ and β₀ at their caps, because they set the pace."""
    eta0 = c.largest_step_size

    def product(a: Values, *logs: Values) -> Values:
        constants, powers = [eta0, 1.0, *(np.exp(log) for log in logs)], corollary_powers(a)
        steps = _steps_of(budget, constants[-2:], powers)
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
    a, *logs = search(product, [0.05, -20.0, -20.0, -35.0], [0.32, 20.0, size, size])
    return _corollary_method(a, eta0, 1.0, *map(math.exp, logs))


#: By (method, objective, kind), all for which a bound or a model is known.
CHOICES: Mapping[tuple[str, str, str], Choice] = MappingProxyType(
    {
        ("sdbgd", "bound", "horizon"): _horizon,
        ("sdbgd", "bound", "anytime"): _anytime,
        ("sdbgd", "practice", "anytime"): _practice,
        ("penalty", "bound", "horizon"): _penalty,
    }
)


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


def _steps_of(budget: float, constants: Any, powers: Mapping[str, Values]) -> Values:
    """K with Σ_{t≤K} max(1, c t^e), summed over both levels, ≈ budget: by bisection on log K."""
    laws = list(zip(constants, (powers["upper_batch"], powers["lower_batch"]), strict=True))
    low, high = np.zeros_like(laws[0][0]), np.full_like(laws[0][0], math.log(budget / 2 + 1))
    for _ in range(40):
        middle = (low + high) / 2
        steps = np.exp(middle)
        cost = sum(np.maximum(steps, c * np.exp(e * middle) * (steps / (e + 1) + 0.5)) for c, e in laws)
        low, high = np.where(cost <= budget, middle, low), np.where(cost <= budget, high, middle)
    return np.asarray(np.exp(low))
