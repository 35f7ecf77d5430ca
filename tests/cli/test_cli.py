"""The command line as a user meets it: its files, its words and its exit code."""

import csv
import inspect
import json
import os
import re
import shutil
import statistics
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from command import call, interrupt, unread
from typer.testing import CliRunner

import tiebreak
import tiebreak.studies.folder as folder_module
from tiebreak.cli.app import app
from tiebreak.cli.console import number, numbers
from tiebreak.cli.reproduce import reproduce
from tiebreak.methods import METHODS
from tiebreak.studies import Experiment, load

FILES = {
    "comparison.pdf",
    "comparison.png",
    "config.json",
    "curves.csv",
    "curves.parquet",
    "findings.json",
    "manifest.json",
    "points.csv",
    "points.parquet",
    "summary.md",
    "trajectories.pdf",
    "trajectories.png",
}
FIGURES = {name for name in FILES if name.endswith(("png", "pdf"))}
SMALL = ("--budget", "2e4", "--runs", "3", "--seed", "7")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_file_is_there_and_is_what_it_says(reproduced: Path) -> None:
    assert {
        path.name for path in reproduced.iterdir()
    } == FILES  # and no temporary ones
    for name in FIGURES:
        content = (reproduced / name).read_bytes()
        assert content.startswith(b"\x89PNG\r\n" if name.endswith("png") else b"%PDF-")
        assert len(content) > 10_000
    assert (
        json.loads((reproduced / "config.json").read_text(encoding="utf-8"))[
            "experiment"
        ]["seed"]
        == 7
    )


def test_csv_equals_parquet(reproduced: Path) -> None:
    """Cell by cell and to the last digit."""
    parquet = pq.read_table(reproduced / "curves.parquet")
    text = rows(reproduced / "curves.csv")
    assert list(text[0]) == parquet.column_names
    assert len(text) == parquet.num_rows
    for name in parquet.column_names:
        values = parquet.column(name).to_numpy()
        np.testing.assert_array_equal(
            np.array([row[name] for row in text]).astype(values.dtype),
            values,
            err_msg=name,
        )
    assert list(dict.fromkeys(row["method"] for row in text)) == [
        "sdbgd",
        "sdbpg",
        "pr_sdbpg",
        "vr_pr_sdbpg",
    ]
    assert {
        "direction_squared",
        "lower_gradient_squared",
        "stationarity_squared",
        "upper_value",
        "lower_value",
        "x0",
        "x1",
    } <= set(text[0])


def test_summary_agrees_with_the_data(reproduced: Path) -> None:
    """Every cell is recomputed from the CSV files by other means, with as many digits as are shown."""
    summary = (reproduced / "summary.md").read_text(encoding="utf-8")
    cells = [
        [c.strip() for c in line.strip("|").split("|")]
        for line in summary.splitlines()
        if line.startswith("|")
    ]
    curves, points = rows(reproduced / "curves.csv"), rows(reproduced / "points.csv")
    names = {METHODS[m].name: m for m in METHODS}
    checked = 0
    for cell in cells:
        method = names.get(cell[0].rstrip("†"))
        if method is None:
            continue
        if cell[1] == "selected":
            chosen = [
                r
                for r in points
                if r["method"] == method and r["iterate"] == "selected"
            ]
        else:
            last = max(int(r["step"]) for r in curves if r["method"] == method)
            chosen = [
                r for r in curves if r["method"] == method and int(r["step"]) == last
            ]
        assert len(chosen) == 3
        if cell[1] in ("last", "selected"):
            shown = dict(
                zip(
                    (
                        "direction_squared",
                        "lower_gradient_squared",
                        "stationarity_squared",
                    ),
                    cell[2:],
                    strict=True,
                )
            )
        else:
            assert int(cell[1].replace(",", "")) == last
            assert int(cell[2].replace(",", "")) == int(chosen[0]["calls"])
            shown = dict(zip(("upper_value", "lower_value"), cell[3:5], strict=True))
        for column, text in shown.items():
            values = [float(r[column]) for r in chosen]
            mean, error = map(float, text.split(" ± "))
            digits = ".5g" if column.endswith("value") else ".2e"
            assert mean == float(format(statistics.mean(values), digits)), (
                method,
                column,
            )
            assert error == float(f"{statistics.stdev(values) / 3**0.5:.0e}"), (
                method,
                column,
            )
            checked += 1
    assert checked == 4 * (3 + 3 + 2)
    assert "reconstruction" in summary
    assert "does not compare methods" in summary
    assert "(0, 0) in 12 of 12 runs" in summary


