"""The barrier as a gradient transformation: two gradients in, one direction out."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tiebreak import rules
from tiebreak.optax import laws, trees
from tiebreak.optax.estimates import AverageState, average
from tiebreak.optax.laws import Law
from tiebreak.optax.target import Target, TargetState
from tiebreak.optax.trees import Tree

__all__ = ["BarrierState", "dynamic_barrier", "value_and_grads"]


class BarrierState(NamedTuple):
    """What :func:`dynamic_barrier` remembers, and its last step for logging.

    Attributes
    ----------
    count : array
        Steps made.
    multiplier, fg, gg, ff : array
        λ, ⟨∇f, ∇g⟩, ‖∇g‖² and ‖∇f‖² of the last step, as the rule saw them; 0 before the first.
    average : AverageState or EmptyState
        The averaged lower gradient, with ``estimator="average"``.
    target : TargetState or EmptyState
        The averaged lower loss, with the value barrier.
    """

    count: jax.Array  # type: ignore[assignment]  # optax's name; hides tuple.count, as in every state of optax
    multiplier: jax.Array
    fg: jax.Array
    gg: jax.Array
    ff: jax.Array
    average: AverageState | optax.EmptyState
    target: TargetState | optax.EmptyState


def dynamic_barrier(
    barrier: Law = 1.0,
    regularizer: Law = 1e-8,
    rule: str | rules.Rule | None = None,
    *,
    penalty: Law = 1.0,
    estimator: str = "minibatch",
    momentum: Law = 0.1,
    tolerance: float | str | None = None,
    reference: float | None = None,
    rate: Law | None = None,
    normalize: bool = True,
    average_direction: bool = False,
    others: Mapping[str, Law] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """d = ∇f + λ∇g: improve the upper loss f among what keeps the lower loss g optimal.

    ``update(upper_grads, state, params, lower_grads=…)`` returns d, for whatever follows in ``optax.chain``.

    Parameters
    ----------
    barrier, regularizer, penalty : float or function of the step
        β, ρ and μ of the rule: numbers, :class:`tiebreak.Power`, schedules of optax, or functions that JAX can trace;
        None for the rule's own default.
    rule : str or callable, optional
        A name of :data:`tiebreak.rules.RULES`, "sdbgd" if none, or a function ``rule(fg, gg, …)``.
    estimator : {"minibatch", "average"}
        What the rule sees of ∇g: the mini-batch, or an exponential average. For STORM see :func:`storm`.
    momentum : float or function of the step
        Weight of the newest gradient in the average.
    tolerance : float or str, optional
        Aim at keeping the averaged lower loss within this much (0.01, or "2%") of `reference`, by a value barrier
        without units (:func:`tiebreak.rules.within`); no weight to choose. The lower loss has to be told:
        ``update(…, lower_value=loss)``.
    reference : float, optional
        The lower loss to stay near: what training on it alone reaches. Without it, the best average so far, which is
        only as good as the model was before.
    rate : float or function of the step, optional
        κ or α of the value barriers; 30 for `tolerance`.
    normalize : bool
        Return d/(1+λ), so that a large λ does not lengthen the step. With `tolerance` it is always
        d/(‖∇f‖/‖∇g‖ + λ), the ratio averaged.
    average_direction : bool
        Whether an average enters the direction too, as in :class:`tiebreak.Average`; else λ alone, because optimizers
        that follow smooth the direction again.
    others : mapping of name to law, optional
        What a rule of your own asks for beyond these.

    Notes
    -----
    A gradient that is not finite makes d so, and does not enter an average. In ``optax.partition`` or ``optax.masked``
    the inner products are over the parameters of that part alone: a multiplier per part, which no theorem covers.

    Examples
    --------
    >>> optimizer = optax.chain(dynamic_barrier(barrier=0.5), optax.adamw(1e-3))
    >>> params = {"w": jnp.array([1.0, 2.0])}
    >>> state = optimizer.init(params)
    >>> upper, lower = {"w": jnp.array([1.0, 0.0])}, {"w": jnp.array([-2.0, 0.0])}
    >>> updates, state = optimizer.update(upper, state, params, lower_grads=lower)
    >>> float(state[0].multiplier), float(state[0].fg), float(state[0].gg)  # (0.5 · 4 + 2) / 4
    (1.0, -2.0, 4.0)
    """
    if estimator not in ("minibatch", "average"):
        hint = "; STORM evaluates two points, see tiebreak.optax.storm" if estimator == "storm" else ""
        raise ValueError(f"estimator={estimator!r} must be one of 'minibatch', 'average'{hint}")
    if tolerance is not None and rule is not None:
        raise ValueError(
            f"rule={rule!r} and tolerance={tolerance!r}: a tolerance brings its own rule; give one of them"
        )
    given = {"barrier": barrier, "regularizer": regularizer, "penalty": penalty, "momentum": momentum}
    # What only a step can know stands in the schedule as a number, and is replaced at the step.
    known: dict[str, Law] = {"target": 0.0, "tolerance": 1.0, "ff": 0.0} | ({} if rate is None else {"rate": rate})
    method = laws.method(rules.within if tolerance is not None else rule or "sdbgd", given, known | dict(others or {}))
    needs_value = "lower_value" in method.needs
    # A rule that is told its target by a law of its own sees the loss as it is.
    valued = bool({"lower_value", "target"} & set(method.needs)) and "target" not in (others or {})
    target = Target(tolerance or 0.0, reference) if valued else None
    if tolerance is not None and target is not None and target.amount == 0:
        raise ValueError(f"tolerance={tolerance!r} must be > 0")
    alpha: Any = method.schedule.momentum
    averages = estimator == "average"
    if alpha is None and averages:
        raise ValueError("momentum=None must be a number in [0, 1], or a function of the step")

    def init(params: Tree) -> BarrierState:
        leaves = [p for p in jax.tree.leaves(params) if trees.differentiable(p)]
        wide = jnp.result_type(jnp.float32, *(trees.widen(p).real.dtype for p in leaves))
        zero, kept = jnp.zeros((), wide), optax.EmptyState()
        if averages:  # in float32 or wider: α = 0.01 of a bfloat16 is below its rounding
            zeros = jax.tree.map(lambda p: jnp.zeros_like(trees.widen(p)) if trees.differentiable(p) else p, params)
            kept = AverageState(zeros, zero)
        return BarrierState(
            jnp.zeros((), jnp.int32), zero, zero, zero, zero, kept, target.init() if target else optax.EmptyState()
        )

    def update(
        updates: Tree,
        state: BarrierState,
        params: Tree = None,
        *,
        lower_grads: Tree = None,
        lower_value: Any = None,
        **extra: Any,
    ) -> tuple[Tree, BarrierState]:
        if lower_grads is None:
            raise TypeError("dynamic_barrier needs both gradients: update(upper_grads, state, params, lower_grads=…)")
        if needs_value and lower_value is None:
            raise TypeError(f"the rule {method.name!r} needs the lower loss: update(…, lower_grads=…, lower_value=…)")
        upper, structure = jax.tree.flatten(updates)
        lower = trees.match(updates, lower_grads)
        arguments = laws.arguments(method, state.count)
        if needs_value:
            arguments["lower_value"] = lower_value
        kept, seen, told = state.average, lower, state.target
        length: Any = 1.0 if normalize else None
        fg, gg, ff = trees.dots(upper, lower)
        square = gg
        if averages:
            kept, seen = _averaged(lower, state.average, laws.at("momentum", alpha, state.count), jnp.isfinite(gg))
            fg, gg, _ = trees.dots(upper, seen)
        if target is not None:
            average, aim, allowed, told = target.update(lower_value, state.target)
            found = {"lower_value": average, "target": aim, "tolerance": allowed}
            arguments |= {name: value.astype(fg.dtype) for name, value in found.items() if name in method.needs}
            if tolerance is not None:
                length, told = target.unit(ff, square, told)
        if "ff" in method.needs:
            arguments["ff"] = ff
        multiplier = laws.multiplier(method, fg, gg, arguments) + (square - square)  # NaN, if ∇g is not finite
        # d/(s+λ): as long as a step on g alone, whatever λ is, and whatever the units of f are.
        scale = 1.0 if length is None else 1 / (length + multiplier + 1e-30)
        direction = trees.combine(upper, seen if average_direction else lower, multiplier, scale)
        last = {"multiplier": multiplier, "fg": fg, "gg": gg, "ff": ff}
        last = {name: value.astype(state.fg.dtype) for name, value in last.items()}  # a scan needs one dtype
        now = BarrierState(optax.safe_increment(state.count), average=kept, target=told, **last)
        return jax.tree.unflatten(structure, direction), now

    return optax.GradientTransformationExtraArgs(init, update)


def _averaged(fresh: list[Any], state: Any, momentum: jax.Array, fine: Any) -> tuple[AverageState, list[Any]]:
    """The new state and the estimates; a gradient that is not `fine` is left out."""
    totals, structure = jax.tree.flatten(state.total)
    weight = state.weight
    found: list[Any] = []
    sums: list[Any] = []
    for g, total in zip(fresh, totals, strict=True):
        if not trees.differentiable(g):
            found.append(g)
            sums.append(total)
            continue
        real = total.real.dtype
        estimate, added, weight = average(trees.widen(g), total, state.weight.astype(real), momentum.astype(real), fine)
        found.append(estimate)
        sums.append(added.astype(total.dtype))
    return AverageState(jax.tree.unflatten(structure, sums), jnp.asarray(weight).astype(state.weight.dtype)), found


def value_and_grads(
    upper_loss: Callable[..., Any], lower_loss: Callable[..., Any], has_aux: bool = False
) -> Callable[..., tuple[tuple[Any, Any], tuple[Tree, Tree]]]:
    """Both losses and both gradients: ``function(params, *args)`` returns ``((f, g), (grads_f, grads_g))``.

    Both losses get the same arguments. What they have in common, such as a forward pass on the same batch, is computed
    once under ``jax.jit``. With `has_aux`, both return ``(loss, aux)`` and stand so in place of f and g.

    Examples
    --------
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
