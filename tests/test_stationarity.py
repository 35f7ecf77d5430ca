"""Stationarity: the best multiplier, the residual min over λ ≥ 0 of ‖a + λb‖², the definition, the case ∇g = 0.

Exact values are rational. u = 2⁻⁵³, γₙ = nu/(1 − nu). An inner product of n terms errs by at most γₙ‖a‖‖b‖.
"""

import dataclasses
import math
import os
import subprocess
import sys
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import tiebreak
from tiebreak import rules
from tiebreak.stationarity import best_multiplier, dot, products, residuals

MANY = settings(max_examples=300, deadline=None)
U = Fraction(1, 2**53)


def gamma(n):
    return n * U / (1 - n * U)


def root(square: Fraction) -> Fraction:
    with localcontext() as context:
        context.prec = 55
        return Fraction(
            (Decimal(square.numerator) / Decimal(square.denominator)).sqrt()
        )


def inner(a, b) -> Fraction:
    return sum(
        (Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True)),
        Fraction(0),
    )


def least(a, b) -> Fraction:
    """‖a‖² − [−⟨a,b⟩]₊²/‖b‖², and ‖a‖² where b = 0, exactly."""
    gg = inner(b, b)
    return inner(a, a) - (max(Fraction(0), -inner(a, b)) ** 2 / gg if gg else 0)


@st.composite
def pairs(draw):
    """a and b over scales 1e-12 … 1e12; often a = −cb and a little more, the hard case: nearly stationary."""
    n = draw(st.integers(1, 5))
    unit = st.lists(
        st.integers(-(2**20), 2**20).map(lambda i: i / 2**20), min_size=n, max_size=n
    )
    scale = st.integers(-12, 12).map(lambda e: 10.0**e)
    b = np.array(draw(unit)) * draw(scale)
    a = np.array(draw(unit)) * draw(scale)
    if draw(st.booleans()):
        a = -draw(scale) * b + draw(st.sampled_from([0.0, 1e-15, 1e-8, 1e-3])) * a
    return a, b


# ------------------------------------------------------------------------------------------------- the best multiplier


@MANY
@given(fg=st.floats(-1e12, 1e12), gg=st.floats(1e-12, 1e12))
def test_best_multiplier_is_the_closed_form(fg, gg):
    """[−fg]₊ / gg: one rounding (0·gg and the sign are exact)."""
    wanted = max(Fraction(0), -Fraction(fg)) / Fraction(gg)
    assert abs(Fraction(best_multiplier(fg, gg)) - wanted) <= U * wanted + Fraction(
        5e-324
    )
    assert best_multiplier(fg, gg) == rules.dbgd(fg, gg, 0.0)


@MANY
@given(vectors=pairs(), factor=st.floats(0, 3), far=st.floats(0, 1e6))
def test_no_other_multiplier_is_better(vectors, factor, far):
    """‖a + λ̂b‖² ≤ ‖a + λb‖² for λ ≥ 0 near and far, in rational arithmetic, up to gg (λ̂ − λ*)², λ̂ rounded thrice."""
    a, b = vectors
    fg, gg = inner(a, b), inner(b, b)
    if gg == 0:
        return
    best = Fraction(best_multiplier(float(fg), float(gg)))
    allowed = (gamma(3) * abs(fg)) ** 2 / gg

    def objective(lam):
        return inner(a, a) + 2 * lam * fg + lam**2 * gg

    for other in (
        0,
        factor * float(best),
        far,
        float(best) * (1 + 1e-9),
        float(best) + 1e-3,
    ):
        assert objective(best) <= objective(Fraction(other)) + allowed


@pytest.mark.parametrize("seed", range(6))
def test_best_multiplier_is_what_a_minimiser_finds(seed):
    """scipy's bounded search, good to √ε, on the norm itself."""
    a, b = np.random.default_rng(seed).normal(size=(2, 4))
    found = minimize_scalar(
        lambda lam: ((a + lam * b) ** 2).sum(), bounds=(0, 20), method="bounded"
    )
    assert best_multiplier(a @ b, b @ b) == pytest.approx(found.x, abs=1e-4)
    assert residuals(a, b, 0.0).stationarity_squared <= found.fun * (1 + 1e-14)


