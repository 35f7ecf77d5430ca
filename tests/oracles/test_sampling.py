"""Oracles: the laws they draw from, blocks, memory, grouping by counts; and an oracle of one's own in the solver.

Statistical tests fix their seeds and reject at ALPHA = 1e-4 each: a correct program fails one of them, for a new seed,
once in ten thousand.
"""

import itertools
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from scipy import stats

import tiebreak
from tiebreak import (
    Average,
    Exact,
    FiniteSum,
    Gaussian,
    Minibatch,
    Oracle,
    Storm,
    methods,
)

ALPHA = 1e-4


def generator(seed=0):
    return np.random.default_rng(seed)


def zero(x):
    return np.zeros_like(x)


# ---------------------------------------------------------------------------------------------------- Gaussian: the law


@pytest.mark.parametrize("per_sample", [False, True], ids=["exact law", "per sample"])
@pytest.mark.parametrize("size", [1, 3, 40])
def test_gaussian_batch_mean_is_normal_with_variance_sigma_squared_over_the_size(
    size, per_sample
):
    """∇ + N(0, σ²/B I): mean and variance of every coordinate, its shape (Kolmogorov–Smirnov), and no correlation."""
    sigma, shape, count = np.array([0.5, 2.0, 1e-3]), (2, 3), 20_000
    oracle = Gaussian(zero, sigma, shape=shape, per_sample=per_sample)
    draws = oracle.gradient(
        np.zeros(shape), oracle.sample_block([generator(size)], [size] * count)
    )
    normal = (draws * math.sqrt(size) / sigma).reshape(
        count, -1
    )  # N(0, 1) each, if the law is right
    tests = 6 * 3 + 15
    level = ALPHA / tests
    for z in normal.T:
        assert 2 * stats.norm.sf(abs(z.mean()) * math.sqrt(count)) > level
        spread = stats.chi2.cdf((z**2).sum(), count)
        assert min(spread, 1 - spread) > level / 2
        assert stats.kstest(z, "norm").pvalue > level
    for y, z in itertools.combinations(normal.T, 2):
        assert stats.pearsonr(y, z).pvalue > level


@pytest.mark.parametrize("size", [1, 2, 17])
def test_drawing_the_mean_and_drawing_every_sample_follow_one_law(size):
    """Two-sample Kolmogorov–Smirnov, coordinate by coordinate and on the norm."""
    pair = [
        Gaussian(zero, [0.5, 3.0], shape=(2,), per_sample=each)
        for each in (False, True)
    ]
    rng = generator(size)
    one, two = (oracle.sample_block([rng], [size] * 8000)[:, 0] for oracle in pair)
    for y, z in (
        (one[:, 0], two[:, 0]),
        (one[:, 1], two[:, 1]),
        (np.hypot(*one.T), np.hypot(*two.T)),
    ):
        assert stats.ks_2samp(y, z).pvalue > ALPHA / 3


def test_gaussian_noise_is_centred_at_the_gradient():
    oracle = Gaussian(lambda x: 3 * x, 0.0, shape=(2,))
    x = np.array([1.0, -2.0])
    assert oracle.gradient(x, oracle.sample(generator(), 5)).tolist() == [3.0, -6.0]
    assert oracle.exact_gradient(x).tolist() == [3.0, -6.0]
    noisy = Gaussian(lambda x: 3 * x, 1.0, shape=(2,))
    token = noisy.sample(generator(), 5)
    assert np.array_equal(noisy.gradient(x, token) - token, 3 * x)
    assert np.array_equal(
        noisy.gradient(2 * x, token) - token, 6 * x
    )  # one token, any point


