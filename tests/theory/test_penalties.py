"""Our own theorems: the algebra symbolically, each bound again by a plain loop in 50 digits, conditions by attack."""

import json
import math

import mpmath as mp
import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import tiebreak
from benchmarks import rates
from tiebreak import Method, Power, Schedule, methods, rules
from tiebreak.estimators import Held, Minibatch, Page, PerLevel, Spider, Storm
from tiebreak.estimators.contract import estimate
from tiebreak.problems import worst_case
from tiebreak.schedules import Parameters
from tiebreak.theory import (
    Constants,
    lazy_bounds,
    least_complexity,
    oracle_complexity,
    penalty_bounds,
    proved,
)
from tiebreak.theory.bounds import Laws, ways_to_add
from tiebreak.theory.complexity import LOWER_BOUNDS, reduced_norm
from tiebreak.theory.penalties import selected_residuals
from tiebreak.theory.reduction import (
    Errors,
    descent_residuals,
    largest_spider_step,
    means_of,
    noise_smoothness_of,
    recursive_gap,
    refreshed_errors,
    storm_errors,
)

CONSTANTS = tiebreak.problems.paper().constants


def closed_form(estimator, p, c, ell, steps):
    """The bounds for descent on f + βg with constant parameters."""
    upper = means_of(estimator, "upper", p, c.sigma_f, ell[0], steps)
    lower = means_of(estimator, "lower", p, c.sigma_g, ell[1], steps)
    return descent_residuals(p, c, upper, lower, steps)


scales = st.floats(-3, 3).map(lambda e: 10.0**e)
wild = st.floats(-8, 8).map(lambda e: 10.0**e)
tiny = st.floats(-18, 0).map(lambda e: 10.0**e)
constants_ = st.builds(Constants, *[scales] * 7)


# The algebra of the proofs.


def test_the_identities_behind_the_descent_and_the_estimators():
    a, w, L, eta = sp.symbols(
        "a w L eta"
    )  # in one dimension; inner products are bilinear, so that is enough
    identity = 2 * a * w - (a**2 + w**2 - (w - a) ** 2)
    assert sp.expand(identity) == 0
    step = -eta * a * w + L * eta**2 / 2 * w**2
    claimed = -eta / 2 * a**2 - eta / 2 * (1 - L * eta) * w**2 + eta / 2 * (w - a) ** 2
    assert sp.expand(step - claimed) == 0
    # STORM's error, v_k − ∇(x_k), from its definition; n is the batch's noise at the new and at the old point.
    alpha, old, new_gradient, old_gradient, n_new, n_old = sp.symbols(
        "alpha e0 g1 g0 n1 n0"
    )
    estimate = (
        new_gradient
        + n_new
        + (1 - alpha) * (old_gradient + old - (old_gradient + n_old))
    )
    error = (1 - alpha) * old + alpha * n_new + (1 - alpha) * (n_new - n_old)
    assert sp.expand(estimate - new_gradient - error) == 0
    # An upper gradient that is held: with a its error, E over the lower batch alone.
    gradient, held, nu = sp.symbols("G a nu")
    moved = -eta * gradient * (gradient + held) + L * eta**2 / 2 * (
        (gradient + held) ** 2 + nu
    )
    lemma = (
        -eta / 2 * gradient**2
        - eta / 2 * (1 - L * eta) * (gradient + held) ** 2
        + eta / 2 * held**2
        + L * eta**2 / 2 * nu
    )
    assert sp.expand(moved - lemma) == 0


