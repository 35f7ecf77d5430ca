"""Which theorem speaks of a method, and what it says: one place, for plans, verifications and users."""

from typing import Any

import numpy as np

from tiebreak import rules
from tiebreak.checks import whole
from tiebreak.estimators import Held, Minibatch, Page, PerLevel, Spider, Storm
from tiebreak.estimators.contract import of_level
from tiebreak.methods import Method, get
from tiebreak.schedules import Schedule
from tiebreak.solver.budget import Many
from tiebreak.theory.bounds import (
    Bounds,
    Residuals,
    bounds_of_pair,
    check_theorem_1,
    checked_steps,
    first_step,
    laws,
    residual_bounds,
    theorem_1,
    ways_to_add,
)
from tiebreak.theory.constants import Constants, Pair
from tiebreak.theory.penalties import (
    check_penalty,
    lazy_bounds,
    lazy_residuals,
    penalty_bounds,
    penalty_residuals,
    selected_residuals,
)
from tiebreak.theory.reduction import (
    YOUNG,
    Errors,
    barrier_residuals,
    descent_residuals,
    means_of,
    noise_smoothness_of,
    recursive_gap,
    refreshed_errors,
    storm_errors,
)

_LONGEST = 5 * 10**6  # steps of a recursion that is evaluated step by step


def reduces(method: Method) -> bool:
    """Whether it is SDBGD or a penalty on variance-reduced estimates: then a bound asks how smooth the noise is."""
    proved_rule = method.rule in (rules.constant, rules.sdbgd)
    return proved_rule and any(
        isinstance(estimator, (Storm, Spider, Page)) for estimator in _per_level(method)
    )


def smoothness_needed(
    method: Method, constants: Constants, noise_smoothness: Any
) -> Pair | None:
    """(ℓ_f, ℓ_g) where the method's bound needs it: as given, or as estimated with the constants; else None."""
    if reduces(method):
        estimated = getattr(constants, "noise_smoothness", None)
        return noise_smoothness_of(
            estimated if noise_smoothness is None else noise_smoothness
        )
    if noise_smoothness is not None:
        raise ValueError(
            f"noise_smoothness={noise_smoothness!r} has no effect on {method.name}: leave it out"
        )
    return None


def proved(
    method: Any, constants: Constants, steps: Any, noise_smoothness: Any = None
) -> Bounds:
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
    planned = getattr(method, "noise_smoothness", None)
    ell = smoothness_needed(
        chosen, constants, planned if noise_smoothness is None else noise_smoothness
    )
    if ell is not None:
        return _reduced(chosen, constants, steps, ell)
    upper, lower = _per_level(chosen)
    inner = upper.inner if isinstance(upper, Held) else upper
    for rule, *types, bound in _BOUNDS:
        fits = chosen.rule is rule and [type(upper), type(lower)] == types
        if fits and type(inner) is Minibatch:
            return bound(chosen.schedule, constants, steps)
    raise ValueError(
        f"no bound is known for {chosen.name}: its rule and its estimator must be those of SDBGD or of a penalty"
    )


def _lazy_bounds(schedule: Schedule, constants: Constants, steps: Any) -> Bounds:
    return lazy_bounds(schedule, constants, steps, int(schedule.at(0).upper_hold))


#: The bounds without variance reduction, by rule and estimators of the upper and the lower level.
_BOUNDS = (
    (rules.sdbgd, Minibatch, Minibatch, residual_bounds),
    (rules.constant, Minibatch, Minibatch, penalty_bounds),
    (rules.constant, Held, Minibatch, _lazy_bounds),
)


def residuals_of(
    method: Method,
    p: Any,
    constants: Constants,
    ell: Any,
    steps: Any,
    young: Any = YOUNG,
) -> Residuals:
    """Bounds on E‖∇g(x_N)‖² and E‖d_N‖² for constant parameters `p`, or arrays of them; infinite where there is none.

    The conditions of Theorem 1 and of :func:`check_penalty` are for the caller to check.
    """
    upper, lower = _per_level(method)
    if method.rule is rules.sdbgd and ell is None:
        theorem = theorem_1(first_step(p), constants, ways_to_add(steps, fixed=True))
        return theorem.lower_gradient_squared, theorem.falling
    if ell is not None:
        means_f = means_of(upper, "upper", p, constants.sigma_f, ell[0], steps)
        means_g = means_of(lower, "lower", p, constants.sigma_g, ell[1], steps)
        if means_f is None or means_g is None:
            raise ValueError(
                f"no bound is known for {method.name}: with SDBGD's rule, its estimator must be Spider or Storm"
            )
        if method.rule is rules.sdbgd:
            return barrier_residuals(p, constants, means_f, means_g, steps, young)
        return descent_residuals(p, constants, means_f, means_g, steps)
    if isinstance(upper, Held):
        return lazy_residuals(
            p, constants, steps, np.maximum(1, np.floor(p.upper_hold))
        )
    return penalty_residuals(first_step(p), constants, ways_to_add(steps, fixed=True))