@pytest.mark.parametrize(
    "sigma", [0.5, [1.0, 2.0], [[1.0], [0.0], [3.0]], np.arange(6.0).reshape(3, 2)]
)
def test_sigma_is_per_coordinate_and_broadcasts(sigma):
    """The same standard normals, each times its own σ and over √B."""
    shape, size = (3, 2), 7
    normals = generator(3).standard_normal(6).reshape(shape)
    token = Gaussian(zero, sigma, shape=shape).sample(generator(3), size)
    assert token.shape == shape
    np.testing.assert_allclose(
        token, np.broadcast_to(sigma, shape) * normals / math.sqrt(size), rtol=4e-16
    )


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("shape", [(), (2,), (3, 2), (20_000,)])
def test_blocks_are_the_draws_one_by_one(shape, per_sample):
    """Bit for bit, and the generators stand where they would stand: blocks are a matter of speed alone."""
    oracle = Gaussian(zero, 0.7, shape=shape, per_sample=per_sample)
    sizes = [1, 5, 2, 9, 1] if math.prod(shape) > 10 else [1, 5, 10_000, 200_000, 3, 1]
    blocks, singles = ([generator(s) for s in (1, 2, 3)] for _ in range(2))
    block = oracle.sample_block(blocks, sizes)
    assert block.shape == (len(sizes), 3, *shape)
    for r, rng in enumerate(singles):
        for i, size in enumerate(sizes):
            assert np.array_equal(block[i, r], oracle.sample(rng, size))
        assert rng.bit_generator.state == blocks[r].bit_generator.state
    split = [generator(s) for s in (1, 2, 3)]
    parts = [
        oracle.sample_block(split, sizes[:2]),
        oracle.sample_block(split, sizes[2:]),
    ]
    assert np.array_equal(np.concatenate(parts), block)


def test_per_sample_draws_every_sample_once():
    """The mean of B draws uses B·d normals of the stream, no more and no fewer, across chunk boundaries."""
    for size in (1, 8191, 8192, 8193, 20_000):
        rng, other = generator(5), generator(5)
        token = Gaussian(zero, 2.0, shape=(2,), per_sample=True).sample(rng, size)
        other.standard_normal(2 * size)
        assert rng.bit_generator.state == other.bit_generator.state
        assert np.abs(token).max() < 2.0 / math.sqrt(size) * 5


def peak_memory(function) -> int:
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("per_sample", "size"), [(True, 10**7), (False, 10**18)])
def test_memory_does_not_grow_with_the_batch(per_sample, size):
    """10⁷ samples of two numbers are 160 MB; drawn one chunk at a time they take less than one."""
    oracle = Gaussian(zero, 0.5, shape=(2,), per_sample=per_sample)
    rng = generator()
    assert peak_memory(lambda: oracle.sample(rng, size)) < 2**20


# --------------------------------------------------------------------------------------------------- FiniteSum: the law

DATA = np.array([1.0, 10.0, 100.0, 1000.0])


def identity(n, **options):
    """∇ = the mean of data over the batch: a batch is known by its gradient, since digits do not collide."""
    return FiniteSum(lambda x, i: x + DATA[:n][i].mean(), n=n, **options)


@pytest.mark.parametrize(
    ("n", "size"), [(3, 1), (3, 2), (3, 3), (4, 4), (3, 5), (2, 6), (4, 5)]
)
def test_finite_sum_batch_mean_has_the_law_of_enumeration(n, size):
    """Drawing with replacement: the n^B tuples are equally likely; chi-square over the multisets, size ≤ n or not."""
    count = 6_000
    law = Counter(
        round(sum(tuple_))
        for tuple_ in itertools.product(DATA[:n].tolist(), repeat=size)
    )
    oracle, rng, x = identity(n), generator(100 * n + size), np.array(0.0)
    seen = Counter(
        round(float(oracle.gradient(x, oracle.sample(rng, size))) * size)
        for _ in range(count)
    )
    assert seen.keys() <= law.keys()
    expected = {key: count * ways / n**size for key, ways in law.items()}
    rare = [key for key in law if expected[key] < 5]  # pooled, as chi-square asks
    bins = [(seen[key], expected[key]) for key in law if expected[key] >= 5]
    if rare:
        bins.append(
            (sum(seen[key] for key in rare), sum(expected[key] for key in rare))
        )
    observed, wanted = zip(*bins, strict=True)
    assert stats.chisquare(observed, wanted).pvalue > ALPHA


@pytest.mark.parametrize("size", [7, 50, 51, 10**4, 10**15])
def test_finite_sum_is_unbiased_with_the_variance_of_b_draws(size):
    """Mean and variance of the batch mean are μ and σ²/B, whatever the size; z- and chi-square tests."""
    n, count = 50, 1000
    data = generator(1).normal(size=n)
    oracle, rng = FiniteSum(lambda x, i: data[i].mean(), n=n), generator(2)
    means = np.array(
        [
            float(oracle.gradient(np.array(0.0), oracle.sample(rng, size)))
            for _ in range(count)
        ]
    )
    z = (means - data.mean()) / (data.std() / math.sqrt(size))
    assert abs(z.mean()) * math.sqrt(count) < stats.norm.isf(ALPHA / 4)
    # The variance of z² is about 2 (the batch mean is nearly normal for B ≥ 7): a normal bound on its mean.
    assert abs((z**2).mean() - 1) < stats.norm.isf(ALPHA / 4) * math.sqrt(2.5 / count)


