"""What a result must not leave unsaid: g above its start, runs that could not go on, and how `auto` leaves a saddle."""

import warnings
from typing import Any

import numpy as np
import pytest

import tiebreak
from tiebreak import Exact, Method, methods, problems
from tiebreak.auto import Balance
from tiebreak.solver.result_warnings import Remark
from tiebreak.studies import Comparison, compare
from tiebreak.studies.comparison.report import notes, tables


def product(a: float = 1.0) -> Exact:
    """g(u, v) = (uv − a)²/2: its minimisers are a hyperbola, and 0 is a strict saddle with eigenvalues ±a."""
    return Exact(
        lambda x: (x[0] * x[1] - a) * x[::-1],
        lambda x: float((x[0] * x[1] - a) ** 2 / 2),
    )


#: f = ‖x‖²/2 has its minimum at that saddle: there ∇f and ∇g vanish together.
NORM = Exact(lambda x: x.copy(), lambda x: float(x @ x / 2))
START = np.array([2.0, 0.5])  # in argmin g


def factors(n: int = 8, rank: int = 3) -> tuple[tiebreak.FiniteSum, np.ndarray]:
    """g = mean over entries of (UVᵀ − M)²/2, seen one by one, and a minimiser of it. 0 is a strict saddle: the Hessian
    there has ± the singular values of M/n². And every entry's gradient is 0 there: no noise leads out of it."""
    rng = np.random.default_rng(0)
    matrix = np.outer(rng.standard_normal(n), rng.standard_normal(n))
    i, j = (each.ravel() for each in np.indices((n, n)))

    def error(x: np.ndarray, k: np.ndarray) -> np.ndarray:
        u, v = x.reshape(2, n, rank)
        return (u[i[k]] * v[j[k]]).sum(-1) - matrix[i[k], j[k]]

    def gradient(x: np.ndarray, k: np.ndarray) -> np.ndarray:
        u, v = x.reshape(2, n, rank)
        found, each = np.zeros((2, n, rank)), error(x, k)[:, None] / len(k)
        np.add.at(found[0], i[k], each * v[j[k]])
        np.add.at(found[1], j[k], each * u[i[k]])
        return found.ravel()

    lower = tiebreak.FiniteSum(
        gradient, n=n * n, value=lambda x, k: float(np.mean(error(x, k) ** 2) / 2)
    )
    x = rng.standard_normal(2 * n * rank)
    for _ in range(3000):
        x = x - lower.exact_gradient(x)
    return lower, x


def test_a_run_that_leaves_argmin_for_a_saddle_says_so() -> None:
    """Both residuals are 0 at the saddle, g was 0 at the start: more than ‖∇g‖ ‖x − x0‖ ≈ 0 explains."""
    lower, start = factors()
    held = methods.auto.replace(rule=Balance(firm=0))
    with pytest.warns(Remark, match="g ended at 0.2718, above .* where it began, and"):
        result = tiebreak.minimize(
            NORM, lower, start, method=held, budget=30_000, seed=0, record=None
        )
    assert result.last.stationarity_squared < 1e-6
    assert result.last.lower_gradient_squared < 1e-6
    assert result.rise == pytest.approx(lower.value(0 * start), rel=1e-3)
    assert "g ended at 0.2718, above " in str(result)


def test_auto_leaves_the_saddle() -> None:
    """It is a saddle of f + βg for β large enough, and β is raised where both gradients vanish: g falls again."""
    lower, start = factors()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = tiebreak.minimize(
            NORM, lower, start, budget=30_000, seed=0, record=None
        )
    assert result.last.lower_value < 0.05 * lower.value(0 * start)


def test_where_the_minimum_is_common_the_weight_stays() -> None:
    """Both gradients vanish at 0, a minimum of g: nothing is to be left, and no bit changes."""
    lower = lambda x: x * np.array([1.0, 0.2])  # noqa: E731
    runs = [
        tiebreak.minimize(
            NORM,
            lower,
            START,
            method=methods.auto.replace(rule=Balance(firm=firm)),
            steps=300,
            seed=0,
        )
        for firm in (0, 32)
    ]
    assert np.array_equal(runs[0].x, runs[1].x)


