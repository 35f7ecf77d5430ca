"""Estimators: STORM's recursion, the average's weights, what is remembered, why averages matter at small batches."""

import math
from functools import cache

import numpy as np
import pytest
from scipy import stats

import tiebreak
from tiebreak import (
    Average,
    Exact,
    Method,
    Minibatch,
    Power,
    Schedule,
    Storm,
    methods,
    minimize,
    rules,
)
from tiebreak.estimators.contract import estimate
from tiebreak.schedules import Parameters

ALPHA = 1e-4  # statistical tests fix their seeds and reject at this level
PAPER = tiebreak.problems.paper()


def at(k, momentum=None):
    return Parameters(k, step_size=0.1, momentum=momentum)


def batches(count, runs=3, dimension=4, seed=0):
    """G_k(x) = A_k x + c_k, a different random linear function at every step: multiplicative and additive noise."""
    rng = np.random.default_rng(seed)
    slopes, shifts = (
        rng.normal(size=(count, runs, dimension)),
        rng.normal(size=(count, runs, dimension)),
    )
    points = rng.normal(size=(count, runs, dimension))
    return [
        lambda x, a=a, c=c: a * x + c for a, c in zip(slopes, shifts, strict=True)
    ], points


def step(estimator, level, gradient, x, memory, parameters):
    """The estimate and the memory, as the solver gets them."""
    found, _, memory = estimate(
        estimator, level, gradient, x, memory, parameters, lambda g: 0 * g[:, :1]
    )
    return found, memory


def play(estimator, gradients, points, level="lower", momentum=None):
    """The estimates along given points, handing the memory from step to step as the solver does."""
    memory, estimates = None, []
    for k, (gradient, x) in enumerate(zip(gradients, points, strict=True)):
        found, memory = step(estimator, level, gradient, x, memory, at(k, momentum))
        estimates.append(found)
    return np.array(estimates), memory


# ----------------------------------------------------------------------------------------------------------- recursions


def test_minibatch_is_the_gradient_itself_and_remembers_nothing():
    gradients, points = batches(5)
    estimates, memory = play(Minibatch(), gradients, points)
    assert np.array_equal(
        estimates, [g(x) for g, x in zip(gradients, points, strict=True)]
    )
    assert memory == ()
    assert Minibatch().evaluations == 1


@pytest.mark.parametrize("level", ["upper", "lower"])
@pytest.mark.parametrize(
    "law",
    [0.3, Power(0.5, -1 / 2), lambda k: 1 / (k + 2)],
    ids=["number", "power", "function"],
)
def test_storm_is_its_recursion_at_both_levels(law, level):
    """v₀ = G₀(x₀), v_k = G_k(x_k) + (1 − α_k)(v_{k−1} − G_k(x_{k−1})): the same mini-batch at both points."""
    gradients, points = batches(8)
    estimates, memory = play(Storm(law), gradients, points, level)
    expected = gradients[0](points[0])
    assert np.array_equal(estimates[0], expected)
    for k in range(1, 8):
        alpha = law(k) if callable(law) else law
        expected = gradients[k](points[k]) + (1 - alpha) * (
            expected - gradients[k](points[k - 1])
        )
        np.testing.assert_allclose(estimates[k], expected, rtol=1e-13, atol=1e-13)
    assert np.array_equal(
        memory[0], points[-1]
    )  # where the next batch is evaluated again
    assert np.array_equal(memory[1], estimates[-1])
    assert Storm().evaluations == 2


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_storm_takes_a_short_way_from_the_second_step_on_and_every_bit_is_the_same(
    dtype,
):
    rng, storm = np.random.default_rng(0), Storm(0.3)
    memory = storm.begin("lower", np.zeros((3, 4), dtype), np.zeros((3, 1), dtype))
    for k in range(50):
        fresh, before = (
            10.0 ** rng.integers(-30, 30) * rng.normal(size=(2, 3, 4))
        ).astype(dtype)
        found, after = storm.update("lower", fresh, before, memory, at(k))
        if k:
            again, kept = storm.later("lower", fresh, before, memory, at(k))
            np.testing.assert_array_equal(again, found, strict=True)
            np.testing.assert_array_equal(kept[1], after[1], strict=True)
        memory = after


