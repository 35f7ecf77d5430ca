"""The test bed: gradients, constants, solutions and noise of every problem are what it says they are."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import tiebreak
from tiebreak.problems import Problem, named
from tiebreak.problems.noises import NOISES, Phase, Proportional, Student
from tiebreak.problems.testbed import FAMILIES, TESTBED, describe

MADE = [family for family in FAMILIES if family not in ("paper", "random")]
SMALL = [(family, dimension) for family in MADE for dimension in (2, 3, 7)]


def levels(problem: Problem) -> list[tuple[str, object]]:
    return [("f", problem.upper), ("g", problem.lower)]


def cloud(problem: Problem, rng: np.random.Generator, count: int) -> np.ndarray:
    """Points near the solution, near the start, and far from both, at all distances."""
    d = len(problem.x0)
    centers = np.stack([problem.solution, problem.x0, np.zeros(d)])[
        rng.integers(3, size=count)
    ]
    return centers + rng.standard_normal((count, d)) * 10 ** rng.uniform(
        -3, 1.5, (count, 1)
    )


@pytest.mark.parametrize(("family", "dimension"), SMALL)
def test_gradients_are_the_differences_of_the_values(
    family: str, dimension: int
) -> None:
    problem = named(family, dimension=dimension)
    h = 1e-5
    for x in cloud(problem, np.random.default_rng(0), 20):
        for name, level in levels(problem):
            steps = h * np.eye(dimension)
            differences = [
                (level.value(x + e) - level.value(x - e)) / (2 * h) for e in steps
            ]
            scale = max(1, abs(level.value(x)))
            np.testing.assert_allclose(
                level.exact_gradient(x), differences, atol=1e-9 * scale, err_msg=name
            )


@pytest.mark.parametrize("family", MADE)
@settings(max_examples=40, deadline=None)
@given(dimension=st.integers(2, 40), seed=st.integers(0, 2**32 - 1))
def test_no_gradient_changes_faster_or_is_larger_than_its_constant(
    family: str, dimension: int, seed: int
) -> None:
    """‖∇(x) − ∇(y)‖ ≤ L‖x − y‖ and ‖∇f‖ ≤ G_f for points at all distances, near ones along ∇ too."""
    problem, rng = named(family, dimension=dimension), np.random.default_rng(seed)
    c, x = problem.constants, cloud(problem, rng, 60)
    apart = rng.standard_normal(x.shape) * 10 ** rng.uniform(-4, 1, (60, 1))
    for level, smoothness in ((problem.upper, c.L_f), (problem.lower, c.L_g)):
        at_x = level.exact_gradient(x)
        apart[:20] = 1e-3 * at_x[:20] + 1e-6
        change = np.linalg.norm(level.exact_gradient(x + apart) - at_x, axis=1)
        assert np.all(
            change <= smoothness * np.linalg.norm(apart, axis=1) * (1 + 1e-6) + 1e-12
        )
    assert np.all(
        np.linalg.norm(problem.upper.exact_gradient(x), axis=1) <= c.G_f * (1 + 1e-12)
    )


def test_smoothness_is_reached_where_it_is_said_to_be_least() -> None:
    """L_f = max a at f's centre; L_g = 1 at 0 for waves and for the best-held coordinate of a badly conditioned g."""
    h = 1e-4
    for family in MADE:
        problem, d = named(family, dimension=8), 8
        center = np.zeros(d)
        for _ in range(2000):  # f's centre, by descent with its own constant
            center = (
                center - problem.upper.exact_gradient(center) / problem.constants.L_f
            )
        hessian = np.stack(
            [problem.upper.exact_gradient(center + e) / h for e in h * np.eye(d)]
        )
        assert np.linalg.norm(hessian, 2) == pytest.approx(
            problem.constants.L_f, rel=1e-3
        )
    for family in ("islands", "conditioned"):
        problem = named(family, dimension=8)
        slopes = problem.lower.exact_gradient(h * np.eye(8)[0]) / h
        assert slopes[0] == pytest.approx(problem.constants.L_g, rel=1e-6)


def tangents(problem: Problem, family: str) -> np.ndarray:
    """Directions within argmin g at the solution."""
    d, x = len(problem.x0), problem.solution
    m, eye = d // 2, np.eye(d)
    if family in ("sphere", "plateau"):
        return np.linalg.svd(x[None])[2][1:]
    if family == "valley":  # y = sin x at a crest: y' = 0
        return np.concatenate([eye[:m], eye[2 * m :]])
    if family == "stiff":  # one point
        return eye[:0]
    return eye[m:]


