"""The tolerance in JAX, any scale of the gradients, and equality with torch, step by step."""

import re
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax_problem import Halved, evaluate, f, g

import optax
import tiebreak
from tiebreak import rules
from tiebreak.optax import dynamic_barrier, from_method, log, measure, twin, with_twin
from training import simple_method

ROWS = np.random.default_rng(0).normal(size=(40, 16, 3))  # mini-batches
TARGETS = ROWS @ np.array([1.0, -2.0, 0.5]) + 0.1 * np.random.default_rng(1).normal(
    size=(40, 16)
)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def fit(params, batch):
    rows, targets = batch
    return jnp.mean((rows @ params["w"] + params["b"] - targets) ** 2)


def size(params, batch):
    return jnp.sum(params["w"] ** 2) + 0.1 * jnp.sum(jnp.abs(params["w"]))


def start():
    return {"b": jnp.zeros(()), "w": jnp.array([0.3, 0.2, -0.1])}


OPTIONS = {
    "rule": {"method": simple_method(barrier=0.7), "normalize": False},
    "rule, normalized": {"method": simple_method(barrier=0.7)},
    "penalized": {
        "method": simple_method("penalized", barrier=0.7, regularizer=0.01, penalty=2.0)
    },
    "by value": {
        "method": simple_method("by_value", others={"target": 0.1, "rate": 3.0})
    },
    "a law": {
        "method": simple_method(
            barrier=tiebreak.Power(1.0, -0.3), regularizer=tiebreak.Power(1.0, -1.0)
        )
    },
    "average": {
        "method": simple_method(estimator="average", barrier=0.7, momentum=0.2)
    },
    "average in the direction": {
        "method": simple_method(estimator=tiebreak.Average(0.2), barrier=0.7)
    },
    "own estimator": {"method": simple_method(estimator=Halved(), barrier=0.7)},
    "method": {"method": "pr_sdbpg"},
    "tolerance, number": {"tolerance": 0.1, "reference": 0.05},
    "tolerance, share": {"tolerance": "50%", "reference": 0.05},
    "tolerance, function": {"tolerance": 0.1, "reference": lambda k: 1 / (k + 1.0)},
    "tolerance, start": {"tolerance": 0.1, "reference": "start"},
    "tolerance, given": {"tolerance": 0.1, "reference": "given"},
    "tolerance, twin": {"tolerance": 0.1, "reference": "twin"},
    "tolerance, share of the twin": {"tolerance": "20%", "reference": "twin"},
}


def rate_at(step):
    """A schedule that both sides can have."""
    return 0.1 * 0.9**step


def jax_side(options, steps, rate=0.1):
    """Parameters and log of every step."""
    if options.get("reference") == "twin":
        optimizer = with_twin(
            optax.sgd(rate, momentum=0.5), tolerance=options["tolerance"]
        )
    else:
        optimizer = optax.chain(
            dynamic_barrier(**options), optax.sgd(rate, momentum=0.5)
        )
    both_losses = measure(size, fit)

    @jax.jit
    def step(params, state, batch, told):
        grads, measured = both_losses(params, state, batch)
        updates, state = optimizer.update(grads, state, params, **measured | told)
        return optax.apply_updates(params, updates), state

    params = start()
    state = optimizer.init(params)
    for k in range(steps):
        told = (
            {"reference_value": jnp.array(0.3)}
            if options.get("reference") == "given"
            else {}
        )
        params, state = step(params, state, (ROWS[k], TARGETS[k]), told)
        yield params, log(state)
    assert step._cache_size() == 1


