"""Stochastic gradients for :func:`tiebreak.optax.solve`, as functions of a random key.

An oracle is any hashable object with::

    gradient(x, key, size)        # the mean gradient of a mini-batch of `size` samples, drawn with `key`

`size` is a traced number, so that one compiled program serves growing batches. STORM calls it with one key at two
points: the same key must mean the same samples. What else is used, where it is there:

``exact_gradient(x)``
    the expectation, for residuals;
``value(x)``, or ``value(x, key=None, size=None)``
    the objective or, with a key, the mean value of that mini-batch, which is what a rule sees that asks for the loss.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from tiebreak.checks import whole
from tiebreak.optax.trees import Tree

__all__ = ["Exact", "FiniteSum", "Gaussian", "batch_value", "oracle"]


@dataclass(frozen=True)
class Exact:
    """The gradient of a loss, without noise.

    Parameters
    ----------
    loss : callable
        x ↦ one number, differentiable by JAX.

    Examples
    --------
    >>> Exact(lambda x: jnp.sum(x**2)).exact_gradient(jnp.array([1.0, 2.0]))
    Array([2., 4.], dtype=float32)
    """

    loss: Callable[[Tree], Any]

    def gradient(self, x: Tree, key: jax.Array, size: jax.Array) -> Tree:
        """∇(x)."""
        return self.exact_gradient(x)

    def exact_gradient(self, x: Tree) -> Tree:
        """∇(x)."""
        return jax.grad(self.loss)(x)

    def value(self, x: Tree) -> Any:
        """The loss at x."""
        return self.loss(x)


@dataclass(frozen=True)
class Gaussian(Exact):
    """The gradient of a loss plus N(0, σ²/B I), the exact law of the mean of B noisy samples.

    Parameters
    ----------
    loss : callable
        x ↦ one number, differentiable by JAX.
    sigma : float
        Standard deviation per coordinate.

    Examples
    --------
    >>> oracle = Gaussian(lambda x: jnp.sum(x**2), sigma=0.5)
    >>> oracle.gradient(jnp.array([1.0, 2.0]), jax.random.key(0), 1e12).round(3)
    Array([2., 4.], dtype=float32)
    """

    sigma: float

    def __post_init__(self) -> None:
        if isinstance(self.sigma, bool) or not isinstance(self.sigma, (int, float)) or not 0 <= self.sigma < math.inf:
            raise ValueError(f"sigma={self.sigma!r} must be a number, finite and ≥ 0")

    def gradient(self, x: Tree, key: jax.Array, size: Any) -> Tree:
        """∇(x) plus the batch's noise."""
        flat, unravel = ravel_pytree(self.exact_gradient(x))
        noise = jax.random.normal(key, flat.shape, flat.dtype)
        return unravel(flat + noise * (self.sigma / jnp.sqrt(size)).astype(flat.dtype))


@dataclass(frozen=True)
class FiniteSum:
    """The mean of n losses, sampled with replacement; a batch of any size is one weighted sum of all n.

    Shapes are fixed when a program is compiled, and sizes are not: so a batch is drawn as multinomial counts, whatever
    its size, and a step costs n terms. An oracle of your own with a fixed batch is faster where batches are small.
    In float32 counts beyond 2²⁴ are rounded.

    Parameters
    ----------
    losses : callable
        x ↦ the n losses, an array (n,), differentiable by JAX.
    n : int
        How many there are.

    Examples
    --------
    >>> data = jnp.array([1.0, 2.0, 6.0])
    >>> oracle = FiniteSum(lambda x: (x - data) ** 2 / 2, n=3)
    >>> oracle.exact_gradient(jnp.array(0.0))
    Array(-3., dtype=float32, weak_type=True)
    """

    losses: Callable[[Tree], Any]
    n: int

    def __post_init__(self) -> None:
        if not callable(self.losses):
            raise TypeError(f"losses={self.losses!r} must be a function of x that gives n losses")
        whole("n", self.n)

    def gradient(self, x: Tree, key: jax.Array, size: Any) -> Tree:
        """The batch's mean gradient."""
        return jax.grad(self._mean)(x, self._weights(key, size))

    def exact_gradient(self, x: Tree) -> Tree:
        """The mean gradient of all n."""
        return jax.grad(self._mean)(x, 1 / self.n)

    def value(self, x: Tree, key: Any = None, size: Any = None) -> Any:
        """The mean loss of all n or, with a key, of the batch."""
        return self._mean(x, 1 / self.n if key is None else self._weights(key, size))

    def _weights(self, key: jax.Array, size: Any) -> jax.Array:
        drawn = jnp.asarray(size, dtype=float)
        return _counts(key, drawn, self.n) / drawn

    def _mean(self, x: Tree, weights: Any) -> Any:
        found = jnp.asarray(self.losses(x))
        if found.shape != (self.n,):
            raise ValueError(f"losses returned shape {found.shape}; it must be {(self.n,)}")
        return jnp.sum(weights * found)


def _counts(key: jax.Array, size: jax.Array, n: int) -> jax.Array:
    """How often each of n terms is among `size` draws: halved by binomials, log₂ n times, all parts at once.

    jax.random.multinomial draws one term after another, which takes ten times as long for a thousand.
    """
    depth = max(1, (n - 1).bit_length())
    places = jnp.arange(2**depth)  # a part is known by its first place, where its count stands

    def halve(counts: jax.Array, level: jax.Array) -> tuple[jax.Array, None]:
        width = 2 ** (depth - level)
        begins = places % width == 0
        terms, left = (jnp.clip(n - places, 0, part) for part in (width, width // 2))  # beyond n there are none
        share = jnp.where(begins & (terms > 0), left / jnp.maximum(terms, 1), 1.0)
        drawn = jax.random.binomial(jax.random.fold_in(key, level), counts, share, dtype=counts.dtype)
        stays = jnp.where(begins & (share < 1), drawn, counts)
        return stays + jnp.roll(counts - stays, width // 2), None

    found: jax.Array = jax.lax.scan(halve, jnp.where(places == 0, size, 0), jnp.arange(depth))[0][:n]
    return found


def oracle(name: str, given: Any) -> Any:
    """An oracle as given, or that of a loss."""
    if hasattr(given, "gradient"):
        found = given
        if hasattr(given, "sample"):  # two arguments, the second a token
            raise TypeError(
                f"{name}={given!r} is an oracle of tiebreak.minimize, with sample(rng, size) and gradient(x, token); "
                "here it must have gradient(x, key, size) in jax.numpy: tiebreak.optax.Gaussian, FiniteSum, or your own"
            )
    elif callable(given):
        found = Exact(given)
    else:
        raise TypeError(f"{name}={given!r} must be a loss, or an oracle with `gradient(x, key, size)`")
    try:
        hash(found)
    except TypeError:
        raise TypeError(f"{name}={given!r} must be hashable: the compiled program is kept for it") from None
    return found


def batch_value(given: Any, x: Tree, key: jax.Array, size: Any) -> Any:
    """The loss of a step's own batch, where the oracle can tell; else the objective.

    Examples
    --------
    >>> batch_value(Exact(lambda x: x**2), 3.0, jax.random.key(0), 1)
    9.0
    """
    try:
        inspect.signature(given.value).bind(x, key, size)
    except TypeError:
        return given.value(x)
    return given.value(x, key, size)
