"""Inner products of two gradients, at any scale that their dtype can hold.

The square of a float32 underflows below 1e-19 and overflows above 1e19. Near these limits each gradient is divided by
a power of two, and the products are computed again; otherwise both scales are 1.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tiebreak.decision import Seen
from tiebreak.optax import gradients
from tiebreak.optax.distributed import Spread
from tiebreak.optax.gradients import Leaves
from tiebreak.rules import RULES, Rule
from tiebreak.schedules import Parameters


class Products(NamedTuple):
    """fg, gg and ff of ∇f over `upper_scale` and ∇g over `lower_scale`, both powers of two."""

    fg: jax.Array
    gg: jax.Array
    ff: jax.Array
    upper_scale: jax.Array
    lower_scale: jax.Array

    def rescaled(
        self, upper: Any, lower: Any
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """fg, gg and ff of ∇f over `upper` and ∇g over `lower`."""
        a = self.upper_scale / upper
        b = self.lower_scale / lower
        large = jnp.isinf(a)  # then b is small: multiply by b before the division
        fg = (
            self.fg
            * b
            * jnp.where(large, self.upper_scale, a)
            / jnp.where(large, upper, 1.0)
        )
        return fg, self.gg * b * b, self.ff * a * a


def inner_products(
    upper: Leaves,
    lower: Leaves,
    numbers: Sequence[jax.Array] = (),
    spread: Spread | None = None,
    others: Sequence[Leaves] = (),
) -> tuple[Products, list[jax.Array]]:
    """The products of two lists of leaves and the means of `numbers`, over all devices.

    fg is NaN where the devices' copies of a gradient are not equal: of these two, or of `others`, lists like them.

    Examples
    --------
    >>> tiny, _ = inner_products([jnp.array([1.0, 2.0])], [jnp.array([3e-30, 0.0])])
    >>> fg, gg, ff = tiny.rescaled(1.0, 1e-30)
    >>> round(float(fg), 4), round(float(gg), 4), float(ff)
    (3.0, 9.0, 5.0)
    """
    places = [i for i, leaf in enumerate(upper) if gradients.differentiable(leaf)]
    upper, lower, *others = (
        tuple(leaves[i] for i in places) for leaves in (upper, lower, *others)
    )
    compared = () if spread is None or spread.trusted else tuple(others)
    return _inner_products(upper, lower, tuple(numbers), compared, spread=spread)  # type: ignore[no-any-return]  # a jit


# Jitted, so that an update outside of any other jit compiles the condition once, and not at every step.
@partial(jax.jit, static_argnames="spread")
def _inner_products(
    upper: tuple[Any, ...],
    lower: tuple[Any, ...],
    numbers: tuple[Any, ...],
    others: tuple[tuple[Any, ...], ...],
    spread: Spread | None,
) -> tuple[Products, list[jax.Array]]:
    def dots(upper: Any, lower: Any, numbers: Any = (), others: Any = ()) -> Any:
        if spread is None:
            return gradients.dots(upper, lower), list(numbers), True
        return spread.reduced(upper, lower, numbers, others)

    (fg, gg, ff), means, copies_equal = dots(upper, lower, numbers, others)
    one = jnp.ones_like(fg)
    info = gradients.limits(fg)
    least = info.tiny / info.eps**2
    most = info.max * info.eps**2

    def scaled() -> Products:
        largest = [
            gradients.largest(leaves).astype(fg.dtype) for leaves in (upper, lower)
        ]
        scales = [
            _power_of_two(value)
            for value in (largest if spread is None else spread.largest(*largest))
        ]
        quotients = [
            _divided(leaves, scale)
            for leaves, scale in zip((upper, lower), scales, strict=True)
        ]
        products, _, scaled_copies_equal = dots(*quotients)
        products = [product.astype(fg.dtype) for product in products]
        return Products(
            jnp.where(scaled_copies_equal, products[0], jnp.nan), *products[1:], *scales
        )

    ordinary = (least < gg) & (gg < most) & (least < ff) & (ff < most)
    products = jax.lax.cond(ordinary, lambda: Products(fg, gg, ff, one, one), scaled)
    return products._replace(fg=jnp.where(copies_equal, products.fg, jnp.nan)), means


def _divided(leaves: Leaves, scale: jax.Array) -> list[jax.Array]:
    return [
        gradients.widen(leaf) / scale.astype(gradients.real(leaf)) for leaf in leaves
    ]


def _power_of_two(value: jax.Array) -> jax.Array:
    """The largest power of two that is at most `value`; 1 for zero and for what is not finite."""
    usable = jnp.isfinite(value) & (value > 0)
    exponent = jnp.frexp(jax.lax.stop_gradient(jnp.where(usable, value, 1.0)))[1] - 1
    # float32 holds the inverse of these, too, and leaves of float32 may stand beside others of float64.
    return jnp.ldexp(jnp.ones_like(value), jnp.clip(exponent, -126, 126))


def first_scale(norm: jax.Array, scale: jax.Array) -> jax.Array:
    """A power of two near `norm` · `scale`; 0 where the norm is 0."""
    most = 2.0**126
    return jnp.where(
        norm > 0, jnp.clip(_power_of_two(norm) * scale, 1 / most, most), 0.0
    )


def for_rule(
    rule: Rule, products: Products, parameters: Parameters, lower_value: Any
) -> tuple[Seen, Parameters]:
    """The arguments of a rule, at a scale that loses none of them.

    The library's rules give the same λ if both gradients are divided by c, and everything with the dimension of gg by
    c²: the regularizer, 1/μ, and the lower loss with its target. A user's rule need not, and gets gg itself, but never
    0 unless ∇g is 0.
    """
    if rule not in RULES.values():
        fg, gg, ff = products.rescaled(1.0, 1.0)
        gg = jnp.where(products.gg > 0, jnp.maximum(gg, gradients.limits(gg).tiny), gg)
        return Seen(fg, gg, ff, lower_value=lower_value), parameters
    scaled = (products.upper_scale != 1) | (products.lower_scale != 1)
    slacks = [
        parameters.regularizer,
        None if parameters.penalty is None else 1 / parameters.penalty,
    ]
    # Where ∇f is so much larger that fg would overflow, gg may be small.
    between = jnp.sqrt(products.upper_scale) * jnp.sqrt(products.lower_scale)
    largest = jnp.maximum(products.lower_scale, 2.0**-50 * between)
    for slack in (
        slacks
    ):  # divided by less, a large slack would overflow; beside it gg may vanish
        if slack is not None:
            largest = jnp.maximum(largest, jnp.sqrt(jax.lax.stop_gradient(slack)))
    c = jnp.where(scaled, _power_of_two(largest), 1.0)
    fg, gg, _ = products.rescaled(c, c)
    # Exact, and no division: XLA rewrites v/c/c as v/(c·c), and c·c may overflow.
    inverse = _power_of_two(1 / c)

    def over(value: Any) -> Any:
        return None if value is None else value * inverse * inverse

    others = {
        name: over(value) if name == "target" else value
        for name, value in parameters.others.items()
    }
    penalty = parameters.penalty
    if penalty is not None:  # the rule refuses an infinite penalty
        penalty = jnp.where(
            jnp.isfinite(penalty),
            jnp.minimum(penalty * c * c, gradients.limits(c).max),
            penalty,
        )
    parameters = parameters._replace(
        regularizer=over(parameters.regularizer), penalty=penalty, others=others
    )
    return Seen(fg, gg, lower_value=over(lower_value)), parameters


def root(square: jax.Array) -> jax.Array:
    """√square, whose derivative at 0 is 0 instead of NaN.

    Examples
    --------
    >>> float(root(jnp.array(4.0))), float(jax.grad(root)(0.0))
    (2.0, 0.0)
    """
    is_zero = square == 0
    return jnp.where(is_zero, 0.0, jnp.sqrt(jnp.where(is_zero, 1.0, square)))
