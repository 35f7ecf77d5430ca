"""Comparisons: profiles against their definition, units, trials, resuming, one's own files, and every complaint."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command import call
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from typer.testing import CliRunner

import tiebreak
from tiebreak import Method, Power, minimize, rules
from tiebreak.cli.app import app
from tiebreak.methods import METHODS, NAMED, auto
from tiebreak.problems import Problem, named
from tiebreak.problems.testbed import TESTBED
from tiebreak.studies import Comparison, compare
from tiebreak.studies.comparison import comparison as comparison_module
from tiebreak.studies.comparison.methods import ALL, PLANNED, compared_method, scales
from tiebreak.studies.comparison.problems import rehearse
from tiebreak.studies.comparison.profiles import FLOOR, grid, profile, ratios
from tiebreak.studies.comparison.report import calls, notes, tables
from tiebreak.studies.comparison.units import Units
from tiebreak.studies.figures import draw_all
from tiebreak.studies.findings import summary
from tiebreak.studies.folder import save, write_files
from tiebreak.studies.tables import select
from tiebreak.theory.plans import CHOICES


def fit(name, problem, budget, scale=1.0):
    return compared_method(name).fitted(problem, budget, scale)


OWN = Path(__file__).parents[1] / "support" / "compare_own.py"
SMALL = {"budgets": [300, 1000], "runs": 3, "trials": 1}

# ------------------------------------------------------------------------------------------- profiles


def slow_profile(residuals: list[list[float]], method: int, tau: float) -> float:
    """Dolan and Moré's definition, word by word."""
    problems = 0
    for row in residuals:
        values = [math.inf if math.isnan(r) else max(r, FLOOR) for r in row]
        if values[method] < math.inf and values[method] / min(values) <= tau:
            problems += 1
    return problems / len(residuals)


residuals = arrays.arrays(
    float,
    st.tuples(st.integers(1, 8), st.integers(1, 5)),
    elements=st.one_of(
        st.sampled_from([0.0, 1.0, 2.0, math.inf, math.nan, 1e-30, 1e300]),
        st.floats(1e-9, 1e9),
    ),
)


@settings(max_examples=60)
@given(
    residuals,
    st.lists(st.one_of(st.just(1.0), st.floats(1, 1e6)), min_size=1, max_size=5),
)
def test_a_profile_is_dolan_and_mores(found: np.ndarray, taus: list[float]) -> None:
    shares = profile(ratios(found), taus)
    expected = [
        [slow_profile(found.tolist(), s, tau) for s in range(found.shape[1])]
        for tau in taus
    ]
    np.testing.assert_array_equal(shares, expected)


@settings(max_examples=40)
@given(residuals)
def test_between_the_corners_nothing_happens(found: np.ndarray) -> None:
    corners = grid(ratios(found), 1e3)
    assert corners[0] == 1
    assert corners[-1] == 1e3
    middles = np.sqrt(corners[1:] * corners[:-1])
    middles = middles[(middles > corners[:-1]) & (middles < corners[1:])]
    below = corners[np.searchsorted(corners, middles) - 1]
    np.testing.assert_array_equal(
        profile(ratios(found), middles), profile(ratios(found), below)
    )


def test_ties_failures_and_a_single_method() -> None:
    found = ratios([[2.0, 2.0, math.inf], [math.inf] * 3, [0.0, 1e-30, 1.0]])
    np.testing.assert_array_equal(
        profile(found, [1.0]), [[2 / 3, 2 / 3, 0]]
    )  # ties are best together; all may fail
    assert profile(ratios([[5.0], [math.inf]]), [1, 1e9]).tolist() == [
        [0.5],
        [0.5],
    ]  # alone it is best unless it fails


# ------------------------------------------------------------------------------------------- units and step sizes


def rescaled(problem: Problem, length: float, f: float, g: float) -> Problem:
    """The same problem in other units: x in lengths, f and g times a number."""

    def oracle(level, factor):
        return tiebreak.Exact(
            lambda x: factor / length * level.exact_gradient(x / length),
            vectorized=True,
        )

    c = problem.constants
    constants = c.replace(
        L_f=c.L_f * f / length**2, L_g=c.L_g * g / length**2, G_f=c.G_f * f / length
    )
    return Problem(
        "other",
        oracle(problem.upper, f),
        oracle(problem.lower, g),
        length * problem.x0,
        None,
        constants,
    )


