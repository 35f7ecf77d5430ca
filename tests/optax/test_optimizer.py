"""The optax transformation: the core's numbers, and the manners of any transformation of optax."""

import io
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_problem import (
    METHODS,
    PAPER,
    Halved,
    by_hand,
    core,
    gradients,
    random_problem,
    trajectory,
)

import optax
import tiebreak
from tiebreak import rules
from tiebreak.optax import (
    dynamic_barrier,
    from_method,
    log,
    measure,
    with_twin,
)
from training import simple_method


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", METHODS)
def test_equals_the_core_step_by_step(name, x64):
    method = METHODS[name]
    expected = core(method, 60)
    x, xs, states = trajectory(from_method(method), 60, jnp.array(PAPER.x0))
    assert xs.dtype == states.fg.dtype == jnp.float64
    np.testing.assert_allclose(xs, expected.history.x[:-1], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(x, expected.x, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        states.multiplier, expected.history.multiplier[:-1], rtol=1e-8, atol=1e-11
    )
    np.testing.assert_array_equal(states.count, np.arange(1, 61))
    if METHODS[name].estimator == tiebreak.Minibatch():
        np.testing.assert_allclose(
            states.gg,
            expected.history.lower_gradient_squared[:-1],
            rtol=1e-8,
            atol=1e-13,
        )


def test_compiles_once_whatever_the_step():
    traces = []
    laws = {
        "barrier": tiebreak.Power(0.5, -0.25),
        "regularizer": lambda k: traces.append(k) or 1.0 / (k + 1),
        "momentum": optax.linear_schedule(1.0, 0.1, 100),
    }
    method = tiebreak.methods.sdbgd.replace(estimator="average", **laws)
    optimizer = from_method(method, optax.cosine_decay_schedule(0.1, 100))
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
    optimizer = from_method("sdbgd")

    def run(key):
        def step(carry, key):
            x, state = carry
            df, dg = gradients(x)
            noise = 0.1 * jax.random.normal(key, (2, 2))
            updates, state = optimizer.update(
                df + noise[0], state, x, lower_grads=dg + noise[1]
            )
            return (optax.apply_updates(x, updates), state), state[0].multiplier

        x = jnp.array([1.5, 1.5])
        (x, _), multipliers = jax.lax.scan(
            step, (x, optimizer.init(x)), jax.random.split(key, 30)
        )
        return x, multipliers

    keys = jax.random.split(jax.random.key(0), 256)
    together, apart = jax.jit(jax.vmap(run))(keys), jax.jit(run)
    for i in range(0, 256, 17):
        for a, b in zip(together, apart(keys[i]), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=2e-4, atol=1e-5)


def test_chains_with_clipping_and_adamw():
    params, grads = random_problem()
    upper, lower = grads[0]
    optimizer = optax.chain(
        dynamic_barrier(method=simple_method(barrier=0.5), normalize=False),
        optax.clip_by_global_norm(1.0),
        optax.adamw(1e-3),
    )
    plain = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    updates, state = jax.jit(optimizer.update)(
        upper, optimizer.init(params), params, lower_grads=lower
    )
    factor = by_hand(upper, lower, 0.5)
    assert float(state[0].multiplier) == pytest.approx(factor, rel=1e-5)
    direction = jax.tree.map(lambda u, v: u + factor * v, upper, lower)
    expected, _ = plain.update(direction, plain.init(params), params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), updates, expected
    )
    assert float(optax.tree.get(state, "multiplier")) == pytest.approx(factor, rel=1e-5)


def labels(params):
    return {"a": "barrier", "b": jax.tree.map(lambda _: "frozen", params["b"])}


@pytest.mark.parametrize("masks_extra", [False, True])
def test_partition_has_a_multiplier_of_its_own(masks_extra):
    params, grads = random_problem()
    upper, lower = grads[0]
    parts = {
        "barrier": optax.chain(
            dynamic_barrier(
                method=simple_method(barrier=0.5, estimator="average"), normalize=False
            ),
            optax.sgd(1.0),
        ),
        "frozen": optax.set_to_zero(),
    }
    optimizer = optax.partition(parts, labels, mask_compatible_extra_args=masks_extra)
    updates, state = optimizer.update(
        upper, optimizer.init(params), params, lower_grads=lower
    )
    factor = by_hand(upper["a"], lower["a"], 0.5)
    np.testing.assert_allclose(
        updates["a"], -(upper["a"] + factor * lower["a"]), rtol=1e-4, atol=1e-5
    )
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(updates["b"]))
    assert float(optax.tree.get(state, "multiplier")) == pytest.approx(factor, rel=1e-4)


