"""A folder of ``tiebreak plan`` as a page."""

from pathlib import Path
from typing import Any

from tiebreak.experiments.tables import SYMBOLS, scientific
from tiebreak.report.data import thinned
from tiebreak.report.origin import origin
from tiebreak.report.reading import columns, record, summary
from tiebreak.report.section import Axis, Chart, Notes, Page, Section, Series, Verdict

__all__ = ["page"]

_RESIDUALS = (Axis("direction_squared", "‖d‖²", "log"), Axis("lower_gradient_squared", "‖∇g‖²", "log"))


def page(folder: Path) -> Page:
    """The page of a folder."""
    saved = record(folder / "plan.json")
    curves = columns(folder / "curves.csv", "K", "calls", "upper_batch", "lower_batch", *(a.key for a in _RESIDUALS))
    place = folder / "measured.csv"
    measured = columns(place, "step", "calls", *(a.key for a in _RESIDUALS)) if place.exists() else None
    tables, notes = summary(folder / "summary.md")
    spends = {name: curves[name] for name in ("calls", "upper_batch", "lower_batch")} | {"step": curves["K"]}
    batches = Chart(
        "What it spends", "Batches of every step, and calls so far.", [Axis("step", "step", "log")],
        [Axis("lower_batch", "lower batch size", "log"), Axis("upper_batch", "upper batch size", "log"),
         Axis("calls", "calls so far", "log")],
        [Series("the plan", spends, 0)],
    )  # fmt: skip
    return Page(
        "A plan",
        _verdict(saved),
        [
            Section("Curves", [_curves(curves, measured)]),
            Section("Batches", [batches]),
            Section("Tables", [*tables, *([Notes(notes)] if notes else [])]),
            origin(saved, ("comparison",)),
        ],
    )


def _verdict(saved: dict[str, Any]) -> Verdict:
    bounds, measured = saved.get("bounds", {}), saved.get("measured")
    found = [f"Proved at x_N: E{axis.label} ≤ {scientific(bounds[axis.key])}." for axis in _RESIDUALS]
    found += [
        f"Expected, by a model: {axis.label} about {scientific(saved['prediction'][axis.key])}."
        for axis in _RESIDUALS
        if saved.get("prediction")
    ]
    asked = f"Which constants for {saved['budget']:,} gradient calls, for the {_WORDS.get(saved['objective'], '?')}?"
    if not measured:
        return Verdict(f"{saved['steps']:,} steps planned; not run", None, asked, found)
    good = all(measured[axis.key] <= bounds[axis.key] for axis in _RESIDUALS)
    ends = ", ".join(f"{SYMBOLS[name]} {scientific(measured[name])}" for name in SYMBOLS)
    found.append(f"Measured at the last iterate, {measured['runs']} runs: {ends}.")
    found.append(
        "The bounds speak of x_N, drawn among all iterates; the last one is not promised anything, and often better."
    )
    word = "Inside what is proved" if good else "Outside what is proved"
    return Verdict(f"{word}, {saved['steps']:,} steps", good, asked, found)


_WORDS = {"bound": "best proved bound", "practice": "best expected residuals"}


def _curves(curves: Any, measured: Any) -> Chart:
    proved = {axis.key: curves[axis.key] for axis in _RESIDUALS} | {"step": curves["K"], "calls": curves["calls"]}
    series = [Series("proved at x_N", proved, 0, dash="dash")]
    if measured is not None:
        kept = thinned(len(measured["step"]))
        series.append(Series("measured", {name: column[kept] for name, column in measured.items()}, 1, dash="solid"))
    y = [*_RESIDUALS, Axis("stationarity_squared", "min over λ of ‖∇f+λ∇g‖², measured", "log")]
    return Chart(
        "What is proved, and what was measured" if measured is not None else "What is proved",
        "Measured: means over the runs at the last iterate, bands hold the middle 80 % of them.",
        [Axis("calls", "calls", "log"), Axis("step", "steps", "log")], y if measured is not None else y[:2], series,
    )  # fmt: skip
