"""Performance profiles (Dolan and Moré, 2002) of what methods reach with a fixed budget.

A residual r_{p,s} of method s on problem p is compared with the least that any method reached there::

    ratio_{p,s} = r_{p,s} / min_s r_{p,s}         ρ_s(τ) = share of the problems p with ratio_{p,s} ≤ τ

ρ_s(1) is how often the method is best, ties included; ρ_s(∞) how often it does not fail. A failure has the residual ∞.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

#: Residuals below this, in the problem's units, are rounding: they count as equal.
FLOOR = 1e-24


def ratios(residuals: Any) -> Values:
    """Each residual over the least of its row, a row for each problem and a column for each method; ∞ for failures.

    >>> ratios([[1.0, 2.0], [3.0, np.inf], [np.inf, np.inf]])
    array([[ 1.,  2.],
           [ 1., inf],
           [inf, inf]])
    """
    values = np.asarray(residuals, dtype=np.float64)
    raised = np.where(np.isnan(values), np.inf, np.maximum(values, FLOOR))
    least = raised.min(axis=1, keepdims=True)
    with np.errstate(
        all="ignore"
    ):  # ∞/∞ where all failed; and a ratio may be beyond floats
        return np.where(np.isfinite(raised), raised / least, np.inf)


def profile(found: Any, taus: Any) -> Values:
    """ρ(τ) for every τ and every method, (taus, methods), from the ratios (problems, methods).

    >>> profile([[1.0, 2.0], [1.0, np.inf]], [1, 2, 1e9])
    array([[1. , 0. ],
           [1. , 0.5],
           [1. , 0.5]])
    """
    counted = np.sort(np.asarray(found, dtype=np.float64), axis=0)
    factors = np.asarray(taus, dtype=np.float64)
    shares = [
        np.searchsorted(column, factors, side="right") / len(column)
        for column in counted.T
    ]
    return np.stack(shares, axis=1)


def grid(found: Any, largest: float = 1e4) -> Values:
    """Where the profiles of these ratios jump, from 1 to the largest of interest: the corners of their curves."""
    every = np.unique(np.asarray(found, dtype=np.float64))
    return np.unique(np.concatenate([[1.0], every[every <= largest], [largest]]))
