"""Rates and complexities: the corollaries' exponents, the paper's Table 1, and numbers with their constants."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from tiebreak import methods
from tiebreak.checks import floating
from tiebreak.schedules import anytime, corollary_powers
from tiebreak.theory.constants import Constants
from tiebreak.theory.plans import plan

__all__ = ["TABLE", "Complexity", "Exponents", "Row", "exponents", "oracle_complexity"]


class Exponents(NamedTuple):
    """Powers of K: a residual falls as K^−e (times log K where `…_log`), and calls grow as K^e."""

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
class Row:
    """A row of Table 1: (ε, ε)-stationarity takes ε^−iterations steps, ε^−upper and ε^−lower calls."""

    name: str
    key: str
    setting: str
    iterations: float
    upper: float
    lower: float
    assumption: str
    source: str

    @property
    def calls(self) -> float:
        """The larger of the two exponents."""
        return max(self.upper, self.lower)


#: The paper's Table 1, with the rare-visit exponent at its best, ς = 1/2, and our addition, the plain penalty.
TABLE = (
    Row("DBGD", "dbgd", "deterministic", 2, 2, 2, "none", "Cao et al. 2025"),
    Row(
        "SDBPG",
        "sdbpg",
        "stochastic",
        2,
        4,
        6,
        "rare visits, ς = 1/2 (unverifiable); calls ε^−2/ς, ε^−3/ς",
        "Ahmadi et al. 2026",
    ),
    Row("PR-SDBPG", "pr_sdbpg", "stochastic", 4, 8, 10, "verifiable", "Ahmadi et al. 2026"),
    Row(
        "VR-PR-SDBPG", "vr_pr_sdbpg", "stochastic", 4, 6, 8, "verifiable; mean-squared smoothness", "Ahmadi et al. 2026"
    ),
    Row("SDBGD", "sdbgd", "stochastic", 2, 4, 7, "none", "the paper"),
    Row("Penalty", "penalty", "stochastic", 2, 3, 4, "none", "plain descent on f + βg; our addition, see the docs"),
)


@dataclass(frozen=True)
class Complexity:
    """What reaching (ε, ε)-stationarity takes; `exact` if with constants, else the bare power of 1/ε."""

    iterations: float
    upper_calls: float
    lower_calls: float
    exact: bool


def oracle_complexity(epsilon: float, method: str = "sdbgd", constants: Constants | None = None) -> Complexity:
    """Steps and calls that a theorem says are enough for E‖d‖² ≤ ε and E‖∇g‖² ≤ ε.

    With the problem's constants, for the methods that have a computable bound (SDBGD and the penalty): the smallest
    budget of any constant schedule whose bound is ε. Without them, for any method: the table's power of 1/ε, an order
    and no more.

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
    row = next((row for row in TABLE if methods.METHODS[row.key] is chosen), None)
    if row is None:
        raise ValueError(f"method={method!r} has no known complexity; known are {[r.key for r in TABLE]}")
    if constants is None:
        try:
            iterations, upper, lower = ((1 / epsilon) ** power for power in (row.iterations, row.upper, row.lower))
        except OverflowError:
            raise ValueError(f"epsilon={epsilon!r} is so small that no float holds the calls it takes") from None
        return Complexity(iterations, upper, lower, exact=False)
    if row.key not in ("sdbgd", "penalty"):
        raise ValueError(f"method={method!r} has no computable bound; with constants, give 'sdbgd' or 'penalty'")
    found: Any = plan(constants, epsilon=epsilon, method=row.key)
    return Complexity(found.steps, found.upper_calls, found.lower_calls, exact=True)
