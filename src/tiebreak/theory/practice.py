"""Where the iterates really are: quasi-static models of SDBGD and of the penalty, and plans by them. Never bounds."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tiebreak import methods
from tiebreak.schedules import Power, Schedule, corollary_powers
from tiebreak.theory.bounds import Bounds, Laws, laws
from tiebreak.theory.choices import (
    BATCHES,
    Choice,
    Goal,
    corollary_laws,
    corollary_method,
    corollary_steps,
    largest_batch,
    plain_barrier,
    search,
)
from tiebreak.theory.constants import Constants, Values
from tiebreak.theory.penalties import penalty_smoothness, total_variance

FOLDS = 200.0  # e-foldings in which g's transient is taken to be over, where g curves with L_g
_MOST_STEPS = (
    3 * 10**4
)  # a step has a price besides its calls, and more steps hardly help
_LONGEST = 10**6  # steps that an accuracy may ask for
_NODES = np.linspace(0, 1, 40)[:, None]  # of log t / log K


@dataclass(frozen=True)
class Prediction(Bounds):
    """What a model expects of the last iterate; an estimate, never a bound.

    Attributes
    ----------
    at_worst : ‖d‖² where f is as slow as it can be along g's minimisers, Δ_f/Σηₖ: what a convex f never exceeds.
    shortfall : the time that the model needs over the time that the steps give; above 1 the transient is not over.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> planned = tiebreak.theory.plan(problem.constants, budget=10**6, objective="practice")
    >>> planned.prediction.steps == planned.steps, planned.prediction.direction_squared > 0
    (True, True)
    """

    at_worst: float = 0.0
    shortfall: float = 0.0


def predicted(schedule: Schedule, constants: Constants, steps: int) -> Prediction:
    """What to expect of the last iterate after the transient, by a quasi-static model; an estimate, never a bound.

    Where f still pulls (‖∇f‖ ≈ G_f) the iterate rests where d = 0: for SDBGD at ‖∇g‖ = s with s³ = G_f (ρ + ν_g²)/β and
    λ = G_f/s, for the penalty (a schedule without a regularizer) at ‖∇g‖ = G_f/β with λ = β. Noise shakes it there
    against the stiffness λL_g + L_f, and s itself shrinks, so the iterate lags behind. The penalty's model has a term
    for f on its way besides. A `note` says where the steps may not reach that far, and what is taken for granted.

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> schedule = tiebreak.anytime(0.25, step_size=1 / 6, barrier=1.0, lower_batch=0.01)
    >>> f"{predicted(schedule, problem.constants, 1027).lower_gradient_squared:.1e}"  # measured: 3.3e-03
    '3.4e-03'
    """
    c = constants
    penalty = schedule.regularizer is None
    last = laws(schedule, 1, steps - 1, regularized=not penalty)
    path = laws(schedule, steps, regularized=not penalty)
    holds = (path.barrier >= _holds_from(c, path.barrier[-1]) * (1 - 1e-9)) | (
        not penalty
    )
    time = float(np.sum(path.step_size[holds]))
    rates = path.step_size * path.barrier * c.L_g
    settled_from = 0  # the first step with the last value of β
    if (
        penalty
        and isinstance(schedule.barrier, Power)
        and schedule.barrier.stop is not None
    ):
        settled_from = min(steps, int(schedule.barrier.stop))
    g_time = max(float(np.sum(rates[settled_from:])), 1e-300)
    count = np.array([float(steps)])
    slope = np.array([_slope(schedule, steps)])
    if penalty:
        along = on_its_way(time, c) + wandering(path, 1.0, c)
        expected = _penalty_model(last, c, count, slope, along)
        units = (g_time, FOLDS)
        shortfall = FOLDS / g_time
    else:
        expected = _sdbgd_model(last, c, count, slope)
        units = (time, travel_time(c))
        shortfall = 0.99 * travel_time(c) / time
    direction = float(expected.direction_squared[0])
    at_worst = c.delta_f / time
    notes = []
    if shortfall > 1:
        notes.append(
            f"the transient may not be over: {units[0]:.2g} of {units[1]:.2g} units of time"
        )
    if at_worst > direction:
        notes.append(
            f"‖d‖² may still be {at_worst:.2g} where f is slow along the minimisers of g"
        )
    notes.append(
        f"both residuals are larger where g curves by less than {min(1.0, 5 / g_time):.1g} of L_g"
    )
    lower = float(expected.lower_gradient_squared[0])
    return Prediction(steps, lower, direction, "; ".join(notes), at_worst, shortfall)


def travel_time(constants: Constants) -> float:
    """8Δ_f/G_f²: four times as long as f would take to fall all the way if it always fell at its steepest."""
    return 8 * constants.delta_f / constants.G_f**2


def _holds_from(constants: Constants, last: Any) -> Any:
    """The penalty's weight from which on g leads, L_f/L_g, or its `last`: only then f travels along g's minimisers."""
    return np.minimum(constants.L_f / constants.L_g, last)


def on_its_way(time: Any, constants: Constants) -> Any:
    """‖∇f‖² along g's minimisers after this time: (R/time)², as for any convex f, with R = 4Δ_f/G_f for the way.

    A cone with its slope G_f has R = Δ_f/G_f, a quadratic whose slope at the start is G_f has 2Δ_f/G_f.
    """
    return (4 * constants.delta_f / (constants.G_f * time)) ** 2


def wandering(path: Any, counts: Any, c: Constants) -> Any:
    """‖∇f‖² from noise along g's minimisers, where nothing but f's own curvature μ brings the iterate back.

    μ² Σ η_t² (ν_f² + β_t²ν_g²) exp(−2μ ∫_t η): what was shaken in since 1/μ ago, for the worst of a few μ up to L_f.
    `path` has the steps along the first axis, each standing for `counts` of them.
    """
    passed = path.step_size * counts
    ahead = (
        np.cumsum(passed[::-1], axis=0)[::-1] - passed
    )  # time from each step to the end
    kicks = (
        path.step_size
        * passed
        * total_variance(path.barrier, path.upper_batch, path.lower_batch, c)
    )
    curvatures = c.L_f * np.array([1.0, 0.1, 0.01])
    return np.max(
        [mu**2 * np.sum(kicks * np.exp(-2 * mu * ahead), axis=0) for mu in curvatures],
        axis=0,
    )


def _slope(schedule: Schedule, steps: int) -> float:
    """How fast ‖∇g‖ at rest falls, as a power of t: s = (Gρ/β)^{1/3}, or G/β."""
    rho = schedule.regularizer
    beta = schedule.barrier
    if not isinstance(beta, Power):
        return 0.0
    if rho is None:
        if beta.start <= steps <= (beta.stop or steps):
            return beta.exponent
        return 0.0
    if isinstance(rho, Power):
        return (beta.exponent - rho.exponent) / 3
    return 0.0


class Expectation(NamedTuple):
    """What the model expects, and where it stops to hold: at a stiffness of 2, or where ∇g drowns in noise."""

    lower_gradient_squared: Values
    direction_squared: Values
    stiffness: Values  # η(L_f + λL_g)
    noise_share: Values  # ν_g² / ‖∇g‖²


def _sdbgd_model(p: Any, c: Constants, steps: Values, slope: Values) -> Expectation:
    """The resting point of SDBGD's step `steps`; s falls there as the power `slope` of the step."""
    resting = (c.G_f * (p.regularizer + c.sigma_g**2 / p.lower_batch) / p.barrier) ** (
        1 / 3
    )  # ‖∇g‖ where it rests
    lag = slope / (3 * p.step_size * p.barrier * c.L_g * steps)
    return _at_rest(p, c, steps, slope, resting, lag)


