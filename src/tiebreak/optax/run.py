"""All steps of all runs as one compiled program: a scan over the records, a loop between them, runs side by side.

Where somebody watches, the same scan is made in a few hundred parts, each compiled alike, and told of in between.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from tiebreak import stationarity
from tiebreak.decision import Decision, Seen
from tiebreak.estimators import enters_direction, estimate
from tiebreak.methods import Method
from tiebreak.optax import laws, trees
from tiebreak.optax.estimates import LEVELS
from tiebreak.optax.oracles import batch_value
from tiebreak.schedules import LEGAL, Parameters

__all__ = ["Problem", "execute", "watched"]

_PARTS = 500  # at most: a call takes a fraction of a millisecond


class Problem(NamedTuple):
    """What a compiled program is made for; all of it hashable."""

    upper: Any
    lower: Any
    method: Method
    keep_iterates: bool


class Carry(NamedTuple):
    """All that a step changes, of one run; points and gradients are flat."""

    x: jax.Array
    memory: dict[str, tuple[jax.Array, ...]]  # of each level, as its estimator left it
    rule: tuple[jax.Array, ...]  # what a rule with a memory remembers
    selected: jax.Array
    selected_rule: tuple[jax.Array, ...]
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

    def run(key: jax.Array, chosen: jax.Array) -> dict[str, Any]:
        first, between, finish = _pieces(problem, x0, table, key, chosen)
        end, history = jax.lax.scan(between, first, (starts, stops))
        return finish(end) | {"history": history}

    return jax.vmap(run)(keys, chosen)


def watched(
    problem: Problem,
    x0: Any,
    keys: jax.Array,
    chosen: jax.Array,
    table: Mapping[str, jax.Array],
    starts: jax.Array,
    stops: jax.Array,
    hear: Callable[[int, Mapping[str, Any]], Any],
) -> dict[str, Any]:
    """As :func:`execute`, with ``hear(record, rows)`` after every part: its last record, and what was recorded."""
    size = -(-len(starts) // _PARTS)
    made, ends = [], np.stack([np.asarray(starts), np.asarray(stops)])
    carry = _begin(problem, x0, keys, chosen, table)
    for first in range(0, ends.shape[1], size):
        part = ends[:, first : first + size]
        # All parts are of one length, and so of one program: the last one is filled up with records of no steps.
        filled = np.full((2, size), part[1, -1])
        filled[:, : part.shape[1]] = part
        carry, rows = _advance(problem, x0, keys, chosen, table, carry, *map(jnp.asarray, filled))
        made.append(jax.tree.map(lambda v, n=part.shape[1]: v[:, :n], jax.device_get(rows)))
        hear(first + part.shape[1] - 1, made[-1])
    history = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *made)
    end: dict[str, Any] = jax.device_get(_finish(problem, x0, keys, chosen, table, carry))
    return end | {"history": history}


@partial(jax.jit, static_argnames="problem")
def _begin(problem: Problem, x0: Any, keys: jax.Array, chosen: jax.Array, table: Mapping[str, jax.Array]) -> Any:
    return jax.vmap(lambda key, n: _pieces(problem, x0, table, key, n).first)(keys, chosen)


@partial(jax.jit, static_argnames="problem")
def _advance(
    problem: Problem,
    x0: Any,
    keys: jax.Array,
    chosen: jax.Array,
    table: Mapping[str, jax.Array],
    carry: Any,
    starts: jax.Array,
    stops: jax.Array,
) -> Any:
    def run(key: jax.Array, n: jax.Array, carry: Carry) -> Any:
        return jax.lax.scan(_pieces(problem, x0, table, key, n).between, carry, (starts, stops))

    return jax.vmap(run)(keys, chosen, carry)


@partial(jax.jit, static_argnames="problem")
def _finish(
    problem: Problem, x0: Any, keys: jax.Array, chosen: jax.Array, table: Mapping[str, jax.Array], carry: Any
) -> Any:
    return jax.vmap(lambda key, n, end: _pieces(problem, x0, table, key, n).finish(end))(keys, chosen, carry)


class Pieces(NamedTuple):
    """What a run is made of: how it begins, from one record to the next, and what is made of its end."""

    first: Carry
    between: Callable[[Carry, tuple[jax.Array, jax.Array]], tuple[Carry, dict[str, jax.Array]]]
    finish: Callable[[Carry], dict[str, Any]]


def _pieces(problem: Problem, x0: Any, table: Mapping[str, jax.Array], key: jax.Array, chosen: jax.Array) -> Pieces:
    start, unravel = ravel_pytree(x0)
    streams = dict(zip(LEVELS, jax.random.split(key), strict=True))
    oracles = {"upper": problem.upper, "lower": problem.lower}
    method, wide = problem.method, trees.widen(start)
    estimator, asks_loss = method.estimator, "lower_value" in method.needs
    decision = Decision(method, normalize=False, apply=partial(laws.multiplier, method))

    def drawn(level: str, k: Any) -> tuple[jax.Array, jax.Array]:
        """What says which mini-batch it is: its key and its size."""
        return jax.random.fold_in(streams[level], k), table[f"{level}_batch"][k]

    def gradient(level: str, k: Any, x: jax.Array, wanted: Any = True) -> jax.Array:
        if wanted is not True:
            there: jax.Array = jax.lax.cond(wanted, partial(gradient, level, k), lambda x: jnp.zeros_like(wide), x)
            return there
        found = ravel_pytree(oracles[level].gradient(unravel(x), *drawn(level, k)))[0]
        if found.shape != start.shape:
            raise ValueError(f"the {level} gradient has {found.size} numbers; x0 has {start.size}")
        return found.astype(wide.dtype)

    def parameters(k: Any) -> Parameters:
        named = {name: values[k] for name, values in table.items()}
        known = {name: named.pop(name) for name in (*LEGAL, "upper_points", "lower_points") if name in named}
        return Parameters(k, others=named, **known)

    def decide(a: jax.Array, b: jax.Array, loss: Any, k: Any, memory: Any) -> tuple[jax.Array, Any]:
        fg, gg, ff = trees.dots([a], [b])
        choice = decision(parameters(k), Seen(fg, gg, ff, lower_value=loss), memory)
        return choice.multiplier, choice.memory

    def step(k: Any, carry: Carry, recorded: Any) -> Carry:
        # measure
        seen, own, memory = {}, {}, {}
        for level in LEVELS:
            with laws.traced(f"the estimator {type(estimator).__name__}"):
                kept, at = carry.memory[level], partial(gradient, level, k)
                seen[level], fresh, new = estimate(estimator, level, at, carry.x, kept, parameters(k), _zero, jnp.where)
            own[level] = seen[level] if enters_direction(estimator) else fresh
            memory[level] = jax.tree.map(lambda v, old: jnp.asarray(v, old.dtype), new, carry.memory[level])
        loss = batch_value(problem.lower, unravel(carry.x), *drawn("lower", k)) if asks_loss else None
        # decide
        multiplier, rule = decide(seen["upper"], seen["lower"], loss, k, carry.rule)
        # move
        moved = (carry.x - table["step_size"][k] * (own["upper"] + multiplier * own["lower"])).astype(start.dtype)
        alive = carry.alive & jnp.isfinite(moved).all()  # what is not finite in a, b or λ reaches the new iterate
        return Carry(
            jnp.where(alive, moved, carry.x),
            memory,
            tuple(jnp.where(alive, new, old) for new, old in zip(rule, carry.rule, strict=True)),
            jnp.where(k == chosen, carry.x, carry.selected),
            tuple(jnp.where(k == chosen, m, old) for m, old in zip(carry.rule, carry.selected_rule, strict=True)),
            carry.steps + alive,
            alive,
            jnp.where(k == recorded, multiplier, carry.multiplier),
        )

    def measure(x: jax.Array, k: Any, remembered: Any) -> dict[str, jax.Array]:
        """Exact residuals and values, as far as the oracles can tell; what the rule remembers stays as it is."""
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
                own, _ = decide(a, b, known.get("lower_value"), k, remembered)
                best = stationarity.best_multiplier(fg, gg)
                for name, factor in (("direction_squared", own), ("stationarity_squared", best)):
                    d = trees.widen(a) + factor * trees.widen(b)
                    known[name] = trees.products(d, d)
                known["exact_multiplier"] = own
        return known

    def between(carry: Carry, ends: tuple[jax.Array, jax.Array]) -> tuple[Carry, dict[str, jax.Array]]:
        k, stop = ends
        after = jax.lax.fori_loop(k, stop, partial(step, recorded=k), carry)
        row = measure(carry.x, k, carry.rule) | {"multiplier": after.multiplier}
        if problem.keep_iterates:
            row["x"] = carry.x
        return after, row

    def begin(level: str) -> tuple[jax.Array, ...]:
        memory = tuple(jnp.asarray(v, wide.dtype) for v in estimator.begin(level, jnp.zeros_like(wide), _zero(wide)))
        return (start, *memory) if estimator.evaluations == 2 else memory

    memory = {level: begin(level) for level in LEVELS}
    rule = tuple(jnp.asarray(v, wide.dtype) for v in decision.begin(_zero(wide)))
    first = Carry(start, memory, rule, start, rule, jnp.zeros((), int), jnp.array(True), _zero(wide))

    def finish(end: Carry) -> dict[str, Any]:
        # An iterate is measured with the parameters of the step that it starts; the last one takes those in force.
        points = jnp.stack([end.x, end.selected]), jnp.stack([jnp.maximum(end.steps - 1, 0), chosen])
        remembered = jax.tree.map(lambda *both: jnp.stack(both), end.rule, end.selected_rule)
        measured = jax.vmap(measure)(*points, remembered)
        return {
            "x": end.x,
            "selected": end.selected,
            "steps": end.steps,
            "last_measures": {name: values[0] for name, values in measured.items()},
            "selected_measures": {name: values[1] for name, values in measured.items()},
        }

    return Pieces(first, between, finish)


def _zero(gradient: jax.Array) -> jax.Array:
    """The scalar zero of an estimator's memory."""
    return jnp.zeros((), gradient.dtype)