def test_the_constants_of_the_complexities():
    eps, L, D, beta, sg, lf, lg, q, h, x = sp.symbols(
        "epsilon L Delta beta sigma_g ell_f ell_g q h x", positive=True
    )
    # b_f : b_g = ℓ_f : βℓ_g makes (1) an equality with the fewest samples.
    room = (1 - h) / h**2 * L**2
    b_f, b_g = (
        (q - 1) * lf * (lf + beta * lg) / room,
        (q - 1) * beta * lg * (lf + beta * lg) / room,
    )
    assert sp.simplify((q - 1) * (lf**2 / b_f + beta**2 * lg**2 / b_g) - room) == 0
    assert (
        sp.simplify((lf / b_f) ** 2 - (beta * lg / b_g) ** 2) == 0
    )  # Lagrange: equal marginal gains
    # K and B from a share x of ε for the descent: the cheapest x is 2/3 for K√B and 1/2 for KB.
    for power, best in ((sp.Rational(1, 2), sp.Rational(2, 3)), (1, sp.Rational(1, 2))):
        cost = 1 / x * (1 / (1 - x)) ** power
        assert sp.solve(sp.diff(cost, x), x) == [best]
    # η = 1/(2L), shares 2/3 and 1/3 (1/6 each level), q = √(B/2), b_g = q: 12√12 ≈ 42.
    K, B = 6 * L * D / eps, 6 * beta**2 * sg**2 / eps
    calls = K * (2 * sp.sqrt(B / 2) + B / sp.sqrt(B / 2))
    assert (
        sp.simplify(
            calls - 12 * sp.sqrt(12) * L * D * beta * sg * eps ** sp.Rational(-3, 2)
        )
        == 0
    )
    # The best q and b: 14.7 (1−h)^−1/2.
    K, B = 3 * L * D / (h * eps), 3 * beta**2 * sg**2 / eps
    cost = K * 2 * sp.sqrt(2 * B) * beta * lg / sp.sqrt(room)
    leading = cost / (
        beta**2 * lg * sg * D * eps ** sp.Rational(-3, 2) / sp.sqrt(1 - h)
    )
    assert sp.simplify(leading - 6 * sp.sqrt(6)) == 0
    assert float(6 * sp.sqrt(6)) == pytest.approx(14.7, abs=0.01)
    plain = 4 * L * D / eps * 2 * beta**2 * sg**2 / eps  # η = 1/L, shares 1/2 and 1/2
    assert sp.simplify(plain - 8 * L * D * beta**2 * sg**2 / eps**2) == 0
    ratio = (plain / cost).subs(h, sp.Rational(1, 2)) / (L * sg / (lg * sp.sqrt(eps)))
    assert float(1 / sp.simplify(ratio)) == pytest.approx(2.6, abs=0.01)


@given(constants_, st.integers(1, 10**6), wild)
def test_the_choices_of_theorem_1_meet_its_condition(c, q, beta):
    """b_g = q and b_f = ⌈qℓ_f²/(βL_g)²⌉ with η = 1/(2L), where ℓ_g ≤ L_g."""
    ell = (c.L_f, c.L_g)
    L = c.L_f + beta * c.L_g
    b_f = max(1.0, math.ceil(q * ell[0] ** 2 / (beta * c.L_g) ** 2))
    p = Parameters(
        0, 1 / (2 * L), b_f, q, beta, period=q, upper_refresh=1.0, lower_refresh=1.0
    )
    direction = closed_form(Spider(), p, c, ell, 10**6)[1]
    assert np.isfinite(direction)
    assert largest_spider_step(p, c, ell) >= 1 / (2 * L) * (1 - 1e-12)


# Plain descent, fixed and growing weights.


@given(
    constants_,
    st.floats(0, 0.5),
    st.floats(0, 0.6),
    wild,
    st.floats(0.05, 1),
    scales,
    scales,
    st.integers(1, 30),
    st.sampled_from([None, "theorem", 0.3]),
)
@settings(max_examples=80, deadline=None)
def test_penalty_bounds_by_a_plain_loop(
    c, rise, more, beta0, share, c_f, c_g, K, drawn
):
    """Theorem 2 for three ways to draw N, and for constant parameters the well-known form."""
    law = Power(
        share / (c.L_f + beta0 * c.L_g), -rise
    )  # below 1/L_k: L_k grows no faster than t^rise
    schedule = Schedule(
        law, Power(beta0, rise), None, Power(c_f, more), Power(c_g, 2 * more)
    )
    if drawn is not None:
        schedule = schedule.replace(
            selection=Power(1, -2 * rise if drawn == "theorem" else drawn)
        )
    found = penalty_bounds(schedule, c, K)
    with mp.workdps(50):
        steps = [schedule.at(k) for k in range(K)]
        eta, beta = (
            [mp.mpf(p.step_size) for p in steps],
            [mp.mpf(p.barrier) for p in steps],
        )
        S = 2 * (mp.mpf(c.delta_g) + mp.mpf(c.delta_f) / beta[0])
        for p, e, b in zip(steps, eta, beta, strict=True):
            V = (
                mp.mpf(c.sigma_f) ** 2 / p.upper_batch
                + b**2 * mp.mpf(c.sigma_g) ** 2 / p.lower_batch
            )
            S += e / b * (mp.mpf(c.L_f) + b * mp.mpf(c.L_g)) * e * V
        w = [
            e * b if p.selection is None else mp.mpf(p.selection)
            for p, e, b in zip(steps, eta, beta, strict=True)
        ]
        # Σ w r is largest, given Σ (η/β) r ≤ S, where all of r sits at the k with the largest w β/η.
        ratio = [x * b / e for x, e, b in zip(w, eta, beta, strict=True)]
        direction = max(ratio) * S / sum(w)
        inner = max(r / b**2 for r, b in zip(ratio, beta, strict=True)) * S / sum(w)
        lower = mp.sqrt(sum(x / b**2 for x, b in zip(w, beta, strict=True)) / sum(w))
        lower = (mp.mpf(c.G_f) * lower + mp.sqrt(inner)) ** 2
        assert abs(found.lower_gradient_squared - lower) <= 1e-11 * lower
        assert abs(found.direction_squared - direction) <= 1e-11 * direction
        if rise == 0 and more == 0 and drawn != 0.3:
            E = 2 * (mp.mpf(c.delta_f) + beta[0] * mp.mpf(c.delta_g)) / (eta[0] * K)
            E += (mp.mpf(c.L_f) + beta[0] * mp.mpf(c.L_g)) * eta[0] * V
            assert abs(direction - E) <= mp.mpf(10) ** -40 * E
            assert (
                abs(lower - (c.G_f + mp.sqrt(E)) ** 2 / beta[0] ** 2)
                <= mp.mpf(10) ** -40 * lower
            )


