"""Problems to try methods on: one file each, with its objectives, samplers, start and solution.

:func:`named` gives those of the test bed by name; :data:`tiebreak.problems.testbed.TESTBED` is its standard selection.
"""

from tiebreak.problems.paper import paper
from tiebreak.problems.problem import Problem
from tiebreak.problems.random import random_problem
from tiebreak.problems.testbed import named
from tiebreak.problems.worst import worst_case

__all__ = [
    "Problem",
    "named",
    "paper",
    "random_problem",
    "worst_case",
]
