"""A twin: a copy trained on the lower loss alone, beside the model and by the same optimizer, to be compared with."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tiebreak.optax import gradients
from tiebreak.optax.arguments import dynamic_barrier
from tiebreak.optax.distributed import vary, varying
from tiebreak.optax.gradients import Tree
from tiebreak.optax.optimizer import BarrierState
from tiebreak.tolerance import Memory, after_return, needs_return, return_count


class TwinState(NamedTuple):
    """What :func:`with_twin` remembers.

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
    >>> state = with_twin(optax.sgd(0.1), tolerance=0.05).init(jnp.ones(2))
    >>> state.reference_params.tolist(), float(state.barrier.multiplier)
    ([1.0, 1.0], 0.0)
    """

    barrier: BarrierState
    base: Any
    reference_base: Any
    reference_params: Tree

    @property
    def returns(self) -> jax.Array:
        """How many times the model was set to its twin, because steps on the lower loss alone did not bring it back."""
        return return_count(Memory(*self.barrier.memory[0]))  # type: ignore[no-any-return]  # an array, where steps are


def _with_hyperparameters(twin: Any, base: Any) -> Any:
    """The twin's state with the hyperparameters of the model's, which a user may set between two steps.

    ``optax.inject_hyperparams`` keeps them in the state; it computes those that follow a schedule at every step.
    """

    def is_injected(state: Any) -> bool:
        return "hyperparams" in getattr(state, "_fields", ())

    def copy(of_twin: Any, of_base: Any) -> Any:
        if not is_injected(of_base):
            return of_twin
        if hasattr(of_base, "inner_state"):
            inner = _with_hyperparameters(of_twin.inner_state, of_base.inner_state)
            of_twin = of_twin._replace(inner_state=inner)
        return of_twin._replace(hyperparams=of_base.hyperparams)

    return jax.tree.map(copy, twin, base, is_leaf=is_injected)


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
    if "reference" in options:
        raise ValueError(
            f"reference={options['reference']!r} has no effect: the twin is the reference"
        )
    barrier = dynamic_barrier(tolerance=tolerance, reference="given", **options)
    base = optax.with_extra_args_support(base)

    def init(params: Tree) -> TwinState:
        barrier_state = barrier.init(params)
        twin = gradients.copied(params)
        state = TwinState(
            barrier_state, base.init(params), gradients.copied(base.init(twin)), twin
        )
        # A skipped step keeps all of it, counters too: it differs over the axes that the decision to skip differs over.
        return vary(state, varying(barrier_state.skipped))  # type: ignore[no-any-return]  # as it came

    def update(
        updates: Tree,
        state: TwinState,
        params: Tree = None,
        *,
        reference_grads: Tree = None,
        reference_value: Any = None,
        **extra: Any,
    ) -> tuple[Tree, TwinState]:
        if reference_grads is None or reference_value is None:
            raise TypeError(
                "a twin needs update(…, reference_grads=…, reference_value=…): gradient and loss of the lower level at "
                "state.reference_params, on this batch"
            )
        if params is None:
            raise TypeError(
                "a twin needs update(upper_grads, state, params, …): the model may be set to it"
            )
        reference = {
            "reference_grads": reference_grads,
            "reference_value": reference_value,
        }
        direction, after = barrier.update(
            updates, state.barrier, params, **reference, **extra
        )
        moved, base_state = base.update(direction, state.base, params, **extra)
        twin_base = _with_hyperparameters(state.reference_base, state.base)
        twin_moved, new_twin_base = base.update(
            reference_grads, twin_base, state.reference_params, **extra
        )
        # If the model or the twin cannot step, neither does.
        twin_base, twin_params = jax.tree.map(
            lambda old, new: jnp.where(after.skipped, old, new),
            (twin_base, state.reference_params),
            (new_twin_base, optax.apply_updates(state.reference_params, twin_moved)),
        )
        # If steps on the lower loss alone do not repair what the upper one did, the model is set to its twin.
        values, scales = after.memory
        memory = Memory(*values)
        returns = needs_return(memory) & ~after.skipped

        def on_return(new: Any, old: Any) -> Any:
            picked = jnp.where(returns, new, old)
            return picked.astype(getattr(old, "dtype", picked.dtype))

        def move(t: Any, p: Any, m: Any, *lower: Any) -> Any:
            if not gradients.differentiable(p):
                return m
            wide = jnp.promote_types(
                m.dtype, jnp.float32
            )  # in 16 bits p + (t − p) need not be near t
            reached = jnp.any(lower[0] != 0) | jnp.any(
                lower[1] != 0
            )  # a leaf that the lower loss does not reach stays
            return jnp.where(
                returns & reached, t.astype(wide) - p.astype(wide), m.astype(wide)
            )

        moved = jax.tree.map(
            move, twin_params, params, moved, reference_grads, extra["lower_grads"]
        )
        values = jax.tree.map(on_return, tuple(after_return(memory)), values)
        base_state = jax.tree.map(on_return, twin_base, base_state)
        return moved, TwinState(
            after._replace(memory=(values, scales)), base_state, twin_base, twin_params
        )

    return optax.GradientTransformationExtraArgs(init, update)
