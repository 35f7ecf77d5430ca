"""What variance reduction guarantees under the SDBGD rule: Theorem 1 with the errors of SPIDER's or STORM's estimates.

Ours, not the paper's. Theorem 1 asks nothing of the estimates but τ_k² ≥ E‖d_k − d̂_k‖²: its proof never uses that they
are unbiased, and holds in total expectation (Jensen at G_f τ and at √H_k). By the stability lemma

    τ_k² ≤ 2E‖e^f_k‖² + 2M²E‖e^g_k‖²,   M = 3β/2 + 2G_f/√ρ,

and a recursion's mean error over K steps is at most noise + drift · the mean of E‖x_{k+1} − x_k‖² (:class:`Means`).
With constant parameters, X the mean of E‖d_k‖² and T that of τ_k², this leaves two inequalities:

    T ≤ V + κ²(√X + √T)²     V = 2(noise_f + M² noise_g),  κ² = 2η²(drift_f + M² drift_g)
    X ≤ S + 4G_f√T + cT      S: Theorem 1 without noise,   c = 4L_fη + (8β + 1/(L_gη))(1/(2β) + L_gη)

The steps are x_{k+1} − x_k = −η d̂_k, and the first line is Minkowski's inequality for d̂ = d + (d̂ − d). It gives √T ≤
κ√X/(1−κ) + √(V/(1−κ²)); the second is then a quadratic inequality in √X, and bounds it where cκ²/(1−κ)² < 1.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiebreak.estimators import Minibatch, Spider, Storm
from tiebreak.estimators.contract import of_level
from tiebreak.rules import stability
from tiebreak.theory.bounds import Laws, theorem_1, ways_to_add
from tiebreak.theory.constants import Constants
from tiebreak.theory.reduction import geometric

Values = NDArray[np.float64]

__all__ = ["YOUNG", "Means", "means_of", "reduced_residuals", "spider_means", "storm_means"]

#: What parts STORM's fresh noise from its drift, (1 + 1/y) and (1 + y): any y > 0 is right, and the best is taken.
YOUNG = np.exp(np.linspace(-7, 7, 57))


class Means(NamedTuple):
    """One level's error in the mean over K steps: at most noise + drift · the mean of E‖x_{k+1} − x_k‖²."""

    noise: Any
    drift: Any


def spider_means(sigma: float, ell: float, period: Any, batch: Any, refresh: Any, steps: Any) -> Means:
    """SPIDER: σ²/B, and every move counts in at most q − 1 later steps of its period, with ℓ²/b."""
    return Means(sigma**2 / refresh, (np.minimum(period, steps) - 1) * ell**2 / batch)


def storm_means(sigma: float, ell: float, momentum: Any, batch: Any, steps: Any, young: Any) -> Means:
    """STORM, begun with a batch like all others: θ = (1−α)² of an error is kept, α²σ²/b is new, θℓ²/b for a move."""
    theta, forgotten = (1 - momentum) ** 2, momentum * (2 - momentum)
    Z, less = geometric(momentum, steps), geometric(momentum, steps - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        # For α → 0 the sum of all that is new tends to 0, and so does it for K = 1.
        new = np.where(forgotten > 0, momentum**2 * np.maximum(steps - Z, 0) / forgotten, 0.0)
    return Means(sigma**2 / batch * (Z + (1 + 1 / young) * new) / steps, (1 + young) * theta * less * ell**2 / batch)


def means_of(
    estimator: Any, level: str, parameters: Any, sigma: float, ell: float, steps: Any, young: Any
) -> Means | None:
    """Of an estimator with constant parameters; None where nothing is known."""
    batch = getattr(parameters, f"{level}_batch")
    if isinstance(estimator, Spider):
        return spider_means(sigma, ell, parameters.period, batch, getattr(parameters, f"{level}_refresh"), steps)
    if type(estimator) is Storm:
        return storm_means(sigma, ell, of_level(parameters, "momentum", level), batch, steps, young)
    return Means(sigma**2 / batch, 0.0) if isinstance(estimator, Minibatch) else None


def reduced_residuals(p: Laws, constants: Constants, upper: Means, lower: Means, steps: Any) -> tuple[Any, Any]:
    """Bounds on E‖∇g(x_N)‖² and E‖d_N‖² for constant parameters, N uniform; infinite where the condition fails.

    The conditions of Theorem 1 on η, β and ρ are for the caller to check.
    """
    c, eta, beta = constants, p.step_size, p.barrier
    M, add = stability(beta, p.regularizer, c.G_f), ways_to_add(steps, fixed=True)
    V = 2 * (upper.noise + M**2 * lower.noise)
    kappa = eta * np.sqrt(2 * (upper.drift + M**2 * lower.drift))
    start = theorem_1(p, c, add.total, add.last, tau_squared=0.0).falling
    linear = 4 * c.G_f
    square = 4 * c.L_f * eta + (8 * beta + 1 / (c.L_g * eta)) * (1 / (2 * beta) + c.L_g * eta)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope, rest = kappa / (1 - kappa), np.sqrt(V / (1 - kappa**2))  # √T ≤ slope √X + rest
        A, B = 1 - square * slope**2, slope * (linear + 2 * square * rest)
        C = start + linear * rest + square * rest**2
        root = (B + np.sqrt(B**2 + 4 * A * C)) / (2 * A)  # A X − B √X − C ≤ 0
    closes = (kappa < 1) & (A > 0)
    T = np.where(closes, (slope * root + rest) ** 2, np.inf)
    found = theorem_1(p, c, add.total, add.last, tau_squared=T)
    return found.lower_gradient_squared, found.falling
