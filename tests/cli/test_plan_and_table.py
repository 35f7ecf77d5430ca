"""``tiebreak table``, ``plan`` and ``verify`` as a user meets them: their words, files and exit codes."""

import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from command import call, interrupt
from tiebreak import minimize, theory
from tiebreak.cli.app import app
from tiebreak.problems import paper
from tiebreak.studies.constants_text import constants_from
from tiebreak.studies.planning import plan_record
from tiebreak.studies.tables import scientific
from tiebreak.studies.verification import verification
from tiebreak.theory import oracle_complexity, plan, proved
from tiebreak.theory.complexity import LOWER_BOUNDS, TABLE

PAPER = paper()
OTHER = "L_f=2,L_g=0.5,G_f=3,sigma_f=1,sigma_g=2,delta_f=10,delta_g=4"


def cells(markdown: str) -> list[list[str]]:
    """The rows of all Markdown tables, without headers."""
    rows = [
        [c.strip() for c in line.strip("|").split("|")]
        for line in markdown.splitlines()
        if line.startswith("|")
    ]
    return [row for row in rows if not set(row[0]) <= {"-", ":"} and row[0] != "method"]


@pytest.mark.parametrize(("epsilon", "constants"), [("0.01", "paper"), ("0.3", OTHER)])
def test_table_has_the_orders_and_the_numbers_of_the_theory(
    epsilon: str, constants: str
) -> None:
    rows = cells(
        call(
            "table", "--epsilon", epsilon, "--constants", constants, "--markdown"
        ).stdout
    )
    every, by_name = (*TABLE, *LOWER_BOUNDS), [row for row in TABLE if row.key]
    orders, numbers_ = rows[: len(every)], rows[len(every) :]
    superscripts = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻·", "0123456789-.")
    for row, order in zip(every, orders, strict=True):
        assert order[:2] == [row.name, row.setting]
        powers = [
            float(cell.removeprefix("ε").translate(superscripts).replace("–", "nan"))
            for cell in order[2:5]
        ]
        np.testing.assert_equal(powers, [-row.iterations, -row.upper, -row.lower])
        assert order[5:] == [row.assumption, row.source]
    assert numbers_[-1][0] == LOWER_BOUNDS[0].name
    for row, counts in zip(by_name, numbers_[:-1], strict=True):
        exact = row.key in ("sdbgd", "penalty", "lazy_penalty")
        found = oracle_complexity(
            float(epsilon), row.key, constants_from(constants) if exact else None
        )
        numbers = [
            float(f"{v:.2e}")
            for v in (found.iterations, found.upper_calls, found.lower_calls)
        ]
        assert [float(cell) for cell in counts[1:4]] == numbers
        known = (
            "known with --noise-smoothness"
            if row.key.startswith(("storm_", "spider_"))
            else "unknown"
        )
        assert counts[4] == ("enough" if exact else f"order only, constants {known}")


def test_table_for_latex_has_the_rows_and_is_ascii() -> None:
    shown = call("table", "--epsilon", "0.1", "--latex").stdout
    assert shown.count("\\toprule") == shown.count("\\end{table*}") == 2
    assert all(row.name in shown for row in (*TABLE, *LOWER_BOUNDS))
    assert r"$\varepsilon^{-2.5}$" in shown
    assert shown.partition("\n% ")[0].replace("–", "").isascii()
    assert "give one of them" in call("table", "--latex", "--markdown", code=2).stderr


def test_table_on_the_screen_says_the_same_and_says_it_plainly() -> None:
    shown, markdown = call("table").stdout, call("table", "--markdown").stdout
    for row in cells(markdown):
        lines = [line for line in shown.splitlines() if line.startswith(f"{row[0]} ")]
        assert any(all(cell in line for cell in row[:4]) for line in lines)
    for text in (shown, markdown):
        plain = " ".join(text.split())
        assert (
            "is better than every stochastic row of the paper, and under the same assumptions"
            in plain
        )
        assert "docs/theory.md" in plain
    assert (Path(__file__).parents[2] / "docs" / "theory.md").read_text(
        encoding="utf-8"
    ).count("## The penalty row") == 1


