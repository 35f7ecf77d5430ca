"""Orders in ε: of variance reduction with the SDBGD rule, of plans, and of stages where g is PL."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from tiebreak import Gaussian, Schedule, methods, minimize, penalty_schedules, rules
from tiebreak.schedules import corollary_powers
from tiebreak.theory import Constants, oracle_complexity, penalty_bounds, plan
from tiebreak.theory.complexity import TABLE

ROWS = {row.key: row for row in TABLE}


def in_epsilon(name: str) -> dict[str, Fraction]:
    """The powers of ε = t^(−1/2) in a method's laws; its number of steps has −2."""
    powers = {
        k: -2 * Fraction(p).limit_denominator(12)
        for k, p in penalty_schedules.POWERS[name].items()
    }
    return powers | {"steps": Fraction(-2)}


@pytest.mark.parametrize("name", ["storm_sdbgd", "spider_sdbgd"])
def test_variance_reduction_under_the_sdbgd_rule(name: str) -> None:
    """‖d − d̂‖ ≤ ‖e_f‖ + M‖e_g‖ has to be of the order ε: both errors just are, and the calls are those of the table.

    Steps have E‖x_{k+1} − x_k‖² ~ η²ε. The error of SPIDER is σ²/B + q ℓ²‖Δx‖²/b, that of STORM ασ²/b + ℓ²‖Δx‖²/(αb).
    """
    e, row = in_epsilon(name), ROWS[name]
    assert {k: e[k] for k in ("step_size", "barrier", "regularizer")} == {
        k: -2 * Fraction(p)
        for k, p in corollary_powers(0.25).items()
        if k in ("step_size", "barrier", "regularizer")
    }
    M = min(e["barrier"], -e["regularizer"] / 2)  # 3β/2 + 2G/√ρ
    moved = 2 * e["step_size"] + 1
    needed = {"upper": Fraction(2), "lower": 2 - 2 * M}
    assert needed["lower"] == 5
    calls = {}
    for level, most in needed.items():
        b = e[f"{level}_batch"]
        if name == "storm_sdbgd":
            errors = [e["momentum"] - b, moved - e["momentum"] - b]
            calls[level] = e["steps"] + b
        else:
            large, q = e[f"{level}_refresh"], e["period"]
            errors = [-large, q + moved - b]
            calls[level] = e["steps"] + min(b, large - q)
            assert (
                b == large - q
            )  # a period that costs as much in large batches as in small ones
        assert min(errors) == max(errors) == most
    assert (-e["steps"], -calls["upper"], -calls["lower"]) == (
        row.iterations,
        row.upper,
        row.lower,
    )


def test_the_multiplier_s_stability_has_the_order_that_was_used() -> None:
    """M ~ ρ^(−1/2) = ε^(−3/2), with β ~ ε^(1/2)."""
    found = [rules.stability(e**0.5, e**3, 1.0) for e in (1e-4, 1e-6)]
    assert math.log(found[1] / found[0]) / math.log(1e-2) == pytest.approx(
        -1.5, abs=1e-3
    )


@pytest.mark.parametrize("c", [1.0, 5.0])
def test_the_errors_and_the_steps_bound_each_other(c: float) -> None:
    """τ² ≤ c(ε² + c₀εX) and X ≤ c(ε + τ + τ²/ε), X = E‖d‖², ηβ ~ ε: the largest X is of the order ε for c₀ < 1/c²."""
    for share, closes in ((0.5, True), (2.0, False)):
        found = []
        for e in (1e-2, 1e-4, 1e-6):
            X = 0.0
            for _ in range(
                2000
            ):  # from below: it grows to the largest X, or without end
                tau2 = c * (e**2 + share / c**2 * e * X)
                X = min(c * (e + math.sqrt(tau2) + tau2 / e), 1e300)
            found.append(X / e)
        assert found == pytest.approx([found[0]] * 3) if closes else min(found) > 1e100


