"""The constants of the paper's assumptions: exact, or estimated from gradients by pilot runs."""

import math
from dataclasses import dataclass, fields, replace
from statistics import NormalDist
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from tiebreak import methods
from tiebreak.checks import nonnegative, whole
from tiebreak.oracles import Exact
from tiebreak.solver.minimize import minimize
from tiebreak.solver.objective import Level
from tiebreak.solver.result_warnings import unsaid

Values = NDArray[np.float64]
#: A number for f and a number for g, or the ends of an interval.
Pair: TypeAlias = tuple[float, float]

_RUN_UP = 12  # steps in which those of `auto` grow from rounding's size, by 4 each, to a part of ‖x₀‖


@dataclass(frozen=True)
class Constants:
    """What the theory needs to know of a problem (Assumptions 1 and 2).

    Parameters
    ----------
    L_f, L_g : float
        Smoothness: how fast ∇f and ∇g change; > 0.
    G_f : float
        A bound on ‖∇f‖; > 0.
    sigma_f, sigma_g : float
        σ² is the *total* variance of one stochastic gradient, E‖∇f_ξ − ∇f‖²: for noise of standard deviation s in each
        of d coordinates, σ = s√d.
    delta_f, delta_g : float
        f(x₀) − inf f and g(x₀) − inf g.

    Examples
    --------
    >>> import tiebreak
    >>> constants = tiebreak.problems.paper().constants
    >>> round(constants.sigma_f**2, 12)  # 0.5² in each of two coordinates
    0.5
    """

    L_f: float
    L_g: float
    G_f: float
    sigma_f: float
    sigma_g: float
    delta_f: float
    delta_g: float

    def __post_init__(self) -> None:
        for item in fields(Constants):
            nonnegative(
                item.name,
                getattr(self, item.name),
                positive=item.name in ("L_f", "L_g", "G_f"),
            )

    @property
    def largest_step_size(self) -> float:
        """1 / (2(L_f + 2L_g)), the theorem's cap on η."""
        return 1 / (2 * (self.L_f + 2 * self.L_g))

    def replace(self, **changes: Any) -> "Constants":
        """These constants with some changed."""
        return replace(self, **changes)


@dataclass(frozen=True)
class EstimatedConstants(Constants):
    """Constants as a pilot saw them: smoothness, G_f and Δ are the largest values met, so the truth may be larger.

    Attributes
    ----------
    sigma_f_interval, sigma_g_interval : pair of float
        For the largest σ_f and σ_g at the points that were looked at, with `confidence`: those of all points hold at
        once (Bonferroni).
    noise_smoothness : pair of float
        (ℓ_f, ℓ_g), which bounds of variance reduction need: the largest met, so the truth may be larger.
    upper_calls, lower_calls : int
        What the estimation spent.

    Examples
    --------
    >>> import tiebreak
    >>> found = estimate_constants(tiebreak.problems.paper(), seed=0)
    >>> low, high = found.sigma_g_interval
    >>> low < found.sigma_g < high, found.upper_calls > 0
    (True, True)
    """

    sigma_f_interval: Pair = (0.0, math.inf)
    sigma_g_interval: Pair = (0.0, math.inf)
    confidence: float = 0.95
    noise_smoothness: Pair = (math.inf, math.inf)
    upper_calls: int = 0
    lower_calls: int = 0

    def with_margin(self, factor: float = 2.0) -> "EstimatedConstants":
        """Each constant, ℓ too, `factor` times the estimate (σ: times its interval's upper end): for the careful.

        They stay estimates: no factor makes a constant known.
        """
        if not 1 <= factor < math.inf:
            raise ValueError(f"factor={factor!r} must be finite and ≥ 1")
        (low_f, high_f), (low_g, high_g) = self.sigma_f_interval, self.sigma_g_interval
        scaled = {
            name: factor * getattr(self, name)
            for name in ("L_f", "L_g", "G_f", "delta_f", "delta_g")
        }
        return replace(
            self,
            **scaled,
            sigma_f=factor * high_f,
            sigma_g=factor * high_g,
            sigma_f_interval=(low_f, factor * high_f),
            sigma_g_interval=(low_g, factor * high_g),
            noise_smoothness=(
                factor * self.noise_smoothness[0],
                factor * self.noise_smoothness[1],
            ),
        )

    def __str__(self) -> str:
        lines = [
            f"{name} ≈ {getattr(self, name):.4g}"
            for name in ("L_f", "L_g", "G_f", "delta_f", "delta_g")
        ]
        for name in ("sigma_f", "sigma_g"):
            low, high = getattr(self, f"{name}_interval")
            lines.append(
                f"{name} ≈ {getattr(self, name):.4g} in [{low:.4g}, {high:.4g}] ({self.confidence:.0%})"
            )
        lines.append(
            "noise smoothness: ℓ_f ≈ {:.4g}, ℓ_g ≈ {:.4g}".format(
                *self.noise_smoothness
            )
        )
        spent = f"{self.upper_calls:,} upper and {self.lower_calls:,} lower calls"
        return "\n".join(
            [
                "Estimates, from three pilot runs; the true constants may be larger.",
                *lines,
                spent,
            ]
        )


