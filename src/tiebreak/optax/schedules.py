"""Functions of the step under tracing: schedules, the learning rate, and the reference of a lower loss."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from tiebreak.options import MEASURED, SOLVER_LAWS, recorded
from tiebreak.schedules import LEGAL, Capped, Parameters, Power, Schedule

#: A number, or a function of the step: a power law of ours, a schedule of optax, or your own in jax.numpy.
Law: TypeAlias = Any


@contextmanager
def traced(what: str) -> Iterator[None]:
    """Around a user's function: an exception says that JAX traces it."""
    try:
        yield
    except Exception as error:
        error.add_note(
            f"in {what}. JAX traces it: jnp in place of math and NumPy, jnp.where in place of if."
        )
        raise


def at(name: str, law: Callable[[Any], Any], count: jax.Array) -> jax.Array:
    """The law at a traced step.

    Examples
    --------
    >>> float(at("barrier", Power(0.5, -0.25), jnp.array(15)))
    0.25
    """
    if isinstance(
        law, Power
    ):  # which in Python also makes whole powers whole; only batch sizes care
        t = jnp.asarray(count + 1, dtype=float)
        t = t if law.stop is None else jnp.minimum(t, law.stop)
        t = t if law.start == 1 else jnp.maximum(1.0, t / law.start)
        return jnp.asarray(
            law.constant * t**law.exponent if law.exponent else law.constant,
            dtype=float,
        )
    if isinstance(law, Capped):
        return jnp.minimum(at(name, law.law, count), law.largest)
    with traced(f"{name}, a function of the step"):
        value = jnp.asarray(law(count))
    if value.ndim:
        raise ValueError(
            f"{name} at a step has shape {value.shape}; it must be one number"
        )
    return value


def parameters(schedule: Schedule, count: jax.Array, dtype: Any) -> Parameters:
    """The schedule at a traced step, without the laws that only the solver follows."""
    names = [
        name
        for name in LEGAL
        if name not in SOLVER_LAWS and getattr(schedule, name) is not None
    ]
    numbers = {
        name: at(name, getattr(schedule, name), count).astype(dtype) for name in names
    }
    laws: Mapping[str, Any] = schedule.others
    others = {name: at(name, law, count).astype(dtype) for name, law in laws.items()}
    return Parameters(count, others=others, **numbers)


def constant(value: Law) -> Law:
    """An array, which may be traced, as a function of the step; anything else as it is."""
    return (lambda count: value) if isinstance(value, jax.Array) else value


def reference_law(reference: Any) -> Callable[[jax.Array], jax.Array] | None:
    """The reference as a function of the step; None if it is measured, and given to every update.

    Examples
    --------
    >>> curve = reference_law(np.array([2.0, 1.0]))
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
        raise ValueError(
            f"reference has shape {np.shape(reference)}; it must be one number, or a loss for each step"
        )
    return lambda count: jnp.asarray(reference)


def _curve(steps: Any, losses: Any) -> Callable[[jax.Array], jax.Array]:
    if not len(steps):
        raise ValueError(
            "reference has no losses; it must be one number, or a loss for each step"
        )
    recorded_steps = np.asarray(steps, dtype=np.int32)
    values = jnp.asarray(losses)
    return lambda count: values[
        jnp.maximum(jnp.searchsorted(recorded_steps, count, side="right") - 1, 0)
    ]
