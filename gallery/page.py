"""A study as one HTML page."""

import math
from typing import Any

import numpy as np

from gallery.record import configuration
from gallery.report import Row, notes, rows, sheets, swept, winner
from gallery.study import Findings, Run
from tiebreak.studies.charts import (
    NEUTRAL,
    Axis,
    Chart,
    Mark,
    Series,
    spread,
    thinned,
)
from tiebreak.studies.findings import Findings as Page
from tiebreak.studies.findings import Verdict

__all__ = ["page"]

_TITLES = {
    "evaluations": "after equal gradient evaluations",
    "seconds": "after equal time",
}
_ALONG = (
    Axis("evaluations", "gradient evaluations"),
    Axis("step", "steps"),
    Axis("seconds", "seconds"),
)
_CURVES = (
    Axis("excess", "excess of the lower loss, in tolerances", "symlog"),
    Axis("lower", "lower loss", "log"),
    Axis("upper", "upper loss"),
    Axis("weight", "weight of the lower loss: the multiplier λ", "log"),
)
_TOLERANCE = [Mark("excess", 1.0, "the tolerance")]


def page(findings: Findings) -> Page:
    """The findings for the page of a study: verdict, curves, where each method ends, tables, notes, record."""
    example = findings.study.example
    # An interrupted study may lack a budget.
    ends = {b: of for b in findings.study.budgets if (of := rows(findings, b))}
    looks: dict[str, int] = {}
    for row in next(iter(ends.values()), []):
        looks[row.method] = len(looks)
    charts = {}
    for budget, of in ends.items():
        charts[f"curves-{budget}"] = _curves(findings, budget, of, looks)
    for budget, of in ends.items():
        charts[f"front-{budget}"] = _front(findings, budget, of, looks)
    metrics = [f"{metric.name}: {metric.about}" for metric in example.metrics]
    return Page(
        "gallery",
        example.title,
        _verdict(findings, ends),
        sheets(findings),
        [*metrics, *notes(findings)],
        charts,
        configuration(findings),
    )


def _verdict(findings: Findings, ends: dict[str, list[Row]]) -> Verdict:
    example = findings.study.example
    sentences = []
    best = []
    for budget, of in ends.items():
        inside = [row.title for row in of if row.inside == 1]
        first = winner(of, example.metrics[0])
        best += [
            row.title for row in of if first is not None and row.method == first.method
        ]
        sentences.append(
            f"{_TITLES[budget].capitalize()}: inside the tolerance on every seed {len(inside)} of {len(of)}: "
            f"{', '.join(inside) or 'none'}."
        )
    sentences += [
        note
        for note in notes(findings)
        if " wins by " in note or "no method ended inside" in note
    ]
    word = (
        f"Best inside: {', then '.join(dict.fromkeys(best))}"
        if best
        else "No method inside the tolerance"
    )
    return Verdict(word, bool(best), example.question, sentences)


def _curves(
    findings: Findings, budget: str, ends: list[Row], looks: dict[str, int]
) -> Chart:
    series = []
    for row in ends:
        runs = [
            run
            for run in findings.runs
            if (run.budget, run.method) == (budget, row.method)
        ]
        series.append(Series(row.title, _columns(runs), looks[row.method]))
    y = [axis for axis in _CURVES if any(axis.key in each.columns for each in series)]
    return Chart(
        f"During training, {_TITLES[budget]}",
        "Means over the seeds; bands from the least to the largest. Inside is an excess of at most 1.",
        _ALONG,
        y,
        series,
        _TOLERANCE,
    )


def _columns(runs: list[Run]) -> dict[str, Any]:
    """Means and bands over the seeds of one method: a row for each step that any of them recorded."""
    steps = np.unique(np.concatenate([run.curve["step"] for run in runs]))
    shown = thinned(len(steps))
    columns: dict[str, Any] = {"step": steps[shown]}
    for name in ("evaluations", "seconds", *(axis.key for axis in _CURVES)):
        values = np.full((len(steps), len(runs)), np.nan)
        for k, run in enumerate(runs):
            values[np.searchsorted(steps, run.curve["step"]), k] = run.curve[name]
        if np.isfinite(values).any():
            columns |= spread(name, values[shown], (0, 1))
    return columns


def _front(
    findings: Findings, budget: str, ends: list[Row], looks: dict[str, int]
) -> Chart:
    names = [metric.name for metric in findings.study.example.metrics]
    trials = swept(findings)
    series = (
        [Series("weights swept", trials, NEUTRAL, "lines+markers", dash="solid")]
        if trials
        else []
    )
    for row in ends:
        columns: dict[str, Any] = {}
        for name, value in {
            "excess": row.excess,
            "upper": row.upper,
            **row.metrics,
        }.items():
            columns[name] = [value.mean]
            if not math.isnan(value.deviation):
                columns[f"{name}:error"] = [value.deviation]
        series.append(Series(row.title, columns, looks[row.method], "markers"))
    return Chart(
        f"Where each method ends, {_TITLES[budget]}",
        "Means over the seeds, error bars are standard deviations. The line is the weighted sum's front, its trials by "
        "weight. Left of the dashed line is inside the tolerance.",
        [_CURVES[0]],
        [Axis("upper", "upper loss"), *(Axis(name, name) for name in names)],
        series,
        _TOLERANCE,
    )
