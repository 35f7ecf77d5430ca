"""Whole runs in JAX: the core's numbers, records and checks."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiebreak
from jax_problem import PAPER, SOLVED, core, f, g
from tiebreak import rules
from tiebreak.optax import Gaussian, solve


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    "name",
    """sdbgd, average by a law, average for λ alone, own estimator, least, own rule, vr_pr_sdbpg, spider_penalty,
    storm_penalty, page, held, held spider, remembering""".replace("\n   ", "").split(", "),
)
def test_solve_equals_the_core(name, x64):
    method = SOLVED[name]
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
    expected = tiebreak.minimize(PAPER.upper, PAPER.lower, PAPER.x0, method="sdbgd", budget=10**5, record=record)
    found = solve(f, g, PAPER.x0, budget=10**5, record=record)
    assert (found.status, found.steps, found.calls) == (expected.status, expected.steps, expected.calls)
    np.testing.assert_array_equal(found.history.step, expected.history.step)
    assert found.history.columns.keys() == expected.history.columns.keys()
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-9)
    if record is not None:
        np.testing.assert_allclose(found.history.direction_squared, expected.history.direction_squared, rtol=1e-7)


@pytest.mark.parametrize(
    ("name", "record"), [("sdbgd", "log"), ("vr_pr_sdbpg", 1), ("spider_penalty", None), ("remembering", "log")]
)
def test_who_watches_changes_nothing(name, record):
    """In float32, noise and all: every number to the last bit, and every share and call told is what was made."""
    given = {"steps": 700, "runs": 3, "key": 5, "record": record, "keep_iterates": record is not None}
    problem = Gaussian(f, 0.5), Gaussian(g, 0.5), jnp.array([1.5, 1.5])
    told = []
    alone = solve(*problem, SOLVED[name], **given)
    watched = solve(*problem, SOLVED[name], **given, progress=told.append)
    assert watched.history.columns.keys() == alone.history.columns.keys()
    for column in ("step", "calls", *(("x",) if given["keep_iterates"] else ()), *alone.history.columns):
        np.testing.assert_array_equal(watched.history[column], alone.history[column])
    for point in ("last", "selected"):
        for measure in ("x", "step", "direction_squared", "lower_value", "stationarity_squared"):
            np.testing.assert_array_equal(
                getattr(getattr(watched, point), measure), getattr(getattr(alone, point), measure)
            )
    assert (watched.calls == alone.calls).all()
    assert len(told) >= 200
    steps = [now.steps for now in told]
    assert steps == sorted(set(steps))
    assert (steps[-1], told[-1].calls, told[-1].fraction) == (700, alone.calls[0], 1.0)
    assert all(now.lower_gradient_squared > 0 and now.multiplier >= 0 for now in told)


def test_a_watched_run_shows_the_solver_s_line(capsys):
    solve(f, g, jnp.array([1.5, 1.5]), steps=50, progress=True)
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"^100 %  in 0:\d\d  step 50  \S+ calls  λ \S+  ‖d‖² [▁-█]{16} \S+  ‖∇g‖² [▁-█]{16} \S+$", last)
    with pytest.raises(TypeError, match="progress=3 must be True, False or a function"):
        solve(f, g, jnp.array([1.5, 1.5]), steps=5, progress=3)


def test_solve_has_the_law_of_the_core(x64):
    """Noise: means of 400 runs of both, within five standard errors; and the selected step likewise."""
    noisy = tiebreak.problems.paper(sigma=0.5)
    expected = tiebreak.minimize(noisy.upper, noisy.lower, noisy.x0, method="sdbgd", budget=20_000, runs=400, seed=1)
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


@pytest.mark.filterwarnings("ignore::tiebreak.remarks.Remark")
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


def test_a_rule_sees_the_loss_of_its_own_batch(x64):
    """As in the core: with `value(x, key, size)` that of the batch, else the objective's; records show the latter."""
    seen = tiebreak.Method("seen", lambda fg, gg, lower_value: lower_value + 0 * gg, tiebreak.Schedule(0.01))

    class Batch:
        def gradient(self, x, key, size):
            return jax.grad(g)(x)

        def value(self, x, key=None, size=None):
            return g(x) if key is None else 10 + jax.random.uniform(key) + 0 * size

    class Objective(Batch):
        def value(self, x):
            return g(x)

    options = {"steps": 20, "record": 1, "key": 3}
    batch, objective = (solve(f, kind(), PAPER.x0, seen, **options) for kind in (Batch, Objective))
    assert ((batch.history.multiplier[:-1] > 10) & (batch.history.multiplier[:-1] < 11)).all()
    assert len(np.unique(batch.history.multiplier[:-1])) == 20
    assert (batch.history.lower_value < 5).all()
    np.testing.assert_allclose(objective.history.multiplier[:-1], objective.history.lower_value[:-1])


