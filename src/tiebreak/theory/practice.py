"""Where the iterates really are: quasi-static models of SDBGD and of the penalty. Estimates, never bounds."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiebreak.schedules import Power, Schedule
from tiebreak.theory.bounds import Bounds, laws
from tiebreak.theory.constants import Constants

Values = NDArray[np.float64]

__all__ = [
    "FOLDS",
    "Prediction",
    "held_from",
    "model",
    "on_its_way",
    "penalty_model",
    "predicted",
    "travel_time",
    "wandering",
]

FOLDS = 200.0  # e-foldings in which g's transient is taken to be over, where g curves with L_g


@dataclass(frozen=True)
class Prediction(Bounds):
    """What a model expects of the last iterate; an estimate, never a bound.

    Attributes
    ----------
    at_worst : ‖d‖² where f is as slow as it can be along g's minimisers, Δ_f/Σηₖ: what a convex f never exceeds.
    shortfall : the time that the model needs over the time that the steps give; above 1 the transient is not over.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> found = tiebreak.theory.plan(problem.constants, budget=10**6, objective="practice")
    >>> found.prediction.steps == found.steps, found.prediction.direction_squared > 0
    (True, True)
    """

    at_worst: float = 0.0
    shortfall: float = 0.0

    @property
    def pair(self) -> tuple[float, float]:
        """‖∇g‖² and ‖d‖²."""
        return self.lower_gradient_squared, self.direction_squared


def predicted(schedule: Schedule, constants: Constants, steps: int) -> Prediction:
    """What to expect of the last iterate after the transient, by a quasi-static model; an estimate, never a bound.

    Where f still pulls (‖∇f‖ ≈ G_f) the iterate rests where d = 0: for SDBGD at ‖∇g‖ = s with s³ = G_f (ρ + ν_g²)/β and
    λ = G_f/s, for the penalty (a schedule without a regularizer) at ‖∇g‖ = G_f/β with λ = β. Noise shakes it there
    against the stiffness λL_g + L_f, and s itself shrinks, so the iterate lags behind. The penalty's model has a term
    for f on its way besides. A `note` says where the steps may not reach that far, and what is taken for granted.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> schedule = tiebreak.anytime(0.25, step_size=1 / 6, barrier=1.0, lower_batch=0.01)
    >>> f"{predicted(schedule, problem.constants, 1027).lower_gradient_squared:.1e}"  # measured: 3.3e-03
    '3.4e-03'
    """
    c, penalty = constants, schedule.regularizer is None
    p = laws(schedule, 1, steps - 1, regularized=not penalty)
    path = laws(schedule, steps, regularized=not penalty)
    holds = (path.barrier >= held_from(c, path.barrier[-1]) * (1 - 1e-9)) | (not penalty)
    time, rates = float(np.sum(path.step_size[holds])), path.step_size * path.barrier * c.L_g
    still = schedule.barrier.stop if penalty and isinstance(schedule.barrier, Power) else None
    g_time = float(np.sum(rates if still is None else rates[min(steps, int(still)) :]))  # since β has its last value
    count, slope = np.array([float(steps)]), np.array([_slope(schedule, steps)])
    if penalty:
        along = on_its_way(time, c) + wandering(path, 1.0, c)
        found, needs = penalty_model(p, c, count, slope, along), FOLDS / max(g_time, 1e-300)
    else:
        found, needs = model(p, c, count, slope), 0.99 * travel_time(c) / time
    direction, at_worst = float(found.direction_squared[0]), c.delta_f / time
    notes = []
    if needs > 1:
        units = (g_time, FOLDS) if penalty else (time, travel_time(c))
        notes.append(f"the transient may not be over: {units[0]:.2g} of {units[1]:.2g} units of time")
    if at_worst > direction:
        notes.append(f"‖d‖² may still be {at_worst:.2g} where f is slow along the minimisers of g")
    notes.append(
        f"both residuals are larger where g curves by less than {min(1.0, 5 / max(g_time, 1e-300)):.1g} of L_g"
    )
    lower = float(found.lower_gradient_squared[0])
    return Prediction(steps, lower, direction, "; ".join(notes), at_worst, needs)


def travel_time(constants: Constants) -> float:
    """8Δ_f/G_f²: four times as long as f would take to fall all the way if it always fell at its steepest."""
    return 8 * constants.delta_f / constants.G_f**2


def held_from(constants: Constants, last: Any) -> Any:
    """The penalty's weight from which on g leads, L_f/L_g, or its `last`: only then f travels along g's minimisers."""
    return np.minimum(constants.L_f / constants.L_g, last)


def on_its_way(time: Any, constants: Constants) -> Any:
    """‖∇f‖² along g's minimisers after this time: (R/time)², as for any convex f, with R = 4Δ_f/G_f for the way.

    A cone with its slope G_f has R = Δ_f/G_f, a quadratic whose slope at the start is G_f has 2Δ_f/G_f.
    """
    return (4 * constants.delta_f / (constants.G_f * time)) ** 2


def wandering(path: Any, counts: Any, c: Constants) -> Any:
    """‖∇f‖² from noise along g's minimisers, where nothing but f's own curvature μ brings the iterate back.

    μ² Σ η_t² (ν_f² + β_t²ν_g²) exp(−2μ ∫_t η): what was shaken in since 1/μ ago, for the worst of a few μ up to L_f.
    `path` has the steps along the first axis, each standing for `counts` of them.
    """
    variance = c.sigma_f**2 / path.upper_batch + path.barrier**2 * c.sigma_g**2 / path.lower_batch
    passed = path.step_size * counts
    ahead = np.cumsum(passed[::-1], axis=0)[::-1] - passed  # time from each step to the end
    kicks = path.step_size * passed * variance
    found = [mu**2 * np.sum(kicks * np.exp(-2 * mu * ahead), axis=0) for mu in c.L_f * np.array([1.0, 0.1, 0.01])]
    return np.max(found, axis=0)


def _slope(schedule: Schedule, steps: int) -> float:
    """How fast ‖∇g‖ at rest falls, as a power of t: s = (Gρ/β)^{1/3}, or G/β."""
    rho, beta = schedule.regularizer, schedule.barrier
    if not isinstance(beta, Power):
        return 0.0
    if rho is None:
        return beta.exponent if beta.start <= steps <= (beta.stop or steps) else 0.0
    return (beta.exponent - rho.exponent) / 3 if isinstance(rho, Power) else 0.0


class Expectation(NamedTuple):
    """What the model expects, and where it stops to hold: at a stiffness of 2, or where ∇g drowns in noise."""

    lower_gradient_squared: Values
    direction_squared: Values
    stiffness: Values  # η(L_f + λL_g)
    noise_share: Values  # ν_g² / ‖∇g‖²


def model(p: Any, c: Constants, steps: Values, slope: Values) -> Expectation:
    """The resting point of SDBGD's step `steps`; s falls there as the power `slope` of the step."""
    rest = (c.G_f * (p.regularizer + c.sigma_g**2 / p.lower_batch) / p.barrier) ** (1 / 3)  # ‖∇g‖ where it rests
    lag = slope / (3 * p.step_size * p.barrier * c.L_g * steps)
    return _at_rest(p, c, steps, slope, rest, lag)


def penalty_model(p: Any, c: Constants, steps: Values, slope: Values, along: Values) -> Expectation:
    """The resting point of the penalty, β growing as the power `slope`, and ‖∇f‖² `along` g's minimisers."""
    lag = slope / (p.step_size * p.barrier * c.L_g * steps)
    found = _at_rest(p, c, steps, slope, c.G_f / p.barrier, lag)
    return found._replace(direction_squared=found.direction_squared + along)


def _at_rest(p: Any, c: Constants, steps: Values, slope: Values, rest: Values, lag: Values) -> Expectation:
    eta, multiplier = p.step_size, c.G_f / rest
    nu_f2, nu_g2 = c.sigma_f**2 / p.upper_batch, c.sigma_g**2 / p.lower_batch
    stiffness = eta * (c.L_f + multiplier * c.L_g)
    shaking = np.where(stiffness < 2, stiffness / (2 - stiffness), np.inf) * (nu_f2 + multiplier**2 * nu_g2)
    direction = shaking + (slope * rest / (eta * c.L_g * steps)) ** 2
    lower = (rest * (1 + lag)) ** 2 + shaking / multiplier**2
    return Expectation(lower, direction, stiffness, nu_g2 / rest**2)