# -------------------------------------------------------------------------------------------- FiniteSum: the arithmetic

ROWS = (
    np.arange(1, 31).reshape(10, 3).astype(float)
)  # whole numbers: sums are exact, means rounded once


def mean_gradient(x, indices):
    return x + ROWS[indices].mean(axis=0)


def one_gradient(x, i):
    assert isinstance(i, int)
    return x + ROWS[i]


def brute_force(x, token):
    indices, counts = token
    every = np.repeat(indices, counts if counts is not None else 1)
    return x + ROWS[every].sum(axis=0) / len(every)


@pytest.mark.parametrize("size", [1, 9, 10, 11, 37, 10_000])
@pytest.mark.parametrize("chunk", [1, 3, 10, 2**16])
def test_gradient_of_counts_is_the_mean_over_all_copies(size, chunk):
    """Grouped by count and cut into chunks, against the batch written out; per example and by means alike.

    All sums are of whole numbers below 2⁵³, so the two agree to the rounding of the means: a few ulp.
    """
    x = np.array([1.0, 2.0, -4.0])
    by_mean = FiniteSum(mean_gradient, 10, chunk=chunk)
    by_term = FiniteSum(one_gradient, 10, per_example=True)
    for seed in range(5):
        token = by_mean.sample(generator(seed), size)
        other = by_term.sample(generator(seed), size)
        assert np.array_equal(token[0], other[0])
        assert (token[1] is None) == (size <= 10)
        assert (len(token[0]) if token[1] is None else token[1].sum()) == size
        expected = brute_force(x, token)
        np.testing.assert_allclose(by_mean.gradient(x, token), expected, rtol=1e-14)
        np.testing.assert_allclose(by_term.gradient(x, token), expected, rtol=1e-14)


def test_whole_number_gradients_are_exact_whatever_the_grouping():
    """Where every mean is a dyadic number, there is no rounding at all, and equality is exact."""
    data = np.arange(8.0) * 1024
    oracle = FiniteSum(lambda x, i: data[i].sum() / len(i), 8)
    indices, counts = np.array([0, 2, 3, 5, 7]), np.array([4, 1, 4, 6, 1])  # 16 in all
    assert (
        oracle.gradient(np.array(0.0), (indices, counts))
        == (data[indices] * counts).sum() / 16
    )


def test_functions_never_see_more_than_a_chunk():
    seen = []

    def gradient(x, indices):
        seen.append(len(indices))
        return x + ROWS[indices % 10].mean(axis=0)

    oracle = FiniteSum(
        gradient, 1000, value=lambda x, i: float(seen.append(len(i)) or 0), chunk=64
    )
    x = np.zeros(3)
    oracle.gradient(
        x, oracle.sample(generator(), 1)
    )  # the first call also sees that the function gives means
    for size in (1, 64, 65, 1000):
        seen.clear()
        oracle.gradient(x, oracle.sample(generator(), size))
        assert max(seen) <= 64
        assert sum(seen) == size
    seen.clear()
    oracle.exact_gradient(x)
    assert (max(seen), sum(seen)) == (64, 1000)
    seen.clear()
    indices, counts = token = oracle.sample(generator(), 5000)
    oracle.gradient(x, token)
    assert max(seen) <= 64
    assert sum(seen) == len(indices)  # each term once, however often it was drawn
    assert counts.sum() == 5000


@pytest.mark.parametrize("size", [10**9, 10**15])
def test_huge_batches_cost_what_n_terms_cost(size):
    n = 1000
    data = generator(4).normal(size=n)
    oracle, rng = FiniteSum(lambda x, i: x - data[i].mean(), n), generator(5)
    tokens = []
    assert peak_memory(lambda: tokens.append(oracle.sample(rng, size))) < 10 * 8 * n
    indices, counts = tokens[0]
    assert counts.sum() == size
    assert len(indices) == n
    assert peak_memory(lambda: oracle.gradient(np.array(0.0), tokens[0])) < 100 * 8 * n
    error = float(oracle.gradient(np.array(0.0), tokens[0])) + data.mean()
    assert abs(error) < stats.norm.isf(ALPHA / 2) * data.std() / math.sqrt(size) + 1e-15