def test_the_screen_shows_the_summary(reproduced: Path) -> None:
    shown = (reproduced.parent / "shown.txt").read_text(encoding="utf-8")
    summary = (reproduced / "summary.md").read_text(encoding="utf-8")
    numbers = re.findall(r"\d\.\d\de-\d ± \de-\d", summary)
    assert len(numbers) > 10
    assert all(number in shown for number in numbers)


def test_configuration_names_no_folder_of_the_machine(reproduced: Path) -> None:
    text = (reproduced / "config.json").read_text(encoding="utf-8")
    assert str(reproduced.parent) not in text
    assert str(Path.home()) not in text
    assert str(Path.cwd()) not in text
    assert json.loads(text)["command"].startswith(
        "tiebreak reproduce --methods sdbgd,sdbpg,pr_sdbpg,vr_pr_sdbpg --runs 3 "
    )


def test_report_draws_the_same_again(reproduced: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(reproduced, tmp_path / "copy"))
    for name in FIGURES | {"summary.md"}:
        (folder / name).unlink()
    done = call("report", folder)
    assert "Residuals, mean" in done.stdout
    for name in FILES - {"manifest.json"}:  # which lists the page now
        assert (folder / name).read_bytes() == (reproduced / name).read_bytes(), name
    assert (folder / "report.html").exists()


@pytest.mark.usefixtures("no_figures")
def test_the_saved_command_gives_the_same_bytes(
    reproduced: Path, tmp_path: Path
) -> None:
    command = json.loads((reproduced / "config.json").read_text(encoding="utf-8"))[
        "command"
    ].split()
    call(*command[1:], "--output", tmp_path)
    for name in ("curves.csv", "points.csv"):
        assert (tmp_path / name).read_bytes() == (reproduced / name).read_bytes()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--budget", "much"), ("--budget much", "whole number ≥ 1")),
        (("--budget", "-1e8"), ("--budget -100000000.0", "≥ 1")),
        (("--budget", "1e30"), ("--budget 1e+30", "from 1 to 2^63 − 1")),
        (("--budget", "1"), ("--budget 1", "at least 4", "vr_pr_sdbpg")),
        (("--runs", "2.5"), ("--runs 2.5", "whole number ≥ 1")),
        (("--seed", "-1"), ("--seed -1", "≥ 0")),
        (("--methods", "sdbgd,nope"), ("methods", "'nope'", "penalty")),
        (("--start", "1;2"), ("--start 1;2", "two numbers")),
        (("--start", "1,2,3"), ("--start [1, 2, 3]", "two numbers")),
        (("--noise", "-0.5"), ("--noise -0.5", "from 0 to")),
        (("--record", "sometimes"), ("--record sometimes", "'log', 'all'")),
    ],
)
def test_bad_values_get_one_kind_line(
    options: tuple[str, ...], words: tuple[str, ...], tmp_path: Path
) -> None:
    done = call("reproduce", *options, "--output", tmp_path / "never", code=2)
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert all(word in done.stderr for word in words), done.stderr
    assert not (tmp_path / "never").exists()