def test_a_plan_is_printed_and_can_be_rebuilt(planned: Path) -> None:
    shown = planned.with_name("shown.txt").read_text(encoding="utf-8")
    chosen = plan(PAPER.constants, budget=20_000, objective="practice")
    for name, value in chosen.rows():
        assert re.search(
            rf"^{re.escape(name)} +{re.escape(value)} *$", shown, re.MULTILINE
        ), name
    saved = json.loads((planned / "config.json").read_text(encoding="utf-8"))
    assert {key: saved[key] for key in plan_record(chosen)} == json.loads(
        json.dumps(plan_record(chosen))
    )
    assert (
        proved(chosen.method, PAPER.constants, saved["steps"]).direction_squared
        == saved["bounds"]["direction_squared"]
    )
    assert (planned / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert (planned / "plan.pdf").read_bytes().startswith(b"%PDF-")
    assert {path.name for path in planned.iterdir()} == {
        "batches.pdf", "batches.png", "config.json", "curves.csv", "curves.parquet", "findings.json", "manifest.json",
        "measured.csv", "measured.parquet", "plan.pdf", "plan.png", "summary.md",
    }  # fmt: skip


def test_what_was_measured_is_what_the_solver_gives(planned: Path) -> None:
    shown = planned.with_name("shown.txt").read_text(encoding="utf-8")
    chosen = plan(PAPER.constants, budget=20_000, objective="practice")
    options = {"budget": 20_000, "runs": 5, "seed": 3}
    result = minimize(PAPER.upper, PAPER.lower, PAPER.x0, method=chosen, **options)
    saved = json.loads((planned / "config.json").read_text(encoding="utf-8"))[
        "measured"
    ]
    for name in ("direction_squared", "lower_gradient_squared", "stationarity_squared"):
        assert saved[name] == getattr(result.last, name).mean()
        assert scientific(saved[name]) in shown


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--epsilon 0.05 --method penalty", {"epsilon": 0.05, "method": "penalty"}),
        ("--budget 1e5 --kind anytime", {"budget": 100_000, "kind": "anytime"}),
        (
            f"--budget 1e5 --constants {OTHER}",
            {"budget": 100_000, "constants": constants_from(OTHER)},
        ),
        ("--epsilon 1e-8", {"epsilon": 1e-8}),
    ],
)
@pytest.mark.usefixtures("no_figures")
def test_every_option_reaches_the_plan(
    words: str, options: dict[str, object], tmp_path: Path
) -> None:
    call("plan", *words.split(), "--output", tmp_path)
    chosen = plan(**{"constants": PAPER.constants} | options)  # type: ignore[arg-type]
    saved = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert saved == saved | json.loads(json.dumps(plan_record(chosen)))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("table --epsilon 0", ("--epsilon 0", "finite and > 0")),
        ("table --epsilon small", ("--epsilon small", "finite and > 0")),
        (
            "table --constants L_f=1",
            ("--constants L_f=1", "delta_g", "does not set L_g"),
        ),
        ("table --constants paper,sigma=1", ("'sigma=1' is none of them", "sigma_f")),
        ("table --constants paper,L_f=x", ("L_f='x' is no number",)),
        ("table --constants paper,L_f=0", ("L_f=0.0", "finite and > 0")),
        ("plan", ("--budget CALLS or for --epsilon E", "give one of them")),
        (
            "plan --problem sphere-10 --estimate",
            ("--budget CALLS or for --epsilon E", "neither is there"),
        ),
        (
            "plan --budget 100 --epsilon 1",
            ("give one of them", "--budget 100 and --epsilon 1 are both there"),
        ),
        ("plan --budget much", ("--budget much", "whole number ≥ 1")),
        ("plan --budget 1", ("--budget 1", "at least 2")),
        ("plan --budget 1e5 --method sdbpg", ("sdbpg", "(sdbgd, bound, horizon)")),
        ("plan --budget 1e5 --method nope", ("--method nope", "'penalty'")),
        (
            "plan --budget 1e5 --objective luck",
            ("--objective luck", "'bound', 'practice'"),
        ),
        ("plan --budget 1e5 --runs 0 --run", ("--runs 0", "whole number ≥ 1")),
        ("plan --epsilon 0.01 --run", ("steps=9,057,884", "at most 1,000,000")),
        (
            "plan --budget 1e5 --constants paper,L_f=2 --run",
            ("--constants ", "paper's problem"),
        ),
        ("verify --runs 3", ("--runs 3", "whole number ≥ 4")),
        ("verify --seed -1", ("--seed -1", "≥ 0")),
    ],
)
def test_bad_values_get_one_kind_line(
    words: str, expected: tuple[str, ...], tmp_path: Path
) -> None:
    folder = [] if words.startswith("table") else ["--output", str(tmp_path / "never")]
    done = CliRunner().invoke(app, [*words.split(), *folder])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert len(sentences(done.stderr)) == 1, done.stderr
    assert all(word in done.stderr for word in expected), done.stderr
    assert not (tmp_path / "never").exists()


def sentences(said: str) -> list[str]:
    """The lines, but for those that only tell that something takes long."""
    return [
        line for line in said.strip("\n").split("\n") if not re.match(r"in \d", line)
    ]