@pytest.mark.parametrize(
    ("name", "iterations", "lower"), [("sdbpg", 2, 6), ("vr_pr_sdbpg", 4, 8)]
)
def test_a_plan_of_what_has_orders_only_says_so(
    name: str, iterations: int, lower: int
) -> None:
    constants = Constants(1, 1, 1, 1, 1, 1, 1)
    for objective in ("bound", "practice"):
        words = rf"only orders are known, ε\^−{iterations} iterations, ε\^−\d upper and ε\^−{lower} lower"
        with pytest.raises(ValueError, match=words):
            plan(constants, budget=10**6, method=name, objective=objective)
    assert not oracle_complexity(0.1, name).exact
    with pytest.raises(
        ValueError,
        match=r"must be one of those with a known bound or model: .*practice, anytime",
    ) as told:
        plan(
            constants,
            budget=10**6,
            method="sdbgd",
            objective="practice",
            kind="horizon",
        )
    assert "orders" not in str(told.value)


def test_lazy_plans_have_the_tables_orders() -> None:
    """Steps, upper and lower calls, of the bound that is computed: ε from 1e-6 to 1e-8, as powers of 1/ε."""
    c, row = Constants(1, 1, 1, 1, 1, 1, 1), ROWS["lazy_penalty"]
    found = [oracle_complexity(e, "lazy_penalty", c) for e in (1e-6, 1e-8)]
    each = [
        [float(n) for n in (one.iterations, one.upper_calls, one.lower_calls)]
        for one in found
    ]
    powers = [math.log10(high / low) / 2 for low, high in zip(*each, strict=True)]
    assert powers == pytest.approx([row.iterations, row.upper, row.lower], abs=0.02)
    lazy, plain = (
        plan(c, budget=10**8, method=name) for name in ("lazy_penalty", "penalty")
    )
    assert lazy.upper_calls < plain.upper_calls / 10
    assert lazy.bounds.direction_squared < 2 * plain.bounds.direction_squared
    for still in ({"sigma_f": 0.0}, {"sigma_g": 0.0}, {"sigma_f": 0.0, "sigma_g": 0.0}):
        assert (
            plan(
                c.replace(**still), budget=10**6, method="lazy_penalty"
            ).bounds.direction_squared
            < 0.2
        )


def test_a_plan_for_an_accuracy_in_practice_reaches_it_where_f_is_slow_too() -> None:
    c = Constants(1, 1, 1, 0.7, 0.7, 4.7, 1.6)
    chosen = plan(c, epsilon=0.02, objective="practice")
    expected = chosen.prediction
    assert expected is not None
    assert max(expected.larger, expected.at_worst) <= 0.02
    assert expected.shortfall <= 1
    with pytest.raises(
        ValueError,
        match=r"epsilon=1e-07 must be at least 4.7e-06 for a plan for practice: f may be",
    ):
        plan(c, epsilon=1e-7, objective="practice")


# ------------------------------------------------------------------------------------------- stages, where g is PL


def stages(
    c: Constants, mu: float, epsilon: float, first: float = 1.0
) -> tuple[list[tuple[Schedule, int]], Constants]:
    """β doubles from stage to stage; each begins where the last one ended. The schedules, and the last stage's gaps.

    In all stages but the last ‖∇Φ‖² ≤ G_f² is enough, with noise that is summable over the stages, 1/j²: at a point
    that is drawn g − inf g ≤ ‖∇g‖²/(2μ), by PL, and E Φ has risen by no more than the noise.
    """
    last = (c.G_f + math.sqrt(epsilon)) / math.sqrt(epsilon)
    doublings = max(0, math.ceil(math.log2(last / first)))
    found, gaps = [], c
    for j in range(doublings + 1):
        beta = last if j == doublings else first * 2**j
        goal = epsilon if j == doublings else c.G_f**2
        L, noise = (
            c.L_f + beta * c.L_g,
            goal / (4 * (1 if j == doublings else (j + 1) ** 2)),
        )
        K = math.ceil(8 * L * (gaps.delta_f + beta * gaps.delta_g) / goal)
        sizes = [
            max(1, math.ceil(v / noise))
            for v in (c.sigma_f**2, (beta * c.sigma_g) ** 2)
        ]
        own = Schedule(1 / (2 * L), beta, None, *sizes, selection=1)
        bound = penalty_bounds(own, gaps, K)
        assert bound.direction_squared <= goal * (1 + 1e-9)
        found.append((own, K))
        if j < doublings:
            risen = K * 2 * noise / (8 * L)  # Lη²V/2 a step
            gaps = gaps.replace(
                delta_f=gaps.delta_f + beta * gaps.delta_g + risen,
                delta_g=bound.lower_gradient_squared / (2 * mu),
            )
    return found, gaps