def estimate_constants(
    problem: Any,
    x0: Any = None,
    *,
    steps: int = 50,
    batch: int = 256,
    points: int = 8,
    repeats: int = 64,
    confidence: float = 0.95,
    seed: Any = None,
) -> EstimatedConstants:
    """Estimate the constants of the theory from stochastic gradients near x0.

    Three short pilots descend on f, on g and on both, as `auto` does. At `points` points along each the curvature is
    looked for by power iteration on gradient differences, the same samples at both points; the variance by `repeats`
    single samples; G_f as the largest mean gradient. Δ is the largest decrease that a pilot met, by the integral of the
    gradient. By default all of this spends about 270,000 calls.

    Parameters
    ----------
    problem : Problem or pair of oracles
        With `upper` and `lower`.
    x0 : array_like, optional
        Where to start; the problem's own start if it has one.
    steps, batch : int
        Length and batch size of each pilot.
    points, repeats : int
        Where, and how often, the variance is looked at.
    confidence : float
        Of the intervals for σ.
    seed : optional

    Examples
    --------
    >>> import tiebreak
    >>> problem = tiebreak.problems.paper()
    >>> estimated = estimate_constants(problem, seed=0)
    >>> 0.9 < estimated.L_g <= 1.01 and 0.9 < estimated.G_f <= 1.05
    True
    """
    if not hasattr(problem, "upper") and not (
        isinstance(problem, (tuple, list)) and len(problem) == 2
    ):
        raise TypeError(
            f"problem={problem!r} must be a Problem, or the pair (upper, lower)"
        )
    upper, lower = (
        (problem.upper, problem.lower) if hasattr(problem, "upper") else problem
    )
    point = getattr(problem, "x0", None) if x0 is None else x0
    if point is None:
        raise ValueError("x0=None: give the point to start from")
    start = np.array(point, dtype=np.float64)
    if start.size == 0 or not np.isfinite(start).all():
        raise ValueError("x0 must be finite and not empty")
    steps = whole("steps", steps)
    batch = whole("batch", batch)
    points = whole("points", points)
    if whole("repeats", repeats) < 8:
        raise ValueError(
            f"repeats={repeats!r} must be at least 8: an interval needs them"
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r} must be in (0, 1)")
    rng_f, rng_g, rng = default_rng(seed).spawn(3)
    # `auto` makes longer steps where there is less curvature, and so comes to where there is more.
    nothing = Exact(np.zeros_like, vectorized=True)
    pairs = ((upper, nothing), (lower, nothing), (upper, lower))
    pilots = [_path(f, g, start, batch, steps, rng) for f, g in pairs]
    reach = max(_away(pilots[2][0])) if pilots[2][1] else 0.0
    # A pilot follows a slope without curvature for ever, in ever longer steps: far points say nothing about a run.
    paths = [path if curved else path[_away(path) <= reach] for path, curved in pilots]
    places = np.concatenate(
        [path[np.linspace(0, len(path) - 1, points).astype(int)] for path in paths]
    )
    f = _Probe("upper", upper, start.shape, batch, rng_f).constants(
        places, paths[0], repeats, confidence
    )
    g = _Probe("lower", lower, start.shape, batch, rng_g).constants(
        places, paths[1], repeats, confidence
    )
    spent = (
        2 * (2 * (_RUN_UP + steps) - 1) * batch
    )  # alone and with the other; at two points but for the first step
    return EstimatedConstants(
        L_f=f.smoothness,
        L_g=g.smoothness,
        G_f=f.steepness,
        sigma_f=f.sigma,
        sigma_g=g.sigma,
        delta_f=f.decrease,
        delta_g=g.decrease,
        sigma_f_interval=f.interval,
        sigma_g_interval=g.interval,
        confidence=confidence,
        noise_smoothness=(f.roughness, g.roughness),
        upper_calls=f.calls + spent,
        lower_calls=g.calls + spent,
    )


