"""A problem near the worst case of penalty descent, with noise whose smoothness is known."""

import math
from typing import Any

import numpy as np

from tiebreak.checks import nonnegative
from tiebreak.oracles.sampling import Array, Function
from tiebreak.problems.noises import Phase
from tiebreak.problems.problem import Problem
from tiebreak.theory.constants import Constants


def worst_case(
    slope: float,
    sigma: float = 1.0,
    noise_smoothness: float = 1.0,
    delta_g: float = 1.0,
) -> Problem:
    """Near the worst case of descent on f + βg: f pulls along y, which g holds stiffly; along z, g falls slowly.

    g(y, z) = y²/2 + h(z), h linear with this slope until Δ_g is used up, then bending to a constant; f(y) has slope −1
    until y = 1 and then bends to a constant. L_f = L_g = G_f = 1, Δ_f = 3/2, and both levels have :class:`Phase` noise
    with this σ (total) and ℓ. A run whose K steps just reach the end of the slope spends what the theorems allow: see
    ``benchmarks/rates.py``.

    Parameters
    ----------
    slope : float
        Of h, > 0, with slope² ≤ Δ_g.
    sigma, noise_smoothness : float
        σ_f = σ_g > 0 and ℓ_f = ℓ_g ≥ 0.
    delta_g : float
        Δ_g.

    Examples
    --------
    >>> problem = worst_case(0.1)
    >>> np.round(problem.lower.exact_gradient(problem.x0), 2), problem.constants.delta_g
    (array([ 0. , -0.1]), 1.0)
    """
    for name, value in (("slope", slope), ("sigma", sigma), ("delta_g", delta_g)):
        nonnegative(name, value, positive=True)
    if slope**2 > delta_g:
        raise ValueError(
            f"slope={slope!r} must be at most √delta_g = {math.sqrt(delta_g):g}: the bend alone takes slope²/2"
        )
    end = (delta_g - slope**2 / 2) / slope  # of the linear part

    def bent(t: Any, start: float, steep: float) -> tuple[Any, Any]:
        """−steep·t until `start`, then with curvature 1 to a constant: value and derivative."""
        into = np.clip(t - start, 0.0, steep)
        return -steep * np.minimum(t, start + steep) + into**2 / 2, into - steep

    def f(x: Array) -> tuple[Any, Any]:
        value, derivative = bent(x[..., 0], 1.0, 1.0)
        return value, np.stack([derivative, np.zeros_like(derivative)], axis=-1)

    def g(x: Array) -> tuple[Any, Any]:
        value, derivative = bent(x[..., 1], end, slope)
        return x[..., 0] ** 2 / 2 + value, np.stack([x[..., 0], derivative], axis=-1)

    def oracle(level: Function) -> Phase:
        return Phase(
            lambda x: level(x)[1],
            sigma / math.sqrt(2),
            lambda x: level(x)[0],
            roughness=noise_smoothness,
            shape=(2,),
            vectorized=True,
        )

    constants = Constants(1.0, 1.0, 1.0, sigma, sigma, 1.5, delta_g)
    name = f"worst case, slope {slope:g}"
    return Problem(name, oracle(f), oracle(g), np.zeros(2), None, constants)
