"""The optax transformation: the core's numbers, and the manners of any transformation of optax."""

import io
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tiebreak
from tiebreak import rules
from tiebreak.optax import (
    Gaussian,
    dynamic_barrier,
    from_method,
    pr_sdbpg,
    sdbgd,
    sdbpg,
    solve,
    storm,
    value_and_grads,
)

PAPER = tiebreak.problems.paper(sigma=0)


def f(x):
    return jnp.sqrt(1 + jnp.sum((x - jnp.array([7.1, 1.0])) ** 2))


def g(x):
    return 2 - jnp.cos(x[0]) - jnp.exp(-(x[1] ** 2) / 2)


both = value_and_grads(f, g)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def core(method, steps, **options):
    return tiebreak.minimize(
        PAPER.upper, PAPER.lower, PAPER.x0, method=method, steps=steps, record=1, keep_iterates=True, **options
    )


def trajectory(optimizer, steps, x):
    """All iterates and states of a scan, with exact gradients."""

    def step(carry, _):
        x, state = carry
        _, (df, dg) = both(x)
        updates, state = optimizer.update(df, state, x, lower_grads=dg, lower_value=g(x))
        return (optax.apply_updates(x, updates), state), (x, state[0])

    (x, _), (xs, states) = jax.jit(lambda x: jax.lax.scan(step, (x, optimizer.init(x)), length=steps))(x)
    return x, xs, states


def value_barrier():
    schedule = tiebreak.Schedule(0.05, barrier=0.5, others={"target": 0.02, "rate": 2.0})
    return tiebreak.Method("by value", rules.by_value, schedule)