def test_without_a_lower_gradient_the_multiplier_is_zero_and_the_residual_is_that_of_f():
    a = np.array([3.0, 4.0])
    assert best_multiplier(0.0, 0.0) == 0
    assert best_multiplier(-1.0, 0.0) == 0
    found = residuals(a, np.zeros(2), 7.0)
    assert (
        found.stationarity_squared,
        found.lower_gradient_squared,
        found.direction_squared,
        found.multiplier,
    ) == (
        25,
        0,
        25,
        7,
    )


# -------------------------------------------------------------------------------------------------------- the residual


@settings(max_examples=600, deadline=None)
@given(vectors=pairs())
@example(vectors=(np.array([-0.1, -0.3]), np.array([1.0, 3.0])))
def test_residual_is_the_squared_distance_and_keeps_its_digits_near_zero(vectors):
    """|R̂ − R| ≤ γ R + 2√R τ + 3τ² with τ = γ_{2n+8}‖a‖, R = ‖a‖² − [−fg]₊²/gg exactly.

    τ bounds the error of the vector a + λ̂b: λ̂‖b‖ ≤ ‖a‖ errs by γ_{2n+2}‖a‖ (two inner products, two roundings), each
    product and sum by u more. Across b that is first order in √R, along b second order. So R̂ is right to u²‖a‖², where
    ‖a‖² − fg²/gg would be right to u‖a‖² only, and could be negative.
    """
    a, b = vectors
    n = len(a)
    found = residuals(a, b, 0.0).stationarity_squared
    exact = least(a, b)
    tau = gamma(2 * n + 8) * root(inner(a, a))
    assert found >= 0
    assert (
        abs(Fraction(float(found)) - exact)
        <= gamma(n + 2) * exact + 2 * root(exact) * tau + 3 * tau**2
    )


@MANY
@given(vectors=pairs(), lam=st.just(0.0) | st.floats(1e-12, 1e6))
def test_residual_of_the_definition_is_the_least_over_all_multipliers(vectors, lam):
    """Definition 1 asks for some λ ≥ 0: `stationarity_squared` is never more than ‖a + λb‖² for a λ given."""
    a, b = vectors
    own = residuals(a, b, lam)
    n = len(a)
    # Elementwise, a + λb errs by u(|a| + 2|λb|), and the sum of squares by γₙ.
    tau = gamma(2 * n + 8) * (root(inner(a, a)) + 2 * Fraction(lam) * root(inner(b, b)))
    exact = (
        inner(a, a) + 2 * Fraction(lam) * inner(a, b) + Fraction(lam) ** 2 * inner(b, b)
    )
    error = gamma(n + 2) * exact + 2 * root(exact) * tau + 3 * tau**2
    assert abs(Fraction(float(own.direction_squared)) - exact) <= error
    assert (
        Fraction(float(own.stationarity_squared)) <= exact + error
    )  # R ≤ exact, and its own error is no larger
    assert own.multiplier == lam
    assert abs(Fraction(float(own.lower_gradient_squared)) - inner(b, b)) <= gamma(
        n
    ) * inner(b, b)


def test_a_stationary_point_in_the_sense_of_definition_1():
    """a = −2b: (0, ‖b‖²)-stationary with λ = 2, although ‖a‖ is large; a = +2b is not, for no λ ≥ 0 helps."""
    b = np.array([3.0, -4.0])
    assert residuals(-2 * b, b, 0.0)[:3] == (100.0, 25.0, 0.0)
    assert residuals(+2 * b, b, 0.0)[:3] == (100.0, 25.0, 100.0)
    # In between: the part of a across b, and nothing of the part against it.
    across = np.array([4.0, 3.0])
    assert residuals(across - 5 * b, b, 0.0).stationarity_squared == 25.0
    assert residuals(across + 5 * b, b, 0.0).stationarity_squared == 25.0 + 625.0


@MANY
@given(vectors=pairs(), e=st.integers(-40, 40))
def test_units_of_g_do_not_matter(vectors, e):
    """The residual compares methods because it depends on the direction of ∇g alone: exact for powers of two."""
    a, b = vectors
    assert (
        residuals(a, b * 2.0**e, 0.0).stationarity_squared
        == residuals(a, b, 0.0).stationarity_squared
    )


