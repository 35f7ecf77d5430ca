"""Which theorem speaks of a method, and what it says: one place, for plans, verifications and users."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tiebreak import rules
from tiebreak.budget import Many
from tiebreak.checks import whole
from tiebreak.estimators import Held, Minibatch, Page, PerLevel, Spider, Storm
from tiebreak.estimators.contract import LEVELS, of_level
from tiebreak.methods import Method, get
from tiebreak.theory.bounds import Bounds, Laws, check_theorem_1, laws, residual_bounds, wanted_steps, ways_to_add
from tiebreak.theory.constants import Constants
from tiebreak.theory.penalties import bounds_of_pair, check_penalty, lazy_bounds, penalty_bounds, selected_residuals
from tiebreak.theory.reduced_barrier import YOUNG, means_of, reduced_residuals
from tiebreak.theory.reduction import (
    Errors,
    noise_smoothness_of,
    recursive_gap,
    refreshed_errors,
    spider_residuals,
    storm_errors,
    storm_residuals,
)

__all__ = ["barrier_bounds", "proved", "reduced_bounds", "reduces", "smoothness_needed"]

RESIDUALS = ("lower_gradient_squared", "direction_squared")
_LONGEST = 5 * 10**6  # steps that are gone over one by one
_TOO_LONG = (
    "{name} has no bound with this schedule: its steps are too long for the batches of its differences. Make step_size "
    "smaller, or upper_batch and lower_batch larger, or refresh more often"
)


def reduces(method: Method) -> bool:
    """Whether it is SDBGD or a penalty on variance-reduced estimates: then a bound asks how smooth the noise is."""
    known = method.rule in (rules.constant, rules.sdbgd)
    return known and any(isinstance(e, (Storm, Spider, Page)) for e in _per_level(method))


def smoothness_needed(method: Method, constants: Constants, given: Any) -> tuple[float, float] | None:
    """(ℓ_f, ℓ_g) where the method's bound needs it: as given, or as estimated with the constants; else None."""
    if reduces(method):
        return noise_smoothness_of(getattr(constants, "noise_smoothness", None) if given is None else given)
    if given is not None:
        raise ValueError(f"noise_smoothness={given!r} has no effect on {method.name}: leave it out")
    return None


def proved(method: Any, constants: Constants, steps: Any, noise_smoothness: Any = None) -> Bounds:
    """What is proved of x_N after K steps of a method, by whichever theorem speaks of it; for an array of K, arrays.

    Parameters
    ----------
    method : Method, Plan or str
        SDBGD (Theorem 1 of the paper), and with constant parameters on SPIDER's or STORM's estimates, too; descent on
        f + βg with mini-batches, with upper batches that are held, or on SPIDER's, PAGE's or STORM's estimates. All
        but the first are theorems of our own.
    constants : Constants
        They are taken at their word.
    steps : int or array of int
        K.
    noise_smoothness : float or pair, optional
        ℓ, or (ℓ_f, ℓ_g), for variance reduction, which has no bound without it, and for nothing else. A plan and
        estimates of constants bring their own.

    Examples
    --------
    >>> import tiebreak
    >>> constants = tiebreak.problems.paper().constants
    >>> print(f"{proved('sdbgd', constants, 275).lower_gradient_squared:.1f}")
    22.7
    >>> proved("storm_penalty", constants, 275)
    Traceback (most recent call last):
        ...
    ValueError: noise_smoothness=None must be ℓ ≥ 0 or a pair (ℓ_f, ℓ_g): how fast a sample's error changes with x. ...
    >>> proved("sdbpg", constants, 275)
    Traceback (most recent call last):
        ...
    ValueError: no bound is known for SDBPG: its rule and its estimator must be those of SDBGD or of a penalty
    """
    chosen = get(method)
    upper, lower = _per_level(chosen)
    given = getattr(method, "noise_smoothness", None) if noise_smoothness is None else noise_smoothness
    ell = smoothness_needed(chosen, constants, given)
    if ell is not None:
        of_rule = reduced_bounds if chosen.rule is rules.constant else barrier_bounds
        return of_rule(chosen, constants, steps, ell)
    plain = isinstance(upper, Minibatch) and isinstance(lower, Minibatch)
    if chosen.rule is rules.sdbgd and plain:
        return residual_bounds(chosen.schedule, constants, steps)
    if chosen.rule is rules.constant and plain:
        return penalty_bounds(chosen.schedule, constants, steps)
    held = isinstance(upper, Held) and isinstance(upper.inner, Minibatch) and isinstance(lower, Minibatch)
    if chosen.rule is rules.constant and held:
        return lazy_bounds(chosen.schedule, constants, steps, int(chosen.schedule.at(0).upper_hold))
    raise ValueError(
        f"no bound is known for {chosen.name}: its rule and its estimator must be those of SDBGD or of a penalty"
    )


