"""Rates and complexities: the corollaries' exponents, Table 1 and our own rows, numbers, and what no method beats."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from tiebreak import methods
from tiebreak.checks import floating
from tiebreak.schedules import anytime, corollary_powers
from tiebreak.theory.constants import Constants
from tiebreak.theory.orders import LOWER_BOUNDS, TABLE, Row
from tiebreak.theory.plans import plan
from tiebreak.theory.reduction import noise_smoothness_of

__all__ = [
    "COMPUTED",
    "LOWER_BOUNDS",
    "TABLE",
    "Complexity",
    "Exponents",
    "Row",
    "exponents",
    "least_complexity",
    "oracle_complexity",
    "reduced_norm",
]

#: Methods whose bound has constants; the last four ask for the smoothness of the noise.
COMPUTED = ("sdbgd", "penalty", "lazy_penalty", "spider_penalty", "storm_penalty", "spider_sdbgd", "storm_sdbgd")


class Exponents(NamedTuple):
    """Powers of K: a residual falls as K^−e (times log K where `…_log`), and calls grow as K^e.

    Examples
    --------
    >>> found = exponents(0.25, "horizon")
    >>> found.direction_squared, found.lower_calls
    (0.5, 3.5)
    """

    direction_squared: float
    lower_gradient_squared: float
    upper_calls: float
    lower_calls: float
    direction_squared_log: bool
    lower_gradient_squared_log: bool


def exponents(a: float = 0.25, kind: str = "anytime") -> Exponents:
    """What Corollary 1 says of SDBGD, for any a in (0, 1/3).

    Examples
    --------
    >>> exponents(0.25, "horizon")[:4]
    (0.5, 0.5, 2.0, 3.5)
    """
    anytime(a)  # which checks a
    if kind not in ("anytime", "horizon"):
        raise ValueError(f"kind={kind!r} must be 'anytime' or 'horizon'")
    powers = corollary_powers(a)
    lower = 1 + powers["step_size"] + powers["barrier"]  # Σ η_k β_k grows like this power of K
    ratio = powers["barrier"] - powers["step_size"]
    direction = lower - ratio if kind == "horizon" or ratio >= 0 else lower
    calls = (1 + powers["upper_batch"], 1 + powers["lower_batch"])
    return Exponents(direction, lower, *calls, kind == "anytime" and ratio >= 0, kind == "anytime")


@dataclass(frozen=True)
class Complexity:
    """What reaching (ε, ε)-stationarity takes; `exact` if with constants, else the bare power of 1/ε.

    Examples
    --------
    >>> oracle_complexity(0.1, "sdbgd")
    Complexity(iterations=100.0, upper_calls=10000.0, lower_calls=10000000.0, exact=False)
    """

    iterations: float
    upper_calls: float
    lower_calls: float
    exact: bool


def oracle_complexity(
    epsilon: float,
    method: str = "sdbgd",
    constants: Constants | None = None,
    noise_smoothness: float | tuple[float, float] | None = None,
) -> Complexity:
    """Steps and calls that a theorem says are enough for E‖d‖² ≤ ε and E‖∇g‖² ≤ ε.

    With the problem's constants, for the methods that have a computable bound (:data:`COMPUTED`): the smallest
    budget of any constant schedule whose bound is ε; variance reduction asks for `noise_smoothness` besides. Without
    them, for any method: the table's power of 1/ε, an order and no more.

    Examples
    --------
    >>> import tiebreak
    >>> constants = tiebreak.problems.paper().constants
    >>> found = oracle_complexity(0.1, "penalty", constants)
    >>> found.exact, 10**5 < found.lower_calls < 10**7
    (True, True)
    >>> oracle_complexity(0.1, "sdbgd")
    Complexity(iterations=100.0, upper_calls=10000.0, lower_calls=10000000.0, exact=False)
    """
    if isinstance(epsilon, (bool, str)) or not 0 < floating(epsilon) < math.inf:
        raise ValueError(f"epsilon={epsilon!r} must be finite and > 0")
    chosen = methods.get(method)
    row = next((row for row in TABLE if row.key and methods.METHODS[row.key] is chosen), None)
    if row is None:
        raise ValueError(f"method={method!r} has no known complexity; known are {[r.key for r in TABLE if r.key]}")
    if constants is None:
        try:
            iterations, upper, lower = ((1 / epsilon) ** power for power in (row.iterations, row.upper, row.lower))
        except OverflowError:
            raise ValueError(f"epsilon={epsilon!r} is so small that no float holds the calls it takes") from None
        return Complexity(iterations, upper, lower, exact=False)
    if row.key not in COMPUTED:
        raise ValueError(f"method={method!r} has no computable bound; with constants, give one of {list(COMPUTED)}")
    found: Any = plan(constants, epsilon=epsilon, method=row.key, noise_smoothness=noise_smoothness)
    return Complexity(found.steps, found.upper_calls, found.lower_calls, exact=True)


def reduced_norm(epsilon: tuple[float, float], constants: Constants) -> float:
    """6√(ε_f ε_g)/G: how small ‖∇h‖ must be made at any (ε_f, ε_g)-stationary point of the hard problems.

    These are x = (y, z), g = L_g y²/2 + h(z), f = f(y) with slope −G until L_g y = √(3ε_g) and then rising to 0,
    G = min(G_f, √(L_fΔ_f)). With probability 1/3 both residuals are at most three times their means; then f still
    pulls, so λ ≥ G/(2√(3ε_g)), and λ‖∇h‖ ≤ √(3ε_f). Where ε is too large for that, a ValueError.
    """
    c, (e_f, e_g) = constants, epsilon
    G = min(c.G_f, math.sqrt(c.L_f * c.delta_f))
    fits = G * math.sqrt(3 * e_g) / c.L_g + G**2 / (2 * c.L_f) <= c.delta_f
    if not (0 < e_f <= G**2 / 12 and e_g > 0 and fits):
        raise ValueError(
            f"epsilon={epsilon!r}: the lower bound needs 0 < ε_f ≤ G²/12 = {G**2 / 12:.3g} and "
            f"G√(3ε_g)/L_g + G²/(2L_f) ≤ Δ_f, with G = min(G_f, √(L_fΔ_f)) = {G:.3g}"
        )
    return 6 * math.sqrt(e_f * e_g) / G


def least_complexity(
    epsilon: float | tuple[float, float],
    constants: Constants,
    noise_smoothness: float | tuple[float, float] | None = None,
) -> Complexity:
    """What no method can do with less of, in the worst case: iterations and lower calls, up to a universal constant.

    An (ε_f, ε_g)-stationary point of the problems of :func:`reduced_norm` is a point with ‖∇h‖ ≤ e for any smooth h, so
    the single-level lower bounds hold: LΔ/e² points, LΔσ²/e⁴ stochastic gradients, and with mean-squared smoothness
    (where `noise_smoothness` ℓ is given: L̄² = L² + ℓ²) L̄Δσ/e³. Those are cited, not proved here, and so is their
    constant, which is left out. There is no such bound on upper calls: NaN.

    Examples
    --------
    >>> import tiebreak
    >>> found = least_complexity(1e-3, tiebreak.problems.paper().constants)
    >>> print(f"{found.iterations:.1e} {found.lower_calls:.1e} {found.exact}")
    4.5e+04 6.2e+08 False
    """
    pair = tuple(epsilon) if isinstance(epsilon, (tuple, list)) else (epsilon, epsilon)
    if len(pair) != 2 or any(isinstance(e, (bool, str)) or not 0 < floating(e) < math.inf for e in pair):
        raise ValueError(f"epsilon={epsilon!r} must be finite and > 0, or a pair of such numbers")
    norm, c = reduced_norm((float(pair[0]), float(pair[1])), constants), constants
    if noise_smoothness is None:
        lower = c.L_g * c.delta_g * c.sigma_g**2 / norm**4
    else:
        lower = math.hypot(c.L_g, noise_smoothness_of(noise_smoothness)[1]) * c.delta_g * c.sigma_g / norm**3
    return Complexity(c.L_g * c.delta_g / norm**2, math.nan, lower, exact=False)
