"""Inner products of two gradients, over all devices and at any scale that their dtype can hold.

Each device has shards of some leaves and copies of others. One `psum` makes the same numbers on all devices::

    fg = Σ_devices Σ_leaves ⟨∇f, ∇g⟩ / copies        g = Σ_devices loss / devices

The square of a float32 underflows below 1e-19 and overflows above 1e19. Near these limits the products are computed
again, from ∇f/2^m and ∇g/2^n; otherwise m and n are 0.
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain, compress, cycle
from operator import truediv
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from tiebreak.optax.distributed import Layout, all_sum, size, vary
from tiebreak.optax.gradients import (
    Leaves,
    differentiable,
    limits,
    power,
    times_power,
    widen,
)

#: A gradient whose square underflows or overflows is divided by 2^±SHIFT. Even in float32 the new square does neither.
SHIFT = 80
#: Smaller sums of squares have lost digits in float32.
MIN_SQUARE = 2.0**-103


class Products(NamedTuple):
    """fg, gg and ff of ∇f/2^m and ∇g/2^n, with m = `upper_exponent` and n = `lower_exponent`."""

    fg: Array
    gg: Array
    ff: Array
    upper_exponent: Array
    lower_exponent: Array

    def divided(self, exponent: Array | int) -> tuple[Array, Array, Array]:
        """fg, gg and ff of both gradients over 2^exponent.

        Examples
        --------
        >>> tiny, _ = inner_products([[jnp.array([1e-30])], [jnp.array([3e-30])]])
        >>> fg, gg, ff = tiny.divided(-100)
        >>> round(float(fg / gg), 4), round(float(ff / gg), 4)
        (0.3333, 0.1111)
        """
        m = self.upper_exponent - exponent
        n = self.lower_exponent - exponent
        fg = times_power(self.fg, m + n)
        gg = times_power(self.gg, 2 * n)
        ff = times_power(self.ff, 2 * m)
        return fg, gg, ff


def inner_products(
    gradients: Sequence[Leaves], numbers: Leaves = (), layout: Layout | None = None
) -> tuple[Products, Leaves]:
    """The products of the first two gradients and the means of `numbers`, over all devices.

    fg is NaN if the devices' copies of a gradient differ, including those of further gradients.
    """
    mask = list(map(differentiable, gradients[0]))
    gradients = tuple(tuple(compress(leaves, mask)) for leaves in gradients)
    return _inner_products(gradients, tuple(numbers), layout=layout)  # type: ignore[no-any-return]  # a jit


# Jitted: otherwise an update outside of a jit would compile the condition at every step.
@partial(jax.jit, static_argnames="layout")
def _inner_products(
    gradients: Sequence[Leaves], numbers: Leaves, layout: Layout | None
) -> tuple[Products, Leaves]:
    products, means, copies_equal = _sums(gradients, numbers, layout)
    fg, gg, ff = products
    m = _exponent(ff)
    n = _exponent(gg)

    def scaled() -> tuple[Leaves, Array]:
        quotients = []
        for leaves, exponent in zip(gradients[:2], (m, n), strict=True):
            factor = power(-exponent)
            quotients.append([widen(leaf) * factor for leaf in leaves])
        products, _, equal = _sums(quotients, (), layout)
        products = [product.astype(fg.dtype) for product in products]
        all_equal = copies_equal & equal
        return products, all_equal

    in_range = (m == 0) & (n == 0)
    (fg, gg, ff), copies_equal = lax.cond(
        in_range, lambda: (products, copies_equal), scaled
    )
    fg = jnp.where(copies_equal, fg, jnp.nan)
    # A gradient of zeros has no scale.
    upper_exponent = m * (ff != 0)
    lower_exponent = n * (gg != 0)
    return Products(fg, gg, ff, upper_exponent, lower_exponent), means


def _sums(
    gradients: Sequence[Leaves], numbers: Leaves, layout: Layout | None
) -> tuple[Leaves, Leaves, Array]:
    """The products, the means of the numbers, and whether all copies are equal, in one collective."""
    upper, lower = gradients[:2]
    if layout is None:
        return _dots(upper, lower), list(numbers), jnp.array(True)
    copies = list(map(size, layout.copies))
    devices = size(layout.axes)
    parts = _dots(upper, lower, copies)
    parts += [number / devices for number in numbers]
    count = len(parts)
    if not layout.tracked:
        leaves = chain(*gradients)
        # Parts of the squared norm of each leaf: of the mean over the copies, and of the first copy.
        for leaf, axes in zip(leaves, cycle(layout.copies), strict=False):
            square = _dot(leaf, leaf)
            index = sum(lax.axis_index(axis) for axis in axes)
            mean = square / size(axes)
            first = jnp.where(index == 0, square, 0.0)
            parts += [mean, first]
    stacked = vary(jnp.stack(parts), layout.axes)
    totals = all_sum(stacked, layout.axes)
    pairs = zip(totals, parts, strict=True)
    parts = [total.astype(part.dtype) for total, part in pairs]
    # Both norms are equal, up to rounding. Squares near 0 may be rounded to 0 in one sum alone.
    of_mean, of_first = totals[count:].reshape(-1, 2).T
    margin = 1e-3 * of_mean + MIN_SQUARE
    equal = (of_mean == of_first) | (jnp.abs(of_mean - of_first) <= margin)
    return parts[:3], parts[3:count], jnp.all(equal)


def _dots(upper: Leaves, lower: Leaves, copies: Sequence[int] = ()) -> list[Array]:
    """fg, gg and ff of two lists of leaves, in float32 or wider; the products of each leaf are divided by its `copies`."""
    products = []
    for a, b in ((upper, lower), (lower, lower), (upper, upper)):
        terms = map(_dot, a, b)
        if copies:
            terms = map(truediv, terms, copies)
        products.append(sum(terms, jnp.zeros((), jnp.float32)))
    return products


def _dot(a: Array, b: Array) -> Array:
    """Re⟨a, b⟩ of two leaves, accumulated in float32 or wider."""
    # Not jnp.vdot: a TPU multiplies float32 matrices in bfloat16 by default. XLA fuses this into one pass.
    return jnp.sum(jnp.real(widen(a) * jnp.conj(widen(b))))


def _exponent(square: Array) -> Array:
    """log₂ of the divisor of a gradient with this square: 0, or ±SHIFT if the square underflowed or overflowed."""
    info = limits(square)
    least = info.tiny / info.eps**2
    most = info.max * info.eps**2
    return SHIFT * jnp.where(square < least, -1, square > most)
