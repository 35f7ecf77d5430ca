"""A search for the constants of a plan: few dimensions, cheap values, long skew valleys."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

__all__ = ["Found", "improved", "search"]


class Found(NamedTuple):
    """Where a search ended, and which coordinates it would have liked to take further than its box."""

    point: list[float]
    value: float
    edges: tuple[str, ...] = ()


def search(
    function: Callable[..., Values],
    low: Sequence[float],
    high: Sequence[float],
    names: Sequence[str] = (),
    natural: Sequence[str] = (),
    rounds: int = 80,
    restarts: int = 1,
    spread: float = 1.1,
) -> Found:
    """Minimise over a box by the cross-entropy method: sample, keep the best, sample from their normal law.

    `function` takes an array per coordinate and looks at all points at once. The seed is fixed: a plan is a function of
    its arguments. The valleys are long and skew; the covariance follows them, a search by coordinates does not.

    Parameters
    ----------
    function : callable
    low, high : sequence of float
        The box.
    names : sequence of str
        Of the coordinates: those that end at an edge of the box are named in `edges`.
    natural : sequence of str
        Those whose edges are no accident: a legal range ends there.
    rounds : int
        Of 500 points each.
    restarts : int
        From so many first draws, for functions with several valleys; the best end counts.
    spread : float
        How much wider than the best points the next ones are: more where the valley is long and bends.
    """
    floor, ceiling = np.array(low)[:, None], np.array(high)[:, None]
    best, least = min(
        (_descended(function, floor, ceiling, rounds, seed, spread) for seed in range(restarts)), key=_value
    )
    near = np.minimum(best - floor[:, 0], ceiling[:, 0] - best) <= 1e-3 * (ceiling - floor)[:, 0]
    edges = tuple(name for name, at in zip(names, near, strict=False) if at and name not in natural)
    return Found([float(value) for value in best], float(least), edges)


def _value(end: tuple[Values, float]) -> float:
    return end[1]


def _descended(
    function: Callable[..., Values], floor: Values, ceiling: Values, rounds: int, seed: int, wider: float
) -> tuple[Values, float]:
    """One run of the method: where it ended, and the value there."""
    low, rng = floor[:, 0], np.random.default_rng(seed)
    points = rng.uniform(floor, ceiling, (len(low), 4000))
    best, least = points[:, 0], float("inf")
    for _ in range(rounds):
        with np.errstate(all="ignore"):
            values = function(*points)
        values = np.where(np.isfinite(values), values, np.inf)
        order = np.argsort(values)
        if values[order[0]] < least:
            best, least = points[:, order[0]], values[order[0]]
        elite = points[:, order[:50]]
        spread = np.linalg.cholesky(np.cov(elite) + 1e-12 * np.eye(len(low)))
        points = np.clip(
            elite.mean(axis=1, keepdims=True) + wider * spread @ rng.standard_normal((len(low), 500)), floor, ceiling
        )
        points[:, 0] = best
    return best, float(least)


def improved(function: Callable[..., float], point: Sequence[float]) -> list[float]:
    """A point near this one with a smaller value: one coordinate at a time, by factors that shrink.

    For functions with steps in them, of whole numbers, where the smooth search has led close. Coordinates are positive.

    Examples
    --------
    >>> [round(x) for x in improved(lambda x, y: (x - 3) ** 2 + (y - x) ** 2, [2.0, 5.0])]
    [3, 3]
    """
    best, least = list(point), function(*point)
    for step in (0.3, 0.1, 0.03, 0.01, 0.003):
        for _ in range(8):
            before = least
            for i in range(len(best)):
                for factor in (1 + step, 1 / (1 + step)):
                    trial = [x * factor if j == i else x for j, x in enumerate(best)]
                    # A whole number that small is not moved by so small a factor.
                    if best[i] >= 1 and abs(trial[i] - best[i]) < 1:
                        trial[i] = best[i] + (1 if factor > 1 else -1) * (abs(best[i] - round(best[i])) < 1e-9)
                        trial[i] = trial[i] if trial[i] != best[i] else best[i] * factor
                    value = function(*trial)
                    if value < least:
                        best, least = trial, value
            if least >= before * (1 - 1e-6):
                break
    return best
