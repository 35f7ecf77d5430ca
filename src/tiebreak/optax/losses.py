"""Around an update: its arguments from two losses, and its numbers for a log."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from tiebreak.optax.axes import Axes, axes_named, size, varying, words
from tiebreak.optax.barrier import BarrierState
from tiebreak.optax.trees import Tree
from tiebreak.optax.twin import TwinState

__all__ = ["log", "measure", "parts", "value_and_grads"]


def value_and_grads(
    upper_loss: Callable[..., Any],
    lower_loss: Callable[..., Any],
    has_aux: bool = False,
    *,
    axis_name: Any = None,
    param_specs: Any = None,
) -> Callable[..., tuple[tuple[Any, Any], tuple[Tree, Tree]]]:
    """Both losses and both gradients: ``function(params, *args)`` returns ``((f, g), (grads_f, grads_g))``.

    Both losses get the same arguments. What they have in common, such as a forward pass on the same batch, is computed
    once under ``jax.jit``. With `has_aux`, both return ``(loss, aux)`` and stand so in place of f and g. `axis_name`
    and `param_specs` are those of :func:`measure`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> both = value_and_grads(lambda x, c: (x - c) ** 2, lambda x, c: c * x)
    >>> (f, g), (df, dg) = both(jnp.array(1.0), 3.0)
    >>> float(f), float(g), float(df), float(dg)
    (4.0, 3.0, -4.0, 3.0)
    """
    axes = axes_named(axis_name, param_specs)
    upper, lower = (_differentiated(loss, axes, has_aux) for loss in (upper_loss, lower_loss))

    def both(params: Tree, *args: Any, **kwargs: Any) -> tuple[tuple[Any, Any], tuple[Tree, Tree]]:
        (f, grads_f), (g, grads_g) = upper(params, *args, **kwargs), lower(params, *args, **kwargs)
        if has_aux:
            values = axes.mean([f[0], g[0]])
            return ((values[0], f[1]), (values[1], g[1])), (grads_f, grads_g)
        f, g = axes.mean([f, g])
        return (f, g), (grads_f, grads_g)

    return both


def _differentiated(loss: Callable[..., Any], axes: Axes, has_aux: bool = False) -> Callable[..., Any]:
    """As jax.value_and_grad: each device's own loss, and the gradient of their mean."""
    if not axes.names:
        return jax.value_and_grad(loss, has_aux=has_aux)

    def share(params: Tree, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        found = loss(params, *args, **kwargs)
        value = found[0] if has_aux else found
        # What differs by its type is summed over the devices by JAX; elsewhere `averaged` does the same afterwards.
        return value / size(axis for axis in axes.names if axis in varying(value)), found

    gradient = jax.value_and_grad(share, has_aux=True)

    def function(params: Tree, *args: Any, **kwargs: Any) -> tuple[Any, Tree]:
        (_, found), grads = gradient(params, *args, **kwargs)
        return found, axes.averaged(grads, params)

    return function


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
    upper, lower = (_differentiated(loss, axes, has_aux) for loss in (upper_loss, lower_loss))

    def split(found: Any) -> tuple[Any, Any]:
        return found if has_aux else (found, None)

    def evaluate(params: Tree, state: Any, *args: Any, **kwargs: Any) -> Any:
        barriers = _barriers(state)
        found, upper_grads = upper(params, *args, **kwargs)
        losses, aux, given = {}, {}, {}
        losses["upper_value"], aux["upper"] = split(found)
        found, given["lower_grads"] = lower(params, *args, **kwargs)
        losses["lower_value"], aux["lower"] = split(found)
        for twin in parts(state, TwinState):
            found, given["reference_grads"] = lower(twin.reference_params, *args, **kwargs)
            losses["reference_value"] = split(found)[0]
        for barrier in barriers:
            _check(losses, axes, barrier)
            if not isinstance(barrier.start, optax.EmptyState):
                losses["reference_value"] = split(lower_loss(barrier.start, *args, **kwargs))[0]
        measured = dict(zip(losses, axes.mean(list(losses.values())), strict=True)) | given
        return (upper_grads, measured, (aux["upper"], aux["lower"])) if has_aux else (upper_grads, measured)

    return evaluate


def _barriers(state: Any) -> list[BarrierState]:
    """The barriers of an optimizer's state, if they can be measured for."""
    found = parts(state, BarrierState)
    if not found:
        raise TypeError(
            f"measure needs the optimizer's state, evaluate(params, state, *args); got a {type(state).__name__} "
            "without a barrier in it"
        )
    if any(parts(part.inner_opt_state, BarrierState) for part in parts(state, optax.MultiStepsState)):
        raise ValueError(
            "optax.MultiSteps around a barrier averages the upper gradients alone, and pairs them with the lower "
            "gradient of the last micro-batch: average both, then update once; or put it behind the barrier, "
            "with_twin(optax.MultiSteps(…).gradient_transformation(), …)"
        )
    return found


def _check(losses: dict[str, Any], axes: Axes, barrier: BarrierState) -> None:
    """What a loss differs over is named, or there is a run of its own in every place."""
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
    >>> from tiebreak.optax import sdbgd
    >>> optimizer = sdbgd(0.1)
    >>> updates, state = optimizer.update(jnp.ones(2), optimizer.init(jnp.zeros(2)), lower_grads=jnp.ones(2))
    >>> log(state)
    {'multiplier': 0.0, 'fg': 2.0, 'gg': 2.0, 'ff': 2.0, 'skipped': False}
    """
    found = parts(state, BarrierState)
    if len(found) != 1:
        raise ValueError(f"the state has {len(found)} barriers; log(state) is for one")
    last: dict[str, Any] = {name: getattr(found[0], name) for name in ("multiplier", "fg", "gg", "ff", "skipped")}
    if not isinstance(found[0].reading, optax.EmptyState):
        last |= found[0].reading._asdict()
    for twin in parts(state, TwinState):
        last["returns"] = twin.returns
    if any(isinstance(value, jax.core.Tracer) for value in last.values()):
        raise TypeError(
            'log(state) is for numbers, outside of jit, scan and vmap; there, optax.tree.get(state, "multiplier") '
            "gives the array"
        )
    values = jax.device_get(list(last.values()))
    return {name: value.tolist() for name, value in zip(last, values, strict=True)}


def parts(state: Any, kind: type) -> list[Any]:
    """The states of this kind, wherever in a chain they are."""

    def wanted(node: Any) -> bool:
        return isinstance(node, kind)

    return [node for node in jax.tree.leaves(state, is_leaf=wanted) if wanted(node)]
