"""The transformation of two gradients into one direction; a step measures, decides, checks and moves."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
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
    Leaves,
    Tree,
    cast,
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
        leaves = jax.tree.leaves(params)
        dtypes = [limits(leaf).dtype for leaf in filter(differentiable, leaves)]
        number = partial(jnp.full, (), dtype=jnp.result_type(jnp.float32, *dtypes))
        reading = memory = start = optax.EmptyState()
        if self.decision.tolerance is not None:
            reading = Reading(number(0), number(0), number(0))
            # In a plain tuple, because optax.tree.get must find "reference" and "ratio" in the reading alone.
            values = tuple(map(number, self.decision.begin()))
            memory = (values, (number(0), number(0)))
        if self.reference == START:
            start = copied(params)
        state = BarrierState(
            jnp.zeros((), jnp.int32),
            multiplier=number(0),
            fg=number(0),
            gg=number(0),
            ff=number(0),
            skipped=jnp.zeros((), bool),
            reading=reading,
            memory=memory,
            estimates=estimates.begin(self.estimator, params),
            start=start,
        )
        # A skipped step returns the previous state: the state differs over the same axes as `skipped`.
        axes = varying_union(leaves).difference(self.axes.names)
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
        if lower_grads is None:
            raise TypeError(
                "dynamic_barrier needs both gradients: update(upper_grads, state, params, lower_grads=…)"
            )
        upper, structure = jax.tree.flatten(updates)
        lower = match(updates, lower_grads)
        gradients: dict[str, Leaves] = {"updates": upper, "lower_grads": lower}
        # Gradients outside of the inner products, which move a parameter all the same.
        further: list[Leaves] = []
        if reference_grads is not None:
            names = ("updates", "reference_grads")
            further.append(match(updates, reference_grads, names))
            gradients["reference_grads"] = further[0]
        losses = checked_losses(
            self.decision, self.reference, state, lower_value, reference_value
        )
        layout = self.axes.layout(updates, params, gradients, losses.values(), state.fg)
        dtype = state.fg.dtype

        # Measure: inner products of the gradients, and losses, over all devices.
        parameters = schedules.parameters(self.schedule, state.count, dtype)
        estimated, new_estimates = estimates.update(
            self.estimator, (upper, lower), state.estimates, parameters
        )
        moving = estimated
        if not self.estimator.direction:
            moving = (upper, lower)
            further += moving
        nonfinite = ~finite(chain(*further))
        numbers = [*losses.values(), nonfinite.astype(dtype)]
        products, (*means, nonfinite) = inner_products(
            [*estimated, *further], numbers, layout
        )
        losses = dict(zip(losses, means, strict=True))

        # Decide: d = a ∇f + b ∇g.
        choice, shift, memory = decide(
            self.decision, products, parameters, losses, state.memory
        )

        # Check: without finite numbers the direction is NaN, and no memory changes.
        weights = [choice.upper_weight, choice.lower_weight]
        values = jnp.stack([*products[:3], *weights, *losses.values()])
        applies = jnp.all(jnp.isfinite(values)) & (nonfinite == 0)
        weights = [jnp.where(applies, weight, jnp.nan) for weight in weights]
        memory, new_estimates = jax.tree.map(
            lambda new, old: cast(jnp.where(applies, new, old), old),
            (memory, new_estimates),
            (state.memory, state.estimates),
        )

        # Move.
        direction = combine(moving, weights, shift, like=upper)
        reading = state.reading
        if choice.reading is not None:
            averages = [getattr(choice.reading, name) for name in Reading._fields]
            reading = Reading(*averages)
        fg, gg, ff = products.divided(0)
        measured = {"multiplier": choice.multiplier, "fg": fg, "gg": gg, "ff": ff}
        measured["reading"] = reading
        new_state = state._replace(
            count=optax.safe_increment(state.count),
            skipped=~applies,
            memory=memory,
            estimates=new_estimates,
            **jax.tree.map(lambda number: number.astype(dtype), measured),
        )
        return jax.tree.unflatten(structure, direction), new_state


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
        row = training_method(method)
        decision = Decision(row, normalize=normalize is not False)
        barrier = Barrier(decision, axes, None, row.estimator, row.schedule)
    else:
        refuse_unused(
            f"with tolerance={tolerance!r}: give one of them",
            method=method,
            normalize=normalize,
        )
        decision = Decision(tolerance=_checked_tolerance(tolerance, reference))
        reference = schedules.reference_law(reference) or reference
        barrier = Barrier(decision, axes, reference, Minibatch(), Schedule())
    return optax.GradientTransformationExtraArgs(barrier.init, barrier.update)


def _checked_tolerance(tolerance: Any, reference: Any) -> Tolerance:
    """The tolerance of a decision; raise unless it and the reference are legal."""
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
    if isinstance(reference, (Array, np.ndarray, np.generic)):
        reference = 1.0  # reference_law checks an array
    if not isinstance(tolerance, Array):
        return checked_tolerance(tolerance, reference)
    # An array may be traced and cannot be checked: check a number in its place.
    amount: Any = tolerance
    return replace(checked_tolerance(1.0, reference), amount=amount)


def from_method(
    method: Method | str,
    step_size: float | Array | Law | None = None,
    *,
    normalize: bool = False,
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """A row of :mod:`tiebreak.methods`, or your own, as an optimizer: x ← x − η_k (∇f + λ∇g).

    Parameters
    ----------
    method : Method or str
        Its rule, schedule and estimator; batch sizes are yours to follow.
    step_size : float or function of the step, optional
        η_k, in place of the schedule's.
    normalize : bool
        As of :func:`dynamic_barrier`.
    **options
        `axis_name` and `param_specs`, as there.

    Examples
    --------
    >>> optimizer = from_method("sdbgd", step_size=optax.cosine_decay_schedule(0.1, 1000))
    >>> state = optimizer.init(jnp.zeros(2))
    >>> updates, state = optimizer.update(jnp.ones(2), state, lower_grads=jnp.array([0.0, 1.0]))
    >>> updates
    Array([-0.1, -0.1], dtype=float32)
    """
    row = methods.get(method)
    if isinstance(step_size, Array):
        # It may be traced, and a schedule checks numbers.
        row = row.replace(step_size=lambda count: step_size)
    elif step_size is not None:
        row = row.replace(step_size=step_size)
    law: Any = row.schedule.step_size
    if law is None:
        raise ValueError(
            f"the schedule of {row.name!r} sets no step_size: give one, from_method(…, step_size=…)"
        )
    return optax.chain(
        dynamic_barrier(method=row, normalize=normalize, **options),
        optax.scale_by_learning_rate(
            lambda count: schedules.at("step_size", law, count)
        ),
    )
