"""One run on eight devices against the same run on one, with the whole batch; run by tests/test_optax_parallel.py.

The model is a small network, cut over the axis "model" (columns, then rows, then a sum), its batch over "data". One
bias is the same on all devices, and has to count once.
"""

import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import optax
from tiebreak.optax import dynamic_barrier, measure, state_specs, with_twin
from training import simple_method

BOTH = ("data", "model")
SPECS = {"first": P(None, "model"), "second": P("model"), "bias": P()}
BATCHES = (
    P(None, "data"),
    P(None, "data"),
    {name: P(None, *spec) for name, spec in SPECS.items()},
)
STEPS, BAD = 6, {"updates": 2, "reference_grads": 4}


def problem(dtype=np.float64):
    """Parameters; for each step a batch, and what is added to the gradients: 0, or NaN in one shard of one leaf."""
    rng = np.random.default_rng(0)
    params = {
        "first": rng.normal(size=(6, 8)),
        "second": rng.normal(size=(8, 2)),
        "bias": rng.normal(size=2),
    }
    x, y = rng.normal(size=(STEPS, 16, 6)), rng.normal(size=(STEPS, 16, 2))
    spoil = jax.tree.map(lambda p: np.zeros((STEPS, *p.shape)), params)
    for step in BAD.values():
        spoil["second"][step, 5, 1] = np.nan
    return jax.tree.map(lambda v: v.astype(dtype), (params, (x, y, spoil)))


def losses(model=None):
    def total(value):
        return jax.lax.psum(value, model) if model else value

    def fit(p, x, y):
        return jnp.mean(
            (total(jnp.tanh(x @ p["first"]) @ p["second"]) + p["bias"] - y) ** 2
        )

    def size(p, x, y):
        return total(
            jnp.sum(jnp.abs(p["first"])) + jnp.sum(jnp.abs(p["second"]))
        ) + jnp.sum(jnp.abs(p["bias"]))

    return size, fit


def advance(optimizer, evaluate, carry, batch):
    """One step; held where something is not finite."""
    (params, state, k), (x, y, spoil) = carry, batch
    grads, measured = evaluate(params, state, x, y)
    given = {"updates": grads, **measured}
    for name, step in BAD.items():
        if name in given:
            given[name] = jax.tree.map(
                lambda g, s, step=step: jnp.where(k == step, g + s, g),
                given[name],
                spoil,
            )
    updates, after = optimizer.update(given.pop("updates"), state, params, **given)
    skipped, multiplier = (
        optax.tree.get(after, "skipped"),
        optax.tree.get(after, "multiplier"),
    )
    moved = (optax.apply_updates(params, updates), after)
    params, state = optax.tree.where(skipped, (params, state), moved)
    return (params, state, k + 1), (multiplier, skipped, measured["lower_value"])


def whole(make, params, batches, model=None, over=None, data=None):
    """All steps in a scan: the parameters, and multiplier, decision and loss of each step."""
    optimizer, evaluate = make(**(over or {})), measure(*losses(model), **(data or {}))
    begin = (params, optimizer.init(params), 0)
    (params, _, _), seen = jax.lax.scan(
        partial(advance, optimizer, evaluate), begin, batches
    )
    return params, seen


def barrier(**options):
    return lambda base, **k: optax.chain(dynamic_barrier(**options, **k), base)


OPTIMIZERS = {
    "average": partial(
        barrier(method=simple_method(estimator="average", barrier=3.0)), optax.sgd(0.01)
    ),
    "start": partial(barrier(tolerance="10%", reference="start"), optax.sgd(0.01)),
    "several steps": partial(
        barrier(method=simple_method(barrier=3.0)),
        optax.MultiSteps(optax.sgd(0.01), 2).gradient_transformation(),
    ),
    "twin": partial(with_twin, optax.adam(0.01), tolerance=0.1),
}
NAMED = {"over": {"axis_name": BOTH}, "data": {"axis_name": "data"}}
SAID = {"axis_name": BOTH, "param_specs": SPECS}


