"""Objectives as oracles: sampling is separate from evaluation. Users import these names from :mod:`tiebreak`."""

from tiebreak.oracles.finite_sum import FiniteSum as FiniteSum
from tiebreak.oracles.sampling import Array as Array
from tiebreak.oracles.sampling import Exact as Exact
from tiebreak.oracles.sampling import Gaussian as Gaussian
from tiebreak.oracles.sampling import Oracle as Oracle
