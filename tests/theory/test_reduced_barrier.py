"""SDBGD on SPIDER's and STORM's estimates: the algebra symbolically, the closed form by attack, the bound on runs."""

import math

import mpmath as mp
import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import tiebreak
from tiebreak import Power, Schedule, methods, minimize
from tiebreak.estimators import Minibatch, Page, PerLevel, Spider, Storm
from tiebreak.problems import worst_case
from tiebreak.schedules import Parameters
from tiebreak.theory import Constants, plan, proved, residual_bounds
from tiebreak.theory.bounds import Laws, terms, theorem_1, ways_to_add
from tiebreak.theory.reduction import (
    Means,
    barrier_residuals,
    geometric,
    means_of,
    refreshed_errors,
    storm_errors,
)

scales = st.floats(-2, 2).map(lambda e: 10.0**e)
small = st.floats(-8, -1).map(lambda e: 10.0**e)
constants_ = st.builds(Constants, *[scales] * 7)


def test_the_algebra_of_the_closed_form():
    """√T from T = V + κ²(√X+√T)², what it is at most, and that R is R(0) + 4G_f τ + cτ²."""
    u, v, V, kappa = sp.symbols("u v V kappa", positive=True)
    root = (kappa**2 * u + sp.sqrt(kappa**2 * u**2 + (1 - kappa**2) * V)) / (
        1 - kappa**2
    )
    assert sp.simplify((V + kappa**2 * (u + v) ** 2 - v**2).subs(v, root)) == 0
    # The square root of a sum is at most the sum of the roots: with V = 0 and with u = 0 there is equality.
    assert sp.simplify(root.subs(V, 0) - kappa * u / (1 - kappa)) == 0
    assert sp.simplify(root.subs(u, 0) ** 2 - V / (1 - kappa**2)) == 0
    eta, beta, rho, tau, L_f, L_g, G = sp.symbols(
        "eta beta rho tau L_f L_g G", positive=True
    )
    C_f = G * tau + L_f * eta * tau**2
    C_g = beta * rho + G * sp.sqrt(rho) / 2 + tau**2 / (2 * beta) + L_g * eta * tau**2
    R = 4 * C_f + 8 * beta * C_g + C_g / (L_g * eta) + 8 * beta * L_g * eta * G**2
    square = 4 * L_f * eta + (8 * beta + 1 / (L_g * eta)) * (1 / (2 * beta) + L_g * eta)
    assert sp.expand(R - R.subs(tau, 0) - 4 * G * tau - square * tau**2) == 0


@given(
    constants_,
    st.floats(0.001, 1),
    st.floats(0.001, 1),
    small,
    small,
    small,
    st.floats(-6, -0.5),
    st.integers(1, 10**9),
)
@settings(max_examples=200, deadline=None)
def test_no_larger_residual_meets_both_inequalities(
    c, share, beta, rho, noise_f, noise_g, log_kappa, K
):
    """In 50 digits: beyond the bound on X, the largest T that the first inequality allows is too small."""
    eta = share * c.largest_step_size
    M = 1.5 * beta + 2 * c.G_f / math.sqrt(rho)
    drift = 10.0 ** (2 * log_kappa) / (2 * (eta * M) ** 2)
    p = Laws(eta, beta, rho, 1.0, 1.0)
    lower, direction = barrier_residuals(
        p, c, Means(noise_f, drift), Means(noise_g / M**2, drift), float(K)
    )
    with mp.workdps(50):
        eta, beta, rho, G = (mp.mpf(value) for value in (eta, beta, rho, c.G_f))
        M = 3 * beta / 2 + 2 * G / mp.sqrt(rho)
        V = 2 * (mp.mpf(noise_f) + M**2 * mp.mpf(float(noise_g / float(M) ** 2)))
        kappa2 = 2 * eta**2 * mp.mpf(drift) * (1 + M**2)

        def C_g(tau2):
            return (
                beta * rho
                + G * mp.sqrt(rho) / 2
                + tau2 / (2 * beta)
                + c.L_g * eta * tau2
            )

        def X_of(tau2):
            C_f = G * mp.sqrt(tau2) + c.L_f * eta * tau2
            R = (
                4 * C_f
                + 8 * beta * C_g(tau2)
                + C_g(tau2) / (c.L_g * eta)
                + 8 * beta * c.L_g * eta * G**2
            )
            return (
                4 * c.delta_f / eta
                + (8 * beta * eta * c.L_g + 1) / (eta**2 * c.L_g) * c.delta_g
            ) / K + R

        def T_of(X):
            u, k = mp.sqrt(X), mp.sqrt(kappa2)
            return (
                ((kappa2 * u + mp.sqrt(kappa2 * X + (1 - kappa2) * V)) / (1 - k**2))
                ** 2
                if k < 1
                else mp.inf
            )

        if not np.isfinite(direction[0]):  # then the inequalities allow any X
            X = mp.mpf(10) ** 60
            assert kappa2 >= 1 or X_of(T_of(X)) > X * (1 - mp.mpf(10) ** -9)
            return
        X = mp.mpf(float(direction[0]))
        for larger in (1 + mp.mpf(10) ** -9, 2, mp.mpf(10) ** 6):
            assert X_of(T_of(larger * X)) < larger * X
        # From below both grow to what they allow: nothing above the bound, and it is not idle.
        low = X_of(V)
        for _ in range(60):
            low = X_of(T_of(low))
        assert low <= X * (1 + mp.mpf(10) ** -9)
        square = 4 * c.L_f * eta + (8 * beta + 1 / (c.L_g * eta)) * (
            1 / (2 * beta) + c.L_g * eta
        )
        assert 4 * low >= X or square * kappa2 > (1 - mp.sqrt(kappa2)) ** 2 / 16
        # And ∇g follows from it by the lower-level descent lemma.
        own = 2 / beta * (c.delta_g / (eta * K) + c.L_g * eta * X + C_g(T_of(X)))
        assert own <= mp.mpf(float(lower[0])) * (1 + mp.mpf(10) ** -9)