def torch_side(options, steps, rate=0.1):
    torch = pytest.importorskip("torch")
    from tiebreak.torch import DynamicBarrier

    b, w = (
        torch.nn.Parameter(torch.tensor(np.asarray(leaf)))
        for leaf in jax.tree.leaves(start())
    )
    base, model = (
        torch.optim.SGD([b, w], lr=0.1, momentum=0.5),
        torch.nn.ParameterList([b, w]),
    )
    opt = DynamicBarrier(base, model=model, **options)
    for k in range(steps):
        rows, targets = torch.tensor(ROWS[k]), torch.tensor(TARGETS[k])
        opt.param_groups[0]["lr"] = rate(k) if callable(rate) else rate

        def lower(rows=rows, targets=targets):
            return (rows @ w + b - targets).square().mean()

        def upper():
            return w.square().sum() + 0.1 * w.abs().sum()

        if options.get("reference") == "given":
            loss = lower()
            with opt.lower(loss, reference=0.3):
                loss.backward()
            with opt.upper():
                upper().backward()
            opt.step()
        else:
            opt.step(upper=upper, lower=lower)
        returns = (
            {"returns": opt.twin_returns} if options.get("reference") == "twin" else {}
        )
        yield (
            {"b": b.detach().numpy().copy(), "w": w.detach().numpy().copy()},
            opt.log() | returns,
        )


FALLING = (
    "tolerance, number",
    "tolerance, given",
    "tolerance, twin",
)  # with a schedule
ROWS_OF_OPTIONS = [(name, rate_at if name in FALLING else 0.1) for name in OPTIONS]


@pytest.mark.parametrize(("name", "rate"), ROWS_OF_OPTIONS)
def test_equals_the_torch_optimizer_step_by_step(name, rate, x64):
    pairs = zip(
        jax_side(OPTIONS[name], 40, rate),
        torch_side(OPTIONS[name], 40, rate),
        strict=True,
    )
    for (params, here), (expected, there) in pairs:
        for leaf in ("b", "w"):
            np.testing.assert_allclose(
                params[leaf], expected[leaf], rtol=1e-9, atol=1e-12
            )
        for column, value in here.items():
            assert value == pytest.approx(there[column], rel=1e-8, abs=1e-11), column


# --- in closed loop --------------------------------------------------------------------------------------------------


def descend(optimizer, steps, x, upper_scale=1.0, lower_scale=1.0, **told):
    """The last iterate, the state and all lower losses, on the paper's problem with rescaled losses."""
    both_losses = measure(lambda x: upper_scale * f(x), lambda x: lower_scale * g(x))

    def step(carry, _):
        x, state = carry
        grads, measured = both_losses(x, state)
        updates, state = optimizer.update(grads, state, x, **measured | told)
        return (optax.apply_updates(x, updates), state), measured["lower_value"]

    (x, state), values = jax.jit(
        lambda: jax.lax.scan(step, (x, optimizer.init(x)), length=steps)
    )()
    return x, state, values


def test_a_tolerance_is_used_and_kept():
    """Of a number, of the starting point and of a twin: in the end the excess is near 1, and not above."""
    near = jnp.array([0.01, 0.0])  # g is least, 0, at the origin
    optimizers = {
        "number": optax.chain(
            dynamic_barrier(tolerance=0.05, reference=0.0), optax.sgd(0.003)
        ),
        "start": optax.chain(
            dynamic_barrier(tolerance=0.05, reference="start"), optax.sgd(0.003)
        ),
        "twin": with_twin(optax.sgd(0.003), tolerance=0.05),
    }
    for name, optimizer in optimizers.items():
        _, state, values = descend(optimizer, 4000, near)
        assert 0.5 * 0.05 < values[-500:].mean() < 0.05 * 1.02, name
        assert 0.5 < log(state)["excess"] <= 1.02, name


def test_units_of_the_losses_change_nothing():
    """Multiplying either loss by 2^±100 changes no iterate: the direction has g's unit, and Adam forgets it."""

    @jax.jit
    def run(upper_scale, lower_scale):
        barrier = dynamic_barrier(
            tolerance=0.05 * lower_scale, reference=0.02 * lower_scale
        )
        adam = optax.chain(optax.scale(1 / lower_scale), optax.adam(0.01))
        return descend(
            optax.chain(barrier, adam),
            50,
            jnp.array([1.5, 1.5]),
            upper_scale,
            lower_scale,
        )[0]

    expected = run(1.0, 1.0)
    for upper_scale in (2.0**-100, 1.0, 2.0**100):
        for lower_scale in (2.0**-100, 1.0, 2.0**100):
            np.testing.assert_allclose(
                run(upper_scale, lower_scale), expected, rtol=1e-5
            )


