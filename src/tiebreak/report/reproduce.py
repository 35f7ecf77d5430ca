"""A folder of ``tiebreak reproduce`` as a page."""

from pathlib import Path
from typing import Any

import numpy as np

from tiebreak.experiments.charts import Axis, Chart, Series, spread, thinned
from tiebreak.experiments.configuration import label
from tiebreak.experiments.folder import load
from tiebreak.experiments.outcome import Outcome
from tiebreak.experiments.report import notes, sheets, summarize
from tiebreak.experiments.tables import counted, scientific
from tiebreak.methods import METHODS
from tiebreak.report.landscape import front, landscape
from tiebreak.report.section import Notes, Page, Section, Verdict, origin
from tiebreak.schedules import Schedule

_CURVES = (
    Axis("direction_squared", "‖d‖², own λ", "log"),
    Axis("stationarity_squared", "min over λ of ‖∇f+λ∇g‖²", "log"),
    Axis("lower_gradient_squared", "‖∇g‖²", "log"),
    Axis("upper_value", "f"),
    Axis("lower_value", "g", "log"),
)
_DURING = (
    Axis("multiplier", "λ as sampled"),
    Axis("exact_multiplier", "λ at exact gradients"),
    Axis("lower_batch", "lower batch size", "log"),
    Axis("upper_batch", "upper batch size", "log"),
    Axis("noise", "share of noise in ‖∇g‖² as sampled"),
)
_ALONG = (
    Axis("calls", "calls", "log"),
    Axis("step", "steps", "log"),
    Axis("seconds", "seconds (spread evenly)", "log"),
)


def page(folder: Path) -> Page:
    """The page of a folder."""
    outcome = load(folder)
    runs = outcome.experiment.runs
    over = (
        f"means over {runs} runs, bands hold the middle 80 % of them"
        if runs > 1
        else "one run"
    )
    series = [_series(outcome, method) for method in outcome.methods]
    about = f"Exact gradients, {over}. ‖d‖² uses each method's own λ; the least over λ ≥ 0 compares methods."
    curves = Chart("Residuals", about, _ALONG, _CURVES, series)
    about = "The share of noise is σ²/B over ‖∇g‖² + σ²/B, for methods whose estimate is the mean of one mini-batch."
    during = Chart("Multiplier, batches, noise", about, _ALONG, _DURING, series)
    sections = [
        Section("Curves", [curves]),
        Section("Where it goes", [landscape(outcome)]),
        Section("During the run", [during]),
        Section("Where it ends", [front(outcome)]),
        Section("Tables", [*sheets(outcome), Notes(notes(outcome))]),
        origin(outcome.configuration(), ("faults", "interrupted")),
    ]
    return Page("The paper's experiment", _verdict(outcome), sections)


def _verdict(outcome: Outcome) -> Verdict:
    rows = summarize(outcome)
    experiment = outcome.experiment
    question = (
        f"Which method has the smallest residuals after {experiment.budget:,} gradient calls, on the paper's problem, "
        f"{counted(experiment.runs, 'run')}, seed {experiment.seed}?"
    )
    findings = []
    for axis in _CURVES[1:3]:
        ends = {row.method: row.last[axis.key].mean for row in rows}
        best = min(
            ends, key=lambda name: ends[name] if np.isfinite(ends[name]) else np.inf
        )
        findings.append(
            f"By {axis.label}: {label(best)}, {scientific(ends[best])} at the last iterate."
        )
    most = max(row.calls[1] for row in rows)
    findings.append(
        f"Calls: at most {most:,} of {experiment.budget:,} a run, inside the budget."
    )
    if outcome.faults:
        findings.append(f"{len(outcome.faults)} runs could not go on.")
    if outcome.interrupted:
        findings.append("It was interrupted: methods may be missing or cut short.")
    good = most <= experiment.budget and not outcome.faults and not outcome.interrupted
    return Verdict(
        "Complete, inside the budget" if good else "Not complete",
        good,
        question,
        findings,
    )


def _series(outcome: Outcome, method: str) -> Series:
    calls, steps_of_runs = outcome.curve(method, "step")
    rows = thinned(len(calls))
    steps = np.nanmax(steps_of_runs, axis=1)
    columns: dict[str, Any] = {"calls": calls[rows], "step": steps[rows]}
    columns["seconds"] = outcome.seconds[method] * steps[rows] / max(steps[-1], 1)
    for axis in (*_CURVES, *_DURING[:2]):
        columns |= spread(axis.key, outcome.curve(method, axis.key)[1][rows])
    estimator = METHODS[method].estimator
    for level in ("upper", "lower"):
        charged = np.nanmax(outcome.curve(method, f"{level}_calls")[1], axis=1)
        calls_of_step = np.append(np.diff(charged) / np.diff(steps), np.nan)
        columns[f"{level}_batch"] = (calls_of_step / estimator.evaluations)[rows]
    if type(estimator).__name__ == "Minibatch" and isinstance(
        METHODS[method].schedule, Schedule
    ):
        variance = 2 * outcome.experiment.noises[1] ** 2 / columns["lower_batch"]
        with np.errstate(all="ignore"):
            columns["noise"] = variance / (columns["lower_gradient_squared"] + variance)
    return Series(label(method), columns, list(METHODS).index(method))
