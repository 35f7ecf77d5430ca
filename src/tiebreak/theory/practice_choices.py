"""The penalty planned for practice: a weight that stays, then grows, while steps shrink and batches swell.

Until t = `start` parameters are constant: f travels at a small weight, cheaply. From there on powers of t take over: β
grows until t = `stop`, η falls all along, so that noise is averaged, and most of the budget goes into the last steps.
All its constants are chosen by the model (:mod:`tiebreak.theory.practice`); the bound for growing weights holds of it.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiebreak import methods
from tiebreak.methods import Method
from tiebreak.schedules import Power, Schedule
from tiebreak.theory.bounds import Laws
from tiebreak.theory.choices import Pair, fixed_penalty
from tiebreak.theory.constants import Constants
from tiebreak.theory.penalties import penalty_smoothness
from tiebreak.theory.practice import FOLDS, held_from, on_its_way, penalty_model, wandering
from tiebreak.theory.search import Found, search

Values = NDArray[np.float64]

__all__ = ["penalty_practice"]

_MOST_STEPS = 3 * 10**4  # a step has a price besides its calls, and more of them hardly help
_LONGEST = 10**6  # steps that an accuracy may ask for
_NODES = np.linspace(0, 1, 40)[:, None]  # of log t / log K
_NAMES = ("barrier", "barrier's growth", "step_size", "steps", "start", "stop", "step_size's power", "batches' power")
_NATURAL = ("barrier's growth", "step_size", "steps", "stop")  # whose edges are no accident


class _Shape(NamedTuple):
    """The schedule by its ends: arrays of many, or one."""

    barrier: Any  # β at the end
    growth: Any  # and how many times that at the start
    share: Any  # η L_0 at the start
    steps: Any
    start: Any
    stop: Any
    fall: Any  # η ~ t^−fall from `start` on
    swell: Any  # B ~ t^swell

    def rise(self) -> Any:
        """β ~ t^rise between start and stop."""
        return np.log(self.growth) / np.maximum(np.log(self.stop / self.start), 1e-9)

    def first_step(self, c: Constants) -> Any:
        """η at the start."""
        return self.share / penalty_smoothness(self.barrier / self.growth, c)

    def batches(self, c: Constants, budget: float) -> tuple[Any, Any]:
        """The factors of t^swell: σ_f to βσ_g, as is best for their sum; together they cost the budget."""
        ratio = c.sigma_f / (self.barrier * c.sigma_g) if c.sigma_g > 0 else 1.0 + 0 * self.barrier
        lower = (budget - 2 * self.steps) * (self.swell + 1) / ((1 + ratio) * self.steps ** (self.swell + 1))
        return ratio * lower, lower

    def at(self, t: Any, c: Constants, budget: float) -> Laws:
        """The laws at step t."""
        since, grown = np.maximum(1, t / self.start), np.clip(t, self.start, self.stop) / self.start
        eta, beta = self.first_step(c) * since**-self.fall, self.barrier / self.growth * grown ** self.rise()
        upper, lower = (np.maximum(1, factor * t**self.swell) for factor in self.batches(c, budget))
        return Laws(eta, beta, 0 * beta, upper, lower)


def penalty_practice(
    c: Constants, budget: float, ell: Pair | None, epsilon: float | None = None
) -> tuple[Method, Found]:
    """The smallest larger residual that the model expects; for an accuracy, with time for an f that is slow."""
    patience = 0.0 if epsilon is None else 1.01 * c.delta_f / epsilon  # Ση with which Δ_f/Ση is below ε
    if c.L_f * patience > _LONGEST:  # no step is longer than 1/L_f
        raise ValueError(
            f"epsilon={epsilon!r} must be at least {1.01 * c.delta_f * c.L_f / _LONGEST:.2g} for a plan for practice: "
            f"f may be so slow that less takes more than {_LONGEST:,} steps. Give a budget, or plan for the bound"
        )

    def worst(*point: Values) -> Values:
        shape = _shape(*point)
        t = np.exp(_NODES * np.log(shape.steps))
        path, end = shape.at(t, c, budget), shape.at(shape.steps, c, budget)
        counts = t * np.log(shape.steps) / (len(_NODES) - 1)
        x, eta0 = shape.steps / shape.start, shape.first_step(c)
        # Time at a weight that holds g: where f went before that, it has to leave again.
        grown = np.minimum(held_from(c, end.barrier) * shape.growth / shape.barrier, shape.growth)
        since = np.where(
            grown > 1, grown ** (1 / np.maximum(shape.rise(), 1e-9)), 0.0
        )  # t/start, 0 from the first step on
        first = np.where(grown > 1, _integral(-shape.fall, np.maximum(1, since)), -1.0)
        time = eta0 * shape.start * np.maximum(_integral(-shape.fall, x) - first, 1e-300)
        along = on_its_way(time, c) + wandering(path, counts, c)
        found = penalty_model(end, c, shape.steps, 0 * x, along)
        # Time to forget all that was before the last stretch, in which β does not change any more.
        late = end.step_size * end.barrier * c.L_g * shape.steps * -_integral(-shape.fall, shape.stop / shape.steps)
        value = np.maximum(found.lower_gradient_squared, found.direction_squared) / np.minimum(1, late / FOLDS) ** 6
        value = value * np.maximum(1, patience / time) ** 6
        stiffest = shape.at(shape.stop, c, budget).step_size * penalty_smoothness(end.barrier, c)
        return np.where((stiffest <= 1) & (budget > 2 * shape.steps), value, np.inf)

    plain = math.log(fixed_penalty(c, budget, ell)[0].schedule.at(0).barrier)
    most = min(max(_MOST_STEPS, 16 * c.L_f * patience), budget / 2)
    low = [plain - 4, 0.0, -6.0, math.log(2), -8.0, -2.0, 0.0, 0.0]
    high = [plain + 6, 8.0, 0.0, max(math.log(most), math.log(2) + 1e-9), -0.05, -0.05, 10.0, 12.0]
    found = search(worst, low, high, _NAMES, _NATURAL, rounds=120, restarts=2, spread=1.6)
    shape = _shape(*(np.asarray(x) for x in found.point))
    upper, lower = shape.batches(c, budget)
    eta, start, stop = (1 - 1e-12) * float(shape.first_step(c)), float(shape.start), float(shape.stop)
    schedule = Schedule(
        step_size=Power(eta, -float(shape.fall), start),
        barrier=Power(float(shape.barrier / shape.growth), float(shape.rise()), start, stop),
        upper_batch=Power(float(upper), float(shape.swell)),
        lower_batch=Power(float(lower), float(shape.swell)),
    )
    return methods.penalty.replace(schedule=schedule), found


def _shape(*point: Values) -> _Shape:
    """From what is searched over: logarithms, but for the two powers; start and stop as shares of what comes after."""
    barrier, growth, share, steps, start, stop = (np.exp(x) for x in point[:6])
    stop = np.maximum(1.0, stop * steps)
    return _Shape(barrier, growth, share, steps, np.maximum(1.0, start * stop), stop, *point[6:])


def _integral(power: Values, x: Values) -> Values:
    """∫ u^power from 1 to x."""
    near = np.abs(power + 1) < 1e-9
    return np.where(near, np.log(x), (x ** (power + 1) - 1) / np.where(near, 1.0, power + 1))