def mesh(rows=2, columns=4, kind=AxisType.Auto):
    devices = np.array(jax.devices()[: rows * columns]).reshape(rows, columns)
    return jax.sharding.Mesh(devices, BOTH, axis_types=(kind, kind))


def assert_equal(found, expected, rtol=1e-9):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol),
        found,
        expected,
    )


@pytest.fixture(scope="module")
def alone():
    """Each optimizer's run on one device."""
    runs = {}

    def run(name):
        if name not in runs:
            runs[name] = jax.jit(partial(whole, OPTIMIZERS[name]))(*problem())
            skipped = np.asarray(runs[name][1][1])
            assert [int(k) for k in np.flatnonzero(skipped)] == (
                [2, 4] if name == "twin" else [2]
            )
        return runs[name]

    return run


@pytest.mark.parametrize(
    "name",
    [
        "average",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("start", "several steps", "twin")
        ),
    ],
)
def test_shards_decide_as_one_device_does(name, alone):
    run = partial(whole, OPTIMIZERS[name], model="model", **NAMED)
    mapped = jax.shard_map(
        run, mesh=mesh(), in_specs=(SPECS, BATCHES), out_specs=(SPECS, P())
    )
    assert_equal(jax.jit(mapped)(*problem()), alone(name))


@pytest.mark.long
def test_where_types_say_nothing_the_specs_do(alone):
    """And every one of the eight devices has the same bits."""

    def run(params, batches):
        params, seen = whole(OPTIMIZERS["twin"], params, batches, "model", SAID, SAID)
        return params, jax.tree.map(lambda v: v[None], seen)

    mapped = jax.shard_map(
        run,
        mesh=mesh(),
        in_specs=(SPECS, BATCHES),
        out_specs=(SPECS, P(BOTH)),
        check_vma=False,
    )
    params, seen = jax.jit(mapped)(*problem())
    for values in seen:
        assert len(values) == 8
        assert all(np.array_equal(v, values[0], equal_nan=True) for v in values)
    assert_equal((params, jax.tree.map(lambda v: v[0], seen)), alone("twin"))


@pytest.mark.parametrize(
    "kind", [jax.pmap, pytest.param(jax.vmap, marks=pytest.mark.long)]
)
def test_copies_with_a_batch_each(kind, alone):
    """Parameters and NaN the same on all; gradients averaged by `measure`."""
    same, (params, (x, y, spoil)) = {"axis_name": "i", "param_specs": P()}, problem()
    x, y = (np.moveaxis(v.reshape(STEPS, 8, 2, -1), 1, 0) for v in (x, y))
    run = partial(whole, OPTIMIZERS["several steps"], over=same, data=same)
    found = jax.jit(kind(lambda x, y: run(params, (x, y, spoil)), axis_name="i"))(x, y)
    for i in (0, 7):
        assert_equal(jax.tree.map(lambda v, i=i: v[i], found), alone("several steps"))


def documented(mapping):
    """The lines of docs/scaling.md that compute both gradients under this mapping, as a function."""
    text = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text("utf-8")
    lines = re.search(rf"```python\n(# {mapping}: .*?)```", text, re.DOTALL)[1]

    def gradients(params, x, y):
        size, fit = losses()
        names = {"jax": jax, "size": size, "fit": fit, "params": params, "x": x, "y": y}
        exec(lines, names)
        return names["upper_grads"], names["lower_grads"], names["lower_value"]

    return gradients


SHARD_MAP = "shard_map"
OTHERWISE = r"pmap, vmap, shard_map\(check_vma=False\)"


