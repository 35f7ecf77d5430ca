"""The methods of tiebreak, with their published constants."""

from typing import Any

from benchopt import BaseSolver

import tiebreak


class Solver(BaseSolver):  # type: ignore[misc]  # benchopt has no types
    name = "tiebreak"
    parameters = {"method": list(tiebreak.methods.METHODS)}  # noqa: RUF012  # benchopt reads class attributes
    requirements = ["pip::tiebreak"]  # noqa: RUF012

    def set_objective(self, upper: Any, lower: Any, x0: Any) -> None:
        """Two oracles and a start."""
        self.problem = (upper, lower, x0)

    def run(self, calls: int) -> None:
        """A run with so many calls; benchopt asks for none at first, which is the start."""
        self.x = self.problem[-1]
        if calls:
            seed = self.get_seed(use_repetition=True)
            self.x = tiebreak.minimize(
                *self.problem, method=self.method, budget=calls, seed=seed, record=None
            ).x

    def get_next(self, calls: int) -> int:
        """Twice as many."""
        return max(100, 2 * calls)

    def get_result(self) -> dict[str, Any]:
        """The last iterate."""
        return {"x": self.x}
