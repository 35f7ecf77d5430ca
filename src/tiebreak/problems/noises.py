"""Noise beside the Gaussian: in proportion to the gradient, with heavy tails, waves; and sums whose terms are sampled.

Batch means have exact laws.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from tiebreak.checks import nonnegative
from tiebreak.oracles import Array, Gaussian, Oracle
from tiebreak.oracles.finite_sum import FiniteSum
from tiebreak.oracles.sampling import Function

_CHUNK = 2**16  # numbers drawn at a time
_TERMS = 32  # of a sum; drawing a large batch takes a number for each


class Proportional(Gaussian):
    """Multiplicative noise: a sample is (1 + s ε_i) ∂_i(x) in coordinate i, ε ~ N(0, I), so it vanishes with ∇(x).

    Its total variance is s² ‖∇(x)‖², which is bounded where the gradient is.

    Parameters
    ----------
    gradient, value, shape, vectorized :
        As :class:`tiebreak.Gaussian` takes them.
    sigma : float
        s, the standard deviation of a coordinate over the coordinate.

    Examples
    --------
    >>> oracle = Proportional(lambda x: x, sigma=1.0, shape=(2,))
    >>> token = oracle.sample(np.random.default_rng(0), size=1)
    >>> float(oracle.gradient(np.array([0.0, 1.0]), token)[0])
    0.0
    """

    def gradient(self, x: Array, token: Array | None = None) -> Array:
        """∇(x), every coordinate with its factor."""
        exact: Array = self._gradient(x)
        return exact if token is None else exact * (1 + token)


class Student(Gaussian):
    """Heavy tails: ∇(x) + √W N(0, s² I), W = ν/χ²_ν, a vector with Student's t law of ν = 3 degrees of freedom.

    All coordinates of a sample share W: an outlier is a whole gradient that is far off. Given the W's, the mean of B
    samples is normal with variance s² ΣW/B², so a batch takes B numbers and not B times the dimension.

    Parameters
    ----------
    gradient, value, shape, vectorized :
        As :class:`tiebreak.Gaussian` takes them.
    sigma : float
        Standard deviation *per coordinate*: s² = σ² (ν − 2)/ν. The third moment is infinite.

    Examples
    --------
    >>> oracle = Student(lambda x: 2 * x, sigma=0.5, shape=(2,))
    >>> token = oracle.sample(np.random.default_rng(0), size=10**6)
    >>> np.round(oracle.gradient(np.array([1.0, 2.0]), token), 2)
    array([2., 4.])
    """

    def __init__(self, *common: Any, **named: Any) -> None:
        super().__init__(*common, **named)
        self.samples_ahead = 2**19  # drawing is the work

    def sample_block(self, rngs: Sequence[Generator], sizes: Sequence[int]) -> Array:
        """The noise of the batch means, steps × runs × x's shape."""
        shape = self.shape_of_x()
        noise: Array = np.empty((len(sizes), len(rngs), *shape))
        for i, size in enumerate(sizes):
            for j, rng in enumerate(rngs):
                # Always in this order: the stream of a run is the same in any block.
                spread = self._spread(rng, size)
                noise[i, j] = rng.standard_normal(shape) * spread
        noise *= self.sigma
        return noise

    def _spread(self, rng: Generator, size: int) -> float:
        """√(ΣW (ν−2)/ν) / B, the standard deviation of the mean of B samples of variance 1, given their W's; ν = 3."""
        total = 0.0
        for start in range(
            0, size, _CHUNK
        ):  # ν/χ²_ν = (ν/2)/Γ(ν/2), with Γ a standard gamma variable
            total += float(
                np.sum(1.5 / rng.standard_gamma(1.5, size=min(_CHUNK, size - start)))
            )
        return math.sqrt(total / 3) / size


