"""Gradients as pytrees: matched leaf by leaf, widened, and combined into a direction."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.tree_util import keystr, tree_leaves_with_path
from jax.typing import ArrayLike

#: Arrays in any nesting of containers.
Tree: TypeAlias = Any
#: Arrays: the leaves of a tree, or numbers.
Leaves: TypeAlias = Sequence[Any]
#: float32 holds 2^±MAX_EXPONENT, and leaves of float32 may stand beside others of float64.
MAX_EXPONENT = 126


def match(
    upper: Tree, lower: Tree, names: tuple[str, str] = ("updates", "lower_grads")
) -> list[Any]:
    """The leaves of `lower` in the order of `upper`, without those that `upper` masks.

    Raises
    ------
    ValueError
        If the trees or the shapes of two leaves differ; the error names the leaf.
    """
    of_upper, of_lower = names
    leaves = dict(tree_leaves_with_path(lower))
    masked = []
    matched = []
    for path, node in tree_leaves_with_path(upper, is_leaf=_is_masked):
        name = keystr(path)
        if _is_masked(node):
            masked.append(path)
            continue
        if path not in leaves:
            raise ValueError(
                f"{of_lower} has no leaf {name or '(the tree itself)'}, which {of_upper} has"
            )
        leaf = leaves.pop(path)
        if jnp.shape(leaf) != jnp.shape(node):
            raise ValueError(
                f"{of_lower}{name} has shape {jnp.shape(leaf)}; it must be that of {of_upper}{name}, {jnp.shape(node)}"
            )
        matched.append(leaf)
    for path in leaves:
        if not any(path[: len(parent)] == parent for parent in masked):
            raise ValueError(
                f"{of_lower} has a leaf {keystr(path)}, which {of_upper} has not"
            )
    return matched


def _is_masked(node: object) -> bool:
    """Whether `optax.masked` or `optax.partition` removed this node."""
    return isinstance(node, optax.MaskedNode)


def paths(tree: Tree) -> list[str]:
    """The leaves of a tree as an error names them."""
    return [keystr(path) for path, _ in tree_leaves_with_path(tree)]


def limits(leaf: ArrayLike) -> jnp.finfo:
    """The limits of a leaf in float32 or wider; their `dtype` is real."""
    return jnp.finfo(_wide(leaf))  # type: ignore[no-untyped-call]  # ml_dtypes


def widen(leaf: ArrayLike) -> Array:
    """The leaf in float32 or wider."""
    return jnp.asarray(leaf).astype(_wide(leaf))


def _wide(leaf: ArrayLike) -> jnp.dtype:
    return jnp.promote_types(jnp.result_type(leaf), jnp.float32)


def cast(value: Any, like: ArrayLike) -> Array:
    """The value in the dtype of `like`: a scan needs the same dtypes at each step."""
    return jnp.asarray(value).astype(jnp.result_type(like))


def differentiable(leaf: ArrayLike) -> bool:
    """Whether a leaf takes part: integers and `float0`, which jax.grad returns for them, do not."""
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact))


def finite(leaves: Iterable[Any]) -> Array:
    """Whether all leaves that take part are finite."""
    flags = [jnp.isfinite(leaf).all() for leaf in leaves if differentiable(leaf)]
    return jnp.all(jnp.array(flags, dtype=bool))


def exponent_of(value: Array) -> Array:
    """⌊log₂ value⌋, at least −126 and at most 126; 0 if the value is 0 or not finite."""
    usable = jnp.isfinite(value) & (value > 0)
    positive = lax.stop_gradient(jnp.where(usable, value, 1.0))
    exponent = jnp.frexp(positive)[1] - 1
    return jnp.clip(exponent, -MAX_EXPONENT, MAX_EXPONENT)


def power(exponent: ArrayLike) -> Array:
    """2^exponent in float32, at least 2^−126 and at most 2^126."""
    exponent = jnp.clip(exponent, -MAX_EXPONENT, MAX_EXPONENT)
    # The bits of a float32: its exponent plus 127, and 23 bits of the fraction, which is 0.
    bits = jnp.left_shift(exponent + 127, 23).astype(jnp.int32)
    return lax.bitcast_convert_type(bits, jnp.float32)


def powers(exponent: Array) -> tuple[Array, Array]:
    """Two factors of 2^exponent, which may itself overflow where a product with it does not."""
    half = exponent // 2
    return power(half), power(exponent - half)


@jax.jit
def times_power(value: Array, exponent: Array) -> Array:
    """2^exponent times the value: exact, unless the result overflows or underflows."""
    first, second = powers(exponent)
    return value * first * second


def combine(
    gradients: Sequence[Leaves], weights: Leaves, shift: Array | None, like: Leaves
) -> Leaves:
    """2^shift a ∇f + b ∇g, leaf by leaf, in float32 or wider, rounded once to the dtypes of `like`.

    The weights are (a, b). A `shift` of None stands for 0.
    """

    factors: Leaves = ()
    if shift is not None:
        factors = powers(shift)

    def direction(upper: Any, lower: Any, leaf: Any) -> Any:
        if not differentiable(leaf):
            return leaf
        dtype = limits(upper).dtype
        a, b = (weight.astype(dtype) for weight in weights)
        upper = widen(upper)
        for factor in factors:
            upper = upper * factor
        return cast(a * upper + b * widen(lower), like=leaf)

    return list(map(direction, *gradients, like))


def check_number(name: str, number: np.ndarray | Array) -> None:
    """Raise unless a loss is one real number."""
    if number.ndim or jnp.iscomplexobj(number):
        raise ValueError(
            f"{name} has shape {number.shape} and dtype {number.dtype}; it must be one real number"
        )


def copied(tree: Tree) -> Tree:
    """The tree in new buffers, so that each of them may be donated."""
    return jax.tree.map(jnp.array, tree)
