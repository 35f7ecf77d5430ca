"""Problems to try methods on: one file each, with its objectives, samplers, start and solution."""

from tiebreak.problems.paper import paper
from tiebreak.problems.problem import Problem
from tiebreak.problems.random import random_problem

__all__ = ["Problem", "paper", "random_problem"]
