"""Rules with a memory: advanced by steps alone, saved, resumed exactly, and never touched by measuring."""

import numpy as np
import pytest

import tiebreak
from tiebreak import Schedule, methods, minimize, rules
from tiebreak.stateful_rules import Averaged as AveragedProducts
from tiebreak.stateful_rules import Dual, StatefulRule

PAPER = tiebreak.problems.paper()


class Averaged(StatefulRule):
    """λ from averages of the inner products; `calls` counts how often it was asked."""

    calls = 0

    def begin(self, zero):
        return zero, zero, zero

    def __call__(self, fg, gg, memory, barrier, regularizer, rate):
        type(self).calls += 1
        fg, gg, weight = (
            (1 - rate) * old + rate * new
            for old, new in zip(memory, (fg, gg, 1.0), strict=True)
        )
        return rules.sdbgd(fg / weight, gg / weight, barrier, regularizer), (
            fg,
            gg,
            weight,
        )


METHOD = methods.sdbgd.replace(name="averaged", rule=Averaged(), others={"rate": 0.2})


def solve(steps=40, method=METHOD, **options):
    return minimize(
        PAPER.upper,
        PAPER.lower,
        PAPER.x0,
        **{"method": method, "seed": 4, "steps": steps} | options,
    )


def test_it_equals_a_plain_loop():
    rngs = [
        np.random.default_rng(np.random.SeedSequence(4, spawn_key=(0, purpose)))
        for purpose in range(2)
    ]
    x, fg, gg, weight = np.array(PAPER.x0, dtype=float), 0.0, 0.0, 0.0
    for k in range(40):
        p = METHOD.schedule.at(k)
        sizes = (p.upper_batch, p.lower_batch)
        a, b = (
            level.exact_gradient(x) + 0.5 * rng.standard_normal(2) / np.sqrt(size)
            for level, rng, size in zip(
                (PAPER.upper, PAPER.lower), rngs, sizes, strict=True
            )
        )
        fg, gg, weight = (
            0.8 * fg + 0.2 * (a @ b),
            0.8 * gg + 0.2 * (b @ b),
            0.8 * weight + 0.2,
        )
        x = x - p.step_size * (
            a + rules.sdbgd(fg / weight, gg / weight, p.barrier, p.regularizer) * b
        )
    np.testing.assert_allclose(solve().x, x, rtol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"record": 1},
        {"record": None},
        {"callback": lambda r: r.direction_squared and None},
    ],
)
def test_measuring_does_not_advance_it(options):
    plain = solve(record=7)
    other = solve(**options)
    assert np.array_equal(plain.x, other.x)
    assert plain.last.direction_squared == other.last.direction_squared


def test_residuals_are_those_of_the_memory_at_the_step(monkeypatch):
    """The rule at the exact gradients with what it had remembered before the step; along the run and at both ends."""
    seen = []

    class Spied(Averaged):
        def __call__(self, fg, gg, memory, barrier, regularizer, rate):
            if np.ndim(fg) == 1 and len(fg) == 2:
                seen.append([np.array(m) for m in memory])
            return super().__call__(fg, gg, memory, barrier, regularizer, rate)

    method = METHOD.replace(rule=Spied())
    monkeypatch.setattr(
        "tiebreak.solver.minimize.check_runs_are_independent", lambda *given: None
    )  # it tries the rule before the run
    found = solve(method=method, record=1, runs=2, keep_iterates=True)

    def expected(x, k, memory):
        p, a, b = (
            method.schedule.at(k),
            PAPER.upper.exact_gradient(x),
            PAPER.lower.exact_gradient(x),
        )
        return Averaged()(a @ b, b @ b, memory, p.barrier, p.regularizer, 0.2)[0]

    for run in range(2):
        for k in (0, 1, 5, 39):
            memory = [m[run] for m in seen[k]]
            assert found.history.exact_multiplier[k, run] == pytest.approx(
                expected(found.history.x[k, run], k, memory)
            )
        k = int(found.selected.step[run])
        memory = [m[run] for m in seen[k]]
        assert found.selected.exact_multiplier[run] == pytest.approx(
            expected(found.selected.x[run], k, memory)
        )
        after = (
            Averaged()
        )  # the memory after the last step is what measures the last iterate
        assert np.isfinite(found.last.exact_multiplier[run])
        assert after.calls >= 0


