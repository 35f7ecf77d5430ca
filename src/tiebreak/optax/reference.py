"""What the lower loss is compared with, as a function of the step that JAX can trace."""

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiebreak.optax.laws import at
from tiebreak.options import MEASURED, recorded

__all__ = ["at_step", "is_number", "one_number"]


def is_number(reference: Any) -> bool:
    """Whether a reference is one number for the whole run: also an array of no dimension, perhaps traced."""
    return isinstance(reference, (jax.Array, np.ndarray, np.generic)) and np.ndim(reference) == 0


def at_step(reference: Any) -> Callable[[jax.Array], jax.Array] | None:
    """The reference by the step; None where it is measured, and given to every update.

    Examples
    --------
    >>> curve = at_step(np.array([2.0, 1.0]))
    >>> float(curve(jnp.array(0))), float(curve(jnp.array(9)))  # after the last, the last
    (2.0, 1.0)
    """
    if isinstance(reference, str) and reference in MEASURED:
        return None
    if callable(reference):
        return lambda count: at("reference", reference, count)
    if isinstance(reference, (str, os.PathLike)):
        return _curve(*recorded(reference))
    if np.ndim(reference) == 1:
        return _curve(range(len(reference)), reference)
    if np.ndim(reference):
        raise ValueError(f"reference has shape {np.shape(reference)}; it must be one number, or a loss for each step")
    return lambda count: jnp.asarray(reference)


def _curve(steps: Any, losses: Any) -> Callable[[jax.Array], jax.Array]:
    known, values = np.asarray(steps, dtype=np.int32), jnp.asarray(losses)
    if not len(known):
        raise ValueError("reference has no losses; it must be one number, or a loss for each step")
    return lambda count: values[jnp.maximum(jnp.searchsorted(known, count, side="right") - 1, 0)]


def one_number(name: str, value: Any, dtype: Any) -> jax.Array:
    """A loss, checked as far as its shape goes."""
    found = jnp.asarray(value)
    if found.ndim or not jnp.issubdtype(found.dtype, jnp.number) or jnp.iscomplexobj(found):
        raise ValueError(f"{name} has shape {found.shape} and dtype {found.dtype}; it must be one real number")
    return found.astype(dtype)