METHODS = {
    **{name: tiebreak.methods.get(name) for name in ("sdbgd", "sdbpg", "pr_sdbpg", "dbgd", "penalty")},
    "average": tiebreak.methods.sdbgd.replace(estimator=tiebreak.Average(0.3)),
    "average by a law": tiebreak.methods.sdbpg.replace(estimator=tiebreak.Average(), momentum=tiebreak.Power(1, -0.5)),
    "by value": value_barrier(),
    "least": value_barrier().replace(rule=rules.least),
    "own rule": tiebreak.Method(
        "own", lambda fg, gg, k, cap: cap / (1 + k) + 0 * gg, tiebreak.Schedule(0.1, others={"cap": 3.0})
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_equals_the_core_step_by_step(name, x64):
    method = METHODS[name]
    expected = core(method, 60)
    x, xs, states = trajectory(from_method(method), 60, jnp.array(PAPER.x0))
    assert xs.dtype == states.fg.dtype == jnp.float64
    np.testing.assert_allclose(xs, expected.history.x[:-1], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(x, expected.x, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(states.multiplier, expected.history.multiplier[:-1], rtol=1e-8, atol=1e-11)
    np.testing.assert_array_equal(states.count, np.arange(1, 61))
    if not name.startswith("average"):
        np.testing.assert_allclose(states.gg, expected.history.lower_gradient_squared[:-1], rtol=1e-8, atol=1e-13)


@pytest.mark.parametrize(("alias", "name"), [(sdbgd, "sdbgd"), (sdbpg, "sdbpg"), (pr_sdbpg, "pr_sdbpg")])
def test_aliases_are_rows_of_the_core(alias, name, x64):
    assert np.array_equal(*(trajectory(o, 20, jnp.array(PAPER.x0))[0] for o in (alias(), from_method(name))))
    other = alias(schedule=tiebreak.anytime(0.2, step_size=0.01).replace(penalty=1))
    assert not np.allclose(
        trajectory(other, 20, jnp.array(PAPER.x0))[0], trajectory(alias(), 20, jnp.array(PAPER.x0))[0]
    )


def test_storm_equals_the_core(x64):
    method = tiebreak.methods.vr_pr_sdbpg
    expected = core(method, 40)
    optimizer, estimator = from_method(method), storm(method.schedule.momentum)

    @jax.jit
    def step(carry, _):
        x, state, upper, lower = carry
        (_, (df, dg)), (_, (df_before, dg_before)) = both(x), both(upper.params)
        df, upper = estimator.update(df, upper, x, previous_grads=df_before)
        dg, lower = estimator.update(dg, lower, x, previous_grads=dg_before)
        updates, state = optimizer.update(df, state, x, lower_grads=dg)
        return (optax.apply_updates(x, updates), state, upper, lower), None

    x = jnp.array(PAPER.x0)
    carry, _ = jax.lax.scan(step, (x, optimizer.init(x), estimator.init(x), estimator.init(x)), length=40)
    np.testing.assert_allclose(carry[0], expected.x, rtol=1e-10)


def random_problem(seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    params = {"a": rng.normal(size=(4, 3)), "b": [rng.normal(size=3), rng.normal()]}
    grads = [jax.tree.map(lambda p: np.asarray(rng.normal(size=np.shape(p))), (params, params)) for _ in range(12)]
    return jax.tree.map(lambda p: jnp.asarray(p, dtype), (params, grads))


OPTIONS = {
    "plain": {"barrier": 0.7, "normalize": False},
    "normalized": {"barrier": 0.7},
    "penalized": {"barrier": 0.7, "regularizer": 0.01, "penalty": 2.0, "rule": "penalized"},
    "averaged": {"barrier": 0.7, "estimator": "average", "momentum": 0.2},
    "tolerance": {"tolerance": "2%"},
    "reference": {"tolerance": 0.1, "reference": 1.0, "rate": 0.5, "estimator": "average"},
    "by value": {"rule": "by_value", "reference": 1.0, "rate": 3.0},
    "least": {"rule": "least"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_equals_the_torch_optimizer(name, x64):
    torch = pytest.importorskip("torch")
    from tiebreak.torch import DynamicBarrier

    params, grads = random_problem(dtype=np.float64)
    twins = [torch.nn.Parameter(torch.tensor(np.asarray(p))) for p in jax.tree.leaves(params)]
    opt = DynamicBarrier(torch.optim.SGD(twins, lr=0.1), **OPTIONS[name])
    optimizer = optax.chain(dynamic_barrier(**OPTIONS[name]), optax.sgd(0.1))
    update = jax.jit(optimizer.update)
    state = optimizer.init(params)
    for k, (upper, lower) in enumerate(grads):
        loss = 1 + np.sin(k) ** 2
        for level, tree in ((opt.upper(), upper), (opt.lower(torch.tensor(loss, dtype=torch.float64)), lower)):
            with level:
                sum(
                    (p * torch.tensor(np.asarray(v))).sum() for p, v in zip(twins, jax.tree.leaves(tree), strict=True)
                ).backward()
        info = opt.step()
        updates, state = update(upper, state, params, lower_grads=lower, lower_value=loss)
        params = optax.apply_updates(params, updates)
        assert float(state[0].multiplier) == pytest.approx(info.multiplier.item(), rel=1e-10)
    for p, twin in zip(jax.tree.leaves(params), twins, strict=True):
        np.testing.assert_allclose(p, twin.detach(), rtol=1e-10)


def test_compiles_once_whatever_the_step():
    traces = []
    laws = {
        "barrier": tiebreak.Power(0.5, -0.25),
        "regularizer": lambda k: traces.append(k) or 1.0 / (k + 1),
        "momentum": optax.linear_schedule(1.0, 0.1, 100),
    }
    optimizer = sdbgd(optax.cosine_decay_schedule(0.1, 100), estimator="average", **laws)
    step = jax.jit(lambda u, s, v: optimizer.update(u, s, lower_grads=v))
    x = jnp.ones(3)
    state = optimizer.init(x)
    for _ in range(5):
        _, state = step(x, state, -x)
    assert len(traces) == 1
    assert int(state[0].count) == 5
    # the law was evaluated at the last step, k = 4, and the multiplier with it
    expected = rules.sdbgd(-3.0, 3.0, 0.5 * 5**-0.25, 1 / 5)
    assert float(state[0].multiplier) == pytest.approx(expected, rel=1e-5)


def test_runs_under_vmap_equal_separate_runs():
    optimizer = sdbgd()

    def run(key):
        def step(carry, key):
            x, state = carry
            _, (df, dg) = both(x)
            noise = 0.1 * jax.random.normal(key, (2, 2))
            updates, state = optimizer.update(df + noise[0], state, x, lower_grads=dg + noise[1])
            return (optax.apply_updates(x, updates), state), state[0].multiplier

        x = jnp.array([1.5, 1.5])
        (x, _), multipliers = jax.lax.scan(step, (x, optimizer.init(x)), jax.random.split(key, 30))
        return x, multipliers

    keys = jax.random.split(jax.random.key(0), 256)
    together, apart = jax.jit(jax.vmap(run))(keys), jax.jit(run)
    for i in range(0, 256, 17):
        for a, b in zip(together, apart(keys[i]), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=2e-4, atol=1e-5)


def by_hand(upper, lower, barrier=1.0, regularizer=1e-8):
    a, b = (np.concatenate([np.ravel(v) for v in jax.tree.leaves(t)]) for t in (upper, lower))
    return rules.sdbgd(a @ b, b @ b, barrier, regularizer)


def test_chains_with_clipping_and_adamw():
    params, grads = random_problem()
    upper, lower = grads[0]
    optimizer = optax.chain(dynamic_barrier(0.5, normalize=False), optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    plain = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    updates, state = jax.jit(optimizer.update)(upper, optimizer.init(params), params, lower_grads=lower)
    factor = by_hand(upper, lower, 0.5)
    assert float(state[0].multiplier) == pytest.approx(factor, rel=1e-5)
    direction = jax.tree.map(lambda u, v: u + factor * v, upper, lower)
    expected, _ = plain.update(direction, plain.init(params), params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), updates, expected)
    assert float(optax.tree.get(state, "multiplier")) == pytest.approx(factor, rel=1e-5)


def labels(params):
    return {"a": "barrier", "b": jax.tree.map(lambda _: "frozen", params["b"])}


@pytest.mark.parametrize("masks_extra", [False, True])
def test_partition_has_a_multiplier_of_its_own(masks_extra):
    params, grads = random_problem()
    upper, lower = grads[0]
    parts = {
        "barrier": optax.chain(dynamic_barrier(0.5, estimator="average", normalize=False), optax.sgd(1.0)),
        "frozen": optax.set_to_zero(),
    }
    optimizer = optax.partition(parts, labels, mask_compatible_extra_args=masks_extra)
    updates, state = optimizer.update(upper, optimizer.init(params), params, lower_grads=lower)
    factor = by_hand(upper["a"], lower["a"], 0.5)
    np.testing.assert_allclose(updates["a"], -(upper["a"] + factor * lower["a"]), rtol=1e-4, atol=1e-5)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(updates["b"]))
    assert float(optax.tree.get(state, "multiplier")) == pytest.approx(factor, rel=1e-4)


def test_partition_behind_the_barrier_shares_the_multiplier():
    params, grads = random_problem()
    upper, lower = grads[0]
    parts = {"barrier": optax.sgd(1.0), "frozen": optax.set_to_zero()}
    optimizer = optax.chain(dynamic_barrier(0.5, normalize=False), optax.partition(parts, labels))
    updates, _ = optimizer.update(upper, optimizer.init(params), params, lower_grads=lower)
    np.testing.assert_allclose(
        updates["a"], -(upper["a"] + by_hand(upper, lower, 0.5) * lower["a"]), rtol=1e-4, atol=1e-5
    )


def test_hyperparameters_can_be_injected():
    params, grads = random_problem()
    upper, lower = grads[0]
    optimizer = optax.inject_hyperparams(dynamic_barrier, static_args=("regularizer",))(barrier=0.5, regularizer=1e-8)
    state = optimizer.init(params)
    for barrier in (0.5, 2.0):
        state.hyperparams["barrier"] = jnp.asarray(barrier)
        _, state = jax.jit(optimizer.update)(upper, state, params, lower_grads=lower)
        assert float(optax.tree.get(state, "multiplier")) == pytest.approx(by_hand(upper, lower, barrier), rel=1e-4)


def test_what_is_missing_or_does_not_match_is_named():
    params, grads = random_problem()
    upper, lower = grads[0]
    transform = dynamic_barrier()
    state = transform.init(params)

    def update(lower, **extra):
        return transform.update(upper, state, params, lower_grads=lower, **extra)

    with pytest.raises(TypeError, match="lower_grads=…"):
        transform.update(upper, state, params)
    with pytest.raises(ValueError, match=r"lower_grads has no leaf \['b'\]\[1\], which updates has"):
        update({**lower, "b": lower["b"][:1]})
    with pytest.raises(ValueError, match=r"lower_grads has a leaf \['c'\], which updates has not"):
        update({**lower, "c": lower["a"]})
    with pytest.raises(ValueError, match=r"lower_grads\['a'\] has shape \(2, 3\); it must be .*\(4, 3\)"):
        update({**lower, "a": lower["a"][:2]})
    with pytest.raises(TypeError, match="lower_value=…"):
        dynamic_barrier(tolerance=0.1).update(upper, state, params, lower_grads=lower)
    valued = dynamic_barrier(tolerance=0.1)
    with pytest.raises(ValueError, match=r"lower_value has shape \(2,\)"):
        valued.update(upper, valued.init(params), params, lower_grads=lower, lower_value=jnp.ones(2))
    with pytest.raises(TypeError, match="previous_grads=…"):
        storm().update(upper, storm().init(params), params)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "nonsense"}, "rule='nonsense' must be one of 'dbgd'"),
        ({"estimator": "storm"}, "tiebreak.optax.storm"),
        ({"estimator": "average", "momentum": None}, "momentum=None"),
        ({"barrier": -1}, "barrier=-1"),
        ({"momentum": 2}, "momentum=2"),
        ({"tolerance": "much"}, "tolerance='much'"),
        ({"tolerance": 0}, "tolerance=0 must be > 0"),
        ({"tolerance": 0.1, "rule": "sdbgd"}, "a tolerance brings its own rule"),
        ({"tolerance": 0.1, "reference": float("nan")}, "reference=nan"),
        ({"rule": lambda fg, gg, cap: cap}, r"needs \['cap'\]"),
    ],
)
def test_bad_options_are_named_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        dynamic_barrier(**options)


def test_laws_and_rules_that_do_not_trace_say_so():
    def step(transform):
        jax.jit(lambda x: transform.update(x, transform.init(x), lower_grads=x))(jnp.ones(2))

    with pytest.raises(jax.errors.ConcretizationTypeError) as caught:
        step(dynamic_barrier(barrier=lambda k: 1.0 if k < 3 else 0.5))
    assert any("in barrier, a function of the step" in note for note in caught.value.__notes__)
    with pytest.raises(jax.errors.ConcretizationTypeError) as caught:
        step(dynamic_barrier(rule=lambda fg, gg: max(fg, 0.0)))
    assert any("in the rule" in note for note in caught.value.__notes__)
    with pytest.raises(ValueError, match=r"barrier at a step has shape \(2,\)"):
        step(dynamic_barrier(barrier=lambda k: jnp.ones(2)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize("estimator", ["minibatch", "average"])
def test_dtypes_are_kept_and_products_are_wide(dtype, estimator):
    n = 3000  # in bfloat16 a sum of ones stops growing at 256
    params = {"w": jnp.ones(n, dtype), "scale": jnp.ones((), jnp.float32)}
    transform = dynamic_barrier(0.5, estimator=estimator)
    updates, state = transform.update(params, transform.init(params), params, lower_grads=params)
    assert jax.tree.map(lambda p: p.dtype, updates) == jax.tree.map(lambda p: p.dtype, params)
    assert state.gg.dtype == jnp.float32
    assert float(state.gg) == pytest.approx(n + 1, rel=1e-6)
    twice = jax.lax.scan(
        lambda s, _: (transform.update(params, s, params, lower_grads=params)[1], None), state, length=2
    )
    assert jax.tree.structure(twice[0]) == jax.tree.structure(state)


def test_complex_leaves_whole_numbers_and_empty_trees():
    params = {"z": jnp.array([1 + 2j, 3 - 1j], jnp.complex64), "n": jnp.arange(3), "none": None}
    transform = dynamic_barrier(0.5, estimator="average")
    lower = {"z": jnp.array([2j, 1 + 0j], jnp.complex64), "n": jnp.arange(3), "none": None}
    updates, state = transform.update(params, transform.init(params), params, lower_grads=lower)
    assert (float(state.fg), float(state.gg), float(state.ff)) == pytest.approx((7.0, 5.0, 15.0))
    assert updates["z"].dtype == jnp.complex64
    np.testing.assert_array_equal(updates["n"], params["n"])
    updates, state = dynamic_barrier().update({}, dynamic_barrier().init({}), {}, lower_grads={})
    assert updates == {}
    assert float(state.multiplier) == 0


def test_gradients_pass_through():
    """The iterate after ten steps, differentiated by the start and by the barrier, is finite and right."""

    def after(x, barrier):
        optimizer = optax.chain(dynamic_barrier(lambda k: barrier, 0.1, normalize=True), optax.sgd(0.1))

        def step(carry, _):
            x, state = carry
            _, (df, dg) = both(x)
            updates, state = optimizer.update(df, state, x, lower_grads=dg)
            return (optax.apply_updates(x, updates), state), None

        return f(jax.lax.scan(step, (x, optimizer.init(x)), length=10)[0][0])

    with jax.enable_x64(True):
        x, barrier = jnp.array([1.5, 1.5]), jnp.array(0.5)
        by_x, by_barrier = jax.grad(after, argnums=(0, 1))(x, barrier)
        assert np.isfinite(by_x).all()
        h = 1e-6
        numeric = (after(x, barrier + h) - after(x, barrier - h)) / (2 * h)
        assert float(by_barrier) == pytest.approx(float(numeric), rel=1e-5)
    zero = jax.grad(
        lambda c: jnp.sum(dynamic_barrier(c).update(c * 0, dynamic_barrier().init(c), lower_grads=c * 0)[0])
    )
    assert float(zero(jnp.array(1.0))) == 0  # both gradients zero: no 0/0 on the way back


def test_what_is_not_finite_is_seen_and_kept_out_of_averages():
    x = jnp.ones(2)
    transform = dynamic_barrier(0.5, estimator="average")
    _, state = transform.update(x, transform.init(x), lower_grads=-x)
    direction, after = transform.update(x, state, lower_grads=jnp.array([jnp.nan, 1.0]))
    assert np.isnan(direction).all()
    np.testing.assert_array_equal(after.average.total, state.average.total)
    direction, _ = transform.update(x, after, lower_grads=-x)
    assert np.isfinite(direction).all()
    valued = dynamic_barrier(tolerance=0.1)
    state = valued.init(x)
    for loss in (jnp.nan, 2.0, jnp.inf, 2.0):
        _, state = valued.update(x, state, lower_grads=-x, lower_value=loss)
    assert float(state.target.best) == pytest.approx(2.0)


def test_the_value_barrier_keeps_the_lower_loss():
    """Within the tolerance at the end, not far below it, and the same whatever the units of f."""
    ends = []
    for scale in (1.0, 1000.0):
        optimizer = optax.chain(dynamic_barrier(tolerance=0.05, reference=0.0), optax.sgd(0.01))

        def step(carry, _, scale=scale, optimizer=optimizer):
            x, state = carry
            (_, value), (df, dg) = both(x)
            updates, state = optimizer.update(scale * df, state, x, lower_grads=dg, lower_value=value)
            return (optax.apply_updates(x, updates), state), value

        x = jnp.array([6.0, 0.5])
        _, values = jax.lax.scan(step, (x, optimizer.init(x)), length=3000)
        assert 0.01 < float(values[-500:].mean()) < 0.05
        ends.append(float(values[-500:].mean()))
    assert ends[0] == pytest.approx(ends[1], rel=1e-2)


def test_states_survive_a_checkpoint():
    params, grads = random_problem()
    optimizer = optax.chain(dynamic_barrier(tolerance="2%", estimator="average"), optax.adamw(1e-2))

    update = jax.jit(optimizer.update)

    def train(params, state, batches):
        for upper, lower in batches:
            updates, state = update(upper, state, params, lower_grads=lower, lower_value=1.0)
            params = optax.apply_updates(params, updates)
        return params, state

    whole, _ = train(params, optimizer.init(params), grads)
    half, state = train(params, optimizer.init(params), grads[:6])
    file = io.BytesIO()
    np.savez(file, *jax.tree.leaves(state))
    file.seek(0)
    saved = np.load(file)
    restored = jax.tree.unflatten(
        jax.tree.structure(optimizer.init(params)), [jnp.asarray(saved[n]) for n in saved.files]
    )
    resumed, _ = train(half, restored, grads[6:])
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)


def test_states_survive_flax_serialization():
    serialization = pytest.importorskip("flax.serialization")
    params, grads = random_problem()
    for transform in (dynamic_barrier(), dynamic_barrier(tolerance="2%", estimator="average"), sdbgd()):
        upper, lower = grads[0]
        _, state = transform.update(upper, transform.init(params), params, lower_grads=lower, lower_value=1.0)
        restored = serialization.from_bytes(transform.init(params), serialization.to_bytes(state))
        jax.tree.map(np.testing.assert_array_equal, restored, state)


def test_value_and_grads_passes_arguments_and_extras():
    both = value_and_grads(lambda x, c, d=1: (c * x, "f"), lambda x, c, d=1: (d * x**2, "g"), has_aux=True)
    ((f_, g_), (df, dg)) = both(jnp.array(3.0), 2.0, d=5.0)
    assert (f_, g_) == ((6.0, "f"), (45.0, "g"))
    assert (float(df), float(dg)) == (2.0, 30.0)


# --- whole runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sdbgd", "average by a law", "least", "own rule", "vr_pr_sdbpg"])
def test_solve_equals_the_core(name, x64):
    method = METHODS.get(name) or tiebreak.methods.get(name)
    expected = core(method, 60, runs=2)
    found = solve(f, g, PAPER.x0, method, steps=60, runs=2, record=1, keep_iterates=True)
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-9, atol=1e-12)
    assert found.history.columns.keys() == expected.history.columns.keys()
    for column in ("x", "step", "upper_calls", "lower_calls", *found.history.columns):
        np.testing.assert_allclose(found.history[column], expected.history[column], rtol=1e-7, atol=1e-11)
    for measure in (
        "direction_squared",
        "lower_gradient_squared",
        "stationarity_squared",
        "exact_multiplier",
        "upper_value",
        "lower_value",
    ):
        np.testing.assert_allclose(getattr(found.last, measure), getattr(expected.last, measure), rtol=1e-7, atol=1e-11)
    assert (found.status, found.calls.tolist()) == (expected.status, expected.calls.tolist())


@pytest.mark.parametrize("record", ["log", 7, None])
def test_solve_records_what_the_core_records(record, x64):
    expected = tiebreak.minimize(PAPER.upper, PAPER.lower, PAPER.x0, budget=10**5, record=record)
    found = solve(f, g, PAPER.x0, budget=10**5, record=record)
    assert (found.status, found.steps, found.calls) == (expected.status, expected.steps, expected.calls)
    np.testing.assert_array_equal(found.history.step, expected.history.step)
    assert found.history.columns.keys() == expected.history.columns.keys()
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-9)
    if record is not None:
        np.testing.assert_allclose(found.history.direction_squared, expected.history.direction_squared, rtol=1e-7)


def test_solve_has_the_law_of_the_core(x64):
    """Noise: means of 400 runs of both, within five standard errors; and the selected step likewise."""
    noisy = tiebreak.problems.paper(sigma=0.5)
    expected = tiebreak.minimize(noisy.upper, noisy.lower, noisy.x0, budget=20_000, runs=400, seed=1)
    found = solve(Gaussian(f, 0.5), Gaussian(g, 0.5), noisy.x0, budget=20_000, runs=400, key=1)
    pairs = [(found.x[:, i], expected.x[:, i]) for i in range(2)]
    pairs += [
        (found.selected.step, expected.selected.step),
        (found.last.direction_squared, expected.last.direction_squared),
    ]
    for a, b in pairs:
        error = np.sqrt((np.var(a) + np.var(b)) / 400)
        assert error > 0
        assert abs(np.mean(a) - np.mean(b)) < 5 * error


def test_runs_are_their_own_whatever_runs_beside_them():
    upper, lower = Gaussian(f, 0.5), Gaussian(g, 0.5)
    options = {"steps": 40, "record": 1}
    many = solve(upper, lower, jnp.array([1.5, 1.5]), runs=6, key=jax.random.key(3), **options)
    some = solve(upper, lower, jnp.array([1.5, 1.5]), runs=[4, 1], key=3, **options)
    np.testing.assert_allclose(some.x, many.x[[4, 1]], rtol=1e-4)
    np.testing.assert_allclose(some.history.multiplier, many.history.multiplier[:, [4, 1]], rtol=1e-2, atol=1e-3)
    assert len(np.unique(many.x[:, 0])) == 6


def test_solve_compiles_once():
    traces = []

    def counted(x):
        traces.append(1)
        return g(x)

    counts = []
    for key in range(3):
        solve(Gaussian(f, 0.5), Gaussian(counted, 0.5), jnp.array([1.5, 1.5]), steps=10, key=key)
        counts.append(len(traces))
    assert counts[0] == counts[2]


def test_solve_takes_trees_and_gives_them_back(tmp_path):
    def upper(p):
        return jnp.sum((p["u"] - 3.0) ** 2) + jnp.sum((p["v"] - 1.0) ** 2)

    def lower(p):
        return jnp.sum((p["u"] - p["v"]) ** 2)

    start = {"u": jnp.zeros(2), "v": jnp.zeros(2)}
    schedule = tiebreak.Schedule(0.05, barrier=1.0, regularizer=1e-6)
    result = solve(upper, lower, start, tiebreak.methods.sdbgd.replace(schedule=schedule), steps=300, runs=3)
    assert result.x["u"].shape == (3, 2)
    np.testing.assert_allclose(result.x["u"], 2.0, atol=0.02)
    np.testing.assert_allclose(result.x["v"], 2.0, atol=0.02)
    result.save(tmp_path / "run.npz")
    np.testing.assert_allclose(
        tiebreak.load(tmp_path / "run.npz").history.direction_squared, result.history.direction_squared
    )


def test_solve_takes_an_oracle_of_ones_own():
    data = jnp.linspace(-1.0, 3.0, 101)

    class Sampled:
        """A fixed mini-batch, whatever the schedule says; no values, no exact gradient."""

        def gradient(self, x, key, size):
            return x - jax.random.choice(key, data, (16,)).mean()

    result = solve(lambda x: jnp.sum(x**2), Sampled(), jnp.zeros(3), steps=200, runs=5)
    assert set(result.history.columns) == {"multiplier", "upper_value"}
    assert np.isfinite(result.x).all()


def test_a_run_that_breaks_keeps_its_last_finite_iterate():
    class Breaks:
        def gradient(self, x, key, size):
            return jnp.where(jax.random.uniform(key) < 0.05, jnp.nan, x)

    result = solve(f, Breaks(), jnp.array([1.5, 1.5]), steps=20, runs=8, record=1)
    assert not result.success
    assert np.isfinite(result.x).all()
    assert 0 < len(result.faults) < 8
    for run in range(8):
        ended = result.steps[run]
        assert (result.status[run] is tiebreak.Status.STEPS) == (ended == 20)
        assert np.isfinite(result.history.upper_value[: ended + 1, run]).all()
        assert np.isnan(result.history.upper_value[ended + 1 :, run]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "budget=None and steps=None"),
        ({"steps": 0}, "steps=0"),
        ({"budget": 1}, "budget=1 must be at least 2"),
        ({"steps": 5, "runs": [1, 1]}, "runs="),
        ({"steps": 5, "record": 0}, "record=0"),
        ({"steps": 5, "x0": jnp.array([jnp.nan])}, "x0"),
        ({"steps": 5, "method": "nonsense"}, "method='nonsense'"),
        ({"steps": 5, "method": tiebreak.methods.sdbgd.replace(barrier=lambda k: -k)}, "barrier at step 1"),
    ],
)
def test_solve_names_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        solve(f, g, **{"x0": jnp.array([1.5, 1.5])} | options)
    with pytest.raises(TypeError, match="upper=3"):
        solve(3, g, jnp.zeros(2), steps=1)
    with pytest.raises(ValueError, match="the lower gradient has 1 numbers; x0 has 2"):
        solve(f, type("Wrong", (), {"gradient": lambda self, x, key, size: x[:1]})(), jnp.zeros(2), steps=1)