@pytest.mark.parametrize("name", [*METHODS, "dbgd_batched"])
@pytest.mark.parametrize(
    "units", [(1.0, 1.0, 1.0), (4.0, 0.25, 1024.0), (0.125, 64.0, 0.5)]
)
def test_units_change_nothing(name: str, units: tuple[float, float, float]) -> None:
    """Powers of two change no digit: the iterates are the same, in units of length, up to rounding of the laws."""
    start = named("valley-4")
    plain = rescaled(start, 1.0, 1.0, 1.0)
    other = rescaled(start, *units)
    ends = [
        minimize(
            p.upper, p.lower, p.x0, method=fit(name, p, 10**4), steps=40, record=None
        )
        for p in (plain, other)
    ]
    np.testing.assert_allclose(ends[1].x / units[0], ends[0].x, rtol=1e-9)
    found = [
        (
            r.last.stationarity_squared / u.direction_squared,
            r.last.lower_gradient_squared / u.lower_gradient_squared,
        )
        for r, u in zip(ends, map(Units.of, (plain, other)), strict=True)
    ]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_on_the_papers_problem_methods_are_as_published() -> None:
    for name in METHODS:
        assert fit(name, named("paper"), 1000) is METHODS[name]
    assert fit("sdbgd", named("paper"), 1000, 4.0).schedule.step_size == Power(
        0.2, -1 / 4
    )
    law = Method(
        "law",
        rules.constant,
        tiebreak.Schedule(step_size=lambda k: 1 / (k + 1), barrier=2.0),
    )
    moved = Units(step_size=3.0, barrier=0.5).translated(law)
    assert moved.schedule.at(2).step_size == pytest.approx(1.0)
    assert moved.schedule.at(2).barrier == 1.0
    assert scales(5) == (1.0, 4.0, 0.25, 16.0, 1 / 16)


# ------------------------------------------------------------------------------------------- comparing


@pytest.fixture(scope="module")
def found():
    problems = ["paper", "flat-4-multiplicative", f"{OWN}:problem"]
    methods = [
        "sdbgd",
        "vr-pr-sdbpg",
        f"{OWN}:method",
        f"{OWN}:constant",
        f"{OWN}:failing",
    ]
    return compare(Comparison(problems=problems, methods=methods, **SMALL))


def test_the_numbers_are_those_of_the_solver(found) -> None:
    """The plain way: one call of the solver for a problem, a method and a budget."""
    problem, units = (
        named("flat-4-multiplicative"),
        Units.of(named("flat-4-multiplicative")),
    )
    for name, label in (("sdbgd", "SDBGD"), ("vr_pr_sdbpg", "VR-PR-SDBPG†")):
        method = fit(name, problem, 1000)
        plain = minimize(
            problem.upper,
            problem.lower,
            problem.x0,
            method=method,
            budget=1000,
            runs=3,
            seed=[0, 0],
            record=None,
        )
        upper = plain.last.stationarity_squared / units.direction_squared
        worst = np.maximum(
            upper, plain.last.lower_gradient_squared / units.lower_gradient_squared
        )
        rows = select(found.runs, problem=problem.name, method=label, budget=1000)
        np.testing.assert_array_equal(rows["residual"], worst)
        np.testing.assert_array_equal(rows["steps"], plain.steps)
        excess = plain.last.upper_value - problem.upper.value(problem.solution)
        np.testing.assert_array_equal(rows["upper_excess"], excess)
        mean = select(found.results, problem=problem.name, method=label, budget=1000)
        assert mean["residual"] == pytest.approx(worst.mean())


def test_results_name_the_best_and_who_failed(found) -> None:
    assert len(found.results["problem"]) == 3 * 5 * 2
    assert len(found.runs["problem"]) == 3 * 5 * 2 * 3
    for problem in ("paper", "flat-4-multiplicative", "diagonal"):
        for budget in (300, 1000):
            here = select(found.results, problem=problem, budget=budget)
            values = dict(
                zip(here["method"].tolist(), here["residual"].tolist(), strict=True)
            )
            assert values["explode"] == math.inf
            best = here["method"][here["best"]].tolist()
            assert best == [min(values, key=lambda name: values[name])]
            assert here["ratio"].tolist() == [
                value / values[best[0]] for value in values.values()
            ]
            assert here["tied"][here["best"]].all()
            assert here["failed"].tolist() == [0, 0, 0, 0, 3]
    assert np.isnan(
        select(found.runs, problem="diagonal")["upper_value"]
    ).all()  # f's value is not known there
    assert (
        select(found.runs, problem="diagonal", method="constant")["lower_excess"] >= 0
    ).all()
    assert any("explode, run 0" in fault for fault in found.faults)  # not finite
    assert (
        "paper, 300 calls: explode left for infinity" in found.faults
    )  # finite, where gradients are bounded


