"""Numbers of many devices, under shard_map, pmap or vmap with named axes, made one: one collective a step.

Every device has a part of the numbers: products of the parameters that it holds, a loss of its own batch. The whole is
the sum over the shards of a parameter, each counted once however many copies there are, and the mean over the losses::

    fg = Σ_devices Σ_leaves ⟨∇f, ∇g⟩ / copies        g = Σ_devices loss / devices

so one `psum` of a few numbers makes all of them, and every device decides alike.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tiebreak.optax import trees

__all__ = ["Spread", "size", "summed", "tracked", "vary", "varying", "words"]


def varying(value: Any) -> frozenset[Any]:
    """The axes over which a value differs, as far as its type says: JAX knows under ``shard_map(check_vma=True)``."""
    of = getattr(jax, "typeof", None)
    if of is None:
        return frozenset()
    kind = of(value)
    known = getattr(kind, "manual_axis_type", None)  # in newer versions; before, `vma`, and before that nothing
    found: frozenset[Any] = getattr(kind, "vma", frozenset()) if known is None else known.varying
    return found


def vary(tree: Any, axes: Iterable[Any]) -> Any:
    """The arrays of a tree, with types that differ over these axes."""
    needed = [axis for axis in sorted(axes, key=str) if tracked(axis)]  # in one order in all processes

    def each(value: Any) -> Any:
        for axis in needed:
            if axis not in varying(value):
                value = jnp.where(jax.lax.axis_index(axis) < 0, value, value)
        return value

    return jax.tree.map(each, tree) if needed else tree


def tracked(axis: Any) -> bool:
    """Whether types say what differs over an axis: then the index along it does."""
    try:
        return axis in varying(jax.lax.axis_index(axis))
    except NameError as error:
        error.add_note(
            f"axis_name={axis!r} is for functions mapped over that axis by jax.shard_map, jax.pmap or jax.vmap. Under "
            "jit alone, with sharded arrays, leave it out: inner products are over whole arrays then."
        )
        raise


def size(axes: Iterable[Any]) -> int:
    """How many devices there are along these axes."""
    return prod(int(summed(1, axis)) for axis in axes)


def summed(values: Any, axes: Any) -> Any:
    """The sums over these axes, of several values in one collective."""
    return jax.lax.psum(values, axes)  # type: ignore[no-untyped-call]  # jax


class Spread(NamedTuple):
    """Where the leaves of an update lie; hashable, for a jit.

    Attributes
    ----------
    names : tuple
        The axes to reduce over.
    shards : tuple of tuple
        Of each leaf that takes part, those over which it is sharded; over the others there are copies of it.
    trusted : bool
        Whether types show that copies are equal. Otherwise they are compared.
    """

    names: tuple[Any, ...]
    shards: tuple[tuple[Any, ...], ...]
    trusted: bool

    def reduced(
        self,
        upper: Sequence[Any],
        lower: Sequence[Any],
        numbers: Sequence[Any] = (),
        others: Sequence[Sequence[Any]] = (),
    ) -> tuple[tuple[jax.Array, ...], list[jax.Array], jax.Array]:
        """fg, gg and ff of all devices, the means of further numbers, and whether copies of all gradients are equal.

        `others` are gradients that are compared alone.
        """
        products = [jnp.zeros((), jnp.float32)] * 3
        for shards in sorted(set(self.shards), key=str):
            mine = [i for i, other in enumerate(self.shards) if other == shards]
            found = trees.dots([upper[i] for i in mine], [lower[i] for i in mine])
            copied = [axis for axis in self.names if axis not in shards]
            products = [total + value / size(copied) for total, value in zip(products, found, strict=True)]
        parts = [*products, *(number / size(self.names) for number in numbers)]
        norms = [] if self.trusted else [part for leaves in (upper, lower, *others) for part in self._norms(leaves)]
        whole = summed(vary(jnp.stack([*parts, *norms]), self.names), self.names)
        fg, gg, ff = (value.astype(products[0].dtype) for value in whole[:3])
        means = [m.astype(number.dtype) for m, number in zip(whole[3:], numbers, strict=False)]
        found, first = whole[len(parts) :].reshape(-1, 2).T
        # Squares that nearly vanish are rounded to nothing in one sum and not in the other.
        least = max((float(limit.tiny / limit.eps) for limit in map(trees.limits, upper)), default=0.0)
        alike = (found == first) | (jnp.abs(found - first) <= 1e-3 * found + least)
        return (fg, gg, ff), means, jnp.all(alike)

    def _norms(self, leaves: Sequence[Any]) -> list[jax.Array]:
        """Of each leaf two parts of its squared norm: of the mean over its copies, and of the first copy."""
        found = []
        for leaf, shards in zip(leaves, self.shards, strict=True):
            square, copied = trees.products(leaf, leaf), [axis for axis in self.names if axis not in shards]
            here = jnp.all(jnp.array([jax.lax.axis_index(axis) == 0 for axis in copied], dtype=bool))
            found += [square / size(copied), jnp.where(here, square, 0.0)]
        return found

    def largest(self, *values: jax.Array) -> jax.Array:
        """The largest of each value over all devices."""
        mine = vary(jax.lax.stop_gradient(jnp.stack(values)), self.names)
        found: jax.Array = jax.lax.pmax(mine, self.names)  # type: ignore[no-untyped-call]  # jax
        return found


def words(axes: Iterable[Any]) -> str:
    """Axes as an error names them, and as they are written in code."""
    found = sorted(map(repr, axes))
    return found[0] if len(found) == 1 else f"({', '.join(found)})"
