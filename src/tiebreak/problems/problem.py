"""What a problem is."""

from dataclasses import dataclass

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
