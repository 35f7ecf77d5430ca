"""One step of the transformation: measure, decide, guard, move."""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import is_not
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tiebreak.decision import Choice, Decision, Seen
from tiebreak.estimators import Estimator, Minibatch
from tiebreak.estimators.contract import LEVELS, enters_direction
from tiebreak.optax import estimates, gradients, schedules
from tiebreak.optax.distributed import Axes, vary
from tiebreak.optax.gradients import Tree
from tiebreak.optax.products import (
    Products,
    first_scale,
    for_rule,
    inner_products,
    root,
)
from tiebreak.schedules import Parameters, Schedule
from tiebreak.tolerance import Memory


class Reading(NamedTuple):
    """What a tolerance made of the losses, in the last step; 0 before the first.

    Attributes
    ----------
    reference : array
        The averaged reference.
    excess : array
        How far the averaged lower loss lies above it, in tolerances. The promise is at most 1.
    ratio : array
        λ/s, s the averaged ‖∇f‖/‖∇g‖.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from tiebreak.optax import dynamic_barrier
    >>> optimizer = dynamic_barrier(tolerance=0.5, reference=1.0)
    >>> state = optimizer.init(jnp.zeros(1))
    >>> _, state = optimizer.update(jnp.ones(1), state, lower_grads=jnp.ones(1), lower_value=jnp.array(2.0))
    >>> float(state.reading.reference), float(state.reading.excess)
    (1.0, 2.0)
    """

    reference: jax.Array
    excess: jax.Array
    ratio: jax.Array


class BarrierState(NamedTuple):
    """What :func:`dynamic_barrier` remembers, and its last step for logging.

    Attributes
    ----------
    count : array
        Calls of ``update``, those of skipped steps included.
    multiplier, fg, gg, ff : array
        λ, ⟨∇f, ∇g⟩, ‖∇g‖² and ‖∇f‖² of the last step, as the rule saw them; 0 before the first.
    skipped : array
        Whether something in the last step was not finite: then the direction is NaN, and nothing was remembered.
    reading : Reading or EmptyState
        With a tolerance, how far the lower loss is from its reference.
    memory : tuple
        What the tolerance rule remembers, and the scales of both gradients that its numbers are in.
    estimates : dict
        What the estimator remembers of each level.
    start : tree or EmptyState
        The starting parameters, with ``reference="start"``.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from tiebreak import methods
    >>> from tiebreak.optax import dynamic_barrier
    >>> optimizer = dynamic_barrier(method=methods.sdbgd.replace(barrier=1.0, regularizer=0.0))
    >>> state = optimizer.init(jnp.zeros(1))
    >>> _, state = optimizer.update(jnp.array([1.0]), state, lower_grads=jnp.array([4.0]))
    >>> int(state.count), float(state.multiplier), float(state.gg)
    (1, 0.75, 16.0)
    """

    count: jax.Array  # type: ignore[assignment]  # optax's name; hides tuple.count, as in every state of optax
    multiplier: jax.Array
    fg: jax.Array
    gg: jax.Array
    ff: jax.Array
    skipped: jax.Array
    reading: Any
    memory: Any
    estimates: estimates.Memory
    start: Any


