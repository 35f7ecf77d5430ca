"""Constants from gradients alone: what a pilot run sees of them. Estimates, and said to be."""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from tiebreak import methods
from tiebreak.checks import whole
from tiebreak.levels import Level
from tiebreak.oracles import Exact
from tiebreak.remarks import unsaid
from tiebreak.solve import minimize
from tiebreak.theory.constants import Constants

Values = NDArray[np.float64]

_RUN_UP = 12  # steps in which those of `auto` grow from rounding's size, by 4 each, to a part of ‖x₀‖

__all__ = ["EstimatedConstants", "estimate_constants"]


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

    sigma_f_interval: tuple[float, float] = (0.0, math.inf)
    sigma_g_interval: tuple[float, float] = (0.0, math.inf)
    confidence: float = 0.95
    noise_smoothness: tuple[float, float] = (math.inf, math.inf)
    upper_calls: int = 0
    lower_calls: int = 0

    def with_margin(self, factor: float = 2.0) -> "EstimatedConstants":
        """Each constant, ℓ too, `factor` times the estimate (σ: times its interval's upper end): for the careful.

        They stay estimates: no factor makes a constant known.
        """
        if not 1 <= factor < math.inf:
            raise ValueError(f"factor={factor!r} must be finite and ≥ 1")
        (low_f, high_f), (low_g, high_g) = self.sigma_f_interval, self.sigma_g_interval
        return replace(
            self,
            L_f=factor * self.L_f,
            L_g=factor * self.L_g,
            G_f=factor * self.G_f,
            sigma_f=factor * high_f,
            sigma_g=factor * high_g,
            delta_f=factor * self.delta_f,
            delta_g=factor * self.delta_g,
            sigma_f_interval=(low_f, factor * high_f),
            sigma_g_interval=(low_g, factor * high_g),
            noise_smoothness=(factor * self.noise_smoothness[0], factor * self.noise_smoothness[1]),
        )

    def __str__(self) -> str:
        lines = [f"{name} ≈ {getattr(self, name):.4g}" for name in ("L_f", "L_g", "G_f", "delta_f", "delta_g")]
        for name in ("sigma_f", "sigma_g"):
            low, high = getattr(self, f"{name}_interval")
            lines.append(f"{name} ≈ {getattr(self, name):.4g} in [{low:.4g}, {high:.4g}] ({self.confidence:.0%})")
        lines.append("noise smoothness: ℓ_f ≈ {:.4g}, ℓ_g ≈ {:.4g}".format(*self.noise_smoothness))
        spent = f"{self.upper_calls:,} upper and {self.lower_calls:,} lower calls"
        return "\n".join(["Estimates, from three pilot runs; the true constants may be larger.", *lines, spent])


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
    if not hasattr(problem, "upper") and not (isinstance(problem, (tuple, list)) and len(problem) == 2):
        raise TypeError(f"problem={problem!r} must be a Problem, or the pair (upper, lower)")
    upper, lower = (problem.upper, problem.lower) if hasattr(problem, "upper") else problem
    given = getattr(problem, "x0", None) if x0 is None else x0
    if given is None:
        raise ValueError("x0=None: give the point to start from")
    start = np.array(given, dtype=np.float64)
    if start.size == 0 or not np.isfinite(start).all():
        raise ValueError("x0 must be finite and not empty")
    steps, batch, points = whole("steps", steps), whole("batch", batch), whole("points", points)
    if whole("repeats", repeats) < 8:
        raise ValueError(f"repeats={repeats!r} must be at least 8: an interval needs them")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r} must be in (0, 1)")
    rngs = default_rng(seed).spawn(3)
    probes = [
        _Probe(*pair, start.shape, batch, rng)
        for pair, rng in zip((("upper", upper), ("lower", lower)), rngs, strict=False)
    ]
    # `auto` makes longer steps where there is less curvature, and so comes to where there is more.
    nothing = Exact(np.zeros_like, vectorized=True)
    pairs = ((upper, nothing), (lower, nothing), (upper, lower))
    pilots = [_path(f, g, start, batch, steps, rngs[2]) for f, g in pairs]
    reach = max(_away(pilots[2][0])) if pilots[2][1] else 0.0
    # A slope without curvature is followed for ever, in ever longer steps: what is out there says nothing of a run.
    paths = [path if curved else path[_away(path) <= reach] for path, curved in pilots]
    places = np.concatenate([path[np.linspace(0, len(path) - 1, points).astype(int)] for path in paths])
    spent = 2 * (2 * (_RUN_UP + steps) - 1) * batch  # alone and with the other; at two points but for the first step
    smooth = [max(probe.curvature(place) for place in places) for probe in probes]
    slopes = [max(probe.steepness(place) for place in places) for probe in probes]
    # The largest of several estimates is mostly too large: only intervals that hold at all points at once hold for it.
    each = 1 - (1 - confidence) / len(places[::3])
    looks = [[probe.variance(place, repeats, each) for place in places[::3]] for probe in probes]
    noise = [[max(parts) for parts in zip(*look, strict=True)] for look in looks]
    falls = [probe.decrease(path) for probe, path in zip(probes, paths, strict=False)]
    rough = [max(probe.roughness(place, repeats) for place in places[::3]) for probe in probes]
    intervals = [(math.sqrt(max(low, 0.0)), math.sqrt(high)) for _, low, high in noise]
    return EstimatedConstants(
        L_f=max(smooth[0], 1e-12),
        L_g=max(smooth[1], 1e-12),
        G_f=max(slopes[0], 1e-12),
        sigma_f=math.sqrt(noise[0][0]),
        sigma_g=math.sqrt(noise[1][0]),
        delta_f=falls[0],
        delta_g=falls[1],
        sigma_f_interval=intervals[0],
        sigma_g_interval=intervals[1],
        confidence=confidence,
        noise_smoothness=(rough[0], rough[1]),
        upper_calls=probes[0].calls + spent,
        lower_calls=probes[1].calls + spent,
    )