@pytest.mark.usefixtures("no_figures")
def test_every_option_reaches_the_experiment(tmp_path: Path) -> None:
    """Methods by commas and repeated, in any spelling; numbers that begin with a minus are values, not options."""
    words = "--methods SDBGD,penalty --methods dbgd --runs 2 --budget 300 --seed 3 --start -1.5,-2 --noise 0.25"
    call(
        "reproduce",
        *words.split(),
        "--record",
        "all",
        "--per-sample",
        "--output",
        tmp_path,
    )
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))[
        "experiment"
    ] == {
        "methods": ["sdbgd", "penalty", "dbgd"],
        "runs": 2,
        "budget": 300,
        "seed": 3,
        "start": [-1.5, -2.0],
        "noise": 0.25,
        "per_sample": True,
        "record": 1,
    }
    curves = rows(tmp_path / "curves.csv")
    assert (curves[0]["x0"], curves[0]["x1"]) == ("-1.5", "-2.0")
    assert [
        int(r["step"]) for r in curves if r["method"] == "dbgd" and r["run"] == "1"
    ] == list(range(151))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = call("reproduce", *SMALL, "--output", tmp_path / "file" / "results", code=2)
    assert "--output " in done.stderr
    assert "'file' is a file" in done.stderr
    lines = [
        line for line in done.stderr.strip().splitlines() if "Loading" not in line
    ]  # on a slow machine
    assert len(lines) == 2  # what it would do, and why it cannot
    assert (tmp_path / "file").read_text() == "mine"


def test_report_of_no_folder_and_of_an_empty_one(tmp_path: Path) -> None:
    nowhere = call("report", tmp_path / "nowhere", code=2)
    assert "no such file or folder" in nowhere.stderr.replace("\n", " ")
    assert "it has no manifest.json" in call("report", tmp_path, code=2).stderr


@pytest.mark.parametrize("text", ["[]", "{}", '{"title": 3}', "null", "{"])
def test_report_of_odd_findings_says_one_sentence(
    text: str, reproduced: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(reproduced, tmp_path / "copy"))
    (folder / "findings.json").write_text(text)
    done = call("report", folder, code=2)
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "findings.json' is not as the command wrote it" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals are sent otherwise elsewhere")
def test_ctrl_c_keeps_what_was_reached(tmp_path: Path) -> None:
    """A budget that takes minutes, interrupted: data, figures and summary of what was reached, exit code 130."""
    words = [
        "reproduce",
        "--methods",
        "vr_pr_sdbpg",
        "--runs",
        "2",
        "--budget",
        "1e14",
        "--output",
    ]
    shown, said = interrupt(*words, tmp_path, seconds=0.1, after=" step ")
    assert "Interrupted: the files hold what was reached" in said
    assert "cut short: VR-PR-SDBPG†" in shown
    assert {path.name for path in tmp_path.iterdir()} == FILES
    points = rows(tmp_path / "points.csv")
    assert {point["status"] for point in points} == {"interrupted"}
    assert int(points[-1]["steps"]) > 0
    assert (
        json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))[
            "interrupted"
        ]
        is True
    )
    assert list(load(tmp_path).record["seconds"]) == ["vr_pr_sdbpg"]


def test_ctrl_c_while_drawing_keeps_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("tiebreak.studies.figures.draw_all", interrupted)
    done = CliRunner().invoke(
        app, ["reproduce", *SMALL, "--methods", "sdbgd", "--output", str(tmp_path)]
    )
    assert done.exit_code == 130
    assert "The data are saved" in done.output
    assert {path.name for path in tmp_path.iterdir()} == FILES - FIGURES
    assert list(load(tmp_path).record["seconds"]) == ["sdbgd"]


def test_ctrl_c_while_writing_keeps_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = folder_module.write_files

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    words = ["reproduce", *SMALL, "--methods", "sdbgd", "--output", str(tmp_path)]
    monkeypatch.setattr(folder_module, "write_files", interrupted)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 130
    assert "nothing was written. Finished blocks are kept (1)" in done.output
    monkeypatch.setattr(folder_module, "write_files", real)
    assert CliRunner().invoke(app, words).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == FILES