def over_eight_devices(kind, function, params, x, y):
    """The value on the first device, with the rows of the batch over all devices."""
    if kind in ("shard_map", "unchecked"):
        devices = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
        mapped = jax.shard_map(
            function,
            mesh=devices,
            in_specs=(P(), P("data"), P("data")),
            out_specs=P(),
            check_vma=kind == "shard_map",
        )
        return jax.jit(mapped)(params, x, y)
    mapping = {"pmap": jax.pmap, "vmap": jax.vmap}[kind]
    mapped = mapping(function, axis_name="data", in_axes=(None, 0, 0))
    rows = (value.reshape(8, 2, -1) for value in (x, y))
    return jax.tree.map(lambda value: value[0], mapped(params, *rows))


@pytest.mark.parametrize("kind", ["shard_map", "unchecked", "pmap", "vmap"])
def test_the_documented_lines_average_gradients(kind):
    """The gradients and the direction are those of one device with the whole batch."""
    params, (x, y, _) = problem()
    gradients = documented(SHARD_MAP if kind == "shard_map" else OTHERWISE)
    named = {"axis_name": "data", "param_specs": P()}

    def update(params, x, y, gradients=gradients, named=named):
        optimizer = dynamic_barrier(tolerance=0.1, reference=0.5, **named)
        upper, lower, value = gradients(params, x, y)
        direction, state = optimizer.update(
            upper,
            optimizer.init(params),
            params,
            lower_grads=lower,
            lower_value=value,
        )
        return upper, lower, direction, state.multiplier

    def whole_batch(params, x, y):
        size, fit = losses()
        value, lower = jax.value_and_grad(fit)(params, x, y)
        return jax.grad(size)(params, x, y), lower, value

    expected = update(params, x[0], y[0], whole_batch, {})
    assert_equal(over_eight_devices(kind, update, params, x[0], y[0]), expected)


def test_the_lines_for_one_mapping_are_wrong_for_the_other():
    """Why the documentation has both: too large by the number of devices, and not averaged."""
    params, (x, y, _) = problem()
    gradient = jax.grad(losses()[1])

    def lower(mapping):
        return lambda *args: documented(mapping)(*args)[1]

    batch = (params, x[0], y[0])
    eightfold = jax.tree.map(lambda value: 8 * value, gradient(*batch))
    assert_equal(over_eight_devices("shard_map", lower(OTHERWISE), *batch), eightfold)
    first = gradient(params, x[0][:2], y[0][:2])
    assert_equal(over_eight_devices("pmap", lower(SHARD_MAP), *batch), first)


@pytest.mark.long
def test_parameters_sharded_over_the_axis_of_the_batch(alone):
    """As in FSDP: gathered in the loss, their gradients scattered by JAX."""

    def gathered(loss):
        def of(p, x, y):
            return loss(
                p | {"first": jax.lax.all_gather(p["first"].T, "all", tiled=True).T},
                x,
                y,
            )

        return of

    params, (x, y, spoil) = problem()
    specs = {"first": P(None, "all"), "second": P(), "bias": P()}
    batches = (
        P(None, "all"),
        P(None, "all"),
        {name: P(None, *spec) for name, spec in specs.items()},
    )
    devices = jax.sharding.Mesh(
        np.array(jax.devices()), ("all",), axis_types=(AxisType.Auto,)
    )
    said = {"axis_name": "all", "param_specs": specs}
    for check, over in ((True, {"axis_name": "all"}), (False, said)):

        def run(params, batches, over=over):
            optimizer = OPTIMIZERS["several steps"](**over)
            evaluate = measure(*(gathered(loss) for loss in losses()), **over)
            begin = (params, optimizer.init(params), 0)
            (params, _, _), seen = jax.lax.scan(
                partial(advance, optimizer, evaluate), begin, batches
            )
            return params, seen

        mapped = jax.shard_map(
            run,
            mesh=devices,
            in_specs=(specs, batches),
            out_specs=(specs, P()),
            check_vma=check,
        )
        assert_equal(jax.jit(mapped)(params, (x, y, spoil)), alone("several steps"))