def _penalty_model(
    p: Any, c: Constants, steps: Values, slope: Values, along: Values
) -> Expectation:
    """The resting point of the penalty, β growing as the power `slope`, and ‖∇f‖² `along` g's minimisers."""
    lag = slope / (p.step_size * p.barrier * c.L_g * steps)
    expected = _at_rest(p, c, steps, slope, c.G_f / p.barrier, lag)
    return expected._replace(direction_squared=expected.direction_squared + along)


def _at_rest(
    p: Any, c: Constants, steps: Values, slope: Values, rest: Values, lag: Values
) -> Expectation:
    eta = p.step_size
    multiplier = c.G_f / rest
    nu_f2 = c.sigma_f**2 / p.upper_batch
    nu_g2 = c.sigma_g**2 / p.lower_batch
    stiffness = eta * (c.L_f + multiplier * c.L_g)
    shaking = np.where(stiffness < 2, stiffness / (2 - stiffness), np.inf) * (
        nu_f2 + multiplier**2 * nu_g2
    )
    direction = shaking + (slope * rest / (eta * c.L_g * steps)) ** 2
    lower = (rest * (1 + lag)) ** 2 + shaking / multiplier**2
    return Expectation(lower, direction, stiffness, nu_g2 / rest**2)


# ------------------------------------------------------------------------------------------------------- plans


