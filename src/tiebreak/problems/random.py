"""Random problems of any dimension whose constants are known, to try methods and theory on.

::

    f(x) = √(1 + ‖A(x−c)‖²) + κ (1 − cos⟨u, x−c⟩)      u the top right singular vector of A
    g(x) = Σ_i w_i φ_i(⟨v_i, x⟩)                       φ(t) = 1 − cos t and 1 − exp(−t²/2) in turn

There are half as many v_i as dimensions, so from two dimensions on the minimisers of g fill whole subspaces, on which f
breaks the tie. Neither function is convex. The constants of Assumption 2 follow from A, κ, w, v and the noise, and none
of them can be made smaller.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator, default_rng

from tiebreak.checks import whole
from tiebreak.oracles.sampling import Array, Gaussian, Oracle, known
from tiebreak.problems.landscapes import Values
from tiebreak.problems.problem import Problem, constants_at

_ONES = np.ones(2)


class _Terms(NamedTuple):
    """An objective of several terms, each with a weight, and the constants for weights of 1.

    `value` and `gradient` take a point and the weights, which are 1 by default. `slopes` are the largest norms of the
    terms' gradients.
    """

    value: Callable[..., Any]
    gradient: Callable[..., Any]
    smoothness: float
    slopes: Values
    least: float


def _upper(rng: Generator, dimension: int) -> _Terms:
    """f as two terms."""
    norm = rng.uniform(0.5, 2)  # ‖A‖
    ripple = rng.uniform(0.2, 0.8)  # κ
    scales = np.append(norm, norm * rng.uniform(0.2, 1, dimension - 1))
    left = _orthogonal(rng, dimension)
    right = _orthogonal(rng, dimension)
    matrix = np.ascontiguousarray(left * scales @ right.T)
    transposed = np.ascontiguousarray(matrix.T)
    direction = right[:, 0].copy()
    center = rng.normal(0, 2, dimension)

    def arguments(x: Array) -> tuple[Values, Values, Values]:
        offset = x - center
        y = _times(offset, matrix)
        return y, np.sqrt(1 + np.vecdot(y, y)), np.vecdot(offset, direction)

    def value(x: Array, weights: Array = _ONES) -> Any:
        _, q, t = arguments(x)
        return weights[..., 0] * q + weights[..., 1] * ripple * (1 - np.cos(t))

    def gradient(x: Array, weights: Array = _ONES) -> Any:
        y, q, t = arguments(x)
        pull = _times(y, transposed) * (weights[..., 0] / q)[..., None]
        return pull + (weights[..., 1] * ripple * np.sin(t))[..., None] * direction

    # ∇²√(1+‖y‖²) lies between 0 and I, which it is at y = 0; the ripple's second derivative between −κ and κ. Both are
    # largest at c, along u. Along u, far out, the slope of the first term tends to ‖A‖, and the ripple's is κ again and
    # again. Both terms are least at c.
    slopes = np.array([norm, ripple])
    return _Terms(value, gradient, norm**2 + ripple, slopes, 1.0)


def _lower(rng: Generator, dimension: int) -> _Terms:
    """g as m terms, waves 1 − cos t and wells 1 − exp(−t²/2) in turn."""
    terms = (dimension + 1) // 2
    vectors = rng.normal(size=(terms, dimension))
    lengths = rng.uniform(0.5, 1.5, terms) / np.linalg.norm(vectors, axis=1)
    vectors *= lengths[:, None]
    transposed = np.ascontiguousarray(vectors.T)
    scales = rng.uniform(0.3, 1.5, terms)
    is_wave = np.arange(terms) % 2 == 0

    def value(x: Array, weights: Any = 1.0) -> Any:
        t = _times(x, vectors)
        heights = 1 - np.where(is_wave, np.cos(t), np.exp(-0.5 * t * t))
        return (weights * scales * heights).sum(axis=-1)

    def gradient(x: Array, weights: Any = 1.0) -> Any:
        t = _times(x, vectors)
        slopes = np.where(is_wave, np.sin(t), t * np.exp(-0.5 * t * t))
        return _times(weights * scales * slopes, transposed)

    # |φ''| ≤ 1 = φ''(0) for both: ∇²g = Σ w φ'' v vᵀ is largest at 0, where g is least.
    smoothness = float(np.linalg.eigvalsh(transposed * scales @ vectors)[-1])
    # |φ'| ≤ 1 for waves, at t = π/2, and ≤ e^{−1/2} for wells, at t = 1; the v_i are independent, so some x is at the
    # worst place of every term at once.
    steepest = np.where(is_wave, 1.0, math.exp(-0.5))
    slopes = scales * steepest * np.linalg.norm(vectors, axis=1)
    return _Terms(value, gradient, smoothness, slopes, 0.0)


class _RandomWeights(Gaussian):
    """Every term of an objective has a random weight 1 + s·N(0, 1): multiplicative noise, none where a term is flat.

    A sample is the gradient of a function, and its variance is s² Σ ‖∇term‖². A batch's mean weight is drawn from its
    exact law, 1 + s·N(0, 1/B). The `shape` is the number of terms.
    """

    def bind(self, shape: tuple[int, ...]) -> "_RandomWeights":
        """The oracle itself: its noise does not depend on the shape of x."""
        return self

    def gradient(self, x: Array, token: Any = None) -> Any:
        """The gradient, with the batch's weights if there is a batch."""
        if token is None:
            return self._gradient(x)
        return self._gradient(x, 1 + token)

    def value(self, x: Array, token: Any = None) -> Any:
        """The value, with the batch's weights if there is a batch."""
        value = known(self._value)
        if token is None:
            return value(x)
        return value(x, 1 + token)


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
    f = _upper(rng, size)
    g = _lower(rng, size)
    start = rng.normal(0, 2, size)

    def noisy(level: _Terms, s: float) -> tuple[Oracle, float]:
        """The oracle, and σ, whose square is the total variance."""
        kind = Gaussian
        shape = (size,)
        total = math.sqrt(size)  # s² in each coordinate
        if noise == "multiplicative":
            kind = _RandomWeights
            shape = level.slopes.shape
            total = float(np.linalg.norm(level.slopes))  # s² Σ ‖∇term‖² at its largest
        oracle = kind(level.gradient, s, level.value, shape=shape, vectorized=True)
        return oracle, s * total

    strengths = rng.uniform(0.3, 1, 2).tolist()
    upper, sigma_f = noisy(f, strengths[0])
    lower, sigma_g = noisy(g, strengths[1])
    constants = constants_at(start, f, g, float(f.slopes.sum()), sigma_f, sigma_g)
    name = f"random-{size}-{seed}-{noise}"
    return Problem(name, upper, lower, start, None, constants)


def _orthogonal(rng: Generator, dimension: int) -> Values:
    return np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]


def _times(x: Array, rows: Values) -> Values:
    """⟨x, row⟩ for every row; unlike a matrix product, to the same last bit however many points there are."""
    return np.vecdot(x[..., None, :], rows)  # type: ignore[no-any-return]  # a ufunc's result is Any
