"""The barrier as a gradient transformation: two gradients in, one direction out."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tiebreak import methods
from tiebreak.decision import Decision, Tolerance
from tiebreak.methods import Method
from tiebreak.optax import schedules
from tiebreak.optax.distributed import Axes, axes_named
from tiebreak.optax.optimizer import Barrier
from tiebreak.optax.schedules import Law
from tiebreak.options import checked_tolerance, refuse_unused, training_method


def dynamic_barrier(
    *,
    tolerance: Any = None,
    reference: Any = None,
    method: Method | str | None = None,
    normalize: bool | None = None,
    axis_name: Any = None,
    param_specs: Any = None,
) -> optax.GradientTransformationExtraArgs:
    """Improve the upper loss f among what keeps the lower loss g optimal: d = a ∇f + b ∇g.

    ``update(upper_grads, state, params, lower_grads=…)`` returns d, for whatever follows in ``optax.chain``. Say how g
    is to be kept: by a tolerance and a reference, or by a rule of the paper's family. :func:`measure` makes all the
    arguments of an update from two losses.

    Parameters
    ----------
    tolerance : float or str, optional
        How far the lower loss may lie above its reference: 0.01, or "2%" of the reference; no weight to choose. The
        loss has to be told, ``update(…, lower_value=loss)``. An array, as optax.inject_hyperparams gives, may change.
    reference : float, str, path, array or function of the step
        What the lower loss is compared with: a number, the final training loss of lower-only training; ``"start"``,
        the loss of the starting parameters, kept in ``state.start``, on the same batch; ``"given"``, any other loss on
        the same batch, both given as ``update(…, reference_value=…)``; or a recorded run: the path of a CSV log, or an
        array with a loss for each step. For a twin, trained beside the model, see :func:`with_twin`.
    method : Method or str, optional
        In place of a tolerance, a rule with its numbers and its estimator: a row of :mod:`tiebreak.methods`, such as
        ``methods.sdbgd.replace(barrier=0.5, regularizer=1e-8)``, the name of a row, or ``Method("mine", rule,
        Schedule(barrier=0.5))`` with a function ``rule(fg, gg, barrier)`` that JAX can trace. Numbers may be functions
        of the step: :class:`tiebreak.Power`, schedules of optax, or others that JAX can trace. Step size and batches
        are yours; see :func:`from_method`. The rule sees the gradients of the mini-batch, or an exponential average of
        ∇g: ``method.replace(estimator="average", momentum=0.1)`` averages for λ alone, because most optimizers smooth
        the direction themselves; with ``estimator=Average(0.1)`` the direction is averaged, too.
    normalize : bool
        Return d/(1+λ), so that a large λ does not lengthen the step. With `tolerance` it is always d/max(s, λ), s the
        averaged ‖∇f‖/‖∇g‖.
    axis_name : str or tuple of str, optional
        The mapped axes that one run is spread over, under ``shard_map``, ``pmap`` or ``vmap(axis_name=…)``: inner
        products are summed over the shards of each parameter, losses averaged over all devices, in one collective, so
        that all devices decide alike. Gradients of parameters that are the same everywhere must be so, too: average
        them, or let :func:`measure` do it. Not under plain ``jit``, where arrays are sharded and functions are not.
    param_specs : tree of PartitionSpec, optional
        Over which of these axes each parameter is sharded: what ``shard_map`` gets as ``in_specs``, or a prefix of it.
        Under ``shard_map`` JAX knows; elsewhere it must be given, ``PartitionSpec()`` where nothing is sharded.

    Notes
    -----
    Where a gradient, a loss or the multiplier is not finite, d is NaN, and nothing is remembered of the step. In
    ``optax.partition`` or ``optax.masked`` the inner products are over the parameters of that part alone: a multiplier
    per part, which no theorem covers.

    Examples
    --------
    >>> method = methods.sdbgd.replace(barrier=0.5, regularizer=1e-8)
    >>> optimizer = optax.chain(dynamic_barrier(method=method), optax.adamw(1e-3))
    >>> params = {"w": jnp.array([1.0, 2.0])}
    >>> state = optimizer.init(params)
    >>> upper, lower = {"w": jnp.array([1.0, 0.0])}, {"w": jnp.array([-2.0, 0.0])}
    >>> updates, state = optimizer.update(upper, state, params, lower_grads=lower)
    >>> float(state[0].multiplier), float(state[0].fg), float(state[0].gg)  # (0.5 · 4 + 2) / 4
    (1.0, -2.0, 4.0)
    """
    axes = axes_named(axis_name, param_specs)
    if tolerance is None:
        refuse_unused("without tolerance=", reference=reference)
        return _by_rule(training_method(method), normalize, axes)
    refuse_unused(
        f"with tolerance={tolerance!r}: give one of them",
        method=method,
        normalize=normalize,
    )
    if isinstance(reference, str) and reference == "twin":
        raise ValueError(
            'reference="twin" trains a copy with the optimizer that follows, which a link of a chain does not know: '
            "tiebreak.optax.with_twin(optimizer, tolerance=…)"
        )
    if reference is None:
        raise ValueError(
            f"tolerance={tolerance!r} needs reference=: a number (the final training loss of lower-only training), "
            '"start" (the loss of the starting parameters on the same batch), "given" (any other loss on the same '
            "batch), a function of the step, or a recorded run (the path of a CSV log, or an array). For a twin: "
            "tiebreak.optax.with_twin(optimizer, tolerance=…)"
        )
    decision = Decision(tolerance=_traceable(tolerance, reference))
    loss_source = schedules.reference_law(reference) or reference
    return Barrier(decision, axes, loss_source).transformation()


def _traceable(tolerance: Any, reference: Any) -> Tolerance:
    """The tolerance. An array of JAX may be traced and cannot be checked: a number stands for it meanwhile."""
    amount: Any = 1.0 if isinstance(tolerance, jax.Array) else tolerance
    if isinstance(reference, (jax.Array, np.ndarray, np.generic)):
        reference = schedules.constant if np.ndim(reference) else 1.0
    allowance = checked_tolerance(amount, reference)
    return allowance if amount is tolerance else replace(allowance, amount=tolerance)


def _by_rule(
    method: Method, normalize: bool | None, axes: Axes
) -> optax.GradientTransformationExtraArgs:
    def apply(fg: jax.Array, gg: jax.Array, arguments: Mapping[str, Any]) -> Any:
        with schedules.traced(f"the rule {method.name!r}"):
            multiplier = jnp.asarray(method.rule(fg, gg, **arguments)).astype(fg.dtype)
        return multiplier + (fg - fg) + (gg - gg)  # NaN if an inner product is infinite

    return Barrier(
        Decision(method, normalize=normalize is not False, apply=apply), axes
    ).transformation()


def from_method(
    method: Method | str,
    step_size: Law | None = None,
    *,
    normalize: bool = False,
    axis_name: Any = None,
    param_specs: Any = None,
) -> optax.GradientTransformationExtraArgs:
    """A row of :mod:`tiebreak.methods`, or your own, as an optimizer: x ← x − η_k (∇f + λ∇g).

    Parameters
    ----------
    method : Method or str
        Its rule, schedule and estimator; batch sizes are yours to follow.
    step_size : float or function of the step, optional
        η_k, in place of the schedule's.
    normalize, axis_name, param_specs
        As of :func:`dynamic_barrier`.

    Examples
    --------
    >>> optimizer = from_method("sdbgd", step_size=optax.cosine_decay_schedule(0.1, 1000))
    >>> state = optimizer.init(jnp.zeros(2))
    >>> updates, state = optimizer.update(jnp.ones(2), state, lower_grads=jnp.array([0.0, 1.0]))
    >>> updates
    Array([-0.1, -0.1], dtype=float32)
    """
    row = methods.get(method)
    if step_size is not None:
        row = row.replace(step_size=schedules.constant(step_size))
    law: Any = row.schedule.step_size
    if law is None:
        raise ValueError(
            f"the schedule of {row.name!r} sets no step_size: give one, from_method(…, step_size=…)"
        )
    return optax.chain(
        dynamic_barrier(
            method=row,
            normalize=normalize,
            axis_name=axis_name,
            param_specs=param_specs,
        ),
        optax.scale_by_learning_rate(
            lambda count: schedules.at("step_size", law, count)
        ),
    )