@pytest.mark.parametrize("stop", [1, 13, 39])
def test_a_resumed_run_remembers(stop, tmp_path):
    options = {"runs": 3, "record": 1, "keep_iterates": True}
    whole = solve(**options)
    solve(stop, **options).save(tmp_path / "run.npz")
    resumed = minimize(
        PAPER.upper, PAPER.lower, resume=tmp_path / "run.npz", method=METHOD, steps=40
    )
    assert np.array_equal(resumed.x, whole.x)
    for column in ("x", "multiplier", "exact_multiplier", "direction_squared"):
        assert np.array_equal(
            resumed.history[column], whole.history[column], equal_nan=True
        )
    for point in ("last", "selected"):
        one, other = getattr(resumed, point), getattr(whole, point)
        assert np.array_equal(one.exact_multiplier, other.exact_multiplier)


def test_a_file_without_the_memory_is_refused(tmp_path):
    path = tmp_path / "run.npz"
    solve().save(path)
    loaded = dict(np.load(path))
    np.savez(
        path, **{name: array for name, array in loaded.items() if name != "rule.1"}
    )
    with pytest.raises(ValueError, match=r"there is no 'rule\.1' in it"):
        tiebreak.load(path)


@pytest.mark.filterwarnings("ignore::tiebreak.solver.result_warnings.Remark")
def test_runs_that_end_early_keep_theirs():
    """A run whose gradient fails goes; the others are as they are alone."""

    class Failing(tiebreak.Gaussian):
        def gradient(self, x, token=None):
            return np.where((x[..., 1:] > 1.55), np.nan, super().gradient(x, token))

    upper = Failing(PAPER.upper.exact_gradient, 0.5, vectorized=True)
    options = {"method": METHOD, "steps": 300, "seed": 1, "record": 1}
    both = minimize(upper, PAPER.lower, PAPER.x0, runs=6, **options)
    ended = [
        i
        for i, status in enumerate(both.status)
        if status is tiebreak.Status.NON_FINITE
    ]
    going = [i for i in range(6) if i not in ended]
    assert ended
    assert going
    alone = minimize(upper, PAPER.lower, PAPER.x0, runs=going, **options)
    assert np.array_equal(both.x[going], alone.x)
    assert np.isfinite(both.last.exact_multiplier).all()


def test_what_a_rule_returns_is_checked():
    class Forgetful(Averaged):
        def __call__(self, fg, gg, memory, barrier):
            return barrier + 0 * fg

    with pytest.raises(TypeError, match=r"memory of 3, must return \(λ, memory\)"):
        solve(method=METHOD.replace(rule=Forgetful(), others={}))

    class Bare(StatefulRule):
        def begin(self, zero):
            return (zero,)

        def __call__(self, fg, gg):
            return fg

    with pytest.raises(TypeError, match="must take fg, gg and its memory first"):
        tiebreak.Method("bare", Bare(), Schedule(0.1))


def test_optimizers_refuse_it():
    pytest.importorskip("optax")
    from tiebreak.optax import dynamic_barrier

    with pytest.raises(
        ValueError, match=r"the rule of 'averaged' has a memory: use tiebreak\.minimize"
    ):
        dynamic_barrier(method=METHOD)


# --------------------------------------------------------------------------------- the two that come with the library