def test_bounds_of_many_horizons_at_once_and_their_conditions():
    anytime, many = tiebreak.methods.penalty.schedule, np.array([1, 10, 1000])
    found = penalty_bounds(anytime, CONSTANTS, many)
    for i, K in enumerate(many):
        one = penalty_bounds(anytime, CONSTANTS, int(K))
        assert found.direction_squared[i] == pytest.approx(
            one.direction_squared, rel=1e-12
        )
        assert found.lower_gradient_squared[i] == pytest.approx(
            one.lower_gradient_squared, rel=1e-12
        )
    with pytest.raises(
        ValueError, match=r"barrier=0.84\d* at step 1 must be > 0 and must not fall"
    ):
        penalty_bounds(Schedule(0.01, Power(1, -0.25)), CONSTANTS, 10)
    with pytest.raises(
        ValueError,
        match=r"step_size=0.5 must be at most 1/\(L_f \+ barrier·L_g\) = 0.0909",
    ):
        penalty_bounds(Schedule(0.5, 10), CONSTANTS, 10)


def test_the_anytime_penalty_falls_like_k_to_the_minus_one_half():
    """β ~ t^1/4, η = 1/L_k, B ~ t^1/2 and t; ‖∇Φ‖² up to a logarithm, and with the weights ηβ ∇g without one."""
    c = CONSTANTS
    schedule = Schedule(
        lambda k: 1 / (c.L_f + (k + 1) ** 0.25 * c.L_g),
        Power(1, 0.25),
        None,
        Power(1, 0.5),
        Power(1, 1),
    )
    K = np.array([10**3, 10**4, 10**5])
    found = penalty_bounds(schedule, c, K)
    assert np.all(np.diff(np.log10(found.lower_gradient_squared)) < -0.45)
    with_log = found.direction_squared / np.log(K)
    assert np.all(np.diff(np.log10(with_log)) < -0.45)


@given(
    constants_,
    wild,
    st.floats(0.05, 0.95),
    st.integers(1, 10**5),
    st.integers(1, 10**6),
    st.integers(1, 200),
)
def test_lazy_bounds_again_and_never_worse_than_the_plain_choice(
    c, beta, share, B_f, B_g, m
):
    schedule = Schedule(share / (c.L_f + beta * c.L_g), beta, None, B_f, B_g)
    eta, L = schedule.at(0).step_size, c.L_f + beta * c.L_g
    Q = (c.L_f * eta) ** 2 * m * (m - 1) / 2
    if L * eta + Q >= 1 - 1e-9:
        with pytest.raises(ValueError, match=f"hold={m} is too long"):
            lazy_bounds(schedule, c, 1000, m)
        return
    found = lazy_bounds(schedule, c, 1000, m).direction_squared
    nu_f, nu_g = c.sigma_f**2 / B_f, beta**2 * c.sigma_g**2 / B_g
    start = 2 * (c.delta_f + beta * c.delta_g) / (eta * 1000)
    if m == 1:
        assert found == pytest.approx(
            penalty_bounds(schedule, c, 1000).direction_squared, rel=1e-12
        )
    else:
        most = (1 - L * eta) / Q - 1  # the same by looking at many c
        c_s = np.append(
            np.geomspace(most * 1e-9, most, 4000), [1.0] if most >= 1 else []
        )
        values = start + (1 + 1 / c_s) * nu_f + (L * eta + (1 + c_s) * Q) * nu_g
        assert found <= values.min() * (1 + 1e-9)
        assert found >= values.min() * 0.99