@pytest.mark.parametrize("per_example", [False, True])
def test_exact_gradient_and_values_are_means_over_all_terms_or_over_the_batch(
    per_example,
):
    data = np.array([1.0, 2.0, 6.0])
    if per_example:
        oracle = FiniteSum(
            lambda x, i: x - data[i],
            3,
            lambda x, i: (x - data[i]) ** 2 / 2,
            per_example=True,
        )
    else:
        oracle = FiniteSum(
            lambda x, i: (x - data[i]).mean(),
            3,
            lambda x, i: ((x - data[i]) ** 2).mean() / 2,
        )
    x = np.array(1.0)
    assert oracle.has_value
    assert oracle.exact_gradient(x) == -2
    assert oracle.value(x) == pytest.approx((0 + 1 + 25) / 6, rel=1e-15)
    batch = (np.array([0, 2, 2]), None)
    assert oracle.gradient(x, batch) == pytest.approx(-10 / 3, rel=1e-15)
    assert oracle.value(x, batch) == pytest.approx(50 / 6, rel=1e-15)
    counted = (np.array([1, 2]), np.array([3, 1]))
    assert oracle.gradient(x, counted) == -2
    assert oracle.value(x, counted) == pytest.approx((3 * 1 + 25) / 8, rel=1e-15)


# ----------------------------------------------------------------------------------------------------- Exact, protocol


def test_exact_oracle_is_deterministic_and_draws_nothing():
    oracle, rng = Exact(lambda x: 2 * x, lambda x: float(x @ x)), generator()
    before = rng.bit_generator.state
    token = oracle.sample(rng, 10)
    assert oracle.sample_block([rng], [1, 2]) == [None, None]
    assert rng.bit_generator.state == before
    x = np.array([1.0, 2.0])
    assert (
        oracle.gradient(x, token).tolist()
        == oracle.exact_gradient(x).tolist()
        == [2.0, 4.0]
    )
    assert oracle.value(x) == oracle.value(x, token) == 5.0


def test_all_are_oracles():
    for oracle in (Exact(zero), Gaussian(zero, 1.0), FiniteSum(zero, 3), Signed()):
        assert isinstance(oracle, Oracle)
    assert not isinstance(zero, Oracle)
    assert not Exact(zero).has_value
    assert not FiniteSum(zero, 3).has_value
    assert Gaussian(zero, 1.0, value=zero).has_value


BAD = [
    (lambda: Exact(3), TypeError, r"gradient=3 must be a function"),
    (lambda: Exact(zero, value=3), TypeError, r"value=3 must be a function"),
    (lambda: Gaussian(None, 1.0), TypeError, r"gradient=None must be a function"),
    *(
        (lambda s=s: Gaussian(zero, s), ValueError, r"sigma=.* must be finite and ≥ 0")
        for s in (-1, math.nan, math.inf, [1.0, -1.0], None)
    ),
    (
        lambda: Gaussian(zero, 1.0).sample(generator(), 3),
        ValueError,
        r"shape=None: .* the shape of x",
    ),
    (
        lambda: Gaussian(zero, 1.0, shape=(2,)).bind((3,)),
        ValueError,
        r"shape=\(2,\) .* must be x0's shape, \(3,\)",
    ),
    (
        lambda: Gaussian(zero, [1.0, 2.0]).bind((3,)),
        ValueError,
        r"sigma of shape \(2,\) must broadcast to .* \(3,\)",
    ),
    (
        lambda: Gaussian(zero, [[1.0], [2.0]]).bind((3,)),
        ValueError,
        r"sigma of shape \(2, 1\) must broadcast",
    ),
    (lambda: Gaussian(zero, 1.0).value(0.0), ValueError, r"value=None"),
    (lambda: FiniteSum(zero, 3).value(0.0), ValueError, r"value=None"),
    (lambda: FiniteSum(3, 3), TypeError, r"gradient=3 must be a function"),
    (lambda: FiniteSum(zero, 3, value="v"), TypeError, r"value='v' must be a function"),
    *(
        (
            lambda n=n: FiniteSum(zero, n),
            ValueError,
            rf"n={n!r} must be a whole number ≥ 1",
        )
        for n in (0, -1, 2.5, True, "3", None, math.nan, math.inf)
    ),
    *(
        (
            lambda c=c: FiniteSum(zero, 3, chunk=c),
            ValueError,
            rf"chunk={c!r} must be a whole number ≥ 1",
        )
        for c in (0, -1, 2.5, True)
    ),
]


