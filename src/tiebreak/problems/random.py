"""Random problems of any dimension whose constants are known, to try methods and theory on.

::

    f(x) = √(1 + ‖A(x−c)‖²) + κ (1 − cos⟨u, x−c⟩)      u the top right singular vector of A
    g(x) = Σ_i w_i φ_i(⟨v_i, x⟩)                       φ(t) = 1 − cos t and 1 − exp(−t²/2) in turn

There are half as many v_i as dimensions, so from two dimensions on the minimisers of g fill whole subspaces, on which f
breaks the tie. Neither function is convex. The constants of Assumption 2 follow from A, κ, w, v and the noise, and none
of them can be made smaller.
"""

import math
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from tiebreak.checks import whole
from tiebreak.oracles import Array, Exact, Gaussian, Oracle
from tiebreak.problems.landscapes import Values
from tiebreak.problems.problem import Problem, constants_at


class _Upper:
    """f as two terms, each with a weight, 1 unless told otherwise."""

    def __init__(self, rng: Generator, dimension: int) -> None:
        # ‖A‖ and κ
        self.norm = rng.uniform(0.5, 2)
        self.ripple = rng.uniform(0.2, 0.8)
        scales = np.append(self.norm, self.norm * rng.uniform(0.2, 1, dimension - 1))
        first, right = (_orthogonal(rng, dimension) for _ in range(2))
        self.matrix = np.ascontiguousarray(first * scales @ right.T)
        self.transposed = np.ascontiguousarray(self.matrix.T)
        self.direction = right[:, 0].copy()
        self.center = rng.normal(0, 2, dimension)
        # ∇²√(1+‖y‖²) lies between 0 and I, with equality at y = 0; the second derivative of the ripple lies between −κ
        # and κ. Each is largest at c, along u.
        self.smoothness = self.norm**2 + self.ripple
        # Along u, far out, the slope of the first term tends to ‖A‖, and the ripple's is κ again and again.
        self.slopes = np.array([self.norm, self.ripple])
        self.least = 1.0  # both terms are least at c

    def value(self, x: Array, weights: Any = (1.0, 1.0)) -> Any:
        first, second = _unstacked(weights)
        y, t = self._arguments(x)
        return first * np.sqrt(1 + np.vecdot(y, y)) + second * self.ripple * (
            1 - np.cos(t)
        )

    def gradient(self, x: Array, weights: Any = (1.0, 1.0)) -> Any:
        first, second = _unstacked(weights)
        y, t = self._arguments(x)
        pull = (
            _times(y, self.transposed)
            * (first / np.sqrt(1 + np.vecdot(y, y)))[..., None]
        )
        return pull + (second * self.ripple * np.sin(t))[..., None] * self.direction

    def _arguments(self, x: Array) -> tuple[Values, Values]:
        offset = x - self.center
        return _times(offset, self.matrix), np.vecdot(offset, self.direction)


class _Lower:
    """g as m terms, each with a weight, 1 unless told otherwise."""

    def __init__(self, rng: Generator, dimension: int) -> None:
        terms = (dimension + 1) // 2
        self.vectors = rng.normal(size=(terms, dimension))
        self.vectors *= (
            rng.uniform(0.5, 1.5, terms) / np.linalg.norm(self.vectors, axis=1)
        )[:, None]
        self.transposed = np.ascontiguousarray(self.vectors.T)
        self.scales = rng.uniform(0.3, 1.5, terms)
        self.waves = (
            np.arange(terms) % 2 == 0
        )  # where φ is 1 − cos; a well, 1 − exp(−t²/2), elsewhere
        # |φ''| ≤ 1 = φ''(0) for both: ∇²g = Σ w φ'' v vᵀ is largest at 0.
        self.smoothness = float(
            np.linalg.eigvalsh(self.transposed * self.scales @ self.vectors)[-1]
        )
        # |φ'| ≤ 1 for waves, at t = π/2, and ≤ e^{−1/2} for wells, at t = 1; the v_i are independent, so some x is at
        # the worst place of every term at once.
        steepest = np.where(self.waves, 1.0, math.exp(-0.5))
        self.slopes = self.scales * steepest * np.linalg.norm(self.vectors, axis=1)
        self.least = 0.0  # at 0

    def value(self, x: Array, weights: Any = 1.0) -> Any:
        t = _times(x, self.vectors)
        return (
            weights
            * self.scales
            * (1 - np.where(self.waves, np.cos(t), np.exp(-0.5 * t * t)))
        ).sum(axis=-1)

    def gradient(self, x: Array, weights: Any = 1.0) -> Any:
        t = _times(x, self.vectors)
        slopes = np.where(self.waves, np.sin(t), t * np.exp(-0.5 * t * t))
        return _times(weights * self.scales * slopes, self.transposed)