def test_a_recorded_run_is_a_reference(tmp_path):
    path = tmp_path / "fit.csv"
    path.write_text("step,lower_loss,other\n0,2.0,1\n1,,1\n2,1.0,1\n4,0.5,1\n")
    x = jnp.ones(2)
    for reference in (str(path), jnp.array([2.0, 2.0, 1.0, 1.0, 0.5])):
        transform = dynamic_barrier(tolerance=1.0, reference=reference)
        update = jax.jit(
            lambda x, s, t=transform: t.update(x, s, lower_grads=x, lower_value=3.0)[1]
        )
        state, seen = transform.init(x), []
        for k in range(7):
            after = update(x, state._replace(count=jnp.array(k, jnp.int32)))
            seen.append(log(after)["reference"])
        assert seen == [2.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.5]
        assert update._cache_size() == 1
    path.write_text("step,loss\n0,2.0\n")
    with pytest.raises(ValueError, match="must have the columns step and lower_loss"):
        dynamic_barrier(tolerance=1.0, reference=path)


def test_the_tolerance_may_change_without_compiling_again():
    x = jnp.ones(2)
    optimizer = optax.inject_hyperparams(dynamic_barrier)(tolerance=0.5, reference=1.0)
    update = jax.jit(
        lambda x, s: optimizer.update(x, s, lower_grads=x, lower_value=2.0)[1]
    )
    first = optimizer.init(x)
    for tolerance in (0.5, 0.25):
        first.hyperparams["tolerance"] = jnp.asarray(tolerance)
        assert log(update(x, first))["excess"] == 1 / tolerance
    assert update._cache_size() == 1


def test_a_twin_is_what_lower_only_training_gives():
    """Also where Adam and a schedule train it, and where a step of the model is skipped: then its own is, too."""
    base = optax.adam(optax.cosine_decay_schedule(0.1, 50))
    optimizer, losses = with_twin(base, tolerance=0.1), jax.jit(measure(size, fit))
    params, alone = start(), start()
    state, base_state = optimizer.init(params), base.init(alone)
    step, step_alone, fit_gradient = (
        jax.jit(optimizer.update),
        jax.jit(base.update),
        jax.jit(jax.grad(fit)),
    )
    for k in range(20):
        batch = (ROWS[k], TARGETS[k])
        grads, measured = losses(params, state, batch)
        bad = k in (5, 11)
        measured["lower_value"] = jnp.nan if k == 5 else measured["lower_value"]
        measured["reference_grads"] = jax.tree.map(
            lambda v, k=k: v * jnp.nan if k == 11 else v, measured["reference_grads"]
        )
        updates, new = step(grads, state, params, **measured)
        assert log(new)["skipped"] == bad
        if bad:
            assert np.isnan(updates["w"]).all()
            jax.tree.map(np.testing.assert_array_equal, new[2:], state[2:])
            continue
        changes, base_state = step_alone(fit_gradient(alone, batch), base_state, alone)
        alone, params, state = (
            optax.apply_updates(alone, changes),
            optax.apply_updates(params, updates),
            new,
        )
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
            state.reference_params,
            alone,
        )
    with pytest.raises(
        TypeError, match=r"update\(…, reference_grads=…, reference_value=…\)"
    ):
        optimizer.update(grads, state, params, lower_grads=grads, lower_value=1.0)
    with pytest.raises(ValueError, match=r"reference=1.0 has no effect"):
        with_twin(base, tolerance=0.1, reference=1.0)
    buffers = [
        leaf.unsafe_buffer_pointer()
        for leaf in jax.tree.leaves((start(), optimizer.init(start())))
    ]
    assert len(set(buffers)) == len(buffers)