@pytest.mark.parametrize(("make", "error", "message"), BAD)
def test_bad_input_names_the_argument_its_value_and_the_legal_range(
    make, error, message
):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("sigma", ["loud", [[1.0], [1.0, 2.0]]])
def test_a_sigma_that_is_no_number_is_named(sigma):
    with pytest.raises((TypeError, ValueError), match="sigma="):
        Gaussian(zero, sigma)


def test_binding_leaves_the_oracle_as_it_was():
    oracle = Gaussian(zero, 1.0)
    assert oracle.bind((4,)).shape == (4,)
    assert oracle.shape is None


# ----------------------------------------------------------------------------------------------- an oracle of one's own


class Signed:
    """No more than the protocol: ∇ = x plus a random sign, the mean of `size` signs."""

    def sample(self, rng, size):
        return rng.choice([-1.0, 1.0], size=size).mean()

    def gradient(self, x, token):
        return x + token


class Multiplicative:
    """Noise that grows with the gradient, (1 + sZ/√B) ⊙ M(x − c): STORM's differences are not free of it."""

    has_value = True

    def __init__(self, matrix, centre, vectorized):
        self.matrix, self.centre, self.vectorized = matrix, centre, vectorized

    def sample(self, rng, size):
        return rng.standard_normal(self.centre.shape) * (0.4 / math.sqrt(size))

    def gradient(self, x, token):
        return (1 + token) * self.exact_gradient(x)

    def exact_gradient(self, x):
        # One dimension after the other: the same operations for one run as for many.
        offset = x - self.centre
        return sum(
            offset[..., j, None] * self.matrix[:, j] for j in range(self.centre.size)
        )

    def value(self, x, token=None):
        offset = x - self.centre
        value = 0.5 * (offset * self.exact_gradient(x)).sum(axis=-1)
        return value if token is None else value * (1 + token.mean(axis=-1))


def multiplicative(vectorized):
    upper = Multiplicative(
        np.diag([1.0, 2.0, 0.5]), np.array([1.0, -1.0, 2.0]), vectorized
    )
    lower = Multiplicative(np.diag([1.0, 0.0, 0.3]) + 0.1, np.zeros(3), vectorized)
    return upper, lower


@pytest.mark.parametrize(
    "estimator",
    [Minibatch(), Storm(0.3), Average(0.1)],
    ids=["minibatch", "storm", "average"],
)
@pytest.mark.parametrize("name", methods.METHODS)
def test_an_oracle_of_ones_own_works_everywhere_vectorized_or_not(name, estimator):
    """The same runs, whether the oracle takes all of them at once or one by one; finite, charged, measured."""
    method = methods.METHODS[name].replace(estimator=estimator)
    x0 = np.array([1.0, 1.0, 1.0])
    options = {
        "method": method,
        "steps": 60,
        "runs": [0, 2],
        "seed": 3,
        "record": 1,
        "keep_iterates": True,
    }
    one, all_at_once = (
        tiebreak.minimize(*multiplicative(v), x0, **options) for v in (False, True)
    )
    assert one.success
    assert one.steps.tolist() == [60, 60]
    assert np.array_equal(one.calls, all_at_once.calls)
    np.testing.assert_allclose(
        all_at_once.history.x, one.history.x, rtol=1e-12, atol=1e-14
    )
    assert np.array_equal(all_at_once.selected.step, one.selected.step)
    for column in (
        "direction_squared",
        "lower_gradient_squared",
        "stationarity_squared",
        "multiplier",
        "upper_value",
        "lower_value",
    ):
        np.testing.assert_allclose(
            all_at_once.history[column],
            one.history[column],
            rtol=1e-10,
            atol=1e-13,
            err_msg=column,
        )
    assert not np.array_equal(
        one.x[0], one.x[1]
    )  # there is noise, and the runs have their own
    alone = tiebreak.minimize(*multiplicative(True), x0, **options | {"runs": [2]})
    assert np.array_equal(alone.x[0], all_at_once.x[1])


