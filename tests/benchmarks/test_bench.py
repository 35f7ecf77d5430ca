"""The bench: budgets read off one run, one's own objects and constants, folders that are kept, origins of files."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import tiebreak
from tiebreak import Method, Power, Schedule, minimize, provenance, rules
from tiebreak.cli.app import app
from tiebreak.estimators import Held, Minibatch, PerLevel
from tiebreak.methods import METHODS, NAMED
from tiebreak.problems import Problem, named, paper
from tiebreak.studies import (
    Comparison,
    Experiment,
    compare,
    run,
    solving,
    sweep,
    user_files,
)
from tiebreak.studies.comparison.changes import changed as varied
from tiebreak.studies.comparison.changes import split_changes
from tiebreak.studies.comparison.methods import compared_method
from tiebreak.studies.comparison.problems import compared_problems
from tiebreak.studies.figures import draw_all
from tiebreak.studies.folder import save, write_files
from tiebreak.studies.tables import select

OWN = Path(__file__).parents[1] / "support" / "compare_own.py"
BUDGETS = [60, 700, 5000]
POINTS = (
    "direction_squared",
    "stationarity_squared",
    "lower_gradient_squared",
    "upper_value",
    "lower_value",
)


# ------------------------------------------------------------------------------------------- smaller budgets


@pytest.mark.parametrize("name", METHODS)
def test_a_smaller_budget_read_off_a_longer_run_is_the_run_with_that_budget(
    name: str,
) -> None:
    """Bit for bit: the last and the selected iterate, all residuals, calls and steps; and so with a limit on steps."""
    problem = paper()
    for steps in (None, 20):
        options = {"runs": 3, "seed": [4, 2], "steps": steps}
        (task,) = solving(
            "x", "tiebreak.problems:paper", name, budget=BUDGETS, **options
        )
        block = sweep([task]).blocks[task.name]
        for budget in BUDGETS:
            alone = minimize(
                problem.upper,
                problem.lower,
                problem.x0,
                method=name,
                budget=budget,
                **options,
            )
            for point in ("last", "selected"):
                rows, expected = (
                    select(block.tables[point], budget=budget),
                    getattr(alone, point),
                )
                for column in POINTS:
                    np.testing.assert_array_equal(
                        rows[column], getattr(expected, column)
                    )
                np.testing.assert_array_equal(
                    np.stack([rows["x0"], rows["x1"]], axis=1), expected.x
                )
                np.testing.assert_array_equal(rows["step"], expected.step)
                np.testing.assert_array_equal(rows["lower_calls"], alone.lower_calls)
                assert rows["status"].tolist() == [
                    status.name.lower() for status in alone.status
                ]
        whole = alone.history.tidy()
        for column in ("step", "calls", "direction_squared", "run"):
            np.testing.assert_array_equal(block.tables["curves"][column], whole[column])


@pytest.mark.parametrize("name", [*NAMED, "lazy"])
def test_a_history_at_call_counts_has_the_ends_of_the_runs_with_those_budgets(
    name: str, tmp_path: Path
) -> None:
    """Bit for bit, ‖d‖² with the rule's own λ as well; also when the run was stopped on its way and goes on."""
    held = {"estimator": PerLevel(upper=Held(), lower=Minibatch()), "upper_hold": 5}
    p, method = paper(), METHODS["penalty"].replace(**held) if name == "lazy" else name
    options = {"method": method, "seed": 3, "keep_iterates": True}
    whole = minimize(
        p.upper, p.lower, p.x0, budget=5000, runs=3, record=[60, 61, 700], **options
    )
    first = minimize(
        p.upper, p.lower, p.x0, budget=200, runs=3, record=(60.0, 61, 200), **options
    )
    first.save(tmp_path / "run.npz")
    longer = minimize(
        p.upper, p.lower, method=method, resume=tmp_path / "run.npz", budget=5000
    )
    assert longer.history.step.tolist()[:-1] == [
        int(first.history.step[i]) for i in range(len(first.history))
    ]
    for budget in (60, 61, 700, 5000):
        alone = minimize(p.upper, p.lower, p.x0, budget=budget, runs=3, **options)
        row = int(np.searchsorted(whole.history.calls, budget, side="right")) - 1
        assert whole.history.step[row] == alone.steps[0]
        assert whole.history.calls[row] == alone.calls[0]
        for column in POINTS:
            np.testing.assert_array_equal(
                whole.history[column][row], getattr(alone.last, column)
            )
        np.testing.assert_array_equal(whole.history.x[row], alone.last.x)
    assert len(whole.history) == len({*whole.history.step.tolist()}) <= 4
    for wrong in ([], [10, 10], [10, 5], [0, 5], [5, 6000], "all", [True], {3}):
        with pytest.raises(ValueError, match="record"):
            minimize(p.upper, p.lower, p.x0, method=method, budget=5000, record=wrong)


