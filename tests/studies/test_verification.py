"""The random problems have the constants that they claim, and the verification finds what is true and what is not."""

import csv
import inspect
import json
import math
import re
from collections import ChainMap
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

import tiebreak
from tiebreak import Storm, anytime, methods, minimize, studies
from tiebreak.problems import paper, random_problem
from tiebreak.studies import Verification
from tiebreak.studies.figures import draw_all
from tiebreak.studies.findings import summary
from tiebreak.studies.folder import save
from tiebreak.studies.tables import scientific
from tiebreak.studies.verification import evidence, verification
from tiebreak.studies.verification.evidence import Case
from tiebreak.studies.verification.report import verification_findings
from tiebreak.theory import exponents, penalty_bounds, plan, residual_bounds, terms

PAPER = paper()
NOISES = ("additive", "multiplicative")
FAMILY = [(d, seed, noise) for d in (1, 2, 7) for seed in (0, 1) for noise in NOISES]


def levels(problem):
    """(oracle, L, σ, Δ) of both levels."""
    c = problem.constants
    return (problem.upper, c.L_f, c.sigma_f, c.delta_f), (
        problem.lower,
        c.L_g,
        c.sigma_g,
        c.delta_g,
    )


def points(problem, count=40):
    """Near the start, near 0 and far away."""
    rng, d = np.random.default_rng(1), len(problem.x0)
    near = problem.x0 + rng.normal(0, 1, (count, d))
    return np.concatenate(
        [
            near,
            rng.normal(0, 1, (count, d)),
            rng.normal(0, 20, (count, d)),
            np.zeros((1, d)),
        ]
    )


def hessian(oracle, x, h=1e-5):
    steps = h * np.eye(len(x))
    rows = (oracle.exact_gradient(x + steps) - oracle.exact_gradient(x - steps)) / (
        2 * h
    )
    return (rows + rows.T) / 2


def variables(oracle):
    """The arrays behind a random problem's gradient, by name."""
    outer = inspect.getclosurevars(oracle._gradient).nonlocals
    inner = [inspect.getclosurevars(f).nonlocals for f in outer.values() if callable(f)]
    return ChainMap(outer, *inner)


def center(problem):
    """c, and u far away from it, where f's gradient is steepest."""
    arrays = variables(problem.upper)
    return arrays["center"], arrays["direction"]


def worst_of_g(problem):
    """Where every term of g is steepest: ⟨v_i, x⟩ = π/2 for waves and 1 for wells."""
    vectors = variables(problem.lower)["vectors"]
    target = np.where(np.arange(len(vectors)) % 2 == 0, math.pi / 2, 1.0)
    return np.linalg.lstsq(vectors, target, rcond=None)[0]


@pytest.mark.parametrize(("dimension", "seed", "noise"), FAMILY)
def test_gradients_are_those_of_the_values(dimension, seed, noise):
    problem = random_problem(dimension, seed, noise)
    for oracle, *_ in levels(problem):
        for x in points(problem, 3):
            steps = 1e-5 * np.eye(dimension)
            slope = (oracle.value(x + steps) - oracle.value(x - steps)) / 2e-5
            np.testing.assert_allclose(oracle.exact_gradient(x), slope, atol=1e-8)


@pytest.mark.parametrize(("dimension", "seed", "noise"), FAMILY)
def test_smoothness_is_never_exceeded_and_is_attained(dimension, seed, noise):
    """‖∇²‖ ≤ L at random points; equal to L at c for f, and at 0 for g."""
    problem = random_problem(dimension, seed, noise)
    attained = (center(problem)[0], np.zeros(dimension))
    for (oracle, L, *_), worst in zip(levels(problem), attained, strict=True):
        norms = [np.linalg.norm(hessian(oracle, x), 2) for x in points(problem)]
        assert max(norms) <= L * (1 + 1e-6)
        assert np.linalg.norm(hessian(oracle, worst), 2) == pytest.approx(L, rel=1e-6)


@pytest.mark.parametrize(("dimension", "seed", "noise"), FAMILY)
def test_the_gradient_of_f_is_bounded_and_the_bound_is_approached(
    dimension, seed, noise
):
    problem = random_problem(dimension, seed, noise)
    G = problem.constants.G_f
    assert (
        np.linalg.norm(problem.upper.exact_gradient(points(problem)), axis=1).max() < G
    )
    c, u = center(problem)
    far = c + (math.pi / 2 + 200 * math.pi) * u
    assert 0.999 * G < np.linalg.norm(problem.upper.exact_gradient(far)) < G