def test_an_update_of_ones_own_is_taken_at_every_step():
    class Halved(Storm):
        def update(self, level, fresh, before, memory, parameters):
            return fresh / 2, memory

    gradients, points = batches(4)
    for found, gradient, x in zip(
        play(Halved(0.5), gradients, points)[0], gradients, points, strict=True
    ):
        np.testing.assert_array_equal(found, gradient(x) / 2)


def test_storm_evaluates_each_batch_at_both_points_and_the_first_at_one():
    asked = []
    gradients = [lambda x, k=k: asked.append((k, x[0, 0])) or x for k in range(3)]
    points = [np.full((1, 1), float(10 + k)) for k in range(3)]
    play(Storm(0.5), gradients, points)
    assert sorted(asked) == [(0, 10.0), (1, 10.0), (1, 11.0), (2, 11.0), (2, 12.0)]


@pytest.mark.parametrize(
    "estimator", [Storm(1.0), Average(1.0)], ids=["storm", "average"]
)
def test_momentum_one_is_the_minibatch(estimator):
    """α = 1 forgets everything: bit for bit, along a list and through the solver."""
    gradients, points = batches(6)
    assert np.array_equal(
        play(estimator, gradients, points)[0], play(Minibatch(), gradients, points)[0]
    )
    one, two = (
        minimize(
            PAPER.upper,
            PAPER.lower,
            PAPER.x0,
            method=methods.sdbgd.replace(estimator=e),
            steps=40,
            seed=0,
        )
        for e in (estimator, Minibatch())
    )
    assert np.array_equal(one.x, two.x)


def test_storm_without_momentum_of_additive_noise_follows_the_exact_gradient():
    """α = 0 and G_k = ∇ + noise_k: the noise of later batches cancels, v_k = ∇(x_k) + noise₀."""
    rng = np.random.default_rng(1)
    noise, points = rng.normal(size=(2, 10, 3, 4))
    estimates, _ = play(Storm(0.0), [lambda x, z=z: 2 * x + z for z in noise], points)
    np.testing.assert_allclose(estimates, 2 * points + noise[0], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    "law", [0.02, 0.5, Power(0.5, -1 / 2)], ids=["slow", "fast", "power"]
)
def test_average_is_a_weighted_mean_with_weights_that_add_up_to_one(law):
    """m_k = Σ wᵢ Gᵢ / Σ wᵢ, wᵢ = α_i Π_{j>i}(1 − α_j); a constant is returned as it is, at every step."""
    gradients, points = batches(12)
    estimates, _ = play(Average(law), gradients, points)
    fresh = np.array([g(x) for g, x in zip(gradients, points, strict=True)])
    alpha = [law(k) if callable(law) else law for k in range(12)]
    for k in range(12):
        weights = np.array(
            [
                alpha[i] * math.prod(1 - alpha[j] for j in range(i + 1, k + 1))
                for i in range(k + 1)
            ]
        )
        expected = np.tensordot(weights / weights.sum(), fresh[: k + 1], axes=1)
        np.testing.assert_allclose(estimates[k], expected, rtol=1e-12, atol=1e-13)
    constant, _ = play(Average(law), [lambda x: np.full_like(x, 7.0)] * 12, points)
    np.testing.assert_allclose(constant, 7.0, rtol=1e-14)


@pytest.mark.parametrize("rate", [1e-12, 0.02, 1.0])
def test_first_average_is_the_first_gradient(rate):
    """α G / α, two roundings."""
    gradients, points = batches(1)
    np.testing.assert_allclose(
        play(Average(rate), gradients, points)[0][0],
        gradients[0](points[0]),
        rtol=3e-16,
    )


def test_average_leaves_the_upper_gradient_alone():
    gradients, points = batches(6)
    estimates, memory = play(Average(0.1), gradients, points, level="upper")
    assert np.array_equal(estimates, play(Minibatch(), gradients, points)[0])
    assert memory == ()