def test_a_run_goes_on_from_a_result_as_from_its_file(tmp_path: Path) -> None:
    problem = paper()
    first = minimize(
        problem.upper,
        problem.lower,
        problem.x0,
        method="vr_pr_sdbpg",
        budget=500,
        runs=2,
        seed=0,
    )
    before = first.x.copy()
    first.save(tmp_path / "run.npz")
    ends = [
        minimize(problem.upper, problem.lower, resume=r, budget=4000)
        for r in (first, tmp_path / "run.npz")
    ]
    np.testing.assert_array_equal(ends[0].x, ends[1].x)
    np.testing.assert_array_equal(
        ends[0].history.multiplier, ends[1].history.multiplier
    )
    np.testing.assert_array_equal(first.x, before)  # it is as it was
    assert first.steps[0] < ends[0].steps[0]
    with pytest.raises(
        ValueError,
        match="method='SDBGD' must be 'VR-PR-SDBPG', which 'the result' was made with",
    ):
        minimize(
            problem.upper, problem.lower, resume=first, method="sdbgd", budget=4000
        )
    with pytest.raises(
        TypeError, match="resume=3 must be a result, or the path of a saved one"
    ):
        minimize(problem.upper, problem.lower, resume=3)


def test_what_depends_on_the_budget_is_run_for_each_and_said() -> None:
    """A plan is made for its budget, and so may be a function; one that makes the same for all is read off."""
    asked = Comparison(
        "paper",
        f"sdbgd,sdbgd_practice,{OWN}:constant",
        [300, 1000],
        runs=2,
        trials=1,
        record=10,
    )
    found = compare(asked)
    assert found.read_off == {"SDBGD": True, "SDBGD practice": False, "constant": False}
    read = select(found.runs, method="SDBGD")
    assert set(read["read_from"].tolist()) == {1000}
    assert (
        select(found.runs, method="constant")["read_from"]
        == select(found.runs, method="constant")["budget"]
    ).all()
    for label, method in (("SDBGD", "sdbgd"), ("SDBGD practice", "sdbgd_practice")):
        for budget in (300, 1000):
            row = compared_method(method).fitted(paper(), budget)
            p = paper()
            alone = minimize(
                p.upper, p.lower, p.x0, method=row, budget=budget, runs=2, seed=[0, 0]
            )
            rows = select(found.runs, method=label, budget=budget)
            np.testing.assert_array_equal(
                rows["direction_squared"], alone.last.direction_squared
            )
    assert set(
        zip(
            found.curves["method"].tolist(),
            found.curves["budget"].tolist(),
            strict=True,
        )
    ) == {
        ("SDBGD", 1000),
        *(
            (name, budget)
            for name in ("SDBGD practice", "constant")
            for budget in (300, 1000)
        ),
    }
    said = compare_notes(found)
    assert (
        "methods that depend on the budget were run for each: SDBGD practice, constant."
        in said
    )
    fewer = found.among(["sdbgd"])
    assert set(fewer.curves["method"].tolist()) == {"SDBGD"}


def compare_notes(found) -> str:
    from tiebreak.studies.comparison.report import notes

    return " ".join(notes(found))


def test_steps_end_runs_and_the_report_says_how_many() -> None:
    found = compare(
        Comparison("paper", "penalty", [100, 10**6], runs=2, trials=1, steps=50)
    )
    assert found.runs["steps"].max() == 50
    assert set(select(found.runs, budget=10**6)["status"].tolist()) == {"steps"}
    assert (
        "A run ends after 50 steps at the latest, which 2 of 4 did."
        in compare_notes(found)
    )
    assert found.comparison.command.endswith("--trials 1 --steps 50 --record log")