@dataclass(frozen=True, eq=False)
class Barrier:
    """What an update needs besides its arguments.

    `reference` is a function of the step, or how it is measured.
    """

    decision: Decision
    axes: Axes
    reference: Any = None

    @property
    def estimator(self) -> Estimator:
        """The method's; with a tolerance the gradients are taken as they are."""
        return (
            Minibatch()
            if self.decision.method is None
            else self.decision.method.estimator
        )

    @property
    def schedule(self) -> Schedule:
        """The method's; a tolerance needs none."""
        return (
            Schedule()
            if self.decision.method is None
            else self.decision.method.schedule
        )

    def transformation(self) -> optax.GradientTransformationExtraArgs:
        """As optax takes it."""
        return optax.GradientTransformationExtraArgs(self.init, self.update)

    def init(self, params: Tree) -> BarrierState:
        """A buffer for every leaf: a state is to be donated."""
        leaves = [p for p in jax.tree.leaves(params) if gradients.differentiable(p)]
        dtype = jnp.result_type(jnp.float32, *(gradients.real(p) for p in leaves))
        nothing = optax.EmptyState()
        tolerant = self.decision.tolerance is not None

        def number(value: Any, dtype: Any = dtype) -> jax.Array:
            return jnp.full((), value, dtype)

        # A plain tuple: optax.tree.get is to find "reference" and "ratio" in the reading, and nowhere else.
        values = tuple(number(value) for value in self.decision.begin())
        last = {name: number(0) for name in ("multiplier", "fg", "gg", "ff")}
        state = BarrierState(
            jnp.zeros((), jnp.int32),
            **last,
            skipped=number(False, bool),
            reading=Reading(*(number(0) for _ in Reading._fields))
            if tolerant
            else nothing,
            memory=(values, (number(0), number(0))) if tolerant else nothing,
            estimates=estimates.begin(self.estimator, params),
            start=gradients.copied(params) if self.reference == "start" else nothing,
        )
        # A skipped step keeps all of it: it differs over the axes that the decision to skip differs over.
        return vary(state, self.axes.own(params))  # type: ignore[no-any-return]  # it maps over any tree and says Any

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
        """The direction, and the state after the step; a twin's gradients must be finite, too."""
        dtype = state.fg.dtype
        # measure
        if lower_grads is None:
            raise TypeError(
                "dynamic_barrier needs both gradients: update(upper_grads, state, params, lower_grads=…)"
            )
        upper, structure = jax.tree.flatten(updates)
        lower = gradients.match(updates, lower_grads)
        by_name = {"updates": upper, "lower_grads": lower}
        if reference_grads is not None:
            by_name["reference_grads"] = gradients.match(
                updates, reference_grads, ("updates", "reference_grads")
            )
        losses = self._losses(state.count, lower_value, reference_value, dtype)
        spread = self.axes.spread(updates, params, by_name, losses, state.fg)
        parameters = schedules.parameters(self.schedule, state.count, dtype)
        fresh = {"upper": upper, "lower": lower}
        estimated, new_estimates = estimates.update(
            self.estimator, fresh, state.estimates, parameters
        )
        moving = estimated if enters_direction(self.estimator) else fresh
        # Gradients that move something, but are not in the inner products.
        others = [
            moving[level]
            for level in LEVELS
            if any(map(is_not, moving[level], estimated[level]))
        ]
        if reference_grads is not None:
            others.append(by_name["reference_grads"])
        bad = ~gradients.finite([leaf for leaves in others for leaf in leaves])
        numbers = (*losses.values(), bad.astype(dtype))
        products, (*means, bad) = inner_products(
            estimated["upper"], estimated["lower"], numbers, spread, others
        )
        losses = dict(zip(losses, means, strict=True))
        # decide
        choice, scales, memory = self._decide(
            products, parameters, losses, state.memory
        )
        # guard
        weights = (choice.upper_weight, choice.lower_weight)
        fine = jnp.all(
            jnp.isfinite(jnp.stack([*products[:3], *weights, *losses.values()]))
        ) & (bad == 0)

        def if_fine(new: Any, old: Any) -> Any:
            return jax.tree.map(
                lambda a, b: jnp.where(fine, a, b).astype(b.dtype), new, old
            )

        # move
        a, b = (jnp.where(fine, weight, jnp.nan) for weight in weights)
        direction = gradients.combine(
            moving["upper"], moving["lower"], (a, b), scales, like=upper
        )
        fg, gg, ff = products.rescaled(1.0, 1.0)
        last = {"multiplier": choice.multiplier, "fg": fg, "gg": gg, "ff": ff}
        return jax.tree.unflatten(structure, direction), BarrierState(
            optax.safe_increment(state.count),
            **{
                name: value.astype(dtype) for name, value in last.items()
            },  # a scan needs one dtype
            skipped=~fine,
            reading=state.reading
            if choice.reading is None
            else _reading(choice.reading, dtype),
            memory=if_fine(memory, state.memory),
            estimates=if_fine(new_estimates, state.estimates),
            start=state.start,
        )

    def _losses(
        self, count: jax.Array, lower_value: Any, reference_value: Any, dtype: Any
    ) -> dict[str, jax.Array]:
        """The losses that the decision needs."""
        if self.decision.tolerance is None:
            if "lower_value" not in self.decision.method.needs:
                return {}
            if lower_value is None:
                name = self.decision.method.name
                raise TypeError(
                    f"the rule {name!r} needs the lower loss: update(…, lower_grads=…, lower_value=…)"
                )
            return {"lower_value": _one_number("lower_value", lower_value, dtype)}
        if lower_value is None:
            raise TypeError(
                "a tolerance needs the lower loss: update(…, lower_grads=…, lower_value=…)"
            )
        if callable(self.reference):
            if reference_value is not None:
                raise TypeError(
                    'reference_value=… has no effect: it is for reference="given" or "start"'
                )
            reference_value = self.reference(count)
        elif reference_value is None:
            where = (
                "the lower loss at state.start"
                if self.reference == "start"
                else "a loss"
            )
            raise TypeError(
                f"reference={self.reference!r} needs update(…, reference_value=…), {where} on this batch"
            )
        return {
            "lower_value": _one_number("lower_value", lower_value, dtype),
            "reference": _one_number("reference_value", reference_value, dtype),
        }

    def _decide(
        self,
        products: Products,
        parameters: Parameters,
        losses: Mapping[str, Any],
        memory: Any,
    ) -> tuple[Choice, Any, Any]:
        """The choice, the scales of the gradients that it is for (None for 1), and the new memory.

        With a tolerance the scales are about the norms of the first gradients. Without them s, the ratio of the norms,
        might overflow, and so might its square, in a derivative, where ∇g is 0.
        """
        if self.decision.tolerance is None:
            seen, parameters = for_rule(
                self.decision.method.rule,
                products,
                parameters,
                losses.get("lower_value"),
            )
            return self.decision(parameters, seen, ()), None, memory
        values, (upper_scale, lower_scale) = memory
        upper_norm = root(products.ff)
        lower_norm = root(products.gg)
        upper_scale = jnp.where(
            upper_scale == 0, first_scale(upper_norm, products.upper_scale), upper_scale
        )
        lower_scale = jnp.where(
            lower_scale == 0, first_scale(lower_norm, products.lower_scale), lower_scale
        )
        c = jnp.where(upper_scale == 0, 1.0, upper_scale)
        e = jnp.where(lower_scale == 0, 1.0, lower_scale)
        upper_norm = upper_norm * (products.upper_scale / c)
        lower_norm = lower_norm * (products.lower_scale / e)
        seen = Seen(None, None, None, upper_norm, lower_norm, **losses)
        choice = self.decision(parameters, seen, Memory(*values))
        new_memory = (tuple(choice.memory), (upper_scale, lower_scale))
        return choice._replace(multiplier=choice.multiplier * c / e), (c, e), new_memory


def _reading(reading: Any, dtype: Any) -> Reading:
    return Reading(
        *(jnp.asarray(getattr(reading, name)).astype(dtype) for name in Reading._fields)
    )


def _one_number(name: str, value: Any, dtype: Any) -> jax.Array:
    """A loss, checked as far as its shape goes."""
    number = jnp.asarray(value)
    if (
        number.ndim
        or not jnp.issubdtype(number.dtype, jnp.number)
        or jnp.iscomplexobj(number)
    ):
        raise ValueError(
            f"{name} has shape {number.shape} and dtype {number.dtype}; it must be one real number"
        )
    return number.astype(dtype)
