"""Around an update: its arguments from two losses, and its numbers for a log."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from tiebreak.optax.barrier import BarrierState
from tiebreak.optax.trees import Tree
from tiebreak.optax.twin import TwinState

__all__ = ["log", "measure", "value_and_grads"]


def value_and_grads(
    upper_loss: Callable[..., Any], lower_loss: Callable[..., Any], has_aux: bool = False
) -> Callable[..., tuple[tuple[Any, Any], tuple[Tree, Tree]]]:
    """Both losses and both gradients: ``function(params, *args)`` returns ``((f, g), (grads_f, grads_g))``.

    Both losses get the same arguments. What they have in common, such as a forward pass on the same batch, is computed
    once under ``jax.jit``. With `has_aux`, both return ``(loss, aux)`` and stand so in place of f and g.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> both = value_and_grads(lambda x, c: (x - c) ** 2, lambda x, c: c * x)
    >>> (f, g), (df, dg) = both(jnp.array(1.0), 3.0)
    >>> float(f), float(g), float(df), float(dg)
    (4.0, 3.0, -4.0, 3.0)
    """
    upper = jax.value_and_grad(upper_loss, has_aux=has_aux)
    lower = jax.value_and_grad(lower_loss, has_aux=has_aux)

    def both(params: Tree, *args: Any, **kwargs: Any) -> tuple[tuple[Any, Any], tuple[Tree, Tree]]:
        (f, grads_f), (g, grads_g) = upper(params, *args, **kwargs), lower(params, *args, **kwargs)
        return (f, g), (grads_f, grads_g)

    return both


def measure(
    upper_loss: Callable[..., Any], lower_loss: Callable[..., Any]
) -> Callable[..., tuple[Tree, dict[str, Any]]]:
    """All that an update asks for: ``function(params, state, *args)`` returns ``(upper_grads, arguments)``.

    The arguments are `upper_value`, `lower_value` and `lower_grads`, and what `state`, of any chain, asks for: the
    lower loss at the starting parameters, at the twin with its gradients, or both gradients at the previous point,
    always with the same ``*args``. Give a batch, and the key of whatever is random, as one of them.

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
    both, lower = value_and_grads(upper_loss, lower_loss), jax.value_and_grad(lower_loss)

    def evaluate(params: Tree, state: Any, *args: Any, **kwargs: Any) -> tuple[Tree, dict[str, Any]]:
        (f, g), (upper_grads, lower_grads) = both(params, *args, **kwargs)
        found = {"upper_value": f, "lower_value": g, "lower_grads": lower_grads}
        for twin in _parts(state, TwinState):
            values = lower(twin.reference_params, *args, **kwargs)
            found |= dict(zip(("reference_value", "reference_grads"), values, strict=True))
        for barrier in _parts(state, BarrierState):
            if not isinstance(barrier.start, optax.EmptyState):
                found["reference_value"] = lower_loss(barrier.start, *args, **kwargs)
            if not isinstance(barrier.previous, optax.EmptyState):
                there = both(barrier.previous, *args, **kwargs)[1]
                found |= dict(zip(("previous_upper_grads", "previous_lower_grads"), there, strict=True))
        return upper_grads, found

    return evaluate


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
    found = _parts(state, BarrierState)
    if len(found) != 1:
        raise ValueError(f"the state has {len(found)} barriers; log(state) is for one")
    last: dict[str, Any] = {name: getattr(found[0], name) for name in ("multiplier", "fg", "gg", "ff", "skipped")}
    if not isinstance(found[0].reading, optax.EmptyState):
        last |= found[0].reading._asdict()
    values = jax.device_get(list(last.values()))
    return {name: value.tolist() for name, value in zip(last, values, strict=True)}


def _parts(state: Any, kind: type) -> list[Any]:
    """The states of this kind, wherever in a chain they are."""

    def wanted(node: Any) -> bool:
        return isinstance(node, kind)

    return [node for node in jax.tree.leaves(state, is_leaf=wanted) if wanted(node)]