@pytest.mark.parametrize(("family", "dimension"), [*SMALL, ("conditioned", 50)])
def test_solutions_are_optimal(family: str, dimension: int) -> None:
    """g is least there, no direction within argmin g improves f, and on the plateau f pulls straight out."""
    problem = named(family, dimension=dimension)
    x, upper = problem.solution, problem.upper.exact_gradient(problem.solution)
    assert problem.lower.value(x) == pytest.approx(0, abs=1e-28)
    assert (
        np.linalg.norm(problem.lower.exact_gradient(x)) < 1e-14 * problem.constants.G_f
    )
    assert np.all(
        np.abs(tangents(problem, family) @ upper) < 1e-13 * problem.constants.G_f
    )
    if family == "plateau":
        assert x @ upper < 0
        assert problem.lower.value(0.999 * x) == 0


@pytest.mark.parametrize(("family", "dimension"), SMALL)
def test_no_other_minimiser_is_better_for_f(family: str, dimension: int) -> None:
    problem, rng = named(family, dimension=dimension), np.random.default_rng(1)
    d, m = dimension, dimension // 2
    points = cloud(problem, rng, 4000)
    if family in ("sphere", "plateau"):
        length = np.linalg.norm(problem.solution)
        norms = np.linalg.norm(points, axis=1, keepdims=True)
        points *= length / (norms if family == "sphere" else np.maximum(norms, length))
    elif family == "valley":
        points[:, m : 2 * m] = np.sin(points[:, :m])
    elif family == "islands":
        points[:, :m] = 2 * math.pi * rng.integers(-3, 4, (len(points), m))
    elif family == "saddle":
        points[:, :m] = math.sqrt(3) * rng.choice([-1, 1], (len(points), m))
    else:
        points[:, : d if family == "stiff" else m] = 0
    assert points.shape[1] == d
    assert np.all(problem.lower.value(points) < 1e-24 * d)  # they do minimise g
    best = problem.upper.value(problem.solution)
    assert np.all(problem.upper.value(points) >= best - 1e-12 * best)


@pytest.mark.parametrize("name", TESTBED)
def test_gaps_and_starts_of_the_standard_selection(name: str) -> None:
    problem = named(name)
    assert problem.name == name
    c = problem.constants
    assert float(problem.lower.value(problem.x0)) == pytest.approx(c.delta_g)
    assert (
        c.delta_g > 0.01 * len(problem.x0) / 2 or name == "saddle-2"
    )  # there is something to do
    if problem.solution is not None:
        assert float(problem.upper.value(problem.x0)) > float(
            problem.upper.value(problem.solution)
        )


def test_the_test_bed_covers_what_it_is_for() -> None:
    parts = [named(name) for name in TESTBED]
    assert {name.split("-")[0] for name in TESTBED} == set(FAMILIES) - {
        "stiff"
    }  # made for one question
    assert min(len(p.x0) for p in parts) == 2
    assert max(len(p.x0) for p in parts) == 10**4
    assert {name.split("-")[-1] for name in TESTBED} >= set(NOISES) - {
        "gaussian",
        "phase",
        "sampled",
    }
    assert all(describe(family) for family in FAMILIES)


# ------------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("size", [1, 7, 150])
def test_the_noise_has_mean_0_and_the_variance_of_the_constants(
    kind: str, size: int
) -> None:
    """Means and second moments of 10 000 batches, within six standard errors where there is one (about 1 in 10^8)."""
    problem, rng = named("sphere", dimension=4, noise=kind), np.random.default_rng(3)
    for level, sigma in (
        (problem.upper, problem.constants.sigma_f),
        (problem.lower, problem.constants.sigma_g),
    ):
        x, count = problem.x0, 10_000
        tokens = level.sample_block(rng.spawn(count), [size])[0]
        noise = level.gradient(
            np.broadcast_to(x, (count, 4)), tokens
        ) - level.exact_gradient(x)
        squares = (noise**2).sum(axis=1)
        assert np.all(
            np.abs(noise.mean(axis=0)) < 6 * noise.std(axis=0) / math.sqrt(count)
        )
        if (
            kind == "heavy"
        ):  # its squares have no variance to make a standard error of: the law is tested below
            continue
        relative = NOISES[kind] * np.linalg.norm(level.exact_gradient(x))
        expected = relative**2 if kind == "multiplicative" else sigma**2
        assert squares.mean() * size == pytest.approx(
            expected, abs=6 * squares.std() * size / math.sqrt(count)
        )
        assert expected <= sigma**2 * (1 + 1e-12)