def test_an_average_with_rate_zero_keeps_the_lower_gradient():
    """α = 0 is legal; its weights would add up to 0, so the newest gradient gets them all."""
    gradients, points = batches(1)
    estimate = play(Average(0.0), gradients, points)[0][0]
    np.testing.assert_allclose(estimate, gradients[0](points[0]))


@pytest.mark.parametrize(
    "estimator",
    [Minibatch(), Storm(0.2), Average(0.05)],
    ids=["minibatch", "storm", "average"],
)
def test_estimates_are_unbiased_at_a_point_that_stays(estimator):
    """At a fixed x every estimator's mean is ∇(x), from the first step on: z-tests over 4000 independent runs."""
    rng = np.random.default_rng(3)
    runs, steps = 4000, 15
    x, exact = np.ones((runs, 1)), 2.0
    gradients = [
        lambda x, z=z: exact * x + z for z in rng.normal(size=(steps, runs, 1))
    ]
    estimates, _ = play(estimator, gradients, [x] * steps)
    for found in estimates[:, :, 0]:
        z = (found.mean() - exact) / (found.std() / math.sqrt(runs))
        assert 2 * stats.norm.sf(abs(z)) > ALPHA / steps


def test_averaging_reduces_the_variance_as_its_weights_say():
    """Var m_k = σ² Σ wᵢ², here in the long run α/(2 − α): the chi-square interval over 4000 runs."""
    rng, alpha, runs = np.random.default_rng(4), 0.1, 4000
    gradients = [lambda x, z=z: z for z in rng.normal(size=(150, runs, 1))]
    last = play(Average(alpha), gradients, [np.zeros((runs, 1))] * 150)[0][-1, :, 0]
    share = stats.chi2.cdf((last**2).sum() / (alpha / (2 - alpha)), runs)
    assert ALPHA / 2 < share < 1 - ALPHA / 2


# ------------------------------------------------------------------------------------------------------ the contract


@pytest.mark.parametrize(
    ("estimator", "level"),
    [(Storm(0.2), "upper"), (Storm(0.2), "lower"), (Average(0.2), "lower")],
)
def test_memory_is_a_tuple_of_arrays_with_runs_first(estimator, level):
    """So that the solver may save it, and drop the rows of runs that ended: each row depends on its own run alone."""
    gradients, points = batches(5, runs=4)
    estimates, memory = play(estimator, gradients, points, level)
    assert isinstance(memory, tuple)
    assert all(isinstance(array, np.ndarray) and len(array) == 4 for array in memory)
    rows = [3, 1]
    kept = tuple(array[rows] for array in memory)
    x = np.full((4, 4), 0.5)

    def gradient(z):
        return 3 * z

    whole, _ = step(estimator, level, gradient, x, memory, at(5))
    part, _ = step(estimator, level, gradient, x[rows], kept, at(5))
    assert np.array_equal(part, whole[rows])
    assert estimates.shape == (5, 4, 4)


@pytest.mark.parametrize(
    "estimator",
    [Minibatch(), Storm(0.2), Average(0.2)],
    ids=["minibatch", "storm", "average"],
)
def test_memory_and_points_are_not_changed_in_place(estimator):
    gradients, points = batches(3)
    _, memory = play(estimator, gradients, points)
    before = [array.copy() for array in (*(memory or ()), points[-1])]
    step(estimator, "lower", gradients[0], points[-1], memory, at(3))
    assert all(
        np.array_equal(x, y)
        for x, y in zip((*(memory or ()), points[-1]), before, strict=True)
    )


@pytest.mark.parametrize(
    "estimator", [Storm(0.2), Average(0.2)], ids=["storm", "average"]
)
def test_float32_stays_float32(estimator):
    points = [np.ones((2, 3), dtype=np.float32)] * 4
    estimates, memory = play(estimator, [lambda x: 2 * x] * 4, points)
    assert estimates.dtype == np.float32
    assert all(array.dtype == np.float32 for array in memory)