def test_among_fewer_methods_ratios_are_others_and_runs_the_same(found) -> None:
    fewer = found.among(["sdbgd", "vr-pr-sdbpg"])
    assert fewer.ratios(1000).shape == (3, 2)
    assert (fewer.ratios(1000).min(axis=1) == 1).all()
    whole = found.ratios(1000)[:, :2]
    np.testing.assert_allclose(
        fewer.ratios(1000), whole / whole.min(axis=1, keepdims=True)
    )
    with pytest.raises(ValueError, match=r"methods=\['Penalty'\] were not compared"):
        found.among(["sdbgd", "penalty"])


def test_what_is_shown(found) -> None:
    profiles, *best, residuals, ended = tables(found)
    assert ended.header[:2] == ("problem", "start")
    assert [row[0] for row in profiles.rows] == [
        "SDBGD",
        "VR-PR-SDBPG†",
        "by norm",
        "constant",
        "explode",
    ]
    assert profiles.rows[-1][1:] == ["0 / 0 / 0", "0 / 0 / 0", "6"]
    first = [int(row[1].split(" / ")[0]) for row in profiles.rows]
    assert sum(first) in (99, 100)  # one is best on each, rounded
    assert len(best) == 2
    assert all(row[1] != "explode" for sheet in best for row in sheet.rows)
    assert [row[-1] for row in residuals.rows] == ["failed"] * 3
    text = " ".join(notes(found))
    for words in (
        "no other was tried",
        "Constants unknown",
        "diagonal",
        "reconstruction",
        "could not go on",
    ):
        assert words in text
    assert found.comparison.command in summary(found.findings())


def test_all_leaves_out_the_plans_where_constants_are_unknown_and_says_so() -> None:
    known, unknown = (
        Comparison(problems=p, methods="all", budgets=[100])
        for p in ("paper", f"paper,{OWN}:problem")
    )
    assert known.left_out == ()
    assert (
        unknown.left_out
        == tuple(n for n in ALL if n in PLANNED and n != "dbgd_batched")
        != ()
    )
    rehearse(
        unknown.compared_problems, unknown.compared_methods, [10**4]
    )  # nothing that is left asks for constants
    assert (
        Comparison(f"{OWN}:problem", "sdbgd_practice").left_out == ()
    )  # who names a plan is told that it cannot be
    text = " ".join(
        notes(
            compare(
                Comparison(f"{OWN}:blunt", "all", [10**4], runs=1, trials=1, steps=2)
            )
        )
    )
    assert (
        "Without the plans, which need the constants of every problem: sdbgd_bound,"
        in text
    )
    assert "no value of f or g is known" in text
    assert "units" not in text


def test_a_method_with_other_step_sizes_for_other_budgets_is_not_said_to_depend_on_them() -> (
    None
):
    found = compare(Comparison("paper", "sdbgd,penalty", [100, 1000], runs=1, trials=2))
    own = (
        found.runs["method"] == "Penalty"
    )  # as where the trials chose another step size for each budget
    apart = np.where(own, found.runs["budget"], 1000)
    text = " ".join(notes(replace(found, runs=found.runs | {"read_from": apart})))
    assert "methods that depend on the budget" not in text
    assert (
        "those that depend on it, or whose step size does, were run for each: Penalty."
        in text
    )


def test_all_may_fail_and_then_nobody_is_best() -> None:
    lost = compare(
        Comparison(
            problems="paper", methods=f"{OWN}:failing", budgets=[100], runs=1, trials=2
        )
    )
    assert lost.ratios(100).tolist() == [[math.inf]]
    assert tables(lost)[1].rows[0][1] == "none: all failed"
    assert lost.results["scale"].tolist() == [
        1.0
    ]  # its own step size, for want of a better one