@pytest.mark.parametrize("command", ["plan --budget 100", "verify --quick"])
def test_a_folder_that_cannot_be_written(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = call(*command.split(), "--output", tmp_path / "file" / "results", code=2)
    assert "--output " in done.stderr
    assert "'file' is a file" in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_verify_passes_writes_and_shows(verified: Path) -> None:
    shown = verified.with_name("shown.txt").read_text(encoding="utf-8")
    assert (
        verified.with_name("said.txt")
        .read_text(encoding="utf-8")
        .splitlines()[-1]
        .endswith("PASS: no bound is violated.")
    )
    saved = json.loads((verified / "config.json").read_text(encoding="utf-8"))
    assert saved["passed"] is True
    assert saved["verification"]["runs"] == 4
    assert saved["verification"]["seed"] == 2
    assert f"{saved['verdicts']['PASS']} comparisons passed, 0 failed" in shown
    summary = (verified / "summary.md").read_text(encoding="utf-8")
    for line in summary.splitlines():
        if line.startswith(("| SDBGD", "| Penalty", "| random", "| paper", "| 0.")):
            words = [cell.strip() for cell in line.strip("|").split("|")]
            assert any(
                all(word in each for word in words) for each in shown.splitlines()
            ), line
    assert {path.suffix for path in verified.iterdir()} == {
        ".csv",
        ".parquet",
        ".png",
        ".pdf",
        ".md",
        ".json",
    }


@pytest.mark.usefixtures("no_figures")
def test_verify_finds_a_planted_violation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constants far below the truth: exit code 1, and every place says FAIL."""
    wrong = {
        "sigma_f": 1e-9,
        "sigma_g": 1e-9,
        "G_f": 1e-6,
        "delta_f": 1e-9,
        "delta_g": 1e-9,
    }
    case_of = verification.case_of

    def planted(spec: Any) -> Any:
        case = case_of(spec)
        return case._replace(
            problem=replace(case.problem, constants=case.constants.replace(**wrong))
        )

    monkeypatch.setattr(verification, "case_of", planted)
    monkeypatch.setattr(
        verification, "_QUICK", verification.Sizes(60, 60, 30, (2,), 1, 50)
    )
    monkeypatch.setattr("tiebreak.studies.sweeps._PATIENCE", math.inf)
    done = call("verify", "--quick", "--runs", "4", "--output", tmp_path, code=1)
    assert re.search(r"FAIL: a bound is violated", done.stderr, re.MULTILINE)
    assert re.search(r"^Penalty, planned .* FAIL$", done.stdout, re.MULTILINE)
    assert "**FAIL: a bound is violated**" in (tmp_path / "summary.md").read_text(
        encoding="utf-8"
    )
    assert (
        json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["passed"]
        is False
    )


@pytest.mark.skipif(os.name != "posix", reason="signals are sent otherwise elsewhere")
def test_ctrl_c_ends_a_verification(tmp_path: Path) -> None:
    """Before a block is finished nothing is left behind; the blocks that were finished are kept."""
    _, said = interrupt(
        "verify", "--output", tmp_path / "results", seconds=1, after="runs of each case"
    )
    assert "Interrupted; nothing was written." in said
    kept = list(tmp_path.glob("results/*/*"))
    assert ("kept" in said) == bool(kept) == (tmp_path / "results").exists()
    blocks = [path for path in kept if path.name != "command"]
    assert {path.suffix for path in blocks} <= {".block"}


def test_ctrl_c_ends_a_search_for_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of it, after some plans were shown."""
    real, told = theory.plan, []

    def interrupted(
        *args: object, progress: Callable[[object], object], **options: object
    ) -> object:
        def hear(found: object) -> None:
            told.append(progress(found))
            if len(told) == 3:
                raise KeyboardInterrupt

        return real(*args, progress=hear, **options)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(theory, "plan", interrupted)
    done = CliRunner().invoke(
        app, ["plan", "--epsilon", "0.5", "--output", str(tmp_path / "results")]
    )
    assert done.exit_code == 130
    assert "Interrupted; nothing was written." in done.output
    assert not (tmp_path / "results").exists()


def test_help_names_the_commands() -> None:
    shown = call("--help").stdout
    assert all(
        re.search(rf"\b{command}\b", shown) for command in ("table", "plan", "verify")
    )


@pytest.mark.usefixtures("no_figures")
def test_a_saved_command_is_one_that_can_be_typed(tmp_path: Path) -> None:
    """Of options with two words, too."""
    given = [
        "plan",
        "--budget",
        "1e4",
        "--method",
        "storm_sdbgd",
        "--noise-smoothness",
        "0.5,0.25",
    ]
    assert (
        CliRunner().invoke(app, [*given, "--output", str(tmp_path / "one")]).exit_code
        == 0
    )
    saved = json.loads((tmp_path / "one" / "config.json").read_text(encoding="utf-8"))
    again = [*saved["command"].split()[1:], "--output", str(tmp_path / "two")]
    assert CliRunner().invoke(app, again).exit_code == 0
    same = json.loads((tmp_path / "two" / "config.json").read_text(encoding="utf-8"))
    assert same["schedule"] == saved["schedule"]
