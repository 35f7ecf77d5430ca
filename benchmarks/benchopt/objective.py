"""What is measured: both residuals, with exact gradients that no solver sees."""

from typing import Any

import numpy as np
from benchopt import BaseObjective
from benchopt.stopping_criterion import SufficientProgressCriterion

import tiebreak


class Objective(BaseObjective):  # type: ignore[misc]  # benchopt has no types
    name = "Simple bilevel optimization"
    requirements = ["pip::tiebreak"]  # noqa: RUF012  # benchopt reads class attributes
    min_benchopt_version = "1.8"
    sampling_strategy = "iteration"
    # Residuals may rise at first: patience.
    stopping_criterion = SufficientProgressCriterion(strategy="iteration", patience=6)

    def set_data(self, problem: str) -> None:
        """The problem of the test bed with this name; made here, since functions are not pickled."""
        self.problem = tiebreak.problems.named(problem)

    def get_objective(self) -> dict[str, Any]:
        """What a solver may use: two oracles and a start."""
        return {
            "upper": self.problem.upper,
            "lower": self.problem.lower,
            "x0": self.problem.x0,
        }

    def evaluate_result(self, x: Any) -> dict[str, float]:
        """The residuals at x. `value` is their sum: 0 where x is stationary and minimises g to first order."""
        upper, lower = (
            oracle.exact_gradient(x)
            for oracle in (self.problem.upper, self.problem.lower)
        )
        found = tiebreak.stationarity.residuals(upper, lower, 0.0)
        stationarity, gradient = (
            float(found.stationarity_squared),
            float(found.lower_gradient_squared),
        )
        return {
            "value": stationarity + gradient,
            "stationarity_squared": stationarity,
            "lower_gradient_squared": gradient,
            "upper_value": float(self.problem.upper.value(x)),
            "lower_value": float(self.problem.lower.value(x)),
        }

    def get_one_result(self) -> dict[str, Any]:
        """Something that can be evaluated."""
        return {"x": np.array(self.problem.x0)}
