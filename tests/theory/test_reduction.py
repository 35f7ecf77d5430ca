"""SPIDER, PAGE, STORM by level, held batches: against plain loops, charged exactly, resumable at any step."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import tiebreak
from tiebreak import (
    Held,
    Method,
    Minibatch,
    Page,
    PerLevel,
    Power,
    Schedule,
    Spider,
    Storm,
    methods,
    minimize,
    rules,
)
from tiebreak.estimators.contract import estimate
from tiebreak.estimators.recursive import coin
from tiebreak.solver.budget import Many, Steps, calls, steps_within

PAPER = tiebreak.problems.paper()
ALPHA = 1e-4  # of a false alarm

SMALL = {
    "step_size": 0.05,
    "barrier": 1.0,
    "upper_batch": 2,
    "lower_batch": 3,
    "upper_refresh": 7,
    "lower_refresh": 11,
}
RECIPES = {
    "spider": Method("spider", rules.constant, Schedule(**SMALL, period=4), Spider()),
    "page": Method(
        "page", rules.constant, Schedule(**SMALL, probability=0.3), Page(seed=5)
    ),
    "storm": Method(
        "storm",
        rules.constant,
        Schedule(**SMALL, upper_momentum=0.5, lower_momentum=Power(1, -0.5)),
        Storm(),
    ),
    "held": Method(
        "held",
        rules.constant,
        Schedule(**SMALL, upper_hold=3),
        PerLevel(Held(), Minibatch()),
    ),
    "held and spider": Method(
        "both",
        rules.constant,
        Schedule(**SMALL, upper_hold=3, period=Power(1, 0.5)),
        PerLevel(Held(), Spider()),
    ),
    "held spider": Method(
        "lazy",
        rules.constant,
        Schedule(**SMALL, upper_hold=2, lower_hold=3, period=3),
        Held(Spider()),
    ),
    "held storm": Method(
        "lazy storm",
        rules.constant,
        Schedule(**SMALL, upper_hold=2, lower_hold=1, momentum=0.4),
        Held(Storm()),
    ),
}


class Multiplicative:
    """A batch is really drawn, its noise depends on x, and every evaluation is counted."""

    def __init__(self, centre):
        self.centre, self.evaluated = np.asarray(centre, dtype=float), 0

    def sample(self, rng, size):
        return size, 0.3 * rng.standard_normal((size, 2)).mean(axis=0)

    def gradient(self, x, token):
        size, noise = token
        self.evaluated += size
        return (1 + noise) * (x - self.centre) + noise[::-1] * np.sin(x)


def levels():
    return Multiplicative([2.0, -1.0]), Multiplicative([0.0, 0.5])


def streams(seed, run=0):
    return [
        np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(run, purpose)))
        for purpose in range(2)
    ]


class Level:
    """One level of a slow solver: `ask(k)` says (samples, points), `keep(k)` what of v_{k−1} is kept."""

    def __init__(self, oracle, rng, ask, keep):
        self.oracle, self.rng, self.ask, self.keep = oracle, rng, ask, keep
        self.v = self.previous = None
        self.calls = 0

    def estimate(self, k, x):
        samples, points = self.ask(k)
        self.calls += samples * points
        if points:
            token = self.oracle.sample(self.rng, samples)
            v = self.oracle.gradient(x, token)
            if points == 2:
                v = v + self.keep(k) * (
                    self.v - self.oracle.gradient(self.previous, token)
                )
            self.v, self.previous = v, x
        return self.v


def refreshing(when, small, large):
    return lambda k: (large, 1) if when(k) else (small, 2)


#: By recipe: for each level what is asked at step k, and what is kept, written out from their definitions.
ASKS = {
    "spider": [
        refreshing(lambda k: k % 4 == 0, 2, 7),
        refreshing(lambda k: k % 4 == 0, 3, 11),
    ],
    "page": [
        refreshing(lambda k: k == 0 or coin(k, 5) < 0.3, s, b)
        for s, b in ((2, 7), (3, 11))
    ],
    "storm": [lambda k: (2, 1 + (k > 0)), lambda k: (3, 1 + (k > 0))],
    "held": [lambda k: (2, 1 if k % 3 == 0 else 0), lambda k: (3, 1)],
    "held and spider": [
        lambda k: (2, 1 if k % 3 == 0 else 0),
        refreshing(lambda k: k % math.isqrt(k + 1) == 0, 3, 11),
    ],
    "held spider": [
        lambda k: (2, 0) if k % 2 else refreshing(lambda j: j % 3 == 0, 2, 7)(k // 2),
        lambda k: (3, 0) if k % 3 else refreshing(lambda j: j % 3 == 0, 3, 11)(k // 3),
    ],
    "held storm": [
        lambda k: (2, 0) if k % 2 else (2, 1 + (k > 0)),
        lambda k: (3, 1 + (k > 0)),
    ],
}
KEEPS = {
    "storm": [lambda k: 0.5, lambda k: 1 - 1 / math.sqrt(k + 1)],
    "held storm": [lambda k: 0.6, lambda k: 0.6],
}


def slow(name, steps, seed=0):
    x, oracles = np.array([1.0, 1.0]), levels()
    keeps = KEEPS.get(name, [lambda k: 1.0] * 2)
    upper, lower = (
        Level(*parts)
        for parts in zip(oracles, streams(seed), ASKS[name], keeps, strict=True)
    )
    for k in range(steps):
        x = x - 0.05 * (upper.estimate(k, x) + 1.0 * lower.estimate(k, x))
    return x, upper.calls, lower.calls


@pytest.mark.parametrize("name", RECIPES)
def test_every_estimator_equals_a_plain_loop(name):
    for steps in (1, 2, 7, 40):
        oracles = levels()
        found = minimize(
            *oracles, [1.0, 1.0], method=RECIPES[name], steps=steps, seed=0
        )
        x, upper, lower = slow(name, steps)
        np.testing.assert_allclose(found.x, x, rtol=1e-12)
        assert (found.upper_calls, found.lower_calls) == (upper, lower)
        assert tuple(oracle.evaluated for oracle in oracles) == (
            upper,
            lower,
        )  # asked is charged


@pytest.mark.parametrize("name", [*RECIPES, *methods.METHODS])
@settings(max_examples=12, deadline=None)
@given(budget=st.integers(60, 3000))
def test_what_is_charged_is_what_the_oracles_were_asked(name, budget):
    method = RECIPES[name] if name in RECIPES else methods.METHODS[name]
    oracles = levels()
    found = minimize(
        *oracles, [1.0, 1.0], method=method, budget=budget, seed=1, record=None
    )
    # VR-PR-SDBPG charges its first batches twice, and evaluates them at x_0 alone.
    extra = 1 if name == "vr_pr_sdbpg" else 0
    assert [oracle.evaluated + extra for oracle in oracles] == [
        found.upper_calls,
        found.lower_calls,
    ]
    assert (
        found.calls <= budget < found.calls + sum(calls(method, method.at(found.steps)))
    )
    assert steps_within(method, budget) == (
        found.steps,
        found.upper_calls,
        found.lower_calls,
    )


@st.composite
def schedules(draw):
    """Laws that are constant or powers, of every parameter that an estimator may need."""

    def law(most):
        return Power(
            draw(st.floats(0.5, most)), draw(st.sampled_from([0, 0, 0, 0.3, 0.5, 1.0]))
        )

    names = (
        "upper_batch",
        "lower_batch",
        "upper_refresh",
        "lower_refresh",
        "period",
        "upper_hold",
        "lower_hold",
    )
    laws = {name: law(9) for name in names} | {
        "probability": draw(st.floats(0, 1)),
        "momentum": 0.5,
    }
    return Schedule(step_size=0.1, barrier=1.0, **laws)


ESTIMATORS = [
    Minibatch(),
    Storm(),
    Spider(),
    Page(),
    Held(Spider()),
    Held(Storm()),
    PerLevel(Held(), Spider()),
    PerLevel(Held(Page()), Minibatch()),
    PerLevel(Minibatch(), Held(Minibatch())),
]


@settings(max_examples=60, deadline=None)
@given(
    schedule=schedules(),
    kind=st.sampled_from(ESTIMATORS),
    budget=st.integers(1, 4000),
    horizon=st.integers(0, 300),
)
def test_counting_at_once_equals_counting_step_by_step(schedule, kind, budget, horizon):
    """Any laws, any estimator, any budget: the array count and the closed form of constant laws are the plain sum."""
    if isinstance(kind, PerLevel):
        schedule = schedule.replace(upper_momentum=0.5, lower_momentum=0.5)
    method = Method("any", rules.constant, schedule, kind)
    fitting = Steps(method, budget=budget, steps=horizon)
    each = [calls(method, parameters) for parameters in fitting]
    sums = tuple(sum(level) for level in zip(*each, strict=True)) if each else (0, 0)
    assert steps_within(method, budget, horizon) == (len(each), *sums)
    many = calls(method, Many(schedule, 60))
    assert np.array_equal(
        np.transpose(many), [calls(method, method.at(k)) for k in range(60)]
    )


def test_a_hundred_million_spider_steps_are_counted_at_once():
    method = RECIPES["spider"]
    period = 7 + 11 + 3 * 2 * (2 + 3)
    steps, upper, lower = steps_within(method, 10**30)
    assert upper + lower <= 10**30 < upper + lower + 18
    assert abs(steps - 4 * 10**30 // period) < 8


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_stopped_at_any_step_goes_on_as_if_it_never_had(name, tmp_path):
    options = {
        "method": RECIPES[name],
        "runs": 2,
        "seed": 3,
        "record": 1,
        "keep_iterates": True,
    }
    whole = minimize(*levels(), [1.0, 1.0], steps=14, **options)
    path = tmp_path / "run.npz"
    for stop in range(1, 14):
        minimize(*levels(), [1.0, 1.0], steps=stop, **options).save(path)
        resumed = minimize(*levels(), resume=path, method=RECIPES[name], steps=14)
        assert np.array_equal(resumed.history.x, whole.history.x)
        assert np.array_equal(resumed.history.calls, whole.history.calls)
        assert np.array_equal(resumed.selected.x, whole.selected.x)


def test_another_coin_is_another_method(tmp_path):
    minimize(*levels(), [1.0, 1.0], method=RECIPES["page"], steps=3, seed=0).save(
        tmp_path / "run.npz"
    )
    other = RECIPES["page"].replace(estimator=Page(seed=6))
    with pytest.raises(ValueError, match="another rule, estimator or schedule"):
        minimize(*levels(), resume=tmp_path / "run.npz", method=other, steps=6)


def test_runs_side_by_side_equal_runs_alone():
    for name in ("page", "held and spider"):
        both = minimize(
            *levels(), [1.0, 1.0], method=RECIPES[name], steps=20, runs=3, seed=2
        ).x
        alone = minimize(
            *levels(), [1.0, 1.0], method=RECIPES[name], steps=20, runs=[2], seed=2
        ).x
        assert np.array_equal(both[2:], alone)


# -------------------------------------------------------------------------------------------------- statistics


def test_the_coin_is_fair_and_has_no_memory():
    """Uniform (Kolmogorov–Smirnov), neighbours and seeds uncorrelated, arrays as single numbers."""
    k = np.arange(20_000)
    found = coin(k, 0)
    assert stats.kstest(found, "uniform").pvalue > ALPHA
    assert [coin(int(i), 0) for i in k[:50]] == found[:50].tolist()
    big = np.array([2**32 + 5, 2**40])
    assert [coin(int(i), 2**35) for i in big] == coin(big, 2**35).tolist()
    for other in (coin(k + 1, 0), coin(k, 1), coin(k + 2**32, 0), coin(k, 2**32)):
        assert abs(np.corrcoef(found, other)[0, 1]) < 4 / math.sqrt(len(k))


def test_variance_of_spider_within_a_period():
    """At points that move by δ each step, noise (1 + ζ) x of variance ℓ²: Var e_k = ℓ²x²/B + Σ ℓ²δ²/b, and mean 0."""
    runs, steps, period, delta, sigma = 4000, 7, 7, 0.5, 0.4
    rng = np.random.default_rng(0)
    method = Method(
        "s",
        rules.constant,
        Schedule(
            0.1, 1.0, lower_batch=2, lower_refresh=16, upper_refresh=1, period=period
        ),
        Spider(),
    )
    memory, expected = None, 0.0
    for k in range(steps):
        parameters = method.at(k)
        x = np.full((runs, 1), 1.0 + delta * k)
        noise = (
            sigma * rng.standard_normal((runs, 1)) / math.sqrt(parameters.lower_batch)
        )

        def gradient(z, wanted=True, noise=noise):
            return (1 + noise) * z if wanted else 0 * z

        found, _, memory = estimate(
            method.estimator,
            "lower",
            gradient,
            x,
            memory,
            parameters,
            lambda g: 0 * g[:, :1],
        )
        expected += (
            sigma**2 * (x[0, 0] ** 2 if k == 0 else delta**2) / parameters.lower_batch
        )
        error = (found - x)[:, 0]
        assert abs(error.mean()) < stats.norm.isf(ALPHA) * math.sqrt(expected / runs)
        share = stats.chi2.cdf((error**2).sum() / expected, runs)
        assert ALPHA / 2 < share < 1 - ALPHA / 2


def test_storm_has_a_momentum_of_its_own_for_each_level():
    """Var v at a fixed point: α/(2 − α) · σ² in the long run, with each level's own α."""
    rng, runs, steps = np.random.default_rng(1), 3000, 120
    method = methods.storm_penalty.replace(
        momentum=None, upper_momentum=0.5, lower_momentum=0.1
    )
    x = np.zeros((runs, 1))
    for level, alpha in (("upper", 0.5), ("lower", 0.1)):
        memory = None
        for k in range(steps):
            noise = rng.standard_normal((runs, 1))
            found, _, memory = estimate(
                Storm(),
                level,
                lambda z, noise=noise: z + noise,
                x,
                memory,
                method.at(k),
                lambda g: 0 * g[:, :1],
            )
        share = stats.chi2.cdf((found**2).sum() / (alpha / (2 - alpha)), runs)
        assert ALPHA / 2 < share < 1 - ALPHA / 2