def test_a_rule_may_ask_for_the_square_of_the_upper_gradient(x64):
    cautious = tiebreak.Method(
        "cautious", lambda fg, gg, ff, barrier: barrier * (ff / (gg + 1e-9)) ** 0.5, tiebreak.Schedule(0.01, barrier=1)
    )
    result = solve(f, g, PAPER.x0, cautious, steps=3, record=1)
    a, b = jax.grad(f)(jnp.array(PAPER.x0)), jax.grad(g)(jnp.array(PAPER.x0))
    assert result.history.multiplier[0] == pytest.approx(float(jnp.sqrt(a @ a / (b @ b))), rel=1e-6)


def test_an_estimator_that_does_not_trace_says_so():
    class Stubborn(tiebreak.Minibatch):
        def update(self, level, fresh, before, memory, parameters):
            return (fresh if float(fresh[0]) > 0 else -fresh), memory

    method = tiebreak.methods.sdbgd.replace(estimator=Stubborn())
    with pytest.raises(jax.errors.ConcretizationTypeError) as caught:
        solve(f, g, jnp.array([1.5, 1.5]), method, steps=3)
    assert any("in the estimator Stubborn. JAX traces it" in note for note in caught.value.__notes__)


def test_small_dtypes_keep_their_schedule_and_memory_wide():
    """Batch sizes and α of a bfloat16 run are not rounded to bfloat16, nor is the average."""
    sizes = []

    class Seen:
        def gradient(self, x, key, size):
            sizes.append(size.dtype)
            return x.astype(jnp.float32) * 0 + size

    method = tiebreak.Method(
        "average",
        rules.constant,
        tiebreak.Schedule(1e-3, barrier=1.0, lower_batch=257.0),  # bfloat16 has no 257
        tiebreak.Average(0.5),
    )
    result = solve(lambda x: jnp.sum(x), Seen(), jnp.zeros(2, jnp.bfloat16), method, steps=2)
    assert set(sizes) == {jnp.dtype(jnp.float32)}
    assert np.isfinite(np.asarray(result.x, np.float32)).all()


def test_auto_is_refused_with_a_reason():
    with pytest.raises(ValueError, match="method='auto' chooses its step sizes from what Watched sees"):
        tiebreak.optax.solve(lambda x: x @ x, lambda x: x @ x, jnp.ones(2), method="auto", steps=3)
    with pytest.raises(ValueError, match=r"record=\[3, 5\] must be .*; minimize takes call counts"):
        tiebreak.optax.solve(lambda x: x @ x, lambda x: x @ x, jnp.ones(2), method="sdbgd", steps=9, record=[3, 5])
    with pytest.raises(ValueError, match="the rule of 'auto' has a memory"):
        tiebreak.optax.dynamic_barrier(method="auto")


@pytest.mark.parametrize(
    ("given", "said"),
    [(jax.grad(jnp.sum), r"Output had shape: \(2,\)"), (jax.value_and_grad(jnp.sum), "Output was")],
)
def test_gradients_in_place_of_losses_get_a_sentence(given, said):
    with pytest.raises(TypeError, match=rf"no single number .*{said}.* must be a loss.* tiebreak\.minimize takes grad"):
        solve(given, jnp.sum, jnp.zeros(2), steps=3)
