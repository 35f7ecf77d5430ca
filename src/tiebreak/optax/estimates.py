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
from tiebreak.optax.gradients import (
    Leaves,
    Tree,
    cast,
    differentiable,
    limits,
    widen,
)
from tiebreak.optax.schedules import traced
from tiebreak.schedules import Parameters

#: For each level as many trees as the estimator's `begin` returns values, each like the parameters.
EstimatorMemory: TypeAlias = Mapping[str, tuple[Tree, ...]]


def begin(estimator: Estimator, params: Tree) -> EstimatorMemory:
    """The memory before the first step."""
    leaves, structure = jax.tree.flatten(params)
    memory = {}
    for level in LEVELS:
        rows = [_begin_leaf(estimator, level, leaf) for leaf in leaves]
        columns = zip(*rows, strict=True)
        unflatten = partial(jax.tree.unflatten, structure)
        memory[level] = tuple(map(unflatten, columns))
    return memory


def _begin_leaf(estimator: Estimator, level: str, leaf: ArrayLike) -> Leaves:
    """The memory of one leaf; a leaf that takes no part has that of a number."""
    if not differentiable(leaf):
        leaf = jnp.zeros(())
    # In float32 or wider: α = 0.01 of a bfloat16 is below its rounding. Copies, since values may share a buffer.
    zero = jnp.zeros((), limits(leaf).dtype)
    zeros = jnp.zeros_like(widen(leaf))
    values = estimator.begin(level, zeros, zero)
    return [jnp.array(value, getattr(value, "dtype", zero.dtype)) for value in values]


def update(
    estimator: Estimator,
    gradients: Sequence[Leaves],
    memory: EstimatorMemory,
    parameters: Parameters,
) -> tuple[Sequence[Leaves], EstimatorMemory]:
    """The estimates of the upper and the lower level, and the new memory."""

    def update_leaf(level: str, leaf: Any, *values: Array) -> tuple[Any, Leaves]:
        if not differentiable(leaf):
            return leaf, values
        wide = widen(leaf)
        with traced(f"the estimator {type(estimator).__name__}"):
            estimate, new = estimator.update(level, wide, wide, values, parameters)
        if estimate is wide:
            estimate = leaf  # needs no conversion back
        return estimate, list(map(cast, new, values))

    estimates = []
    new_memory = {}
    for level, leaves in zip(LEVELS, gradients, strict=True):
        trees = memory[level]
        columns = map(jax.tree.leaves, trees)
        rows = list(map(partial(update_leaf, level), leaves, *columns))
        estimates.append([estimate for estimate, _ in rows])
        new_columns = zip(*(values for _, values in rows), strict=True)
        structures = map(jax.tree.structure, trees)
        new_memory[level] = tuple(map(jax.tree.unflatten, structures, new_columns))
    return estimates, new_memory
