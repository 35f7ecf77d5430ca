"""Orders and rates: Table 1 and our own rows, Corollary 1, what no method beats, and the rare visits of SDBPG."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tiebreak.checks import positive_pair
from tiebreak.result import History
from tiebreak.schedules import Law, Schedule, anytime, corollary_powers
from tiebreak.theory.constants import Constants, Pair
from tiebreak.theory.reduction import noise_smoothness_of


@dataclass(frozen=True)
class Row:
    """A row of Table 1: (ε, ε)-stationarity takes ε^−iterations steps, ε^−upper and ε^−lower calls.

    `key` is the method's name in :data:`tiebreak.methods.METHODS`, "" where it has no row there.
    """

    name: str
    key: str
    iterations: float
    upper: float
    lower: float
    assumption: str
    source: str
    setting: str = "stochastic"


_SMOOTH = "mean-squared smoothness"
#: Table 1 of the paper, with the best rare-visit exponent, ς = 1/2, and our additions.
TABLE = (
    Row("DBGD", "dbgd", 2, 2, 2, "none", "Cao et al. 2025", "deterministic"),
    Row(
        "SDBPG",
        "sdbpg",
        2,
        4,
        6,
        "rare visits, ς = 1/2 (unverifiable); calls ε^−2/ς, ε^−3/ς",
        "Ahmadi et al. 2026",
    ),
    Row("PR-SDBPG", "pr_sdbpg", 4, 8, 10, "verifiable", "Ahmadi et al. 2026"),
    Row(
        "VR-PR-SDBPG",
        "vr_pr_sdbpg",
        4,
        6,
        8,
        "verifiable; mean-squared smoothness",
        "Ahmadi et al. 2026",
    ),
    Row("SDBGD", "sdbgd", 2, 4, 7, "none", "the paper"),
    Row(
        "Penalty",
        "penalty",
        2,
        3,
        4,
        "none",
        "ours: plain descent on f + βg, see the docs",
    ),
    Row(
        "Lazy penalty",
        "lazy_penalty",
        2,
        2.5,
        4,
        "none",
        "ours: upper batches are held",
    ),
    Row("SPIDER-Penalty", "spider_penalty", 2, 2, 3, _SMOOTH, "ours"),
    Row("STORM-Penalty", "storm_penalty", 2, 2, 3, _SMOOTH, "ours"),
    Row("STORM-SDBGD", "storm_sdbgd", 2, 3, 6, _SMOOTH, "ours"),
    Row("SPIDER-SDBGD", "spider_sdbgd", 2, 3, 6, _SMOOTH, "ours"),
)

#: Lower bounds for every λ, up to a universal constant. Upper calls are only sketched, and left out.
LOWER_BOUNDS = (
    Row(
        "no method below",
        "",
        2,
        math.nan,
        4,
        "none",
        "ours, from Carmon et al., Arjevani et al.",
    ),
    Row(
        "no method below",
        "",
        2,
        math.nan,
        3,
        _SMOOTH,
        "ours, from Carmon et al., Arjevani et al.",
    ),
)


def known_orders(key: str) -> str:
    """The table's row of a method, in a few words; "" if it has none.

    Examples
    --------
    >>> known_orders("storm_sdbgd")
    'ε^−2 iterations, ε^−3 upper and ε^−6 lower calls'
    """
    for row in TABLE:
        if row.key == key:
            return f"ε^−{row.iterations:g} iterations, ε^−{row.upper:g} upper and ε^−{row.lower:g} lower calls"
    return ""


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
    lower = (
        1 + powers["step_size"] + powers["barrier"]
    )  # Σ η_k β_k grows like this power of K
    ratio = powers["barrier"] - powers["step_size"]
    direction = lower - ratio if kind == "horizon" or ratio >= 0 else lower
    calls = (1 + powers["upper_batch"], 1 + powers["lower_batch"])
    return Exponents(
        direction, lower, *calls, kind == "anytime" and ratio >= 0, kind == "anytime"
    )


@dataclass(frozen=True)
class Complexity:
    """What reaching (ε, ε)-stationarity takes; `exact` if with constants, else the bare power of 1/ε.

    Examples
    --------
    >>> import tiebreak
    >>> tiebreak.theory.oracle_complexity(0.1, "sdbgd")
    Complexity(iterations=100.0, upper_calls=10000.0, lower_calls=10000000.0, exact=False)
    """

    iterations: float
    upper_calls: float
    lower_calls: float
    exact: bool


def reduced_norm(epsilon: Pair, constants: Constants) -> float:
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
    epsilon: float | Pair,
    constants: Constants,
    noise_smoothness: float | Pair | None = None,
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
    norm = reduced_norm(positive_pair("epsilon", epsilon), constants)
    c = constants
    if noise_smoothness is None:
        lower = c.L_g * c.delta_g * c.sigma_g**2 / norm**4
    else:
        lower = (
            math.hypot(c.L_g, noise_smoothness_of(noise_smoothness)[1])
            * c.delta_g
            * c.sigma_g
            / norm**3
        )
    return Complexity(c.L_g * c.delta_g / norm**2, math.nan, lower, exact=False)


@dataclass(frozen=True)
class Visits:
    """How often, and how deep, runs visited small ‖∇g‖²; a posteriori only.

    The analysis of SDBPG assumes that its trajectory rarely visits these places, with an exponent ς in (0, 1/2] that
    cannot be known beforehand. The original statement is not available to us; we read it as
    #{k < K : ‖∇g(x_k)‖² ≤ ρ_k} = O(K^(1−ς)). A finite run suggests a value; it proves nothing.

    Attributes
    ----------
    steps : K.
    share : the share of steps with ‖∇g(x_k)‖² ≤ ρ_k, over all runs.
    deepest : the least ‖∇g(x_k)‖²/ρ_k that was met.
    exponent : the ς that the share suggests, in [0, 1/2]; 1/2 where there were few visits or none.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> options = {"method": "sdbpg", "steps": 500, "seed": 0, "record": 1}
    >>> result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, **options)
    >>> found = rare_visits(result.history, tiebreak.methods.sdbpg.schedule)
    >>> found.steps, found.share, found.deepest > 1
    (500, 0.0, True)
    """

    steps: int
    share: float
    deepest: float
    exponent: float

    def __str__(self) -> str:
        return (
            f"{self.share:.2%} of {self.steps:,} steps at ‖∇g‖² ≤ ρ, the deepest at {self.deepest:.2g} ρ; suggests "
            f"ς = {self.exponent:.2f} (a posteriori: a look back, not a guarantee)"
        )


def rare_visits(history: History, schedule: Schedule | Law) -> Visits:
    """Look back at a run: `schedule` gives ρ_k. Rows of a thinned history stand for the steps they skip, with a warning.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> options = {"method": "sdbpg", "steps": 500, "seed": 0, "record": 1}
    >>> result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, **options)
    >>> found = rare_visits(result.history, tiebreak.methods.sdbpg.schedule)
    >>> found.share, found.exponent
    (0.0, 0.5)
    """
    law: Any = schedule.regularizer if isinstance(schedule, Schedule) else schedule
    if law is None or not callable(law):
        raise ValueError(
            f"schedule={schedule!r} must have a regularizer, or be the law of one"
        )
    if len(history) < 2 or "lower_gradient_squared" not in history.columns:
        raise ValueError(
            "history must hold at least two records of lower_gradient_squared: run with record=1 and exact gradients"
        )
    history.warn_if_thinned(stacklevel=3)
    steps = np.asarray(history.step)
    ratio = (
        history.columns["lower_gradient_squared"][:-1]
        / np.array([law(int(k)) for k in steps[:-1]])[:, None]
    )
    weight = np.diff(steps)[:, None] * np.isfinite(ratio)
    total = int(steps[-1])
    share = float((weight * (ratio <= 1)).sum() / weight.sum())
    count = max(share * total, 1.0)
    exponent = min(0.5, 1 - math.log(count) / math.log(max(total, 2)))
    return Visits(total, share, float(np.nanmin(ratio)), max(0.0, exponent))
