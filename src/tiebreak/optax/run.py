"""All steps of all runs as one compiled program: a scan over the records, a loop between them, runs side by side."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from tiebreak import stationarity
from tiebreak.methods import Method
from tiebreak.optax import laws, trees
from tiebreak.optax.estimates import average, recursion

__all__ = ["Problem", "execute"]


class Problem(NamedTuple):
    """What a compiled program is made for; all of it hashable."""

    upper: Any
    lower: Any
    method: Method
    estimator: str  # "minibatch", "average" or "storm"
    keep_iterates: bool


class Carry(NamedTuple):
    """All that a step changes, of one run; points and gradients are flat."""

    x: jax.Array
    estimates: tuple[jax.Array, ...]
    selected: jax.Array
    steps: jax.Array  # made so far: stands still once the run has ended
    alive: jax.Array
    multiplier: jax.Array  # λ̂ of the last recorded step


@partial(jax.jit, static_argnames="problem")
def execute(
    problem: Problem,
    x0: Any,
    keys: jax.Array,
    chosen: jax.Array,
    table: Mapping[str, jax.Array],
    starts: jax.Array,
    stops: jax.Array,
) -> dict[str, Any]:
    """The history (runs, records), and the last and the selected iterate of every run with their measures.

    Parameters
    ----------
    problem : Problem
    x0 : tree
        Where to start.
    keys : array of keys
        One per run.
    chosen : array of int
        The step of each run whose iterate is selected.
    table : mapping of name to array
        The schedule, step by step.
    starts, stops : array
        The recorded steps, and the next recorded step after each.
    """
    start, unravel = ravel_pytree(x0)
    return jax.vmap(partial(_run, problem, start, unravel, table, starts, stops))(keys, chosen)


def _run(
    problem: Problem,
    start: jax.Array,
    unravel: Callable[[jax.Array], Any],
    table: Mapping[str, jax.Array],
    starts: jax.Array,
    stops: jax.Array,
    key: jax.Array,
    chosen: jax.Array,
) -> dict[str, Any]:
    streams = jax.random.split(key)

    def gradient(level: int, x: jax.Array, k: Any) -> jax.Array:
        oracle = (problem.upper, problem.lower)[level]
        size = table[("upper_batch", "lower_batch")[level]][k]
        found = ravel_pytree(oracle.gradient(unravel(x), jax.random.fold_in(streams[level], k), size))[0]
        if found.shape != start.shape:
            name = ("upper", "lower")[level]
            raise ValueError(f"the {name} gradient has {found.size} numbers; x0 has {start.size}")
        return found.astype(start.dtype)

    def arguments(x: jax.Array, k: Any) -> dict[str, Any]:
        given: dict[str, Any] = {name: table[name][k] for name in problem.method.needs if name in table}
        if "k" in problem.method.needs:
            given["k"] = k
        if "lower_value" in problem.method.needs:
            given["lower_value"] = problem.lower.value(unravel(x))
        return given

    def estimate(carry: Carry, k: Any) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
        x, kept = carry.x, carry.estimates
        a, b = gradient(0, x, k), gradient(1, x, k)
        if problem.estimator == "average":
            b, total, weight = average(b, kept[0], kept[1], table["momentum"][k])
            return a, b, (total, weight)
        if problem.estimator == "storm":
            keep = jnp.where(k == 0, 0, 1 - table["momentum"][k])  # at first there is nothing to keep
            a = recursion(a, kept[0], gradient(0, kept[2], k), keep)
            b = recursion(b, kept[1], gradient(1, kept[2], k), keep)
            return a, b, (a, b, x)
        return a, b, ()

    def step(k: Any, carry: Carry, recorded: Any) -> Carry:
        a, b, kept = estimate(carry, k)
        fg, gg, _ = trees.dots([a], [b])
        multiplier = laws.multiplier(problem.method, fg, gg, arguments(carry.x, k))
        (direction,) = trees.combine([a], [b], multiplier)
        moved = carry.x - table["step_size"][k] * direction
        alive = carry.alive & jnp.isfinite(moved).all()  # what is not finite in a, b or λ reaches the new iterate
        return Carry(
            jnp.where(alive, moved, carry.x),
            kept,
            jnp.where(k == chosen, carry.x, carry.selected),
            carry.steps + alive,
            alive,
            jnp.where(k == recorded, multiplier, carry.multiplier),
        )

    def measure(x: jax.Array, k: Any) -> dict[str, jax.Array]:
        """Exact residuals and values, as far as the oracles can tell."""
        known, upper, lower = {}, problem.upper, problem.lower
        if hasattr(upper, "value"):
            known["upper_value"] = upper.value(unravel(x))
        if hasattr(lower, "value"):
            known["lower_value"] = lower.value(unravel(x))
        if hasattr(lower, "exact_gradient"):
            b = ravel_pytree(lower.exact_gradient(unravel(x)))[0]
            known["lower_gradient_squared"] = trees.products(b, b)
            if hasattr(upper, "exact_gradient"):
                a = ravel_pytree(upper.exact_gradient(unravel(x)))[0]
                fg, gg, _ = trees.dots([a], [b])
                own = laws.multiplier(problem.method, fg, gg, arguments(x, k))
                best = stationarity.best_multiplier(fg, gg)
                for name, factor in (("direction_squared", own), ("stationarity_squared", best)):
                    (d,) = trees.combine([a], [b], factor)
                    known[name] = trees.products(d, d)
                known["exact_multiplier"] = own
        return known

    def between(carry: Carry, ends: tuple[jax.Array, jax.Array]) -> tuple[Carry, dict[str, jax.Array]]:
        k, stop = ends
        after = jax.lax.fori_loop(k, stop, partial(step, recorded=k), carry)
        row = measure(carry.x, k) | {"multiplier": after.multiplier}
        if problem.keep_iterates:
            row["x"] = carry.x
        return after, row

    nothing, zero = jnp.zeros_like(start), jnp.zeros((), start.dtype)
    memory = {"minibatch": (), "average": (nothing, zero), "storm": (nothing, nothing, start)}[problem.estimator]
    none = jnp.zeros((), starts.dtype)
    wide = jnp.zeros((), jnp.promote_types(start.dtype, jnp.float32))
    first = Carry(start, memory, start, none, jnp.array(True), wide)
    end, history = jax.lax.scan(between, first, (starts, stops))
    # An iterate is measured with the parameters of the step that it starts; the last one takes those in force.
    points = jnp.stack([end.x, end.selected]), jnp.stack([jnp.maximum(end.steps - 1, 0), chosen])
    measured = jax.vmap(measure)(*points)
    return {
        "history": history,
        "x": end.x,
        "selected": end.selected,
        "steps": end.steps,
        "last_measures": {name: values[0] for name, values in measured.items()},
        "selected_measures": {name: values[1] for name, values in measured.items()},
    }