def _reduced(method: Method, constants: Constants, steps: Any, ell: Pair) -> Bounds:
    """SDBGD or a penalty on variance-reduced estimates; a ValueError where the condition is not met."""
    if np.ndim(steps):
        each = [_reduced(method, constants, int(K), ell) for K in checked_steps(steps)]
        lower = np.array([bounds.lower_gradient_squared for bounds in each])
        return Bounds(
            steps, lower, np.array([bounds.direction_squared for bounds in each])
        )
    K = whole("steps", steps)
    bound = _descent if method.rule is rules.constant else _barrier
    pair = bound(method, constants, K, ell)
    if not np.isfinite(pair[1]):
        raise ValueError(
            f"{method.name} has no bound with this schedule: its steps are too long for the batches of its "
            "differences. Make step_size smaller, or upper_batch and lower_batch larger, or refresh more often"
        )
    return bounds_of_pair(K, pair)


def _barrier(method: Method, constants: Constants, K: int, ell: Pair) -> Residuals:
    """The SDBGD rule with constant parameters."""
    schedule = method.schedule
    if not schedule.constant():
        raise ValueError(
            f"no bound is known for {method.name} with laws that change from step to step; with constant ones there is "
            "one, and tiebreak.theory.plan chooses them (kind='horizon')"
        )
    check_theorem_1(laws(schedule, 1), constants)
    lower, direction = residuals_of(method, schedule.at(0), constants, ell, K)
    return np.nanmin(lower), np.nanmin(direction)


def _descent(method: Method, constants: Constants, K: int, ell: Pair) -> Residuals:
    """Descent on f + β_k g: a closed form for constant parameters and one estimator, else step by step.

    The second evaluates the recursion for the batches that are really drawn: integers, with SPIDER's period and PAGE's
    coins.
    """
    schedule = method.schedule
    check_penalty(
        schedule,
        laws(schedule, 1 if schedule.constant() else K, regularized=False),
        constants,
    )
    upper, lower = _per_level(method)
    if (
        schedule.constant()
        and type(upper) is type(lower)
        and not isinstance(upper, Page)
    ):
        p = schedule.at(0)
        momentum = of_level(p, "momentum", "upper")
        if isinstance(upper, Spider) or momentum == of_level(p, "momentum", "lower"):
            return residuals_of(
                method, p._replace(momentum=momentum), constants, ell, K
            )
    if K > _LONGEST:
        raise ValueError(
            f"steps={K} must be at most {_LONGEST}: with these laws they are gone over one by one"
        )
    many = Many(schedule, K)
    p_k = laws(schedule, K, regularized=False)
    errors_f = _errors(upper, "upper", many, constants.sigma_f, ell[0])
    errors_g = _errors(lower, "lower", many, constants.sigma_g, ell[1])
    gap = recursive_gap(p_k, constants, errors_f, errors_g)
    return selected_residuals(
        gap, p_k, constants, ways_to_add(np.array(K), fixed=False)
    )


def _errors(estimator: Any, level: str, many: Any, sigma: float, ell: float) -> Errors:
    batch = getattr(many, f"{level}_batch")
    if isinstance(estimator, Storm):
        return storm_errors(
            sigma, ell, of_level(many, "momentum", level), batch, batch[0]
        )
    if isinstance(estimator, (Spider, Page)):
        return refreshed_errors(
            sigma,
            ell,
            estimator.refreshes(many) == 1,
            batch,
            getattr(many, f"{level}_refresh"),
        )
    if isinstance(estimator, Minibatch):
        return refreshed_errors(sigma, ell, np.full(len(batch), True), batch, batch)
    raise ValueError(
        f"no bound is known for {estimator!r} at the {level} level beside a variance-reduced one"
    )


def _per_level(method: Method) -> tuple[Any, Any]:
    estimator = method.estimator
    if isinstance(estimator, PerLevel):
        return estimator.upper, estimator.lower
    return estimator, estimator
