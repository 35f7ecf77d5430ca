"""The paper's guarantees as functions: constants, bounds, complexities, plans, and what a run shows of them."""

from tiebreak.budget import steps_within
from tiebreak.theory.bounds import (
    Bounds,
    Terms,
    combined_descent,
    lower_descent,
    residual_bounds,
    terms,
    upper_descent,
)
from tiebreak.theory.complexity import (
    LOWER_BOUNDS,
    TABLE,
    Complexity,
    Exponents,
    Visits,
    exponents,
    least_complexity,
    rare_visits,
)
from tiebreak.theory.constants import Constants, EstimatedConstants, estimate_constants
from tiebreak.theory.penalties import lazy_bounds, penalty_bounds
from tiebreak.theory.plans import COMPUTED, Plan, oracle_complexity, plan
from tiebreak.theory.practice import Prediction, predicted
from tiebreak.theory.proved import proved

__all__ = [
    "COMPUTED",
    "LOWER_BOUNDS",
    "TABLE",
    "Bounds",
    "Complexity",
    "Constants",
    "EstimatedConstants",
    "Exponents",
    "Plan",
    "Prediction",
    "Terms",
    "Visits",
    "combined_descent",
    "estimate_constants",
    "exponents",
    "lazy_bounds",
    "least_complexity",
    "lower_descent",
    "oracle_complexity",
    "penalty_bounds",
    "plan",
    "predicted",
    "proved",
    "rare_visits",
    "residual_bounds",
    "steps_within",
    "terms",
    "upper_descent",
]
