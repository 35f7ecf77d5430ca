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

from tiebreak.optax.trees import Tree

__all__ = ["Exact", "Gaussian", "batch_value", "oracle"]


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


def oracle(name: str, given: Any) -> Any:
    """An oracle as given, or that of a loss."""
    if hasattr(given, "gradient"):
        found = given
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
