"""The losses of an update: measured with their gradients, and checked."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax import Array

from tiebreak.decision import Decision
from tiebreak.optax.distributed import Axes, checked_axes, size, varying
from tiebreak.optax.gradients import Tree, check_number
from tiebreak.optax.schedules import Law
from tiebreak.optax.step_info import BarrierState, TwinState, states_of
from tiebreak.options import START

#: ``loss(params, *args)``, or a function made of a loss.
Function: TypeAlias = Callable[..., Any]


def measure(
    upper_loss: Function,
    lower_loss: Function,
    has_aux: bool = False,
    *,
    axis_name: Any = None,
    param_specs: Tree = None,
) -> Function:
    """All arguments of an update: ``function(params, state, *args)`` returns ``(upper_grads, arguments)``.

    The arguments are `upper_value`, `lower_value` and `lower_grads`, and those that `state`, of any chain, needs: the
    lower loss at the starting parameters, or at the twin with its gradients, always with the same ``*args``.
    Pass a batch, and the key of random numbers, among ``*args``.

    Parameters
    ----------
    upper_loss, lower_loss : callable
        ``loss(params, *args)``, one number.
    has_aux : bool
        Whether both return ``(loss, aux)``, for example with metrics or running means. Then the function returns
        ``(upper_grads, arguments, (upper_aux, lower_aux))``, with both `aux` at `params` on this device.
    axis_name : str or tuple of str, optional
        The mapped axes over which the batch is split, every device with its own part: losses and gradients are the
        means over them.
    param_specs : tree of PartitionSpec, optional
        As of :func:`dynamic_barrier`: under ``pmap`` and ``vmap``, where JAX does not know.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from tiebreak.optax import with_twin
    >>> optimizer = with_twin(optax.sgd(0.1), tolerance=0.01)
    >>> evaluate = measure(lambda x, batch: jnp.sum(x**2), lambda x, batch: jnp.mean((x - batch) ** 2))
    >>> x, batch = jnp.array([1.0, 2.0]), jnp.array([2.0, 2.0])
    >>> state = optimizer.init(x)
    >>> grads, measured = evaluate(x, state, batch)
    >>> updates, state = optimizer.update(grads, state, x, **measured)
    >>> sorted(measured)
    ['lower_grads', 'lower_value', 'reference_grads', 'reference_value', 'upper_value']
    """
    axes = checked_axes(axis_name, param_specs)
    lower_loss = _with_aux(lower_loss, has_aux)
    upper = _value_and_grad(_with_aux(upper_loss, has_aux), axes)
    lower = _value_and_grad(lower_loss, axes)

    def evaluate(params: Tree, state: Tree, *args: Any) -> Any:
        barriers = _barriers(state)
        (upper_value, upper_aux), upper_grads = upper(params, *args)
        (lower_value, lower_aux), lower_grads = lower(params, *args)
        losses = {"upper_value": upper_value, "lower_value": lower_value}
        gradients = {"lower_grads": lower_grads}
        for twin in states_of(TwinState, state):
            (reference, _), twin_grads = lower(twin.reference_params, *args)
            losses["reference_value"] = reference
            gradients["reference_grads"] = twin_grads
        for barrier in barriers:
            # There are independent runs along the axes over which the state differs.
            axes.check_losses(losses, varying(barrier.fg))
            if jax.tree.leaves(barrier.start):
                losses["reference_value"], _ = lower_loss(barrier.start, *args)
        arguments = {**axes.mean(losses), **gradients}
        if has_aux:
            return upper_grads, arguments, (upper_aux, lower_aux)
        return upper_grads, arguments

    return evaluate


def _with_aux(loss: Function, has_aux: bool) -> Function:
    """The loss as a function that returns ``(loss, aux)``."""
    if has_aux:
        return loss
    return lambda *args: (loss(*args), None)


def _value_and_grad(loss: Function, axes: Axes) -> Function:
    """As ``jax.value_and_grad(loss, has_aux=True)``: each device's own loss, and the gradient of the mean loss."""

    def share(*args: Any) -> tuple[Array, tuple[Array, Any]]:
        value, aux = loss(*args)
        # JAX sums a loss over the axes that its type differs over; `averaged` sums the gradients over all others.
        summed = varying(value).intersection(axes.names)
        return value / size(summed), (value, aux)

    differentiated = jax.value_and_grad(share, has_aux=True)

    def value_and_grad(params: Tree, *args: Any) -> tuple[Any, Tree]:
        (_, value_and_aux), grads = differentiated(params, *args)
        return value_and_aux, axes.averaged(grads, params)

    return value_and_grad


def _barriers(state: Tree) -> list[BarrierState]:
    """The barriers of an optimizer's state; raise if losses cannot be measured for them."""
    barriers = states_of(BarrierState, state)
    if not barriers:
        raise TypeError(
            f"measure needs the optimizer's state, evaluate(params, state, *args); got a {type(state).__name__} "
            "without a barrier in it"
        )
    inner = [steps.inner_opt_state for steps in states_of(optax.MultiStepsState, state)]
    if states_of(BarrierState, inner):
        raise ValueError(
            "optax.MultiSteps around a barrier averages the upper gradients alone, and pairs them with the lower "
            "gradient of the last micro-batch: average both, then update once; or put it behind the barrier, "
            "with_twin(optax.MultiSteps(…).gradient_transformation(), …)"
        )
    return barriers


def checked_losses(
    decision: Decision,
    reference: str | Law | None,
    state: BarrierState,
    lower_value: Any,
    reference_value: Any,
) -> dict[str, Array]:
    """The losses that the decision needs, from the arguments of an update."""
    user = "a tolerance"
    if decision.tolerance is None:
        if "lower_value" not in decision.method.needs:
            return {}
        user = f"the rule {decision.method.name!r}"
    if lower_value is None:
        raise TypeError(
            f"{user} needs the lower loss: update(…, lower_grads=…, lower_value=…)"
        )
    losses = {"lower_value": lower_value}
    if callable(reference):
        if reference_value is not None:
            raise TypeError(
                'reference_value=… has no effect: it is for reference="given" or "start"'
            )
        losses["reference_value"] = reference(state.count)
    elif reference is not None:
        if reference_value is None:
            if reference == START:
                loss = "the lower loss at state.start"
            else:
                loss = "a loss"
            raise TypeError(
                f"reference={reference!r} needs update(…, reference_value=…), {loss} on this batch"
            )
        losses["reference_value"] = reference_value
    for name, loss in losses.items():
        number = jnp.asarray(loss)
        check_number(name, number)
        losses[name] = number.astype(state.fg.dtype)
    return losses
