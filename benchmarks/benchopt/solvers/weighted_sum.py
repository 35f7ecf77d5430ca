"""Stochastic gradient descent on f + w g, one sample of each a step: what the others have to beat."""

from typing import Any

import numpy as np
from benchopt import BaseSolver


class Solver(BaseSolver):  # type: ignore[misc]  # benchopt has no types
    name = "weighted sum"
    parameters = {"weight": [1.0, 10.0], "step_size": [0.05]}  # noqa: RUF012  # benchopt reads class attributes

    def set_objective(self, upper: Any, lower: Any, x0: Any) -> None:
        """Two oracles and a start."""
        self.start = np.array(x0, dtype=np.float64)
        self.upper, self.lower = (
            oracle.bind(self.start.shape) if hasattr(oracle, "bind") else oracle
            for oracle in (upper, lower)
        )

    def run(self, calls: int) -> None:
        """Half as many steps as calls; the step falls as t^(-1/2), and does not grow with the weight."""
        rng = np.random.default_rng(self.get_seed(use_repetition=True))
        x = self.start.copy()
        for k in range(calls // 2):
            upper, lower = (
                level.gradient(x, level.sample(rng, 1))
                for level in (self.upper, self.lower)
            )
            x = x - self.step_size / (1 + self.weight) / (k + 1) ** 0.5 * (
                upper + self.weight * lower
            )
        self.x = x

    def get_next(self, calls: int) -> int:
        """Twice as many."""
        return max(100, 2 * calls)

    def get_result(self) -> dict[str, Any]:
        """The last iterate."""
        return {"x": self.x}