def test_a_value_rule_sees_the_value_of_its_own_mini_batch():
    """φ = α (g_B(x) − target) with the batch of the step: a rule that records what it is given sees value(x, token)."""
    upper, lower = multiplicative(False)
    tokens, seen = [], []
    sample = lower.sample
    lower.sample = lambda rng, size: tokens.append(sample(rng, size)) or tokens[-1]

    def rule(fg, gg, lower_value):
        seen.append(lower_value.copy())
        return 0 * fg

    method = methods.Method(
        "spy", rule, tiebreak.Schedule(step_size=0.1, lower_batch=4)
    )
    result = tiebreak.minimize(
        upper,
        lower,
        np.ones(3),
        method=method,
        steps=5,
        seed=0,
        record=1,
        keep_iterates=True,
        runs=1,
    )
    used = [value for value in seen if value.shape == (1,)][:5]
    for k in range(5):
        assert used[k][0] == pytest.approx(
            float(lower.value(result.history.x[k, 0], tokens[k])), rel=1e-14
        )


def test_the_bare_protocol_is_enough():
    """No exact gradient, no value: the run is made, and what cannot be measured is not there."""
    result = tiebreak.minimize(Signed(), Signed(), np.ones(2), steps=20, seed=1)
    assert result.success
    assert np.isfinite(result.x).all()
    assert list(result.history.columns) == ["multiplier"]
    assert result.last.lower_gradient_squared is None


def test_batches_reach_the_oracle_as_whole_numbers():
    seen = []

    class Spy(Signed):
        def sample(self, rng, size):
            seen.append(size)
            return super().sample(rng, size)

    tiebreak.minimize(Signed(), Spy(), np.ones(2), method="sdbgd", steps=6, seed=1)
    assert seen == [math.isqrt(t**5) for t in range(1, 7)]
    assert all(type(size) is int for size in seen)


@pytest.mark.parametrize("vectorized", [False, True])
def test_an_oracle_that_works_in_place_fails_at_the_start_already(vectorized):
    """Iterates are read-only, the first one too."""

    def halve(x):
        x *= 0.5
        return x

    upper, lower = (
        Exact(halve, vectorized=vectorized),
        Exact(lambda x: 1 * x, vectorized=vectorized),
    )
    with pytest.raises(ValueError, match="read-only"):
        tiebreak.minimize(upper, lower, np.ones(2), steps=1, record=None)


@pytest.mark.parametrize("vectorized", [False, True])
def test_a_point_with_additive_noise_is_evaluated_once(vectorized):
    """STORM takes two mini-batches at every point: ∇(x) is computed for the first, the second adds other noise.

    The numbers are those of an oracle that is asked twice, in float32 too, whatever dtype the function has.
    """
    evaluated, flat = [], np.array([1.0, 0.0, 0.0])

    def gradient(x):
        evaluated.append(x)
        return np.asarray(x, dtype=float) * flat

    class Asked(Gaussian):
        def gradient(self, x, token=None):
            return super().gradient(x, token)

    for dtype in (np.float64, np.float32):
        found = []
        for kind, times in ((Gaussian, 1), (Asked, 2)):
            evaluated.clear()
            upper = kind(lambda x: x - 1, 0.3, vectorized=vectorized)
            lower = kind(gradient, 0.3, vectorized=vectorized)
            options = {
                "method": "vr_pr_sdbpg",
                "steps": 50,
                "runs": 3,
                "seed": 1,
                "record": None,
            }
            found.append(
                tiebreak.minimize(upper, lower, np.ones(3, dtype), **options).x
            )
            points = 50 * times - (times - 1)  # there is no point before the first
            assert len(evaluated) == (points if vectorized else 3 * points) + (
                2 if vectorized else 6
            )  # two are measured
        np.testing.assert_array_equal(*found)


def test_a_library_rule_on_one_run_is_the_rule_on_arrays():
    """On floats for one run, on arrays for more: the same bits at all scales, and no error where arrays have none."""
    rng = np.random.default_rng(0)
    numbers = [
        *(10.0 ** rng.uniform(-200, 200, 40) * rng.choice([-1, 1], 40)),
        0.0,
        -0.0,
        np.inf,
        np.nan,
        1e308,
    ]
    for method in methods.METHODS.values():
        if method.remembers:  # these get arrays, however many runs there are
            continue
        arguments = method.arguments(method.schedule.at(7))
        for fg, gg in itertools.product(numbers, map(abs, numbers)):
            with np.errstate(all="ignore"):
                one = method.multiplier(np.array([fg]), np.array([gg]), arguments)
                two = method.multiplier(
                    np.array([fg, 1.0]), np.array([gg, 1.0]), arguments
                )
            assert one.dtype == np.float64
            assert one.tobytes() == two[:1].tobytes() or (
                np.isnan(one[0]) and np.isnan(two[0])
            )