# ------------------------------------------------------------------------------------------------------ complaints


def test_what_the_schedule_lacks_is_named():
    with pytest.raises(
        ValueError, match=r"Spider needs \['period', 'upper_refresh', 'lower_refresh'\]"
    ):
        methods.sdbgd.replace(estimator=Spider())
    with pytest.raises(ValueError, match=r"Storm needs \['momentum'\]"):
        methods.sdbgd.replace(estimator=Storm(), upper_momentum=0.3)
    assert (
        methods.sdbgd.replace(estimator=Storm(), upper_momentum=0.3, lower_momentum=0.2)
        .at(4)
        .lower_momentum
        == 0.2
    )
    with pytest.raises(ValueError, match=r"probability=1\.5 must be in \[0, 1\]"):
        Schedule(0.1, probability=1.5)
    with pytest.raises(ValueError, match="seed"):
        Page(seed=-1)
    with pytest.raises(ValueError, match="lower_momentum"):
        PerLevel(Minibatch(), Storm(0.3))


def test_an_estimator_that_asks_for_what_cannot_be_is_named():
    class Odd(Minibatch):
        def asks(self, level, parameters):
            return 0.5, 1

    with pytest.raises(
        ValueError,
        match=r"Odd asks for 0\.5 samples at 1 points in step 0, at the upper level",
    ):
        methods.sdbgd.replace(estimator=Odd()).at(0)


def test_a_rule_that_needs_a_loss_needs_a_batch():
    method = Method(
        "v",
        rules.by_value,
        Schedule(0.1, lower_hold=2, others={"target": 0.0}),
        PerLevel(Minibatch(), Held()),
    )
    with pytest.raises(ValueError, match="draws none in step 1"):
        minimize(PAPER.upper, PAPER.lower, PAPER.x0, method=method, steps=3)


@pytest.mark.parametrize("name", tiebreak.penalty_schedules.POWERS)
def test_a_horizon_is_the_anytime_schedule_at_its_end(name):
    K = 37
    fixed, growing = (
        tiebreak.penalty_schedules.schedule(name, k, barrier=2.0) for k in (K, None)
    )
    assert fixed.constant()
    for parameter in tiebreak.penalty_schedules.POWERS[name]:
        assert getattr(fixed.at(3), parameter) == getattr(growing.at(K - 1), parameter)
    with pytest.raises(TypeError, match="penalty=2 has no effect"):
        tiebreak.penalty_schedules.schedule(name, penalty=2)
    with pytest.raises(ValueError, match=r"barrier=0.*finite and > 0"):
        tiebreak.penalty_schedules.schedule(name, barrier=0)