@pytest.mark.parametrize(("dimension", "seed", "noise"), FAMILY)
def test_least_values(dimension, seed, noise):
    """Δ is the value at x₀ less the least one, which c and 0 attain and no other point falls below."""
    problem = random_problem(dimension, seed, noise)
    minimisers = (center(problem)[0], np.zeros(dimension))
    for (oracle, _, _, delta), minimiser in zip(
        levels(problem), minimisers, strict=True
    ):
        least = oracle.value(minimiser)
        assert oracle.value(problem.x0) - least == pytest.approx(delta, rel=1e-12)
        assert (oracle.value(points(problem)) >= least).all()
        assert np.linalg.norm(oracle.exact_gradient(minimiser)) < 1e-12


@pytest.mark.parametrize(("dimension", "seed", "noise"), FAMILY)
def test_the_variance_is_never_above_sigma_squared_and_attains_it(
    dimension, seed, noise
):
    """3 E‖∇_B − ∇‖² from 20 000 batches of 3: at most σ² + 5 errors anywhere, at least σ² − 5 errors at the worst."""
    problem = random_problem(dimension, seed, noise)
    c, u = center(problem)
    worst = (c + (math.pi / 2 + 2000 * math.pi) * u, worst_of_g(problem))
    for (oracle, _, sigma, _), place in zip(levels(problem), worst, strict=True):
        tokens = oracle.sample_block([np.random.default_rng(5)], [3] * 20_000)[:, 0]
        for x, attained in [*((x, False) for x in points(problem, 2)), (place, True)]:
            off = oracle.gradient(
                np.broadcast_to(x, (20_000, dimension)), tokens
            ) - oracle.exact_gradient(x)
            squares = 3 * (off**2).sum(axis=1)
            error = squares.std() / math.sqrt(20_000)
            assert squares.mean() <= sigma**2 + 5 * error
            assert (
                np.abs(off.mean(axis=0)).max()
                <= 5 * off.std(axis=0).max() / math.sqrt(20_000) + 1e-15
            )
            if attained:
                assert squares.mean() >= sigma**2 * (1 - 1e-6) - 5 * error


def test_multiplicative_noise_vanishes_where_the_terms_are_flat():
    problem = random_problem(6, 0, "multiplicative")
    token = problem.lower.sample(np.random.default_rng(0), 1)
    assert np.linalg.norm(token) > 0.1
    assert (problem.lower.gradient(np.zeros(6), token) == 0).all()
    assert problem.lower.value(problem.x0, token) != problem.lower.value(problem.x0)
    assert problem.lower.value(problem.x0, 0 * token) == problem.lower.value(problem.x0)


@pytest.mark.parametrize("noise", NOISES)
def test_runs_together_equal_runs_apart_bit_for_bit(noise):
    problem = random_problem(9, 4, noise)
    schedule = anytime(0.25, step_size=problem.constants.largest_step_size).replace(
        momentum=0.3
    )
    for method in (
        methods.sdbgd,
        methods.sdbgd.replace(schedule=schedule, estimator=Storm()),
    ):
        options = {"method": method, "steps": 60, "seed": 3}
        together = minimize(problem.upper, problem.lower, problem.x0, runs=5, **options)
        for run in (0, 3):
            apart = minimize(
                problem.upper, problem.lower, problem.x0, runs=[run], **options
            )
            assert (apart.x[0] == together.x[run]).all()


