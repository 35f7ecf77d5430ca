"""Pages: the findings of every kind of result, and the page in a real browser."""

import csv
import json
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from browser import browser, look
from command import call
from matplotlib.figure import Figure

from tiebreak.methods import METHODS
from tiebreak.problems.paper import lower_value
from tiebreak.studies import load
from tiebreak.studies.charts import Axis, Chart, Series
from tiebreak.studies.comparison.charts import recorded_chart
from tiebreak.studies.findings import Findings, Verdict, from_json, stored
from tiebreak.studies.folder import kind_of, read_columns, save, write_files
from tiebreak.studies.page import (
    CITATION,
    embedded,
    render,
    write_page,
    write_single_page,
)
from tiebreak.studies.publish import publish
from tiebreak.studies.tables import Table, distinct, select
from tiebreak.studies.training_log import findings_of

torch = pytest.importorskip("torch")

LARGEST = 6_000_000  # bytes of a page
KINDS = ("reproduce", "compare", "verify", "plan", "log")


@pytest.fixture(scope="module")
def places(reproduced, planned, verified, tmp_path_factory):
    """A small result of every kind with its page, by its name."""
    root = tmp_path_factory.mktemp("report")
    for name, folder in {
        "reproduce": reproduced,
        "plan": planned,
        "verify": verified,
    }.items():
        copytree(folder, root / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda *words, **options: None)
        patch.setattr("tiebreak.studies.sweeps._PATIENCE", np.inf)
        words = "compare --problems paper,valley-4 --methods sdbgd,penalty --budgets 1e3,1e4 --quick --report"
        call(*words.split(), "--output", root / "compare")
    _log(root / "run.csv")
    found = {name: root / name for name in KINDS[:-1]} | {"log": root / "run.csv"}
    for name in KINDS:
        if name != "compare":
            done = call("report", found[name])
            assert "needs no network" in done.stderr
    assert all(page_path(place).exists() for place in found.values())
    return found


def _log(path, **options):
    import tiebreak.torch as barrier

    torch.manual_seed(0)
    x = torch.nn.Parameter(torch.randn(4, dtype=torch.float64))
    given = {"tolerance": 0.1, "reference": 0.0} | options
    opt = barrier.DynamicBarrier(torch.optim.SGD([{"params": [x]}], lr=0.05), **given)
    with barrier.CSVLog(path) as log:
        opt.register_step_post_hook(log)
        for _ in range(40):
            opt.step(
                lower=lambda: x[:2].square().sum(), upper=lambda: (x - 1).square().sum()
            )


# --- what is on disk ------------------------------------------------------------------------------------------------


