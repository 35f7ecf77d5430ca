"""The paper's example: f = √(1+‖x−c‖²), g = 2 − cos x₁ − exp(−x₂²/2), c = (7.1, 1), with additive Gaussian noise.

argmin g = {(2πm, 0)}, so the solution is (2π, 0). From the paper's start all methods head for (0, 0) instead, which
minimises g as well: stationarity is what they promise, not the solution.
"""

import math
from typing import Any

import numpy as np

from tiebreak.oracles import Array, Gaussian
from tiebreak.problems.problem import Problem
from tiebreak.theory.constants import Constants

CENTER = (7.1, 1.0)
_DOUBLE = np.dtype(np.float64)
_ALONE = (1, 2)  # the shape of a single point
_CENTERS: dict[Any, Array] = {
    np.dtype(kind): np.array(CENTER, dtype=kind) for kind in (np.float32, np.float64)
}


def upper_value(x: Array) -> Any:
    return np.sqrt(1 + ((x - CENTER) ** 2).sum(axis=-1))


def upper_gradient(x: Array) -> Array:
    if (
        x.shape == _ALONE and x.dtype is _DOUBLE
    ):  # floats are quicker, and round like arrays
        u, v = x.tolist()[0]
        u = u - CENTER[0]
        v = v - CENTER[1]
        norm = math.sqrt(1 + (u * u + v * v))
        return np.array([[u / norm, v / norm]])
    offset: Array = x - _CENTERS[x.dtype]
    first = offset[..., :1]
    second = offset[..., 1:]
    offset /= np.sqrt(1 + (first * first + second * second))
    return offset


def lower_value(x: Array) -> Any:
    first, second = _coordinates(x)
    return 2 - np.cos(first) - np.exp(-0.5 * (second * second))


def lower_gradient(x: Array) -> Array:
    if x.shape == _ALONE and x.dtype is _DOUBLE:
        # Sines and exponentials come from arrays: NumPy may round others for a number.
        y = x.item(1)
        gradient = np.sin(x)
        gradient[0, 1] = y * np.exp(np.array([-0.5 * (y * y)])).item()
        return gradient
    first, second = _coordinates(x)
    gradient = np.empty_like(x)
    gradient[..., 0] = np.sin(first)
    gradient[..., 1] = second * np.exp(-0.5 * (second * second))
    return gradient


def _coordinates(x: Array) -> tuple[Array, Array]:
    # Copied to be contiguous: for strided memory NumPy may take another sin, and runs would differ in the last bit.
    return x[..., 0].copy(), x[..., 1].copy()


def paper(
    sigma: float = 0.5,
    *,
    x0: tuple[float, float] = (1.5, 1.5),
    per_sample: bool = False,
    sigma_f: float | None = None,
    sigma_g: float | None = None,
) -> Problem:
    """The paper's problem.

    Parameters
    ----------
    sigma : float
        Noise of both levels, per coordinate.
    sigma_f, sigma_g : float, optional
        That of one level, where it differs.
    x0 : pair of float
        Where to start.
    per_sample : bool
        Draw every sample instead of the batch mean's exact law.

    Examples
    --------
    >>> problem = paper()
    >>> problem.solution
    array([6.28318531, 0.        ])
    """
    options: dict[str, Any] = {
        "shape": (2,),
        "vectorized": True,
        "per_sample": per_sample,
    }
    of_upper = sigma if sigma_f is None else sigma_f
    of_lower = sigma if sigma_g is None else sigma_g
    upper = Gaussian(upper_gradient, of_upper, upper_value, **options)
    lower = Gaussian(lower_gradient, of_lower, lower_value, **options)
    start = np.array(x0, dtype=float)
    if start.shape != (2,):
        raise ValueError(f"x0={x0!r} must be two numbers")
    constants = Constants(
        L_f=1,  # ∇²f has eigenvalues in (0, 1]
        L_g=1,  # ∇²g = diag(cos x₁, (1 − x₂²) exp(−x₂²/2))
        G_f=1,
        sigma_f=math.sqrt(2)
        * of_upper,  # the theory's σ² is the total variance, over both coordinates
        sigma_g=math.sqrt(2) * of_lower,
        delta_f=float(upper_value(start)) - 1,  # inf f = f(c) = 1
        delta_g=float(lower_value(start)),  # inf g = 0
    )
    return Problem(
        "paper", upper, lower, start, np.array([2 * math.pi, 0.0]), constants
    )
