"""Objectives as oracles: sampling is separate from evaluation."""

from tiebreak.oracles.finite_sum import FiniteSum
from tiebreak.oracles.sampling import Array as Array
from tiebreak.oracles.sampling import Exact, Gaussian, Oracle

__all__ = ["Exact", "FiniteSum", "Gaussian", "Oracle"]