def test_levels_without_noise_have_bounds_as_well():
    schedule = Schedule(0.04, 10, None, 10, 10)
    for changes in (
        {"sigma_f": 0.0},
        {"sigma_g": 0.0},
        {"sigma_f": 0.0, "sigma_g": 0.0},
    ):
        c = CONSTANTS.replace(**changes)
        for m in (1, 5):
            assert 0 < lazy_bounds(schedule, c, 100, m).direction_squared < 200
        p = schedule.at(0)._replace(
            momentum=0.5, period=3, upper_refresh=10, lower_refresh=10
        )
        assert np.isfinite(closed_form(Storm(), p, c, (1, 1), 100)[1])
        assert np.isfinite(closed_form(Spider(), p, c, (1, 1), 100)[1])


def test_holding_as_long_as_the_theorem_says():
    """η = 1/(2L) and m ≤ √2 L/L_f: at most 4LΔ/K + 2σ_f²/B_f + β²σ_g²/B_g."""
    c = CONSTANTS
    for beta in (1, 10, 100):
        L = c.L_f + beta * c.L_g
        schedule = Schedule(1 / (2 * L), beta, None, 100, 10_000)
        textbook = (
            4 * L * (c.delta_f + beta * c.delta_g) / 10**4
            + 2 * c.sigma_f**2 / 100
            + beta**2 * c.sigma_g**2 / 1e4
        )
        assert lazy_bounds(
            schedule, c, 10**4, math.floor(1.4 * L / c.L_f)
        ).direction_squared <= textbook * (1 + 1e-12)
        with pytest.raises(ValueError, match="too long"):
            lazy_bounds(schedule, c, 10**4, math.ceil(4 * L / c.L_f))


# Variance reduction.


def page_errors(sigma, ell, probability, batch, refresh_batch):
    """PAGE before its coins: a large batch with this probability, else the noise of one more difference."""
    large, keep = sigma**2 / refresh_batch, 1 - probability
    return Errors(large, keep, probability * large, keep * ell**2 / batch)


def attacked(p, c, upper, lower, young, moves):
    """Half of Σ (η/β)(E^f + β²E^g) − Σ (η/β)(1−Lη)‖w‖², for given moves: forwards, as the recursion is written."""
    eta, beta, K = p.step_size, p.barrier, len(p.step_size)
    E_f, E_g, value = float(upper.first), float(lower.first), 0.0
    for k in range(K):
        L = c.L_f + beta[k] * c.L_g
        if k:
            way = (eta[k - 1] * beta[k - 1]) ** 2 * moves[k - 1]  # ‖x_k − x_{k−1}‖²
            levels = []
            for e, E in ((upper, E_f), (lower, E_g)):
                a, b = (1 + 1 / young, 1 + young) if e.mixed else (1, 1)
                get = [
                    float(np.broadcast_to(x, K)[k]) for x in (e.keep, e.fresh, e.drift)
                ]
                levels.append(get[0] * E + a * get[1] + b * get[2] * way)
            E_f, E_g = levels
        s = eta[k] * beta[k]
        value += (
            s / 2 * (E_g + E_f / beta[k] ** 2) - s / 2 * (1 - L * eta[k]) * moves[k]
        )
    return value


@pytest.mark.parametrize("estimator", [Spider(), Page(), Storm()], ids=str)
def test_errors_of_the_two_levels_stay_uncorrelated(estimator):
    """E⟨e^f, e^g⟩ = 0 along a path that depends on both estimates; a false alarm in 10⁴ per step."""
    runs = 4000
    rng = np.random.default_rng(0)
    schedule = Schedule(
        0.2,
        1.0,
        upper_batch=1,
        lower_batch=1,
        upper_refresh=1,
        lower_refresh=1,
        period=4,
        probability=0.3,
        momentum=0.4,
    )
    method = Method("any", rules.constant, schedule, estimator)
    x = np.full((runs, 1), 3.0)
    memories = {"upper": None, "lower": None}
    for k in range(9):
        parameters = method.at(k)
        estimates, errors = {}, {}
        for level, center in (("upper", 1.0), ("lower", 0.0)):
            noise = 0.5 * rng.standard_normal((runs, 1))

            def gradient(z, wanted=True, noise=noise, center=center):
                return (1 + noise) * (z - center) if wanted else 0 * z

            estimates[level], _, memories[level] = estimate(
                estimator,
                level,
                gradient,
                x,
                memories[level],
                parameters,
                lambda g: 0 * g[:, :1],
            )
            errors[level] = (estimates[level] - (x - center))[:, 0]
        products = errors["upper"] * errors["lower"]
        assert abs(products.mean()) < 3.9 * products.std() / math.sqrt(runs)
        x = x - parameters.step_size * (estimates["upper"] + estimates["lower"])


