"""Around an update: its arguments from two losses, and its numbers for a log."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from tiebreak.optax.distributed import Axes, axes_named, size, varying, words
from tiebreak.optax.gradients import Tree
from tiebreak.optax.optimizer import BarrierState
from tiebreak.optax.twin import TwinState


def measure(
    upper_loss: Callable[..., Any],
    lower_loss: Callable[..., Any],
    has_aux: bool = False,
    *,
    axis_name: Any = None,
    param_specs: Any = None,
) -> Callable[..., Any]:
    """All that an update asks for: ``function(params, state, *args)`` returns ``(upper_grads, arguments)``.

    The arguments are `upper_value`, `lower_value` and `lower_grads`, and what `state`, of any chain, asks for: the
    lower loss at the starting parameters, or at the twin with its gradients, always with the same ``*args``.
    Give a batch, and the key of whatever is random, as one of them.

    Parameters
    ----------
    upper_loss, lower_loss : callable
        ``loss(params, *args)``, one number.
    has_aux : bool
        Whether both return ``(loss, aux)``, say with metrics or running means: then the function returns
        ``(upper_grads, arguments, (upper_aux, lower_aux))``, as they are at `params` on this device.
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
    axes = axes_named(axis_name, param_specs)
    upper, lower = (
        _differentiated(_with_aux(loss, has_aux), axes)
        for loss in (upper_loss, lower_loss)
    )

    def evaluate(params: Tree, state: Any, *args: Any, **kwargs: Any) -> Any:
        barriers = _barriers(state)
        (upper_value, upper_aux), upper_grads = upper(params, *args, **kwargs)
        (lower_value, lower_aux), lower_grads = lower(params, *args, **kwargs)
        losses = {"upper_value": upper_value, "lower_value": lower_value}
        gradients = {"lower_grads": lower_grads}
        for twin in states_of(TwinState, state):
            (losses["reference_value"], _), gradients["reference_grads"] = lower(
                twin.reference_params, *args, **kwargs
            )
        for barrier in barriers:
            _check_axes(losses, axes, barrier)
            if not isinstance(barrier.start, optax.EmptyState):
                losses["reference_value"], _ = _with_aux(lower_loss, has_aux)(
                    barrier.start, *args, **kwargs
                )
        means = axes.mean(list(losses.values()))
        arguments = dict(zip(losses, means, strict=True)) | gradients
        return (
            (upper_grads, arguments, (upper_aux, lower_aux))
            if has_aux
            else (upper_grads, arguments)
        )

    return evaluate


def _with_aux(
    loss: Callable[..., Any], has_aux: bool
) -> Callable[..., tuple[Any, Any]]:
    """The loss as a function that returns ``(loss, aux)``."""
    return loss if has_aux else lambda *args, **kwargs: (loss(*args, **kwargs), None)


def _differentiated(
    loss: Callable[..., tuple[Any, Any]], axes: Axes
) -> Callable[..., Any]:
    """As ``jax.value_and_grad(loss, has_aux=True)``: each device's own loss, and the gradient of the mean loss."""
    if not axes.names:
        return jax.value_and_grad(loss, has_aux=True)

    def share(params: Tree, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        value, aux = loss(params, *args, **kwargs)
        # JAX sums a loss over the devices if its type says that it differs; `averaged` sums the others afterwards.
        return value / size(axis for axis in axes.names if axis in varying(value)), (
            value,
            aux,
        )

    def value_and_grad(params: Tree, *args: Any, **kwargs: Any) -> tuple[Any, Tree]:
        (_, value_and_aux), grads = jax.value_and_grad(share, has_aux=True)(
            params, *args, **kwargs
        )
        return value_and_aux, axes.averaged(grads, params)

    return value_and_grad


def _barriers(state: Any) -> list[BarrierState]:
    """The barriers of an optimizer's state, if they can be measured for."""
    barriers = states_of(BarrierState, state)
    if not barriers:
        raise TypeError(
            f"measure needs the optimizer's state, evaluate(params, state, *args); got a {type(state).__name__} "
            "without a barrier in it"
        )
    if any(
        states_of(BarrierState, steps.inner_opt_state)
        for steps in states_of(optax.MultiStepsState, state)
    ):
        raise ValueError(
            "optax.MultiSteps around a barrier averages the upper gradients alone, and pairs them with the lower "
            "gradient of the last micro-batch: average both, then update once; or put it behind the barrier, "
            "with_twin(optax.MultiSteps(…).gradient_transformation(), …)"
        )
    return barriers


def _check_axes(losses: dict[str, Any], axes: Axes, barrier: BarrierState) -> None:
    """Raise if a loss differs over an axis that is not named, and along which there are no independent runs."""
    for name, value in losses.items():
        if more := varying(value) - set(axes.names) - varying(barrier.fg):
            where, names = words(more), words(more | set(axes.names))
            raise ValueError(
                f"{name} differs over {where}: where it is each device's own, measure(…, axis_name={names}) takes the "
                f"mean; where it is a sum over shards, sum it in the loss, jax.lax.psum(…, {where})"
            )


def log(state: Any) -> dict[str, Any]:
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
    last: dict[str, Any] = {
        name: getattr(barrier, name)
        for name in ("multiplier", "fg", "gg", "ff", "skipped")
    }
    if not isinstance(barrier.reading, optax.EmptyState):
        last |= barrier.reading._asdict()
    for twin in states_of(TwinState, state):
        last["returns"] = twin.returns
    if any(isinstance(value, jax.core.Tracer) for value in last.values()):
        raise TypeError(
            'log(state) is for numbers, outside of jit, scan and vmap; there, optax.tree.get(state, "multiplier") '
            "gives the array"
        )
    values = jax.device_get(list(last.values()))
    return {name: value.tolist() for name, value in zip(last, values, strict=True)}


def states_of(kind: type, state: Any) -> list[Any]:
    """The states of this type, wherever in the state of a chain they are."""
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, kind))
    return [node for node in nodes if isinstance(node, kind)]
