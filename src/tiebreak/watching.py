"""What a step learns besides its direction, where the estimator keeps its last mini-batch gradient."""

import math
from collections.abc import Sequence

import numpy as np

from tiebreak.estimators import Memory
from tiebreak.methods import Method
from tiebreak.oracles import Array
from tiebreak.stationarity import Values, dot

__all__ = ["Watching"]


class Watching:
    """Compares the gradients of a step; a value for each run. What it finds has the names of `Watched`.

    Parameters
    ----------
    method : Method
    start : array
        x_0. Its dtype says how finely points can be told apart.
    """

    def __init__(self, method: Method, start: Array) -> None:
        self.on = bool(getattr(method.estimator, "watches", False))
        self._fineness = math.sqrt(np.finfo(start.dtype).eps)
        self._start = start
        self._seen: dict[str, Values] = {}

    def see(self, level: str, evaluated: Sequence[Array], memory: Memory) -> None:
        """A level's gradients of this step, at x_k and at x_{k−1}, and what it remembered before."""
        if memory is None:  # the first step
            self._seen |= dict.fromkeys((f"{level}_change", f"{level}_spread"), np.zeros(len(evaluated[0])))
            return
        change, spread = evaluated[0] - evaluated[1], evaluated[1] - memory[-1]
        self._seen |= {f"{level}_change": dot(change, change), f"{level}_spread": dot(spread, spread)}

    def found(self, x: Array, memory: Memory) -> dict[str, Values]:
        """What was seen of both levels, how far the run has come, and how short one may be to show a curvature."""
        size, last = np.sqrt(dot(x, x)), x if memory is None else memory[0]
        resolution = self._fineness * np.where(size > 0, size, math.sqrt(x.shape[-1]))
        moved, away = x - last, x - self._start
        return self._seen | {"moved": dot(moved, moved), "away": dot(away, away), "resolution": resolution}
