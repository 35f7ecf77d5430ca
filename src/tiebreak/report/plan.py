"""A folder of ``tiebreak plan`` as a page."""

from pathlib import Path
from typing import Any

from tiebreak.experiments.evidence import RESIDUALS
from tiebreak.experiments.plan_charts import batches_chart, residuals_chart
from tiebreak.experiments.tables import SYMBOLS, scientific
from tiebreak.report.reading import closing, columns, record
from tiebreak.report.section import Page, Section, Verdict

_OBJECTIVES = {"bound": "best proved bound", "practice": "best expected residuals"}


def page(folder: Path) -> Page:
    """The page of a folder."""
    saved = record(folder / "plan.json")
    curves = columns(
        folder / "curves.csv", "K", "calls", "upper_batch", "lower_batch", *RESIDUALS
    )
    measured = (
        columns(folder / "measured.csv", "step", "calls", *RESIDUALS)
        if "measured" in saved
        else None
    )
    sections = [
        Section("Curves", [residuals_chart(curves, measured)]),
        Section("Batches", [batches_chart(curves)]),
        *closing(folder, saved),
    ]
    return Page("A plan", _verdict(saved), sections)


def _verdict(saved: dict[str, Any]) -> Verdict:
    bounds = saved["bounds"]
    prediction = saved["prediction"]
    measured = saved.get("measured")
    question = f"Which constants for {saved['budget']:,} gradient calls, for the {_OBJECTIVES[saved['objective']]}?"
    findings = [
        f"Proved at x_N: E{SYMBOLS[name]} ≤ {scientific(bounds[name])}."
        for name in RESIDUALS
    ]
    if prediction:
        for name in RESIDUALS:
            findings.append(
                f"Expected, by a model: {SYMBOLS[name]} about {scientific(prediction[name])}."
            )
    if not measured:
        return Verdict(
            f"{saved['steps']:,} steps planned; not run", None, question, findings
        )
    good = all(measured[name] <= bounds[name] for name in RESIDUALS)
    ends = ", ".join(
        f"{SYMBOLS[name]} {scientific(measured[name])}" for name in SYMBOLS
    )
    findings.append(f"Measured at the last iterate, {measured['runs']} runs: {ends}.")
    findings.append(
        "The bounds speak of x_N, drawn among all iterates; the last one is not promised anything, and often better."
    )
    word = "Inside what is proved" if good else "Outside what is proved"
    return Verdict(f"{word}, {saved['steps']:,} steps", good, question, findings)
