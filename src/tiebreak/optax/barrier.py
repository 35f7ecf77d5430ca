"""One step of the transformation: measure, decide, guard, move."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tiebreak.decision import Choice, Decision, Seen
from tiebreak.estimators import Estimator, Minibatch
from tiebreak.estimators.contract import enters_direction
from tiebreak.optax import estimates, laws, trees
from tiebreak.optax.axes import Axes, vary
from tiebreak.optax.estimates import LEVELS
from tiebreak.optax.products import Products, first_scale, for_rule, inner_products, root
from tiebreak.optax.reference import one_number
from tiebreak.optax.trees import Tree
from tiebreak.schedules import Parameters, Schedule

__all__ = ["Barrier", "BarrierState", "Reading"]


class Reading(NamedTuple):
    """What a tolerance made of the losses, in the last step; 0 before the first.

    Attributes
    ----------
    average_loss, reference : array
        The averaged lower loss, and what it is compared with.
    excess : array
        How far the one lies above the other, in tolerances. The promise is at most 1.
    noise : array
        The standard error of that excess.
    ratio : array
        λ/s, s the averaged ‖∇f‖/‖∇g‖.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from tiebreak.optax import dynamic_barrier
    >>> optimizer = dynamic_barrier(tolerance=0.5, reference=1.0)
    >>> state = optimizer.init(jnp.zeros(1))
    >>> _, state = optimizer.update(jnp.ones(1), state, lower_grads=jnp.ones(1), lower_value=jnp.array(2.0))
    >>> float(state.reading.average_loss), float(state.reading.excess)
    (2.0, 2.0)
    """

    average_loss: jax.Array
    reference: jax.Array
    excess: jax.Array
    noise: jax.Array
    ratio: jax.Array


class BarrierState(NamedTuple):
    """What :func:`dynamic_barrier` remembers, and its last step for logging.

    Attributes
    ----------
    count : array
        Steps made.
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

    `reference` is a function of the step, or how it is measured; `rate`, the learning rate, a function or None.
    """

    decision: Decision
    axes: Axes
    reference: Any = None
    rate: Any = None

    @property
    def estimator(self) -> Estimator:
        """The method's; with a tolerance the gradients are taken as they are."""
        return Minibatch() if self.decision.method is None else self.decision.method.estimator

    @property
    def schedule(self) -> Schedule:
        """The method's; a tolerance needs none."""
        return Schedule() if self.decision.method is None else self.decision.method.schedule

    def transformation(self) -> optax.GradientTransformationExtraArgs:
        """As optax takes it."""
        return optax.GradientTransformationExtraArgs(self.init, self.update)

    def init(self, params: Tree) -> BarrierState:
        """A buffer for every leaf: a state is to be donated."""
        leaves = [p for p in jax.tree.leaves(params) if trees.differentiable(p)]
        dtype = jnp.result_type(jnp.float32, *(trees.real(p) for p in leaves))
        nothing, tolerant = optax.EmptyState(), self.decision.tolerance is not None
        own = self.axes.own(params)

        def number(value: Any, dtype: Any = dtype) -> jax.Array:
            return jnp.full((), value, dtype)

        # A plain tuple: optax.tree.get is to find "reference" and "ratio" in the reading, and nowhere else.
        law = tuple(number(value) for value in self.decision.begin())
        last = {name: number(0) for name in ("multiplier", "fg", "gg", "ff")}
        state = BarrierState(
            jnp.zeros((), jnp.int32),
            **last,
            skipped=number(False, bool),
            reading=Reading(*(number(0) for _ in Reading._fields)) if tolerant else nothing,
            memory=(law, (number(0), number(0))) if tolerant else nothing,
            estimates=estimates.begin(self.estimator, params),
            start=trees.copied(params) if self.reference == "start" else nothing,
        )
        # A step that is held keeps all of it: it differs wherever the decision to hold does.
        return vary(state, own)  # type: ignore[no-any-return]  # it maps over any tree and says Any

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
        """The direction, and the state after the step; a twin's gradients have to be as good as the model's."""
        dtype, tolerant = state.fg.dtype, self.decision.tolerance is not None
        # measure
        if lower_grads is None:
            raise TypeError("dynamic_barrier needs both gradients: update(upper_grads, state, params, lower_grads=…)")
        upper, structure = jax.tree.flatten(updates)
        fresh = {"upper": upper, "lower": trees.match(updates, lower_grads)}
        losses = self._losses(state.count, lower_value, reference_value, dtype)
        grads = {"updates": upper, "lower_grads": fresh["lower"]}
        if reference_grads is not None:
            grads["reference_grads"] = trees.match(updates, reference_grads, ("updates", "reference_grads"))
        spread = self.axes.spread(updates, params, grads, losses, state.fg)
        parameters = laws.parameters(self.schedule, state.count, dtype)
        seen, remembered = estimates.update(self.estimator, fresh, state.estimates, parameters)
        own = seen if enters_direction(self.estimator) else fresh
        # What moves something, but is not in the products.
        others = [
            own[level] for level in LEVELS if any(a is not b for a, b in zip(own[level], seen[level], strict=True))
        ]
        others += [grads["reference_grads"]] if reference_grads is not None else []
        bad = ~trees.finite([leaf for leaves in others for leaf in leaves])
        numbers = (*losses.values(), bad.astype(dtype))
        products, (*means, bad) = inner_products(seen["upper"], seen["lower"], numbers, spread, others)
        losses = dict(zip(losses, means, strict=True))
        # decide
        choice, scales, memory = self._decide(products, parameters, losses, state.memory)
        # guard
        weights = (choice.upper_weight, choice.lower_weight)
        fine = jnp.all(jnp.isfinite(jnp.stack([*products[:3], *weights, *losses.values()]))) & (bad == 0)

        def if_fine(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(fine, a, b).astype(b.dtype), new, old)

        # move
        a, b = (jnp.where(fine, weight, jnp.nan) for weight in weights)
        direction = trees.combine(own["upper"], own["lower"], (a, b), scales)
        direction = [
            d.astype(jnp.result_type(u)) if trees.differentiable(u) else u
            for d, u in zip(direction, upper, strict=True)
        ]
        fg, gg, ff = products.rescaled(1.0, 1.0)
        last = {"multiplier": choice.multiplier, "fg": fg, "gg": gg, "ff": ff}
        return jax.tree.unflatten(structure, direction), BarrierState(
            optax.safe_increment(state.count),
            **{name: value.astype(dtype) for name, value in last.items()},  # a scan needs one dtype
            skipped=~fine,
            reading=_reading(choice, dtype) if tolerant else state.reading,
            memory=if_fine(memory, state.memory),
            estimates=if_fine(remembered, state.estimates),
            start=state.start,
        )

    def _losses(self, count: jax.Array, lower_value: Any, reference_value: Any, dtype: Any) -> dict[str, jax.Array]:
        """The losses that the decision needs."""
        if self.decision.tolerance is None:
            if "lower_value" not in self.decision.method.needs:
                return {}
            if lower_value is None:
                name = self.decision.method.name
                raise TypeError(f"the rule {name!r} needs the lower loss: update(…, lower_grads=…, lower_value=…)")
            return {"lower_value": one_number("lower_value", lower_value, dtype)}
        if lower_value is None:
            raise TypeError("a tolerance needs the lower loss: update(…, lower_grads=…, lower_value=…)")
        known = callable(self.reference)
        if known and reference_value is not None:
            raise TypeError('reference_value=… has no effect: it is for reference="given" or "start"')
        if not known and reference_value is None:
            where = "the lower loss at state.start" if self.reference == "start" else "a loss"
            raise TypeError(f"reference={self.reference!r} needs update(…, reference_value=…), {where} on this batch")
        compared = self.reference(count) if known else reference_value
        found = {
            "lower_value": one_number("lower_value", lower_value, dtype),
            "reference": one_number("reference_value", compared, dtype),
        }
        return (
            found if self.rate is None else found | {"rate": laws.at("learning_rate", self.rate, count).astype(dtype)}
        )

    def _decide(
        self, products: Products, parameters: Parameters, losses: Mapping[str, Any], memory: Any
    ) -> tuple[Choice, Any, Any]:
        """The choice, the scales of the gradients that it is for (None for 1), and what to remember.

        With a tolerance they are the norms of the first gradients, about: s, the ratio of the norms, might be more than
        a number can hold otherwise, and its square, in a derivative, where ∇g is 0.
        """
        if self.decision.tolerance is None:
            seen, parameters = for_rule(self.decision.method.rule, products, parameters, losses.get("lower_value"))
            return self.decision(parameters, seen, ()), None, memory
        values, before = memory
        found = ((root(products.ff), products.upper_scale), (root(products.gg), products.lower_scale))
        scales = [jnp.where(old == 0, first_scale(*norm), old) for norm, old in zip(found, before, strict=True)]
        c, e = (jnp.where(scale == 0, 1.0, scale) for scale in scales)
        upper, lower = (norm * (own / scale) for (norm, own), scale in zip(found, (c, e), strict=True))
        seen = Seen(None, None, None, upper, lower, **losses)
        choice = self.decision(parameters, seen, type(self.decision.begin())(*values))
        remembered = (tuple(choice.memory), tuple(scales))
        return choice._replace(multiplier=choice.multiplier * c / e), (c, e), remembered


def _reading(choice: Choice, dtype: Any) -> Reading:
    found: Any = choice.reading
    values = (found.loss, found.reference, found.excess, found.noise, found.ratio)
    return Reading(*(jnp.asarray(value).astype(dtype) for value in values))
