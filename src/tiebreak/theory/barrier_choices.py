"""Plans of SDBGD on STORM's and SPIDER's estimates: constant parameters, by the bound of `reduced_barrier`.

η and β may not exceed what Theorem 1 allows. Batches of the two levels stand in the proportion in which they buy the
most: an error of ∇g counts M = 3β/2 + 2G_f/√ρ times, so of noise σ_f : Mσ_g, and of differences ℓ_f : Mℓ_g.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebreak import methods
from tiebreak.methods import Method
from tiebreak.rules import stability
from tiebreak.schedules import Schedule
from tiebreak.theory.bounds import Laws
from tiebreak.theory.choices import SDBGD_CHOICES, Pair
from tiebreak.theory.constants import Constants
from tiebreak.theory.reduced_barrier import reduced_residuals, spider_means, storm_means
from tiebreak.theory.reduced_choices import finished, or_with_more_noise, worst
from tiebreak.theory.search import Found, search

Values = NDArray[np.float64]

__all__ = ["fixed_spider_barrier", "fixed_storm_barrier"]

_NAMES = ("step_size", "barrier", "regularizer")


def _sizes(scale: Any, each: Pair, barrier: Any, regularizer: Any, c: Constants) -> tuple[Any, Any]:
    """Both levels' batches, scale · (each_f, M each_g), at least 1."""
    M = stability(barrier, regularizer, c.G_f)
    return np.maximum(1, scale * each[0]), np.maximum(1, scale * M * each[1])


def fixed_storm_barrier(c: Constants, budget: float, ell: Pair | None) -> tuple[Method, Found]:
    """The constants of STORM."""
    return or_with_more_noise(_fixed_storm_barrier, c, budget, ell)


def _fixed_storm_barrier(c: Constants, budget: float, ell: Pair | None) -> tuple[Method, Found]:
    """η, β, ρ, α and both batches."""
    assert ell is not None
    sigmas = (c.sigma_f, c.sigma_g)

    def value(*logs: Values) -> Values:
        eta, beta, rho, alpha, scale, young = (np.exp(log) for log in logs)
        b_f, b_g = _sizes(scale, sigmas, beta, rho, c)
        steps = budget / (2 * (b_f + b_g)) + 0.5
        means = [storm_means(s, own, alpha, b, steps, young) for s, own, b in zip(sigmas, ell, (b_f, b_g), strict=True)]
        p = Laws(eta[None], beta[None], rho[None], b_f[None], b_g[None])
        larger = np.maximum(*reduced_residuals(p, c, means[0], means[1], steps))
        return np.where(steps >= 1, larger, np.inf)

    def method(eta: float, beta: float, rho: float, alpha: float, scale: float, *_: float) -> Method:
        eta, beta = min(eta, c.largest_step_size), min(beta, 1.0)
        b_f, b_g = (round(float(size)) for size in _sizes(scale, sigmas, beta, rho, c))
        return methods.storm_sdbgd.replace(schedule=Schedule(eta, beta, rho, b_f, b_g, momentum=min(alpha, 1.0)))

    size = math.log(budget)
    low, high = _box(c, [-size, -80.0, -7.0], [0.0, size, 7.0])
    found = search(
        value, low, high, (*_NAMES, "momentum", "batches"), ("momentum", "batches"), rounds=120, restarts=2, spread=1.3
    )
    return finished(method, _capped(found), c, budget, ell)


def fixed_spider_barrier(c: Constants, budget: float, ell: Pair | None) -> tuple[Method, Found]:
    """η, β, ρ, the period, and the small and the large batches of SPIDER."""
    assert ell is not None
    sigmas = (c.sigma_f, c.sigma_g)

    def value(*logs: Values) -> Values:
        eta, beta, rho, q, little, large = (np.exp(log) for log in logs)
        small, refresh = _sizes(little, ell, beta, rho, c), _sizes(large, sigmas, beta, rho, c)
        steps = budget / (sum(refresh) / q + 2 * (1 - 1 / q) * sum(small))
        each = zip(sigmas, ell, small, refresh, strict=True)
        means = [spider_means(s, own, q, b, B, steps) for s, own, b, B in each]
        p = Laws(eta[None], beta[None], rho[None], small[0][None], small[1][None])
        larger = np.maximum(*reduced_residuals(p, c, means[0], means[1], steps))
        return np.where((steps >= 1) & (sum(refresh) <= budget), larger, np.inf)

    def method(eta: float, beta: float, rho: float, q: float, little: float, large: float) -> Method:
        eta, beta = min(eta, c.largest_step_size), min(beta, 1.0)
        b_f, b_g = (round(float(size)) for size in _sizes(little, ell, beta, rho, c))
        B_f, B_g = (round(float(size)) for size in _sizes(large, sigmas, beta, rho, c))
        period = max(1, round(q))
        own = Schedule(eta, beta, rho, b_f, b_g, period=period, upper_refresh=B_f, lower_refresh=B_g)
        return methods.spider_sdbgd.replace(schedule=own)

    size = math.log(budget)
    low, high = _box(c, [math.log(2), -80.0, -80.0], [max(1.0, size), size, size])
    natural = ("period", "batches", "refreshes")
    found = search(value, low, high, (*_NAMES, *natural), natural, rounds=120, restarts=4, spread=1.3)
    reduced = finished(method, _capped(found), c, budget, ell)
    # A period of 1 is SDBGD itself, in a valley of its own: at small budgets differences do not pay.
    own, ended = SDBGD_CHOICES["sdbgd", "bound", "horizon"](c, budget, None)
    p = own.schedule.at(0)
    refreshes = {"upper_refresh": p.upper_batch, "lower_refresh": p.lower_batch}
    plain = methods.spider_sdbgd.replace(schedule=own.schedule.replace(period=1, **refreshes))
    return min((reduced, (plain, ended)), key=lambda one: worst(one[0], c, budget, ell))


def _box(c: Constants, low: list[float], high: list[float]) -> tuple[list[float], list[float]]:
    """Where to look: below the caps of Theorem 1, and within these bounds of the rest."""
    cap = math.log(c.largest_step_size)
    return [cap - 18, -18.0, -60.0, *low], [cap, 0.0, 10.0, *high]


def _capped(found: Found) -> Found:
    """The caps of η and β are the theorem's and not the search's."""
    at_cap = [name for name, at in zip(_NAMES[:2], found.point, strict=False) if at > -15]
    return found._replace(edges=tuple(edge for edge in found.edges if edge not in at_cap))
