"""Where the iterates really are: a quasi-static model of SDBGD after its transient. An estimate, never a bound."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiebreak.schedules import Power, Schedule
from tiebreak.theory.bounds import Bounds, laws
from tiebreak.theory.constants import Constants

Values = NDArray[np.float64]

__all__ = ["model", "predicted", "travel_time"]


def predicted(schedule: Schedule, constants: Constants, steps: int) -> Bounds:
    """What to expect of the last iterate after the transient, by a quasi-static model; an estimate, never a bound.

    Where f still pulls (‖∇f‖ ≈ G_f) the iterate rests where d = 0, at ‖∇g‖ = s, s³ = G_f (ρ + ν_g²)/β and λ = G_f/s.
    Noise shakes it there against the stiffness λL_g + L_f, and s itself shrinks, so the iterate lags behind. A `note`
    says where the steps may not reach that far.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> schedule = tiebreak.anytime(0.25, step_size=1 / 6, barrier=1.0, lower_batch=0.01)
    >>> f"{predicted(schedule, problem.constants, 1027).lower_gradient_squared:.1e}"  # measured: 3.3e-03
    '3.4e-03'
    """
    p = laws(schedule, 1, steps - 1)
    slope = _slope(schedule)
    found = model(p, constants, np.array([float(steps)]), np.array([slope]))
    time = float(np.sum(laws(schedule, steps).step_size))
    short = time < 0.99 * travel_time(constants)
    note = f"the transient may not be over: {time:.2g} of {travel_time(constants):.2g} units of time" if short else ""
    return Bounds(steps, float(found.lower_gradient_squared[0]), float(found.direction_squared[0]), note)


def travel_time(constants: Constants) -> float:
    """8Δ_f/G_f²: four times as long as f would take to fall all the way if it always fell at its steepest."""
    return 8 * constants.delta_f / constants.G_f**2


def _slope(schedule: Schedule) -> float:
    """How fast s = (G ρ/β)^{1/3} falls, as a power of t."""
    rho, beta = schedule.regularizer, schedule.barrier
    return (beta.exponent - rho.exponent) / 3 if isinstance(rho, Power) and isinstance(beta, Power) else 0.0


class Expectation(NamedTuple):
    """What the model expects, and where it stops to hold: at a stiffness of 2, or where ∇g drowns in noise."""

    lower_gradient_squared: Values
    direction_squared: Values
    stiffness: Values  # η(L_f + λL_g)
    noise_share: Values  # ν_g² / ‖∇g‖²


def model(p: Any, c: Constants, steps: Values, slope: Values) -> Expectation:
    """The resting point of step `steps`; s falls there as the power `slope` of the step."""
    eta, beta = p.step_size, p.barrier
    nu_f2, nu_g2 = c.sigma_f**2 / p.upper_batch, c.sigma_g**2 / p.lower_batch
    rest = (c.G_f * (p.regularizer + nu_g2) / beta) ** (1 / 3)  # ‖∇g‖ where the iterate rests
    multiplier = c.G_f / rest
    lag = slope / (3 * eta * beta * c.L_g * steps)
    stiffness = eta * (c.L_f + multiplier * c.L_g)
    shaking = np.where(stiffness < 2, stiffness / (2 - stiffness), np.inf) * (nu_f2 + multiplier**2 * nu_g2)
    direction = shaking + (slope * rest / (eta * c.L_g * steps)) ** 2
    lower = (rest * (1 + lag)) ** 2 + shaking / multiplier**2
    return Expectation(lower, direction, stiffness, nu_g2 / rest**2)
