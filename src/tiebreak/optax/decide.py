"""From the inner products of a step to its weights: by a rule or by a tolerance, at any scale of the gradients."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import Array, lax

from tiebreak.decision import Decision, Measurement, WeightChoice
from tiebreak.optax.gradients import limits
from tiebreak.optax.products import Products, power_of_two
from tiebreak.rules import RULES, Rule
from tiebreak.schedules import Parameters
from tiebreak.tolerance import Memory

#: Powers of two that ∇f and ∇g are divided by.
Scales: TypeAlias = tuple[Array, Array]
#: The values of the tolerance rule, and the scales that these values are in; () for a rule.
BarrierMemory: TypeAlias = tuple[tuple[Array, ...], ...]


def decide(
    decision: Decision,
    products: Products,
    parameters: Parameters,
    losses: Mapping[str, Any],
    memory: BarrierMemory,
) -> tuple[WeightChoice, Scales | None, BarrierMemory]:
    """The weights of a step, the scales of the gradients that they are for (None for 1), and the new memory.

    With a tolerance the gradients are divided by about the norms of the first ones. Otherwise s, the ratio of the
    norms, might overflow, and so might its square, in a derivative, if ∇g is 0.
    """
    if decision.tolerance is None:
        measurement, parameters = for_rule(
            decision.method.rule, products, parameters, losses.get("lower_value")
        )
        return decision(parameters, measurement, ()), None, memory
    values, (upper_scale, lower_scale) = memory
    upper_scale, c, upper_norm = _scaled_norm(
        products.ff, products.upper_scale, upper_scale
    )
    lower_scale, e, lower_norm = _scaled_norm(
        products.gg, products.lower_scale, lower_scale
    )
    measurement = Measurement(None, None, None, upper_norm, lower_norm, **losses)
    choice = decision(parameters, measurement, Memory(*values))
    memory = (tuple(choice.memory), (upper_scale, lower_scale))
    choice = choice._replace(multiplier=choice.multiplier * c / e)
    return choice, (c, e), memory


def _scaled_norm(square: Array, scale: Array, first: Array) -> tuple[Array, ...]:
    """The power of two near the first norm that is not 0, 0 until then; the divisor; the norm over the divisor."""
    norm = root(square)
    limit = 2.0**126
    power = jnp.clip(power_of_two(norm) * scale, 1 / limit, limit)
    power = jnp.where(norm > 0, power, 0.0)
    first = jnp.where(first == 0, power, first)
    divisor = jnp.where(first == 0, 1.0, first)
    return first, divisor, norm * (scale / divisor)


def for_rule(
    rule: Rule,
    products: Products,
    parameters: Parameters,
    lower_value: Array | None,
) -> tuple[Measurement, Parameters]:
    """The arguments of a rule, at a scale that loses none of them.

    The library's rules return the same λ if both gradients are divided by c, and all quantities with the dimension of
    gg by c²: the regularizer, 1/μ, and the lower loss with its target. A user's rule may not. Its gg is not scaled, but
    is 0 only if ∇g is 0.
    """
    if rule not in RULES.values():
        fg, gg, ff = products.rescaled(1.0, 1.0)
        positive = jnp.maximum(gg, limits(gg).tiny)
        gg = jnp.where(products.gg > 0, positive, gg)
        return Measurement(fg, gg, ff, lower_value=lower_value), parameters
    # If ∇f is so much larger that fg would overflow, gg may be small.
    between = jnp.sqrt(products.upper_scale) * jnp.sqrt(products.lower_scale)
    largest = jnp.maximum(products.lower_scale, 2.0**-50 * between)
    penalty = parameters.penalty
    # A large slack over a small c² would overflow. Beside a large slack, gg may vanish.
    slacks = (parameters.regularizer, None if penalty is None else 1 / penalty)
    for slack in slacks:
        if slack is not None:
            largest = jnp.maximum(largest, jnp.sqrt(lax.stop_gradient(slack)))
    scaled = (products.upper_scale != 1) | (products.lower_scale != 1)
    c = jnp.where(scaled, power_of_two(largest), 1.0)
    # Exact, and not a division: XLA rewrites v/c/c as v/(c·c), and c·c may overflow.
    inverse = power_of_two(1 / c)

    def over(value: Array | None) -> Array | None:
        return None if value is None else value * inverse * inverse

    further = dict(parameters.others)
    if "target" in further:
        further["target"] = over(further["target"])
    if penalty is not None:
        # The rule refuses an infinite penalty.
        product = jnp.minimum(penalty * c * c, limits(c).max)
        penalty = jnp.where(jnp.isfinite(penalty), product, penalty)
    parameters = parameters._replace(
        regularizer=over(parameters.regularizer), penalty=penalty, others=further
    )
    fg, gg, _ = products.rescaled(c, c)
    return Measurement(fg, gg, lower_value=over(lower_value)), parameters


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
