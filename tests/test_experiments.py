"""The paper's experiment from Python: configuration, numbers, files and figures."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tiebreak import problems
from tiebreak.experiments import Experiment, draw, load, run, save
from tiebreak.experiments import folder as folder_module
from tiebreak.experiments.figures import comparison, trajectories
from tiebreak.experiments.folder import DRAWN
from tiebreak.experiments.outcome import Outcome
from tiebreak.experiments.report import markdown, notes, summarize
from tiebreak.oracles import Gaussian
from tiebreak.problems import paper as paper_problem

#: Measured with an independent program: steps, mean ‖d‖² and mean ‖∇g‖² at the last iterate, with half a unit in the
#: last digit given.
REFERENCE = {
    "sdbgd": (275, (1.43e-2, 0.005e-2), (0.95, 0.005)),
    "sdbpg": (668, (6.0e-3, 0.05e-3), (0.65, 0.005)),
    "pr_sdbpg": (2262, (8.4e-4, 0.05e-4), (7.6e-2, 0.05e-2)),
    "vr_pr_sdbpg": (9933, (9.3e-5, 0.05e-5), (3.7e-2, 0.05e-2)),
}
SMALL = Experiment(methods=("sdbgd", "vr_pr_sdbpg"), runs=3, budget=5000)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run(SMALL)


def equal(one: Outcome, other: Outcome) -> None:
    for table in ("curves", "points"):
        first, second = getattr(one, table), getattr(other, table)
        assert list(first) == list(second)
        for name in first:
            np.testing.assert_array_equal(
                first[name], second[name], err_msg=f"{table}, {name}"
            )
            assert first[name].dtype.kind == second[name].dtype.kind, name
    assert one.experiment == other.experiment
    assert one.configuration() == other.configuration()


@pytest.mark.parametrize("runs", [10, 400])
def test_the_paper_s_numbers(runs: int) -> None:
    """Steps exactly; means within four standard errors of the reference, rounding of the reference aside (seed 0)."""
    rows = {row.method: row for row in summarize(run(Experiment(runs=runs)))}
    assert list(rows) == list(REFERENCE)
    for method, (steps, *means) in REFERENCE.items():
        row = rows[method]
        assert row.steps == (steps, steps)
        assert row.calls[1] <= 10**8
        for measure, (reference, rounding) in zip(
            ("direction_squared", "lower_gradient_squared"), means, strict=True
        ):
            mean, error = row.last[measure]
            assert abs(mean - reference) <= 4 * error + rounding, (
                method,
                measure,
                mean,
                error,
            )
            assert error < 0.1 * mean  # else the line above would hold of anything


def test_curves_are_tidy(outcome: Outcome) -> None:
    """One row for each method, run and recorded step, and the residuals are those of the iterates beside them."""
    table = outcome.curves
    keys = list(
        zip(*(table[name].tolist() for name in ("method", "run", "step")), strict=True)
    )
    assert len(set(keys)) == len(keys)
    assert set(table["run"].tolist()) == {0, 1, 2}
    np.testing.assert_array_equal(
        table["calls"], table["upper_calls"] + table["lower_calls"]
    )
    lower = (
        np.sin(table["x0"]) ** 2 + (table["x1"] * np.exp(-(table["x1"] ** 2) / 2)) ** 2
    )
    np.testing.assert_allclose(table["lower_gradient_squared"], lower, rtol=1e-12)
    assert (
        table["stationarity_squared"] <= table["direction_squared"] * (1 + 1e-12)
    ).all()


def test_points_agree_with_curves(outcome: Outcome) -> None:
    """The last point of every run is the last row of its curve; the selected one is among its steps."""
    for method in outcome.methods:
        last, selected = outcome.at(method, "last"), outcome.at(method, "selected")
        for column in (
            "direction_squared",
            "lower_gradient_squared",
            "stationarity_squared",
            "upper_value",
            "x0",
            "x1",
        ):
            np.testing.assert_array_equal(
                outcome.curve(method, column)[1][-1], last[column]
            )
        assert (
            outcome.curve(method, "direction_squared")[0][-1] == last["calls"]
        ).all()
        assert (selected["step"] < last["steps"]).all()


def test_summary_is_mean_and_standard_error(outcome: Outcome) -> None:
    row = summarize(outcome)[0]
    values = [float(v) for v in outcome.at("sdbgd", "last")["direction_squared"]]
    mean = sum(values) / 3
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / 2)
    assert row.last["direction_squared"] == pytest.approx(
        (mean, deviation / math.sqrt(3))
    )


def test_a_single_run_has_no_error_and_equal_runs_none() -> None:
    (single,) = summarize(run(Experiment(methods=["sdbgd"], runs=1, budget=1000)))
    assert math.isnan(single.last["direction_squared"].error)
    (equals,) = summarize(
        run(Experiment(methods=["sdbgd"], runs=3, budget=1000, noise=0))
    )
    assert equals.last["direction_squared"].error == 0
    assert (
        equals.selected["direction_squared"].error > 0
    )  # which iterate is selected is random still


def test_record_and_start_and_noise_reach_the_runs() -> None:
    every = run(
        Experiment(
            methods=["sdbgd"], runs=1, budget=5000, record="all", start=(-1, 2), noise=0
        )
    )
    assert every.experiment.record == 1
    assert every.curves["step"].tolist() == list(range(len(every.curves["step"])))
    assert (every.curves["x0"][0], every.curves["x1"][0]) == (-1, 2)
    again = run(replace(every.experiment, seed=5))
    np.testing.assert_array_equal(
        every.curves["x0"], again.curves["x0"]
    )  # without noise the seed is of no matter
    noisy = run(replace(every.experiment, noise=0.5))
    assert not np.array_equal(every.curves["x0"], noisy.curves["x0"])


def test_runs_and_methods_do_not_depend_on_those_beside_them(outcome: Outcome) -> None:
    fewer = run(replace(SMALL, methods=("vr_pr_sdbpg",), runs=2))
    _, beside = outcome.curve("vr_pr_sdbpg", "x0")
    np.testing.assert_array_equal(fewer.curve("vr_pr_sdbpg", "x0")[1], beside[:, :2])
    _, other = run(replace(fewer.experiment, seed=1)).curve("vr_pr_sdbpg", "x0")
    assert not np.isin(other[1:], beside).any()


def test_per_sample_draws_other_numbers_of_the_same_law() -> None:
    exact, sampled = (
        run(replace(SMALL, runs=40, budget=20_000, per_sample=flag))
        for flag in (False, True)
    )
    for one, other in zip(summarize(exact), summarize(sampled), strict=True):
        a, b = one.last["lower_gradient_squared"], other.last["lower_gradient_squared"]
        assert a != b
        assert abs(a.mean - b.mean) <= 4 * math.hypot(a.error, b.error)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("methods", ()),
        ("methods", ("nope",)),
        ("methods", ("sdbgd", "SDBGD")),
        ("runs", 0),
        ("runs", None),
        ("runs", True),
        ("budget", 1.5),
        ("budget", "1e8"),
        ("budget", 1),
        ("seed", -1),
        ("seed", math.inf),
        ("start", (1.0,)),
        ("start", (1.0, math.nan)),
        ("start", (1.0, 1e200)),
        ("start", 3),
        ("noise", -0.1),
        ("noise", math.inf),
        ("noise", 10**400),
        ("record", "some"),
        ("record", 0),
        ("record", None),
    ],
)
def test_bad_values_are_named(argument: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{argument}.*must be"):
        Experiment(**{argument: value})  # type: ignore[arg-type]


def test_the_command_repeats_the_experiment() -> None:
    experiment = Experiment(
        methods=["penalty"], runs=2, start=(-1, 0.1), per_sample=True, record=7
    )
    assert experiment.command == (
        "tiebreak reproduce --methods penalty --runs 2 --budget 100000000 --seed 0 --start -1.0,0.1 --noise 0.5 "
        "--record 7 --per-sample"
    )


def test_saved_and_loaded_are_equal(outcome: Outcome, tmp_path: Path) -> None:
    save(outcome, tmp_path)
    equal(load(tmp_path), outcome)
    (tmp_path / "curves.parquet").unlink()
    equal(load(tmp_path), outcome)


def test_saving_removes_what_older_data_gave(outcome: Outcome, tmp_path: Path) -> None:
    for name in (*DRAWN, "mine.txt"):
        (tmp_path / name).write_text("old")
    save(outcome, tmp_path)
    assert [name for name in DRAWN if (tmp_path / name).exists()] == []
    assert (tmp_path / "mine.txt").exists()


def test_an_error_while_saving_leaves_the_folder_as_it_was(
    outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(outcome, tmp_path)
    draw(outcome, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_module.pa.parquet, "write_table", full)
    with pytest.raises(OSError, match="No space"):
        save(run(replace(SMALL, seed=1)), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("curves.csv", "no table", "curves.csv"),
        ("points.csv", "method,run\nsdbgd,0\n", "points.csv.*no column"),
        ("points.csv", None, "lacks points.csv"),
        ("configuration.json", "{", "configuration.json"),
        (
            "configuration.json",
            "[]",
            r"configuration.json.*it must be an object, not \[\]",
        ),
        ("configuration.json", "{}", "configuration.json.*there is no 'experiment'"),
        (
            "configuration.json",
            '{"experiment": []}',
            r"'experiment' must be an object, not \[\]",
        ),
        ("configuration.json", "[" * 100_000, "configuration.json"),
        (
            "configuration.json",
            '{"experiment": {"runs": 0}}',
            "configuration.json.*it differs in budget, methods,",
        ),
        ("configuration.json", None, "lacks configuration.json"),
    ],
)
def test_damaged_folders_are_named(
    outcome: Outcome, tmp_path: Path, name: str, content: str | None, complaint: str
) -> None:
    save(outcome, tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=complaint):
        load(tmp_path)


ODD = [None, True, 3, 1e400, "odd", [], [1], {}, {"odd": 1}, {"sdbgd": "fast"}, [{}]]


def test_every_entry_of_a_configuration_is_checked(
    outcome: Outcome, tmp_path: Path
) -> None:
    """Each entry missing, or in turn an odd value: either it can be drawn, or one sentence names file and entry."""
    save(outcome, tmp_path)
    path = tmp_path / "configuration.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    places = [(None, key) for key in ("experiment", "seconds", "interrupted", "faults")]
    for inner, key in [*places, *(("experiment", key) for key in whole["experiment"])]:
        for odd in (..., *ODD):
            changed = json.loads(json.dumps(whole))
            part = changed if inner is None else changed[inner]
            part.pop(key) if odd is ... else part.update({key: odd})
            path.write_text(json.dumps(changed), encoding="utf-8")
            try:
                found = load(tmp_path)
            except ValueError as error:
                said = str(error)
                assert "configuration.json" in said
                assert key in said, (odd, said)
            else:
                assert markdown(found)


@pytest.mark.parametrize("change", ["rows", "words", "floats"])
def test_tables_that_do_not_fit_are_named(
    outcome: Outcome, tmp_path: Path, change: str
) -> None:
    curves = dict(outcome.curves)
    if change == "rows":
        curves = {
            name: column[outcome.curves["method"] != "sdbgd"]
            for name, column in curves.items()
        }
    elif change == "words":
        curves["lower_value"] = curves["method"]
    else:
        curves["step"] = curves["step"] + 0.5
    save(replace(outcome, curves=curves), tmp_path)
    with pytest.raises(
        ValueError,
        match=r"curves.csv' is not (complete: there are no rows of sdbgd|as .*CSV conversion error)",
    ):
        load(tmp_path)


def test_figures_show_the_data(outcome: Outcome) -> None:
    """Each panel holds a line for each method, and that line is the mean over runs against calls."""
    figure = comparison(outcome)
    for axes, column in zip(
        figure.axes, ("direction_squared", "lower_gradient_squared"), strict=True
    ):
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert len(axes.lines) == len(outcome.methods)
        for line, method in zip(axes.lines, outcome.methods, strict=True):
            calls, values = outcome.curve(method, column)
            np.testing.assert_array_equal(line.get_xdata(), calls[1:])
            np.testing.assert_allclose(line.get_ydata(), values[1:].mean(axis=1))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "SDBGD",
        "VR-PR-SDBPG†",
    ]
    whole = trajectories(outcome).axes[0]
    shown = [np.column_stack(line.get_data()) for line in whole.lines]
    for point in ((1.5, 1.5), (2 * math.pi, 0), (7.1, 1), (0, 0)):
        assert any(np.isclose(points, point).all(axis=-1).any() for points in shown), (
            point
        )


def test_interrupted_between_methods_keeps_what_is_complete(tmp_path: Path) -> None:
    def stop(name: str, _: object) -> None:
        if name.startswith("vr_pr_sdbpg"):
            raise KeyboardInterrupt

    outcome = run(SMALL, stop)
    assert outcome.interrupted
    assert outcome.methods == ("sdbgd",)
    assert set(outcome.curves["method"].tolist()) == {"sdbgd"}
    assert any(
        "VR-PR-SDBPG" in text and "nterrupted" in text for text in notes(outcome)
    )
    save(outcome, tmp_path)
    equal(load(tmp_path), outcome)


def test_runs_that_cannot_go_on_are_reported_and_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where a gradient is not finite, the run ends and says so; figures and summary are made of what there is."""

    def broken(sigma: float, **options: object) -> problems.Problem:
        problem = paper_problem(sigma)

        def gradient(x: np.ndarray) -> np.ndarray:
            return np.where(x[..., 1:] < 1.45, np.nan, problem.upper.exact_gradient(x))

        upper = Gaussian(
            gradient, sigma, problem.upper.value, shape=(2,), vectorized=True
        )
        return replace(problem, upper=upper)

    monkeypatch.setattr("tiebreak.problems.paper", broken)
    outcome = run(SMALL)
    assert len(outcome.faults) == 6
    assert "SDBGD, run" in outcome.faults[0]
    assert (outcome.at("sdbgd", "last")["status"] == "non_finite").all()
    assert len(draw(outcome, tmp_path)) == len(DRAWN)
    assert "could not go on" in markdown(outcome)


def test_configuration_is_complete_and_says_nothing_of_the_machine_s_folders(
    outcome: Outcome, tmp_path: Path
) -> None:
    save(outcome, tmp_path)
    text = (tmp_path / "configuration.json").read_text(encoding="utf-8")
    saved = json.loads(text)
    assert saved["experiment"] == {
        **vars(SMALL),
        "methods": list(SMALL.methods),
        "start": list(SMALL.start),
    }
    assert set(saved["versions"]) == {"python", "numpy", "tiebreak"}
    assert set(saved["seconds"]) == set(saved["methods"]) == set(SMALL.methods)
    assert all(seconds > 0 for seconds in saved["seconds"].values())
    assert saved["date"].endswith("+00:00")
    for path in (tmp_path, Path.cwd(), Path.home()):
        assert str(path) not in text