def test_heavy_noise_is_students_t_and_its_variance_is_exact() -> None:
    """Coordinates of single samples against the t law with three degrees, scaled to variance σ² = s²·3."""
    stats = pytest.importorskip("scipy.stats")
    oracle, rng = Student(lambda x: x, 0.5, shape=(2,)), np.random.default_rng(0)
    tokens = oracle.sample_block([rng], [1] * 20_000)[:, 0]
    for coordinate in tokens.T:
        assert (
            stats.kstest(coordinate, stats.t(3, scale=0.5 / math.sqrt(3)).cdf).pvalue
            > 1e-4
        )
    assert stats.t(3, scale=0.5 / math.sqrt(3)).var() == pytest.approx(0.25)
    radii = np.linalg.norm(tokens, axis=1)
    assert (
        np.mean(radii > 5) > 1e-4
    )  # ten standard deviations: a Gaussian's would never be there


def test_the_mean_of_a_heavy_batch_has_the_law_of_a_mean_of_single_samples() -> None:
    stats = pytest.importorskip("scipy.stats")
    oracle, rng = Student(lambda x: x, 1.0, shape=(1,)), np.random.default_rng(1)
    batches = np.array([oracle.sample(rng, 20)[0] for _ in range(4000)])
    singles = (
        oracle.sample_block([rng], [1] * 80_000)[:, 0, 0].reshape(4000, 20).mean(axis=1)
    )
    assert stats.ks_2samp(batches, singles).pvalue > 1e-4


@pytest.mark.parametrize("kind", ["heavy", "multiplicative", "sampled"])
def test_runs_together_equal_runs_alone_and_large_batches_take_little_memory(
    kind: str,
) -> None:
    problem = named("islands", dimension=6, noise=kind)
    options = {"method": "vr_pr_sdbpg", "steps": 300, "seed": 5}
    together = tiebreak.minimize(
        problem.upper, problem.lower, problem.x0, runs=4, **options
    )
    alone = tiebreak.minimize(
        problem.upper, problem.lower, problem.x0, runs=[2], **options
    )
    np.testing.assert_array_equal(together.x[2], alone.x[0])
    token = problem.upper.sample(np.random.default_rng(0), 3 * 10**6)
    if kind != "sampled":
        assert token.shape == (6,)
    else:
        assert len(token[0]) == len(token[1]) <= problem.upper.n
    noise = problem.upper.gradient(problem.x0, token) - problem.upper.exact_gradient(
        problem.x0
    )
    assert 0 < np.abs(noise).max() < 0.05


def test_sampled_terms_are_functions_and_add_up_to_the_objective() -> None:
    """∇_i is the gradient of the i-th value; both have the mean of the same problem without noise; ℓ ≤ 1, s² = 1/4."""
    sampled, plain, h = named("plateau-3-sampled"), named("plateau-3"), 1e-6
    x, steps = np.array([0.3, -1.7, 2.2]), h * np.eye(3)
    for level, exact in ((sampled.upper, plain.upper), (sampled.lower, plain.lower)):
        np.testing.assert_allclose(
            level.exact_gradient(x), exact.exact_gradient(x), atol=1e-13
        )
        assert level.value(x) == pytest.approx(exact.value(x), abs=1e-13)
        one = [(np.array([i]), None) for i in range(level.n)]
        for token in one[:5]:
            differences = [
                (level.value(x + e, token) - level.value(x - e, token)) / (2 * h)
                for e in steps
            ]
            np.testing.assert_allclose(level.gradient(x, token), differences, atol=1e-8)
        here, there = (
            np.array(
                [level.gradient(p, token) - exact.exact_gradient(p) for token in one]
            )
            for p in (x, -x)
        )
        np.testing.assert_allclose((here**2).mean(axis=0), 0.25)
        assert ((here - there) ** 2).sum(axis=1).mean() <= (2 * x) @ (2 * x)


def test_multiplicative_noise_vanishes_with_the_gradient() -> None:
    problem = named("flat", noise="multiplicative")
    token = problem.lower.sample(np.random.default_rng(0), 1)
    assert np.all(
        problem.lower.gradient(problem.solution, token)
        == problem.lower.exact_gradient(problem.solution)
    )
    assert isinstance(problem.lower, Proportional)