def test_a_model_beyond_repair_is_set_to_its_twin():
    """g = c (x − 1)², level below x = ½, and c = 0 for 300 steps, in which f = x² leads to x = 0 for nothing: then no
    gradient of g leads back. The twin comes to 1, and so does the model from the return on, also in torch."""
    torch = pytest.importorskip("torch")
    from tiebreak.torch import DynamicBarrier

    optimizer = with_twin(optax.sgd(0.05, momentum=0.5), tolerance=0.02)
    losses = measure(
        lambda x, c: jnp.sum(x**2),
        lambda x, c: c * jnp.sum((jnp.maximum(x, 0.5) - 1) ** 2),
    )
    factors = np.repeat([0.0, 0.2], [300, 400]).astype(np.float32)

    def step(carry, c):
        x, state = carry
        grads, measured = losses(x, state, c)
        updates, state = optimizer.update(grads, state, x, **measured)
        x = optax.apply_updates(x, updates)
        return (x, state), (x[0], state.returns, state.reference_params[0])

    x = jnp.array([1.2])
    (x, state), (path, returns, twin) = jax.lax.scan(
        step, (x, optimizer.init(x)), jnp.asarray(factors)
    )
    when = int(np.argmax(returns))
    assert path[299] < 0.3
    assert int(state.returns) == 1 == log(state)["returns"]
    assert path[when - 1] < 0.3
    np.testing.assert_allclose(path[when], twin[when], rtol=1e-6)
    assert path[-1] > 0.8
    assert log(state)["excess"] <= 1

    theirs = torch.nn.Parameter(torch.tensor([1.2]))
    base, model = (
        torch.optim.SGD([theirs], lr=0.05, momentum=0.5),
        torch.nn.ParameterList([theirs]),
    )
    opt = DynamicBarrier(base, tolerance=0.02, reference="twin", model=model)

    def lower(c):
        return c * (theirs.clamp(min=0.5) - 1).square().sum()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for k, c in enumerate(factors.tolist()):
            opt.step(upper=lambda: theirs.square().sum(), lower=lambda c=c: lower(c))
            assert abs(theirs.item() - float(path[k])) < 1e-3
    messages = "\n".join(str(warning.message) for warning in said)
    assert re.search(
        f"step {when}: the lower loss is about .* set to its twin", messages
    )
    assert opt.twin_returns == 1
    with pytest.raises(
        TypeError, match=r"a twin needs update\(upper_grads, state, params"
    ):
        optimizer.update(
            x,
            state,
            lower_grads=x,
            lower_value=1.0,
            reference_grads=x,
            reference_value=1.0,
        )