@given(
    constants_,
    scales,
    st.floats(0, 0.4),
    st.floats(0.05, 0.6),
    st.one_of(
        st.floats(0.02, 0.999), st.just(1.0)
    ),  # between them the differences that c comes from are rounding
    scales,
    scales,
    st.integers(1, 8),
    st.sampled_from(["storm", "page", "spider"]),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=100, deadline=None)
def test_no_moves_beat_the_recursion(
    c, beta0, rise, share, alpha, ell_f, ell_g, K, kind, seed
):
    """Whatever ‖w_k‖² are, the forward recursion with equalities stays below the bound; with ‖w‖ = 0 it attains it."""
    rng, t = np.random.default_rng(seed), np.arange(1.0, K + 1)
    beta = beta0 * t**rise
    eta = share / (c.L_f + beta * c.L_g)
    p = Laws(eta, beta, 0 * t, np.ceil(3 * t**0.5), np.ceil(5 * t))
    levels = []
    for sigma, ell, batch in (
        (c.sigma_f, ell_f * c.L_f, p.upper_batch),
        (c.sigma_g, ell_g * c.L_g, p.lower_batch),
    ):
        if kind == "storm":
            e = storm_errors(sigma, ell, alpha, batch, 50.0)._replace(
                first=sigma**2 / 50
            )
        elif kind == "page":
            e = page_errors(sigma, ell, alpha, batch, 200.0)
        else:
            e = refreshed_errors(
                sigma, ell, np.arange(K) % max(1, round(3 / alpha)) == 0, batch, 200.0
            )
        levels.append(e)
    gap = recursive_gap(p, c, *levels)
    start = 2 * (c.delta_g + c.delta_f / beta[0])
    if not np.isfinite(gap):
        return
    young = best_young(p, c, *levels)
    assert young > 0
    room = (gap - start) / 2
    still = attacked(p, c, *levels, young, np.zeros(K))
    assert still == pytest.approx(
        room, rel=1e-5, abs=1e-12 * gap
    )  # c comes from differences
    for _ in range(5):
        moves = (
            10 ** rng.uniform(-4, 4, K)
            * (rng.random(K) < rng.uniform(0, 1))
            * max(room, 1e-30)
        )
        moves[-1] = 0.0
        assert attacked(p, c, *levels, young, moves) <= room * (1 + 1e-5) + 1e-12 * (
            gap + moves.max()
        )


def best_young(p, c, upper, lower):
    """The largest c for which no single move pays off: the gain of a move of 1 is linear in c, so two values tell."""
    K, most = len(p.step_size), 1e300
    upper, lower = (
        errors._replace(first=0.0, fresh=0.0) for errors in (upper, lower)
    )  # a move's gain is without them
    for row in np.eye(K)[:-1]:
        gains = [attacked(p, c, upper, lower, young, row) for young in (1e-300, 1e8)]
        slope = (gains[1] - gains[0]) / 1e8
        if slope > 0:
            most = min(most, -gains[0] / slope)
    return most


def fixed(eta, beta, b_f, b_g, K):
    ones = np.ones(K)
    return Laws(eta * ones, beta * ones, 0 * ones, b_f * ones, b_g * ones)