class Phase(Gaussian):
    """Noise that changes with x: in every coordinate s (A cos ωt + C sin ωt), t = x_i, A and C normal: a random wave.

    Its variance is s² everywhere, and E‖n(x) − n(x')‖² = Σ 2s² (1 − cos ω(x_i − x'_i)) ≤ (sω)² ‖x − x'‖²: the constant
    of variance smoothness is ℓ = sω. Additive noise has ℓ = 0, which flatters differences of gradients.

    Parameters
    ----------
    gradient, value, shape, vectorized :
        As :class:`tiebreak.Gaussian` takes them.
    sigma : float
        s, the standard deviation *per coordinate*.
    roughness : float
        ℓ ≥ 0.

    Examples
    --------
    >>> oracle = Phase(lambda x: 2 * x, sigma=0.5, shape=(2,))
    >>> token = oracle.sample(np.random.default_rng(0), size=10**12)
    >>> np.round(oracle.gradient(np.array([1.0, 2.0]), token), 3)
    array([2., 4.])
    """

    def __init__(self, *common: Any, roughness: float = 1.0, **named: Any) -> None:
        super().__init__(*common, **named)
        nonnegative("roughness", roughness)
        self.frequency = float(roughness) / float(self.sigma) if self.sigma else 0.0

    def sample_block(self, rngs: Sequence[Generator], sizes: Sequence[int]) -> Array:
        """A and C of the batch means, steps × runs × x's shape × 2."""
        waves_of_batches = Gaussian(
            self._gradient, self.sigma, shape=(*self.shape_of_x(), 2)
        )
        return waves_of_batches.sample_block(rngs, sizes)

    def gradient(self, x: Array, token: Array | None = None) -> Array:
        """∇(x), and the batch's wave at x."""
        exact: Array = self._gradient(x)
        if token is None:
            return exact
        angle = self.frequency * x
        noisy: Array = (
            exact + token[..., 0] * np.cos(angle) + token[..., 1] * np.sin(angle)
        )
        return noisy


def waves(
    gradient: Function, sigma: float, value: Function, dimension: int
) -> FiniteSum:
    """A finite sum: term i is h(x) plus a wave of its own, and the waves add up to nothing. Indices are the noise.

    In every coordinate the gradient of a term's wave is A_i cos ωt + C_i sin ωt, t = x_j. The A's and C's are drawn
    once, and made to have mean 0, variance s² and no correlation over the terms, exactly. So a sample, which is an
    index, has the variance s² at every x, and ℓ = sω = 1, as :class:`Phase` has it.

    Parameters
    ----------
    gradient, value : callable
        Of h, for many points at once.
    sigma : float
        s, the standard deviation *per coordinate*.
    dimension : int

    Examples
    --------
    >>> oracle = waves(lambda x: 2 * x, 0.5, lambda x: (x * x).sum(axis=-1), 2)
    >>> np.round(oracle.exact_gradient(np.array([1.0, 2.0])), 12)
    array([2., 4.])
    """
    drawn = default_rng([_TERMS, dimension]).standard_normal((dimension, _TERMS, 2))
    # The columns of Q are orthogonal to (1, …, 1), as the centered ones are.
    apart = np.linalg.qr(drawn - drawn.mean(axis=1, keepdims=True))[0]
    amplitudes = np.concatenate(np.moveaxis(apart, 2, 0)).T.copy() * (
        sigma * math.sqrt(_TERMS)
    )  # (n, 2d): the A's, the C's
    frequency = 1 / sigma if sigma else 1.0

    def parts(
        x: Array, indices: Array, weights: Array
    ) -> tuple[Array, Array, Array, Array]:
        # A product for each point by itself: the same last bits however many points there are.
        mixed = (weights[..., None, :] @ amplitudes[indices])[..., 0, :]
        return (
            weights.sum(axis=-1),
            frequency * x,
            mixed[..., :dimension],
            mixed[..., dimension:],
        )

    def slope(x: Array, indices: Array, weights: Array) -> Array:
        total, angle, a, c = parts(x, indices, weights)
        wave = a * np.cos(angle) + c * np.sin(angle)
        return np.asarray(total[..., None] * gradient(x) + wave)

    def height(x: Array, indices: Array, weights: Array) -> Array:
        total, angle, a, c = parts(x, indices, weights)
        wave = (a * np.sin(angle) - c * np.cos(angle)).sum(axis=-1) / frequency
        return np.asarray(total * value(x) + wave)

    return FiniteSum(slope, _TERMS, height, weighted=True, vectorized=True).bind(
        (dimension,)
    )


#: The kinds of noise by name, and the strength of each where nothing is said.
NOISES = {
    "gaussian": 0.5,
    "multiplicative": 1.0,
    "heavy": 0.5,
    "phase": 0.5,
    "sampled": 0.5,
}


def noisy(
    kind: str,
    gradient: Function,
    value: Function,
    dimension: int,
    largest: float,
    sigma: float,
) -> tuple[Oracle, float]:
    """An oracle with noise of a kind, and the theory's σ, whose square is the largest total variance of a sample.

    `largest` bounds the gradient's norm; `sigma` is per coordinate or, for multiplicative noise, relative.
    """
    if kind == "multiplicative":
        shape = (dimension,)
        return Proportional(
            gradient, sigma, value, shape=shape, vectorized=True
        ), sigma * largest
    total = sigma * math.sqrt(dimension)
    if kind == "sampled":
        return waves(gradient, sigma, value, dimension), total
    kinds: dict[str, type[Gaussian]] = {"heavy": Student, "phase": Phase}
    oracle = kinds.get(kind, Gaussian)
    return oracle(gradient, sigma, value, shape=(dimension,), vectorized=True), total