@pytest.mark.long
def test_under_jit_with_sharded_arrays_nothing_has_to_be_said(alone):
    params, batches = problem()
    placed = (
        jax.tree.map(
            lambda v, s: jax.device_put(v, NamedSharding(mesh(), s)), params, SPECS
        ),
        batches,
    )
    found = jax.jit(partial(whole, OPTIMIZERS["twin"]))(*placed)
    assert_equal(found, alone("twin"))
    assert found[0]["first"].sharding.is_equivalent_to(
        NamedSharding(mesh(), SPECS["first"]), 2
    )


@pytest.mark.long
def test_under_jit_with_shardings_in_the_types():
    """Explicit axes, which `jax.make_mesh` makes."""
    params, _ = problem()
    over, optimizer = mesh(kind=AxisType.Explicit), OPTIMIZERS["twin"]()

    def update(params):
        other = jax.tree.map(lambda p: 1.0 - p, params)
        given = {
            "lower_grads": other,
            "reference_grads": other,
            "lower_value": 2.0,
            "reference_value": 1.0,
        }
        updates, state = optimizer.update(
            params, optimizer.init(params), params, **given
        )
        return updates, state.barrier.multiplier

    with jax.set_mesh(over):
        found = jax.jit(update)(
            jax.tree.map(
                lambda v, s: jax.device_put(v, NamedSharding(over, s)), params, SPECS
            )
        )
    assert_equal(found, jax.jit(update)(params))
    assert found[0]["first"].sharding.spec == SPECS["first"]


def stepper(over, optimizer, params):
    """A step of its own, with the state donated; and how to place a state that is whole."""
    specs = state_specs(jax.eval_shape(optimizer.init, params), params, SPECS)
    evaluate = measure(*losses("model"), axis_name="data")
    carry = (SPECS, specs, P())
    step = jax.shard_map(
        partial(advance, optimizer, evaluate),
        mesh=over,
        in_specs=(
            carry,
            tuple(
                jax.tree.map(
                    lambda s: P(*s[1:]), BATCHES, is_leaf=lambda s: isinstance(s, P)
                )
            ),
        ),
        out_specs=(carry, P()),
    )
    place = partial(
        jax.tree.map, lambda v, spec: jax.device_put(v, NamedSharding(over, spec))
    )
    return jax.jit(step, donate_argnums=0), lambda params, state, k: (
        place(params, SPECS),
        place(state, specs),
        k,
    )


@pytest.mark.long
def test_a_state_is_donated_saved_and_resumed_on_fewer_devices(alone, tmp_path):
    """Three steps on eight devices, saved as a list of arrays, three more on two, and the same in the end."""
    params, batches = problem()
    optimizer = OPTIMIZERS["twin"](axis_name=BOTH)
    step, place = stepper(mesh(), optimizer, params)
    carry, seen = place(params, jax.jit(optimizer.init)(params), 0), []
    for k in range(3):
        before = carry
        carry, out = step(carry, jax.tree.map(lambda v, k=k: v[k], batches))
        seen.append(out)
        assert before[1].reference_params["first"].is_deleted()
        assert len(carry[1].reference_params["first"].addressable_shards) == 8
    np.savez(tmp_path / "state.npz", *jax.device_get(jax.tree.leaves(carry)))
    with np.load(tmp_path / "state.npz") as file:
        carry = jax.tree.unflatten(jax.tree.structure(carry), list(file.values()))
    step, place = stepper(mesh(1, 2), optimizer, params)
    carry = place(*carry)
    for k in range(3, STEPS):
        carry, out = step(carry, jax.tree.map(lambda v, k=k: v[k], batches))
        seen.append(out)
    assert carry[0]["first"].addressable_shards[0].data.shape == (6, 4)
    assert_equal((carry[0], jax.tree.map(lambda *v: np.stack(v), *seen)), alone("twin"))


# --- what one update communicates ------------------------------------------------------------------------------------