def test_a_return_in_half_precision_and_with_any_state(monkeypatch):
    """The update is wide enough to reach the twin from far away; a leaf that the lower loss does not reach stays.

    A base may keep Python's numbers and keys for random numbers.
    """
    monkeypatch.setattr(twin, "needs_return", lambda memory: memory.steps == 2)

    def base(key):
        def update(grads, state, params=None):
            return jax.tree.map(lambda g: -0.25 * g, grads), (state[0] + 1, state[1])

        return optax.GradientTransformation(lambda params: (0, key), update)

    optimizer = with_twin(base(jax.random.key(0)), tolerance=0.1)
    params = {
        "model": jnp.array([0.01, 300.0], jnp.bfloat16),
        "head": jnp.array([2.0], jnp.bfloat16),
    }
    state = optimizer.init(params)
    params["model"] = jnp.array([100.0, 1.0], jnp.bfloat16)  # far from the twin
    none = {"model": jnp.zeros(2, jnp.bfloat16), "head": jnp.zeros(1, jnp.bfloat16)}
    lower = none | {"model": jnp.full(2, 0.01, jnp.bfloat16)}
    update = jax.jit(optimizer.update)
    for _ in range(2):
        told = {
            "lower_grads": lower,
            "lower_value": 2.0,
            "reference_grads": lower,
            "reference_value": 1.0,
        }
        updates, state = update(none, state, params, **told)
        params = optax.apply_updates(params, updates)
    assert int(state.returns) == 1
    assert params["model"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(params["model"], state.reference_params["model"])
    assert float(params["head"][0]) == 2.0


@pytest.mark.parametrize("inside", [False, True], ids=["whole", "in a chain"])
def test_a_rate_that_is_set_reaches_the_twin_and_stays_at_a_return(inside, monkeypatch):
    """g = x²: the twin's x is 1 − 2η of what it was, with the η that was set in the model's state alone."""
    monkeypatch.setattr(twin, "needs_return", lambda memory: memory.steps == 3)
    base = optax.inject_hyperparams(optax.sgd)(learning_rate=0.25)
    optimizer = with_twin(
        optax.chain(optax.identity(), base) if inside else base, tolerance=0.1
    )
    losses, x = (
        measure(lambda x: jnp.sum((x - 1) ** 2), lambda x: jnp.sum(x**2)),
        jnp.ones(1),
    )
    state = optimizer.init(x)

    @jax.jit
    def step(x, state):
        grads, measured = losses(x, state)
        updates, state = optimizer.update(grads, state, x, **measured)
        return optax.apply_updates(x, updates), state

    x, state = step(x, state)
    np.testing.assert_allclose(state.reference_params, 0.5)
    (state.base[1] if inside else state.base).hyperparams["learning_rate"] = (
        jnp.asarray(0.1)
    )
    for expected in (0.4, 0.32):
        x, state = step(x, state)
        np.testing.assert_allclose(state.reference_params, expected, rtol=1e-6)
    assert int(state.returns) == 1
    for kept in (state.base, state.reference_base):
        assert float(
            (kept[1] if inside else kept).hyperparams["learning_rate"]
        ) == pytest.approx(0.1)


@pytest.mark.long
def test_seeds_run_side_by_side():
    """A vmap over batches gives what single runs give: the tolerance, and a twin for each."""
    optimizer, losses = with_twin(optax.sgd(0.05), tolerance=0.1), measure(size, fit)

    def run(order):
        def step(carry, k):
            params, state = carry
            grads, measured = losses(
                params, state, (jnp.asarray(ROWS)[k], jnp.asarray(TARGETS)[k])
            )
            updates, state = optimizer.update(grads, state, params, **measured)
            return (optax.apply_updates(params, updates), state), state.barrier.reading

        (params, _), readings = jax.lax.scan(
            step, (start(), optimizer.init(start())), order
        )
        return params, readings

    orders = jax.vmap(lambda key: jax.random.permutation(key, 40))(
        jax.random.split(jax.random.key(0), 5)
    )
    together, apart = jax.jit(jax.vmap(run))(orders), jax.jit(run)
    for i in range(5):
        for a, b in zip(
            jax.tree.leaves(together), jax.tree.leaves(apart(orders[i])), strict=True
        ):
            np.testing.assert_allclose(a[i], b, rtol=2e-3, atol=1e-4)


# --- numbers ---------------------------------------------------------------------------------------------------------

SCALES = [1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e20, 1e30]
vectors = st.lists(
    st.floats(-1, 1, width=32).filter(lambda v: abs(v) > 1e-3), min_size=3, max_size=3
)


@settings(max_examples=100, deadline=None)
@given(
    vectors,
    vectors,
    st.sampled_from(SCALES),
    st.sampled_from(SCALES),
    st.sampled_from(
        ["sdbgd", "dbgd", "sdbpg", "penalized", "constant", "by_value", "least"]
    ),
    st.sampled_from([0.0, 1e-36, 1e-12, 1e-8, 1.0]),
)
def test_the_rules_see_gradients_of_any_scale(
    u, v, upper_scale, lower_scale, rule, regularizer
):
    """λ in float32 is λ of the same numbers in float64, wherever float32 can hold it."""
    u, v = (
        np.float32(upper_scale) * np.float32(u),
        np.float32(lower_scale) * np.float32(v),
    )
    a, b = u.astype(np.float64), v.astype(np.float64)
    loss = float(np.float32(np.clip(upper_scale * lower_scale, 1e-30, 1e30)))
    laws = {"barrier": 0.5, "regularizer": regularizer, "penalty": 4.0}
    asked = tiebreak.methods.asked(rules.RULES[rule])
    named = {
        name: float(np.float32(value)) for name, value in laws.items() if name in asked
    }
    others = {"target": loss / 2} if "target" in asked else {}
    given = named | others | ({"lower_value": loss} if "lower_value" in asked else {})
    with np.errstate(all="ignore"):
        expected = float(rules.RULES[rule](a @ b, b @ b, **given))
    transform = dynamic_barrier(
        method=simple_method(rule, others=others, **named), normalize=False
    )
    extra = {"lower_value": np.float32(loss)} if "lower_value" in asked else {}
    direction, state = transform.update(
        jnp.array(u), transform.init(jnp.array(u)), lower_grads=jnp.array(v), **extra
    )
    # What cancels in β gg − fg is lost in any arithmetic of that width.
    numerator = max(abs(a @ b), 0.5 * (b @ b), 1e-30 * np.sqrt((a @ a) * (b @ b)))
    slack = max(
        named.get("regularizer", 0.0),
        1 / named["penalty"] if "penalty" in named else 0.0,
    )
    error = 1e-5 * (abs(expected) + numerator / (b @ b + slack))
    if error > 1e-36 and abs(expected) < 1e36:
        assert float(state.multiplier) == pytest.approx(expected, rel=1e-4, abs=error)
        assert np.isfinite(direction).all()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("regularizer", [0.0, 1e-36])
def test_the_rules_see_gradients_of_any_scale_when_compiled(scale, regularizer):
    """XLA rewrites quotients of quotients, which may overflow then."""
    u, v = (
        jnp.array(a, jnp.float32) * jnp.float32(scale)
        for a in ([1.0, -2.0, 0.5], [0.3, 1.0, -1.0])
    )
    transform = dynamic_barrier(
        method=simple_method(barrier=3.0, regularizer=regularizer), normalize=False
    )
    state = jax.jit(
        lambda u, v: transform.update(u, transform.init(u), u, lower_grads=v)[1]
    )(u, v)
    a, b = (np.float64(np.asarray(w)) for w in (u, v))
    assert float(state.multiplier) == pytest.approx(
        rules.sdbgd(a @ b, b @ b, 3.0, regularizer), rel=1e-5
    )


@pytest.mark.parametrize("scale", SCALES)
def test_a_rule_of_ones_own_never_sees_zero_where_the_gradient_is_not(scale):
    v = jnp.array([scale, scale], jnp.float32)
    transform = dynamic_barrier(
        method=simple_method(lambda fg, gg: jnp.where(gg > 0, 1.0, 7.0))
    )
    for lower, expected in ((v, 1.0), (0 * v, 7.0)):
        _, state = transform.update(v, transform.init(v), lower_grads=lower)
        assert bool(state.skipped) == (
            scale > 1e19 and expected == 1
        )  # there gg is infinite
        if not state.skipped:
            assert float(state.multiplier) == expected


@pytest.mark.skipif(
    jax.default_backend() != "cpu",
    reason="a GPU sums in another order in another program",
)
def test_ordinary_gradients_keep_their_bits():
    """The look at the scale changes nothing where none is needed."""
    key = jax.random.key(0)
    u, v = jax.random.normal(key, (2, 1000))
    _, state = (t := dynamic_barrier(method=simple_method(barrier=0.5))).update(
        u, t.init(u), lower_grads=v
    )
    for found, (a, b) in zip(
        (state.fg, state.gg, state.ff), ((u, v), (v, v), (u, u)), strict=True
    ):
        assert float(found) == float(jax.jit(lambda a, b: jnp.sum(a * b))(a, b))


MODES = {
    "sdbgd": {"method": simple_method(barrier=0.5)},
    "dbgd": {"method": simple_method("dbgd", barrier=0.5)},
    "average": {"method": simple_method(estimator="average", barrier=0.5)},
    "tolerance": {"tolerance": 0.1, "reference": 0.5},
    "share": {"tolerance": "10%", "reference": "given"},
}


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(
            mode, marks=[pytest.mark.long] if "tolerance" in MODES[mode] else []
        )
        for mode in MODES
    ],
)
def test_derivatives_are_finite_where_a_gradient_is_zero(mode):
    """Through three steps, by a factor of both gradients: no 0/0 on the way back."""
    transform = dynamic_barrier(**MODES[mode])

    def after(u, v):
        extra = {"lower_value": 0.55 + jnp.sum(v) / 10}
        extra |= {"reference_value": 0.5} if mode == "share" else {}

        def step(state, _):
            direction, state = transform.update(u, state, u, lower_grads=v, **extra)
            return state, jnp.sum(direction * jnp.array([1.0, 0.3]))

        return jnp.sum(jax.lax.scan(step, transform.init(u), length=3)[1])

    derivatives, none = jax.jit(jax.grad(after, argnums=(0, 1))), jnp.zeros(2)
    for upper in (jnp.array([1.0, -2.0]), none):
        for lower in (jnp.array([-3.0, 1.0]), none):
            for derivative in derivatives(upper, lower):
                assert np.isfinite(derivative).all(), (upper, lower)