def test_partition_behind_the_barrier_shares_the_multiplier():
    params, grads = random_problem()
    upper, lower = grads[0]
    parts = {"barrier": optax.sgd(1.0), "frozen": optax.set_to_zero()}
    optimizer = optax.chain(
        dynamic_barrier(method=simple_method(barrier=0.5), normalize=False),
        optax.partition(parts, labels),
    )
    updates, _ = optimizer.update(
        upper, optimizer.init(params), params, lower_grads=lower
    )
    np.testing.assert_allclose(
        updates["a"],
        -(upper["a"] + by_hand(upper, lower, 0.5) * lower["a"]),
        rtol=1e-4,
        atol=1e-5,
    )


def test_hyperparameters_can_be_injected():
    params, grads = random_problem()
    upper, lower = grads[0]

    def make(barrier):
        return dynamic_barrier(method=simple_method(barrier=lambda k: barrier))

    optimizer = optax.inject_hyperparams(make)(barrier=0.5)
    state = optimizer.init(params)
    for barrier in (0.5, 2.0):
        state.hyperparams["barrier"] = jnp.asarray(barrier)
        _, state = jax.jit(optimizer.update)(upper, state, params, lower_grads=lower)
        assert float(optax.tree.get(state, "multiplier")) == pytest.approx(
            by_hand(upper, lower, barrier), rel=1e-4
        )


def test_what_is_missing_or_does_not_match_is_named():
    params, grads = random_problem()
    upper, lower = grads[0]
    transform = dynamic_barrier(method=simple_method())
    state = transform.init(params)

    def update(lower, **extra):
        return transform.update(upper, state, params, lower_grads=lower, **extra)

    with pytest.raises(TypeError, match="lower_grads=…"):
        transform.update(upper, state, params)
    with pytest.raises(
        ValueError, match=r"lower_grads has no leaf \['b'\]\[1\], which updates has"
    ):
        update({**lower, "b": lower["b"][:1]})
    with pytest.raises(
        ValueError, match=r"lower_grads has a leaf \['c'\], which updates has not"
    ):
        update({**lower, "c": lower["a"]})
    with pytest.raises(
        ValueError,
        match=r"lower_grads\['a'\] has shape \(2, 3\); it must be .*\(4, 3\)",
    ):
        update({**lower, "a": lower["a"][:2]})
    valued = dynamic_barrier(tolerance=0.1, reference="start")
    state = valued.init(params)
    with pytest.raises(TypeError, match="lower_value=…"):
        valued.update(upper, state, params, lower_grads=lower)
    with pytest.raises(
        TypeError,
        match=r"reference_value=….*, the lower loss at state.start on this batch",
    ):
        valued.update(upper, state, params, lower_grads=lower, lower_value=1.0)
    with pytest.raises(ValueError, match=r"lower_value has shape \(2,\)"):
        valued.update(
            upper,
            state,
            params,
            lower_grads=lower,
            lower_value=jnp.ones(2),
            reference_value=1.0,
        )
    fixed = dynamic_barrier(tolerance=0.1, reference=1.0)
    with pytest.raises(TypeError, match="reference_value=… has no effect"):
        fixed.update(
            upper,
            fixed.init(params),
            params,
            lower_grads=lower,
            lower_value=1.0,
            reference_value=1.0,
        )
    by_value = dynamic_barrier(method=simple_method("by_value", others={"target": 0.1}))
    with pytest.raises(TypeError, match="the rule 'simple' needs the lower loss"):
        by_value.update(upper, by_value.init(params), params, lower_grads=lower)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing says how to choose the multiplier: tolerance=… with reference=…"),
        ({"method": "nonsense"}, "method='nonsense' must be a Method"),
        (
            {"method": "storm_sdbgd"},
            r"Storm\(.*tiebreak.minimize.*Minibatch\(\) and Average\(…\)",
        ),
        (
            {"method": "sdbgd", "reference": 0.5},
            "reference=0.5 has no effect without tolerance=",
        ),
        (
            {"method": "auto"},
            "'auto' chooses its batches .*tiebreak.minimize, which takes every method",
        ),
        ({"tolerance": "much", "reference": 1.0}, "tolerance='much'"),
        ({"tolerance": 0, "reference": 1.0}, "tolerance=0 must be a number > 0"),
        ({"tolerance": "2%", "reference": 0.0}, "tolerance='2%' of reference=0.0 is 0"),
        (
            {"tolerance": 0.1},
            r"tolerance=0.1 needs reference=.* For a twin: tiebreak.optax.with_twin",
        ),
        (
            {"tolerance": 0.1, "reference": 1.0, "method": "sdbgd"},
            "method='sdbgd' has no effect with tolerance=0.1",
        ),
        (
            {"tolerance": 0.1, "method": "sdbgd"},
            "method='sdbgd' has no effect with tolerance=0.1",
        ),
        (
            {"tolerance": 0.1, "reference": 1.0, "normalize": True},
            "normalize=True has no effect",
        ),
        ({"tolerance": 0.1, "reference": float("nan")}, "reference=nan"),
        ({"tolerance": 0.1, "reference": "best"}, "reference='best' must be a number"),
        (
            {"tolerance": 0.1, "reference": "twin"},
            r"tiebreak.optax.with_twin\(optimizer, tolerance=…\)",
        ),
        (
            {"tolerance": 0.1, "reference": np.ones((2, 2))},
            r"reference has shape \(2, 2\)",
        ),
        ({"tolerance": 0.1, "reference": np.ones(0)}, "reference has no losses"),
    ],
)
def test_bad_options_are_named_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        dynamic_barrier(**options)