@given(
    constants_,
    scales,
    st.floats(0.01, 0.9),
    st.floats(0.001, 1),
    scales,
    st.integers(1, 40),
    st.integers(1, 12),
)
@settings(max_examples=80, deadline=None)
def test_closed_forms_are_the_recursion(c, beta, share, alpha, ell, K, q):
    eta = share / (c.L_f + beta * c.L_g)
    p, ells = fixed(eta, beta, 3, 20, K), (ell * c.L_f, ell * c.L_g)
    one = Parameters(
        0,
        eta,
        3.0,
        20.0,
        beta,
        momentum=alpha,
        period=q,
        upper_refresh=40.0,
        lower_refresh=40.0,
    )
    add = ways_to_add(np.array(K), fixed=False)
    storm = [
        storm_errors(s, l, alpha, b, b)
        for s, l, b in ((c.sigma_f, ells[0], 3.0), (c.sigma_g, ells[1], 20.0))
    ]
    spider = [
        refreshed_errors(s, l, np.arange(K) % q == 0, b, 40.0)
        for s, l, b in ((c.sigma_f, ells[0], 3.0), (c.sigma_g, ells[1], 20.0))
    ]
    for errors, closed in (
        (storm, closed_form(Storm(), one, c, ells, K)),
        (spider, closed_form(Spider(), one, c, ells, K)),
    ):
        gap = recursive_gap(p, c, *errors)
        expected = selected_residuals(gap, p, c, add)
        for found, truth in zip(closed, expected, strict=True):
            assert float(found) == pytest.approx(float(truth), rel=1e-8)
    # PAGE's sum of geometric weights is at most SPIDER's with q = 1/p.
    page = [
        page_errors(s, l, 1 / q, b, 40.0)
        for s, l, b in ((c.sigma_f, ells[0], 3.0), (c.sigma_g, ells[1], 20.0))
    ]
    bound = float(closed_form(Spider(), one, c, ells, K)[1])
    if np.isfinite(bound):
        found = selected_residuals(recursive_gap(p, c, *page), p, c, add)[1]
        assert float(found) <= bound * (1 + 1e-9)


@given(
    constants_,
    scales,
    st.floats(0.01, 0.9),
    st.floats(-18, 0).map(lambda e: 10.0**e),
    scales,
    st.integers(1, 10**9),
)
@settings(max_examples=120, deadline=None)
def test_storm_in_50_digits_and_never_above_the_textbook(c, beta, share, alpha, ell, K):
    eta, ells = share / (c.L_f + beta * c.L_g), (ell * c.L_f, ell * c.L_g)
    p = Parameters(0, eta, 3, 20, beta, momentum=alpha)
    lower, direction = closed_form(Storm(), p, c, ells, K)
    with mp.workdps(50):
        A = mp.mpf(ells[0]) ** 2 / 3 + mp.mpf(beta) ** 2 * mp.mpf(ells[1]) ** 2 / 20
        al, L = mp.mpf(alpha), mp.mpf(c.L_f) + mp.mpf(beta) * mp.mpf(c.L_g)
        theta, gone = (1 - al) ** 2, al * (2 - al)
        V_b = (
            mp.mpf(c.sigma_f) ** 2 / 3 + mp.mpf(beta) ** 2 * mp.mpf(c.sigma_g) ** 2 / 20
        )
        start = (
            2
            * (mp.mpf(c.delta_f) + mp.mpf(beta) * mp.mpf(c.delta_g))
            / (mp.mpf(eta) * K)
        )
        caused = mp.mpf(eta) ** 2 * A * theta * (1 - theta ** (K - 1)) / gone
        young = (1 - L * mp.mpf(eta)) / caused - 1 if caused > 0 else mp.inf
        if young <= 1e-6:  # too near to the edge for floats to tell
            return
        Z = (1 - theta**K) / gone
        truth = (
            start + V_b * Z / K + (1 + 1 / young) * al**2 * V_b * (K - Z) / (K * gone)
        )
        assert abs(float(direction) - truth) <= 1e-7 * truth
        assert float(lower) == pytest.approx(
            float((c.G_f + mp.sqrt(truth)) ** 2 / beta**2), rel=1e-7
        )
        if (
            L * mp.mpf(eta) + 2 * mp.mpf(eta) ** 2 * A / al <= 1
        ):  # Theorem 3 as it is usually stated
            assert truth <= (start + 2 * al * V_b + V_b / (al * K)) * (
                1 + mp.mpf(10) ** -30
            )