# ------------------------------------------------------------------------------------------- one's own


def test_problems_and_methods_may_be_objects() -> None:
    """Objects stay in this process, and give the same numbers as a file of them."""
    law = Schedule(step_size=Power(0.1, -0.5), barrier=1.0, lower_batch=Power(1, 1))
    smooth = Method("smooth", rules.sdbgd, law.replace(regularizer=0.1))
    asked = Comparison(
        [named("paper"), "valley-4"], [smooth, "penalty"], [300], runs=2, trials=1
    )
    assert compare(asked).runs["method"].tolist()[0] == "smooth"
    with pytest.raises(
        ValueError,
        match="'paper', 'smooth' cannot be sent to workers; give engine=None",
    ):
        compare(asked, engine=1)
    assert "'<paper>,valley-4' --methods '<smooth>,penalty'" in asked.command

    def here(constants, budget):
        return smooth.replace(
            rule=lambda fg, gg, barrier: rules.dbgd(fg, gg, barrier), name="here"
        )

    kept = Comparison(
        here_problem := flat(), [here, f"{OWN}:method"], [300], runs=2, trials=1
    )
    found = compare(kept)
    assert found.read_off == {"here": False, "by norm": False}
    p = here_problem
    alone = minimize(
        p.upper, p.lower, p.x0, method=here(None, 300), budget=300, runs=2, seed=[0, 0]
    )
    rows = select(found.runs, method="here")
    np.testing.assert_array_equal(
        rows["direction_squared"], alone.last.direction_squared
    )
    with pytest.raises(
        ValueError, match="'flat', 'here' cannot be sent to workers; give engine=None"
    ):
        compare(kept, engine=2)
    for wrong, words in (
        ({"problems": [3]}, "problems=3 must be a Problem"),
        ({"methods": [3]}, "methods=3 must be a"),
    ):
        with pytest.raises(ValueError, match=words):
            Comparison(**wrong)


def test_a_block_of_another_object_never_passes_for_one_of_this() -> None:
    """An object has a name of its own in every process."""
    method = Method("mine", lambda fg, gg: 0 * gg, Schedule(step_size=0.1))
    sources = [user_files.source_of_object(method, "mine") for _ in range(2)]
    assert sources[0] != sources[1]
    assert all(each.in_process and each.load() is method for each in sources)
    assert user_files._PROCESS in sources[0].place


def flat() -> Problem:
    level = tiebreak.Gaussian(
        lambda x: x * np.array([1.0, 0.0]), 0.1, shape=(2,), vectorized=True
    )
    return Problem(
        "flat", tiebreak.Exact(lambda x: x - 1, vectorized=True), level, np.zeros(2)
    )


