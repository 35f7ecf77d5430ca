"""The paper's guarantees as functions: constants, bounds, complexities, plans, and what a run shows of them."""

from tiebreak.solver.budget import steps_within
from tiebreak.theory.bounds import (
    combined_descent,
    lower_descent,
    residual_bounds,
    terms,
    upper_descent,
)
from tiebreak.theory.complexity import exponents, least_complexity, rare_visits
from tiebreak.theory.constants import Constants, estimate_constants
from tiebreak.theory.penalties import lazy_bounds, penalty_bounds
from tiebreak.theory.plans import oracle_complexity, plan
from tiebreak.theory.proved import proved

__all__ = [
    "Constants",
    "combined_descent",
    "estimate_constants",
    "exponents",
    "lazy_bounds",
    "least_complexity",
    "lower_descent",
    "oracle_complexity",
    "penalty_bounds",
    "plan",
    "proved",
    "rare_visits",
    "residual_bounds",
    "steps_within",
    "terms",
    "upper_descent",
]