@given(
    scales,
    scales,
    st.floats(0.001, 1),
    st.integers(1, 30),
    st.integers(1, 8),
    scales,
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=100, deadline=None)
def test_means_are_at_least_the_recursion_s(sigma, ell, alpha, K, q, young, seed):
    """Whatever the moves: the recursion with equalities, step by step, has no larger mean."""
    moves = np.random.default_rng(seed).exponential(size=K - 1) ** 3
    storm = storm_errors(sigma, ell, alpha, 3.0, 3.0)
    spider = refreshed_errors(sigma, ell, np.arange(K) % q == 0, np.full(K, 3.0), 40.0)
    p = Parameters(0, upper_batch=3.0, momentum=alpha, period=q, upper_refresh=40.0)
    for estimator, errors in ((Storm(), storm), (Spider(), spider)):
        mean_noise, mean_drift = means_of(
            estimator, "upper", p, sigma, ell, K
        ).separated(young)
        E = [float(errors.first)]
        a, b = (1 + 1 / young, 1 + young) if errors.mixed else (1.0, 1.0)
        keep, fresh, drift = (np.broadcast_to(x, K) for x in errors[1:4])
        for k in range(1, K):
            E.append(
                float(keep[k] * E[-1] + a * fresh[k] + b * drift[k] * moves[k - 1])
            )
        assert np.mean(E) <= (mean_noise + mean_drift * moves.sum() / K) * (1 + 1e-9)
    still, _ = means_of(Storm(), "upper", p, sigma, ell, K).separated(young)
    E = [float(storm.first)]
    for _ in range(1, K):
        E.append(float(storm.keep * E[-1] + (1 + 1 / young) * storm.fresh))
    assert np.mean(E) == pytest.approx(float(still), rel=1e-9)


@given(constants_, st.floats(0.01, 1), st.floats(0.01, 1), small, st.integers(1, 10**6))
@settings(max_examples=50, deadline=None)
def test_without_drift_it_is_theorem_1(c, share, beta, rho, K):
    eta, b_f, b_g = share * c.largest_step_size, 7, 90
    p = Laws(eta, beta, rho, b_f, b_g)
    found = barrier_residuals(
        p, c, Means(c.sigma_f**2 / b_f, 0.0), Means(c.sigma_g**2 / b_g, 0.0), K
    )
    expected = residual_bounds(Schedule(eta, beta, rho, b_f, b_g), c, K)
    assert float(found[0][0]) == pytest.approx(
        expected.lower_gradient_squared, rel=1e-9
    )
    assert float(found[1][0]) == pytest.approx(expected.direction_squared, rel=1e-9)