# ------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("valey", {}, "name='valey' must begin with one of paper, random"),
        ("valley-x", {}, "noises are gaussian, multiplicative, heavy, phase"),
        ("valley-3-heavy-4", {}, "must be a family, a dimension and a noise"),
        ("valley-1", {}, "dimension=1 must be from 2 to 1000000"),
        ("valley-99999999", {}, "dimension=99999999 must be from 2"),
        ("valley", {"dimension": 2.5}, "dimension=2.5 must be a whole number"),
        ("valley-4", {"dimension": 4}, "dimension=4: the name says 4 already"),
        (
            "valley-heavy",
            {"noise": "heavy"},
            "noise='heavy': the name says 'heavy' already",
        ),
        (
            "valley",
            {"noise": "pink"},
            "noise='pink' must be one of gaussian, multiplicative, heavy",
        ),
        ("valley", {"sigma": -1}, "sigma=-1 must be finite and ≥ 0"),
        ("paper-3", {}, "the paper's problem has dimension 2"),
        ("random-heavy", {}, "none with heavy tails"),
        ("random-sampled", {}, "none with heavy tails, waves or sampled terms"),
        (
            "valley-20000-sampled",
            {},
            "dimension=20000 must be at most 10000 with noise='sampled'",
        ),
        ("random", {"sigma": 1}, "noise of their own strength"),
    ],
)
def test_what_is_no_name_gets_a_sentence(
    name: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        named(name, **options)


def test_names_say_what_they_give() -> None:
    assert named("Valley-8").name == "valley-8"
    assert named("valley-heavy").name == "valley-2-heavy"
    assert named(
        "valley", dimension=8, noise="heavy", sigma=2
    ).constants.sigma_g == 2 * math.sqrt(8)
    assert named("paper", sigma=1.0).constants.sigma_f == math.sqrt(2)
    with pytest.raises(TypeError, match="per_sample=True has no effect on Student"):
        Student(lambda x: x, 1.0, per_sample=True)
    with pytest.raises(ValueError, match="give the Student oracle the shape of x"):
        Student(lambda x: x, 1.0).sample(np.random.default_rng(0), 1)


def test_the_papers_gradients_of_one_point_are_those_of_many():
    """To the last bit, though one point takes another way through them; float32 does not, and stays float32."""
    points = np.random.default_rng(0).standard_normal((3000, 2)) * [5, 2]
    points[:3] = [[0.0, 0.0], [-0.0, 1e-30], [1e30, 40.0]]
    problem = tiebreak.problems.paper()
    for dtype in (np.float64, np.float32):
        x = points.astype(dtype)
        for level in (problem.upper, problem.lower):
            with np.errstate(all="ignore"):
                together = level.exact_gradient(x)
                alone = np.concatenate([level.exact_gradient(row[None]) for row in x])
            assert alone.dtype == dtype
            np.testing.assert_array_equal(alone, together)


# ------------------------------------------------------------------------------------------------- waves and gorges


def test_waves_have_their_variance_and_their_smoothness() -> None:
    """Var n = s²/B at every x, E‖n(x) − n(x')‖² = Σ 2s²(1 − cos ωδ)/B ≤ ℓ²‖x − x'‖²/B: chi-square over 4000 tokens."""
    sigma, batch, count = 0.5, 4, 4000
    oracle = Phase(lambda x: 0 * x, sigma, shape=(2,), roughness=2.0, vectorized=True)
    tokens = oracle.sample_block(
        [np.random.default_rng(i) for i in range(count)], [batch]
    )[0]
    for x, delta in (
        (np.array([0.3, -2.0]), np.array([0.1, -0.2])),
        (np.array([9.0, 1.0]), np.array([0.01, 0.5])),
    ):
        here, there = (
            oracle.gradient(np.tile(p, (count, 1)), tokens) for p in (x, x + delta)
        )
        share = stats.chi2.cdf((here**2).sum() * batch / sigma**2, 2 * count)
        assert 1e-4 < share < 1 - 1e-4
        expected = 2 * sigma**2 * (1 - np.cos(4.0 * delta)) / batch  # ω = ℓ/s = 4
        np.testing.assert_allclose(
            ((there - here) ** 2).mean(axis=0), expected, rtol=0.1
        )
        assert expected.sum() <= (2.0**2) * (delta @ delta) / batch
    with pytest.raises(ValueError, match="roughness=-1 must be finite and ≥ 0"):
        Phase(lambda x: x, 0.5, roughness=-1)


def test_a_gorge_is_stiff_across_and_gentle_along() -> None:
    problem = named("stiff-4")
    x, h = problem.x0.copy(), 1e-4
    slopes = [
        problem.lower.exact_gradient(x + e)[i] / h
        for i, e in enumerate(h * np.eye(4)[:3])
    ]
    assert slopes == pytest.approx([1.0] * 3, rel=1e-6)
    assert problem.lower.exact_gradient(x) == pytest.approx([0, 0, 0, 0.02], abs=1e-4)
    assert problem.upper.exact_gradient(x)[-1] == 0
