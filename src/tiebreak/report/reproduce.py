"""A folder of ``tiebreak reproduce`` as a page."""

from pathlib import Path
from typing import Any

import numpy as np

from tiebreak.experiments.configuration import label
from tiebreak.experiments.folder import load
from tiebreak.experiments.outcome import Outcome
from tiebreak.experiments.report import notes, sheets, summarize
from tiebreak.experiments.tables import scientific
from tiebreak.methods import METHODS
from tiebreak.report.data import spread, thinned
from tiebreak.report.origin import origin
from tiebreak.report.paper import front, ground
from tiebreak.report.section import Axis, Chart, Notes, Page, Section, Series, Verdict
from tiebreak.schedules import Schedule

__all__ = ["page"]

#: The residuals, first the one that the paper shows; then what else is recorded at the same points.
RESIDUALS = (
    Axis("direction_squared", "‖d‖², own λ", "log"),
    Axis("stationarity_squared", "min over λ of ‖∇f+λ∇g‖²", "log"),
    Axis("lower_gradient_squared", "‖∇g‖²", "log"),
)
_VALUES = (Axis("upper_value", "f"), Axis("lower_value", "g", "log"))
_MULTIPLIERS = (Axis("multiplier", "λ as sampled"), Axis("exact_multiplier", "λ at exact gradients"))
_EFFORT = (
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
    series = [_series(outcome, method) for method in outcome.methods]
    runs = outcome.experiment.runs
    over = f"means over {runs} runs, bands hold the middle 80 % of them" if runs > 1 else "one run"
    curves = Chart(
        "Residuals", f"Exact gradients, {over}. ‖d‖² uses each method's own λ; the least over λ ≥ 0 compares methods.",
        _ALONG, (*RESIDUALS, *_VALUES), series,
    )  # fmt: skip
    during = Chart(
        "Multiplier, batches, noise",
        "The share of noise is σ²/B over ‖∇g‖² + σ²/B, for methods whose estimate is the mean of one mini-batch.",
        _ALONG, (*_MULTIPLIERS, *_EFFORT), series,
    )  # fmt: skip
    return Page(
        "The paper's experiment",
        _verdict(outcome),
        [
            Section("Curves", [curves]),
            Section("Where it goes", [ground(outcome)]),
            Section("During the run", [during]),
            Section("Where it ends", [front(outcome)]),
            Section("Tables", [*sheets(outcome), Notes(notes(outcome))]),
            origin(outcome.configuration(), ("faults", "interrupted")),
        ],
    )


def _verdict(outcome: Outcome) -> Verdict:
    rows, e = summarize(outcome), outcome.experiment
    asked = (
        f"Which method has the smallest residuals after {e.budget:,} gradient calls, on the paper's problem, {e.runs} "
        f"run{'s' * (e.runs > 1)}, seed {e.seed}?"
    )
    found = []
    for axis in (RESIDUALS[1], RESIDUALS[2]):
        ends = {row.method: row.last[axis.key].mean for row in rows}
        best = min(ends, key=lambda name: ends[name] if np.isfinite(ends[name]) else np.inf)
        found.append(f"By {axis.label}: {label(best)}, {scientific(ends[best])} at the last iterate.")
    most = max(row.calls[1] for row in rows)
    found.append(f"Calls: at most {most:,} of {e.budget:,} a run, inside the budget.")
    good = most <= e.budget and not outcome.faults and not outcome.interrupted
    if outcome.faults:
        found.append(f"{len(outcome.faults)} runs could not go on.")
    if outcome.interrupted:
        found.append("It was interrupted: methods may be missing or cut short.")
    return Verdict("Complete, inside the budget" if good else "Not complete", good, asked, found)


def _series(outcome: Outcome, method: str) -> Series:
    columns: dict[str, Any] = {}
    calls, _ = outcome.curve(method, "step")
    kept = thinned(len(calls))
    steps = np.nanmax(outcome.curve(method, "step")[1], axis=1)
    upper, lower = (np.nanmax(outcome.curve(method, f"{level}_calls")[1], axis=1) for level in ("upper", "lower"))
    for axis in (*RESIDUALS, *_VALUES, *_MULTIPLIERS):
        columns |= spread(axis.key, outcome.curve(method, axis.key)[1][kept])
    columns |= {"calls": calls[kept], "step": steps[kept]}
    columns["seconds"] = outcome.seconds[method] * steps[kept] / max(steps[-1], 1)
    columns |= _effort(outcome, method, steps, upper, lower, kept)
    return Series(label(method), columns, list(METHODS).index(method))


def _effort(outcome: Outcome, method: str, steps: Any, upper: Any, lower: Any, kept: Any) -> dict[str, Any]:
    """Batches by what was charged: calls of a step over the gradients that the estimator takes of a sample."""
    row = METHODS[method]
    batches = {}
    for level, charged in (("upper", upper), ("lower", lower)):
        of_step = np.append(np.diff(charged) / np.diff(steps), np.nan) if len(steps) > 1 else np.array([np.nan])
        batches[f"{level}_batch"] = (of_step / row.estimator.evaluations)[kept]
    found: dict[str, Any] = dict(batches)
    if type(row.estimator).__name__ == "Minibatch" and isinstance(row.schedule, Schedule):
        variance = 2 * outcome.experiment.noises[1] ** 2 / batches["lower_batch"]
        exact = spread("", outcome.curve(method, "lower_gradient_squared")[1][kept])[""]
        with np.errstate(all="ignore"):
            found["noise"] = variance / (exact + variance)
    return found