@pytest.mark.parametrize("kind", [Storm, Average])
def test_momentum_comes_from_the_estimator_or_else_from_the_schedule(kind):
    """A method puts the estimator's own law into its schedule: one place to look for it."""
    own = methods.vr_pr_sdbpg.replace(estimator=kind(0.3))
    scheduled = methods.vr_pr_sdbpg.replace(estimator=kind(), momentum=0.3)
    ends = [
        minimize(PAPER.upper, PAPER.lower, PAPER.x0, method=m, steps=30, seed=0).x
        for m in (own, scheduled)
    ]
    assert own.schedule.at(7).momentum == 0.3
    assert np.array_equal(*ends)
    assert not np.array_equal(
        ends[0],
        minimize(
            PAPER.upper, PAPER.lower, PAPER.x0, method="vr_pr_sdbpg", steps=30, seed=0
        ).x,
    )


@pytest.mark.parametrize("kind", [Storm, Average])
def test_a_missing_momentum_is_named_when_the_method_is_made(kind):
    """Before any step: neither the estimator nor the schedule gives it. Either of them is enough."""
    with pytest.raises(
        ValueError,
        match=rf"{kind.__name__} needs \['momentum'\]: give .* or set it in the schedule",
    ):
        methods.sdbgd.replace(estimator=kind())
    assert methods.sdbgd.replace(estimator=kind(0.5)).estimator.momentum == 0.5
    assert methods.vr_pr_sdbpg.replace(estimator=kind()).schedule.momentum is not None
    gradients, points = batches(3)
    with pytest.raises(
        ValueError,
        match=rf"momentum of {kind.__name__} at step . is None; it must be in \[0, 1\]",
    ):
        play(kind(), gradients, points)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf])
@pytest.mark.parametrize("kind", [Storm, Average])
def test_an_illegal_momentum_is_named(kind, value):
    gradients, points = batches(3)
    with pytest.raises(ValueError, match=rf"{value!r}.* must be in \[0, 1\]"):
        play(kind(value), gradients, points)
    with pytest.raises(
        ValueError,
        match=rf"momentum of {kind.__name__} at step 2 is {value!r}; it must be in \[0, 1\]",
    ):
        play(kind(lambda k: value if k == 2 else 0.5), gradients, points)


@pytest.mark.parametrize("value", [-0.1, 1.5, math.nan])
def test_a_constant_momentum_is_refused_before_the_first_step(value):
    """STORM's first estimate does not look at its momentum; the constructor does."""
    seen = []
    with pytest.raises(ValueError, match=r"must be in \[0, 1\]"):
        minimize(
            PAPER.upper,
            PAPER.lower,
            PAPER.x0,
            method=methods.sdbgd.replace(estimator=Storm(value)),
            steps=3,
            callback=lambda record: seen.append(record.step),
        )
    assert seen == []


def test_an_estimator_of_ones_own_is_charged_what_it_says():
    class Twice(tiebreak.estimators.Estimator):
        evaluations = 2

        def begin(self, level, zeros, zero):
            return ()

        def update(self, level, fresh, before, memory, parameters):
            return (fresh + before) / 2, memory

    level = Exact(lambda x: x)
    result = minimize(
        level, level, [1.0], method=methods.dbgd.replace(estimator=Twice()), budget=15
    )
    assert (result.steps, result.upper_calls, result.lower_calls) == (
        4,
        7,
        7,
    )  # 1, then 2 each


def test_an_estimate_may_stay_out_of_the_direction():
    """`direction=False`: the rule sees the average, and the step is made of the batch's own gradients."""
    gradients, points = batches(2, runs=1)
    method = Method(
        "λ alone", rules.sdbgd, Schedule(0.1, 1.0, 0.5), Average(0.3, direction=False)
    )
    tokens = iter(gradients)

    class Level:
        def sample(self, rng, size):
            return next(tokens)

        def gradient(self, x, token):
            return token(x[None])[0]

    upper = np.array([1.0, -2.0, 0.5, 3.0])
    x, mean, weight = points[0, 0], np.zeros(4), 0.0
    found = minimize(
        lambda x: upper, Level(), x, method=method, steps=2, seed=0, record=None
    ).x
    for gradient in gradients:
        g = gradient(x[None])[0]
        mean, weight = 0.7 * mean + 0.3 * g, 0.7 * weight + 0.3
        seen = mean / weight
        x = x - 0.1 * (upper + rules.sdbgd(upper @ seen, seen @ seen, 1.0, 0.5) * g)
    np.testing.assert_allclose(found, x, rtol=1e-12)


