"""Functions of the step under tracing: schedules, the learning rate, and the reference of a lower loss."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array

from tiebreak.options import MEASURED, SOLVER_LAWS, recorded
from tiebreak.schedules import LEGAL, Capped, Parameters, Power, Schedule

#: A function of the step: a law of tiebreak, a schedule of optax, or any function in jax.numpy.
Law: TypeAlias = Callable[[Any], Any]


@contextmanager
def traced(function: str) -> Iterator[None]:
    """Around a user's function: an exception says that JAX traces it."""
    try:
        yield
    except Exception as error:
        error.add_note(
            f"in {function}. JAX traces it: jnp in place of math and NumPy, jnp.where in place of if."
        )
        raise


def at(name: str, law: Law, count: Array) -> Array:
    """The law at a traced step.

    Examples
    --------
    >>> float(at("barrier", Power(0.5, -0.25), jnp.array(15)))
    0.25
    """
    if isinstance(law, Power):
        return _power(law, count)
    if isinstance(law, Capped):
        return jnp.minimum(at(name, law.law, count), law.largest)
    with traced(f"{name}, a function of the step"):
        value = jnp.asarray(law(count))
    if value.ndim:
        raise ValueError(
            f"{name} at a step has shape {value.shape}; it must be one number"
        )
    return value


def _power(law: Power, count: Array) -> Array:
    """c · t^e with t = k + 1, without the rounding of whole powers, which only batch sizes need."""
    t = jnp.asarray(count + 1, dtype=float)
    if law.stop is not None:
        t = jnp.minimum(t, law.stop)
    t = jnp.maximum(1.0, t / law.start)
    return jnp.asarray(law.constant * t**law.exponent, dtype=float)


def parameters(schedule: Schedule, count: Array, dtype: jnp.dtype) -> Parameters:
    """The schedule at a traced step, without the laws that only the solver follows."""

    def number(name: str, law: Any) -> Array:
        return at(name, law, count).astype(dtype)

    numbers = {}
    for name in LEGAL:
        law = getattr(schedule, name)
        if name not in SOLVER_LAWS and law is not None:
            numbers[name] = number(name, law)
    further = {name: number(name, law) for name, law in schedule.others.items()}
    return Parameters(count, others=further, **numbers)


def reference_law(reference: Any) -> Law | None:
    """The reference as a function of the step; None if each update receives it as a measured loss.

    Examples
    --------
    >>> curve = reference_law(np.array([2.0, 1.0]))
    >>> float(curve(jnp.array(0))), float(curve(jnp.array(9)))  # after the last, the last
    (2.0, 1.0)
    """
    if isinstance(reference, str) and reference in MEASURED:
        return None
    if callable(reference):
        return partial(at, "reference", reference)
    if isinstance(reference, (str, os.PathLike)):
        steps, losses = recorded(reference)
    elif np.ndim(reference) > 1:
        raise ValueError(
            f"reference has shape {np.shape(reference)}; it must be one number, or a loss for each step"
        )
    else:
        if np.ndim(reference):
            losses = reference
        else:
            losses = [reference]
        steps = list(range(len(losses)))
    if not steps:
        raise ValueError(
            "reference has no losses; it must be one number, or a loss for each step"
        )

    def loss(count: Array) -> Array:
        index = jnp.searchsorted(jnp.array(steps), count, side="right") - 1
        return jnp.asarray(losses)[jnp.maximum(index, 0)]

    return loss
