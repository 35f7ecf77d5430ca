"""Finite sums with weights, for all runs at once and without replacement, against the plain function."""

import numpy as np
import pytest

import tiebreak
from tiebreak import Capped, FiniteSum, Gaussian, Power, minimize
from tiebreak.solver.budget import law_values, steps_within

RNG = np.random.default_rng(3)
N, D = 40, 6
A, Y = RNG.standard_normal((N, D)), RNG.standard_normal(N)
SIZES = [1, 7, N, N + 1, 1000, 10**9]


def plain(x, rows):
    return A[rows].T @ (A[rows] @ x - Y[rows]) / len(rows)


def plain_value(x, rows):
    return np.mean((A[rows] @ x - Y[rows]) ** 2) / 2


def weighted(x, rows, weights):
    residuals = (A[rows] @ x[..., None])[..., 0] - Y[rows]
    return ((weights * residuals)[..., None, :] @ A[rows])[..., 0, :]


def weighted_value(x, rows, weights):
    return (weights * ((A[rows] @ x[..., None])[..., 0] - Y[rows]) ** 2).sum(
        axis=-1
    ) / 2


def sums(**options):
    """By a plain function, by weights, and for all runs at once."""
    return (
        FiniteSum(plain, N, plain_value, **options),
        FiniteSum(weighted, N, weighted_value, weighted=True, **options),
        FiniteSum(
            weighted, N, weighted_value, weighted=True, vectorized=True, **options
        ),
    )


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("chunk", [3, 64, 2**16])
def test_three_ways_to_the_same_gradients(replace, chunk):
    """The same batches from the same generators, their gradients and values up to rounding, however they are cut."""
    one, two, three = sums(replace=replace, chunk=chunk)
    three = three.bind((D,))
    points = RNG.standard_normal((5, D))
    seeds = [np.random.default_rng([1, r]) for r in range(5)]
    tokens = three.sample_block(seeds, SIZES)
    singles = [[np.random.default_rng([1, r])] for r in range(5)]
    by_run = [[one.sample(rng[0], size) for size in SIZES] for rng in singles]
    for i, _ in enumerate(SIZES):
        found = three.gradient(points, tokens[i]), three.value(points, tokens[i])
        for r in range(5):
            for oracle in (one, two):
                np.testing.assert_allclose(
                    found[0][r], oracle.gradient(points[r], by_run[r][i]), rtol=1e-12
                )
                np.testing.assert_allclose(
                    found[1][r], oracle.value(points[r], by_run[r][i]), rtol=1e-12
                )
    many = RNG.standard_normal((2, 5, D))  # as a history asks
    np.testing.assert_allclose(
        three.exact_gradient(many)[1, 2], one.exact_gradient(many[1, 2]), rtol=1e-12
    )
    assert three.value(many).shape == (2, 5)


def test_runs_of_a_vectorized_sum_are_runs_alone():
    """Bit for bit, where the function treats rows alike; the chunk is such that points are cut into groups, too."""
    upper = Gaussian(lambda x: x - 1, 0.1, vectorized=True)
    for chunk in (64, 2**16):
        lower = sums(chunk=chunk)[2]
        options = {"method": "vr_pr_sdbpg", "budget": 20_000, "seed": 5}
        together = minimize(upper, lower, np.zeros(D), runs=4, **options)
        for run in range(4):
            alone = minimize(upper, lower, np.zeros(D), runs=[run], **options)
            np.testing.assert_array_equal(alone.x[0], together.x[run])
            np.testing.assert_array_equal(
                alone.last.lower_value[0], together.last.lower_value[run]
            )
    slow = minimize(upper, sums()[0], np.zeros(D), runs=4, **options)
    np.testing.assert_allclose(together.x, slow.x, rtol=1e-9, atol=1e-12)
    matrix = minimize(  # points of two axes
        lambda x: x,
        FiniteSum(
            lambda x, i, w: weighted(x.reshape(*x.shape[:-2], D), i, w).reshape(
                x.shape
            ),
            N,
            weighted=True,
            vectorized=True,
            chunk=50,
        ),
        np.ones((2, 3)),
        method="penalty",
        steps=30,
        runs=3,
        seed=0,
    )
    flat = minimize(
        lambda x: x, sums()[2], np.ones(D), method="penalty", steps=30, runs=3, seed=0
    )
    np.testing.assert_allclose(matrix.x.reshape(3, D), flat.x, rtol=1e-12)


def test_without_replacement_a_batch_of_n_is_the_gradient_itself():
    for oracle in sums(replace=False):
        indices, counts = oracle.sample(np.random.default_rng(0), 10)
        assert counts is None
        assert len(set(indices.tolist())) == 10
        token = oracle.sample(np.random.default_rng(0), N)
        x = np.ones(D)
        np.testing.assert_array_equal(
            oracle.gradient(x, token), oracle.exact_gradient(x)
        )
        draws = np.array(
            [oracle.sample(np.random.default_rng(seed), 13)[0] for seed in range(400)]
        )
        often = (
            np.bincount(draws.ravel(), minlength=N) / 400
        )  # each with probability 13/40; 4.9 deviations
        assert np.abs(often - 13 / N).max() < 4.9 * np.sqrt(13 / N * (1 - 13 / N) / 400)


def test_a_cap_is_what_is_charged():
    """min(B, n) calls a step, from then on of exact gradients: the run is deterministic with batches of n."""
    law = Capped(Power(1, 2), N)
    method = tiebreak.methods.sdbgd.replace(lower_batch=law, upper_batch=1)
    oracle = sums(replace=False)[2]
    result = minimize(lambda x: x, oracle, np.ones(D), method=method, steps=50, seed=0)
    assert result.lower_calls == sum(min((k + 1) ** 2, N) for k in range(50))
    assert (
        steps_within(method, 10**4)[0]
        == minimize(lambda x: x, oracle, np.ones(D), method=method, budget=10**4).steps
    )
    np.testing.assert_array_equal(law_values(law, 9), [law(k) for k in range(9)])
    assert Capped(Power(1e300, 400), 7)(10**6) == 7
    for wrong, error in (
        ((3, 4), TypeError),
        ((Power(1), float("nan")), ValueError),
        ((Power(1), "x"), ValueError),
    ):
        with pytest.raises(error, match=r"law=3|largest="):
            Capped(*wrong)
    for options, words in (
        ({"vectorized": True}, "vectorized=True needs weighted=True"),
        ({"weighted": True, "per_example": True}, "per_example=True and weighted=True"),
    ):
        with pytest.raises(ValueError, match=words):
            FiniteSum(plain, N, **options)