def parts(findings, kind):
    return [chart for chart in findings.charts.values() if isinstance(chart, kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_known_and_has_a_verdict_charts_tables_and_a_record(kind, places):
    assert kind_of(places[kind]) == kind
    found = findings_of(places[kind])
    assert found.verdict.word
    assert found.verdict.question.endswith("?")
    assert found.verdict.answers
    assert parts(found, Chart)
    assert found.tables
    assert all(table.rows for table in found.tables)
    for shown in parts(found, Chart):
        for axis in (*shown.x, *shown.y):
            assert any(axis.key in series.columns for series in shown.series), (
                shown.title,
                axis.key,
            )
        for series in shown.series:
            assert len({len(column) for column in series.columns.values()}) == 1


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_the_command_is_shown_as_it_was_saved(kind, places):
    saved = json.loads((places[kind] / "config.json").read_text(encoding="utf-8"))
    assert saved["kind"] == kind
    assert saved["command"].startswith(f"tiebreak {kind} ")
    assert saved["versions"]["tiebreak"]
    assert saved["command"].replace(">", "&gt;") in render(findings_of(places[kind]))


@pytest.mark.usefixtures("no_figures")
def test_the_saved_command_of_a_plan_makes_the_same_plan(places, tmp_path):
    saved = json.loads((places["plan"] / "config.json").read_text(encoding="utf-8"))
    call(*saved["command"].split()[1:], "--output", tmp_path)
    again = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert {**again, "date": ""} == {**saved, "date": ""}
    assert (tmp_path / "measured.csv").read_bytes() == (
        places["plan"] / "measured.csv"
    ).read_bytes()


def test_a_comparison_names_its_methods(places):
    saved = json.loads((places["compare"] / "config.json").read_text(encoding="utf-8"))
    assert saved["methods"] == ["SDBGD", "Penalty"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep whose curves were recorded: a method that depends on the budget has some for each."""
    folder = tmp_path_factory.mktemp("swept") / "sweep"
    words = "compare --as-is --problems paper,valley-4 --methods sdbgd,penalty_bound --budgets 1e3,1e4 --runs 3 --record log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda *words, **options: None)
        call(*words.split(), "--quiet", "--output", folder)
    return folder


def test_a_comparison_shows_the_curves_that_it_recorded(swept):
    """Means over the runs, step by step, of the largest budget."""
    along = findings_of(swept).charts["curves"]
    assert along.title == "Residuals along the run"
    rows = read_columns(swept / "curves.csv")
    for problem, method in product(("paper", "valley-4"), ("SDBGD", "Penalty bound")):
        one = next(
            s
            for s in along.series
            if s.name == method and f"{problem} direction_squared" in s.columns
        )
        mine = (
            (rows["problem"] == problem)
            & (rows["method"] == method)
            & (rows["budget"] == 1e4)
        )
        steps = np.unique(rows["step"][mine])
        np.testing.assert_array_equal(one.columns["step"], steps)
        for name in (
            "direction_squared",
            "stationarity_squared",
            "lower_gradient_squared",
            "upper_value",
        ):
            expected = [
                rows[name][mine & (rows["step"] == step)].mean() for step in steps
            ]
            np.testing.assert_allclose(
                one.columns[f"{problem} {name}"], expected, rtol=1e-5
            )
    assert all(any(axis.key in one.columns for one in along.series) for axis in along.y)


def test_one_problem_has_curves_instead_of_a_profile(tmp_path):
    """A profile of one problem is made of vertical lines."""
    words = "compare --problems valley-4 --methods sdbgd,penalty --quick --quiet"
    call(*words.split(), "--output", tmp_path)
    found = load(tmp_path)
    assert list(found.charts) == ["curves", "residuals"]
    assert (tmp_path / "curves.png").exists()
    assert not (tmp_path / "profiles.png").exists()
    assert found.charts["curves"].y[0].label == "valley-4: min over λ of ‖∇f+λ∇g‖²"


def test_many_recorded_curves_stay_within_a_page():
    """Twenty problems and twenty methods, 60 records of two runs each: fewer points, and no page that is too large."""
    rng = np.random.default_rng(0)
    names = list(product(range(20), range(20), range(2), range(60)))
    problem, method, run, step = (
        np.array(column) for column in zip(*names, strict=True)
    )
    table = {
        "problem": np.char.add("problem ", problem.astype(str)),
        "method": np.char.add("m", method.astype(str)),
    }
    table |= {
        "run": run,
        "step": step,
        "calls": 7 * step,
        "budget": np.full(len(names), 10**6),
    }
    for name in (
        "direction_squared",
        "stationarity_squared",
        "lower_gradient_squared",
        "upper_value",
        "lower_value",
    ):
        table[name] = rng.random(len(names))
    chart = recorded_chart(table)
    assert len(chart.series) == 400
    assert {len(one.columns["step"]) for one in chart.series} == {30}
    assert len(render(findings_with(charts={"curves": chart}))) < LARGEST


def test_a_winner_that_left_g_behind_is_said_in_the_verdict(places):
    found = findings_of(places["compare"])
    risen = [note for note in found.notes if note.startswith("g ended above")]
    said = [text for text in found.verdict.answers if text.startswith("g ended above")]
    assert said == risen


def test_curves_are_the_means_of_what_was_recorded(places):
    """The obvious way: one record of one method, over its runs."""
    chart = findings_of(places["reproduce"]).charts["comparison"]
    assert [axis.key for axis in chart.x] == ["calls", "step", "seconds"]
    assert [axis.key for axis in chart.y[:3]] == [
        "direction_squared",
        "lower_gradient_squared",
        "stationarity_squared",
    ]
    table = select(read_columns(places["reproduce"] / "curves.csv"), method="sdbgd")
    series = chart.series[0]
    for i in (0, 5, len(series.columns["step"]) - 1):
        rows = select(table, step=series.columns["step"][i])
        assert len(rows["run"]) == 3
        assert set(rows["calls"]) == {series.columns["calls"][i]}
        for axis in chart.y[:5]:
            assert series.columns[axis.key][i] == pytest.approx(
                rows[axis.key].mean(), rel=1e-5
            )
            assert (
                series.columns[f"{axis.key}:low"][i]
                <= series.columns[f"{axis.key}:high"][i]
            )


def test_paths_begin_at_the_start_and_end_where_the_means_do(places):
    chart = findings_of(places["reproduce"]).charts["trajectories"]
    points = read_columns(places["reproduce"] / "points.csv")
    for method in distinct(points, "method"):
        series = [s for s in chart.series if s.name.rstrip("†") == METHODS[method].name]
        mean, *runs, end = series
        assert (mean.columns["x"][0], mean.columns["y"][0]) == (1.5, 1.5)
        ends = select(points, method=method, iterate="last")
        expected = pytest.approx((ends["x0"].mean(), ends["x1"].mean()), rel=1e-5)
        assert (mean.columns["x"][-1], mean.columns["y"][-1]) == expected
        assert (end.columns["x"][0], end.columns["y"][0]) == expected
        assert [run.faint for run in runs] == [True] * 3


def test_contours_are_of_g(places):
    chart = findings_of(places["reproduce"]).charts["trajectories"]
    contours = [s for s in chart.series if s.name == "contours of g"]
    levels = set()
    for series in contours:
        x = np.stack([series.columns["x"], series.columns["y"]], axis=1)
        values = lower_value(x[np.isfinite(x).all(axis=1)])
        if len(values):
            assert np.ptp(values) < 1e-4
            levels.add(round(float(values[0]), 2))
    assert levels >= {0.25, 0.5, 1.0, 1.5, 2.0}


@pytest.mark.usefixtures("no_figures")
def test_a_verification_of_ones_own_case_has_no_rates_and_a_page_all_the_same(tmp_path):
    words = "verify --problem paper --method sdbgd --steps 30 --runs 4 --report"
    call(*words.split(), "--output", tmp_path)
    found = load(tmp_path)
    assert list(found.charts) == ["bounds", "family", "stability"]
    assert found.charts["bounds"].title == "The bounds on paper"
    assert all(
        np.isfinite(series.columns["direction_squared"]).all()
        for series in found.charts["bounds"].series
    )
    assert [series.name for series in found.charts["family"].series] == ["paper"]
    assert any(path.suffix == ".pdf" for path in publish(tmp_path))
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("excess", "good", "word"), [("0.89", True, "Inside"), ("1.11", False, "Outside")]
)
def test_a_training_run_is_inside_up_to_one_tolerance(excess, good, word, tmp_path):
    path = tmp_path / "run.csv"
    path.write_text(
        f"step,multiplier,skipped,excess,seconds\n0,1.0,0,5.0,1\n1,2.0,0,{excess},2\n"
    )
    verdict = findings_of(path).verdict
    assert (verdict.good, verdict.word) == (good, f"{word} the tolerance")


def test_a_training_run_has_a_time_axis(places):
    """Steps or time, by a switch. What is known of the run is told at the end."""
    found = findings_of(places["log"])
    for drawn in parts(found, Chart):
        assert [axis.key for axis in drawn.x] == ["step", "seconds"]
        assert all(
            len(s.columns["seconds"]) == len(s.columns["step"]) == 40
            for s in drawn.series
        )
    assert found.record["versions"]["torch"] == torch.__version__
    assert found.record["optimizer"].startswith("DynamicBarrier(tolerance=0.1")
    assert "in 0:0" in " ".join(found.verdict.answers)


def test_what_the_batches_cannot_tell_is_not_decided(tmp_path):
    """The excess swings by 0.3 tolerances in the last tenth of the steps, and ends nearer than that to 1."""
    path = tmp_path / "run.csv"
    rows = "".join(f"{k},1.0,0,{1.3 if k % 2 else 0.7},{k}\n" for k in range(200))
    for last, word in (
        (1.12, "Not decided by the batches"),
        (1.5, "Outside the tolerance"),
        (0.5, "Inside the"),
    ):
        path.write_text(
            f"step,multiplier,skipped,excess,seconds\n{rows}200,1.0,0,{last},200\n"
        )
        verdict = findings_of(path).verdict
        assert verdict.word.startswith(word)
        assert (verdict.good is None) == (last == 1.12)
        assert re.search(
            r"reference, and swung by ± 0\.(29|3|31) over the last tenth",
            verdict.answers[0],
        )
        assert ("over all training data" in verdict.answers[1]) == (last == 1.12)


def test_a_few_steps_do_not_tell_a_swing(tmp_path):
    path = tmp_path / "run.csv"
    rows = "".join(f"{k},1.0,0,{1.3 if k % 2 else 0.7},{k}\n" for k in range(99))
    path.write_text(f"step,multiplier,skipped,excess,seconds\n{rows}")
    verdict = findings_of(path).verdict
    assert verdict.good is True
    assert "swung" not in verdict.answers[0]


def test_residuals_are_made_of_the_products_that_were_logged(places):
    """The log has the inner products alone; the page shows what they make, of the steps that were made."""
    with places["log"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    (chart,) = (
        chart
        for chart in parts(findings_of(places["log"]), Chart)
        if chart.title == "Residuals"
    )
    shown = chart.series[0].columns
    assert [axis.key for axis in chart.y] == [
        "direction_squared",
        "stationarity_squared",
        "gg",
        "ff",
    ]
    products = (
        [float(row[name]) for name in ("multiplier", "fg", "gg", "ff")] for row in rows
    )
    for k, (m, fg, gg, ff) in enumerate(products):
        assert shown["direction_squared"][k] == pytest.approx(
            ff + 2 * m * fg + m * m * gg, rel=1e-9
        )
        least = ff - fg * fg / gg if fg < 0 else ff
        assert shown["stationarity_squared"][k] == pytest.approx(
            least, rel=1e-6, abs=1e-12
        )


def test_a_new_run_in_an_old_file_is_the_one_that_counts(tmp_path):
    path = tmp_path / "run.csv"
    old = "".join(f"{k},1.0,0,0.5,{k}\n" for k in range(100))
    path.write_text(
        f"step,multiplier,skipped,excess,seconds\n{old}0,1.0,0,9.0,100\n1,1.0,0,8.0,101\n"
    )
    verdict = findings_of(path).verdict
    assert verdict.good is False
    assert verdict.answers[1] == "2 steps, none skipped, in 0:02."


def test_the_time_of_a_new_run_in_an_old_file_is_its_own(tmp_path):
    path = tmp_path / "run.csv"
    old = "".join(f"{k},1.0,0,{600 + k}\n" for k in range(100))
    path.write_text(
        f"step,multiplier,skipped,seconds\n{old}0,1.0,0,700.5\n1,1.0,0,702.0\n"
    )
    page = findings_of(path)
    assert "in 0:03" in page.verdict.answers[0]
    assert parts(page, Chart)[0].series[0].columns["seconds"] == pytest.approx(
        [1.5, 3.0]
    )
    path.write_text(
        f"step,multiplier,skipped,seconds\n{old}50,1.0,0,700.5\n"
    )  # resumed: the same run
    assert "in 11:40" in findings_of(path).verdict.answers[0]


@pytest.mark.parametrize(
    ("slope", "went"), [(1, "rose"), (-1, "fell"), (0, "stayed the same")]
)
def test_losses_are_compared_by_averages_of_many_batches(slope, went, tmp_path):
    path = tmp_path / "run.csv"
    losses = [100 + slope * k for k in range(50)]
    losses[0], losses[1] = (
        losses[0] + 90 * slope,
        losses[1] - 90 * slope,
    )  # a single batch would tell the opposite
    rows = "".join(f"{k},1.0,0,{loss},{k}\n" for k, loss in enumerate(losses))
    path.write_text(f"step,multiplier,skipped,upper_loss,seconds\n{rows}")
    said = findings_of(path).verdict.answers[1]
    assert said.startswith(f"The upper loss {went}, from ")
    first, last = 100 + 2 * slope, 100 + 47 * slope
    assert [
        float(word.rstrip(",")) for word in said.split() if word[0].isdigit()
    ] == pytest.approx([first, last], rel=5e-3)


def test_losses_are_plain_numbers_and_an_average_is_called_one(tmp_path):
    """0.87 beside 1.57, not 8.70e-1; nothing is said of the last iterate, which the log does not know."""
    path = tmp_path / "run.csv"
    rows = "".join(f"{k},1.0,0,{1.57 if k < 5 else 0.87},0.2,{k}\n" for k in range(10))
    path.write_text(f"step,multiplier,skipped,upper_loss,excess,seconds\n{rows}")
    found = findings_of(path).verdict.answers
    assert "from 1.57 to 0.87," in found[2]
    assert (
        "both averaged over recent steps. The last iterate may differ where the learning rate did not fall."
        in found[0]
    )
    assert "did not improve" not in " ".join(found)
    assert found[-1].startswith("That compares the upper loss with its own start, ")


def test_a_log_of_lower_only_training_is_called_so(tmp_path):
    path = tmp_path / "fit.csv"
    path.write_text(
        "step,multiplier,upper_loss,lower_loss,skipped,seconds\n0,,,2.0,,1\n1,,,1.0,,2\n"
    )
    assert findings_of(path).verdict.word == "Lower-only training"


def test_a_log_without_tolerance_resumed_and_cut_off(tmp_path):
    """Steps that were made again count once, by their last line; half a line at the end is no step."""
    path = tmp_path / "run.csv"
    lines = ["step,multiplier,gg,upper_loss,lower_loss,skipped,seconds"]
    lines += ["0,2,4,5,6,0,1", "1,9,9,9,9,0,2", "1,3,5,6,7,0,3", "2,,,,,1,4", "3,1"]
    path.write_text("\n".join(lines))
    page = findings_of(path)
    assert page.verdict.good is None
    assert (
        page.verdict.answers[0] == "3 steps, 1 of those logged were skipped, in 0:04."
    )
    chart = next(
        chart for chart in parts(page, Chart) if chart.y[0].key == "multiplier"
    )
    assert [series.name for series in chart.series] == ["this run"]
    assert chart.series[0].columns["multiplier"].tolist() == [2.0, 3.0]


def test_what_is_no_result_gets_a_sentence(tmp_path):
    for make, words in (
        (lambda path: None, "no such file or folder"),
        (lambda path: path.mkdir(), "it has no manifest.json"),
        (lambda path: path.write_text("a,b\n1,2\n"), "it has none of them"),
        (lambda path: path.write_text("step,skipped,seconds\n"), "no step yet"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "is no table"),
    ):
        path = tmp_path / f"place{len(list(tmp_path.iterdir()))}"
        make(path)
        with pytest.raises(ValueError, match=words):
            findings_of(path)


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_findings_that_are_damaged_get_a_sentence(kind, places, tmp_path):
    """Words for numbers, and whatever else a damaged byte makes of the file: ValueError, or a page that can be drawn."""
    record = json.loads((places[kind] / "config.json").read_text(encoding="utf-8"))
    text = (places[kind] / "findings.json").read_text(encoding="utf-8")
    data = json.loads(text)
    series = next(iter(data["charts"].values()))["series"][0]["columns"]
    series[next(iter(series))][0] = "much"
    with pytest.raises(ValueError, match="must be numbers"):
        from_json(kind, record, data)
    rng = np.random.default_rng(0)
    for _ in range(30):
        damaged = bytearray(text.encode())
        for place in rng.integers(len(damaged), size=3):
            damaged[place] = rng.integers(256)
        with suppress(ValueError):
            stored(from_json(kind, record, json.loads(bytes(damaged))))


# --- the page -------------------------------------------------------------------------------------------------------


def findings_with(**options):
    verdict = Verdict("<i>", True, "a & b?", ["</ul>"])
    found = Findings("log", "<b>T</b>", verdict, [], [], {}, {})
    return replace(found, **options)


def test_text_is_text_whatever_it_holds():
    evil = "</script><script>alert(1)</script>"
    chart = Chart(
        evil,
        evil,
        [Axis("x", evil)],
        [Axis("y", evil)],
        [Series(evil, {"x": [1], "y": [np.nan]}, 0)],
    )
    found = findings_with(
        charts={evil: chart},
        notes=[evil],
        tables=[Table(evil, (evil,), [[evil]])],
        record={"command": evil, evil: evil},
    )
    text = render(found)
    assert "<script>alert" not in text
    assert text.count("<script>") == 2  # Plotly, once, and the page's program
    assert json.loads(embedded({"a": evil, "b": "\u2028"})) == {
        "a": evil,
        "b": "\u2028",
    }


def test_curves_are_thinned_rather_than_refused(tmp_path, monkeypatch):
    """Both ends of a curve stay; and all charts of a page together have what a page of 6 MB has room for."""
    path = tmp_path / "run.csv"
    path.write_text(
        "step,skipped,seconds,multiplier\n"
        + "".join(f"{k},0,{k},{k * k}\n" for k in range(3000))
    )
    for cells, points in ((120_000, 1500), (600, 200)):  # of three columns
        monkeypatch.setattr("tiebreak.studies.findings._CELLS", cells)
        (chart,) = parts(stored(findings_of(path)), Chart)
        curve = chart.series[0].columns["multiplier"]
        assert (len(curve), curve[0], curve[-1]) == (
            points,
            0,
            pytest.approx(2999**2, rel=1e-5),
        )


def test_the_citation_is_that_of_the_project():
    root = Path(__file__).parents[2]
    said = (root / "CITATION.cff").read_text(encoding="utf-8")
    for name in re.findall(r'(?:title|name): "(.*)"', said) + re.findall(
        r"family-names: (\w+)", said
    ):
        assert name in CITATION
    version = re.search(r"^version: (.*)$", said, re.MULTILINE)[1]
    assert f"version = {{{version}}}" in CITATION
    assert f"```bibtex\n{CITATION}\n```" in (root / "README.md").read_text(
        encoding="utf-8"
    )


def test_new_data_remove_an_old_page(places, tmp_path):
    found = load(places["reproduce"])
    save(found, tmp_path)
    write_page(tmp_path)
    write_files(tmp_path, {"comparison.png": b"drawn"}, update=True)
    assert (tmp_path / "report.html").exists()  # the same data
    save(found, tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_page_that_no_command_wrote_is_not_replaced(places, tmp_path):
    page = tmp_path / "run.html"
    page.write_text("mine")
    found = findings_of(places["log"])
    with pytest.raises(ValueError, match="is a file that no command wrote"):
        write_single_page(found, page)
    assert page.read_text() == "mine"
    write_single_page(found, page, overwrite=True)
    write_single_page(found, page)  # its own
    page.write_text(page.read_text().replace("Verdict", "verdict"))
    with pytest.raises(ValueError, match="or that was changed since"):
        write_single_page(found, page)
    save(load(places["reproduce"]), tmp_path / "result")
    (tmp_path / "result" / "report.html").write_text("mine")
    done = call("report", tmp_path / "result", code=2)
    assert "holds report.html, which no command wrote" in done.stderr.replace("\n", " ")
    assert (tmp_path / "result" / "report.html").read_text() == "mine"


def test_the_command_says_what_it_wrote_and_what_it_cannot_read(places, tmp_path):
    done = call("report", places["log"], "--output", tmp_path / "page.html")
    assert re.search(
        r"Report: .*page\.html \(\d\.\d MB, needs no network\)",
        done.stderr.replace("\n", ""),
    )
    assert "no such file or folder" in call(
        "report", tmp_path / "none", code=2
    ).stderr.replace("\n", " ")


def test_plotly_is_asked_for_before_anything_is_run(tmp_path):
    done = call(
        "reproduce",
        "--report",
        "--output",
        tmp_path / "new",
        code=1,
        before="import sys; sys.modules['plotly'] = None",
    )
    said = 'tiebreak: plotly is not installed; a report needs: pip install ".[report]" in a clone of tiebreak'
    assert done.stderr.splitlines()[-1] == said
    assert not (tmp_path / "new").exists()


def test_a_report_needs_no_torch(places, tmp_path):
    code = f"""
import sys
sys.modules["torch"] = None
from tiebreak.studies.page import write_single_page
from tiebreak.studies.training_log import findings_of
print(write_single_page(findings_of({str(places["log"])!r}), {str(tmp_path / "page.html")!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


# --- in a browser ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opened():
    with browser() as driver:
        yield driver


def page_path(place):
    return place.with_suffix(".html") if place.is_file() else place / "report.html"


def visit(opened, place):
    from selenium.webdriver.support.ui import WebDriverWait

    opened.get(
        page_path(place).as_uri()
    )  # which may return while a long script is still being read
    ready = "return document.documentElement.dataset.ready === 'yes'"
    WebDriverWait(opened, 30, poll_frequency=0.05).until(
        lambda _: opened.execute_script(ready), "the page is not ready"
    )


def quiet(opened):
    """Nothing in the console, and nothing asked for but the page itself."""
    assert opened.get_log("browser") == []
    asked = [
        json.loads(entry["message"])["message"]
        for entry in opened.get_log("performance")
    ]
    urls = [
        one["params"]["request"]["url"]
        for one in asked
        if one["method"] == "Network.requestWillBeSent"
    ]
    assert all(url.startswith(("file:", "data:", "blob:")) for url in urls), urls


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_opens_without_a_word_light_dark_and_on_a_phone(kind, opened, places):
    assert page_path(places[kind]).stat().st_size < LARGEST
    backs = set()
    for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light")):
        look(opened, width, scheme)
        visit(opened, places[kind])
        assert (
            opened.execute_script("return document.documentElement.scrollWidth")
            <= width
        )
        backs.add(
            opened.execute_script(
                "return getComputedStyle(document.body).backgroundColor"
            )
        )
        drawn = opened.execute_script(
            "return [...document.querySelectorAll('figure .plot')].map(p => p.querySelectorAll('.main-svg').length)"
        )
        assert drawn
        assert min(drawn) >= 1
        first = opened.execute_script(
            "return document.querySelector('main').firstElementChild.id"
        )
        assert first == "verdict"
    assert len(backs) == 2
    quiet(opened)


def test_every_switch_of_every_chart_draws_something(opened, places):
    look(opened, 1280, "light")
    for kind in KINDS:
        visit(opened, places[kind])
        counts = opened.execute_script(
            """
            const found = [];
            for (const figure of document.querySelectorAll("figure")) {
              const plot = figure.querySelector(".plot");
              for (const select of figure.querySelectorAll("select")) for (const option of [...select.options]) {
                select.value = option.value;
                select.dispatchEvent(new Event("change"));
                const points = plot.data.flatMap((t) => t.y || []).filter((v) => v !== null).length;
                found.push([figure.id, option.text, plot.data.length, points, plot.layout.yaxis.title.text]);
              }
            }
            return found;
            """
        )
        assert kind not in ("reproduce", "plan") or len(counts) > 5
        for figure, option, traces, points, title in counts:
            assert traces, (kind, figure, option)
            assert points, (kind, figure, option)
            assert title
    quiet(opened)


def test_the_switch_the_legend_and_the_tables_by_keyboard(opened, places):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    look(opened, 1280, "light")
    visit(opened, places["reproduce"])
    js = opened.execute_script
    # The switch: from ‖d‖² to ‖∇g‖² to the residual that compares methods.
    select = opened.find_element(By.CSS_SELECTOR, "figure select")
    labels = []
    for _ in range(3):
        labels.append(
            js("return document.querySelector('figure .plot').layout.yaxis.title.text")
        )
        select.send_keys(Keys.ARROW_DOWN)
    assert labels == ["‖d‖², own λ", "‖∇g‖²", "min over λ of ‖∇f+λ∇g‖²"]
    # The legend: a button hides its method, and brings it back.
    button = opened.find_element(By.CSS_SELECTOR, "figure .legend button")
    before = js("return document.querySelector('figure .plot').data.length")
    button.send_keys(Keys.ENTER)
    assert js("return document.querySelector('figure .plot').data.length") < before
    opened.find_element(
        By.CSS_SELECTOR, "figure .legend button[aria-pressed=false]"
    ).send_keys(Keys.SPACE)
    assert js("return document.querySelector('figure .plot').data.length") == before
    # Tables: numbers as numbers, both ways.
    heads = opened.find_elements(By.CSS_SELECTOR, "table th button")
    column = next(i for i, head in enumerate(heads) if head.text == "‖∇g‖²")
    read = f"return [...document.querySelector('table').tBodies[0].rows].map(r => r.cells[{column}].textContent)"
    orders = []
    for _ in range(2):
        heads[column].send_keys(Keys.ENTER)
        orders.append([float(text.partition(" ")[0]) for text in js(read)])
    assert orders[0] == sorted(orders[0])
    assert orders[1] == orders[0][::-1]
    # Colours: auto, light, dark, whatever the system says.
    theme, seen = opened.find_element(By.ID, "theme"), []
    for _ in range(3):
        theme.send_keys(Keys.ENTER)
        seen.append(js("return document.documentElement.dataset.theme"))
    assert seen == ["light", "dark", "light"]
    # Whatever can be used can be reached by Tab.
    unreachable = js(
        """
        return [...document.querySelectorAll("a, button, select, input, .table, pre")]
          .filter((e) => e.tabIndex < 0 && !e.closest(".plot")).map((e) => e.outerHTML.slice(0, 80));
        """
    )
    assert unreachable == []
    quiet(opened)


def test_what_the_console_says_is_noticed(opened, tmp_path):
    """The test of the test: an error, and something from outside, are seen."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<img src='https://example.invalid/x.png'><script>nonsense()</script>"
    )
    look(opened, 1280, "light")
    opened.get(page.as_uri())
    messages = [entry["message"] for entry in opened.get_log("browser")]
    assert any("nonsense is not defined" in message for message in messages)
    with pytest.raises(AssertionError, match="example"):
        quiet(opened)