# ------------------------------------------------------------------------------------------------ many points, float32


def test_axes_in_front_are_points():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 5, 3, 4))
    lam = rng.uniform(size=(5, 3))
    found = residuals(a, b, lam)
    assert all(column.shape == (5, 3) for column in found)
    for i in range(5):
        for j in range(3):
            alone = residuals(a[i, j], b[i, j], lam[i, j])
            assert [column[i, j] for column in found] == list(alone)
    assert residuals(a, b, 0.5).multiplier.tolist() == np.full((5, 3), 0.5).tolist()


def test_a_rule_may_stand_for_its_multiplier():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 6, 3))
    by_rule = residuals(a, b, lambda fg, gg: rules.sdbgd(fg, gg, 0.5, 0.1))
    lam = rules.sdbgd(dot(a, b), dot(b, b), 0.5, 0.1)
    assert all(
        np.array_equal(x, y) for x, y in zip(by_rule, residuals(a, b, lam), strict=True)
    )
    assert np.array_equal(by_rule.multiplier, lam)
    assert (lam > 0).any()


@pytest.mark.parametrize("n", [2, 10_001])
def test_inner_products_of_float32_are_accumulated_in_float64(n):
    """The products of two float32 are exact in float64, so only the n − 1 sums round, at u = 2⁻⁵³."""
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=(2, n)).astype(np.float32)
    found = dot(a, b)
    assert found.dtype == np.float64
    size = sum(
        abs(Fraction(float(x)) * Fraction(float(y))) for x, y in zip(a, b, strict=True)
    )
    assert abs(Fraction(float(found)) - inner(a, b)) <= gamma(n) * size
    assert residuals(a, b, 0.5).stationarity_squared.dtype == np.float64


def test_a_row_does_not_depend_on_the_rows_beside_it():
    """Bit for bit, for a number of columns that is no multiple of anything: one run equals one of many."""
    a, b = np.random.default_rng(2).normal(size=(2, 64, 101))
    together = dot(a, b)
    assert together.tolist() == [float(dot(x, y)) for x, y in zip(a, b, strict=True)]
    assert together.tolist() == dot(a[None], b[None])[0].tolist()


def test_non_finite_gradients_are_not_hidden():
    for bad in (math.nan, math.inf):
        assert not np.isfinite(best_multiplier(bad, 1.0))
        assert not np.isfinite(best_multiplier(-1.0, bad))
        assert not np.isfinite(best_multiplier(-bad, 1.0))


def test_residuals_at_the_paper_s_start():
    """By hand: a = (x − c)/√(1+‖x−c‖²), b = (sin 1.5, 1.5 e^{−1.125}); at (0, 0) b vanishes."""
    problem = tiebreak.problems.paper()
    x = problem.x0
    a = np.array([1.5 - 7.1, 0.5]) / math.sqrt(1 + 5.6**2 + 0.25)
    b = np.array([math.sin(1.5), 1.5 * math.exp(-1.125)])
    found = residuals(
        problem.upper.exact_gradient(x), problem.lower.exact_gradient(x), 0.0
    )
    assert found.lower_gradient_squared == pytest.approx(b @ b, rel=1e-15)
    assert found.direction_squared == pytest.approx(a @ a, rel=1e-15)
    assert found.stationarity_squared == pytest.approx(
        a @ a - (a @ b) ** 2 / (b @ b), rel=1e-14
    )
    at_zero = residuals(
        problem.upper.exact_gradient(0 * x), problem.lower.exact_gradient(0 * x), 3.0
    )
    assert at_zero.lower_gradient_squared == 0
    assert (
        at_zero.stationarity_squared
        == at_zero.direction_squared
        == pytest.approx(51.41 / 52.41, rel=1e-15)
    )


@pytest.mark.parametrize(
    "size", [0, 1, 2**13 - 1, 2**13, 2**13 + 1, 3 * 2**13, 10**5 + 3]
)
def test_long_inner_products_are_sums_of_products(size):
    a, b = np.random.default_rng(size).standard_normal((2, 3, size))
    for row, found in enumerate(dot(a, b)):
        exact = math.fsum(a[row] * b[row])
        assert abs(found - exact) <= 1e-15 * (1 + np.abs(a[row] * b[row]).sum())


