"""The study of gorges: its prototype is the solver where it should be, and every point of a box is a method."""

import json

import numpy as np
import pytest
from benchmarks import gorge, gorge_exact
from benchmarks.deflated import deflated

import tiebreak
from tiebreak import Method, Minibatch, Schedule, minimize, rules


class Twice(Minibatch):
    """A mini-batch that is also evaluated at the point before, and not used there: what the prototype costs below."""

    evaluations = 2

    def asks(self, level, parameters):
        batch = parameters.upper_batch if level == "upper" else parameters.lower_batch
        return batch, 1 + (parameters.k > 0) * (level == "lower")


def test_without_shortening_the_prototype_is_penalty_descent():
    problem = tiebreak.problems.named("stiff-3-phase")
    sizes = {"step_size": 0.05, "barrier": 5.0, "upper_batch": 3, "lower_batch": 7}
    found = deflated(problem, budget=4000, runs=3, seed=5, shorten=1.0, rank=2, **sizes)
    method = Method("twice", rules.constant, Schedule(**sizes), Twice())
    options = {"method": method, "budget": 4000, "runs": 3, "seed": 5, "record": 8}
    history = minimize(problem.upper, problem.lower, problem.x0, **options).history
    late = (history.calls > 3200) & (history.step % 8 == 0)
    for ours, name in zip(found, ("stationarity_squared", "lower_gradient_squared"), strict=True):
        np.testing.assert_allclose(ours, history[name][late].mean(axis=0), rtol=1e-9)


@pytest.mark.parametrize("name", gorge.METHODS)
def test_every_corner_of_a_box_is_a_method(name, monkeypatch):
    """Both ends of all ranges, and a budget of a hundredth: two columns of residuals, finite or infinite, never NaN."""
    monkeypatch.setattr(gorge, "BUDGET", 10**4)
    problem = tiebreak.problems.named("stiff-2-phase")
    for end in (0, 1):
        point = {key: float(edge[end]) for key, edge in gorge.METHODS[name][0].items()}
        both = gorge.residuals(problem, name, point | {"steps": 400.0}, runs=2, seed=0)
        assert all(column.shape == (2,) and not np.isnan(column).any() for column in both)


def test_the_page_shows_the_committed_results():
    """The table is that of the file, which says when and from what it was made; and what the page says in words."""
    whole = json.loads(gorge.OUT.read_text(encoding="utf-8"))
    assert gorge.TABLE.read_text(encoding="utf-8") == gorge.table(whole)
    assert whole["commit"]
    assert "dirty" not in whole["commit"]
    found = {(row["problem"].split("-")[1], row["method"]): row for row in whole["rows"]}
    assert {method for _, method in found} == set(gorge.METHODS)
    one, two, five = ({m: row["larger"] for (w, m), row in found.items() if w == walls} for walls in "236")
    assert 0.6 < one["SDBGD"] / one["penalty"] < 0.9
    for walls in (two, five):
        assert walls["SDBGD"] == pytest.approx(walls["penalty"], rel=0.1)
    for method in ("STORM-penalty", "STORM-SDBGD"):  # walls do not matter to them
        assert max(w[method] for w in (one, two, five)) < 1.1 * min(w[method] for w in (one, two, five))
    rows = {"SDBGD", "penalty", "SPIDER-penalty", "STORM-penalty", "STORM-SDBGD", "deflated STORM-penalty"}
    assert [min(rows, key=w.get) for w in (one, two, five)] == [*["deflated STORM-penalty"] * 2, "STORM-penalty"]
    told = [min(w[m] for m in w if m.endswith("told")) for w in (one, two, five)]
    assert [f"{least:.1e}" for least in told] == ["5.1e-03", "6.2e-03", "1.4e-02"]


def test_a_setting_of_another_problem_is_taken_where_it_is_better(monkeypatch):
    """On the tuning runs; and its row says where it is from."""
    monkeypatch.setattr(gorge, "BUDGET", 10**4)
    good = {"steps": 400.0, "share": 0.2, "push": 0.5, "barrier": 7.0}
    rows = [
        {"problem": label, "method": "penalty", "tuned": tuned, "setting": setting}
        for label, tuned, setting in (("stiff-2-phase", 1e-9, good), ("stiff-3-phase", 1e9, good | {"push": 1.9}))
    ]
    first, second = gorge.shared(rows)
    assert first == rows[0]
    assert (second["from"], second["setting"]) == ("stiff-2-phase", good)
    assert second["larger"] < 1e9


def test_descent_in_stretched_coordinates_is_descent_with_longer_steps():
    """x = Sz: descent on h(Sz) moves x by S²∇h."""
    problem, scales = tiebreak.problems.named("stiff-2-phase"), np.array([1.0, 3.0])
    oracle = gorge.Stretched(problem.lower, scales)
    z, token = np.array([0.3, 2.0]), problem.lower.sample(np.random.default_rng(0), 5)
    expected = scales**2 * problem.lower.gradient(scales * z, token)
    np.testing.assert_allclose(scales * oracle.gradient(z, token), expected)


def test_without_noise_the_barrier_is_far_ahead_with_one_wall_and_not_with_two():
    """The page's table, by the same grids: exact gradients, so the numbers are what they are."""
    page = (gorge_exact.DOCS / "_tables" / "gorge_exact.md").read_text(encoding="utf-8")
    found = {(walls, kind): gorge_exact.least(walls, kind, (100, 300)) for walls in "23" for kind in gorge_exact.GRIDS}
    assert found["2", "penalty"][300] > 200 * found["2", "barrier"][300]
    assert 0.5 < found["3", "penalty"][300] / found["3", "barrier"][300] < 2
    for (walls, kind), curve in found.items():
        cells = " | ".join(f"{value:.1e}" for value in curve.values())
        assert f"| {gorge_exact.WALLS[walls]} | {kind} | {cells} |" in page
