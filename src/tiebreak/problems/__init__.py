"""Problems to try methods on: one file each, with its objectives, samplers, start and solution."""

from tiebreak.problems.dictionary import DictionaryData, dictionary, dictionary_data, recovery
from tiebreak.problems.paper import paper
from tiebreak.problems.problem import Problem
from tiebreak.problems.random import random_problem
from tiebreak.problems.regression import RegressionData, regression, regression_data

__all__ = [
    "DictionaryData",
    "Problem",
    "RegressionData",
    "dictionary",
    "dictionary_data",
    "paper",
    "random_problem",
    "recovery",
    "regression",
    "regression_data",
]