def test_anytime_storm_is_what_its_closed_form_says():
    """β_k = β_0 t^1/4, η_k = 1/(2ℓ̄β_k), α_k = t^−1/2, b_g ≥ m_g √t: the recursion is below 4ℓ̄(…) + 2U + 4U ln(K+1)."""
    for c in (CONSTANTS, CONSTANTS.replace(L_f=0.3, sigma_g=4.0, delta_f=20.0)):
        for beta0, ell in ((1.0, (1.0, 1.0)), (5.0, (0.2, 3.0))):
            bar = c.L_g + c.L_f / beta0
            m_g, m_f = (
                max(1.0, 4 * ell[1] ** 2 / bar**2),
                max(1.0, 4 * ell[0] ** 2 / (beta0 * bar) ** 2),
            )
            for K in (1, 2, 50, 3000):
                t = np.arange(1.0, K + 1)
                beta = beta0 * t**0.25
                p = Laws(
                    1 / (2 * bar * beta),
                    beta,
                    0 * t,
                    np.ceil(m_f) * np.ones(K),
                    np.ceil(m_g * np.sqrt(t)),
                )
                errors = [
                    storm_errors(s, l, t**-0.5, b, b[0])
                    for s, l, b in (
                        (c.sigma_f, ell[0], p.upper_batch),
                        (c.sigma_g, ell[1], p.lower_batch),
                    )
                ]
                U = c.sigma_g**2 / m_g + c.sigma_f**2 / (beta0**2 * m_f)
                closed = (
                    4 * bar * (c.delta_g + c.delta_f / beta0)
                    + 2 * U
                    + 4 * U * math.log(K + 1)
                )
                found = recursive_gap(p, c, *errors)
                # Σ β^−2 ‖∇Φ‖² = Σ (η/β)‖∇Φ‖² · 2ℓ̄
                assert found * 2 * bar <= closed


@pytest.mark.parametrize(
    "value", [None, -1, "1", (1, 2, 3), math.nan, math.inf, True, (1, None)]
)
def test_the_smoothness_of_the_noise_is_never_assumed(value):
    with pytest.raises(
        ValueError, match=r"noise_smoothness=.* must be ℓ ≥ 0 or a pair"
    ):
        noise_smoothness_of(value)


def test_errors_of_additive_noise_have_no_drift():
    assert storm_errors(1.0, 0.0, 0.1, 10.0, 10.0).drift == 0
    assert not refreshed_errors(1.0, 0.0, np.arange(4) % 2 == 0, 10.0, 10.0).drift.any()


# Simulation, near the worst case.


def test_the_worst_case_has_the_constants_that_it_claims():
    problem = worst_case(0.2, sigma=0.7, noise_smoothness=1.3, delta_g=2.0)
    c, rng = problem.constants, np.random.default_rng(0)
    points = rng.uniform(-3, 14, (400, 2))
    for oracle, L in ((problem.upper, c.L_f), (problem.lower, c.L_g)):
        grads = oracle.exact_gradient(points)
        near = points + 1e-4 * rng.standard_normal(points.shape)
        quotients = np.linalg.norm(
            oracle.exact_gradient(near) - grads, axis=1
        ) / np.linalg.norm(near - points, axis=1)
        assert quotients.max() <= L * (1 + 1e-6)
        for x in points[:20]:
            slopes = [
                (oracle.value(x + h) - oracle.value(x - h)) / 2e-6
                for h in 1e-6 * np.eye(2)
            ]
            np.testing.assert_allclose(oracle.exact_gradient(x), slopes, atol=1e-5)
        # σ² and ℓ², from many samples at two points: the second is attained as the points come together.
        tokens = oracle.sample_block([rng], [1] * 40_000)[:, 0]
        here, there = points[0], points[0] + np.array([1e-3, 1e-3])
        noise = [
            oracle.gradient(np.broadcast_to(x, (40_000, 2)), tokens)
            - oracle.exact_gradient(x)
            for x in (here, there)
        ]
        assert np.sum(noise[0] ** 2, axis=1).mean() == pytest.approx(0.7**2, rel=0.03)
        change = np.sum((noise[1] - noise[0]) ** 2, axis=1).mean() / np.sum(
            (there - here) ** 2
        )
        assert change == pytest.approx(1.3**2, rel=0.03)
    assert np.linalg.norm(problem.upper.exact_gradient(points), axis=1).max() <= c.G_f
    far = np.array([[5.0, 50.0], [0.0, 50.0]])
    assert problem.upper.value(problem.x0) - problem.upper.value(
        far[0]
    ) == pytest.approx(c.delta_f)
    assert problem.lower.value(problem.x0) - problem.lower.value(
        far[1]
    ) == pytest.approx(c.delta_g)


@pytest.mark.parametrize("method", rates.METHODS)
def test_the_bounds_near_the_worst_case(method):
    """Means over the path are below their bounds by six standard errors, and not far below: these are nearly tight."""
    rows = [rates.measured(method, epsilon, runs=12) for epsilon in (0.4, 0.2)]
    for row in rows:
        for name in ("direction_squared", "lower_gradient_squared"):
            assert row[name] + 6 * row[f"{name}_error"] < row[f"{name}_bound"]
            assert row[name] > row[f"{name}_bound"] / 5
    powers = rates.exponents(rows)
    assert powers["lower_calls"] == pytest.approx(
        4.3 if rates.METHODS[method] is None else 3.5, abs=0.5
    )


