"""A twin: a copy trained on the lower loss alone by the same optimizer, as the reference of the model."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from tiebreak.optax.distributed import vary, varying
from tiebreak.optax.gradients import Tree, cast, copied, differentiable, widen
from tiebreak.optax.optimizer import dynamic_barrier
from tiebreak.optax.step_info import TwinState
from tiebreak.options import GIVEN, refuse_unused
from tiebreak.tolerance import Memory, after_return, needs_return


def _with_hyperparameters(twin_base: Tree, base: Tree) -> Tree:
    """The twin's state with the hyperparameters of the model's, which a user may set between two steps.

    ``optax.inject_hyperparams`` keeps them in a field of its state; it computes those that follow a schedule at every
    step.
    """

    def is_field(path: Any, value: Any) -> bool:
        return isinstance(path[-1], optax.tree_utils.NamedTupleKey)

    for path, values in optax.tree.get_all_with_path(base, "hyperparams", is_field):
        twin_base = optax.tree.set(
            twin_base, lambda other, _, path=path: other == path, hyperparams=values
        )
    return twin_base


def with_twin(
    base: optax.GradientTransformation, *, tolerance: Any, **options: Any
) -> optax.GradientTransformationExtraArgs:
    """An optimizer that keeps the lower loss within `tolerance` of a twin's, trained on that loss alone by `base`.

    It needs one more copy of the parameters with its optimizer state, and one more gradient of the lower loss:
    ``update(upper_grads, state, params, lower_grads=…, lower_value=…, reference_grads=…, reference_value=…)``, the last
    two at ``state.reference_params`` on the same batch. :func:`measure` makes them all. Where many steps on the lower
    loss alone leave it outside the tolerance, the model is set to its twin: ``state.returns`` counts that.

    Parameters
    ----------
    base : optax.GradientTransformation
        The whole optimizer, such as ``optax.adamw(1e-3)``; learning rate and schedules are the twin's, too, and so is
        what is set between two steps in a state of ``optax.inject_hyperparams``, ``state.base.hyperparams[…] = …``.
    tolerance : float or str
        As of :func:`dynamic_barrier`.
    **options
        `axis_name` and `param_specs`, as there.

    Examples
    --------
    >>> from tiebreak.optax import log, measure
    >>> evaluate = measure(lambda x: jnp.sum(x**2), lambda x: (x[0] - x[1] - 1) ** 2)
    >>> optimizer, x = with_twin(optax.sgd(0.01), tolerance=0.1), jnp.array([3.0, 0.0])
    >>> def step(carry, _):
    ...     x, state = carry
    ...     grads, measured = evaluate(x, state)
    ...     updates, state = optimizer.update(grads, state, x, **measured)
    ...     return (optax.apply_updates(x, updates), state), None
    >>> (x, state), _ = jax.lax.scan(step, (x, optimizer.init(x)), length=2000)
    >>> 0.5 < log(state)["excess"] <= 1.05  # the tolerance is used, and kept
    True
    """
    if not all(callable(getattr(base, name, None)) for name in ("init", "update")):
        raise TypeError(
            f"base={base!r} must be an optimizer of optax, such as optax.adamw(1e-3)"
        )
    refuse_unused(
        "because the twin is the reference", reference=options.pop("reference", None)
    )
    barrier = dynamic_barrier(tolerance=tolerance, reference=GIVEN, **options)
    base = optax.with_extra_args_support(base)

    def init(params: Tree) -> TwinState:
        barrier_state = barrier.init(params)
        twin = copied(params)
        twin_base = copied(base.init(twin))
        state = TwinState(barrier_state, base.init(params), twin_base, twin)
        # A skipped step returns the previous state: the state differs over the same axes as `skipped`.
        return vary(state, varying(barrier_state.skipped))  # type: ignore[no-any-return]  # it maps over any tree

    def update(
        updates: Tree, state: TwinState, params: Tree = None, **extra: Any
    ) -> tuple[Tree, TwinState]:
        twin_grads = extra.get("reference_grads")
        if twin_grads is None:
            raise TypeError(
                "a twin needs update(…, reference_grads=…, reference_value=…): gradient and loss of the lower level at "
                "state.reference_params, on this batch"
            )
        if params is None:
            raise TypeError(
                "a twin needs update(upper_grads, state, params, …): the model may be set to it"
            )
        direction, barrier_state = barrier.update(
            updates, state.barrier, params, **extra
        )
        # Move the model, then the twin: both or neither.
        moved, base_state = base.update(direction, state.base, params, **extra)
        twin = state.reference_params
        twin_base = _with_hyperparameters(state.reference_base, state.base)
        twin_moved, new_base = base.update(twin_grads, twin_base, twin, **extra)
        skipped = barrier_state.skipped
        twin, twin_base = optax.tree.where(
            skipped,
            (twin, twin_base),
            (optax.apply_updates(twin, twin_moved), new_base),
        )

        # If steps on the lower loss alone do not bring the model back, set the model to the twin.
        values, scales = barrier_state.memory
        memory = Memory(*values)
        returns = needs_return(memory) & ~skipped

        def move(update: Any, p: Any, target: Any, g: Any, twin_g: Any) -> Array:
            if not differentiable(p):
                return update  # type: ignore[no-any-return]
            # Leaves out of reach of the lower loss are not set.
            is_set = returns & (jnp.any(twin_g != 0) | jnp.any(g != 0))
            # In 16 bits p + (target − p) may be far from the target.
            return jnp.where(is_set, widen(target) - widen(p), widen(update))

        moved = jax.tree.map(
            move, moved, params, twin, extra["lower_grads"], twin_grads
        )
        base_state = optax.tree.where(returns, twin_base, base_state)
        after = optax.tree.where(returns, tuple(after_return(memory)), values)
        after = tuple(map(cast, after, values))
        barrier_state = barrier_state._replace(memory=(after, scales))
        return moved, TwinState(barrier_state, base_state, twin_base, twin)

    return optax.GradientTransformationExtraArgs(init, update)