# --- other processes -------------------------------------------------------------------------------------------------


def run_apart(program, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sharded_arrays_give_the_same_and_stay_sharded():
    program = """
        import jax, jax.numpy as jnp, numpy as np, optax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        from tiebreak.optax import dynamic_barrier

        assert len(jax.devices()) == 8
        mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("rows", "columns"))
        rng = np.random.default_rng(0)
        shapes = {"w": (16, 8), "b": (8,)}
        trees = [{n: jnp.asarray(rng.normal(size=s), jnp.float32) for n, s in shapes.items()} for _ in range(3)]
        sharding = {"w": NamedSharding(mesh, P("rows", "columns")), "b": NamedSharding(mesh, P())}
        optimizer = optax.chain(dynamic_barrier(0.5, estimator="average"), optax.adam(0.1))

        @jax.jit
        def three(params, upper, lower):
            state = optimizer.init(params)
            for _ in range(3):
                updates, state = optimizer.update(upper, state, params, lower_grads=lower)
                params = optax.apply_updates(params, updates)
            return params, state[0].multiplier

        plain, factor = three(*trees)
        shared, same = three(*(jax.device_put(t, sharding) for t in trees))
        np.testing.assert_allclose(factor, same, rtol=1e-5)
        for name in plain:
            np.testing.assert_allclose(plain[name], shared[name], rtol=1e-4, atol=1e-6)
        assert shared["w"].sharding.is_equivalent_to(sharding["w"], 2), shared["w"].sharding
        assert len({s.device for s in shared["w"].addressable_shards}) == 8
    """
    run_apart(program, XLA_FLAGS="--xla_force_host_platform_device_count=8", JAX_PLATFORMS="cpu")


def test_the_core_and_torch_need_no_jax():
    program = """
        import sys
        for name in ("jax", "jaxlib", "optax", "flax"):
            sys.modules[name] = None  # makes every import of it fail
        import tiebreak
        try:
            import torch
        except ImportError:
            pass
        else:
            import tiebreak.torch
        try:
            import tiebreak.optax
        except ImportError:
            print("needs jax")
    """
    assert run_apart(program).strip() == "needs jax"