class _RandomWeights(Exact):
    """Every term of an objective has a random weight 1 + s·N(0, 1): multiplicative noise, none where a term is flat.

    A sample is the gradient of a function, and its variance is s² Σ ‖∇term‖². A batch's mean weight is drawn from its
    exact law, 1 + s·N(0, 1/B).
    """

    def __init__(self, level: _Upper | _Lower, scale: float) -> None:
        super().__init__(level.gradient, level.value, vectorized=True)
        self._weights = Gaussian(level.gradient, scale, shape=level.slopes.shape)

    def sample(self, rng: Generator, size: int) -> Any:
        """How far a batch's mean weights are from 1."""
        return self._weights.sample(rng, size)

    def sample_block(self, rngs: Any, sizes: Any) -> Any:
        """The same for several steps and runs."""
        return self._weights.sample_block(rngs, sizes)

    def gradient(self, x: Array, token: Any = None) -> Any:
        """The gradient with the batch's weights."""
        return self._gradient(x, 1 + token)

    def value(self, x: Array, token: Any = None) -> Any:
        """The value, with the batch's weights if there is a batch."""
        assert self._value is not None
        return self._value(x) if token is None else self._value(x, 1 + token)


def random_problem(
    dimension: int = 5, seed: int = 0, noise: str = "additive"
) -> Problem:
    """A random problem with known constants.

    Parameters
    ----------
    dimension : int
        At least 1.
    seed : int
        At least 0; with the dimension, it determines both functions, the start and the strength of the noise.
    noise : {"additive", "multiplicative"}
        Normal noise on every coordinate of a sampled gradient, or a random weight on every term of f and g: then the
        noise depends on x, vanishes with the gradient, and is bounded because the terms' gradients are.

    Examples
    --------
    >>> import tiebreak
    >>> problem = random_problem(dimension=10, seed=3, noise="multiplicative")
    >>> method = tiebreak.theory.plan(problem.constants, budget=10**6)
    >>> result = tiebreak.minimize(problem.upper, problem.lower, problem.x0, method=method, budget=10**6, seed=0)
    >>> bool(result.last.lower_value < problem.constants.delta_g)
    True
    """
    size = whole("dimension", dimension)
    if noise not in ("additive", "multiplicative"):
        raise ValueError(f"noise={noise!r} must be 'additive' or 'multiplicative'")
    rng = default_rng([whole("seed", seed, least=0), size])
    f = _Upper(rng, size)
    g = _Lower(rng, size)
    start = rng.normal(0, 2, size)
    strength = rng.uniform(0.3, 1, 2).tolist()

    def noisy(level: _Upper | _Lower, s: float) -> tuple[Oracle, float]:
        """The oracle, and σ, whose square is the total variance."""
        if noise == "additive":  # s² in each coordinate
            return Gaussian(
                level.gradient, s, level.value, shape=(size,), vectorized=True
            ), s * math.sqrt(size)
        return _RandomWeights(level, s), s * float(
            np.linalg.norm(level.slopes)
        )  # s² Σ ‖∇term‖², each at its largest

    (upper, sigma_f), (lower, sigma_g) = noisy(f, strength[0]), noisy(g, strength[1])
    constants = constants_at(start, f, g, float(f.slopes.sum()), sigma_f, sigma_g)
    return Problem(
        f"random-{size}-{seed}-{noise}", upper, lower, start, None, constants
    )


def _orthogonal(rng: Generator, dimension: int) -> Values:
    return np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]


def _times(x: Array, rows: Values) -> Values:
    """⟨x, row⟩ for every row; unlike a matrix product, to the same last bit however many points there are."""
    return np.vecdot(x[..., None, :], rows)  # type: ignore[no-any-return]  # a ufunc's result is Any


def _unstacked(weights: Any) -> tuple[Any, Any]:
    pair = np.asarray(weights)
    return pair[..., 0], pair[..., 1]