def test_what_was_measured_of_the_rates_is_kept():
    kept = json.loads(rates.RESULTS.read_text(encoding="utf-8"))
    assert {row["method"] for row in kept["rows"]} == set(rates.METHODS)
    for method, powers in kept["exponents"].items():
        assert powers == pytest.approx(
            rates.exponents([r for r in kept["rows"] if r["method"] == method])
        )


@given(st.floats(-6, 0), st.floats(-6, 0), st.floats(0, 1), st.floats(0, 1))
def test_the_reduction_of_the_lower_bound(log_f, log_g, share_f, share_g):
    """Any λ and y with both residuals at most thrice ε leave ‖∇h‖ ≤ 6√(ε_f ε_g)/G: by the definition."""
    c = CONSTANTS
    epsilon = (10**log_f / 13, 10**log_g * 1e-3)
    limit, G = reduced_norm(epsilon, c), min(c.G_f, math.sqrt(c.L_f * c.delta_f))
    y = (
        share_g * math.sqrt(3 * epsilon[1]) / c.L_g
    )  # ‖∇g‖² ≤ 3ε_g, so f still has slope −G
    if y == 0:
        return
    most = math.sqrt(3 * epsilon[0])
    lam = max(
        0.0, (G + (2 * share_f - 1) * most) / (c.L_g * y)
    )  # |−G + λL_g y| ≤ √(3ε_f)
    rest = math.sqrt(max(0.0, 3 * epsilon[0] - (-G + lam * c.L_g * y) ** 2))
    assert rest / lam <= limit * (1 + 1e-9)
    with pytest.raises(ValueError, match="the lower bound needs"):
        reduced_norm((1.0, epsilon[1]), c)


def test_the_least_complexity_has_the_tables_exponents_and_is_below_what_is_enough():
    for row, ell in zip(LOWER_BOUNDS, (None, 1.0), strict=True):
        high, low = (least_complexity(e, CONSTANTS, ell) for e in (1e-3, 1e-4))
        assert math.log10(low.iterations / high.iterations) == pytest.approx(
            row.iterations
        )
        assert math.log10(low.lower_calls / high.lower_calls) == pytest.approx(
            row.lower
        )
        enough = oracle_complexity(
            1e-3, "penalty" if ell is None else "storm_penalty", CONSTANTS, ell
        )
        assert high.lower_calls < enough.lower_calls
    with pytest.raises(ValueError, match="must be finite and > 0, or a pair"):
        least_complexity((1e-3, -1), CONSTANTS)


def test_what_is_proved_depends_on_rule_and_estimator():
    c, K = CONSTANTS, 50
    fixed = Schedule(1 / 30, 10, None, 100, 1000, selection=1)
    assert proved(methods.penalty.replace(schedule=fixed), c, K) == penalty_bounds(
        fixed, c, K
    )
    held = fixed.replace(upper_hold=5, lower_hold=1)
    lazy = methods.penalty.replace(
        schedule=held, estimator=PerLevel(Held(), Minibatch())
    )
    assert (
        proved(lazy, c, K).direction_squared
        == lazy_bounds(held, c, K, 5).direction_squared
    )
    small = fixed.replace(
        period=4, upper_refresh=500, lower_refresh=9000, momentum=0.2, probability=0.25
    )
    spider, storm, page = (
        methods.penalty.replace(schedule=small, estimator=e)
        for e in (Spider(), Storm(), Page())
    )
    for method in (
        spider,
        storm,
    ):  # closed forms; the same laws as functions are gone over step by step
        laws_ = {
            name: (lambda k, value=value: value)
            for name, value in small.at(0).named().items()
            if name != "k"
        }
        slow = method.replace(schedule=Schedule(**laws_))
        both = [proved(m, c, K, (0.5, 0.7)) for m in (method, slow)]
        assert both[0].direction_squared == pytest.approx(
            both[1].direction_squared, rel=1e-9
        )
        assert both[0].lower_gradient_squared == pytest.approx(
            both[1].lower_gradient_squared, rel=1e-9
        )
    assert proved(page, c, K, 0.5).direction_squared > 0
    with pytest.raises(
        ValueError, match="its steps are too long for the batches of its differences"
    ):
        proved(spider, c, K, 100.0)
    with pytest.raises(ValueError, match="no bound is known for SDBPG"):
        proved("sdbpg", c, K)
    with pytest.raises(ValueError, match="has no effect"):
        proved("penalty", c, K, 1.0)