@pytest.mark.long
def test_derivatives_by_the_barrier_and_by_the_tolerance_are_right(x64):
    """Against differences, through ten steps; also by the start."""

    def after(x, number, tolerant):
        options = (
            {"tolerance": number, "reference": 0.1}
            if tolerant
            else {"method": simple_method(barrier=lambda k: number)}
        )
        optimizer = optax.chain(dynamic_barrier(**options), optax.sgd(0.1))

        def step(carry, _):
            x, state = carry
            grads, measured = evaluate(x, state)
            updates, state = optimizer.update(grads, state, x, **measured)
            return (optax.apply_updates(x, updates), state), None

        return f(jax.lax.scan(step, (x, optimizer.init(x)), length=10)[0][0])

    x, h = jnp.array([1.5, 1.5]), 1e-6
    for number, tolerant in ((jnp.array(0.5), False), (jnp.array(0.3), True)):
        value_and_grad = jax.jit(
            jax.value_and_grad(partial(after, tolerant=tolerant), argnums=(0, 1))
        )
        by_x, by_number = value_and_grad(x, number)[1]
        numeric = (
            value_and_grad(x, number + h)[0] - value_and_grad(x, number - h)[0]
        ) / (2 * h)
        assert np.isfinite(by_x).all()
        assert float(by_number) == pytest.approx(float(numeric), rel=1e-4, abs=1e-9)


