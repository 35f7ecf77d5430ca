"""The paper's guarantees as functions: constants, bounds, complexities, plans, and what a run shows of them."""

from tiebreak.budget import steps_within
from tiebreak.theory.bounds import Bounds, Terms, combined_descent, penalty_bounds, residual_bounds, terms
from tiebreak.theory.complexity import TABLE, Complexity, Exponents, exponents, oracle_complexity
from tiebreak.theory.constants import Constants
from tiebreak.theory.estimation import EstimatedConstants, estimate_constants
from tiebreak.theory.plans import Plan, plan
from tiebreak.theory.practice import predicted
from tiebreak.theory.visits import Visits, rare_visits

__all__ = [
    "TABLE",
    "Bounds",
    "Complexity",
    "Constants",
    "EstimatedConstants",
    "Exponents",
    "Plan",
    "Terms",
    "Visits",
    "combined_descent",
    "estimate_constants",
    "exponents",
    "oracle_complexity",
    "penalty_bounds",
    "plan",
    "predicted",
    "rare_visits",
    "residual_bounds",
    "steps_within",
    "terms",
]