def test_theorem_1_asks_nothing_of_the_estimates_but_their_error():
    """Its symbols from a τ² that is given are those from batches with this τ²."""
    c = tiebreak.problems.paper().constants
    p = methods.sdbgd.schedule.at(30)
    own = terms(p, c)
    assert terms(p, c, own.tau**2)[2:] == pytest.approx(own[2:])
    laws = Laws(*(np.array([value]) for value in (0.1, 0.3, 1e-3, 10.0, 1e4)))
    add = ways_to_add(100, fixed=True)
    more = [theorem_1(laws, c, add, tau_squared=t) for t in (0.0, 0.1, 0.2)]
    assert more[0].falling < more[1].falling < more[2].falling


@pytest.mark.parametrize("name", ["storm_sdbgd", "spider_sdbgd"])
@pytest.mark.parametrize("ell", [0.0, 0.3])
def test_the_bound_holds_on_runs(name, ell):
    """Means over the path, 12 runs, near a worst case and with the schedule of a plan for 10⁶ calls: far below."""
    problem = worst_case(0.2, sigma=0.7, noise_smoothness=ell or 1e-9, delta_g=2.0)
    chosen = plan(
        problem.constants, budget=10**6, method=name, noise_smoothness=ell or 1e-9
    )
    steps = min(chosen.steps, 3000)
    bounds = proved(chosen.method, problem.constants, steps, ell or 1e-9)
    upper, lower = problem.upper, problem.lower
    found = minimize(
        upper,
        lower,
        problem.x0,
        method=chosen.method,
        steps=steps,
        runs=12,
        seed=0,
        record=1,
    ).history
    for residual in ("direction_squared", "lower_gradient_squared"):
        path = getattr(found, residual)[:-1].mean(axis=0)  # N is uniform
        assert path.mean() + 6 * path.std() / math.sqrt(12) < getattr(bounds, residual)


def test_what_has_no_bound_says_why():
    c = tiebreak.problems.paper().constants
    fixed = Schedule(0.05, 0.3, 1e-3, 10, 10**4, momentum=0.1)
    storm = methods.storm_sdbgd.replace(schedule=fixed)
    with pytest.raises(ValueError, match="noise_smoothness=None must be"):
        proved(storm, c, 10)
    with pytest.raises(ValueError, match="laws that change from step to step"):
        proved("storm_sdbgd", c, 10, 1.0)
    with pytest.raises(ValueError, match=r"Theorem 1 needs 0 < step_size"):
        proved(storm.replace(step_size=1.0), c, 10, 1.0)
    with pytest.raises(
        ValueError, match="steps are too long for the batches of its differences"
    ):
        proved(storm.replace(lower_batch=1), c, 10**4, 1.0)
    page = methods.spider_sdbgd.replace(
        estimator=Page(),
        schedule=fixed.replace(probability=0.1, upper_refresh=100, lower_refresh=10**5),
    )
    with pytest.raises(ValueError, match="its estimator must be Spider or Storm"):
        proved(page, c, 10, 1.0)
    mixed = methods.sdbgd.replace(
        schedule=fixed.replace(lower_momentum=0.1),
        estimator=PerLevel(upper=Minibatch(), lower=Storm()),
    )
    several = proved(mixed, c, [10, 100], 0.1)
    assert list(several.direction_squared) == [
        proved(mixed, c, K, 0.1).direction_squared for K in (10, 100)
    ]


def test_where_differences_do_not_pay_spider_is_sdbgd():
    """At 10⁸ calls and ℓ = 1 a period of 1 is best, and the bound is SDBGD's; where they do pay, both are ahead."""
    c = tiebreak.problems.paper().constants

    def worst(budget, method, ell=None):
        bounds = plan(c, budget=budget, method=method, noise_smoothness=ell).bounds
        return max(bounds.lower_gradient_squared, bounds.direction_squared)

    spider = plan(c, budget=10**8, method="spider_sdbgd", noise_smoothness=1.0)
    assert isinstance(spider.method.estimator, Spider)
    assert spider.method.schedule.period == Power(1)
    assert worst(10**8, "spider_sdbgd", 1.0) == pytest.approx(
        worst(10**8, "sdbgd"), rel=1e-6
    )
    for name in ("storm_sdbgd", "spider_sdbgd"):
        assert worst(10**16, name, 1.0) < 0.75 * worst(10**16, "sdbgd")
        assert worst(10**8, name, 0.0) < 0.6 * worst(10**8, "sdbgd")


def test_a_sum_without_momentum_is_the_number_of_steps():
    """(1 − θ^K)/(1 − θ) tends to K as α → 0, and is K at 0, where it reads 0/0."""
    assert geometric(0.0, 7) == 7
    assert geometric(1e-12, 7) == pytest.approx(7, rel=1e-9)