def practical_sdbgd(goal: Goal) -> Choice:
    """a, ρ₀ and the batches by the model; η₀ and β₀ at their caps, because they set the pace."""
    c = goal.constants
    budget = goal.budget
    eta0 = c.largest_step_size

    def product(a: Values, *logs: Values) -> Values:
        constants = [eta0, 1.0, *(np.exp(log) for log in logs)]
        powers = corollary_powers(a)
        steps = corollary_steps(budget, constants, powers)
        last = corollary_laws(np.log(steps), constants, powers)
        expected = _sdbgd_model(
            last, c, steps, (powers["barrier"] - powers["regularizer"]) / 3
        )
        # The model speaks of the time after the transient, so time is needed: some e-foldings at rate βL_g to settle on
        # g, which is a must, and `travel_time` to travel with f, which g may make unnecessary.
        settling = 1 + powers["step_size"] + powers["barrier"]
        travelling = 1 + powers["step_size"]
        settled = np.minimum(1, eta0 * steps**settling / settling * c.L_g / 5)
        travelled = np.minimum(
            1, eta0 * steps**travelling / travelling / (travel_time(c) + 1e-300)
        )
        noisy = np.maximum(
            1, 4 * expected.noise_share
        )  # the model needs ‖∇g‖² to stand out of the noise
        value = (
            expected.lower_gradient_squared**1.5 * expected.direction_squared * noisy**6
        )
        return np.where(
            expected.stiffness < 1, value / (settled**6 * travelled), np.inf
        )  # half of what is stable

    size = largest_batch(goal)
    box = {
        "a": (0.05, 0.32),
        "regularizer": (-20.0, 20.0),
        "upper_batch": (-20.0, size),
        "lower_batch": (-35.0, size),
    }
    (a, *logs), edges = search(product, box, BATCHES)
    return corollary_method(a, eta0, 1.0, *map(math.exp, logs)), edges


class _Shape(NamedTuple):
    """A penalty's schedule by its ends: arrays of many, or one.

    Until t = `start` parameters are constant: f travels at a small weight, cheaply. From there on powers of t take
    over: β grows until t = `stop`, η falls all along, so that noise is averaged, and most of the budget goes into the
    last steps.
    """

    barrier: Any  # β at the end
    growth: Any  # β at the end over β at the start
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
        ratio = (
            c.sigma_f / (self.barrier * c.sigma_g)
            if c.sigma_g > 0
            else 1.0 + 0 * self.barrier
        )
        lower = (
            (budget - 2 * self.steps)
            * (self.swell + 1)
            / ((1 + ratio) * self.steps ** (self.swell + 1))
        )
        return ratio * lower, lower

    def at(self, t: Any, c: Constants, budget: float) -> Laws:
        """The laws at step t."""
        since = np.maximum(1, t / self.start)
        grown = np.clip(t, self.start, self.stop) / self.start
        eta = self.first_step(c) * since**-self.fall
        beta = self.barrier / self.growth * grown ** self.rise()
        upper, lower = (
            np.maximum(1, factor * t**self.swell) for factor in self.batches(c, budget)
        )
        return Laws(eta, beta, 0 * beta, upper, lower)