@pytest.mark.usefixtures("no_figures")
def test_runs_that_could_not_go_on_are_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = Experiment.collect
    fault = "SDBGD, run 0 at step 3: the upper gradient is not finite"

    def faulty(self: Experiment, result: Any) -> Any:
        blocks = {
            name: block._replace(
                facts={**block.facts, "faults": {str(self.budget): [fault]}}
            )
            for name, block in result.blocks.items()
        }
        return collect(self, result._replace(blocks=blocks))

    monkeypatch.setattr(Experiment, "collect", faulty)
    done = CliRunner().invoke(
        app, ["reproduce", *SMALL, "--methods", "sdbgd", "--output", str(tmp_path)]
    )
    assert done.exit_code == 1
    assert "run 0 at step 3" in (tmp_path / "summary.md").read_text(encoding="utf-8")


def test_version_help_and_the_list_of_methods() -> None:
    assert call("--version").stdout == f"tiebreak {tiebreak.__version__}\n"
    shown = call("--help").stdout
    assert all(command in shown for command in ("reproduce", "report", "list"))
    listed = call("list", "methods").stdout
    for name, method in METHODS.items():
        assert re.search(rf"^{name}  {re.escape(method.name)}", listed, re.MULTILINE)
        assert str(method.schedule) in listed
    assert listed.count("† our reconstruction") == 2


def test_the_script_is_the_same_program() -> None:
    (script,) = entry_points(group="console_scripts", name="tiebreak")
    assert script.value == "tiebreak.cli:main"
    assert script.load().__module__ == "tiebreak.cli"


@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("list", "problems"),
        ("reproduce", *SMALL, "--methods", "sdbgd", "--quiet"),
    ],
)
def test_a_reader_that_has_gone_ends_the_command_without_a_word(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """As after `| head`: code 141 is what shells give a program that SIGPIPE ended. Files are written all the same."""
    said, code = unread(
        "stdout",
        *words,
        *(("--output", str(tmp_path)) if words[0] == "reproduce" else ()),
    )
    assert (said, code) == ("", 141)
    assert (tmp_path / "summary.md").exists() == (words[0] == "reproduce")


def test_remarks_that_nobody_reads_end_nothing(tmp_path: Path) -> None:
    shown, code = unread(
        "stderr", "reproduce", *SMALL, "--methods", "sdbgd", "--output", str(tmp_path)
    )
    assert code == 0
    assert "Residuals, mean" in shown
    assert {path.name for path in tmp_path.iterdir()} == FILES


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("typer", ["--help"]),
        ("rich", ["list"]),
        ("matplotlib", ["reproduce", "--budget", "1e5"]),
        ("typer", ["report", "run.csv"]),
    ],
)
def test_a_missing_extra_is_asked_for(missing: str, words: list[str]) -> None:
    done = call(*words, code=1, before=f"import sys; sys.modules[{missing!r}] = None")
    what, extra = (
        ("a report", "report") if words[0] == "report" else ("the command line", "cli")
    )
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[
        -1:
    ] == [  # `reproduce` has said before what it would do
        f'tiebreak: {missing} is not installed; {what} needs: pip install ".[{extra}]" in a clone of tiebreak'
    ]


def test_help_does_not_wait_for_figures() -> None:
    loaded = "import sys, atexit; atexit.register(lambda: print([m for m in ('matplotlib', 'pyarrow') if m in sys.modules]))"
    assert call("--help", before=loaded).stdout.splitlines()[-1] == "[]"


def test_the_defaults_are_the_paper_s() -> None:
    default: dict[str, Any] = {
        n: p.default for n, p in inspect.signature(reproduce).parameters.items()
    }
    asked = Experiment(
        methods=default["methods"],
        start=numbers(default["start"]),
        per_sample=default["per_sample"],
        **{
            name: number(default[name])
            for name in ("runs", "budget", "seed", "noise", "record")
        },
    )
    assert asked == Experiment()