def _away(path: Values) -> Values:
    """How far each point of a path is from its first."""
    return np.asarray(np.linalg.norm(path - path[0], axis=1))


def _path(upper: Any, lower: Any, start: Values, batch: int, steps: int, rng: Generator) -> tuple[Values, bool]:
    """The points of a pilot, and whether it met any curvature."""
    method = methods.auto.replace(upper_batch=batch, lower_batch=batch)
    seed = int(rng.integers(2**63))
    with unsaid():
        found = minimize(
            upper, lower, start, method=method, steps=_RUN_UP + steps, seed=seed, record=1, keep_iterates=True
        )
    path = np.asarray(found.history.x, dtype=np.float64).reshape(len(found.history), -1)
    curved = any(float(np.max(found.chosen[f"{level}_smoothness"])) > 0 for level in ("upper", "lower"))
    return np.delete(path, slice(1, _RUN_UP + 1), axis=0), curved


class _Probe:
    """Gradients of one level at any point, counted."""

    def __init__(self, name: str, oracle: Any, shape: tuple[int, ...], batch: int, rng: Generator) -> None:
        self.level, self.batch, self.rng, self.calls = Level(name, oracle, shape, np.dtype(np.float64)), batch, rng, 0

    def gradient(self, x: Values, token: Any, size: int) -> Values:
        self.calls += size
        gradient: Values = np.asarray(self.level.gradient(x[None], token)[0], dtype=np.float64)
        if not np.isfinite(gradient).all():
            raise ValueError(f"the {self.level.name} gradient is not finite at a point of the pilot: {x!r}")
        return gradient

    def token(self, size: int) -> Any:
        return self.level.draw([self.rng], [size])[0]

    def curvature(self, x: Values, rounds: int = 6) -> float:
        """‖∇(x+hv) − ∇(x)‖/h for v that power iteration turns to where it is largest."""
        token, size = self.token(self.batch), self.batch
        base = self.gradient(x, token, size)
        direction = self.rng.standard_normal(len(x))
        largest, h = 0.0, 1e-4 * (1 + float(np.linalg.norm(x)) / math.sqrt(len(x)))
        for _ in range(rounds):
            direction = direction / max(float(np.linalg.norm(direction)), 1e-300)
            direction = (self.gradient(x + h * direction, token, size) - base) / h
            largest = max(largest, float(np.linalg.norm(direction)))
            if largest == 0:
                break
        return largest

    def steepness(self, x: Values) -> float:
        """The norm of the mean gradient, from two independent batches: the square of one would add its noise."""
        first, second = (self.gradient(x, self.token(self.batch), self.batch) for _ in range(2))
        return math.sqrt(max(0.0, float(first @ second)))

    def variance(self, x: Values, repeats: int, confidence: float) -> tuple[float, float, float]:
        """Total variance of one sample, and an interval for it."""
        draws = np.stack([self.gradient(x, self.token(1), 1) for _ in range(repeats)])
        squares = np.sum((draws - draws.mean(axis=0)) ** 2, axis=1) * repeats / (repeats - 1)
        value, error = float(squares.mean()), float(squares.std(ddof=1)) / math.sqrt(repeats)
        if value <= 1e-24 * float(np.sum(draws.mean(axis=0) ** 2)):  # rounding, not noise
            return 0.0, 0.0, 0.0
        # On the scale of logarithms: a variance is positive, and its estimate skew.
        spread = math.exp(NormalDist().inv_cdf((1 + confidence) / 2) * error / value) if value > 0 else 1.0
        return value, value / spread, value * spread

    def roughness(self, x: Values, repeats: int) -> float:
        """ℓ: how fast one sample's error changes with x, by its differences between two points, in some directions."""
        h, largest = 1e-4 * (1 + float(np.linalg.norm(x)) / math.sqrt(len(x))), 0.0
        tokens = [self.token(1) for _ in range(repeats)]
        base = np.stack([self.gradient(x, token, 1) for token in tokens])
        direction = self.rng.standard_normal(len(x))
        for _ in range(3):
            direction = direction / max(float(np.linalg.norm(direction)), 1e-300)
            change = (np.stack([self.gradient(x + h * direction, token, 1) for token in tokens]) - base) / h
            centered = change - change.mean(axis=0)
            variance = float(np.sum(centered**2)) / (repeats - 1)
            if (
                variance
                <= 1e-14 * float(np.sum(change.mean(axis=0) ** 2)) + 1e-16 * float(np.sum(base**2)) / repeats / h**2
            ):
                break  # rounding, not noise
            largest = max(largest, math.sqrt(variance))
            direction = centered.T @ (centered @ direction)  # towards where the samples differ most
        return largest

    def decrease(self, path: Values) -> float:
        """The largest fall below the start along the path: ∫⟨∇, dx⟩ by trapezoids, of one length each."""
        path = _evenly(path)
        slopes = [self.gradient(x, self.token(self.batch), self.batch) for x in path]
        falls = [float((a + b) @ (x - y)) / 2 for a, b, x, y in zip(slopes, slopes[1:], path, path[1:], strict=False)]
        return float(np.max(np.cumsum(falls), initial=0.0))


def _evenly(path: Values) -> Values:
    """As many points of the polygon, at equal distances along it."""
    lengths = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(path, axis=0), axis=1)))
    at = np.linspace(0.0, lengths[-1], len(path))
    return np.stack([np.interp(at, lengths, column) for column in path.T], axis=1)
