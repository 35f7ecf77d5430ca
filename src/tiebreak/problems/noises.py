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
from tiebreak.problems.landscapes import Landscape

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
        if token is None:
            return exact
        return exact * (1 + token)


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
        # Drawing is the work, so no more than this is drawn ahead.
        self.samples_ahead = 2**19

    def sample_block(self, rngs: Sequence[Generator], sizes: Sequence[int]) -> Array:
        """The noise of the batch means, steps × runs × x's shape."""
        noise = []
        # Step by step, and W first: a run's stream is the same in any block.
        for size in sizes:
            for rng in rngs:
                spread = self._spread(rng, size)
                noise.append(rng.standard_normal(self.shape_of_x()) * spread)
        shape = (len(sizes), len(rngs), *self.shape_of_x())
        block: Array = np.reshape(noise, shape) * self.sigma
        return block

    def _spread(self, rng: Generator, size: int) -> float:
        """√(ΣW (ν−2)/ν) / B, the standard deviation of the mean of B samples of variance 1, given their W's; ν = 3."""
        total = 0.0
        for start in range(0, size, _CHUNK):
            count = min(_CHUNK, size - start)
            # ν/χ²_ν = (ν/2)/Γ(ν/2), with Γ a standard gamma variable
            total += float(np.sum(1.5 / rng.standard_gamma(1.5, size=count)))
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
        both = Gaussian(self._gradient, self.sigma, shape=(*self.shape_of_x(), 2))
        return both.sample_block(rngs, sizes)

    def gradient(self, x: Array, token: Array | None = None) -> Array:
        """∇(x), and the batch's wave at x."""
        exact: Array = self._gradient(x)
        if token is not None:
            angle = self.frequency * x
            exact = (
                exact + token[..., 0] * np.cos(angle) + token[..., 1] * np.sin(angle)
            )
        return exact


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
    normals = default_rng([_TERMS, dimension]).standard_normal((dimension, _TERMS, 2))
    centered = normals - normals.mean(axis=1, keepdims=True)
    columns = np.linalg.qr(centered)[0]  # still of mean 0
    scale = sigma * math.sqrt(_TERMS)
    # One row for each term: the A's, then the C's.
    coefficients = np.concatenate(np.moveaxis(columns, 2, 0)).T.copy() * scale
    frequency = 1 / sigma if sigma else 1.0

    def mixed(indices: Array, weights: Array) -> tuple[Array, Array]:
        # A product for each point by itself: the same last bits however many points there are.
        rows = (weights[..., None, :] @ coefficients[indices])[..., 0, :]
        return rows[..., :dimension], rows[..., dimension:]

    def sampled_gradient(x: Array, indices: Array, weights: Array) -> Any:
        a, c = mixed(indices, weights)
        exact = weights.sum(axis=-1)[..., None] * gradient(x)
        return exact + a * np.cos(frequency * x) + c * np.sin(frequency * x)

    def sampled_value(x: Array, indices: Array, weights: Array) -> Any:
        a, c = mixed(indices, weights)
        wave = a * np.sin(frequency * x) - c * np.cos(frequency * x)
        return weights.sum(axis=-1) * value(x) + wave.sum(axis=-1) / frequency

    oracle = FiniteSum(
        sampled_gradient, _TERMS, sampled_value, weighted=True, vectorized=True
    )
    return oracle.bind((dimension,))


#: The kinds of noise by name, and their default strengths.
NOISES = {
    "gaussian": 0.5,
    "multiplicative": 1.0,
    "heavy": 0.5,
    "phase": 0.5,
    "sampled": 0.5,
}
_ORACLES = {
    "gaussian": Gaussian,
    "multiplicative": Proportional,
    "heavy": Student,
    "phase": Phase,
}


def noisy(
    kind: str, level: Landscape, dimension: int, sigma: float
) -> tuple[Oracle, float]:
    """An oracle with noise of a kind, and the theory's σ, whose square is the largest total variance of a sample.

    `sigma` is per coordinate or, for multiplicative noise, relative.
    """
    total = sigma * math.sqrt(dimension)
    if kind == "multiplicative":
        total = sigma * level.slope
    if kind == "sampled":
        return waves(level.gradient, sigma, level.value, dimension), total
    oracle = _ORACLES[kind]
    shape = (dimension,)
    return oracle(
        level.gradient, sigma, level.value, shape=shape, vectorized=True
    ), total