def test_what_the_state_remembers_is_in_one_dtype(x64):
    """Of float32 parameters in float32, also where float64 is allowed: a scan needs it."""
    x = jnp.ones(2, jnp.float32)
    for optimizer in (
        dynamic_barrier(tolerance="5%", reference=1.0),
        from_method("sdbgd", 0.1),
        with_twin(optax.sgd(0.1), tolerance=1.0),
    ):
        state = optimizer.init(x)
        extra = {"lower_grads": x, "lower_value": 1.5}
        if hasattr(state, "reference_params"):
            extra |= {"reference_grads": x, "reference_value": 1.0}
        _, after = jax.eval_shape(optimizer.update, x, state, x, **extra)
        before, now = (
            jax.tree.map(lambda leaf: (leaf.dtype, leaf.shape), s)
            for s in (state, after)
        )
        assert before == now


def test_where_g_is_flat_from_the_beginning_f_moves_as_in_torch():
    """∇g = 0 exactly: a step on f of length 1, until g has something to say."""
    optimizer = optax.chain(
        dynamic_barrier(tolerance=0.01, reference=0.0), optax.sgd(0.05)
    )

    def step(carry, _):
        x, state = carry
        g, lower = jax.value_and_grad(lambda x: jnp.sum(jnp.maximum(x - 1, 0) ** 2))(x)
        upper = jax.grad(lambda x: jnp.sum((x - 3) ** 2))(x)
        updates, state = optimizer.update(
            upper, state, x, lower_grads=lower, lower_value=g
        )
        return (optax.apply_updates(x, updates), state), None

    x = jnp.zeros(1)
    (x, _), _ = jax.lax.scan(step, (x, optimizer.init(x)), length=1000)
    assert 1.0 < float(x[0]) <= 1.1  # (x − 1)² is the tolerance at 1.1


@pytest.mark.parametrize("removed", ["headroom", "learning_rate", "rescales"])
def test_what_was_an_option_once_is_none(removed):
    for make in (
        partial(dynamic_barrier, reference=1.0),
        partial(with_twin, optax.sgd(0.1)),
    ):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{removed}'"):
            make(tolerance=0.1, **{removed: 1.0})
