"""A folder of ``tiebreak verify`` as a page."""

from pathlib import Path
from typing import Any

from tiebreak.experiments.charts import Chart
from tiebreak.experiments.verification_charts import verification_charts
from tiebreak.report.reading import closing, columns, record
from tiebreak.report.section import Page, Section, Verdict

_COLUMNS = {
    "bounds": (
        "group",
        "problem",
        "schedule",
        "K",
        "residual",
        "estimate",
        "mean",
        "bound",
        "ratio",
    ),
    "deviations": ("group", "problem", "schedule", "step", "ratio"),
    "rates": ("a", "residual", "K", "weighted", "last", "bound"),
}


def page(folder: Path) -> Page:
    """The page of a folder."""
    saved = record(folder / "configuration.json")
    tables = {"bounds": columns(folder / "bounds.csv", *_COLUMNS["bounds"])}
    if set(tables["bounds"]["group"].tolist()) != {
        "own"
    }:  # a case of the user's has no other tables
        for name in ("deviations", "rates"):
            tables[name] = columns(folder / f"{name}.csv", *_COLUMNS[name])
    charts = verification_charts(tables)
    rates: list[Chart] = [charts.pop("rates")] if "rates" in charts else []
    sections = [Section("Bounds", list(charts.values()))]
    if rates:
        sections.append(Section("Rates", rates))
    sections += closing(folder, saved, "passed", "verdicts", "cases")
    return Page("The theorems against simulation", _verdict(saved), sections)


def _verdict(saved: dict[str, Any]) -> Verdict:
    counts = saved["verdicts"]
    passed = saved["passed"] is True
    return Verdict(
        "PASS: no bound is violated" if passed else "FAIL: a bound is violated",
        passed,
        f"Do the residuals of {saved['verification']['runs']} runs of each case stay inside the bounds that the "
        "theorems prove?",
        [
            f"{counts['PASS']:,} comparisons inside their bound, {counts['FAIL']:,} outside, {counts['open']:,} open."
        ],
    )