def test_constants_and_a_are_said_with_the_method() -> None:
    assert split_changes("methods", "mine.py:m+step_size=1e+3+a=.3") == (
        "mine.py:m",
        {"step_size": 1000.0, "a": 0.3},
    )
    changed = varied(METHODS["sdbgd"], {"a": 0.3, "barrier": 0.7}).schedule
    expected = tiebreak.anytime(0.3, barrier=0.7)
    assert [changed.at(k) for k in (0, 9, 99)] == [expected.at(k) for k in (0, 9, 99)]
    storm = varied(METHODS["vr_pr_sdbpg"], {"momentum": 0.5, "step_size": 1}).schedule
    assert (storm.momentum, storm.step_size) == (Power(0.5, -1 / 2), Power(1.0, -1 / 2))
    others = Method(
        "m", lambda fg, gg, c: c + 0 * gg, Schedule(step_size=1.0, others={"c": 2.0})
    )
    assert varied(others, {"c": 3}).schedule.at(0).others == {"c": 3.0}
    found = compare(
        Comparison("paper", "sdbgd,sdbgd+step_size=0.1", [500], runs=1, trials=1)
    )
    assert found.runs["method"].tolist() == ["SDBGD", "SDBGD step_size=0.1"]
    p = paper()
    method = METHODS["sdbgd"].replace(step_size=Power(0.1, -1 / 4))
    alone = minimize(
        p.upper, p.lower, p.x0, method=method, budget=500, runs=1, seed=[0, 0]
    )
    np.testing.assert_array_equal(
        found.runs["direction_squared"][1:], alone.last.direction_squared
    )


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (
            "sdbgd+b=1",
            "b=1: SDBGD has no power law of this name; it has step_size, .*, regularizer, a",
        ),
        (
            "penalty+a=0.1",
            "a=0.1: only schedules of Corollary 1 have an a, and Penalty has not",
        ),
        ("sdbgd+a=0.5", r"a=0.5 must be in \(0, 1/3\)"),
        ("sdbgd+a=x", "methods='sdbgd\\+a=x': a='x' must be a number"),
        ("sdbgd+a=0.1+a=0.2", "says a more than once"),
        (
            "sdbgd+step_size=-1",
            "step_size at step 0 is -1.0; it must be finite and > 0",
        ),
    ],
)
def test_constants_that_cannot_be_get_a_sentence(methods: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        compare(Comparison("paper", methods, [100], runs=1, trials=1))


def test_the_noise_of_both_levels_may_differ() -> None:
    """σ_f and σ_g reach the oracles and the constants; multiplicative noise is in proportion to each."""
    for text, expected in (
        ("paper+sigma_f=1+sigma_g=0.25", (1.0, 0.25)),
        ("valley-8+sigma=2+sigma_g=1", (2.0, 1.0)),
    ):
        (found,) = compared_problems(text)
        assert (
            float(found.problem.upper.sigma),
            float(found.problem.lower.sigma),
        ) == expected
        root = np.sqrt(found.problem.x0.size)
        assert (
            found.problem.constants.sigma_f,
            found.problem.constants.sigma_g,
        ) == pytest.approx((root * expected[0], root * expected[1]))
    assert named("sphere", noise="heavy", sigma_g=0.0).lower.sigma == 0
    for wrong, words in (
        ("paper+sigma_f=-1", "sigma_f=-1 must be finite"),
        ("random+sigma_g=1", "sigma_g=1: random"),
    ):
        with pytest.raises(ValueError, match=words):
            compared_problems(wrong)
    outcome = run(Experiment(methods=["sdbgd"], runs=2, budget=1000, noise=(0.5, 0.1)))
    p = paper(sigma_f=0.5, sigma_g=0.1)
    alone = minimize(
        p.upper, p.lower, p.x0, method="sdbgd", budget=1000, runs=2, seed=0
    )
    last = select(outcome.data["points"], iterate="last")
    np.testing.assert_array_equal(last["x0"], alone.x[:, 0])
    assert "--noise 0.5,0.1 " in outcome.record["command"]
    assert Experiment(noise=[0.3, 0.3]).noise == 0.3
    for noise in ((0.1, 0.2, 0.3), (), (0.1, -1)):
        with pytest.raises(
            ValueError,
            match=r"noise=.* must be a number from 0 to 1e.100, or two: of f and of g",
        ):
            Experiment(noise=noise)


# ------------------------------------------------------------------------------------------- the command, and files


def test_the_command_sweeps_and_keeps_what_another_one_wrote(tmp_path: Path) -> None:
    runner, folder = CliRunner(), tmp_path / "new"
    words = [
        "compare",
        "--as-is",
        "--problems",
        "paper",
        "--methods",
        "sdbgd+a=0.3,penalty",
        "--budgets",
        "100,1000",
        "--runs",
        "2",
        "--steps",
        "30",
    ]
    words += ["--record", "log", "--output", str(folder)]
    done = runner.invoke(app, words)
    assert done.exit_code == 0, done.stderr
    assert "SDBGD a=0.3" in done.stdout
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert saved["steps"] == 30
    assert saved["methods"] == ["SDBGD a=0.3", "Penalty"]
    assert {"curves.csv", "runs.parquet", "curves.png"} <= {
        path.name for path in folder.iterdir()
    }
    before = (folder / "runs.csv").read_bytes()
    again = runner.invoke(app, words)
    assert again.exit_code == 0
    assert f"will be replaced: `{saved['command']}`" in again.stderr.replace("\n", "")
    assert (folder / "runs.csv").read_bytes() == before
    for other in (
        [*words, "--seed", "1"],
        ["reproduce", "--methods", "sdbgd", "--budget", "100", *words[-2:]],
    ):
        refused = runner.invoke(app, other)
        assert refused.exit_code == 2
        assert "holds the results of another command" in refused.stderr
        assert (folder / "runs.csv").read_bytes() == before
    assert runner.invoke(app, [*words, "--seed", "1", "--overwrite"]).exit_code == 0
    assert (folder / "runs.csv").read_bytes() != before


def test_results_of_a_file_that_has_changed_since_are_kept_unless_told_otherwise(
    tmp_path: Path,
) -> None:
    runner, mine, folder = CliRunner(), tmp_path / "mine.py", tmp_path / "new"
    mine.write_text(OWN.read_text(encoding="utf-8"), encoding="utf-8")
    words = [
        "compare",
        "--as-is",
        "--problems",
        "paper",
        "--methods",
        f"{mine}:method",
        "--budgets",
        "100",
        "--runs",
        "2",
        "--output",
        str(folder),
    ]
    for _ in range(2):  # the same file once more is no other result
        assert runner.invoke(app, words).exit_code == 0
    before = (folder / "runs.csv").read_bytes()
    with mine.open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    refused = runner.invoke(app, words)
    assert refused.exit_code == 2
    assert "mine.py' as it was before; choose another folder" in refused.stderr.replace(
        "\n", ""
    )
    assert (folder / "runs.csv").read_bytes() == before
    assert runner.invoke(app, [*words, "--overwrite"]).exit_code == 0


def test_every_file_says_where_it_comes_from_and_equal_runs_give_equal_tables(
    tmp_path: Path,
) -> None:
    """Date, commit and versions: in Parquet files those of the record beside them, figures without the date."""
    pq = pytest.importorskip("pyarrow.parquet")
    found = compare(Comparison("paper", f"sdbgd,{OWN}:method", [100], runs=1, trials=1))
    findings = found.findings()
    for name in ("one", "two"):
        save(findings, tmp_path / name)
        figures = draw_all(findings.charts)
        write_files(tmp_path / name, figures, update=True)
    for name in ("runs.parquet", "runs.csv", "curves.png", "curves.pdf"):
        assert (tmp_path / "one" / name).read_bytes() == (
            tmp_path / "two" / name
        ).read_bytes()
    made = json.loads(
        pq.read_schema(tmp_path / "one" / "runs.parquet").metadata[b"tiebreak"]
    )
    assert made.keys() == provenance.stamp().keys()
    assert made["versions"]["tiebreak"] == tiebreak.__version__
    saved = json.loads((tmp_path / "one" / "config.json").read_text(encoding="utf-8"))
    assert made == {name: saved[name] for name in made} | provenance.made_by()
    assert list(saved["sources"]) == [str(OWN)]
    assert provenance.sentence(saved) in (tmp_path / "one" / "summary.md").read_text(
        encoding="utf-8"
    )
    assert (
        made["versions"]["numpy"].encode()
        in (tmp_path / "one" / "curves.png").read_bytes()
    )
    result = minimize(paper().upper, paper().lower, paper().x0, steps=2, seed=0)
    result.save(tmp_path / "run.npz")
    result.history.to_parquet(tmp_path / "run.parquet")
    kept = json.loads(pq.read_schema(tmp_path / "run.parquet").metadata[b"tiebreak"])
    assert kept.keys() == provenance.stamp().keys()
    with np.load(tmp_path / "run.npz") as file:
        assert (
            json.loads(str(file["meta"]))["made_by"].keys() == provenance.stamp().keys()
        )


def test_the_commit_is_that_of_the_checkout_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        provenance, "__file__", str(tmp_path / "lib" / "tiebreak" / "provenance.py")
    )
    (tmp_path / ".git").mkdir()  # somebody else's, around an installed library
    assert provenance.commit.__wrapped__() is None
    (tmp_path / "src" / "tiebreak").mkdir(parents=True)
    (tmp_path / "src" / "tiebreak" / "provenance.py").touch()
    monkeypatch.setattr(
        provenance, "__file__", str(tmp_path / "src" / "tiebreak" / "provenance.py")
    )
    assert provenance.commit.__wrapped__() is None  # no repository after all
    monkeypatch.setenv("PATH", "")
    assert provenance.commit.__wrapped__() is None
