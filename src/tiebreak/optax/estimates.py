"""The estimators of the core on pytrees: leaf by leaf, in float32 or wider."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from tiebreak.estimators import Estimator
from tiebreak.estimators.contract import LEVELS
from tiebreak.optax.gradients import Leaves, Tree, differentiable, limits, widen
from tiebreak.optax.schedules import traced
from tiebreak.schedules import Parameters

#: For each level as many trees as the estimator's `begin` returns values, each like the parameters.
EstimatorMemory: TypeAlias = Mapping[str, tuple[Tree, ...]]


def begin(estimator: Estimator, params: Tree) -> EstimatorMemory:
    """The memory before the first step."""
    leaves, structure = jax.tree.flatten(params)
    memory = {}
    for level in LEVELS:
        rows = [_first(estimator, level, leaf) for leaf in leaves]
        columns = zip(*rows, strict=True)
        trees = map(partial(jax.tree.unflatten, structure), columns)
        memory[level] = tuple(trees)
    return memory


def _first(estimator: Estimator, level: str, leaf: ArrayLike) -> Leaves:
    """The memory of one leaf; a leaf that takes no part has that of a number."""
    if not differentiable(leaf):
        leaf = jnp.zeros(())
    zero = jnp.zeros((), limits(leaf).dtype)
    values = estimator.begin(level, jnp.zeros_like(widen(leaf)), zero)
    # In float32 or wider: α = 0.01 of a bfloat16 is below its rounding. Copies, since values may share a buffer.
    return [
        jnp.array(value, dtype=getattr(value, "dtype", zero.dtype)) for value in values
    ]


def update(
    estimator: Estimator,
    fresh: Sequence[Leaves],
    memory: EstimatorMemory,
    parameters: Parameters,
) -> tuple[Sequence[Leaves], EstimatorMemory]:
    """The estimates of the upper and the lower level, and the new memory."""
    estimates = []
    new_memory = {}
    for level, leaves in zip(LEVELS, fresh, strict=True):
        trees = memory[level]
        columns = map(jax.tree.leaves, trees)
        rows = list(zip(*columns, strict=True)) or [()] * len(leaves)
        pairs = [
            _update_leaf(estimator, level, leaf, row, parameters)
            for leaf, row in zip(leaves, rows, strict=True)
        ]
        estimates.append([estimate for estimate, _ in pairs])
        new_columns = zip(*(row for _, row in pairs), strict=True)
        structures = map(jax.tree.structure, trees)
        new_memory[level] = tuple(map(jax.tree.unflatten, structures, new_columns))
    return estimates, new_memory


def _update_leaf(
    estimator: Estimator,
    level: str,
    fresh: Any,
    memory: tuple[Array, ...],
    parameters: Parameters,
) -> tuple[Any, Leaves]:
    """The estimate of one leaf and its new memory."""
    if not differentiable(fresh):
        return fresh, memory
    wide = widen(fresh)
    with traced(f"the estimator {type(estimator).__name__}"):
        estimate, values = estimator.update(level, wide, wide, memory, parameters)
    if estimate is wide:
        estimate = fresh  # needs no conversion back
    pairs = zip(values, memory, strict=True)
    return estimate, [jnp.asarray(value).astype(old.dtype) for value, old in pairs]
