"""The estimators of the core on pytrees: leaf by leaf, in float32 or wider."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from tiebreak.estimators import Estimator
from tiebreak.estimators.contract import LEVELS
from tiebreak.optax import gradients
from tiebreak.optax.gradients import Leaves, Tree
from tiebreak.optax.schedules import traced
from tiebreak.schedules import Parameters

#: The memory of each level: as many trees as the estimator's `begin` returns values, each like the parameters.
Memory: TypeAlias = Mapping[str, tuple[Tree, ...]]


def begin(estimator: Estimator, params: Tree) -> Memory:
    """The memory before the first step."""
    leaves, structure = jax.tree.flatten(params)

    def first(level: str, leaf: Any) -> list[jax.Array] | None:
        if not gradients.differentiable(leaf):
            return None
        zero = jnp.zeros((), gradients.real(leaf))
        values = estimator.begin(level, jnp.zeros_like(gradients.widen(leaf)), zero)
        # In float32 or wider: α = 0.01 of a bfloat16 is below its rounding. Copies, since values may share a buffer.
        return [
            jnp.array(value, dtype=getattr(value, "dtype", zero.dtype))
            for value in values
        ]

    return {
        level: _as_trees([first(level, leaf) for leaf in leaves], structure)
        for level in LEVELS
    }


def update(
    estimator: Estimator,
    fresh: Mapping[str, Leaves],
    memory: Memory,
    parameters: Parameters,
) -> tuple[dict[str, list[Any]], Memory]:
    """The estimates of both levels and the new memory."""
    estimates = {}
    new_memory = {}
    for level in LEVELS:
        columns = [jax.tree.leaves(tree) for tree in memory[level]]
        rows = zip(*columns, strict=True) if columns else [()] * len(fresh[level])
        pairs = [
            _leaf(estimator, level, g, row, parameters)
            for g, row in zip(fresh[level], rows, strict=True)
        ]
        estimates[level] = [estimate for estimate, _ in pairs]
        structure = jax.tree.structure(memory[level][0]) if columns else None
        new_memory[level] = _as_trees(
            [row for _, row in pairs] if columns else [], structure
        )
    return estimates, new_memory


def _leaf(
    estimator: Estimator,
    level: str,
    fresh: Any,
    memory: tuple[Any, ...],
    parameters: Parameters,
) -> tuple[Any, Any]:
    """The estimate of one leaf and its new memory."""
    if not gradients.differentiable(fresh):
        return fresh, memory
    wide = gradients.widen(fresh)
    with traced(f"the estimator {type(estimator).__name__}"):
        estimate, new = estimator.update(level, wide, wide, memory, parameters)
    if estimate is wide:  # a mini-batch as it came, which needs no conversion back
        estimate = fresh
    return estimate, [
        jnp.asarray(value).astype(old.dtype)
        for value, old in zip(new, memory, strict=True)
    ]


def _as_trees(rows: Sequence[Leaves | None], structure: Any) -> tuple[Tree, ...]:
    """A tree for each entry of the rows; each row belongs to a leaf, None to a leaf that takes no part."""
    count = max((len(row) for row in rows if row is not None), default=0)
    columns = [
        [jnp.zeros(()) if row is None else row[i] for row in rows] for i in range(count)
    ]
    return tuple(jax.tree.unflatten(structure, column) for column in columns)
