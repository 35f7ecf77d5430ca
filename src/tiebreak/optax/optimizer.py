"""The transformation of two gradients into one direction; a step measures, checks, decides and moves."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from operator import is_not
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from tiebreak import methods
from tiebreak.decision import Decision, Tolerance
from tiebreak.estimators import Estimator, Minibatch
from tiebreak.methods import Method
from tiebreak.optax import estimates, schedules
from tiebreak.optax.decide import decide
from tiebreak.optax.distributed import Axes, checked_axes, vary, varying_union
from tiebreak.optax.gradients import (
    Tree,
    combine,
    copied,
    differentiable,
    finite,
    limits,
    match,
)
from tiebreak.optax.losses import checked_losses
from tiebreak.optax.products import inner_products
from tiebreak.optax.schedules import Law
from tiebreak.optax.step_info import BarrierState, Reading
from tiebreak.options import (
    START,
    TWIN,
    checked_tolerance,
    refuse_unused,
    training_method,
)
from tiebreak.schedules import Schedule


@dataclass(frozen=True, eq=False)
class Barrier:
    """The settings of a transformation.

    `reference` is a function of the step, or the word for a measured reference.
    """

    decision: Decision
    axes: Axes
    reference: str | Law | None
    estimator: Estimator
    schedule: Schedule

    def init(self, params: Tree) -> BarrierState:
        """The state before the first step, with a buffer for each leaf, so that it may be donated."""
        leaves = filter(differentiable, jax.tree.leaves(params))
        dtypes = [limits(leaf).dtype for leaf in leaves]
        dtype = jnp.result_type(jnp.float32, *dtypes)

        def number(value: float = 0.0) -> Array:
            return jnp.full((), value, dtype)

        reading = memory = start = optax.EmptyState()
        if self.decision.tolerance is not None:
            reading = Reading(number(), number(), number())
            # A plain tuple, so that optax.tree.get finds "reference" and "ratio" in the reading alone.
            values = tuple(map(number, self.decision.begin()))
            memory = (values, (number(), number()))
        if self.reference == START:
            start = copied(params)
        state = BarrierState(
            jnp.zeros((), jnp.int32),
            multiplier=number(),
            fg=number(),
            gg=number(),
            ff=number(),
            skipped=jnp.zeros((), bool),
            reading=reading,
            memory=memory,
            estimates=estimates.begin(self.estimator, params),
            start=start,
        )
        # A skipped step returns the previous state, so that the state differs over the axes that `skipped` differs over.
        axes = varying_union(jax.tree.leaves(params)).difference(self.axes.names)
        return vary(state, axes)  # type: ignore[no-any-return]  # it maps over any tree and says Any

    def update(
        self,
        updates: Tree,
        state: BarrierState,
        params: Tree = None,
        *,
        lower_grads: Tree = None,
        lower_value: Any = None,
        reference_value: Any = None,
        reference_grads: Tree = None,
        **extra: Any,
    ) -> tuple[Tree, BarrierState]:
        """The direction and the state after the step; it is skipped if a twin's gradient is not finite, too."""
        dtype = state.fg.dtype
        # Measure.
        if lower_grads is None:
            raise TypeError(
                "dynamic_barrier needs both gradients: update(upper_grads, state, params, lower_grads=…)"
            )
        upper, structure = jax.tree.flatten(updates)
        lower = match(updates, lower_grads)
        gradients = {"updates": upper, "lower_grads": lower}
        if reference_grads is not None:
            names = ("updates", "reference_grads")
            gradients["reference_grads"] = match(updates, reference_grads, names)
        losses = checked_losses(
            self.decision,
            self.reference,
            state.count,
            dtype,
            lower_value,
            reference_value,
        )
        layout = self.axes.layout(updates, params, gradients, losses, state.fg)
        parameters = schedules.parameters(self.schedule, state.count, dtype)
        fresh = (upper, lower)
        estimated, new_estimates = estimates.update(
            self.estimator, fresh, state.estimates, parameters
        )
        moving = estimated if self.estimator.direction else fresh
        # Gradients that move a parameter, but do not enter the inner products.
        pairs = zip(moving, estimated, strict=True)
        further = [leaves for leaves, other in pairs if any(map(is_not, leaves, other))]
        if reference_grads is not None:
            further.append(gradients["reference_grads"])
        nonfinite = ~finite(chain(*further))
        numbers = (*losses.values(), nonfinite.astype(dtype))
        products, (*means, nonfinite) = inner_products(
            [*estimated, *further], numbers, layout
        )
        losses = dict(zip(losses, means, strict=True))
        # Decide.
        choice, scales, memory = decide(
            self.decision, products, parameters, losses, state.memory
        )
        # Check.
        weights = [choice.upper_weight, choice.lower_weight]
        values = jnp.stack([*products[:3], *weights, *losses.values()])
        applies = jnp.all(jnp.isfinite(values)) & (nonfinite == 0)

        def select(new: Tree, old: Tree) -> Tree:
            return jax.tree.map(
                lambda a, b: jnp.where(applies, a, b).astype(b.dtype), new, old
            )

        # Move.
        weights = [jnp.where(applies, weight, jnp.nan) for weight in weights]
        direction = combine(moving, weights, scales, like=upper)
        reading = state.reading
        if choice.reading is not None:
            averages = [getattr(choice.reading, name) for name in Reading._fields]
            reading = Reading(*(number.astype(dtype) for number in averages))
        # A scan needs the same dtypes at each step.
        fg, gg, ff = products.rescaled(1.0, 1.0)
        row = {"multiplier": choice.multiplier, "fg": fg, "gg": gg, "ff": ff}
        return jax.tree.unflatten(structure, direction), BarrierState(
            optax.safe_increment(state.count),
            **{name: number.astype(dtype) for name, number in row.items()},
            skipped=~applies,
            reading=reading,
            memory=select(memory, state.memory),
            estimates=select(new_estimates, state.estimates),
            start=state.start,
        )


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
    axes = checked_axes(axis_name, param_specs)
    if tolerance is None:
        refuse_unused("without tolerance=", reference=reference)
        barrier = _rule_barrier(training_method(method), normalize, axes)
        return optax.GradientTransformationExtraArgs(barrier.init, barrier.update)
    refuse_unused(
        f"with tolerance={tolerance!r}: give one of them",
        method=method,
        normalize=normalize,
    )
    if isinstance(reference, str) and reference == TWIN:
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
    reference = schedules.reference_law(reference) or reference
    barrier = Barrier(decision, axes, reference, Minibatch(), Schedule())
    return optax.GradientTransformationExtraArgs(barrier.init, barrier.update)


def _traceable(tolerance: Any, reference: Any) -> Tolerance:
    """The tolerance. An array of JAX may be traced and cannot be checked: a number stands for it in the check."""
    amount: Any = 1.0 if isinstance(tolerance, Array) else tolerance
    if isinstance(reference, (Array, np.ndarray, np.generic)):
        reference = schedules.constant if np.ndim(reference) else 1.0
    allowance = checked_tolerance(amount, reference)
    return allowance if amount is tolerance else replace(allowance, amount=tolerance)


def _rule_barrier(method: Method, normalize: bool | None, axes: Axes) -> Barrier:
    def apply(fg: Array, gg: Array, arguments: Mapping[str, Array]) -> Array:
        with schedules.traced(f"the rule {method.name!r}"):
            multiplier = jnp.asarray(method.rule(fg, gg, **arguments))
            multiplier = multiplier.astype(fg.dtype)
        return multiplier + (fg - fg) + (gg - gg)  # NaN if an inner product is infinite

    decision = Decision(method, normalize=normalize is not False, apply=apply)
    return Barrier(decision, axes, None, method.estimator, method.schedule)


def from_method(
    method: Method | str,
    step_size: float | Array | Law | None = None,
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