def test_a_rise_that_the_gradient_explains_is_printed_and_no_warning() -> None:
    """From a minimiser of a convex g every step goes up: g(x) − g(x0) ≤ ‖∇g(x)‖ ‖x − x0‖, an unfinished run."""
    lower = Exact(lambda x: x, lambda x: float(x @ x / 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = tiebreak.minimize(
            lambda x: x - 1, lower, np.zeros(2), method="penalty", steps=20, seed=0
        )
    assert result.rise > 0
    assert "above 0 where it began" in str(result)


def test_without_a_value_nothing_is_said() -> None:
    result = tiebreak.minimize(NORM, lambda x: x, START, steps=3, seed=0)
    assert result.rise is None
    assert "where it began" not in str(result)


def test_it_is_saved_and_resumed(tmp_path: Any) -> None:
    first = tiebreak.minimize(NORM, product(), START, steps=3, seed=0, runs=2)
    first.save(tmp_path / "run.npz")
    assert tiebreak.load(tmp_path / "run.npz").start.lower_value.tolist() == [0.0, 0.0]
    again = tiebreak.minimize(NORM, product(), resume=tmp_path / "run.npz", steps=5)
    assert again.start.lower_value.tolist() == [0.0, 0.0]


def test_a_gradient_that_is_not_finite_is_a_warning() -> None:
    with pytest.warns(Remark, match="at step 0: the upper gradient is not finite"):
        result = tiebreak.minimize(
            lambda x: x * np.nan, lambda x: x, np.ones(3), steps=5
        )
    assert result.steps == 0


def test_fg_and_gg_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(TypeError, match=r"fg = .* first and gg = .* second"):
        Method("swapped", lambda gg, fg, barrier: barrier, methods.sdbgd.schedule)
    assert Method(
        "own names", lambda a, b, barrier: barrier + 0 * a, methods.sdbgd.schedule
    ).needs == ("barrier",)


def test_a_negative_multiplier_is_refused() -> None:
    """The residuals are least over λ ≥ 0, and ∇f + λ∇g climbs on g where λ < 0."""
    method = Method("negative", lambda fg, gg: -1.0 + 0 * fg, tiebreak.Schedule(0.1))
    with pytest.raises(ValueError, match="returned λ = -1; it must be ≥ 0"):
        tiebreak.minimize(NORM, product(), START, method=method, steps=2)


def scaled(factor: float) -> problems.Problem:
    from tiebreak.theory import Constants

    constants = Constants(
        L_f=factor, L_g=2, G_f=factor, sigma_f=0, sigma_g=0, delta_f=1, delta_g=1
    )
    upper = Exact(lambda x: factor * x / np.sqrt(1 + x @ x))
    return problems.Problem(
        "scaled",
        upper,
        Exact(lambda x: 2 * np.sin(x)),
        np.full(2, 0.3),
        constants=constants,
    )


@pytest.mark.parametrize("as_is", [True, False])
def test_a_sweep_runs_what_minimize_runs(as_is: bool) -> None:
    """As they are, schedules are those that `minimize` takes; compared, they are in the problem's units, L_f = 4."""
    mine = methods.sdbgd.replace(name="mine")
    found = compare(
        Comparison(
            problems=[scaled(4)],
            methods=[mine],
            budgets=[2000],
            runs=1,
            trials=1,
            as_is=as_is,
        )
    )
    plain = tiebreak.minimize(
        scaled(4).upper,
        scaled(4).lower,
        [0.3, 0.3],
        method=mine,
        budget=2000,
        runs=1,
        seed=[0, 0],
    )
    same = found.runs["stationarity_squared"][0] == plain.last.stationarity_squared[0]
    assert same == as_is
    assert found.comparison.command.endswith(" --as-is") == as_is


def test_a_comparison_shows_g_and_says_where_it_rose() -> None:
    problem = problems.Problem("product", NORM, product(), START)
    found = compare(
        Comparison(
            problems=[problem],
            methods="sdbgd,penalty",
            budgets=[3000],
            runs=1,
            trials=1,
        )
    )
    assert np.isfinite(found.results["lower_value"]).all()
    assert np.isfinite(found.results["upper_value"]).all()
    table = tables(found)[-1]
    assert table.title.startswith("f / g at the last iterate")
    assert table.rows[0][1] == "2.12 / 0"
    text = " ".join(notes(found))
    assert "g ended above where it began on product, from 0: " in text
    assert "f and g where the runs ended are in the table" in text


def test_a_sum_in_place_of_a_mean_is_refused() -> None:
    """Two terms together must give half the sum of both."""
    data = np.arange(6.0)
    with pytest.raises(ValueError, match="divide by len"):
        tiebreak.minimize(
            NORM,
            tiebreak.FiniteSum(lambda x, k: len(k) * x - data[k].sum(), n=6),
            [1.0, 2.0],
            steps=2,
        )
    tiebreak.minimize(
        NORM,
        tiebreak.FiniteSum(lambda x, k: x - data[k].mean(), n=6),
        [1.0, 2.0],
        steps=2,
        seed=0,
    )


def test_a_resumed_run_that_can_do_nothing_says_so() -> None:
    first = tiebreak.minimize(NORM, product(), START, steps=5, seed=0)
    with pytest.warns(Remark, match="resumed with steps=3, and 5 are made already"):
        tiebreak.minimize(NORM, product(), resume=first, steps=3)
    with pytest.raises(
        ValueError,
        match="lower cannot be evaluated at the start of 'the result', of shape",
    ):
        tiebreak.minimize(
            NORM, Exact(lambda x: x.reshape(3, 5), lambda x: 0.0), resume=first, steps=9
        )


class _Own(tiebreak.estimators.Estimator):
    evaluations = 1

    def __init__(self, estimate: Any, memory: int) -> None:
        self.estimate, self.memory = estimate, memory

    def begin(self, level: str, zeros: Any, zero: Any) -> tuple[Any, ...]:
        return (zeros,)

    def update(
        self, level: str, fresh: Any, before: Any, memory: Any, parameters: Any
    ) -> Any:
        return self.estimate(fresh), memory * self.memory


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (
            _Own(lambda g: g.sum(-1), 1),
            r"an estimate of shape \(1,\); it must have the gradient's, \(1, 2\)",
        ),
        (_Own(lambda g: g, 2), "a memory of 2; begin made one of 1"),
    ],
)
def test_an_estimator_of_ones_own_is_told_what_is_wrong(
    estimator: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        tiebreak.minimize(
            NORM,
            product(),
            START,
            method=methods.sdbgd.replace(estimator=estimator),
            steps=2,
        )


def test_an_estimator_must_not_be_a_class() -> None:
    with pytest.raises(TypeError, match=r"Storm is a class; give one of it: Storm\("):
        methods.sdbgd.replace(estimator=tiebreak.Storm)


def test_certify_and_plan_say_what_to_give() -> None:
    result = tiebreak.minimize(NORM, product(), START, steps=2, runs=2, seed=0)
    with pytest.raises(TypeError, match="x is a Result"):
        tiebreak.certify(NORM, product(), result, samples=64)
    with pytest.raises(ValueError, match=r"give result.x\[0\]"):
        tiebreak.certify(
            tiebreak.Gaussian(lambda x: x, 0.1, shape=(2,)),
            product(),
            result.x,
            samples=64,
        )
    with pytest.raises(TypeError, match=r"give problem\.constants"):
        tiebreak.theory.plan(scaled(1), budget=100)


def test_a_step_size_that_fails_when_judged_falls_back_to_a_smaller_one(
    tmp_path: Any,
) -> None:
    """In the trials, seed [0, 1], every step size is finite; judged, seed [0, 0], the largest ones overflow."""

    class Cliff:
        """g = ‖x‖²/2; where a step was longer than 0.5, the judged runs' fourth gradient is infinite."""

        def sample(self, rng: Any, size: int) -> float:
            return float(rng.bit_generator.seed_seq.entropy[1] == 0)

        def gradient(self, x: Any, judged: float) -> Any:
            return x if not judged or np.abs(x).max() > 0.02 else x * np.inf

        def exact_gradient(self, x: Any) -> Any:
            return x

    method = Method("plain", lambda fg, gg: 1.0 + 0 * gg, tiebreak.Schedule(0.05))
    problem = problems.Problem("cliff", Exact(lambda x: 0.01 * x), Cliff(), np.ones(2))
    found = compare(
        Comparison(problems=[problem], methods=[method], budgets=[40], runs=2, trials=4)
    )
    assert found.fallen == (
        "plain on cliff at 40 calls (× 16)",
        "plain on cliff at 40 calls (× 4)",
    )
    assert found.results["scale"].tolist() == [1.0]
    assert np.isfinite(found.results["residual"]).all()
    assert "failed when it was judged" in " ".join(notes(found))


def test_a_plan_for_a_problem_of_ones_own(tmp_path: Any, monkeypatch: Any) -> None:
    """Its constants, or estimates of them; without either a sentence says so."""
    pytest.importorskip("typer")
    from typer.testing import CliRunner

    from tiebreak.cli.app import app

    text = "from tiebreak import problems\nimport dataclasses\nproblem = problems.paper()\n"
    (tmp_path / "mine.py").write_text(
        text + "bare = dataclasses.replace(problem, constants=None)\n"
    )
    monkeypatch.chdir(tmp_path)

    def told(*words: str) -> Any:
        return CliRunner().invoke(
            app, ["plan", "--budget", "1e4", "--output", "out", "--overwrite", *words]
        )

    assert told("--problem", "mine.py:problem", "--run", "--runs", "2").exit_code == 0
    lost = told("--problem", "mine.py:bare")
    assert lost.exit_code == 2
    assert "say --estimate, or --constants" in lost.output
    assert told("--estimate").exit_code == 2
    assert told("--problem", "mine.py:bare", "--estimate").exit_code == 0


@pytest.mark.parametrize("method", ["sdbgd", "penalty", "storm_penalty"])
def test_a_run_that_has_only_begun_is_not_remarked_on(method):
    """Across the ridge of a saddle g rises by a hundredth of itself at first, where its slope is small."""
    problem = tiebreak.problems.named("saddle-2")
    for budget in (20, 100, 500):
        tiebreak.minimize(
            problem.upper,
            problem.lower,
            problem.x0,
            method=method,
            budget=budget,
            runs=200,
            seed=7,
        )
