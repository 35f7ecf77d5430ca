"""Laws of the step under tracing, where the step is a tracer and nothing can be checked in Python."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from tiebreak import rules
from tiebreak.methods import Method
from tiebreak.schedules import LEGAL, Power, Schedule

#: A number, or a function of the step: a power law of ours, a schedule of optax, or your own in jax.numpy.
Law: TypeAlias = Any

__all__ = ["Law", "arguments", "at", "held", "method", "multiplier"]


def at(name: str, law: Callable[[Any], Any], count: jax.Array) -> jax.Array:
    """The law at a traced step.

    Examples
    --------
    >>> float(at("barrier", Power(0.5, -0.25), jnp.array(15)))
    0.25
    """
    if isinstance(law, Power):  # which in Python also makes whole powers whole; only batch sizes care
        t = jnp.asarray(count + 1, dtype=float)
        return jnp.asarray(law.constant * t**law.exponent if law.exponent else law.constant, dtype=float)
    try:
        value = jnp.asarray(law(count))
    except Exception as error:
        error.add_note(
            f"in {name}, a function of the step. JAX traces it: jnp in place of math, jnp.where in place of if."
        )
        raise
    if value.ndim:
        raise ValueError(f"{name} at a step has shape {value.shape}; it must be one number")
    return value


def held(value: Law) -> Law:
    """A law from an array, which optax.inject_hyperparams gives: often traced, so nothing can be checked."""
    return (lambda count: value) if isinstance(value, jax.Array) else value


def method(rule: str | rules.Rule, laws: Mapping[str, Law], others: Mapping[str, Law]) -> Method:
    """Rule and laws, checked as the core checks them, as far as that can be done before a step is made."""
    if isinstance(rule, str):
        if rule not in rules.RULES:
            raise ValueError(f"rule={rule!r} must be one of {', '.join(map(repr, rules.RULES))}, or a function")
        rule = rules.RULES[rule]

    schedule = Schedule(1.0, **{n: held(v) for n, v in laws.items()}, others={n: held(v) for n, v in others.items()})
    return Method(getattr(rule, "__name__", type(rule).__name__), rule, schedule)


def arguments(chosen: Method, count: jax.Array) -> dict[str, Any]:
    """What the rule gets at a step, but for ``lower_value``."""
    schedule = chosen.schedule
    laws = {name: getattr(schedule, name) for name in LEGAL} | dict(schedule.others)
    given = {n: at(n, laws[n], count) for n in chosen.needs if laws.get(n) is not None}
    return given | ({"k": count} if "k" in chosen.needs else {})


def multiplier(chosen: Method, fg: jax.Array, gg: jax.Array, given: Mapping[str, Any]) -> jax.Array:
    """The rule on tracers: λ, of fg's dtype whatever the laws' is."""
    try:
        return jnp.asarray(chosen.rule(fg, gg, **given)).astype(fg.dtype)
    except Exception as error:
        error.add_note(
            f"in the rule {chosen.name!r}. JAX traces it: jnp.maximum and jnp.where in place of max, if and NumPy."
        )
        raise