@pytest.mark.parametrize("wrong", ["momentum", object(), 3, None])
def test_what_is_no_estimator_is_refused(wrong):
    with pytest.raises(
        TypeError,
        match=r"estimator=.* must be one of 'minibatch', 'average', 'storm', or a subclass",
    ):
        Method("x", rules.dbgd, Schedule(0.1, 1.0), wrong)


def test_an_estimator_evaluates_once_or_twice():
    class Thrice(Minibatch):
        evaluations = 3

    with pytest.raises(TypeError, match=r"evaluations=3 of .* must be 1 or 2"):
        methods.sdbgd.replace(estimator=Thrice())


# --------------------------------------------------------------------------------------------- batches that cannot grow


CONSTANTS = {
    "step_size": Power(0.05, -1 / 4),
    "regularizer": 1e-3,
}  # η as in the paper; β and ρ constant

#: (rule, estimator, β, mean ‖∇g‖² as an independent program measured it at batches 2, 16 and 256, to two digits).
CAPPED = {
    "minibatch": (rules.sdbgd, Minibatch(), 0.5, {2: 0.33, 16: 0.10, 256: 0.025}),
    "fixed weight": (rules.constant, Minibatch(), 0.5, {2: 0.57, 16: 0.57, 256: 0.57}),
    "growing penalty": (
        rules.constant,
        Minibatch(),
        Power(0.5, 1 / 4),
        {2: 0.055, 16: 0.053, 256: 0.053},
    ),
    "average": (rules.sdbgd, Average(0.02), 0.5, {2: 0.029, 16: 0.018, 256: 0.016}),
}


