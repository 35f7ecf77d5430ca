"""The methods of the core as optimizers: direction and step, with the paper's schedules."""

from typing import Any

import optax

from tiebreak import methods
from tiebreak.estimators import named
from tiebreak.methods import Method
from tiebreak.optax import laws
from tiebreak.optax.laws import Law
from tiebreak.optax.transform import dynamic_barrier
from tiebreak.schedules import Schedule

__all__ = ["dbgd", "from_method", "penalty", "pr_sdbpg", "sdbgd", "sdbpg"]


def from_method(
    method: Method | str,
    step_size: Law | None = None,
    *,
    normalize: bool = False,
    axis_name: Any = None,
    param_specs: Any = None,
    **changes: Any,
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
    **changes
        What replaces the method's: its `rule` or `estimator`, or a law such as `barrier`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> optimizer = from_method("sdbgd", step_size=optax.cosine_decay_schedule(0.1, 1000))
    >>> state = optimizer.init(jnp.zeros(2))
    >>> updates, state = optimizer.update(jnp.ones(2), state, lower_grads=jnp.array([0.0, 1.0]))
    >>> updates
    Array([-0.1, -0.1], dtype=float32)
    """
    if "estimator" in changes:
        changes["estimator"] = named(changes["estimator"])
    if step_size is not None:
        changes["step_size"] = step_size
    row = methods.get(method).replace(**{name: laws.held(value) for name, value in changes.items()})
    law: Any = row.schedule.step_size
    if law is None:
        raise ValueError(f"the schedule of {row.name!r} sets no step_size: give one, from_method(…, step_size=…)")
    return optax.chain(
        dynamic_barrier(method=row, normalize=normalize, axis_name=axis_name, param_specs=param_specs),
        optax.scale_by_learning_rate(lambda count: laws.at("step_size", law, count)),
    )


def _alias(
    row: Method, schedule: Schedule | None, step_size: Law | None, options: Any
) -> optax.GradientTransformationExtraArgs:
    return from_method(row if schedule is None else row.replace(schedule=schedule), step_size, **options)


def sdbgd(
    step_size: Law | None = None, *, schedule: Schedule | None = None, **options: Any
) -> optax.GradientTransformationExtraArgs:
    """SDBGD, the paper's method: λ = [β gg − fg]₊ / (gg+ρ), with η_k, β_k and ρ_k of its table.

    Parameters
    ----------
    step_size : float or function of the step, optional
        η_k, in place of the schedule's.
    schedule : Schedule, optional
        In place of the paper's: ``tiebreak.anytime(a)``, ``tiebreak.horizon(K, a)``, or your own.
    **options
        As of :func:`from_method`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from tiebreak.optax import measure
    >>> evaluate = measure(lambda x: jnp.sum((x - jnp.array([3.0, 1.0])) ** 2), lambda x: (x[0] - x[1]) ** 2)
    >>> optimizer, x = sdbgd(0.05), jnp.zeros(2)
    >>> def step(carry, _):
    ...     x, state = carry
    ...     grads, measured = evaluate(x, state)
    ...     updates, state = optimizer.update(grads, state, x, **measured)
    ...     return (optax.apply_updates(x, updates), state), None
    >>> (x, state), _ = jax.lax.scan(step, (x, optimizer.init(x)), length=3000)
    >>> x.round(1)  # the points with x₁ = x₂ minimise g; f prefers (3, 1)
    Array([2., 2.], dtype=float32)
    """
    return _alias(methods.sdbgd, schedule, step_size, options)


def sdbpg(
    step_size: Law | None = None, *, schedule: Schedule | None = None, **options: Any
) -> optax.GradientTransformationExtraArgs:
    """SDBPG (Ahmadi et al. 2026), λ = [β (gg+ρ) − fg]₊ / (gg+ρ); arguments as for :func:`sdbgd`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> optimizer, x = sdbpg(0.1), jnp.array([2.0])
    >>> updates, state = optimizer.update(jnp.array([1.0]), optimizer.init(x), x, lower_grads=jnp.array([4.0]))
    >>> round(float(optax.tree.get(state, "multiplier")), 3)
    0.265
    """
    return _alias(methods.sdbpg, schedule, step_size, options)


def pr_sdbpg(
    step_size: Law | None = None, *, schedule: Schedule | None = None, **options: Any
) -> optax.GradientTransformationExtraArgs:
    """PR-SDBPG, λ = [β (gg+γ) − fg]₊ / (gg + 1/μ), **our reconstruction**; arguments as for :func:`sdbgd`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> optimizer, x = pr_sdbpg(0.1), jnp.array([2.0])
    >>> updates, state = optimizer.update(jnp.array([1.0]), optimizer.init(x), x, lower_grads=jnp.array([4.0]))
    >>> round(float(optax.tree.get(state, "multiplier")), 3)
    0.265
    """
    return _alias(methods.pr_sdbpg, schedule, step_size, options)


def dbgd(
    step_size: Law | None = None, *, schedule: Schedule | None = None, **options: Any
) -> optax.GradientTransformationExtraArgs:
    """DBGD, λ = [β gg − fg]₊ / gg, meant for exact gradients; arguments as for :func:`sdbgd`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> optimizer, x = dbgd(0.1), jnp.array([2.0])
    >>> updates, state = optimizer.update(jnp.array([1.0]), optimizer.init(x), x, lower_grads=jnp.array([4.0]))
    >>> round(float(optax.tree.get(state, "multiplier")), 3)
    0.25
    """
    return _alias(methods.dbgd, schedule, step_size, options)


def penalty(
    step_size: Law | None = None, *, schedule: Schedule | None = None, **options: Any
) -> optax.GradientTransformationExtraArgs:
    """Gradient descent on f + β_k g, the plain baseline; arguments as for :func:`sdbgd`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> optimizer, x = penalty(0.1), jnp.array([2.0])
    >>> updates, state = optimizer.update(jnp.array([1.0]), optimizer.init(x), x, lower_grads=jnp.array([4.0]))
    >>> round(float(optax.tree.get(state, "multiplier")), 3)
    0.5
    """
    return _alias(methods.penalty, schedule, step_size, options)
