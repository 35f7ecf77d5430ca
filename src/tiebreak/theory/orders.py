"""Orders: the paper's Table 1 and our own rows, as powers of 1/ε, and what no method beats."""

import math
from dataclasses import dataclass

__all__ = ["LOWER_BOUNDS", "TABLE", "Row", "known_orders"]


@dataclass(frozen=True)
class Row:
    """A row of Table 1: (ε, ε)-stationarity takes ε^−iterations steps, ε^−upper and ε^−lower calls.

    `key` is the method's name in :data:`tiebreak.methods.METHODS`, "" where it has no row there.
    """

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


_SMOOTH = "mean-squared smoothness"
#: The paper's Table 1, with the rare-visit exponent at its best, ς = 1/2, and below it our additions.
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
    Row("Penalty", "penalty", "stochastic", 2, 3, 4, "none", "ours: plain descent on f + βg, see the docs"),
    Row("Lazy penalty", "lazy_penalty", "stochastic", 2, 2.5, 4, "none", "ours: upper batches are held"),
    Row("SPIDER-Penalty", "spider_penalty", "stochastic", 2, 2, 3, _SMOOTH, "ours"),
    Row("STORM-Penalty", "storm_penalty", "stochastic", 2, 2, 3, _SMOOTH, "ours"),
    Row("STORM-SDBGD", "storm_sdbgd", "stochastic", 2, 3, 6, _SMOOTH, "ours"),
    Row("SPIDER-SDBGD", "spider_sdbgd", "stochastic", 2, 3, 6, _SMOOTH, "ours"),
)

#: What no method can beat, whatever its λ, up to a universal constant. Upper calls: only sketched, so left out.
LOWER_BOUNDS = (
    Row("no method below", "", "stochastic", 2, math.nan, 4, "none", "ours, from Carmon et al., Arjevani et al."),
    Row("no method below", "", "stochastic", 2, math.nan, 3, _SMOOTH, "ours, from Carmon et al., Arjevani et al."),
)


def known_orders(key: str) -> str:
    """What the table says of a method, in a few words; "" where it says nothing.

    Examples
    --------
    >>> known_orders("storm_sdbgd")
    'ε^−2 iterations, ε^−3 upper and ε^−6 lower calls'
    """
    row = next((row for row in TABLE if row.key == key), None)
    return (
        ""
        if row is None
        else f"ε^−{row.iterations:g} iterations, ε^−{row.upper:g} upper and ε^−{row.lower:g} lower calls"
    )
