"""The comparison of all methods: it goes on where it was, tunes on other runs than it judges, shows what it found."""

import dataclasses
import json
import math

import numpy as np
import pytest

import tiebreak
from benchmarks import comparison, comparison_report, comparison_tuned
from tiebreak.problems import named
from tiebreak.solver.budget import steps_within

TINY = comparison.Setting(
    problems=("paper", "stiff-2-sampled"),
    table=("auto", "sdbgd", "storm_penalty"),
    plans=(("penalty", "practice"), ("storm_penalty", "bound")),
    tuned=("penalty", "spider_sdbgd"),
    budgets=(1000, 3000),
    last=10**4,
    largest=(("paper", 3000), ("stiff-2-sampled", 1000)),
    runs=3,
    first=3,
    later=((2, 0.1),),
)


def quiet(text):
    pass


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return comparison.study(
        TINY, tmp_path_factory.mktemp("tiny") / "comparison.json", 5.0, quiet
    )


@pytest.mark.long
def test_stopped_after_every_unit_it_gives_the_same(whole, tmp_path):
    """Without time nothing is done. Interrupted after each unit, it does every unit once."""
    path, told = tmp_path / "comparison.json", []

    def stop(text):
        told.append(text)
        raise KeyboardInterrupt

    assert comparison.study(TINY, path, -1.0, stop)["done"] == []
    count = len([*comparison.units(TINY)])
    for _ in range(count):
        with pytest.raises(KeyboardInterrupt):
            comparison.study(TINY, path, 5.0, stop)
    assert len(comparison.study(TINY, path, 5.0, stop)["done"]) == len(told) == count
    stored = json.loads(path.read_text(encoding="utf-8"))
    strip = [
        [{k: v for k, v in r.items() if k != "cpu_seconds"} for r in w["rows"]]
        for w in (stored, whole)
    ]
    assert strip[0] == strip[1]
    assert {"date", "commit", "versions"} <= set(stored["sessions"][0])
    with pytest.raises(SystemExit, match="has other settings"):
        comparison.study(comparison.Setting(), path, 1.0, quiet)


@pytest.mark.long
def test_rows_are_those_of_plain_runs(whole):
    """A row read off a longer run, and a planned one, from minimize itself with the seed that judges."""
    found, problem = comparison_report.indexed(whole), named("paper")
    plan = tiebreak.theory.plan(
        problem.constants, budget=3000, method="penalty", objective="practice"
    )
    for kind, name, method in (
        ("table", "sdbgd", "sdbgd"),
        ("planned", "penalty practice", plan),
    ):
        row = found[kind, name, "paper", 3000]
        run = tiebreak.minimize(
            problem.upper,
            problem.lower,
            problem.x0,
            method=method,
            budget=3000,
            runs=3,
            seed=[0, 0],
            record=None,
        )
        larger = np.maximum(
            run.last.stationarity_squared, run.last.lower_gradient_squared
        )
        assert row["median"] == pytest.approx(np.median(larger), rel=1e-3)
        assert row["quartiles"][0] <= row["median"] <= row["quartiles"][1]
    assert found["table", "sdbgd", "paper", 1000]["read_from"] == 10**4
    assert found["planned", "penalty practice", "paper", 1000]["read_from"] == 1000


@pytest.mark.long
def test_what_is_tuned_is_judged_on_other_numbers_and_what_is_left_out_is_said(
    whole, monkeypatch
):
    found = comparison_report.indexed(whole)
    assert len(set(comparison_tuned.SEEDS.values())) == 3
    row = found["tuned", "penalty", "paper", 3000]
    assert set(row["setting"]) == {"steps", "share", "push", "weight"}
    assert found["tuned", "penalty", "paper", 10**4]["tuned_for"] == 3000
    assert found["tuned", "penalty", "paper", 10**4]["setting"] == row["setting"]
    assert found["tuned", "penalty", "stiff-2-sampled", 3000]["tuned_for"] == 1000
    short = dataclasses.replace(
        TINY, problems=("paper",), table=("storm_penalty",), plans=(), tuned=()
    )
    monkeypatch.setattr(comparison.Setting, "longest", lambda self, problem: 100)
    rows, left = comparison.done(short, "table", "paper", "storm_penalty")
    assert [row["budget"] for row in rows] == [1000]
    assert [(each["budget"], each["why"]) for each in left] == [
        (b, "more than 100 steps") for b in (3000, 10**4)
    ]


@pytest.mark.parametrize("name", comparison.Setting().tuned)
def test_a_candidate_spends_its_budget_in_about_its_steps(name):
    """All middle points: K steps within a third, nearly all calls, f's share as said; powers are the table's."""
    problem, budget = named("valley-20-multiplicative"), 10**7
    candidate = comparison_tuned.Candidate(name, (0.5,) * 6)
    method, wanted = candidate(problem.constants, budget), candidate.setting()
    steps, upper, lower = steps_within(method, budget)
    assert steps == pytest.approx(wanted["steps"] * budget ** (1 / 3), rel=1 / 3)
    assert upper + lower > 0.8 * budget
    assert upper / (upper + lower) == pytest.approx(wanted["share"], rel=0.3)
    table = tiebreak.methods.METHODS[name].schedule
    assert method.schedule.step_size.exponent == table.step_size.exponent
    assert not candidate.edges()


def test_points_are_the_same_for_all_and_cover_every_coordinate():
    points = np.array(comparison_tuned.first_points(10))
    assert points.shape == (10, len(comparison_tuned.BOX))
    np.testing.assert_allclose(
        np.sort(points, axis=0), np.tile((np.arange(10)[:, None] + 0.5) / 10, (1, 6))
    )
    steps = np.array(comparison_tuned.near((0.0,) * 6, 50, 0.1))
    assert steps.min() == 0 < steps.max() < 1


def test_the_page_shows_the_committed_results():
    committed = json.loads(comparison.OUT.read_text(encoding="utf-8"))
    assert comparison_report.tables(committed) == comparison_report.TABLE.read_text(
        encoding="utf-8"
    )
    done = {tuple(unit) for unit in committed["done"]}
    assert done == {*comparison.units(comparison.Setting())}
    assert all(
        each["commit"] and "dirty" not in each["commit"]
        for each in committed["sessions"]
    )
    assert comparison_report.FIGURE.exists()
    assert len(comparison_report.figure(committed).axes) == 3 * len(
        comparison.Setting().problems
    )


def test_a_run_that_failed_is_infinite_and_one_that_is_missing_is_a_dash():
    same = {"method": "sdbgd", "problem": "paper", "budget": 10**6}
    rows = [
        {"kind": "table", "median": None, "quartiles": [2.0, None], **same},
        {
            "kind": "tuned",
            "median": 1.0,
            "quartiles": [0.5, 2.0],
            "tuned_for": 10**6,
            **same,
        },
    ]
    found = comparison_report.indexed({"rows": rows})
    assert comparison_report.ratios(found, "table", "sdbgd", ["paper"], 10**6) == [
        math.inf
    ]
    assert comparison_report.cell(rows[0]) == "∞ (2.0 … ∞)"
    assert comparison_report.cell(None) == "–"
    assert comparison_report.overall(found, ["paper"], [10**6]).rows[0][-1] == "∞ (∞)"
