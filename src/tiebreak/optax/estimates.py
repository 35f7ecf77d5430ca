"""What the rule sees of the gradients beyond a mini-batch: an average of ∇g, or STORM estimates from two points."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tiebreak.optax import trees
from tiebreak.optax.laws import Law, at, held
from tiebreak.optax.trees import Tree
from tiebreak.schedules import Schedule

__all__ = ["AverageState", "StormState", "average", "recursion", "storm"]


class AverageState(NamedTuple):
    """Σ weights · gradients, and Σ weights: their ratio is the average."""

    total: Tree
    weight: jax.Array


def average(fresh: Any, total: Any, weight: Any, momentum: Any, kept: Any = True) -> tuple[Any, Any, Any]:
    """The estimate and the new total and weight, of one leaf; without `kept`, the old ones go on.

    m_k = (1 − α_k) m_{k−1} + α_k G_k, divided by the weight given so far, as in :class:`tiebreak.Average`.
    """
    added, heavier = (1 - momentum) * total + momentum * fresh, (1 - momentum) * weight + momentum
    total, weight = jnp.where(kept, added, total), jnp.where(kept, heavier, weight)
    nothing = weight == 0  # α has been 0 so far: then the newest gradient is all there is
    return total / (weight + nothing) + nothing * fresh, total, weight


def recursion(fresh: Any, estimate: Any, before: Any, keep: Any) -> Any:
    """v = G(x) + (1 − α)(v₋ − G(x₋)), of one leaf; `keep` is 1 − α."""
    return fresh + keep * (estimate - before)


class StormState(NamedTuple):
    """What :func:`storm` remembers.

    Attributes
    ----------
    count : array
        Steps made.
    estimate : tree
        v of the last step, in float32 or wider.
    params : tree
        The point of the last step (at first, the start): evaluate the new batch here, too.
    """

    count: jax.Array  # type: ignore[assignment]  # optax's name; hides tuple.count, as in every state of optax
    estimate: Tree
    params: Tree


def storm(momentum: Law = 0.1) -> optax.GradientTransformationExtraArgs:
    """STORM: v_k = G_k(x_k) + (1 − α_k)(v_{k−1} − G_k(x_{k−1})), the same mini-batch at both points.

    ``update(grads, state, params, previous_grads=…)`` returns v. `previous_grads` are those of the same batch at
    ``state.params``. The first step returns `grads`, whatever `previous_grads` are, so a loop needs no special case.

    Parameters
    ----------
    momentum : float or function of the step
        α_k in [0, 1].

    Examples
    --------
    Each level has an estimator; what they give goes to the barrier.

    >>> from tiebreak.optax import dynamic_barrier, value_and_grads
    >>> def f(x, batch): return jnp.sum((x - 3.0) ** 2)
    >>> def g(x, batch): return jnp.mean((x[0] - batch) ** 2)
    >>> evaluate, barrier, estimator = value_and_grads(f, g), dynamic_barrier(0.5, normalize=False), storm(0.2)
    >>> x, batch = jnp.zeros(2), jnp.ones(4)
    >>> state, upper, lower = barrier.init(x), estimator.init(x), estimator.init(x)
    >>> _, (df, dg) = evaluate(x, batch)
    >>> _, (df_before, dg_before) = evaluate(upper.params, batch)
    >>> df, upper = estimator.update(df, upper, x, previous_grads=df_before)
    >>> dg, lower = estimator.update(dg, lower, x, previous_grads=dg_before)
    >>> direction, state = barrier.update(df, state, x, lower_grads=dg)
    >>> direction
    Array([-6., -6.], dtype=float32)
    """
    law: Any = Schedule(1.0, momentum=held(momentum)).momentum
    if law is None:
        raise ValueError("momentum=None must be a number in [0, 1], or a function of the step")

    def init(params: Tree) -> StormState:
        zeros = jax.tree.map(lambda p: jnp.zeros_like(trees.widen(p)) if trees.differentiable(p) else p, params)
        return StormState(jnp.zeros((), jnp.int32), zeros, jax.tree.map(jnp.asarray, params))

    def update(
        updates: Tree, state: StormState, params: Tree = None, *, previous_grads: Tree = None, **extra: Any
    ) -> tuple[Tree, StormState]:
        if previous_grads is None or params is None:
            raise TypeError("storm needs update(grads, state, params, previous_grads=…), those of state.params")
        leaves, structure = jax.tree.flatten(updates)
        before = trees.match(updates, previous_grads, ("updates", "previous_grads"))
        keep = jnp.where(state.count == 0, 0.0, 1 - at("momentum", law, state.count))

        def estimate(fresh: Any, old: Any, there: Any) -> Any:
            if not trees.differentiable(fresh):
                return old
            wide = trees.widen(fresh)
            return recursion(wide, old, trees.widen(there), keep.astype(wide.real.dtype)).astype(old.dtype)

        found = [estimate(*row) for row in zip(leaves, jax.tree.leaves(state.estimate), before, strict=True)]
        pairs = zip(leaves, found, strict=True)
        given = [v.astype(jnp.result_type(u)) if trees.differentiable(u) else u for u, v in pairs]
        kept = StormState(optax.safe_increment(state.count), jax.tree.unflatten(structure, found), params)
        return jax.tree.unflatten(structure, given), kept

    return optax.GradientTransformationExtraArgs(init, update)