@pytest.mark.parametrize("rate", [0.01, 1.0, 100.0])
def test_the_dual_variable_tends_to_the_projection(rate):
    """Products that stand still: λ ends at [β gg − fg]₊/(gg + ρ), on the boundary too; λ is used before it is moved."""
    for fg, gg in ((-1.0, 0.5), (3.0, 0.5), (0.0, 0.0)):
        memory = Dual().begin(0.0)
        assert Dual()(fg, gg, memory, 0.3, 0.1, rate)[0] == 0.0
        for _ in range(20_000):
            now, memory = Dual()(fg, gg, memory, 0.3, 0.1, rate)
        assert now == pytest.approx(rules.sdbgd(fg, gg, 0.3, 0.1), rel=1e-6, abs=1e-12)
    last = Dual()(-1.0, 0.5, (7.0,), 0.3, 0.1, 1e12)[1][0]
    assert last == pytest.approx(
        rules.sdbgd(-1.0, 0.5, 0.3, 0.1)
    )  # τ → ∞: this batch's own


@pytest.mark.parametrize("lagged", [False, True])
def test_averages_of_what_stands_still_are_that(lagged):
    rule, memory = AveragedProducts(lagged), AveragedProducts(lagged).begin(0.0)
    for _ in range(5):
        found, memory = rule(-1.0, 0.5, memory, 0.3, 0.1, 0.2)
        assert found == pytest.approx(rules.sdbgd(-1.0, 0.5, 0.3, 0.1), rel=1e-12)


def test_a_multiplier_from_before_leaves_the_direction_unbiased():
    """E[λ b] at a fixed point: λ ∇g with Dual and the lagged average; SDBGD's own λ̂ b is off, by many errors."""
    rng, runs, steps = np.random.default_rng(0), 20_000, 30
    f, g, noise = np.array([-1.0, 0.2]), np.array([0.3, 0.1]), 0.3
    kinds = {"dual": Dual(), "lagged": AveragedProducts(lagged=True)}
    memory = {name: rule.begin(np.zeros(runs)) for name, rule in kinds.items()}
    for _ in range(steps):
        b = g + noise * rng.standard_normal((runs, 2))
        fg, gg = b @ f, (b * b).sum(axis=1)
        moved = {"sdbgd": rules.sdbgd(fg, gg, 0.5, 0.01)}
        for name, rule in kinds.items():
            moved[name], memory[name] = rule(fg, gg, memory[name], 0.5, 0.01, 0.3)
    off = {}
    for name, multiplier in moved.items():
        gap = multiplier[:, None] * (b - g)  # its mean is 0 where λ does not know b
        off[name] = np.abs(gap.mean(axis=0) / (gap.std(axis=0) / np.sqrt(runs))).max()
    assert off["dual"] < 4.5
    assert off["lagged"] < 4.5
    assert off["sdbgd"] > 15


def test_they_are_arithmetic_alone():
    """Floats, arrays, tensors and JAX give the same."""
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    for rule in (Dual(), AveragedProducts(), AveragedProducts(lagged=True)):
        ends = []
        for make in (
            float,
            np.float64,
            lambda v: torch.tensor(v, dtype=torch.float64),
            jnp.asarray,
        ):
            memory = rule.begin(make(0.0))
            for fg, gg in ((-1.0, 0.5), (0.5, 0.2), (-2.0, 1.0)):
                found, memory = rule(make(fg), make(gg), memory, 0.3, 0.1, 0.4)
            ends.append(float(found))
        assert ends == pytest.approx([ends[0]] * 4, rel=1e-5)


def test_noise_that_is_known_is_taken_out_of_the_square():
    """With gg = ‖∇g‖² + ν² throughout, λ is that of ‖∇g‖²; and 0 in place of a square that noise makes negative."""
    rule = AveragedProducts()
    found, _ = rule(-1.0, 0.5 + 0.2, rule.begin(0.0), 0.3, 0.1, 0.2, noise=0.2)
    assert found == pytest.approx(rules.sdbgd(-1.0, 0.5, 0.3, 0.1))
    found, _ = rule(-1.0, 0.1, rule.begin(0.0), 0.3, 0.1, 0.2, noise=0.2)
    assert found == pytest.approx(rules.sdbgd(-1.0, 0.0, 0.3, 0.1))