def test_a_seed_is_a_problem():
    first, again, other = (
        random_problem(4, 1),
        random_problem(4, 1),
        random_problem(4, 2),
    )
    assert first.constants == again.constants != other.constants
    assert (first.x0 == again.x0).all()
    assert first.solution is None
    assert (
        random_problem(4, 1, "multiplicative").constants.L_g == first.constants.L_g
    )  # the same functions


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "dimension=0 must be a whole number ≥ 1"),
        ((2.5,), "dimension=2.5 must be a whole number ≥ 1"),
        ((2, -1), "seed=-1 must be a whole number ≥ 0"),
        ((2, 0.5), "seed=0.5 must be a whole number ≥ 0"),
        ((2, 0, "loud"), "noise='loud' must be 'additive' or 'multiplicative'"),
    ],
)
def test_bad_problems(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        random_problem(*arguments)


def case(steps=100, method=methods.sdbgd, problem=PAPER, **constants):
    changed = replace(problem, constants=problem.constants.replace(**constants))
    return Case("paper", changed, "SDBGD, paper's row", method, steps)


def simulated(chosen, runs=6, seed=0):
    return evidence.simulate(chosen, runs, seed, record=1, keep_iterates=True)


def test_the_theorem_table_against_a_plain_program():
    """Σ η_kβ_k r_k / Σ η_kβ_k in a loop, from runs of exactly K steps; the bound from its own function."""
    chosen = case(120)
    table = evidence.theorem(chosen, simulated(chosen))
    for K in (10, 100, 120):
        result = minimize(
            PAPER.upper,
            PAPER.lower,
            PAPER.x0,
            method="sdbgd",
            steps=K,
            runs=6,
            seed=0,
            record=1,
        )
        bounds = residual_bounds(methods.sdbgd.schedule, PAPER.constants, K)
        for name in evidence.RESIDUALS:
            total = weight = 0.0
            for k in range(K):
                w = 0.05 * (k + 1) ** -0.25 * 0.5 * (k + 1) ** -0.25
                total, weight = total + w * result.history[name][k], weight + w
            values = total / weight
            rows = (table["K"] == K) & (table["residual"] == name)
            assert rows.sum() == 1
            row = {column: values_[rows][0] for column, values_ in table.items()}
            assert row["mean"] == pytest.approx(values.mean(), rel=1e-12)
            assert row["error"] == pytest.approx(
                values.std(ddof=1) / math.sqrt(6), rel=1e-9
            )
            assert row["bound"] == pytest.approx(getattr(bounds, name), rel=1e-12)
            assert row["ratio"] == pytest.approx(row["mean"] / row["bound"], rel=1e-12)
            assert row["verdict"] == "PASS"


def test_penalty_bounds_are_for_the_penalty():
    method = plan(PAPER.constants, budget=10**6, method="penalty").method
    found = evidence.bounds_of(method, PAPER.constants, np.array([10, 50]))
    for i, K in enumerate((10, 50)):
        one = penalty_bounds(method.schedule, PAPER.constants, K)
        assert (found["direction_squared"][i], found["lower_gradient_squared"][i]) == (
            one.direction_squared,
            one.lower_gradient_squared,
        )


@pytest.mark.parametrize("problem", [PAPER, random_problem(3, 2, "multiplicative")])
def test_deviations_against_a_plain_program(problem):
    """E‖d − d̂‖² at one iterate, batch by batch with other random numbers: within 6 errors of the table's mean."""
    chosen = case(20, problem=problem)
    result = simulated(chosen, runs=4)
    table = evidence.deviations(chosen, result, seed=0, draws=4000)
    k = int(table["step"][-2])
    p = chosen.method.schedule.at(k)
    assert table["tau2"][-2] == pytest.approx(
        float(terms(p, problem.constants).tau) ** 2, rel=1e-12
    )
    rng, each = np.random.default_rng(99), []
    for run in range(4):
        x = result.history.x[k, run]
        a, b = problem.upper.exact_gradient(x), problem.lower.exact_gradient(x)
        d = a + max(p.barrier * b @ b - a @ b, 0) / (b @ b + p.regularizer) * b
        for _ in range(1000):
            a = problem.upper.gradient(x, problem.upper.sample(rng, p.upper_batch))
            b = problem.lower.gradient(x, problem.lower.sample(rng, p.lower_batch))
            off = (
                d - a - max(p.barrier * b @ b - a @ b, 0) / (b @ b + p.regularizer) * b
            )
            each.append(off @ off)
    assert table["mean"][-2] == pytest.approx(
        np.mean(each), abs=6 * np.std(each) / math.sqrt(len(each))
    )
    assert table["ratio"].max() <= 1
    assert (table["limit"] > table["mean"]).all()
    assert set(table["verdict"]) == {"PASS"}


class Bare:
    """No more than an oracle must have, and exact gradients."""

    def __init__(self, gradient):
        self.exact_gradient = gradient

    def sample(self, rng, size):
        return rng.normal(0, 0.1 / math.sqrt(size), 2)

    def gradient(self, x, token):
        return self.exact_gradient(x) + token


def test_the_lemma_takes_any_oracle():
    """Functions of one point, of rows, a finite sum and a bare oracle: d − d̂ is that of each point, not of its rows."""

    def lower(x):
        return (x[0] - x[1]) * np.array([1.0, -1.0])

    def rows(x):
        return (x[..., 0] - x[..., 1])[..., None] * np.array([1.0, -1.0])

    def upper(x):
        return x - np.array([3.0, 1.0])

    def found(f, g):
        problem = replace(PAPER, upper=f, lower=g, x0=np.array([0.0, 0.5]))
        chosen = case(6, problem=problem)
        return evidence.deviations(chosen, simulated(chosen, runs=3), seed=0, draws=200)

    one = found(
        tiebreak.Gaussian(upper, 0.1, shape=(2,)),
        tiebreak.Gaussian(lower, 0.1, shape=(2,)),
    )
    options = {"shape": (2,), "vectorized": True}
    all_rows = found(
        tiebreak.Gaussian(upper, 0.1, **options),
        tiebreak.Gaussian(rows, 0.1, **options),
    )
    np.testing.assert_allclose(one["mean"], all_rows["mean"], rtol=1e-12)
    bare = found(Bare(upper), Bare(lower))
    np.testing.assert_allclose(bare["mean"], one["mean"], rtol=0.5)
    shifts = np.random.default_rng(0).normal(0, 0.1, (40, 2))
    shifts -= shifts.mean(axis=0)
    drawn = found(
        tiebreak.FiniteSum(lambda x, i: upper(x) + shifts[i].mean(axis=0), n=40),
        Bare(lower),
    )
    assert (drawn["mean"] > 0).all()


def test_a_bound_made_too_small_is_found_out():
    """Constants far below the truth: the bounds fall below what is measured, and the verdict is FAIL, for both."""
    wrong = {
        "G_f": 1e-6,
        "sigma_f": 1e-9,
        "sigma_g": 1e-9,
        "delta_f": 1e-6,
        "delta_g": 1e-6,
    }
    method = methods.sdbgd.replace(
        schedule=anytime(0.25, regularizer=1e-8)
    )  # β ρ/(L_g η) is in the bound as well
    chosen = case(100, method, **wrong)
    table = evidence.theorem(chosen, simulated(chosen))
    assert set(table["verdict"]) == {"FAIL"}
    honest = case(100, method)
    assert set(evidence.theorem(honest, simulated(honest))["verdict"]) == {"PASS"}


@pytest.mark.parametrize("quiet", ["upper", "lower"])
def test_a_variance_made_too_small_is_found_out(quiet):
    """The noise of one level forgotten, the other level having none."""
    oracle = getattr(PAPER, quiet)
    silent = tiebreak.Gaussian(
        oracle.exact_gradient, 0.0, oracle.value, shape=(2,), vectorized=True
    )
    chosen = case(
        10, problem=replace(PAPER, **{quiet: silent}), sigma_f=1e-6, sigma_g=1e-6
    )
    table = evidence.deviations(chosen, simulated(chosen), seed=0, draws=500)
    assert set(table["verdict"]) == {"FAIL"}


def test_verdicts_have_six_errors_of_room():
    mean, error = (
        np.array([1.0, 1.0, 1.0, 1.0, np.nan]),
        np.array([0.1, 0.1, 0.1, 0.1, 0.1]),
    )
    bound = np.array([1.61, 1.59, 0.41, 0.39, 1.0])
    assert evidence.verdicts(mean, error, bound).tolist() == [
        "PASS",
        "open",
        "open",
        "FAIL",
        "FAIL",
    ]


def test_slopes_of_known_curves():
    K = np.array([100, 200, 500, 1000])
    values = np.stack([3 * K**-0.7, 5 * K**-0.2], axis=1)
    np.testing.assert_allclose(evidence._slopes(K, values), [0.7, 0.2], rtol=1e-12)


def test_grids_hold_the_powers_of_ten_and_the_last():
    K = evidence.step_grid(25_000)
    assert {10, 100, 1000, 10_000, 25_000} <= set(K.tolist())
    assert (np.diff(K) > 0).all()
    assert (
        evidence.step_grid(10).tolist()
        == evidence.step_grid(10, start=10).tolist()
        == [10]
    )
    assert evidence.step_grid(5).tolist() == [5]


@pytest.fixture(scope="module")
def findings():
    """A whole verification, of few steps."""
    tiny = verification.Sizes(120, 200, 40, (2, 3), 1, 200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "_QUICK", tiny)
        heard = []
        found = studies.run(
            Verification(runs=4, seed=1, quick=True),
            progress=lambda *words: heard.append(words),
        )
        yield found, heard


def test_a_whole_verification_passes(findings):
    found, heard = findings
    assert found.verdict.good
    assert found.record["verdicts"]["FAIL"] == 0
    assert sum(found.record["verdicts"].values()) == len(
        found.data["bounds"]["K"]
    ) + len(found.data["deviations"]["step"])
    penalties = {"Penalty, planned", "Penalty, anytime", "Penalty, held"}
    reduced = {
        f"{kind}-{rule}, planned"
        for kind in ("SPIDER", "STORM")
        for rule in ("Penalty", "SDBGD")
    }
    assert set(found.data["bounds"]["schedule"]) == {
        "SDBGD, paper's row",
        "SDBGD, planned",
        *penalties,
        *reduced,
    }
    assert set(found.data["bounds"]["group"]) == {"paper", "worst case", *NOISES}
    assert set(found.data["bounds"]["dimension"]) == {2, 3}
    assert set(found.data["deviations"]["schedule"]) == {
        "SDBGD, paper's row",
        "SDBGD, planned",
    }  # what the lemma is about
    assert found.data["slopes"]["a"].tolist() == [
        0.1,
        0.1,
        0.2,
        0.2,
        0.25,
        0.25,
        0.3,
        0.3,
    ]
    for i, name in enumerate(found.data["slopes"]["residual"]):
        assert found.data["slopes"]["corollary"][i] == getattr(
            exponents(found.data["slopes"]["a"][i]), name
        )
    names, shares = zip(*heard, strict=True)
    assert len(set(names)) == 18
    assert {
        "SDBGD, paper's row",
        "Random problem 0, 3 dimensions, additive noise",
        "Rate, a = 0.3",
    } < set(names)
    assert list(shares) == sorted(shares)
    assert shares[-1] == pytest.approx(1)


def test_the_weighted_mean_falls_as_the_corollary_says():
    """a = 1/4, K from 200 to 2000: as K^−1/2 or faster."""
    case_ = verification.case_of({"a": 0.25, "steps": 2000})
    slopes = evidence.rates(case_, evidence.simulate(case_, 4, 0, record=1))[1]
    assert (slopes["weighted"] >= 0.5 - 0.02).all()
    # The logarithm makes it a little less than 1/2.
    assert slopes["bound"] == pytest.approx(0.45, abs=0.05)


def test_every_number_of_the_summary_is_in_the_tables(findings):
    found, _ = findings
    theorem, shares, rates = found.tables
    for row in theorem.rows:
        for i, name in ((2, "direction_squared"), (4, "lower_gradient_squared")):
            rows = found.data["bounds"]["residual"] == name
            for column, value in zip(
                ("group", "schedule", "K"), ("paper", row[0], int(row[1])), strict=True
            ):
                rows &= found.data["bounds"][column] == value
            assert row[i] == scientific(found.data["bounds"]["mean"][rows][0])
            assert row[i + 1] == scientific(found.data["bounds"]["bound"][rows][0])
    assert len(theorem.rows) == 5 * 3  # K = 10, 100, 120
    assert len(shares.rows) == 5 + 5 + 2 * 2
    assert sum(int(row[4].replace(",", "")) for row in shares.rows) == sum(
        found.record["verdicts"].values()
    )
    multiplicative = (found.data["deviations"]["group"] == "multiplicative") & (
        found.data["deviations"]["dimension"] == 3
    )
    assert (
        shares.rows[-1][-2]
        == f"{found.data['deviations']['ratio'][multiplicative].max():.1%}"
    )
    assert len(rates.rows) == 8
    for i, row in enumerate(rates.rows):
        assert row[4].startswith(f"{found.data['slopes']['weighted'][i]:.3f} ± ")
    text = summary(found)
    assert "**PASS: no bound is violated**" in text
    assert all(note in text for note in found.notes)
    assert f"{found.record['verdicts']['PASS']:,} comparisons passed, 0 failed" in text


def test_a_failure_is_seen_everywhere(findings):
    found, _ = findings
    bounds = {name: column.copy() for name, column in found.data["bounds"].items()}
    bounds["verdict"][3] = "FAIL"
    data = {**found.data, "bounds": bounds}
    failed = verification_findings(
        Verification(runs=4, seed=1, quick=True), found.record, data, {}
    )
    assert failed.verdict.good is False
    assert "**FAIL: a bound is violated**" in summary(failed)
    assert failed.tables[1].rows[0][-1] == "FAIL"
    assert failed.record["passed"] is False


def test_files(findings, tmp_path):
    found, _ = findings
    written = save(found, tmp_path)
    assert sorted([*written, tmp_path / "manifest.json"]) == sorted(tmp_path.iterdir())
    for name in ("bounds", "deviations", "rates", "slopes"):
        parquet = pq.read_table(tmp_path / f"{name}.parquet")
        with (tmp_path / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        table = found.data[name]
        assert list(rows[0]) == parquet.column_names == list(table)
        for column, values in table.items():
            np.testing.assert_array_equal(
                parquet.column(column)
                .to_numpy(zero_copy_only=False)
                .astype(values.dtype),
                values,
            )
            if values.dtype.kind in "fi":
                np.testing.assert_array_equal(
                    np.array([row[column] for row in rows]).astype(values.dtype), values
                )
    figures = draw_all(found.charts)
    for name in ("bounds", "rates", "family", "stability"):
        assert figures[f"{name}.png"].startswith(b"\x89PNG")
        assert figures[f"{name}.pdf"].startswith(b"%PDF-")
    saved = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert saved["command"] == "tiebreak verify --runs 4 --seed 1 --quick"
    assert saved["passed"] is True
    assert len(saved["cases"]) == 5 + 5 + 4 + 4
    assert (tmp_path / "summary.md").read_text(encoding="utf-8") == summary(found)
    for path in save(found, tmp_path / "again"):
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runs": 3}, "runs=3 must be a whole number ≥ 4"),
        ({"runs": "many"}, "runs='many' must be a whole number"),
        ({"seed": -1}, "seed=-1 must be a whole number ≥ 0"),
    ],
)
def test_bad_verifications(options, message):
    with pytest.raises(ValueError, match=message):
        Verification(**options)