def _away(path: Values) -> Values:
    """How far each point of a path is from its first."""
    return np.asarray(np.linalg.norm(path - path[0], axis=1))


def _path(
    upper: Any, lower: Any, start: Values, batch: int, steps: int, rng: Generator
) -> tuple[Values, bool]:
    """The points of a pilot, and whether it met any curvature."""
    method = methods.auto.replace(upper_batch=batch, lower_batch=batch)
    seed = int(rng.integers(2**63))
    options: dict[str, Any] = {
        "steps": _RUN_UP + steps,
        "seed": seed,
        "record": 1,
        "keep_iterates": True,
    }
    with unsaid():
        result = minimize(upper, lower, start, method=method, **options)
    path = np.asarray(result.history.x, dtype=np.float64).reshape(
        len(result.history), -1
    )
    curved = any(
        float(np.max(result.chosen[f"{level}_smoothness"])) > 0
        for level in ("upper", "lower")
    )
    return np.delete(path, slice(1, _RUN_UP + 1), axis=0), curved


class _LevelConstants(NamedTuple):
    """What a probe measures of its level."""

    smoothness: float
    steepness: float
    sigma: float
    interval: Pair
    decrease: float
    roughness: float
    calls: int


class _Probe:
    """Gradients of one level at any point, counted."""

    def __init__(
        self, name: str, oracle: Any, shape: tuple[int, ...], batch: int, rng: Generator
    ) -> None:
        self.level = Level(name, oracle, shape, np.dtype(np.float64))
        self.batch = batch
        self.rng = rng
        self.calls = 0

    def constants(
        self, places: Values, path: Values, repeats: int, confidence: float
    ) -> _LevelConstants:
        """The largest of what is measured at these places, and the decrease along the path."""
        smoothness = max(1e-12, *(self.curvature(place) for place in places))
        steepness = max(1e-12, *(self.steepness(place) for place in places))
        few = places[::3]
        # The largest of several estimates is mostly too large: only simultaneous intervals cover the largest value.
        each = 1 - (1 - confidence) / len(few)
        value, low, high = map(
            max,
            zip(*(self.variance(place, repeats, each) for place in few), strict=True),
        )
        interval = (math.sqrt(max(low, 0.0)), math.sqrt(high))
        decrease = self.decrease(path)
        roughness = max(self.roughness(place, repeats) for place in few)
        return _LevelConstants(
            smoothness,
            steepness,
            math.sqrt(value),
            interval,
            decrease,
            roughness,
            self.calls,
        )

    def gradient(self, x: Values, token: Any, size: int) -> Values:
        self.calls += size
        gradient: Values = np.asarray(
            self.level.gradient(x[None], token)[0], dtype=np.float64
        )
        if not np.isfinite(gradient).all():
            raise ValueError(
                f"the {self.level.name} gradient is not finite at a point of the pilot: {x!r}"
            )
        return gradient

    def token(self, size: int) -> Any:
        return self.level.draw([self.rng], [size])[0]

    def curvature(self, x: Values) -> float:
        """‖∇(x+hv) − ∇(x)‖/h for v that power iteration turns to where it is largest."""
        token = self.token(self.batch)
        h = _distance(x)
        largest = 0.0
        base = self.gradient(x, token, self.batch)
        direction = self.rng.standard_normal(len(x))
        for _ in range(6):
            direction = (
                self.gradient(x + h * _unit(direction), token, self.batch) - base
            ) / h
            largest = max(largest, float(np.linalg.norm(direction)))
            if largest == 0:
                break
        return largest

    def steepness(self, x: Values) -> float:
        """The norm of the mean gradient, from two independent batches: the square of one would add its noise."""
        first, second = (
            self.gradient(x, self.token(self.batch), self.batch) for _ in range(2)
        )
        return math.sqrt(max(0.0, float(first @ second)))

    def variance(
        self, x: Values, repeats: int, confidence: float
    ) -> tuple[float, float, float]:
        """Total variance of one sample, and an interval for it."""
        draws = np.stack([self.gradient(x, self.token(1), 1) for _ in range(repeats)])
        squares = (
            np.sum((draws - draws.mean(axis=0)) ** 2, axis=1) * repeats / (repeats - 1)
        )
        value = float(squares.mean())
        error = float(squares.std(ddof=1)) / math.sqrt(repeats)
        if value <= 1e-24 * float(
            np.sum(draws.mean(axis=0) ** 2)
        ):  # rounding, not noise
            return 0.0, 0.0, 0.0
        # On the scale of logarithms: a variance is positive, and the estimate skew.
        spread = (
            math.exp(NormalDist().inv_cdf((1 + confidence) / 2) * error / value)
            if value > 0
            else 1.0
        )
        return value, value / spread, value * spread

    def roughness(self, x: Values, repeats: int) -> float:
        """ℓ: how fast one sample's error changes with x, by its differences between two points, in some directions."""
        h = _distance(x)
        largest = 0.0
        tokens = [self.token(1) for _ in range(repeats)]
        base = np.stack([self.gradient(x, token, 1) for token in tokens])
        direction = self.rng.standard_normal(len(x))
        for _ in range(3):
            direction = _unit(direction)
            change = (
                np.stack(
                    [self.gradient(x + h * direction, token, 1) for token in tokens]
                )
                - base
            ) / h
            centered = change - change.mean(axis=0)
            variance = float(np.sum(centered**2)) / (repeats - 1)
            rounding = 1e-14 * float(np.sum(change.mean(axis=0) ** 2))
            rounding += 1e-16 * float(np.sum(base**2)) / repeats / h**2
            if variance <= rounding:
                break
            largest = max(largest, math.sqrt(variance))
            direction = centered.T @ (
                centered @ direction
            )  # towards where the samples differ most
        return largest

    def decrease(self, path: Values) -> float:
        """The largest fall below the start along the path: ∫⟨∇, dx⟩ by trapezoids, of one length each."""
        path = _evenly(path)
        slopes = [self.gradient(x, self.token(self.batch), self.batch) for x in path]
        falls = [
            float((a + b) @ (x - y)) / 2
            for a, b, x, y in zip(slopes, slopes[1:], path, path[1:], strict=False)
        ]
        return float(np.max(np.cumsum(falls), initial=0.0))


def _distance(x: Values) -> float:
    """How far apart two points are whose gradients are compared."""
    return 1e-4 * (1 + float(np.linalg.norm(x)) / math.sqrt(len(x)))


def _unit(direction: Values) -> Values:
    return direction / max(float(np.linalg.norm(direction)), 1e-300)


def _evenly(path: Values) -> Values:
    """As many points of the polygon, at equal distances along it."""
    lengths = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(path, axis=0), axis=1)))
    at = np.linspace(0.0, lengths[-1], len(path))
    return np.stack([np.interp(at, lengths, column) for column in path.T], axis=1)