def reduced_bounds(method: Method, constants: Constants, steps: Any, noise_smoothness: Any) -> Bounds:
    """Descent on f + β_k g with SPIDER, PAGE or STORM, for any schedule that meets the condition; else a ValueError.

    Constant parameters have a closed form. Anything else is gone over step by step, with the batches that are really
    drawn: integers, SPIDER's period wherever it stands, PAGE's own coins.
    """
    ell, schedule = noise_smoothness_of(noise_smoothness), method.schedule
    if np.ndim(steps):
        return _each(reduced_bounds, method, constants, steps, ell)
    K = whole("steps", steps)
    check_penalty(schedule, laws(schedule, 1 if schedule.constant() else K, regularized=False), constants)
    closed = _closed(method, constants, K, ell)
    pair = _stepwise(method, constants, K, ell) if closed is None else closed
    if not np.isfinite(pair[1]):
        raise ValueError(_TOO_LONG.format(name=method.name))
    return bounds_of_pair(K, pair)


def barrier_bounds(method: Method, constants: Constants, steps: Any, noise_smoothness: Any) -> Bounds:
    """SDBGD on SPIDER's or STORM's estimates with constant parameters; a ValueError where the condition is not met."""
    ell, schedule, c = noise_smoothness_of(noise_smoothness), method.schedule, constants
    if np.ndim(steps):
        return _each(barrier_bounds, method, constants, steps, ell)
    K, p = whole("steps", steps), schedule.at(0)
    if not schedule.constant():
        raise ValueError(
            f"no bound is known for {method.name} with laws that change from step to step; with constant ones there is "
            "one, and tiebreak.theory.plan chooses them (kind='horizon')"
        )
    own = laws(schedule, 1)
    check_theorem_1(own, c)
    levels = zip(_per_level(method), LEVELS, (c.sigma_f, c.sigma_g), ell, strict=True)
    upper, lower = (means_of(one, level, p, sigma, smooth, K, YOUNG) for one, level, sigma, smooth in levels)
    if upper is None or lower is None:
        raise ValueError(
            f"no bound is known for {method.name}: with SDBGD's rule, its estimator must be Spider or Storm"
        )
    values = (own.step_size, own.barrier, own.regularizer, own.upper_batch, own.lower_batch)
    columns = Laws(*(np.reshape(value, (1, 1)) for value in values))
    pair = reduced_residuals(columns, c, upper, lower, K)
    if not np.isfinite(pair[1]).any():
        raise ValueError(_TOO_LONG.format(name=method.name))
    return bounds_of_pair(K, (np.nanmin(pair[0]), np.nanmin(pair[1])))


def _each(bounds: Callable[..., Bounds], method: Method, constants: Constants, steps: Any, ell: Any) -> Bounds:
    """For an array of K."""
    each = [bounds(method, constants, int(K), ell) for K in wanted_steps(steps)]
    lower, direction = (np.array([getattr(one, name) for one in each]) for name in RESIDUALS)
    return Bounds(steps, lower, direction)


def _per_level(method: Method) -> tuple[Any, Any]:
    own = method.estimator
    return (own.upper, own.lower) if isinstance(own, PerLevel) else (own, own)


def _closed(method: Method, c: Constants, K: int, ell: tuple[float, float]) -> tuple[Any, Any] | None:
    """For constant parameters, and one kind of estimator."""
    upper, lower = _per_level(method)
    if not method.schedule.constant() or type(upper) is not type(lower):
        return None
    p = method.schedule.at(0)
    if isinstance(upper, Spider):
        return spider_residuals(p, c, ell, K, p.period, (p.upper_refresh, p.lower_refresh))
    rates = [of_level(p, "momentum", level) for level in LEVELS]
    if isinstance(upper, Storm) and rates[0] == rates[1]:
        return storm_residuals(p, c, ell, K, rates[0], (p.upper_batch, p.lower_batch))
    return None


def _stepwise(method: Method, c: Constants, K: int, ell: tuple[float, float]) -> tuple[Any, Any]:
    if K > _LONGEST:
        raise ValueError(f"steps={K} must be at most {_LONGEST}: with these laws they are gone over one by one")
    many, p = Many(method.schedule, K), laws(method.schedule, K, regularized=False)
    levels = zip(LEVELS, _per_level(method), (c.sigma_f, c.sigma_g), ell, strict=True)
    errors = [_errors(estimator, level, many, sigma, own) for level, estimator, sigma, own in levels]
    return selected_residuals(recursive_gap(p, c, *errors), p, c, ways_to_add(np.array(K), fixed=False))


def _errors(estimator: Any, level: str, many: Any, sigma: float, ell: float) -> Errors:
    batch = getattr(many, f"{level}_batch")
    if isinstance(estimator, Storm):
        return storm_errors(sigma, ell, of_level(many, "momentum", level), batch, batch[0])
    if isinstance(estimator, (Spider, Page)):
        return refreshed_errors(sigma, ell, estimator.anew(many) == 1, batch, getattr(many, f"{level}_refresh"))
    if isinstance(estimator, Minibatch):
        return refreshed_errors(sigma, ell, np.full(len(batch), True), batch, batch)
    raise ValueError(f"no bound is known for {estimator!r} at the {level} level beside a variance-reduced one")
