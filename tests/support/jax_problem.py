"""The paper's problem in JAX, and random gradients, for the tests of tiebreak.optax."""

import jax
import jax.numpy as jnp
import numpy as np

import optax
import tiebreak
from tiebreak import rules
from tiebreak.optax import measure

PAPER = tiebreak.problems.paper(sigma=0)


def f(x):
    return jnp.sqrt(1 + jnp.sum((x - jnp.array([7.1, 1.0])) ** 2))


def g(x):
    return 2 - jnp.cos(x[0]) - jnp.exp(-(x[1] ** 2) / 2)


evaluate = measure(f, g)


def gradients(x):
    return jax.grad(f)(x), jax.grad(g)(x)


def core(method, steps, **options):
    return tiebreak.minimize(
        PAPER.upper,
        PAPER.lower,
        PAPER.x0,
        method=method,
        steps=steps,
        record=1,
        keep_iterates=True,
        **options,
    )


def trajectory(optimizer, steps, x):
    """All iterates and states of a scan, with exact gradients."""

    def step(carry, _):
        x, state = carry
        grads, measured = evaluate(x, state)
        updates, state = optimizer.update(grads, state, x, **measured)
        return (optax.apply_updates(x, updates), state), (x, state[0])

    (x, _), (xs, states) = jax.jit(
        lambda x: jax.lax.scan(step, (x, optimizer.init(x)), length=steps)
    )(x)
    return x, xs, states


def random_problem(seed=0, dtype=np.float32):
    """Parameters, and pairs of gradients like them."""
    rng = np.random.default_rng(seed)
    params = {"a": rng.normal(size=(4, 3)), "b": [rng.normal(size=3), rng.normal()]}
    grads = [
        jax.tree.map(
            lambda p: np.asarray(rng.normal(size=np.shape(p))), (params, params)
        )
        for _ in range(12)
    ]
    return jax.tree.map(lambda p: jnp.asarray(p, dtype), (params, grads))


def by_hand(upper, lower, barrier=1.0, regularizer=1e-8):
    a, b = (
        np.concatenate([np.ravel(v) for v in jax.tree.leaves(t)])
        for t in (upper, lower)
    )
    return rules.sdbgd(a @ b, b @ b, barrier, regularizer)


def value_barrier():
    schedule = tiebreak.Schedule(0.05, others={"target": 0.02, "rate": 2.0})
    return tiebreak.Method("by value", rules.by_value, schedule)


class Halved(tiebreak.estimators.Estimator):
    """An estimator of one's own, with memory: the mean of this gradient and the last."""

    evaluations = 1

    def begin(self, level, zeros, zero):
        return (zeros,)

    def update(self, level, fresh, before, memory, parameters):
        return (fresh + memory[0]) / 2, (1.0 * fresh,)


METHODS = {
    **{
        name: tiebreak.methods.get(name)
        for name in ("sdbgd", "sdbpg", "pr_sdbpg", "dbgd", "penalty")
    },
    "average": tiebreak.methods.sdbgd.replace(estimator=tiebreak.Average(0.3)),
    "average by a law": tiebreak.methods.sdbpg.replace(
        estimator=tiebreak.Average(), momentum=tiebreak.Power(1, -0.5)
    ),
    "average for λ alone": tiebreak.methods.sdbgd.replace(
        estimator=tiebreak.Average(0.3, direction=False)
    ),
    "own estimator": tiebreak.methods.sdbgd.replace(estimator=Halved()),
    "by value": value_barrier(),
    "least": value_barrier().replace(rule=rules.least, barrier=0.5),
    "own rule": tiebreak.Method(
        "own",
        lambda fg, gg, k, cap: cap / (1 + k) + 0 * gg,
        tiebreak.Schedule(0.1, others={"cap": 3.0}),
    ),
}
