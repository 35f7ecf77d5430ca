"""From the inner products of a step to its weights: by a rule or by a tolerance, at any scale of the gradients."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import Array

from tiebreak.decision import Decision, Measurement, WeightChoice
from tiebreak.methods import Method
from tiebreak.optax.gradients import (
    MAX_EXPONENT,
    exponent_of,
    limits,
    power,
    times_power,
)
from tiebreak.optax.products import Products
from tiebreak.optax.schedules import traced
from tiebreak.rules import RULES
from tiebreak.schedules import Parameters
from tiebreak.tolerance import Memory

#: Arguments of rules with the dimension of gg.
SQUARES = ("regularizer", "lower_value", "target")
#: The values of the tolerance rule, and their units of ‖∇f‖ and ‖∇g‖, powers of two; () for a rule.
BarrierMemory: TypeAlias = tuple[tuple[Array, ...], ...]


def decide(
    decision: Decision,
    products: Products,
    parameters: Parameters,
    losses: Mapping[str, Any],
    memory: BarrierMemory,
) -> tuple[WeightChoice, Array | None, BarrierMemory]:
    """The weights of a step, a shift, and the new memory. The direction is 2^shift a ∇f + b ∇g; None stands for 0.

    With a tolerance each gradient is measured in a unit near the norm of the first one. Otherwise s, the ratio of the
    norms, might overflow, and so might its square, in a derivative, if ∇g is 0.
    """
    if decision.tolerance is None:

        def apply(fg: Array, gg: Array, arguments: dict[str, Array]) -> Array:
            return _multiplier(decision.method, products, arguments)

        fg, gg, ff = products.divided(0)
        measurement = Measurement(fg, gg, ff, lower_value=losses.get("lower_value"))
        scaled_decision = replace(decision, apply=apply)
        choice = scaled_decision(parameters, measurement, ())
        return choice, None, memory
    values, (upper_unit, lower_unit) = memory
    upper_norm, upper_unit = _norm(products.ff, products.upper_exponent, upper_unit)
    lower_norm, lower_unit = _norm(products.gg, products.lower_exponent, lower_unit)
    measurement = Measurement(
        fg=None,
        gg=None,
        upper_norm=upper_norm,
        lower_norm=lower_norm,
        lower_value=losses["lower_value"],
        reference=losses["reference_value"],
    )
    choice = decision(parameters, measurement, Memory(*values))
    memory = (tuple(choice.memory), (upper_unit, lower_unit))
    shift = exponent_of(lower_unit) - exponent_of(upper_unit)
    multiplier = times_power(choice.multiplier, -shift)
    return choice._replace(multiplier=multiplier), shift, memory


def _multiplier(
    method: Method, products: Products, arguments: dict[str, Array]
) -> Array:
    """λ of a rule, from arguments at a scale that loses none of them.

    The library's rules return the same λ if both gradients are divided by c, and all arguments with the dimension of gg
    by c². A user's rule may not. Its gg is not scaled, but is 0 only if ∇g is 0.
    """
    if method.rule in RULES.values():
        exponent = _common_exponent(products, arguments)
        fg, gg, _ = products.divided(exponent)
        for name in SQUARES:
            if name in arguments:
                arguments[name] = times_power(arguments[name], -2 * exponent)
        if "penalty" in arguments:
            # The rule refuses an infinite penalty, and a finite one must not become infinite.
            penalty = arguments["penalty"]
            limit = MAX_EXPONENT - exponent_of(penalty)
            exponent = jnp.minimum(2 * exponent, limit)
            arguments["penalty"] = times_power(penalty, exponent)
    else:
        fg, gg, _ = products.divided(0)
        positive = jnp.maximum(gg, limits(gg).tiny)
        gg = jnp.where(products.gg > 0, positive, gg)
    with traced(f"the rule {method.name!r}"):
        multiplier = method.rule(fg, gg, **arguments)
        multiplier = jnp.asarray(multiplier).astype(fg.dtype)
    return multiplier + (fg - fg) + (gg - gg)  # NaN if an inner product is infinite


def _common_exponent(products: Products, arguments: Mapping[str, Array]) -> Array:
    """log₂ c: that of ‖∇g‖, unless fg or a slack would overflow; 0 for ordinary products."""
    m = products.upper_exponent + exponent_of(products.ff) // 2
    n = products.lower_exponent + exponent_of(products.gg) // 2
    exponent = jnp.maximum(n, (m + n) // 2 - 50)
    # Beside a large slack, gg may vanish.
    penalty = arguments.get("penalty", jnp.inf)
    slack = jnp.asarray(arguments.get("regularizer", 0.0) + 1 / penalty)
    enough = jnp.maximum(exponent, exponent_of(slack) // 2)
    exponent = jnp.where(slack > 0, enough, exponent)
    is_ordinary = (products.upper_exponent == 0) & (products.lower_exponent == 0)
    return jnp.where(is_ordinary, 0, exponent)


def _norm(square: Array, exponent: Array, unit: Array) -> tuple[Array, Array]:
    """The norm √square · 2^exponent in its unit, and the unit: the power of two near the first norm, 0 until then."""
    norm = root(square)
    nearest = power(exponent_of(norm) + exponent)
    first = jnp.where(norm > 0, nearest, 0.0)
    unit = jnp.where(unit == 0, first, unit)
    return times_power(norm, exponent - exponent_of(unit)), unit


def root(square: Array) -> Array:
    """√square, whose derivative at 0 is 0 instead of NaN.

    Examples
    --------
    >>> import jax
    >>> float(root(jnp.array(4.0))), float(jax.grad(root)(0.0))
    (2.0, 0.0)
    """
    is_zero = square == 0
    positive = jnp.where(is_zero, 1.0, square)
    return jnp.where(is_zero, 0.0, jnp.sqrt(positive))
