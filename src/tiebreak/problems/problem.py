"""What a problem is."""

from dataclasses import dataclass
from typing import Any

from tiebreak.oracles import Array, Oracle
from tiebreak.theory.constants import Constants


@dataclass(frozen=True)
class Problem:
    """Two oracles, a start and, where they are known, the solution and the constants of the theory.

    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, steps=10, seed=0)
    >>> result.steps
    10
    """

    name: str
    upper: Oracle
    lower: Oracle
    x0: Array
    solution: Array | None = None
    constants: Constants | None = None


def constants_at(
    start: Array, f: Any, g: Any, G_f: float, sigma_f: float, sigma_g: float
) -> Constants:
    """The constants of two objectives that know their value, smoothness and infimum, `least`."""
    delta_f, delta_g = (float(level.value(start)) - level.least for level in (f, g))
    return Constants(
        f.smoothness, g.smoothness, G_f, sigma_f, sigma_g, delta_f, delta_g
    )