def practical_penalty(goal: Goal) -> Choice:
    """The smallest larger residual that the model expects; for an accuracy, with time for an f that is slow.

    The bound for growing weights holds for the schedule as well.
    """
    c = goal.constants
    budget = goal.budget
    epsilon = goal.epsilon
    patience = (
        0.0 if epsilon is None else 1.01 * c.delta_f / epsilon
    )  # Ση with which Δ_f/Ση is below ε
    if c.L_f * patience > _LONGEST:  # no step is longer than 1/L_f
        raise ValueError(
            f"epsilon={epsilon!r} must be at least {1.01 * c.delta_f * c.L_f / _LONGEST:.2g} for a plan for practice: "
            f"f may be so slow that less takes more than {_LONGEST:,} steps. Give a budget, or plan for the bound"
        )

    def larger(*point: Values) -> Values:
        shape = _shape(*point)
        t = np.exp(_NODES * np.log(shape.steps))
        path = shape.at(t, c, budget)
        end = shape.at(shape.steps, c, budget)
        counts = t * np.log(shape.steps) / (len(_NODES) - 1)
        # Time at a weight that holds g; f has to undo every earlier move.
        grown = np.minimum(
            _holds_from(c, end.barrier) * shape.growth / shape.barrier, shape.growth
        )
        since = np.where(
            grown > 1, grown ** (1 / np.maximum(shape.rise(), 1e-9)), 0.0
        )  # t/start; 0 if from the first
        first = np.where(grown > 1, _integral(-shape.fall, np.maximum(1, since)), -1.0)
        passed = _integral(-shape.fall, shape.steps / shape.start) - first
        time = shape.first_step(c) * shape.start * np.maximum(passed, 1e-300)
        along = on_its_way(time, c) + wandering(path, counts, c)
        expected = _penalty_model(end, c, shape.steps, 0 * shape.steps, along)
        # Time of the last stretch, with a constant β, to forget everything before.
        late = (
            end.step_size
            * end.barrier
            * c.L_g
            * shape.steps
            * -_integral(-shape.fall, shape.stop / shape.steps)
        )
        value = np.maximum(expected.lower_gradient_squared, expected.direction_squared)
        value = (
            value
            / np.minimum(1, late / FOLDS) ** 6
            * np.maximum(1, patience / time) ** 6
        )
        stiffest = shape.at(shape.stop, c, budget).step_size * penalty_smoothness(
            end.barrier, c
        )
        return np.where((stiffest <= 1) & (budget > 2 * shape.steps), value, np.inf)

    plain = plain_barrier(goal)
    most = min(max(_MOST_STEPS, 16 * c.L_f * patience), budget / 2)
    box = {
        "barrier": (plain - 4, plain + 6),
        "barrier's growth": (0.0, 8.0),
        "step_size": (-6.0, 0.0),
        "steps": (math.log(2), max(math.log(most), math.log(2) + 1e-9)),
        "start": (-8.0, -0.05),
        "stop": (-2.0, -0.05),
        "step_size's power": (0.0, 10.0),
        "batches' power": (0.0, 12.0),
    }
    natural = ("barrier's growth", "step_size", "steps", "stop")
    point, edges = search(larger, box, natural, rounds=120, restarts=2, spread=1.6)
    shape = _shape(*map(np.asarray, point))
    start = float(shape.start)
    swell = float(shape.swell)
    upper, lower = shape.batches(c, budget)
    schedule = Schedule(
        step_size=Power(
            (1 - 1e-12) * float(shape.first_step(c)), -float(shape.fall), start
        ),
        barrier=Power(
            float(shape.barrier / shape.growth),
            float(shape.rise()),
            start,
            float(shape.stop),
        ),
        upper_batch=Power(float(upper), swell),
        lower_batch=Power(float(lower), swell),
    )
    return methods.penalty.replace(schedule=schedule), edges


def _shape(*point: Values) -> _Shape:
    """From what is searched over: logarithms, but for the two powers; start and stop as shares of what comes after."""
    barrier, growth, share, steps, start, stop = (np.exp(x) for x in point[:6])
    stop = np.maximum(1.0, stop * steps)
    return _Shape(
        barrier, growth, share, steps, np.maximum(1.0, start * stop), stop, *point[6:]
    )


def _integral(power: Values, x: Values) -> Values:
    """∫ u^power from 1 to x."""
    near = np.abs(power + 1) < 1e-9
    return np.where(
        near, np.log(x), (x ** (power + 1) - 1) / np.where(near, 1.0, power + 1)
    )


#: By (method, kind): the plans by the model.
EXPECTED: Mapping[tuple[str, str], Callable[[Goal], Choice]] = MappingProxyType(
    {("sdbgd", "anytime"): practical_sdbgd, ("penalty", "horizon"): practical_penalty}
)