@cache
def over_the_last_fifth(name, batch, runs=20, steps=6000):
    """Mean of ‖∇g(x_k)‖² over k ≥ 4800 and all runs, and its standard error, from the runs' own means."""
    rule, estimator, barrier, _ = CAPPED[name]
    schedule = Schedule(
        **CONSTANTS, barrier=barrier, upper_batch=batch, lower_batch=batch
    )
    method = Method(name, rule, schedule, estimator)
    options = {"method": method, "steps": steps, "runs": runs, "seed": 6, "record": 10}
    history = minimize(PAPER.upper, PAPER.lower, PAPER.x0, **options).history
    last = (history.step >= 4 * steps // 5) & (history.step < steps)
    means = history.lower_gradient_squared[last].mean(axis=0)
    return means.mean(), means.std(ddof=1) / math.sqrt(runs)


@pytest.mark.parametrize("batch", [2, 16, 256])
@pytest.mark.parametrize("name", CAPPED)
def test_capped_batches_as_measured(name, batch):
    """Within 8 % of an independent program's two digits, which another η may have moved, and four standard errors."""
    measured = CAPPED[name][-1][batch]
    mean, error = over_the_last_fifth(name, batch)
    assert error < 0.05 * measured  # enough runs to tell
    assert abs(mean - measured) < 0.08 * measured + 4 * error


def test_with_small_batches_the_minibatch_multiplier_sacrifices_g_and_the_average_does_not():
    """At batch 2 the mini-batch multiplier stalls, and the average is better by a factor of eight or more, better even
    than the growing penalty. Four standard errors on each side: a false alarm has a chance below 1e-4."""
    found = {name: over_the_last_fifth(name, 2) for name in CAPPED}
    high = {name: mean + 4 * error for name, (mean, error) in found.items()}
    low = {name: mean - 4 * error for name, (mean, error) in found.items()}
    assert 8 * high["average"] < low["minibatch"]
    assert high["average"] < low["growing penalty"]
    assert 4 * high["growing penalty"] < low["minibatch"]
    assert high["minibatch"] < low["fixed weight"]


def test_the_stall_is_the_noise_in_gg():
    """Without noise the same method descends: it is ‖b‖² ≈ ‖∇g‖² + ν² that makes λ ≈ β.

    Where d = 0, β‖∇g‖³ = ρ‖∇f‖ (b against a): the slack, and nothing else, is what remains of ‖∇g‖.
    """
    exact = [
        Exact(level.exact_gradient, vectorized=True)
        for level in (PAPER.upper, PAPER.lower)
    ]
    method = Method("exact", rules.sdbgd, Schedule(**CONSTANTS, barrier=0.5))
    last = minimize(*exact, PAPER.x0, method=method, steps=6000, record=None).last
    norm = np.linalg.norm(PAPER.upper.exact_gradient(last.x))
    assert last.lower_gradient_squared == pytest.approx(
        (1e-3 * norm / 0.5) ** (2 / 3), rel=1e-3
    )


@pytest.mark.parametrize(
    ("returned", "said"),
    [(lambda g: g, "ndarray"), (lambda g: (g, (), 1), "a tuple of 3")],
)
def test_an_update_that_returns_something_else_is_told_what_to_return(returned, said):
    class Wrong(tiebreak.Average):
        def update(self, level, fresh, before, memory, parameters):
            return returned(fresh)

    problem = tiebreak.problems.paper()
    method = tiebreak.methods.penalty.replace(estimator=Wrong(0.5))
    with pytest.raises(
        TypeError, match=rf"Wrong: update must return \(estimate, memory\), not {said}"
    ):
        tiebreak.minimize(
            problem.upper, problem.lower, problem.x0, method=method, budget=1000, seed=0
        )


# ------------------------------------------------------------------------------------------------------ runs kept apart


class Normed(tiebreak.estimators.Estimator):
    """An average of the gradients with the length of the fresh one; `axis=None` takes both lengths of all runs."""

    evaluations = 1

    def __init__(self, axis):
        self.axis = axis

    def begin(self, level, zeros, zero):
        return (zeros,)

    def update(self, level, fresh, before, memory, parameters):
        mean = 0.9 * memory[0] + 0.1 * fresh
        lengths = (
            np.linalg.norm(v, axis=self.axis, keepdims=True) for v in (fresh, mean)
        )
        return mean * next(lengths) / next(lengths), (mean,)


@pytest.mark.parametrize(
    "wrap",
    [lambda e: e, lambda e: tiebreak.estimators.PerLevel(upper=Minibatch(), lower=e)],
)
def test_an_estimator_that_couples_runs_is_refused_before_they_begin(wrap):
    def solved(axis, **options):
        method = methods.sdbgd.replace(estimator=wrap(Normed(axis)))
        return minimize(
            PAPER.upper,
            PAPER.lower,
            PAPER.x0,
            method=method,
            steps=5,
            seed=0,
            **options,
        )

    with pytest.raises(
        ValueError,
        match=r"the estimate of a run depends on the runs beside it.* axis=-1",
    ):
        solved(None, runs=3)
    assert np.array_equal(solved(-1, runs=3).x[1], solved(-1, runs=[1]).x[0])
    assert np.array_equal(
        solved(None).x, solved(-1).x
    )  # of a single run it is the same


def test_a_rule_that_couples_runs_is_refused_and_one_that_is_random_is_not():
    def solved(rule):
        return minimize(
            PAPER.upper,
            PAPER.lower,
            PAPER.x0,
            method=methods.sdbgd.replace(rule=rule),
            steps=5,
            runs=2,
        )

    with pytest.raises(ValueError, match="λ of a run depends on the runs beside it"):
        solved(lambda fg, gg: gg / gg.max())
    rng = np.random.default_rng(0)
    assert solved(lambda fg, gg: rng.random(gg.shape)).steps.tolist() == [5, 5]
    assert solved(lambda fg, gg, ff, k: np.sqrt(ff) / (1 + k)).steps.tolist() == [5, 5]