def test_trials_take_the_best_step_size_on_other_random_numbers() -> None:
    problem, units = named("valley-4"), Units.of(named("valley-4"))
    found = compare(
        Comparison(
            problems="valley-4",
            methods="penalty",
            budgets=[2000],
            runs=2,
            trials=4,
            seed=3,
        )
    )

    def mean(scale: float) -> float:
        method = fit("penalty", problem, 2000, scale)
        r = minimize(
            problem.upper,
            problem.lower,
            problem.x0,
            method=method,
            budget=2000,
            runs=3,
            seed=[3, 1],
        )
        pair = (
            r.last.stationarity_squared / units.direction_squared,
            r.last.lower_gradient_squared,
        )
        return float(np.maximum(pair[0], pair[1] / units.lower_gradient_squared).mean())

    assert found.results["scale"].tolist() == [min(scales(4), key=mean)]
    assert "of 4 multiples of it (1, 4, 0.25, 16)" in " ".join(notes(found))


def test_files_are_whole_and_the_same_whoever_works(found, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow.parquet")
    c = found.comparison
    twin = compare(
        Comparison(problems=c.problems, methods=c.methods, **SMALL), engine=1
    )
    for folder, each in (("here", found), ("there", twin)):
        save(each.findings(), tmp_path / folder)
        figures = draw_all(each.findings().charts)
        write_files(tmp_path / folder, figures, update=True)
    names = {path.name for path in (tmp_path / "here").iterdir()}
    assert names == {
        f"{n}.{k}" for n in ("runs", "results", "profiles") for k in ("csv", "parquet")
    } | {
        "config.json",
        "findings.json",
        "manifest.json",
        "summary.md",
        "profiles.png",
        "profiles.pdf",
        "own",
    }
    for name in ("runs.csv", "results.csv", "profiles.csv", "profiles.png"):
        assert (tmp_path / "here" / name).read_bytes() == (
            tmp_path / "there" / name
        ).read_bytes()
    one, two = (
        pa.read_table(tmp_path / p / "results.parquet").to_pandas()
        for p in ("here", "there")
    )
    assert one.equals(two)  # they have the dates of two comparisons
    table = pa.read_table(tmp_path / "here" / "profiles.parquet").to_pydict()
    assert set(table) == {"method", "budget", "tau", "share"}
    saved = json.loads((tmp_path / "here" / "config.json").read_text(encoding="utf-8"))
    assert saved["command"] == c.command
    assert saved["problems"]["diagonal"] is None


def test_a_comparison_that_was_stopped_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second sweep is given a store that has all but the last blocks: only these are run again."""
    asked = Comparison(
        problems="paper,valley-4",
        methods="sdbgd,penalty",
        budgets=[500],
        runs=2,
        trials=2,
    )
    whole = compare(asked, store=tmp_path)
    blocks = sorted(tmp_path.glob("*.block"))
    assert len(blocks) == 2 * 2 * 2 + 2 * 2
    for path in blocks[:3]:
        path.unlink()
    before = {path.name: path.stat().st_mtime_ns for path in blocks[3:]}
    again = compare(asked, store=tmp_path)
    assert {path.name for path in tmp_path.glob("*.block")} == {
        path.name for path in blocks
    }
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in before} == before
    for name, column in whole.runs.items():
        np.testing.assert_array_equal(again.runs[name], column)

    def stopped(*_: object, **__: object) -> object:
        return whole_sweep(*_, **__)._replace(interrupted=True)

    whole_sweep = comparison_module.sweep
    monkeypatch.setattr(comparison_module, "sweep", stopped)
    with pytest.raises(KeyboardInterrupt):
        compare(asked, store=tmp_path)


def test_all_means_all_that_is_stochastic() -> None:
    everything = Comparison()
    assert [e.label for e in everything.compared_problems] == list(TESTBED)
    asks_for_more = {name for name, planned in PLANNED.items() if planned.needs}
    assert asks_for_more == {
        f"{kind}_{rule}_bound"
        for kind in ("spider", "storm")
        for rule in ("penalty", "sdbgd")
    }
    assert {*ALL} == {*NAMED, *PLANNED} - {"dbgd"} - asks_for_more
    assert len(everything.compared_methods) == len(ALL)
    assert calls(10**5) == "10⁵ calls"
    heard: list[float] = []
    asked = Comparison(
        problems="random-3", methods="all", budgets=[200], runs=1, trials=2
    )
    compare(asked, lambda name, share: heard.append(share))
    assert all(0 <= share <= 1 for share in heard)
    assert heard[-1] == 1


def test_every_name_that_the_library_has_can_be_swept() -> None:
    """`auto`, all rows and all plans by name; what a plan has to be told follows a plus sign."""
    listed = CliRunner().invoke(app, ["list", "methods"]).output
    names = [*NAMED, *PLANNED]
    assert [
        line.split()[0]
        for line in listed.splitlines()
        if line.split()[:1] and line.split()[0] in names
    ] == names
    assert {f"{method}_{objective}" for method, objective, _ in CHOICES} == {
        *PLANNED
    } - {"dbgd_batched"}
    told = [
        f"{name}{'+noise_smoothness=1' * bool(name in PLANNED and PLANNED[name].needs)}"
        for name in names
    ]
    found = compare(Comparison("paper", told, [300], runs=2, trials=1))
    assert len(found.results["method"]) == len(names)
    assert np.isfinite(found.results["residual"]).all()
    with pytest.raises(
        ValueError,
        match=r"needs noise_smoothness.*write 'storm_penalty_bound\+noise_smoothness=1'",
    ):
        compare(Comparison("paper", "storm_penalty_bound", [300], runs=2, trials=1))


def test_auto_is_swept_as_it_is_and_its_trials_scale_its_steps() -> None:
    """It finds units out for itself: on a problem with others than the paper's it runs as `minimize` runs it."""
    problem = named("conditioned-10")
    assert Units.of(problem) != Units()
    assert fit("auto", problem, 300) == auto
    assert fit("auto", problem, 300, 4.0).schedule.at(7).step_size == 4
    found = compare(Comparison("conditioned-10", "auto", [300, 1000], runs=2, trials=1))
    assert found.read_off == {"auto": True}
    alone = minimize(
        problem.upper,
        problem.lower,
        problem.x0,
        method="auto",
        budget=300,
        runs=2,
        seed=[0, 0],
    )
    rows = select(found.runs, budget=300)
    np.testing.assert_array_equal(
        rows["direction_squared"], alone.last.direction_squared
    )


# ------------------------------------------------------------------------------------------- complaints


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"problems": "mine"},
            "problems: name='mine' must begin with one of paper, .*, or be 'file.py:name'",
        ),
        (
            {"problems": "valey"},
            "problems: name='valey' must begin with one of paper, .*; did you mean 'valley'",
        ),
        (
            {"problems": "valley-pink"},
            "problems: name='valley-pink' must be a family, a dimension and a noise",
        ),
        ({"problems": ""}, "problems='' must be 'all', or names or places"),
        ({"problems": "paper,paper"}, "problems: 'paper' is there more than once"),
        ({"problems": "paper,all"}, "'paper' is there more than once"),
        (
            {"problems": "nothing.py:problem"},
            "problems='nothing.py:problem': 'nothing.py' cannot be read",
        ),
        (
            {"problems": ".x:y"},
            "problems='.x:y' must be 'module:name' or 'file.py:name'; TypeError",
        ),
        ({"problems": f"{OWN}:nothing"}, "has no attribute 'nothing'"),
        (
            {"problems": f"{OWN}:number"},
            r"must be a tiebreak.problems.Problem, or a function that gives one; it is int",
        ),
        (
            {"problems": f"{OWN}:needs_an_argument"},
            "missing 1 required positional argument: 'shift'",
        ),
        (
            {"problems": f"{OWN}:blind+sigma=5"},
            "sigma=5(.0)?: 'blind' is a Problem, and takes no arguments",
        ),
        (
            {"methods": "sdbg"},
            "methods: 'sdbg' is not a method; they must be among auto, sdbgd, .*, or be 'file.py:name'",
        ),
        (
            {"methods": f"{OWN}:number"},
            r"must be a tiebreak.Method, or a function \(constants, budget\)",
        ),
        (
            {"methods": f"{OWN}:by_norm"},
            r"a function \(constants, budget\) that gives one; it is a rule. "
            r"Write mine = tiebreak.Method\('mine', by_norm, tiebreak.methods.sdbgd.schedule\)",
        ),
        ({"methods": [lambda fg, gg: gg]}, "must be a Method, .*; it is a rule"),
        ({"methods": f"{OWN}:needs_an_argument"}, r"it is a function \(shift\)"),
        ({"budgets": []}, "budgets='' must be whole numbers"),
        (
            {"budgets": [100, 10]},
            "budgets='100,10' must be whole numbers ≥ 1 that grow",
        ),
        ({"budgets": ["x"]}, "budgets='x' must be a whole number"),
        ({"runs": 0}, "runs=0 must be a whole number ≥ 1"),
        ({"trials": 10}, "trials=10 must be from 1 to 9"),
        ({"seed": -1}, "seed=-1 must be a whole number ≥ 0"),
    ],
)
def test_what_cannot_be_compared_gets_a_sentence(
    options: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Comparison(**options)


@pytest.mark.parametrize(
    ("problem", "method", "words"),
    [
        (
            "paper",
            f"{OWN}:broken",
            r"broken on paper cannot be run: .*undefined_name.*compare_own.py, line \d+",
        ),
        (
            f"{OWN}:blind",
            "sdbgd",
            "SDBGD on blind cannot be run: both oracles must have `exact_gradient",
        ),
        (
            f"{OWN}:problem",
            "sdbgd_practice",
            "SDBGD practice on diagonal cannot be run: .* known constants",
        ),
        (
            "paper",
            "vr-pr-sdbpg",
            "budgets=1 must be at least 4, the cost of the first step of VR-PR-SDBPG† on paper",
        ),
    ],
)
def test_what_cannot_be_run_is_found_out_before_the_work(
    problem: str, method: str, words: str
) -> None:
    asked = Comparison(
        problems=problem,
        methods=method,
        budgets=[1 if problem == "paper" and ":" not in method else 9],
    )
    with pytest.raises(ValueError, match=words):
        compare(asked)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "import nonsense_that_is_missing",
            "needs nonsense_that_is_missing, which is not installed",
        ),
        ("x = (", "was never closed"),
        ("\n\nx = 1 / 0", "ZeroDivisionError: division by zero .*mine.py, line 3"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        (
            "import math\nproblem = math.nonsense",
            "AttributeError: module 'math' has no attribute 'nonsense'",
        ),
    ],
)
def test_a_broken_file_is_a_line_not_a_traceback(
    text: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        Comparison(problems=f"{tmp_path / 'mine.py'}:problem")


def test_one_problem_has_ratios_and_no_profile() -> None:
    """A share of one problem is 0 or 100 %. And where L_g/L_f = 2.25, plans are judged by another measure."""
    options = {"budgets": [400], "runs": 2, "trials": 1}
    one = compare(
        Comparison(problems="valley-2", methods="penalty,sdbgd_practice", **options)
    )
    first = tables(one)[0]
    assert (
        first.title == "How many times the best residual a method ends at, on valley-2"
    )
    assert min(float(row[1]) for row in first.rows) == 1
    assert any("One problem has no profile" in note for note in notes(one))
    assert any(
        note.endswith("made for on valley-2 (L_g/L_f = 2.25).") for note in notes(one)
    )
    plain = notes(
        compare(
            Comparison(
                problems="paper,valley-2", methods="penalty,dbgd_batched", **options
            )
        )
    )
    assert not any("One problem" in note or "Plans minimise" in note for note in plain)


# ------------------------------------------------------------------------------------------- the command


def test_the_command_compares_and_writes(tmp_path: Path) -> None:
    options = (
        "--problems",
        "paper,saddle",
        "--problems",
        f"{OWN}:problem",
        "--methods",
        f"penalty,{OWN}:method",
    )
    done = call(
        "compare",
        *options,
        "--quick",
        "--budgets",
        "200,400",
        "--output",
        tmp_path / "new",
    )
    assert (
        "2 methods on 3 problems, 2 budgets, runs: 3, step sizes tried: 1."
        in done.stderr
    )
    for words in (
        "Profiles: on how many of the 3 problems",
        "The best at 400 calls",
        "by norm",
        "diagonal",
    ):
        assert words in done.stdout
    summary = (tmp_path / "new" / "summary.md").read_text(encoding="utf-8")
    assert "| saddle-2 |" in summary
    assert not (tmp_path / "new" / ".blocks").exists()


def test_the_command_complains_kindly_and_lists_the_problems(tmp_path: Path) -> None:
    runner = CliRunner()
    for options, words in (
        (["--methods", f"{OWN}:broken"], "cannot be run"),
        (["--budgets", "many"], "--budgets many must be a whole number"),
        (["--workers", "2", "--scheduler", "local:2"], "give one of them"),
    ):
        short = ["--problems", "paper", "--quick", "--output", str(tmp_path)]
        done = runner.invoke(app, ["compare", *short, *options])
        assert done.exit_code == 2
        assert words in " ".join(done.stderr.split())
    listed = runner.invoke(app, ["list"])
    assert listed.exit_code == 0
    assert all(f"\n{name}  " in listed.stdout for name in PLANNED)
    assert (
        "sdbgd_practice  SDBGD with all constants chosen by `tiebreak plan --objective practice`."
        in listed.stdout
    )
    shown = runner.invoke(app, ["list", "problems"])
    assert shown.exit_code == 0
    assert "valley  Argmin a winding manifold" in shown.stdout
    assert all(name in shown.stdout.replace("\n", " ") for name in TESTBED)


# --------------------------------------------------------------------------- what strangers brought along


def test_a_run_that_left_for_infinity_has_failed_whether_f_is_known_or_not() -> None:
    """Gradients are bounded far away: the same iterates must not be "failed" with values and best without them."""
    paper = named("paper")
    upper, lower = (
        tiebreak.Gaussian(part.exact_gradient, 0.5, shape=(2,))
        for part in (paper.upper, paper.lower)
    )
    silent = Problem("silent", upper, lower, paper.x0)
    wild = Method(
        "wild", lambda fg, gg: 1e5 + 0 * gg, tiebreak.methods.penalty.schedule
    )
    found = compare(
        Comparison(problems=[paper, silent], methods=["sdbgd", wild], **SMALL),
        engine="here",
    )
    failed = {(p, m): np.isinf(select(found.runs, problem=p, method=m)["residual"]).all() for p, m in
              zip(found.runs["problem"].tolist(), found.runs["method"].tolist(), strict=True)}  # fmt: skip
    assert failed == {
        (p, m): m == "wild" for p in (paper.name, "silent") for m in ("SDBGD", "wild")
    }
    assert (
        sum(
            "silent" in fault and "wild left for infinity" in fault
            for fault in found.faults
        )
        == 2
    )


def test_far_is_counted_in_lengths_of_the_problem_or_in_what_it_began_with() -> None:
    points = {"moved": np.array([2e3, 2e3]), "status": np.array(["budget"] * 2)}
    points |= {
        name: np.ones(2) for name in ("stationarity_squared", "lower_gradient_squared")
    }
    unknown = np.full(2, np.nan)
    of = comparison_module.residuals
    assert np.isinf(of(points, unknown, 1.0, Units())).all()
    assert np.isfinite(of(points, unknown, 1.0, Units(length=10.0))).all()
    assert np.isfinite(of(points, unknown, 10.0, Units())).all()
    known = points | {"upper_value": np.ones(2)}  # where f is known, it decides
    assert np.isinf(of(known, np.array([2e3, 0.0]), 1.0, Units())).tolist() == [
        True,
        False,
    ]


def test_what_fails_late_in_a_file_of_ones_own_is_told_with_its_line(
    tmp_path: Path,
) -> None:
    file = tmp_path / "late.py"
    file.write_text(
        "import numpy as np\nfrom tiebreak import Gaussian, problems\n\n\n"
        "def lower(x):\n    if x[0] < 0.9:\n        raise RuntimeError('late trouble')\n    return x\n\n\n"
        "p = problems.Problem('late', Gaussian(lambda x: x + 1, 0.0, shape=(2,)), Gaussian(lower, 0.0, shape=(2,)), "
        "np.ones(2))\n",
        encoding="utf-8",
    )
    asked = Comparison(
        problems=[f"{file}:p"], methods="penalty", budgets=[10**4], runs=2, trials=1
    )
    for engine in ("here", 1):
        with pytest.raises(
            ValueError,
            match=r"Penalty on late cannot be run: RuntimeError: late trouble .*line 7",
        ):
            compare(asked, engine=engine)


def test_files_of_somebody_else_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text("mine", encoding="utf-8")
    words = [
        "compare",
        "--problems",
        "valley",
        "--methods",
        "sdbgd",
        "--budgets",
        "1000",
        "--runs",
        "2",
        "--trials",
        "1",
    ]
    words += ["--output", str(tmp_path)]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2
    assert (
        "holds results.csv, which no command wrote or which were changed since"
        in refused.stderr
    )
    assert (tmp_path / "results.csv").read_text(encoding="utf-8") == "mine"
    assert CliRunner().invoke(app, [*words, "--overwrite"]).exit_code == 0
    assert (tmp_path / "results.csv").read_text(encoding="utf-8") != "mine"