def collectives(jaxpr, inside=False):
    """(primitive, numbers that it sends, whether it is in a branch) of all collectives."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name.startswith(
            ("psum", "pmax", "all_gather", "all_to_all", "ppermute", "reduce_scatter")
        ):
            yield eqn.primitive.name, sum(v.aval.size for v in eqn.invars), inside
        branch = inside or eqn.primitive.name == "cond"
        for value in jax.tree.leaves(
            eqn.params, is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from collectives(inner, branch)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    "name", ["several steps", pytest.param("twin", marks=pytest.mark.long)]
)
def test_an_update_sends_a_few_numbers_once(name, check):
    params, _ = problem()
    optimizer = OPTIMIZERS[name](**({"axis_name": BOTH} if check else SAID))
    state = optimizer.init(params)
    specs = state_specs(state, params, SPECS)

    def update(params, state):
        given = (
            ("lower_grads", "reference_grads") if name == "twin" else ("lower_grads",)
        )
        extra = {"lower_value": 1.0, "reference_value": 1.0} if name == "twin" else {}
        return optimizer.update(
            params, state, params, **dict.fromkeys(given, params), **extra
        )

    mapped = jax.shard_map(
        update,
        mesh=mesh(),
        in_specs=(SPECS, specs),
        out_specs=(SPECS, specs),
        check_vma=check,
    )
    found = list(collectives(jax.make_jaxpr(mapped)(params, state).jaxpr))
    always = [(kind, count) for kind, count, branch in found if not branch]
    assert len(always) == 1, found
    assert always[0][0].startswith("psum")
    # Where types do not show that copies are equal: two numbers for each leaf of each gradient.
    assert always[0][1] <= 8 + (
        0 if check else 2 * len(params) * {"twin": 3}.get(name, 2)
    )
    # Where gradients are so small or large that their squares are lost: once more.
    assert [kind[:4] for kind, _, branch in found if branch] == ["psum"]
    if check or name != "twin":
        return
    compiled = jax.jit(mapped).lower(params, state).compile().as_text()
    assert compiled.count(" all-reduce(") + compiled.count(" all-reduce-start(") == len(
        found
    )


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_gradients_of_any_scale(scale):
    """In float32: the squares of one shard's entries are lost, and some of another's are zero."""
    u = np.float32(scale) * np.random.default_rng(1).normal(size=(8, 3)).astype(
        np.float32
    )
    v = np.float32(scale) * np.random.default_rng(2).normal(size=(8, 3)).astype(
        np.float32
    )
    u[3], v[5] = 0, 0
    one = dynamic_barrier(
        method=simple_method(barrier=3.0, regularizer=0.0), normalize=False
    )
    expected, state = jax.jit(
        lambda u, v: one.update(u, one.init(u), u, lower_grads=v)
    )(u, v)
    many = dynamic_barrier(
        method=simple_method(barrier=3.0, regularizer=0.0),
        normalize=False,
        axis_name=BOTH,
    )

    def run(u, v):
        direction, state = many.update(u, many.init(u), u, lower_grads=v)
        return direction, state.multiplier

    mapped = jax.shard_map(run, mesh=mesh(), in_specs=P(BOTH), out_specs=(P(BOTH), P()))
    direction, multiplier = jax.jit(mapped)(u, v)
    np.testing.assert_allclose(multiplier, state.multiplier, rtol=1e-5)
    np.testing.assert_allclose(direction, expected, rtol=1e-4)
    assert multiplier > 0


@pytest.mark.long
def test_derivatives_are_those_of_one_device():
    """Of a number made of the direction, by both gradients."""
    u, v = np.random.default_rng(3).normal(size=(2, 8, 3))

    def number(u, v, total=lambda value: value, **named):
        transform = dynamic_barrier(method=simple_method(barrier=3.0), **named)
        return total(
            jnp.sum(transform.update(u, transform.init(u), u, lower_grads=v)[0] ** 3)
        )

    many = partial(
        number, total=lambda value: jax.lax.psum(value, BOTH), axis_name=BOTH
    )
    mapped = jax.shard_map(
        jax.grad(many, argnums=(0, 1)), mesh=mesh(), in_specs=P(BOTH), out_specs=P(BOTH)
    )
    assert_equal(jax.jit(mapped)(u, v), jax.jit(jax.grad(number, argnums=(0, 1)))(u, v))


@pytest.mark.long
def test_runs_of_their_own_side_by_side():
    """Without `axis_name`, or along an axis that it leaves out: each place has its own multiplier."""
    rng = np.random.default_rng(3)
    u, v = rng.normal(size=(2, 8, 3)), rng.normal(size=(2, 8, 3))

    def run(u, v, **named):
        transform = dynamic_barrier(method=simple_method(barrier=3.0), **named)
        state, _ = jax.lax.scan(
            lambda state, _: (transform.update(u, state, u, lower_grads=v)[1], None),
            transform.init(u),
            length=2,
        )
        return state.multiplier[None]

    cut = partial(jax.shard_map, mesh=mesh(), in_specs=P("data", "model"))
    apart = jax.jit(cut(run, out_specs=P(BOTH)))(u, v)
    assert len(set(apart.tolist())) == 8
    rows = jax.jit(cut(partial(run, axis_name="model"), out_specs=P("data")))(u, v)
    np.testing.assert_allclose(rows, jax.jit(jax.vmap(run))(u, v)[:, 0], rtol=1e-12)


@pytest.mark.long
def test_seeds_over_devices_in_a_scan():
    """Runs along an axis that `axis_name` leaves out: all that a state counts and remembers is theirs."""
    params, (x, y, spoil) = problem()
    seeds = jax.tree.map(lambda v: np.stack([v, 0.5 * v]), params)
    spoil = jax.tree.map(
        lambda v: np.stack([v, np.zeros_like(v)]), spoil
    )  # the second seed holds no step
    over = {"axis_name": "model"}
    for make in (
        partial(
            with_twin, optax.adam(optax.cosine_decay_schedule(0.01, 8)), tolerance=0.1
        ),
        partial(
            barrier(method=simple_method(estimator="average", barrier=3.0)),
            optax.sgd(0.01),
        ),
    ):

        def run(params, x, y, spoil, make=make):
            params, spoil = jax.tree.map(lambda v: v[0], (params, spoil))
            return jax.tree.map(
                lambda v: v[None],
                whole(make, params, (x, y, spoil), over=over, data=over),
            )

        specs = (P("data"), P(None, "model"), P(None, "model"), P("data"))
        found = jax.jit(
            jax.shard_map(run, mesh=mesh(), in_specs=specs, out_specs=P("data"))
        )(seeds, x, y, spoil)
        expected = jax.jit(
            jax.vmap(partial(whole, make), in_axes=(0, (None, None, 0)))
        )(seeds, (x, y, spoil))
        assert_equal(found, expected)
        assert np.asarray(found[1][1]).any(axis=1).tolist() == [True, False]


# --- what is refused -------------------------------------------------------------------------------------------------


def attempt(transform, same=False, grads=lambda p: p, loss=None, check=True):
    def run(p):
        extra = {} if loss is None else {"lower_value": loss(p)}
        return transform.update(
            grads(p), transform.init(p), p, lower_grads=grads(p), **extra
        )[0]

    whole = {"a": jnp.ones((8, 2)), "b": jnp.ones(4)}
    tree = {"a": P() if same else P("data"), "b": P()}
    return jax.jit(
        jax.shard_map(
            run, mesh=mesh(), in_specs=(tree,), out_specs=tree, check_vma=check
        )
    )(whole)


def test_what_cannot_be_right_is_refused():
    rule, index = (
        partial(dynamic_barrier, method=simple_method()),
        lambda: jax.lax.axis_index("data"),
    )
    with pytest.raises(
        ValueError,
        match=r"differ over 'data'.* a parameter or the state does not.*axis_name='data'",
    ):
        attempt(rule())
    with pytest.raises(
        ValueError,
        match=r"updates\['b'\] differs over 'data', and the parameter does not: average it",
    ):
        attempt(rule(axis_name="data"), grads=lambda p: p | {"b": p["b"] + index()})
    with pytest.raises(ValueError, match=r"updates\['b'\] differs over 'data'"):
        attempt(rule(), same=True, grads=lambda p: p | {"b": p["b"] + index()})
    with pytest.raises(
        ValueError,
        match=r"param_specs\['a'\] does not name 'data', over which params\['a'\] differs",
    ):
        attempt(rule(axis_name="data", param_specs=P()))
    with pytest.raises(
        ValueError,
        match=r"JAX does not say which parameters differ over 'data'.*param_specs=",
    ):
        attempt(rule(axis_name="data"), check=False)
    tolerant = partial(dynamic_barrier, tolerance=1.0, reference=1.0)
    with pytest.raises(
        ValueError, match=r"gradients or losses differ over 'data'.*axis_name='data'"
    ):
        attempt(tolerant(), same=True, loss=lambda p: 1.0 + index())
    attempt(tolerant(axis_name="data"), loss=lambda p: 1.0 + index())

    def losses_that_differ(p):
        evaluate = measure(
            lambda p: jnp.sum(p["b"] ** 2), lambda p: jnp.sum(p["a"] ** 2)
        )
        return evaluate(p, rule(axis_name="data").init(p))[0]

    whole, specs = {"a": jnp.ones((8, 2)), "b": jnp.ones(4)}, {"a": P("data"), "b": P()}
    with pytest.raises(
        ValueError,
        match=r"lower_value differs over 'data': .*axis_name='data'.*jax.lax.psum",
    ):
        jax.shard_map(
            losses_that_differ, mesh=mesh(), in_specs=(specs,), out_specs=specs
        )(whole)
    with pytest.raises(NameError) as info:
        rule(axis_name="rows").update(
            whole, rule().init(whole), whole, lower_grads=whole
        )
    assert "leave it out" in "".join(info.value.__notes__)


def test_gradients_that_were_not_averaged_make_the_direction_nan():
    """Where no type shows it: copies of a parameter whose gradients differ are found out in the step."""
    for spoilt in (False, True):

        def run(p, spoilt=spoilt):
            transform = dynamic_barrier(
                method=simple_method(), axis_name="i", param_specs=P()
            )
            g = p * (1 + 0.1 * spoilt * jax.lax.axis_index("i"))
            return transform.update(p, transform.init(p), p, lower_grads=g)[1].skipped

        assert jax.pmap(run, axis_name="i")(np.ones((8, 3))).tolist() == [spoilt] * 8


@pytest.mark.parametrize("spoilt", ["", "lower_grads", "reference_grads"])
def test_the_smallest_leaf_and_the_twin_are_compared_too(spoilt):
    """A leaf whose gradient is a millionth of the others', of the model or of the twin; squares that vanish are not."""
    optimizer = with_twin(optax.sgd(0.1), tolerance=1.0, axis_name="i", param_specs=P())

    def run(p):
        def grads(name):
            return p | {
                "small": p["small"]
                * (1 + 0.1 * (name == spoilt) * jax.lax.axis_index("i"))
            }

        given = {name: grads(name) for name in ("lower_grads", "reference_grads")}
        state = optimizer.update(
            p, optimizer.init(p), p, lower_value=1.0, reference_value=1.0, **given
        )[1]
        return state.barrier.skipped

    whole = {
        "large": np.ones((8, 3)),
        "small": np.full((8, 2), 1e-6),
        "none": np.full((8, 2), 1e-20),
    }
    whole = jax.tree.map(lambda v: v.astype(np.float32), whole)
    assert jax.pmap(run, axis_name="i")(whole).tolist() == [spoilt != ""] * 8


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield
