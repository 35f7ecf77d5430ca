"""The paper's experiment from Python: configuration, numbers, files and figures."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tiebreak.studies.folder as folder_module
from tiebreak import problems
from tiebreak.oracles import Gaussian
from tiebreak.problems import paper as paper_problem
from tiebreak.studies import Experiment, Findings, load, run
from tiebreak.studies.figures import draw, draw_all
from tiebreak.studies.findings import stored, summary
from tiebreak.studies.folder import changed_files, save, write_files
from tiebreak.studies.reproduction import estimates
from tiebreak.studies.tables import by_step, distinct, select

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
def outcome() -> Findings:
    return run(SMALL)


def methods(findings: Findings) -> list[str]:
    return distinct(findings.data["points"], "method")


def curve(findings: Findings, method: str, column: str) -> tuple[np.ndarray, ...]:
    """The calls at each recorded step, and a column as an array (steps, runs)."""
    rows = select(findings.data["curves"], method=method)
    _, calls, values = by_step(rows, "calls", column)
    return np.nanmax(calls, axis=1), values


def at(findings: Findings, method: str, iterate: str) -> dict[str, np.ndarray]:
    return select(findings.data["points"], method=method, iterate=iterate)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("runs", [10, 400])
def test_the_paper_s_numbers(runs: int) -> None:
    """Steps exactly; means within four standard errors of the reference, rounding of the reference aside (seed 0)."""
    points = run(Experiment(runs=runs)).data["points"]
    assert distinct(points, "method") == list(REFERENCE)
    for method, (steps, *means) in REFERENCE.items():
        last = select(points, method=method, iterate="last")
        assert set(last["steps"].tolist()) == {steps}
        assert last["calls"].max() <= 10**8
        for measure, (reference, rounding) in zip(
            ("direction_squared", "lower_gradient_squared"), means, strict=True
        ):
            mean, error = estimates(points, method, "last")[measure]
            assert abs(mean - reference) <= 4 * error + rounding, (
                method,
                measure,
                mean,
                error,
            )
            assert error < 0.1 * mean  # else the line above would hold of anything


def test_curves_are_tidy(outcome: Findings) -> None:
    """One row for each method, run and recorded step, and the residuals are those of the iterates beside them."""
    table = outcome.data["curves"]
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


def test_points_agree_with_curves(outcome: Findings) -> None:
    """The last point of every run is the last row of its curve; the selected one is among its steps."""
    for method in methods(outcome):
        last, selected = at(outcome, method, "last"), at(outcome, method, "selected")
        for column in (
            "direction_squared",
            "lower_gradient_squared",
            "stationarity_squared",
            "upper_value",
            "x0",
            "x1",
        ):
            np.testing.assert_array_equal(
                curve(outcome, method, column)[1][-1], last[column]
            )
        assert (
            curve(outcome, method, "direction_squared")[0][-1] == last["calls"]
        ).all()
        assert (selected["step"] < last["steps"]).all()


def test_summary_is_mean_and_standard_error(outcome: Findings) -> None:
    values = [float(v) for v in at(outcome, "sdbgd", "last")["direction_squared"]]
    mean = sum(values) / 3
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / 2)
    found = estimates(outcome.data["points"], "sdbgd", "last")["direction_squared"]
    assert found == pytest.approx((mean, deviation / math.sqrt(3)))
    assert found.text(".2e") in outcome.tables[0].rows[0]


def test_a_single_run_has_no_error_and_equal_runs_none() -> None:
    single = run(Experiment(methods=["sdbgd"], runs=1, budget=1000))
    of_single = estimates(single.data["points"], "sdbgd", "last")
    assert math.isnan(of_single["direction_squared"].error)
    equals = run(Experiment(methods=["sdbgd"], runs=3, budget=1000, noise=0))
    points = equals.data["points"]
    assert estimates(points, "sdbgd", "last")["direction_squared"].error == 0
    # Which iterate is selected is random still.
    assert estimates(points, "sdbgd", "selected")["direction_squared"].error > 0


def test_record_and_start_and_noise_reach_the_runs() -> None:
    asked = Experiment(
        methods=["sdbgd"], runs=1, budget=5000, record="all", start=(-1, 2), noise=0
    )
    assert asked.record == 1
    every = run(asked).data["curves"]
    assert every["step"].tolist() == list(range(len(every["step"])))
    assert (every["x0"][0], every["x1"][0]) == (-1, 2)
    again = run(replace(asked, seed=5)).data["curves"]
    # Without noise the seed is of no matter.
    np.testing.assert_array_equal(every["x0"], again["x0"])
    noisy = run(replace(asked, noise=0.5)).data["curves"]
    assert not np.array_equal(every["x0"], noisy["x0"])


def test_runs_and_methods_do_not_depend_on_those_beside_them(outcome: Findings) -> None:
    asked = replace(SMALL, methods=("vr_pr_sdbpg",), runs=2)
    fewer = run(asked)
    _, beside = curve(outcome, "vr_pr_sdbpg", "x0")
    np.testing.assert_array_equal(curve(fewer, "vr_pr_sdbpg", "x0")[1], beside[:, :2])
    _, other = curve(run(replace(asked, seed=1)), "vr_pr_sdbpg", "x0")
    assert not np.isin(other[1:], beside).any()


def test_per_sample_draws_other_numbers_of_the_same_law() -> None:
    exact, sampled = (
        run(replace(SMALL, runs=40, budget=20_000, per_sample=flag)).data["points"]
        for flag in (False, True)
    )
    for method in SMALL.methods:
        a, b = (
            estimates(points, method, "last")["lower_gradient_squared"]
            for points in (exact, sampled)
        )
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
        "--per-sample --record 7"
    )


def test_saved_and_loaded_are_equal(outcome: Findings, tmp_path: Path) -> None:
    save(outcome, tmp_path)
    found = load(tmp_path)
    expected = stored(outcome)
    for name in ("kind", "title", "verdict", "tables", "notes"):
        assert json.dumps(getattr(found, name)) == json.dumps(getattr(expected, name))
    assert found.record["experiment"]["budget"] == 5000
    assert summary(found) == (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert draw_all(found.charts) == draw_all(expected.charts)


def test_what_an_older_result_wrote_is_removed_and_nothing_else(
    outcome: Findings, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    save(outcome, tmp_path)
    write_files(tmp_path, {"old.png": b"old", "changed.png": b"old"}, update=True)
    (tmp_path / "changed.png").write_text("by the user")
    assert changed_files(tmp_path) == ["changed.png"]
    save(outcome, tmp_path)
    assert not (tmp_path / "old.png").exists()
    assert (tmp_path / "changed.png").read_text() == "by the user"
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_files_that_are_not_of_the_command_are_refused(
    outcome: Findings, tmp_path: Path
) -> None:
    (tmp_path / "points.csv").write_text("mine")
    with pytest.raises(ValueError, match=r"holds points.csv, which no command wrote"):
        save(outcome, tmp_path)
    assert files(tmp_path) == {"points.csv": b"mine"}
    save(outcome, tmp_path, overwrite=True)
    with (tmp_path / "points.csv").open("a") as file:
        file.write("changed")
    with pytest.raises(ValueError, match=r"points.csv, .* changed since"):
        save(outcome, tmp_path)


def test_a_made_up_manifest_removes_nothing_outside_of_the_folder(
    outcome: Findings, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    folder = tmp_path / "result"
    save(outcome, folder)
    digest = folder_module.checksum(b"mine")
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    (folder / "link").symlink_to(tmp_path)
    for name in ("../mine.txt", str(mine), "link/mine.txt"):
        manifest["files"][name] = digest
    path.write_text(json.dumps(manifest), encoding="utf-8")
    save(outcome, folder)
    assert mine.read_text() == "mine"
    path.write_text("{")
    with pytest.raises(ValueError, match="holds no JSON"):
        save(outcome, folder)
    save(outcome, folder, overwrite=True)
    assert load(folder).title == outcome.title


def test_an_error_while_saving_leaves_the_folder_as_it_was(
    outcome: Findings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a table cannot be encoded or the disk is full at any of the files."""
    save(outcome, tmp_path)
    before = files(tmp_path)
    other = run(replace(SMALL, seed=1))
    real = folder_module.os.fsync
    for count in (1, 3, 7):
        calls = []

        def full(handle: int, calls: list[int] = calls, count: int = count) -> None:
            calls.append(handle)
            if len(calls) == count:
                raise OSError(28, "No space left on device")
            real(handle)

        monkeypatch.setattr(folder_module.os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            save(other, tmp_path)
        assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("findings.json", "{", "findings.json' is not as the command wrote it"),
        ("findings.json", None, "lacks findings.json"),
        ("config.json", "{", "config.json' is not as the command wrote it"),
        ("config.json", None, "lacks config.json"),
        ("manifest.json", "{", "holds no JSON"),
        ("manifest.json", "[" * 100_000, "holds no JSON"),
        ("manifest.json", "{}", "must list files with their checksums"),
        ("manifest.json", None, "it has no manifest.json"),
    ],
)
def test_damaged_folders_are_named(
    outcome: Findings, tmp_path: Path, name: str, content: str | None, complaint: str
) -> None:
    save(outcome, tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=complaint):
        load(tmp_path)


def test_one_changed_byte_of_the_findings_is_noticed(
    outcome: Findings, tmp_path: Path
) -> None:
    save(outcome, tmp_path)
    path = tmp_path / "findings.json"
    content = path.read_bytes()
    for place in np.random.default_rng(0).integers(len(content), size=50):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="its checksum differs"):
            load(tmp_path)


ODD = [None, True, 3, 1e400, "odd", [], [1], {}, {"odd": 1}, [{}]]


def test_every_entry_of_the_findings_is_checked(
    outcome: Findings, tmp_path: Path
) -> None:
    """Each entry missing, or in turn an odd value, with the right checksum: either it can be drawn, or one sentence."""
    save(outcome, tmp_path)
    whole = json.loads((tmp_path / "findings.json").read_text(encoding="utf-8"))
    for key in whole:
        for odd in (..., *ODD):
            changed = json.loads(json.dumps(whole))
            changed.pop(key) if odd is ... else changed.update({key: odd})
            write_files(tmp_path, {"findings.json": changed}, update=True)
            try:
                found = load(tmp_path)
            except ValueError as error:
                assert "is not as `tiebreak reproduce` writes it" in str(error)  # noqa: PT017
            else:
                assert summary(found)


def test_figures_show_the_data(outcome: Findings) -> None:
    """Each panel holds a line for each method, and that line is the mean over runs against calls."""
    figure = draw(outcome.charts["comparison"])
    for axes, column in zip(
        figure.axes, ("direction_squared", "lower_gradient_squared"), strict=True
    ):
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert len(axes.lines) == len(methods(outcome))
        for line, method in zip(axes.lines, methods(outcome), strict=True):
            calls, values = curve(outcome, method, column)
            np.testing.assert_array_equal(line.get_xdata(), calls)
            np.testing.assert_allclose(line.get_ydata(), values.mean(axis=1))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "SDBGD",
        "VR-PR-SDBPG$^{\\dagger}$",
    ]
    whole = draw(outcome.charts["trajectories"]).axes[0]
    shown = [np.column_stack(line.get_data()) for line in whole.lines]
    for point in ((1.5, 1.5), (2 * math.pi, 0), (7.1, 1), (0, 0)):
        assert any(np.isclose(points, point).all(axis=-1).any() for points in shown), (
            point
        )
    thin = [line for line in whole.lines if line.get_linewidth() == 0.5]
    assert len(thin) > 2 * 3  # the runs of each method, and contours


def test_interrupted_between_methods_keeps_what_is_complete(tmp_path: Path) -> None:
    def stop(name: str, _: object) -> None:
        if name.startswith("vr_pr_sdbpg"):
            raise KeyboardInterrupt

    outcome = run(SMALL, progress=stop)
    assert outcome.interrupted
    assert outcome.verdict.good is False
    assert methods(outcome) == ["sdbgd"]
    assert set(outcome.data["curves"]["method"].tolist()) == {"sdbgd"}
    assert any("VR-PR-SDBPG" in text and "nterrupted" in text for text in outcome.notes)
    save(outcome, tmp_path)
    assert load(tmp_path).interrupted


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
    assert len(outcome.record["faults"]) == 6
    assert "SDBGD, run" in outcome.record["faults"][0]
    assert (at(outcome, "sdbgd", "last")["status"] == "non_finite").all()
    assert len(draw_all(outcome.charts)) == 4
    assert "could not go on" in summary(outcome)
    assert outcome.verdict.good is False


def test_configuration_is_complete_and_says_nothing_of_the_machine_s_folders(
    outcome: Findings, tmp_path: Path
) -> None:
    save(outcome, tmp_path)
    text = (tmp_path / "config.json").read_text(encoding="utf-8")
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