def test_a_twin_needs_an_optimizer():
    with pytest.raises(
        TypeError,
        match=r"base=0\.001 must be an optimizer of optax, such as optax\.adamw\(1e-3\)",
    ):
        with_twin(1e-3, tolerance=0.1)


def test_laws_and_rules_that_do_not_trace_say_so():
    def step(transform):
        jax.jit(lambda x: transform.update(x, transform.init(x), lower_grads=x))(
            jnp.ones(2)
        )

    with pytest.raises(jax.errors.ConcretizationTypeError) as caught:
        step(
            dynamic_barrier(
                method=simple_method(barrier=lambda k: 1.0 if k < 3 else 0.5)
            )
        )
    assert any(
        "in barrier, a function of the step" in note for note in caught.value.__notes__
    )
    with pytest.raises(jax.errors.ConcretizationTypeError) as caught:
        step(dynamic_barrier(method=simple_method(lambda fg, gg: max(fg, 0.0))))
    assert any("in the rule" in note for note in caught.value.__notes__)

    class Stubborn(tiebreak.Minibatch):
        def update(self, level, fresh, before, memory, parameters):
            return (fresh if float(fresh[0]) > 0 else -fresh), memory

    with pytest.raises(jax.errors.ConcretizationTypeError) as caught:
        step(
            dynamic_barrier(method=tiebreak.methods.sdbgd.replace(estimator=Stubborn()))
        )
    assert any(
        "in the estimator Stubborn. JAX traces it" in note
        for note in caught.value.__notes__
    )
    with pytest.raises(ValueError, match=r"barrier at a step has shape \(2,\)"):
        step(dynamic_barrier(method=simple_method(barrier=lambda k: jnp.ones(2))))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize("estimator", ["minibatch", "average"])
def test_dtypes_are_kept_and_products_are_wide(dtype, estimator):
    n = 3000  # in bfloat16 a sum of ones stops growing at 256
    params = {"w": jnp.ones(n, dtype), "scale": jnp.ones((), jnp.float32)}
    transform = dynamic_barrier(method=simple_method(estimator=estimator, barrier=0.5))
    updates, state = transform.update(
        params, transform.init(params), params, lower_grads=params
    )
    assert jax.tree.map(lambda p: p.dtype, updates) == jax.tree.map(
        lambda p: p.dtype, params
    )
    assert state.gg.dtype == jnp.float32
    assert float(state.gg) == pytest.approx(n + 1, rel=1e-6)
    twice = jax.lax.scan(
        lambda s, _: (transform.update(params, s, params, lower_grads=params)[1], None),
        state,
        length=2,
    )
    assert jax.tree.structure(twice[0]) == jax.tree.structure(state)


def test_complex_leaves_whole_numbers_and_empty_trees():
    params = {
        "z": jnp.array([1 + 2j, 3 - 1j], jnp.complex64),
        "n": jnp.arange(3),
        "none": None,
    }
    transform = dynamic_barrier(method=simple_method(estimator="average", barrier=0.5))
    lower = {
        "z": jnp.array([2j, 1 + 0j], jnp.complex64),
        "n": jnp.arange(3),
        "none": None,
    }
    updates, state = transform.update(
        params, transform.init(params), params, lower_grads=lower
    )
    assert (float(state.fg), float(state.gg), float(state.ff)) == pytest.approx(
        (7.0, 5.0, 15.0)
    )
    assert updates["z"].dtype == jnp.complex64
    np.testing.assert_array_equal(updates["n"], params["n"])
    transform = dynamic_barrier(method=simple_method())
    updates, state = transform.update({}, transform.init({}), {}, lower_grads={})
    assert updates == {}
    assert float(state.multiplier) == 0


