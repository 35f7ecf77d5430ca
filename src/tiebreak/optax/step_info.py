"""The states of the transformations, which hold the last step as well, and its numbers for a log."""

from typing import Any, NamedTuple, TypeVar

import jax
import optax
from jax import Array

from tiebreak.optax.decide import BarrierMemory
from tiebreak.optax.estimates import EstimatorMemory
from tiebreak.optax.gradients import Tree
from tiebreak.tolerance import Memory, return_count

State = TypeVar("State")


class Reading(NamedTuple):
    """What a tolerance made of the losses, in the last step; 0 before the first.

    Attributes
    ----------
    reference : array
        The averaged reference.
    excess : array
        How far the averaged lower loss lies above the reference, in tolerances. The promise is at most 1.
    ratio : array
        λ/s, s the averaged ‖∇f‖/‖∇g‖.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from tiebreak.optax import dynamic_barrier
    >>> optimizer = dynamic_barrier(tolerance=0.5, reference=1.0)
    >>> state = optimizer.init(jnp.zeros(1))
    >>> _, state = optimizer.update(jnp.ones(1), state, lower_grads=jnp.ones(1), lower_value=jnp.array(2.0))
    >>> float(state.reading.reference), float(state.reading.excess)
    (1.0, 2.0)
    """

    reference: Array
    excess: Array
    ratio: Array


class BarrierState(NamedTuple):
    """The memory of :func:`dynamic_barrier`, and its last step for logging.

    Attributes
    ----------
    count : array
        Calls of ``update``, including those that skipped the step.
    multiplier, fg, gg, ff : array
        λ, ⟨∇f, ∇g⟩, ‖∇g‖² and ‖∇f‖² of the last step, as the rule saw them; 0 before the first.
    skipped : array
        Whether a number of the last step was not finite. Then the direction is NaN, and no memory changes.
    reading : Reading or EmptyState
        With a tolerance, how far the lower loss is from its reference.
    memory : tuple
        The memory of the tolerance rule, and the scales of both gradients that its numbers are in.
    estimates : dict
        The memory of the estimator for each level.
    start : tree or EmptyState
        The starting parameters, with ``reference="start"``.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from tiebreak import methods
    >>> from tiebreak.optax import dynamic_barrier
    >>> optimizer = dynamic_barrier(method=methods.sdbgd.replace(barrier=1.0, regularizer=0.0))
    >>> state = optimizer.init(jnp.zeros(1))
    >>> _, state = optimizer.update(jnp.array([1.0]), state, lower_grads=jnp.array([4.0]))
    >>> int(state.count), float(state.multiplier), float(state.gg)
    (1, 0.75, 16.0)
    """

    count: Array  # type: ignore[assignment]  # optax's name; hides tuple.count, as in every state of optax
    multiplier: Array
    fg: Array
    gg: Array
    ff: Array
    skipped: Array
    reading: Reading | optax.EmptyState
    memory: BarrierMemory | optax.EmptyState
    estimates: EstimatorMemory
    start: Tree


class TwinState(NamedTuple):
    """The memory of :func:`with_twin`.

    Attributes
    ----------
    barrier : BarrierState
    base, reference_base : tree
        The base optimizer's state, for the model and for the twin.
    reference_params : tree
        The twin.

    Examples
    --------
    >>> import jax.numpy as jnp, optax
    >>> from tiebreak.optax import with_twin
    >>> state = with_twin(optax.sgd(0.1), tolerance=0.05).init(jnp.ones(2))
    >>> state.reference_params.tolist(), float(state.barrier.multiplier)
    ([1.0, 1.0], 0.0)
    """

    barrier: BarrierState
    base: optax.OptState
    reference_base: optax.OptState
    reference_params: Tree

    @property
    def returns(self) -> Array:
        """How many times the model was set to its twin, because steps on the lower loss alone did not bring it back."""
        return return_count(Memory(*self.barrier.memory[0]))  # type: ignore[no-any-return]  # an array, where steps are


def states_of(kind: type[State], state: Tree) -> list[State]:
    """The states of this type, wherever in the state of a chain they are."""
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, kind))
    return [node for node in nodes if isinstance(node, kind)]


def log(state: Tree) -> dict[str, Any]:
    """The last step as numbers, from the state of any chain; waits for the device.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from tiebreak.optax import from_method
    >>> optimizer = from_method("sdbgd", 0.1)
    >>> updates, state = optimizer.update(jnp.ones(2), optimizer.init(jnp.zeros(2)), lower_grads=jnp.ones(2))
    >>> log(state)
    {'multiplier': 0.0, 'fg': 2.0, 'gg': 2.0, 'ff': 2.0, 'skipped': False}
    """
    barriers = states_of(BarrierState, state)
    if len(barriers) != 1:
        raise ValueError(
            f"the state has {len(barriers)} barriers; log(state) is for one"
        )
    barrier = barriers[0]
    names = ("multiplier", "fg", "gg", "ff", "skipped")
    row = {name: getattr(barrier, name) for name in names}
    row |= barrier.reading._asdict()
    for twin in states_of(TwinState, state):
        row["returns"] = twin.returns
    if any(isinstance(value, jax.core.Tracer) for value in row.values()):
        raise TypeError(
            'log(state) is for numbers, outside of jit, scan and vmap; there, optax.tree.get(state, "multiplier") '
            "gives the array"
        )
    values = jax.device_get(list(row.values()))
    return {name: value.tolist() for name, value in zip(row, values, strict=True)}
