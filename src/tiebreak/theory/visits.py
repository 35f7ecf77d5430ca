"""The rare-visit diagnostic: how often a run came to where ‖∇g‖² is small against ρ.

The analysis of SDBPG assumes that its trajectory rarely visits such places, with an exponent ς in (0, 1/2] that nobody
can know beforehand. Afterwards one can look. The original statement is not available to us; we read it as
#{k < K : ‖∇g(x_k)‖² ≤ ρ_k} = O(K^(1−ς)), ς at most 1/2. A finite run suggests a value; it proves nothing.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiebreak.result import History
from tiebreak.schedules import Law, Schedule

__all__ = ["Visits", "rare_visits"]


@dataclass(frozen=True)
class Visits:
    """How often, and how deep, runs visited small ‖∇g‖²; a posteriori only.

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
    """Look back at a run: `schedule` gives ρ_k. Best with ``record=1``; thinned records stand for the steps they skip.

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
        raise ValueError(f"schedule={schedule!r} must have a regularizer, or be the law of one")
    if len(history) < 2 or "lower_gradient_squared" not in history.columns:
        raise ValueError(
            "history must hold at least two records of lower_gradient_squared: run with record=1 and exact gradients"
        )
    steps = np.asarray(history.step)
    ratio = history.columns["lower_gradient_squared"][:-1] / np.array([law(int(k)) for k in steps[:-1]])[:, None]
    weight = np.diff(steps)[:, None] * np.isfinite(ratio)
    total = int(steps[-1])
    share = float((weight * (ratio <= 1)).sum() / weight.sum())
    count = max(share * total, 1.0)
    exponent = min(0.5, 1 - math.log(count) / math.log(max(total, 2)))
    return Visits(total, share, float(np.nanmin(ratio)), max(0.0, exponent))
