"""Two gradients as pytrees: matched leaf by leaf, multiplied, combined."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax

#: Arrays in any nesting of containers.
Tree: TypeAlias = Any
#: The leaves of a tree.
Leaves: TypeAlias = Sequence[Any]


def is_masked(node: Any) -> bool:
    """Whether `optax.masked` or `optax.partition` took something out here."""
    return isinstance(node, optax.MaskedNode)


def match(
    upper: Tree, lower: Tree, names: tuple[str, str] = ("updates", "lower_grads")
) -> list[Any]:
    """The leaves of `lower` in the order of `upper`'s; what is masked in `upper` is left out of both.

    Raises
    ------
    ValueError
        Where the trees differ, or the shapes of two leaves; the leaf is named.
    """
    leaves, structure = jax.tree.flatten(lower)
    if structure != jax.tree.structure(upper):  # type: ignore[operator]  # jaxlib has no types
        leaves = _aligned(upper, lower, names)
    for (path, u), g in zip(
        jax.tree_util.tree_leaves_with_path(upper), leaves, strict=True
    ):
        if jnp.shape(u) != jnp.shape(g):
            place = jax.tree_util.keystr(path)
            raise ValueError(
                f"{names[1]}{place} has shape {jnp.shape(g)}; it must be that of {names[0]}{place}, {jnp.shape(u)}"
            )
    return leaves


def _aligned(upper: Tree, lower: Tree, names: tuple[str, str]) -> list[Any]:
    """`lower`'s leaves by the paths of `upper`'s, for trees of different structure."""
    by_path = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(lower)
    }
    nodes = jax.tree_util.tree_leaves_with_path(upper, is_leaf=is_masked)
    paths = [jax.tree_util.keystr(path) for path, node in nodes if not is_masked(node)]
    masked = [jax.tree_util.keystr(path) for path, node in nodes if is_masked(node)]
    for path in paths:
        if path not in by_path:
            raise ValueError(
                f"{names[1]} has no leaf {path or '(the tree itself)'}, which {names[0]} has"
            )
    for path in by_path:
        if path not in paths and not _below(path, masked):
            raise ValueError(
                f"{names[1]} has a leaf {path or '(the tree itself)'}, which {names[0]} has not"
            )
    return [by_path[path] for path in paths]


def _below(path: str, parents: Sequence[str]) -> bool:
    """Whether a path goes through one of `parents`: ['a1'] is not below ['a'], and keystr closes every bracket."""
    return any(
        path == parent or path.startswith((f"{parent}[", f"{parent}."))
        for parent in parents
    )


def widen(leaf: Any) -> jax.Array:
    """The leaf in float32 or wider."""
    return jnp.asarray(leaf).astype(
        jnp.promote_types(jnp.result_type(leaf), jnp.float32)
    )


def limits(leaf: Any) -> Any:
    """What the widened leaf can hold."""
    return jnp.finfo(jnp.promote_types(jnp.result_type(leaf), jnp.float32))  # type: ignore[no-untyped-call]  # ml_dtypes


def real(leaf: Any) -> Any:
    """The real dtype of the widened leaf."""
    return limits(leaf).dtype


def products(a: Any, b: Any) -> jax.Array:
    """Re⟨a, b⟩ of two leaves, accumulated in float32 or wider."""
    # Not jnp.vdot: a TPU multiplies float32 matrices in bfloat16 unless told otherwise. XLA fuses this into one pass.
    a, b = widen(a), widen(b)
    if jnp.iscomplexobj(a) or jnp.iscomplexobj(b):
        return jnp.sum(a.real * b.real + a.imag * b.imag)
    return jnp.sum(a * b)


def differentiable(leaf: Any) -> bool:
    """Whether a leaf takes part: whole numbers and `float0`, which jax.grad gives for them, do not."""
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact))


def finite(leaves: Leaves) -> jax.Array:
    """Whether all that takes part is finite."""
    return jnp.all(
        jnp.array(
            [jnp.isfinite(v).all() for v in leaves if differentiable(v)], dtype=bool
        )
    )


def largest(leaves: Leaves) -> jax.Array:
    """The largest real or imaginary part, in absolute value; 0 of nothing."""
    maximum = jnp.zeros((), jnp.float32)
    for leaf in leaves:
        parts = (leaf.real, leaf.imag) if jnp.iscomplexobj(leaf) else (leaf,)
        for part in parts:
            maximum = jnp.maximum(maximum, jnp.max(jnp.abs(widen(part)), initial=0.0))
    return maximum


def dots(upper: Leaves, lower: Leaves) -> tuple[jax.Array, jax.Array, jax.Array]:
    """fg, gg and ff of two lists of leaves, as 0-d arrays in float32 or wider.

    Examples
    --------
    >>> fg, gg, ff = dots([jnp.array([1.0, 2.0])], [jnp.array([3.0, 0.0])])
    >>> float(fg), float(gg), float(ff)
    (3.0, 9.0, 5.0)
    """
    pairs = [(u, g) for u, g in zip(upper, lower, strict=True) if differentiable(u)]
    none = jnp.zeros((), jnp.float32)
    fg = sum((products(u, g) for u, g in pairs), none)
    gg = sum((products(g, g) for _, g in pairs), none)
    ff = sum((products(u, u) for u, _ in pairs), none)
    return fg, gg, ff


def combine(
    upper: Leaves, lower: Leaves, weights: tuple[Any, Any], scales: Any, like: Leaves
) -> list[Any]:
    """a ∇f + b ∇g, leaf by leaf, in float32 or wider and rounded once, to the dtypes of `like`.

    With scales (c, e) ∇f is first multiplied by 1/c, then by e: their quotient may overflow.
    """

    def direction(u: Any, g: Any, leaf: Any) -> Any:
        if not differentiable(leaf):
            return leaf
        wide, dtype = widen(u), real(u)
        if scales is not None:
            wide = wide * (1 / scales[0]).astype(dtype) * scales[1].astype(dtype)
        a, b = (weight.astype(dtype) for weight in weights)
        return (a * wide + b * widen(g)).astype(jnp.result_type(leaf))

    return [direction(*leaves) for leaves in zip(upper, lower, like, strict=True)]


def copied(tree: Tree) -> Tree:
    """The tree in buffers of its own, so that any of them may be donated."""
    return jax.tree.map(jnp.array, tree)