BAD = {
    "upper gradient": {"updates": jnp.array([jnp.inf, 1.0])},
    "lower gradient": {"lower_grads": jnp.array([jnp.nan, 1.0])},
    "lower loss": {"lower_value": jnp.nan},
    "reference": {"reference_value": jnp.inf},
}
KINDS = {
    "rule": {"method": simple_method(barrier=0.5)},
    "average": {"method": simple_method(estimator="average", barrier=0.5)},
    "average in the direction": {
        "method": simple_method(estimator=tiebreak.Average(0.5), barrier=0.5)
    },
    "own": {"method": simple_method(estimator=Halved(), barrier=0.5)},
    "own rule": {"method": simple_method(lambda fg, gg: 1.0)},
    "tolerance": {"tolerance": 0.1, "reference": "given"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", BAD)
def test_what_is_not_finite_makes_the_direction_nan_and_leaves_the_memory_alone(
    kind, what
):
    x, transform = jnp.ones(2), dynamic_barrier(**KINDS[kind])
    usual = {"lower_grads": -x, "lower_value": 1.0}
    usual |= {"reference_value": 1.0} if "tolerance" in kind else {}
    used = what not in ("lower loss", "reference") or "tolerance" in kind
    _, state = transform.update(x, transform.init(x), x, **usual)
    bad = usual | {name: value for name, value in BAD[what].items() if name in usual}
    direction, after = transform.update(
        BAD[what].get("updates", x), state, x + 1, **bad
    )
    assert bool(after.skipped) == used
    if used:
        assert np.isnan(direction).all()
        for name in ("memory", "estimates"):
            jax.tree.map(
                np.testing.assert_array_equal,
                getattr(after, name),
                getattr(state, name),
            )
    direction, _ = transform.update(x, after, x, **usual)
    assert np.isfinite(direction).all()


def test_a_multiplier_that_is_not_finite_is_no_step():
    x, transform = (
        jnp.ones(2),
        dynamic_barrier(method=simple_method(lambda fg, gg: jnp.nan)),
    )
    direction, state = transform.update(x, transform.init(x), lower_grads=x)
    assert np.isnan(direction).all()
    assert log(state)["skipped"]


def test_optax_can_skip_such_a_step():
    optimizer = optax.chain(
        dynamic_barrier(method=simple_method(barrier=0.5)),
        optax.apply_if_finite(optax.adam(0.1), 3),
    )
    x = jnp.ones(2)
    updates, _ = optimizer.update(x, optimizer.init(x), x, lower_grads=x * jnp.nan)
    np.testing.assert_array_equal(updates, 0)


CHECKPOINTED = [
    {"method": simple_method(estimator="average", barrier=0.5)},
    {"tolerance": "2%", "reference": 1.0},
]


@pytest.mark.parametrize("options", CHECKPOINTED)
def test_states_survive_a_checkpoint(options):
    params, grads = random_problem()
    optimizer = optax.chain(dynamic_barrier(**options), optax.adamw(1e-2))

    update = jax.jit(optimizer.update)

    def train(params, state, batches):
        for upper, lower in batches:
            updates, state = update(
                upper, state, params, lower_grads=lower, lower_value=1.0
            )
            params = optax.apply_updates(params, updates)
        return params, state

    whole, _ = train(params, optimizer.init(params), grads)
    half, state = train(params, optimizer.init(params), grads[:6])
    file = io.BytesIO()
    np.savez(file, *jax.tree.leaves(state))
    file.seek(0)
    saved = np.load(file)
    restored = jax.tree.unflatten(
        jax.tree.structure(optimizer.init(params)),
        [jnp.asarray(saved[n]) for n in saved.files],
    )
    resumed, _ = train(half, restored, grads[6:])
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)


def test_states_survive_flax_serialization():
    serialization = pytest.importorskip("flax.serialization")
    params, grads = random_problem()
    for transform in (
        *(dynamic_barrier(**options) for options in CHECKPOINTED),
        from_method("sdbgd"),
    ):
        upper, lower = grads[0]
        _, state = transform.update(
            upper, transform.init(params), params, lower_grads=lower, lower_value=1.0
        )
        restored = serialization.from_bytes(
            transform.init(params), serialization.to_bytes(state)
        )
        jax.tree.map(np.testing.assert_array_equal, restored, state)


def test_measure_gives_what_the_state_asks_for():
    def upper(x, batch):
        return jnp.sum(batch * x)

    def lower(x, batch):
        return jnp.sum(batch * x**2)

    evaluate, x, batch = (
        measure(upper, lower),
        jnp.array([1.0, 2.0]),
        jnp.array([1.0, 3.0]),
    )
    optimizer = optax.chain(
        optax.identity(),
        dynamic_barrier(tolerance=1.0, reference="start"),
        optax.sgd(1.0),
    )
    state = optimizer.init(x)
    grads, measured = evaluate(2 * x, state, batch)
    np.testing.assert_array_equal(grads, batch)
    expected = {
        "upper_value": 14.0,
        "lower_value": 52.0,
        "reference_value": 13.0,
        "lower_grads": 4 * batch * x,
    }
    assert measured.keys() == expected.keys()
    jax.tree.map(np.testing.assert_allclose, measured, expected)
    _, state = optimizer.update(grads, state, 2 * x, **measured)
    assert log(state)["excess"] == 39.0
    for name, value in log(state).items():
        assert optax.tree.get(state, name) == value
    np.testing.assert_array_equal(state[1].start, x)
    with pytest.raises(ValueError, match="the state has 0 barriers"):
        log(optax.sgd(0.1).init(x))
    with pytest.raises(
        TypeError,
        match=r'outside of jit, scan and vmap; there, optax.tree.get\(state, "multiplier"\)',
    ):
        jax.jit(log)(state)
    with pytest.raises(
        TypeError,
        match=r"evaluate\(params, state, \*args\); got a \w+ without a barrier in it",
    ):
        evaluate(x, batch)
    more = measure(
        lambda x, b: (upper(x, b), "f"), lambda x, b: (lower(x, b), x), has_aux=True
    )
    others, with_aux, aux = more(2 * x, optimizer.init(x), batch)
    np.testing.assert_array_equal(others, grads)
    jax.tree.map(np.testing.assert_array_equal, with_aux, measured)
    assert aux[0] == "f"
    np.testing.assert_array_equal(aux[1], 2 * x)
    with pytest.raises(ValueError, match="averages the upper gradients alone"):
        evaluate(x, optax.MultiSteps(from_method("sdbgd", 0.1), 2).init(x), batch)
    behind = with_twin(
        optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation(), tolerance=1.0
    )
    assert "reference_grads" in evaluate(x, behind.init(x), batch)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_states_may_be_donated(kind):
    """No two leaves of a state share a buffer, and none is the user's: the parameters of the last step stay."""
    x, transform = jnp.ones(2), dynamic_barrier(**KINDS[kind])
    extra = {"lower_grads": -x, "lower_value": 1.0}
    extra |= {"reference_value": 1.0} if "tolerance" in kind else {}
    state = transform.init(x)
    buffers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves((x, state))]
    assert len(set(buffers)) == len(buffers)
    step = jax.jit(lambda u, s, p, e: transform.update(u, s, p, **e), donate_argnums=1)
    params = [x]
    for _ in range(3):
        updates, state = step(x, state, params[-1], extra)
        params.append(params[-1] - 0.1 * updates)
    assert np.isfinite(
        [np.asarray(p) for p in params]
    ).all()  # none of them was donated
    assert step._cache_size() == 1


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
        from tiebreak import methods
        from tiebreak.optax import dynamic_barrier

        assert len(jax.devices()) == 8
        mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("rows", "columns"))
        rng = np.random.default_rng(0)
        shapes = {"w": (16, 8), "b": (8,)}
        trees = [{n: jnp.asarray(rng.normal(size=s), jnp.float32) for n, s in shapes.items()} for _ in range(3)]
        sharding = {"w": NamedSharding(mesh, P("rows", "columns")), "b": NamedSharding(mesh, P())}
        method = methods.sdbgd.replace(barrier=0.5, regularizer=1e-8, estimator="average", momentum=0.1)
        optimizer = optax.chain(dynamic_barrier(method=method), optax.adam(0.1))

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
    run_apart(
        program,
        XLA_FLAGS="--xla_force_host_platform_device_count=8",
        JAX_PLATFORMS="cpu",
    )


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
