"""Curvature and noise from the gradients of a step, for an estimator that keeps its last mini-batch gradient."""

import math
from collections.abc import Callable

import numpy as np

from tiebreak.estimators.contract import WATCHED, Memory
from tiebreak.methods import Method
from tiebreak.oracles import Array
from tiebreak.solver.objective import Level
from tiebreak.stationarity import Values, dot

# Limits of x_0: curvatures are squared.
_SMALLEST = 1e-75
_LARGEST = 1e75


class CurvatureProbe:
    """Compares the gradients of a step. The names of its numbers are those of :data:`tiebreak.estimators.contract.WATCHED`.

    Parameters
    ----------
    method : Method
    start : array
        x_0. Its dtype says how finely points can be told apart.
    """

    def __init__(self, method: Method, start: Array) -> None:
        self.on = method.estimator.watches and not set(WATCHED).isdisjoint(method.needs)
        self._fineness = math.sqrt(np.finfo(start.dtype).eps)
        self._start = start
        size = float(np.abs(start).max(initial=0))
        if self.on and size and not _SMALLEST <= size <= _LARGEST:
            raise ValueError(
                f"x0 has {size:.3g} as its largest entry; method {method.name!r} takes 0, or one between {_SMALLEST:g} "
                f"and {_LARGEST:g}, since it squares what it learns of curvatures: measure x in other units"
            )
        self._evaluated: dict[str, list[Array]] = {"upper": [], "lower": []}

    def observed(self, name: str, level: Level) -> Callable[..., Array]:
        """Return the level's `evaluate`, whose gradients are kept for :meth:`compare` if the rule needs them."""
        if not self.on:
            return level.evaluate
        evaluated = self._evaluated[name]

        def evaluate(x: Array, needed: bool = True) -> Array:
            evaluated.append(level.evaluate(x, needed))
            return evaluated[-1]

        return evaluate

    def compare(
        self, x: Array, upper: Memory | None, lower: Memory | None
    ) -> dict[str, Values]:
        """Return the numbers of this step, given the memories of both levels before it, and forget its gradients."""
        size = np.sqrt(dot(x, x))
        moved = x - (x if upper is None else upper[0])
        away = x - self._start
        numbers = {
            "moved": dot(moved, moved),
            "away": dot(away, away),
            "resolution": self._fineness
            * np.where(size > 0, size, math.sqrt(x.shape[-1])),
        }
        for name, memory in (("upper", upper), ("lower", lower)):
            evaluated = self._evaluated[name]
            change = spread = np.zeros_like(x)
            if memory is not None:  # evaluated at x_k and at x_{k−1}
                change = evaluated[0] - evaluated[1]
                spread = evaluated[1] - memory[-1]
            numbers[f"{name}_change"] = dot(change, change)
            numbers[f"{name}_along"] = dot(change, moved)
            numbers[f"{name}_spread"] = dot(spread, spread)
            evaluated.clear()
        return numbers
