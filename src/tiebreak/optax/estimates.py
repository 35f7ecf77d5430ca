"""The core's estimators on pytrees: leaf by leaf, in float32 or wider."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from tiebreak.estimators import Estimator
from tiebreak.optax import trees
from tiebreak.optax.laws import traced
from tiebreak.optax.trees import Tree
from tiebreak.schedules import Parameters

LEVELS = ("upper", "lower")
#: Of each level what its estimator remembers: as many trees as its `begin` gives values, each like the parameters.
Memory: TypeAlias = Mapping[str, tuple[Tree, ...]]

__all__ = ["LEVELS", "Memory", "begin", "update"]


def begin(estimator: Estimator, params: Tree) -> Memory:
    """What is remembered before the first step."""
    leaves, structure = jax.tree.flatten(params)

    def first(level: str, p: Any) -> tuple[Any, ...] | None:
        if not trees.differentiable(p):
            return None
        zero = jnp.zeros((), trees.real(p))
        values = estimator.begin(level, jnp.zeros_like(trees.widen(p)), zero)
        # In float32 or wider: α = 0.01 of a bfloat16 is below its rounding. Copies: two may be one buffer.
        return tuple(jnp.array(v, dtype=getattr(v, "dtype", zero.dtype)) for v in values)

    return {level: _columns([first(level, p) for p in leaves], structure) for level in LEVELS}


def update(
    estimator: Estimator,
    fresh: Mapping[str, Sequence[Any]],
    memory: Memory,
    parameters: Parameters,
) -> tuple[dict[str, list[Any]], Memory]:
    """The estimates of both levels and the new memory."""
    found: dict[str, list[Any]] = {}
    remembered = {}
    for level in LEVELS:
        columns = [jax.tree.flatten(tree) for tree in memory[level]]
        rows = zip(*(leaves for leaves, _ in columns), strict=True) if columns else [()] * len(fresh[level])
        pairs: list[tuple[Any, Any]] = []
        for g, row in zip(fresh[level], rows, strict=True):
            pairs.append(_leaf(estimator, level, g, row, parameters) if trees.differentiable(g) else (g, row))
        found[level] = [estimate for estimate, _ in pairs]
        structure = columns[0][1] if columns else None
        remembered[level] = _columns([row for _, row in pairs], structure) if columns else ()
    return found, remembered


def _leaf(estimator: Estimator, level: str, fresh: Any, memory: Any, parameters: Parameters) -> tuple[Any, Any]:
    wide = trees.widen(fresh)
    with traced(f"the estimator {type(estimator).__name__}"):
        estimate, new = estimator.update(level, wide, wide, memory, parameters)
    if estimate is wide:  # a mini-batch as it came: nothing to convert back
        estimate = fresh
    return estimate, tuple(jnp.asarray(v).astype(old.dtype) for v, old in zip(new, memory, strict=True))


def _columns(rows: Sequence[Any], structure: Any) -> tuple[Tree, ...]:
    """A tree for each entry of the rows, a row for each leaf."""
    length = next((len(row) for row in rows if row is not None), 0)
    return tuple(
        jax.tree.unflatten(structure, [jnp.zeros(()) if row is None else row[i] for row in rows]) for i in range(length)
    )
