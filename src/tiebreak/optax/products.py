"""Inner products of two gradients, over all devices and at any scale that their dtype can hold.

Each device has shards of some leaves and copies of others. One `psum` makes the same numbers on all devices::

    fg = Σ_devices Σ_leaves ⟨∇f, ∇g⟩ / copies        g = Σ_devices loss / devices

The square of a float32 underflows below 1e-19 and overflows above 1e19. Near these limits each gradient is divided by
a power of two, and the products are computed again; otherwise both scales are 1.
"""

from collections.abc import Sequence
from functools import partial
from itertools import compress
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from tiebreak.optax.distributed import Layout, all_sum, size, vary
from tiebreak.optax.gradients import Leaves, differentiable, limits, widen


class Products(NamedTuple):
    """fg, gg and ff of ∇f over `upper_scale` and ∇g over `lower_scale`, both powers of two."""

    fg: Array
    gg: Array
    ff: Array
    upper_scale: Array
    lower_scale: Array

    def rescaled(
        self, upper: ArrayLike, lower: ArrayLike
    ) -> tuple[Array, Array, Array]:
        """fg, gg and ff of ∇f over `upper` and ∇g over `lower`."""
        a = self.upper_scale / upper
        b = self.lower_scale / lower
        # If a overflows, b is small: multiply by b before the division by `upper`.
        large = jnp.isinf(a)
        factor = jnp.where(large, self.upper_scale, a)
        fg = self.fg * b * factor / jnp.where(large, upper, 1.0)
        return fg, self.gg * b * b, self.ff * a * a


def inner_products(
    gradients: Sequence[Leaves], numbers: Leaves = (), layout: Layout | None = None
) -> tuple[Products, Leaves]:
    """The products of the first two gradients and the means of `numbers`, over all devices.

    fg is NaN if the devices' copies of a gradient differ, including those of further gradients.

    Examples
    --------
    >>> tiny, _ = inner_products([[jnp.array([1.0, 2.0])], [jnp.array([3e-30, 0.0])]])
    >>> fg, gg, ff = tiny.rescaled(1.0, 1e-30)
    >>> round(float(fg), 4), round(float(gg), 4), float(ff)
    (3.0, 9.0, 5.0)
    """
    mask = [differentiable(leaf) for leaf in gradients[0]]
    gradients = tuple(tuple(compress(leaves, mask)) for leaves in gradients)
    return _inner_products(gradients, tuple(numbers), layout=layout)  # type: ignore[no-any-return]  # a jit


# Jitted, so that an update outside of any other jit does not compile the condition at every step.
@partial(jax.jit, static_argnames="layout")
def _inner_products(
    gradients: Sequence[Leaves], numbers: Leaves, layout: Layout | None
) -> tuple[Products, Leaves]:
    (fg, gg, ff), means, copies_equal = _sums(gradients, numbers, layout)
    dtype = fg.dtype
    one = jnp.ones_like(fg)

    def scaled() -> Products:
        largest = jnp.stack([_largest(leaves) for leaves in gradients[:2]])
        largest = largest.astype(dtype)
        if layout is not None:
            largest = vary(lax.stop_gradient(largest), layout.axes)
            largest = lax.pmax(largest, layout.axes)  # type: ignore[no-untyped-call]  # jax
        scales = list(map(power_of_two, largest))
        quotients = list(map(_divided, gradients, scales))
        products, _, copies_equal = _sums(quotients, (), layout)
        fg, gg, ff = (product.astype(dtype) for product in products)
        fg = jnp.where(copies_equal, fg, jnp.nan)
        return Products(fg, gg, ff, *scales)

    info = limits(fg)
    least = info.tiny / info.eps**2
    most = info.max * info.eps**2
    ordinary = (least < gg) & (gg < most) & (least < ff) & (ff < most)
    unscaled = Products(fg, gg, ff, one, one)
    products = lax.cond(ordinary, lambda: unscaled, scaled)
    fg = jnp.where(copies_equal, products.fg, jnp.nan)
    return products._replace(fg=fg), means


