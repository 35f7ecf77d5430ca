"""Gradients as pytrees: matched leaf by leaf, widened, and combined into a direction."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.tree_util import keystr, tree_leaves_with_path
from jax.typing import ArrayLike

#: Arrays in any nesting of containers.
Tree: TypeAlias = Any
#: Arrays: the leaves of a tree, or numbers.
Leaves: TypeAlias = Sequence[Any]


def paths(tree: Tree) -> list[str]:
    """The leaves of a tree as an error names them."""
    return [keystr(path) for path, _ in tree_leaves_with_path(tree)]


def match(
    upper: Tree, lower: Tree, names: tuple[str, str] = ("updates", "lower_grads")
) -> list[Any]:
    """The leaves of `lower` in the order of `upper`, without those that `upper` masks.

    Raises
    ------
    ValueError
        If the trees or the shapes of two leaves differ; the error names the leaf.
    """
    leaves, structure = jax.tree.flatten(lower)
    if structure != jax.tree.structure(upper):  # type: ignore[operator]  # jaxlib has no types
        leaves = _aligned(upper, lower, names)
    rows = zip(paths(upper), jax.tree.leaves(upper), leaves, strict=True)
    for path, u, g in rows:
        if jnp.shape(u) != jnp.shape(g):
            raise ValueError(
                f"{names[1]}{path} has shape {jnp.shape(g)}; it must be that of {names[0]}{path}, {jnp.shape(u)}"
            )
    return leaves


def _aligned(upper: Tree, lower: Tree, names: tuple[str, str]) -> list[Any]:
    """The leaves of `lower` by the paths of `upper`, for trees of different structure."""
    by_path = dict(zip(paths(lower), jax.tree.leaves(lower), strict=True))
    upper_paths = paths(upper)
    for path in upper_paths:
        if path not in by_path:
            raise ValueError(
                f"{names[1]} has no leaf {path or '(the tree itself)'}, which {names[0]} has"
            )
    nodes = tree_leaves_with_path(upper, is_leaf=_is_masked)
    masked = [keystr(path) for path, node in nodes if _is_masked(node)]
    for path in by_path:
        if path not in upper_paths and not _below(path, masked):
            raise ValueError(
                f"{names[1]} has a leaf {path or '(the tree itself)'}, which {names[0]} has not"
            )
    return [by_path[path] for path in upper_paths]


def _is_masked(node: object) -> bool:
    """Whether `optax.masked` or `optax.partition` removed this node."""
    return isinstance(node, optax.MaskedNode)


def _below(path: str, parents: Sequence[str]) -> bool:
    """Whether a path is one of `parents` or goes through one: ``.a1`` is not below ``.a``."""
    return any(
        f"{path}.".startswith((f"{parent}.", f"{parent}[")) for parent in parents
    )


def wide_dtype(leaf: ArrayLike) -> jnp.dtype:
    """The dtype of the leaf, or float32 if that is wider."""
    return jnp.promote_types(jnp.result_type(leaf), jnp.float32)


def limits(leaf: ArrayLike) -> jnp.finfo:
    """The limits of the widened leaf; their `dtype` is real."""
    return jnp.finfo(wide_dtype(leaf))  # type: ignore[no-untyped-call]  # ml_dtypes


def widen(leaf: ArrayLike) -> Array:
    """The leaf in float32 or wider."""
    return jnp.asarray(leaf).astype(wide_dtype(leaf))


def differentiable(leaf: ArrayLike) -> bool:
    """Whether a leaf takes part: integers and `float0`, which jax.grad returns for them, do not."""
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact))


def has_tracers(tree: Tree) -> bool:
    """Whether JAX traces a leaf, so that it is not a number."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def finite(leaves: Iterable[Any]) -> Array:
    """Whether all leaves that take part are finite."""
    flags = [jnp.isfinite(leaf).all() for leaf in leaves if differentiable(leaf)]
    return jnp.all(jnp.array(flags, dtype=bool))


def combine(
    gradients: Sequence[Leaves], weights: Leaves, scales: Leaves | None, like: Leaves
) -> Leaves:
    """a ∇f + b ∇g, leaf by leaf, in float32 or wider, rounded once to the dtypes of `like`.

    With scales (c, e) ∇f is first multiplied by 1/c and then by e, because e/c may overflow.
    """

    def direction(u: Any, g: Any, leaf: Any) -> Any:
        if not differentiable(leaf):
            return leaf
        wide = widen(u)
        dtype = limits(u).dtype
        if scales is not None:
            inverse = (1 / scales[0]).astype(dtype)
            wide = wide * inverse * scales[1].astype(dtype)
        a, b = (weight.astype(dtype) for weight in weights)
        return (a * wide + b * widen(g)).astype(jnp.result_type(leaf))

    return list(map(direction, *gradients, like))


def check_number(name: str, number: np.ndarray | Array) -> None:
    """Raise unless a loss is one real number."""
    is_real = jnp.issubdtype(number.dtype, jnp.number) and not jnp.iscomplexobj(number)
    if number.ndim or not is_real:
        raise ValueError(
            f"{name} has shape {number.shape} and dtype {number.dtype}; it must be one real number"
        )


def copied(tree: Tree) -> Tree:
    """The tree in new buffers, so that each of them may be donated."""
    return jax.tree.map(jnp.array, tree)
