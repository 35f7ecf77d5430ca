"""A search for the constants of a plan: few dimensions, cheap values, long skew valleys."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

__all__ = ["search"]


def search(function: Callable[..., Values], low: list[float], high: list[float]) -> list[float]:
    """Minimise over a box by the cross-entropy method: sample, keep the best, sample from their normal law.

    `function` takes an array per coordinate and looks at all points at once. The seed is fixed: a plan is a function of
    its arguments. The valleys are long and skew; the covariance follows them, a search by coordinates does not.
    """
    floor, ceiling, rng = np.array(low)[:, None], np.array(high)[:, None], np.random.default_rng(0)
    points = rng.uniform(floor, ceiling, (len(low), 4000))
    best, least = points[:, 0], np.inf
    for _ in range(80):
        with np.errstate(all="ignore"):
            values = function(*points)
        values = np.where(np.isfinite(values), values, np.inf)
        order = np.argsort(values)
        if values[order[0]] < least:
            best, least = points[:, order[0]], values[order[0]]
        elite = points[:, order[:50]]
        spread = np.linalg.cholesky(np.cov(elite) + 1e-12 * np.eye(len(low)))
        points = np.clip(
            elite.mean(axis=1, keepdims=True) + 1.1 * spread @ rng.standard_normal((len(low), 500)), floor, ceiling
        )
        points[:, 0] = best
    return [float(value) for value in best]