def _sums(
    gradients: Sequence[Leaves], numbers: Leaves, layout: Layout | None
) -> tuple[Leaves, Leaves, Array | bool]:
    """The products, the means of the numbers, and whether all copies are equal, in one collective."""
    if layout is None:
        return dots(*gradients[:2]), list(numbers), True
    products = [jnp.zeros((), jnp.float32)] * 3
    for shards in sorted(set(layout.shards), key=str):
        mask = [axes == shards for axes in layout.shards]
        copies = size(layout.copy_axes(shards))
        pair = [list(compress(leaves, mask)) for leaves in gradients[:2]]
        sums = zip(products, dots(*pair), strict=True)
        products = [total + product / copies for total, product in sums]
    devices = size(layout.axes)
    parts = [*products, *(number / devices for number in numbers)]
    count = len(parts)
    if not layout.tracked:
        for leaves in gradients:
            parts += _norms(leaves, layout)
    stacked = vary(jnp.stack(parts), layout.axes)
    totals = all_sum(stacked, layout.axes)
    products = [total.astype(products[0].dtype) for total in totals[:3]]
    pairs = zip(totals[3:count], numbers, strict=True)
    means = [total.astype(number.dtype) for total, number in pairs]
    # The squared norm of the mean over the copies equals that of the first copy, up to rounding. Squares that nearly
    # vanish may be rounded to 0 in one sum and not in the other.
    of_mean, of_first = totals[count:].reshape(-1, 2).T
    info = map(limits, gradients[0])
    smallest = [float(limit.tiny / limit.eps) for limit in info]
    margin = 1e-3 * of_mean + max(smallest, default=0.0)
    equal = (of_mean == of_first) | (jnp.abs(of_mean - of_first) <= margin)
    return products, means, jnp.all(equal)


def _norms(leaves: Leaves, layout: Layout) -> Leaves:
    """Two parts of the squared norm of each leaf: of the mean over its copies, and of the first copy."""
    norms = []
    for leaf, shards in zip(leaves, layout.shards, strict=True):
        square = dot(leaf, leaf)
        axes = layout.copy_axes(shards)
        first = [lax.axis_index(axis) == 0 for axis in axes]
        is_first = jnp.all(jnp.array(first, dtype=bool))
        norms += [square / size(axes), jnp.where(is_first, square, 0.0)]
    return norms


def dot(a: ArrayLike, b: ArrayLike) -> Array:
    """Re⟨a, b⟩ of two leaves, accumulated in float32 or wider."""
    # Not jnp.vdot: a TPU multiplies float32 matrices in bfloat16 by default. XLA fuses this into one pass.
    a = widen(a)
    b = widen(b)
    if jnp.iscomplexobj(a) or jnp.iscomplexobj(b):
        return jnp.sum(a.real * b.real + a.imag * b.imag)
    return jnp.sum(a * b)


def dots(upper: Leaves, lower: Leaves) -> Leaves:
    """fg, gg and ff of two lists of leaves, as 0-d arrays in float32 or wider.

    Examples
    --------
    >>> fg, gg, ff = dots([jnp.array([1.0, 2.0])], [jnp.array([3.0, 0.0])])
    >>> float(fg), float(gg), float(ff)
    (3.0, 9.0, 5.0)
    """
    zero = jnp.zeros((), jnp.float32)
    pairs = ((upper, lower), (lower, lower), (upper, upper))
    return [sum(map(dot, *pair), zero) for pair in pairs]


def _largest(leaves: Leaves) -> Array:
    """The largest real or imaginary part, in absolute value; 0 without leaves."""
    largest = jnp.zeros((), jnp.float32)
    for leaf in leaves:
        parts = (leaf.real, leaf.imag) if jnp.iscomplexobj(leaf) else (leaf,)
        for part in parts:
            entries = jnp.abs(widen(part))
            largest = jnp.maximum(largest, jnp.max(entries, initial=0.0))
    return largest


def _divided(leaves: Leaves, scale: Array) -> Leaves:
    return [widen(leaf) / scale.astype(limits(leaf).dtype) for leaf in leaves]


def power_of_two(value: Array) -> Array:
    """The largest power of two that is at most `value`; 1 if that is 0 or not finite."""
    usable = jnp.isfinite(value) & (value > 0)
    fixed = lax.stop_gradient(jnp.where(usable, value, 1.0))
    exponent = jnp.frexp(fixed)[1] - 1
    # float32 holds the inverse as well, and leaves of float32 may stand beside others of float64.
    exponent = jnp.clip(exponent, -126, 126)
    return jnp.ldexp(jnp.ones_like(value), exponent)
