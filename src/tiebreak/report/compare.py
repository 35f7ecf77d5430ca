"""A folder of ``tiebreak compare`` as a page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiebreak.experiments.comparing_report import calls
from tiebreak.experiments.tables import Table, chosen
from tiebreak.report.origin import origin
from tiebreak.report.reading import columns, record, summary
from tiebreak.report.recorded import recorded
from tiebreak.report.section import Axis, Chart, Notes, Page, Section, Series, Verdict

__all__ = ["page"]

_LARGEST = 1e3  # the τ at which the profiles end
_MEASURES = {
    "residual": "larger of both residuals",
    "stationarity_squared": "min over λ of ‖∇f+λ∇g‖²",
    "lower_gradient_squared": "‖∇g‖²",
    "direction_squared": "‖d‖², own λ",
}


def page(folder: Path) -> Page:
    """The page of a folder."""
    saved = record(folder / "configuration.json")
    results = columns(folder / "results.csv", "problem", "method", "budget", "residual", "ratio", "failed")
    profiles = columns(folder / "profiles.csv", "method", "budget", "tau", "share")
    tables, notes = summary(folder / "summary.md")
    along = recorded(folder)
    ends = [] if along and len(_names(results, "budget")) == 1 else [_curves(results, saved)]  # a budget is no curve
    return Page(
        "Methods compared",
        _verdict(saved, results, notes),
        [
            Section("Profiles", [_profiles(profiles)]),
            Section("Curves", [*along, *ends]),
            Section("Tables", [*tables, Notes(notes)]),
            origin(saved, ("faults", "problems")),
        ],
    )


def _names(table: Table, column: str) -> list[Any]:
    return list(dict.fromkeys(table[column].tolist()))


def _verdict(saved: dict[str, Any], results: Table, notes: Sequence[str]) -> Verdict:
    problems, methods, budgets = (_names(results, name) for name in ("problem", "method", "budget"))
    found = []
    for budget in budgets:
        here = chosen(results, budget=budget)
        counts = {m: int(np.sum((here["method"] == m) & (here["ratio"] == 1))) for m in methods}
        best = max(counts, key=lambda name: counts[name])
        found.append(
            f"{calls(int(budget))}: {best} is best on {counts[best]} of {_counted(problems, 'problem')}, and within a "
            f"factor of 2 of the best on {_near(here, best)}."
        )
    failed = int(results["failed"].sum())
    found.append("Every run went as far as its budget." if not failed else f"{failed} runs could not go on.")
    # A small residual at a saddle of g wins a comparison, and is worth nothing: said where the winner is.
    found += [note for note in notes if note.startswith("g ended above where it began")]
    asked = (
        f"Which of {_counted(methods, 'method')} has the smallest residual on {_counted(problems, 'problem')} at "
        f"{_counted(budgets, 'budget')}, {saved.get('runs', '?')} runs each?"
    )
    return Verdict(
        "Complete" if not failed else "Complete, with runs that failed", None if failed else True, asked, found
    )


def _counted(things: Sequence[Any], noun: str) -> str:
    return f"{len(things)} {noun}{'s' * (len(things) != 1)}"


def _near(here: Table, method: str) -> int:
    return int(np.sum((here["method"] == method) & (here["ratio"] <= 2)))


def _profiles(table: Table) -> Chart:
    taus = np.unique(np.append(table["tau"][np.isfinite(table["tau"]) & (table["tau"] <= _LARGEST)], (1.0, _LARGEST)))
    series, budgets = [], _names(table, "budget")
    for look, method in enumerate(_names(table, "method")):
        found: dict[str, Any] = {"tau": taus}
        for budget in budgets:
            rows = chosen(table, method=method, budget=budget)
            order = np.argsort(rows["tau"])
            at = np.searchsorted(rows["tau"][order], taus, side="right") - 1
            found[f"share {budget}"] = np.where(at >= 0, rows["share"][order][np.maximum(at, 0)], 0.0)
        series.append(Series(method, found, look, shape="hv"))
    return Chart(
        "Performance profiles",
        "The share of problems on which a method's residual is within the factor τ of the best one's. Left end: best; "
        "right end: does not fail. Higher is better.",
        [Axis("tau", "factor τ", "log")],
        [Axis(f"share {budget}", f"share of problems at {calls(int(budget))}") for budget in reversed(budgets)],
        series,
    )


def _curves(table: Table, saved: dict[str, Any]) -> Chart:
    problems, series = _names(table, "problem"), []
    measures = [name for name in _MEASURES if name in table]
    for look, method in enumerate(_names(table, "method")):
        found: dict[str, Any] = {"budget": np.unique(table["budget"])}
        for problem in problems:
            rows = chosen(table, method=method, problem=problem)
            order = np.argsort(rows["budget"])
            found |= {f"{problem} {name}": rows[name][order] for name in measures}
            if "error" in rows:
                found[f"{problem} residual:error"] = rows["error"][order]
        series.append(Series(method, found, look, "lines+markers"))
    y = [Axis(f"{p} {name}", f"{p}: {_MEASURES[name]}", "log", p) for p in problems for name in measures]
    problems_of = saved.get("problems")
    known = [c is not None for c in problems_of.values()] if isinstance(problems_of, dict) else [True]
    units = ", in the problem's units" if any(known) else ", as they are"
    units += " where its constants are known" if any(known) and not all(known) else ""
    return Chart("Residuals against the budget", f"Means over runs at the last iterate{units}.",
                 [Axis("budget", "calls", "log")], y, series)  # fmt: skip
