"""Runs of the optax transformation, 200 steps each, in double precision."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from golden.trace import Trace, structure
from tiebreak import Method, Power, methods
from tiebreak.optax import dynamic_barrier, finish, log, measure, with_twin

STEPS = 200
ROWS = np.random.default_rng(0).normal(size=(STEPS, 16, 3))
TARGETS = ROWS @ np.array([1.0, -2.0, 0.5]) + 0.1 * np.random.default_rng(1).normal(
    size=(STEPS, 16)
)
RUNS: dict[str, Callable[[], Trace]] = {}


def fit(params: Any, batch: Any) -> Any:
    rows, targets = batch
    return jnp.mean((rows @ params["w"] + params["b"] - targets) ** 2)


def size(params: Any, batch: Any) -> Any:
    return jnp.sum(params["w"] ** 2) + 0.1 * jnp.sum(jnp.abs(params["w"]))


def rule(barrier: Any = 0.7, regularizer: Any = 1e-8, **changes: Any) -> Method:
    """The SDBGD rule with these numbers."""
    return methods.sdbgd.replace(barrier=barrier, regularizer=regularizer, **changes)


def scenario(name: str, make: Callable[[], Any], **options: Any) -> None:
    """List a run by name."""
    RUNS[name] = lambda: record(make(), **options)


def record(
    optimizer: Any,
    spoiled: tuple[int, ...] = (),
    given: float | None = None,
    ending: bool = False,
) -> Trace:
    """Train, and keep parameters, the log of every step, and the keys of the state."""
    evaluate = measure(size, fit)

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        grads, measured = evaluate(params, state, batch)
        if given is not None:
            measured = {**measured, "reference_value": jnp.array(given)}
        updates, state = optimizer.update(grads, state, params, **measured)
        updates = jax.tree.map(
            lambda u: jnp.where(jnp.isnan(u), 0, u), updates
        )  # a skipped step moves nothing
        return optax.apply_updates(params, updates), state

    params = {"b": jnp.zeros(()), "w": jnp.array([0.3, 0.2, -0.1])}
    state = optimizer.init(params)
    rows: list[dict[str, float]] = []
    for k in range(STEPS):
        targets = TARGETS[k] * (np.nan if k in spoiled else 1.0)
        params, state = step(params, state, (ROWS[k], targets))
        rows.append({name: float(value) for name, value in log(state).items()})
    trace = Trace()
    trace.arrays |= {
        f"step/{name}": np.array([row[name] for row in rows]) for name in rows[0]
    }
    trace.arrays |= {
        f"params/{name}": np.asarray(value) for name, value in params.items()
    }
    trace.texts["state"] = [
        f"{jax.tree_util.keystr(path)}: {leaf.dtype}{leaf.shape}"
        for path, leaf in _leaves(state)
    ]
    if ending:
        params, result = finish(
            params,
            state,
            tolerance=0.1,
            lower=lambda p: jnp.mean(
                jnp.array([fit(p, (ROWS[k], TARGETS[k])) for k in range(10)])
            ),
            upper=lambda p: size(p, None),
        )
        trace.texts["finish"] = [str(result), *structure(params)]
        trace.arrays |= {
            f"finished/{name}": np.asarray(value) for name, value in params.items()
        }
    return trace


def _leaves(state: Any) -> Any:
    return jax.tree_util.tree_flatten_with_path(state)[0]


def chained(**options: Any) -> Callable[[], Any]:
    return lambda: optax.chain(dynamic_barrier(**options), optax.sgd(0.1, momentum=0.5))


cosine = optax.cosine_decay_schedule(0.1, STEPS)

scenario("optax_rule", chained(method=rule(), normalize=False))
scenario("optax_rule_normalized", chained(method=rule()))
scenario("optax_law", chained(method=rule(Power(1.0, -0.3), Power(1.0, -1.0))))
scenario("optax_average", chained(method=rule(estimator="average", momentum=0.2)))
scenario("optax_method", chained(method="pr_sdbpg"))
scenario("optax_number", chained(tolerance="200%", reference=0.05))
scenario("optax_function", chained(tolerance=0.1, reference=lambda k: 1 / (k + 1.0)))
scenario("optax_start", chained(tolerance=0.1, reference="start"), ending=True)
scenario("optax_given", chained(tolerance=0.1, reference="given"), given=0.3)
scenario(
    "optax_twin",
    lambda: with_twin(optax.sgd(0.1, momentum=0.5), tolerance=0.1),
    ending=True,
)
scenario("optax_twin_adam", lambda: with_twin(optax.adamw(0.02), tolerance="20%"))
scenario(
    "optax_nonfinite", chained(tolerance=0.1, reference=0.05), spoiled=(40, 41, 90)
)
scenario(
    "optax_nonfinite_twin",
    lambda: with_twin(optax.sgd(0.1), tolerance=0.1),
    spoiled=(40, 41, 90),
)
scenario(
    "optax_schedule",
    lambda: optax.chain(
        dynamic_barrier(tolerance=0.1, reference="start"), optax.sgd(cosine)
    ),
)


def run(name: str) -> Trace:
    """Run one scenario in double precision."""
    with jax.enable_x64(True):
        return RUNS[name]()
