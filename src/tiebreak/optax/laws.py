"""Laws of the step under tracing, where the step is a tracer and nothing can be checked in Python."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from tiebreak.methods import Method
from tiebreak.options import SOLVER_LAWS
from tiebreak.schedules import LEGAL, Capped, Parameters, Power, Schedule

#: A number, or a function of the step: a power law of ours, a schedule of optax, or your own in jax.numpy.
Law: TypeAlias = Any

__all__ = ["Law", "at", "held", "multiplier", "parameters", "rate", "traced"]


@contextmanager
def traced(what: str) -> Iterator[None]:
    """Around a user's function: an exception says that JAX traces it."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in {what}. JAX traces it: jnp in place of math and NumPy, jnp.where in place of if.")
        raise


def at(name: str, law: Callable[[Any], Any], count: jax.Array) -> jax.Array:
    """The law at a traced step.

    Examples
    --------
    >>> float(at("barrier", Power(0.5, -0.25), jnp.array(15)))
    0.25
    """
    if isinstance(law, Power):  # which in Python also makes whole powers whole; only batch sizes care
        t = jnp.asarray(count + 1, dtype=float)
        t = t if law.stop is None else jnp.minimum(t, law.stop)
        t = t if law.start == 1 else jnp.maximum(1.0, t / law.start)
        return jnp.asarray(law.constant * t**law.exponent if law.exponent else law.constant, dtype=float)
    if isinstance(law, Capped):
        return jnp.minimum(at(name, law.law, count), law.largest)
    with traced(f"{name}, a function of the step"):
        value = jnp.asarray(law(count))
    if value.ndim:
        raise ValueError(f"{name} at a step has shape {value.shape}; it must be one number")
    return value


def held(value: Law) -> Law:
    """A law from an array, which optax.inject_hyperparams gives: often traced, so nothing can be checked."""
    return (lambda count: value) if isinstance(value, jax.Array) else value


def rate(value: Law) -> Law:
    """A learning rate as a function of the step, or None; numbers are checked, what JAX may trace cannot be.

    Examples
    --------
    >>> rate(-0.1)
    Traceback (most recent call last):
    ...
    ValueError: learning_rate=-0.1 must be a number ≥ 0, or a function of the step
    """
    if value is None or callable(value):
        return value
    if not isinstance(value, jax.Array):
        number = isinstance(value, (int, float, np.number, np.ndarray)) and not isinstance(value, bool)
        if not number or np.ndim(value) or np.iscomplexobj(value) or not 0 <= value < np.inf:
            raise ValueError(f"learning_rate={value!r} must be a number ≥ 0, or a function of the step")
    return held(jnp.asarray(value))


def parameters(schedule: Schedule, count: jax.Array, dtype: Any) -> Parameters:
    """The schedule at a traced step; step size and batches are not a transformation's."""
    names = [name for name in LEGAL if name not in SOLVER_LAWS]
    laws: Mapping[str, Any] = {n: getattr(schedule, n) for n in names if getattr(schedule, n) is not None}
    others: Mapping[str, Any] = schedule.others
    found, others = (
        {name: at(name, law, count).astype(dtype) for name, law in group.items()} for group in (laws, others)
    )
    return Parameters(count, others=others, **found)


def multiplier(method: Method, fg: jax.Array, gg: jax.Array, arguments: Mapping[str, Any]) -> jax.Array:
    """λ of the rule on tracers, with the dtype of fg, whatever the dtype of its arguments is."""
    with traced(f"the rule {method.name!r}"):
        return jnp.asarray(method.rule(fg, gg, **arguments)).astype(fg.dtype)