def test_inner_products_do_not_depend_on_threads():
    """BLAS would divide a long sum among its threads, and the last bits would tell how many there are."""
    code = (
        "import numpy as np; from tiebreak.stationarity import dot; "
        "a, b = np.random.default_rng(0).standard_normal((2, 300001)); print(float(dot(a, b)).hex())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ
            | dict.fromkeys(
                ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads
            ),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2", "4")
    }
    assert len(found) == 1


@pytest.mark.parametrize("dimension", [1, 2, 3, 7, 8, 64, 257, 2**13, 2**13 + 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_of_one_row_are_those_of_many_to_the_last_bit(dimension, dtype):
    """One run is multiplied by another NumPy function than several; a run must not depend on what runs beside it."""
    a, b = np.random.default_rng(dimension).normal(size=(2, 5, dimension)).astype(dtype)
    together = np.transpose(products(a, b))
    assert together.dtype == np.float64
    alone = [products(a[i : i + 1].copy(), b[i : i + 1].copy()) for i in range(5)]
    np.testing.assert_array_equal(np.reshape(alone, (5, 2)), together)


# -------------------------------------------------------------------------------------- weighted means over the steps


@pytest.mark.parametrize("runs", [None, 3])
def test_a_weighted_mean_over_all_steps_is_exact(runs):
    """E ‖∇g(x_N)‖² for N ∝ η_kβ_k, against the sum."""
    problem = tiebreak.problems.paper()
    options = {"method": "sdbgd", "steps": 50, "seed": 0, "runs": runs, "record": 1}
    history = tiebreak.minimize(
        problem.upper, problem.lower, problem.x0, **options
    ).history
    schedule = tiebreak.methods.sdbgd.schedule
    steps = [schedule.at(k) for k in range(50)]
    weights = np.array([p.step_size * p.barrier for p in steps])
    rows = history.lower_gradient_squared[:50]
    expected = np.tensordot(weights, rows, axes=1) / weights.sum()
    for weight in (schedule, tiebreak.methods.sdbgd, lambda k: weights[k]):
        mean = history.weighted_mean("lower_gradient_squared", weight)
        np.testing.assert_allclose(mean, expected, rtol=1e-12)
    plain = history.weighted_mean("lower_gradient_squared")
    np.testing.assert_allclose(plain, rows.mean(axis=0), rtol=1e-12)


def test_a_weighted_mean_of_a_thinned_history_warns():
    """Each row has the weight of all steps that it stands for: a constant has its own value as its mean."""
    problem = tiebreak.problems.paper()
    options = {"method": "sdbgd", "steps": 500, "seed": 0}
    levels = (problem.upper, problem.lower, problem.x0)
    thinned = tiebreak.minimize(*levels, **options).history
    full = tiebreak.minimize(*levels, **options, record=1).history
    with pytest.warns(RuntimeWarning, match="thinned"):
        near = thinned.weighted_mean("lower_gradient_squared")
    exact = full.weighted_mean("lower_gradient_squared")
    assert near == pytest.approx(exact, rel=0.02)
    assert np.mean(thinned.lower_gradient_squared) > 1.05 * exact
    with pytest.warns(RuntimeWarning, match="thinned"):
        ones = thinned.weighted_mean("step", lambda k: float(k == 0))
    assert ones == 0.0


def test_a_weighted_mean_ends_where_a_run_ended():
    """The rows of a run after its end are no steps of it."""
    problem = tiebreak.problems.paper()
    result = tiebreak.minimize(
        problem.upper,
        problem.lower,
        problem.x0,
        method="sdbgd",
        steps=20,
        record=1,
        runs=2,
        seed=0,
    )
    history = result.history
    values = history.columns["lower_gradient_squared"].copy()
    values[11:, 1] = np.nan
    ended = dataclasses.replace(
        history,
        columns={"lower_gradient_squared": values},
        last_step=np.array([20, 10]),
    )
    mean = ended.weighted_mean("lower_gradient_squared")
    np.testing.assert_allclose(mean, [values[:20, 0].mean(), values[:10, 1].mean()])
