"""Descent on f with g held within a limit, from exact gradients: feasible at every step.

The multiplier is the library's, :func:`tiebreak.rules.by_value` with the rate 1/η, of inner products in a metric H that
follows the curvature of f + λg (limited-memory BFGS)::

    x ← x − η H(∇f + λ∇g)        ⟨∇g, H(∇f + λ∇g)⟩ ≥ (g − limit + c)/η

so that a step ends at the limit or below it, to first order. c is what a trial overshot by: the curvature of g. A trial
that ends above the limit is not taken, nor is one that does not lower f. Multiplying either loss by a constant changes
nothing.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiebreak import rules

Values = NDArray[np.float64]
#: x ↦ the value and the gradient.
Objective = Callable[[Values], tuple[float, Values]]

__all__ = ["Descent", "Objective", "Values", "descend"]

_PAIRS = 10  # what the metric remembers
_TRIES = 4  # corrections of one step length
_HALVINGS = 30  # beyond, a step is lost in rounding
_ROUNDING = 1e-15  # as is a decrease of this share
_WINDOW = 5  # steps over which progress is measured
_ENOUGH = 1e-4  # the share of the first-order decrease of f that a step must make


class Descent(NamedTuple):
    """Where it ended, the multiplier of the last step, how many were made, and whether f had stopped to decrease."""

    x: Values
    multiplier: float
    steps: int
    converged: bool


class _Point(NamedTuple):
    x: Values
    f: float
    upper: Values
    g: float
    lower: Values


class _Pair(NamedTuple):
    """A step, and by how much it changed each gradient."""

    moved: Values
    upper: Values
    lower: Values


def descend(upper: Objective, lower: Objective, x: Values, limit: float, *, steps: int, accuracy: float) -> Descent:
    """Minimise f subject to g ≤ limit, from a point where that holds.

    Parameters
    ----------
    upper, lower : callable
        x ↦ (value, gradient) of f and of g.
    x : array
        The start, with g(x) ≤ limit.
    limit : float
    steps : int
        At most so many.
    accuracy : float
        It ends where five steps gained no more than this share of all that was gained.

    Examples
    --------
    In the unit disc, as far to the left as it goes:

    >>> found = descend(lambda x: (x[0], np.array([1.0, 0.0])), lambda x: (x @ x, 2 * x), np.zeros(2), 1.0,
    ...                 steps=100, accuracy=1e-6)
    >>> found.x.round(3) + 0.0, round(found.multiplier, 2), found.converged
    (array([-1.,  0.]), 0.5, True)
    """

    def at(x: Values) -> _Point:
        return _Point(x, *upper(x), *lower(x))

    here = at(np.asarray(x, dtype=np.float64))
    if not here.g <= limit:
        raise ValueError(f"limit={limit!r} must be no less than the lower objective at the start, {here.g!r}")
    norm = float(np.linalg.norm(here.upper))
    if norm == 0:
        return Descent(here.x, 0.0, 0, True)
    # Near its minimiser g is half a square in the coordinates of a linear model: the first step has the length of that
    # square's radius.
    unit = max((2 * (limit - here.g)) ** 0.5, 1e-8) / norm
    pairs: deque[_Pair] = deque(maxlen=_PAIRS)
    values, multiplier = [here.f], 0.0
    for made in range(steps):
        found = _step(at, here, limit, _metric(pairs, multiplier, unit))
        if found is None and pairs:  # the metric may be what is wrong
            pairs.clear()
            found = _step(at, here, limit, _metric(pairs, multiplier, unit))
        if found is None:  # nothing that floats can tell is lower
            return Descent(here.x, multiplier, made, True)
        there, multiplier = found
        pairs.append(_Pair(there.x - here.x, there.upper - here.upper, there.lower - here.lower))
        here = there
        values.append(here.f)
        if len(values) > _WINDOW and values[-1 - _WINDOW] - here.f <= accuracy * (values[0] - here.f):
            return Descent(here.x, multiplier, made + 1, True)
    return Descent(here.x, multiplier, steps, False)


def _step(
    at: Callable[[Values], _Point], here: _Point, limit: float, metric: Callable[[Values], Values]
) -> tuple[_Point, float] | None:
    """A point within the limit where f is lower, and the multiplier that led to it; None if there is none."""
    upper, lower = metric(here.upper), metric(here.lower)
    fg, gg = float(here.lower @ upper), float(here.lower @ lower)
    size = 1.0
    for _ in range(_HALVINGS):
        over = 0.0
        for _ in range(_TRIES):
            multiplier = float(rules.by_value(fg, gg, here.g, limit - over, rate=1 / size))
            there = at(here.x - size * (upper + multiplier * lower))
            if there.g <= limit:
                expected = float(here.upper @ (here.x - there.x))
                if expected > 0 and there.f <= here.f - _ENOUGH * expected and there.f < here.f:
                    return there, multiplier
                if abs(expected) < _ROUNDING * abs(here.f):
                    return None
                break
            if not np.isfinite(there.g):
                break
            over += 1.05 * (there.g - limit)
        size /= 2
    return None


def _metric(pairs: deque[_Pair], multiplier: float, unit: float) -> Callable[[Values], Values]:
    """H, as a function: the inverse curvature of f + λg as far as the last steps tell, by the two loops of L-BFGS."""
    known = []
    for pair in pairs:
        bent = pair.upper + multiplier * pair.lower
        curvature = float(pair.moved @ bent)
        if curvature > 1e-10 * float(np.linalg.norm(pair.moved) * np.linalg.norm(bent)):
            known.append((pair.moved, bent, curvature))

    def apply(vector: Values) -> Values:
        found, shares = vector.copy(), []
        for moved, bent, curvature in reversed(known):
            shares.append(float(moved @ found) / curvature)
            found -= shares[-1] * bent
        found *= known[-1][2] / float(known[-1][1] @ known[-1][1]) if known else unit
        for (moved, bent, curvature), share in zip(known, reversed(shares), strict=True):
            found += (share - float(bent @ found) / curvature) * moved
        return found

    return apply
