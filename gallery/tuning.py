"""Every method gets the same number of trials on seeds that it is not judged on; how they are chosen among."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from gallery.example import OwnMethod
from gallery.methods import AnyMethod
from gallery.methods.method import Knobs, pick

__all__ = ["FIRST_TUNING_SEED", "Trial", "choose", "trials"]

FIRST_TUNING_SEED = 1000  # judging seeds are 0, 1, …


class Trial(NamedTuple):
    """A setting of the knobs, and what came of it on each tuning seed; NaN where a training did not finish."""

    knobs: Knobs
    excesses: Sequence[float]
    uppers: Sequence[float]


def trials(method: AnyMethod, count: int) -> list[Knobs]:
    """What is tried of a method's knobs; nothing where there is nothing to choose."""
    knobs = method.grid if isinstance(method, OwnMethod) else method.knobs
    return pick(knobs, count) if len(knobs) > 1 else []


def choose(tried: Sequence[Trial]) -> Knobs:
    """The knobs with the least upper loss among the trials inside the tolerance, else those nearest to it.

    Means over the tuning seeds decide. Both are losses on training data: no test data choose anything.

    >>> choose([Trial({"w": 1}, [0.9], [2.0]), Trial({"w": 2}, [0.5], [3.0]), Trial({"w": 3}, [1.2], [1.0])])
    {'w': 1}
    >>> choose([Trial({"w": 1}, [9.0], [2.0]), Trial({"w": 2}, [math.nan], [0.0]), Trial({"w": 3}, [3.0], [5.0])])
    {'w': 3}
    >>> choose([Trial({"w": 1}, [0.5], [math.nan]), Trial({"w": 2}, [0.5], [7.0])])
    {'w': 2}
    """

    def rank(trial: Trial) -> tuple[int, float]:
        excess, upper = _mean(trial.excesses), _mean(trial.uppers)
        if not math.isfinite(excess) or math.isnan(upper):
            return 2, 0.0
        return (0, upper) if excess <= 1 else (1, excess)

    return min(tried, key=rank).knobs


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