def test_a_case_of_ones_own_is_checked_and_saved(tmp_path):
    """By name on the command line's way, and as objects; constants that are too small are found out."""
    asked = Verification(
        runs=8,
        problem="valley-2",
        method="plan storm_penalty",
        steps=120,
        noise_smoothness=0.0,
    )
    assert "--noise-smoothness 0.0" in asked.command
    unequal = replace(asked, noise_smoothness=(0.0, 0.5))
    assert "--noise-smoothness 0.0,0.5" in unequal.command
    found = studies.run(asked)
    assert found.verdict.good
    assert set(found.data["bounds"]["group"]) == {"own"}
    assert {path.name for path in save(found, tmp_path)} == {
        "bounds.csv", "bounds.parquet", "config.json", "findings.json", "summary.md",
    }  # fmt: skip
    assert list(found.charts) == ["bounds", "family"]
    assert "What is proved, on valley-2" in summary(found)
    own = verification.verify_case(
        PAPER,
        methods.storm_penalty.replace(step_size=0.02),
        60,
        noise_smoothness=0.0,
        runs=8,
    )
    assert "FAIL" not in own["verdict"]
    tiny = PAPER.constants.replace(
        delta_f=1e-9, delta_g=1e-9, sigma_f=1e-9, sigma_g=1e-9, G_f=1e-9
    )
    wrong = verification.verify_case(PAPER, methods.penalty, 60, constants=tiny, runs=8)
    assert "FAIL" in wrong["verdict"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"problem": "paper"},
            "problem='paper', method=None, steps=None: give all three",
        ),
        ({"steps": 10}, "give all three"),
        (
            {"problem": "papre", "method": "penalty", "steps": 10},
            "name='papre' must begin with one of",
        ),
        (
            {"problem": "paper", "method": "sdbpg", "steps": 10},
            "no bound is known for SDBPG",
        ),
        (
            {"problem": "paper", "method": "storm_penalty", "steps": 10},
            "noise_smoothness=None must be",
        ),
        (
            {"problem": "paper", "method": "penalty", "steps": 0},
            "steps=0 must be a whole number",
        ),
    ],
)
def test_bad_cases_of_ones_own(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Verification(**options)
