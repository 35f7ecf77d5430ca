"""What a step learns besides its direction, where the estimator keeps its last mini-batch gradient."""

import math
from collections.abc import Callable

import numpy as np

from tiebreak.estimators.contract import WATCHED, Memory
from tiebreak.methods import Method
from tiebreak.oracles import Array
from tiebreak.solver.objective import Level
from tiebreak.stationarity import Values, dot

# of x_0: its curvatures are squared
_SMALLEST = 1e-75
_LARGEST = 1e75


class Watching:
    """Compares the gradients of a step; a value for each run. What it finds has the names of `Watched`.

    Parameters
    ----------
    method : Method
    start : array
        x_0. Its dtype says how finely points can be told apart.
    """

    def __init__(self, method: Method, start: Array) -> None:
        watches = method.estimator.watches
        self.on = watches and not set(WATCHED).isdisjoint(method.needs)
        self._fineness = math.sqrt(np.finfo(start.dtype).eps)
        self._start = start
        size = float(np.abs(start).max(initial=0))
        if self.on and size and not _SMALLEST <= size <= _LARGEST:
            raise ValueError(
                f"x0 has {size:.3g} as its largest entry; method {method.name!r} takes 0, or one between {_SMALLEST:g} "
                f"and {_LARGEST:g}, since it squares what it learns of curvatures: measure x in other units"
            )
        self._evaluated: dict[str, list[Array]] = {"upper": [], "lower": []}

    def noting(self, name: str, level: Level) -> Callable[..., Array]:
        """The level's `evaluate`, what it gives being noted."""
        evaluated = self._evaluated[name]

        def noted(x: Array, wanted: bool = True) -> Array:
            evaluated.append(level.evaluate(x, wanted))
            return evaluated[-1]

        return noted

    def found(
        self, x: Array, upper: Memory | None, lower: Memory | None
    ) -> dict[str, Values]:
        """What was noted of both levels in this step, which remembered so much before it; how far the run has come, and
        how short one may be to show a curvature.
        """
        size = np.sqrt(dot(x, x))
        last = x if upper is None else upper[0]
        resolution = self._fineness * np.where(size > 0, size, math.sqrt(x.shape[-1]))
        moved = x - last
        away = x - self._start
        seen = {
            "moved": dot(moved, moved),
            "away": dot(away, away),
            "resolution": resolution,
        }
        for name, memory in (("upper", upper), ("lower", lower)):
            evaluated = self._evaluated[name]
            if memory is None:  # the first step
                change = spread = np.zeros_like(x)
            else:  # at x_k and at x_{k−1}
                change = evaluated[0] - evaluated[1]
                spread = evaluated[1] - memory[-1]
            seen |= {
                f"{name}_change": dot(change, change),
                f"{name}_along": dot(change, moved),
            }
            seen[f"{name}_spread"] = dot(spread, spread)
            evaluated.clear()
        return seen
