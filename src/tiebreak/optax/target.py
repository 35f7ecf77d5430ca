"""The engineer's mode under tracing: follow the lower loss by an average, and say where it has to be."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tiebreak.checks import tolerated

__all__ = ["Target", "TargetState"]

_FAST = 0.1  # weight of the newest loss in its average
_SLOW = 0.02  # weight of the newest squares in the unit: it is to follow the training, not the batches


class TargetState(NamedTuple):
    """The averaged lower loss as Σ weights · losses and Σ weights, the best so far; averaged squares, −1 at first."""

    total: jax.Array
    weight: jax.Array
    best: jax.Array
    ff: jax.Array
    gg: jax.Array


class Target:
    """Where the lower loss has to be: within a tolerance of a reference.

    Parameters
    ----------
    tolerance : float or str
        0.01 for an absolute tolerance, "2%" for one relative to the reference.
    reference : float, optional
        A loss known to be attainable; without it, the best average so far.
    """

    def __init__(self, tolerance: float | str, reference: float | None) -> None:
        self.amount, self.relative = tolerated(tolerance, reference)
        self.reference = reference

    def init(self) -> TargetState:
        """Nothing seen yet."""
        none = -jnp.ones(())
        return TargetState(jnp.zeros(()), jnp.zeros(()), jnp.full((), jnp.inf), none, none)

    def update(self, loss: Any, state: TargetState) -> tuple[jax.Array, jax.Array, jax.Array, TargetState]:
        """The averaged loss, its target, the tolerance, and what to remember.

        A loss that is not finite leaves the average alone.
        """
        loss = jnp.asarray(loss).astype(state.total.dtype)
        if loss.ndim:
            raise ValueError(f"lower_value has shape {loss.shape}; it must be one number")
        fine = jnp.isfinite(loss)
        total = jnp.where(fine, (1 - _FAST) * state.total + _FAST * loss, state.total)
        weight = jnp.where(fine, (1 - _FAST) * state.weight + _FAST, state.weight)
        nothing = weight == 0
        average = jnp.where(nothing, loss, total / (weight + nothing))
        best = jnp.where(nothing, state.best, jnp.minimum(state.best, average))
        base = best if self.reference is None else jnp.asarray(self.reference, average.dtype)
        tolerance = self.amount * (jnp.maximum(jnp.abs(base), 1e-12) if self.relative else jnp.ones_like(base))
        return average, base + tolerance, tolerance, state._replace(total=total, weight=weight, best=best)

    def unit(self, ff: jax.Array, gg: jax.Array, state: TargetState) -> tuple[jax.Array, TargetState]:
        """‖∇f‖/‖∇g‖, averaged: what a multiplier is large or small against."""

        def follow(value: jax.Array, before: jax.Array) -> jax.Array:
            value = value.astype(before.dtype)
            now = jnp.where(before < 0, value, before + _SLOW * (value - before))
            return jnp.where(jnp.isfinite(value), now, before)

        state = state._replace(ff=follow(ff, state.ff), gg=follow(gg, state.gg))
        return jnp.sqrt(jnp.maximum(state.ff, 0) / (jnp.maximum(state.gg, 0) + 1e-30)), state
