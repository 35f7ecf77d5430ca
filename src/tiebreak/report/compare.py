"""A folder of ``tiebreak compare`` or ``tiebreak sweep`` as a page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiebreak.experiments.comparing_charts import (
    profiles_chart,
    recorded_chart,
    residuals_chart,
)
from tiebreak.experiments.comparing_report import calls
from tiebreak.experiments.folder import read_table
from tiebreak.experiments.tables import Table, chosen, counted, distinct
from tiebreak.report.reading import closing, columns, record, summary
from tiebreak.report.section import Page, Section, Verdict


def page(folder: Path) -> Page:
    """The page of a folder."""
    saved = record(folder / "configuration.json")
    results = columns(
        folder / "results.csv",
        "problem",
        "method",
        "budget",
        "residual",
        "ratio",
        "failed",
    )
    profiles = columns(folder / "profiles.csv", "method", "budget", "tau", "share")
    charts = []
    if saved["record"] is not None:
        needed = ("problem", "method", "budget", "run", "step", "calls")
        charts.append(recorded_chart(read_table(folder / "curves.csv", needed)))
    if not charts or len(saved["budgets"]) > 1:  # residuals at one budget make no curve
        charts.append(residuals_chart(results, saved["problems"]))
    sections = [
        Section("Profiles", [profiles_chart(profiles)]),
        Section("Curves", charts),
        *closing(folder, saved, "faults", "problems"),
    ]
    _, notes = summary(folder / "summary.md")
    return Page("Methods compared", _verdict(saved, results, notes), sections)


def _verdict(saved: dict[str, Any], results: Table, notes: Sequence[str]) -> Verdict:
    problems = counted(len(distinct(results, "problem")), "problem")
    methods = distinct(results, "method")
    findings = []
    for budget in distinct(results, "budget"):
        rows = chosen(results, budget=budget)
        ratios = {method: chosen(rows, method=method)["ratio"] for method in methods}
        best = max(methods, key=lambda name: np.sum(ratios[name] == 1))
        findings.append(
            f"{calls(int(budget))}: {best} is best on {np.sum(ratios[best] == 1)} of {problems}, and within a "
            f"factor of 2 of the best on {np.sum(ratios[best] <= 2)}."
        )
    failed = int(results["failed"].sum())
    findings.append(
        f"{failed} runs could not go on."
        if failed
        else "Every run went as far as its budget."
    )
    # A small residual at a saddle of g wins a comparison and is worth nothing: the verdict must say so.
    findings += [
        note for note in notes if note.startswith("g ended above where it began")
    ]
    question = (
        f"Which of {counted(len(methods), 'method')} has the smallest residual on {problems} at "
        f"{counted(len(saved['budgets']), 'budget')}, {saved['runs']} runs each?"
    )
    word = "Complete, with runs that failed" if failed else "Complete"
    return Verdict(word, None if failed else True, question, findings)