def test_stages_need_fewer_steps_and_calls_where_g_is_pl() -> None:
    """(ε^−3/2, ε^−5/2, ε^−7/2) for (ε^−2, ε^−3, ε^−4): the last stage's gap is bounded, all others cost less."""
    c, costs, gaps = Constants(1, 1, 1, 1, 1, 1, 1), [], []
    for epsilon in (1e-8, 1e-10, 1e-12):
        made, last = stages(c, 1.0, epsilon)
        each = np.array(
            [[K, K * p.at(0).upper_batch, K * p.at(0).lower_batch] for p, K in made],
            dtype=float,
        )
        costs.append(each.sum(axis=0))
        gaps.append(last.delta_f + made[-1][0].at(0).barrier * last.delta_g)
        assert (each[:-1].sum(axis=0) < 0.2 * each[-1]).all()
    assert gaps[-1] == pytest.approx(
        gaps[0], rel=0.05
    )  # β Δ_g would have grown a hundred times
    for low, high in pairwise(costs):
        np.testing.assert_allclose(np.log10(high / low) / 2, [1.5, 2.5, 3.5], atol=0.02)


def test_stages_hold_what_they_promise() -> None:
    """Simulated where f is not convex: both residuals of the drawn iterate and both gaps, with six standard errors."""

    def upper(
        x,
    ):  # a wave along the minimisers of g, and a pull away from them, towards −3
        away = x[..., 1] + 3
        return 0.6 * np.stack([np.sin(x[..., 0]), away / np.sqrt(1 + away**2)], axis=-1)

    def f(x):
        return 0.6 * (1 - np.cos(x[..., 0])) + 0.6 * (
            np.sqrt(1 + (x[..., 1] + 3) ** 2) - 1
        )

    def lower(x):
        return np.stack([0 * x[..., 0], x[..., 1]], axis=-1)

    sigma, epsilon, x, runs = 0.3, 0.05, np.array([2.5, 1.0]), 16
    levels = [Gaussian(h, sigma, shape=(2,), vectorized=True) for h in (upper, lower)]
    c = Constants(0.6, 1.0, 0.85, sigma * 2**0.5, sigma * 2**0.5, float(f(x)), 0.5)
    made, last = stages(c, 1.0, epsilon)
    assert len(made) >= 3
    starts = np.repeat(x[None], runs, axis=0)
    for j, (own, K) in enumerate(made):
        ends = []
        for run in range(runs):
            result = minimize(
                *levels,
                starts[run],
                method=methods.penalty.replace(schedule=own),
                steps=K,
                seed=[j, run],
                record=None,
            )
            ends.append(result.selected.x)
        starts = np.array(ends)
        if j == len(made) - 2:
            above = starts[:, 1] ** 2 / 2
            assert above.mean() + 6 * above.std() / runs**0.5 < last.delta_g
            assert f(starts).mean() + 6 * f(starts).std() / runs**0.5 < last.delta_f
    beta = own.at(0).barrier
    direction = np.sum((upper(starts) + beta * lower(starts)) ** 2, axis=1)
    for squared in (direction, np.sum(lower(starts) ** 2, axis=1)):
        assert squared.mean() + 6 * squared.std() / runs**0.5 < epsilon
