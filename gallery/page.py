"""The results of a study in a folder as one HTML page. Needs no torch: all is read."""

from pathlib import Path
from typing import Any

import numpy as np

from tiebreak.experiments.charts import NEUTRAL, Axis, Chart, Mark, Series, spread, thinned
from tiebreak.experiments.tables import Table, chosen
from tiebreak.files import atomic
from tiebreak.report.page import render
from tiebreak.report.reading import columns, record, summary
from tiebreak.report.section import Notes, Page, Section, Verdict, origin

__all__ = ["page", "write_page"]

_TITLES = {"evaluations": "after equal gradient evaluations", "seconds": "after equal time"}
_ALONG = (Axis("evaluations", "gradient evaluations"), Axis("step", "steps"), Axis("seconds", "seconds"))
_CURVES = {
    "excess": Axis("excess", "excess of the lower loss, in tolerances", "symlog"),
    "lower": Axis("lower", "lower loss", "log"),
    "upper": Axis("upper", "upper loss"),
    "weight": Axis("weight", "weight of the lower loss: the multiplier λ", "log"),
}


def write_page(folder: Path) -> Path:
    """Write the page of a folder into it; its path."""
    target = folder / "report.html"
    text = render(page(folder))
    with atomic(target, "w") as file:
        file.write(text)
    return target


def page(folder: Path) -> Page:
    """The page of a folder."""
    saved, told = record(folder / "config.json"), record(folder / "summary.json")
    curves = columns(folder / "curves.csv", "budget", "method", "seed", "step", "evaluations", "seconds")
    results = columns(folder / "results.csv", "budget", "method", "seed", "knobs", "excess", "upper")
    titles = {row["method"]: row["title"] for part in told["budgets"].values() for row in part["rows"]}
    looks = {method: i for i, method in enumerate(titles)}
    tables, notes = summary(folder / "summary.md")
    metrics = [Notes([f"{metric['name']}: {metric['about']}" for metric in told["metrics"]])]
    return Page(
        told["title"],
        _verdict(told),
        [
            Section("Curves", [_curves(curves, budget, titles, looks) for budget in told["budgets"]]),
            Section("The front", [_front(results, told, budget, titles, looks) for budget in told["budgets"]]),
            Section("Tables", [*tables, *metrics, Notes(notes)]),
            origin(saved, ("missing",)),
        ],
    )


def _verdict(told: dict[str, Any]) -> Verdict:
    found, best = [], []
    for budget, part in told["budgets"].items():
        rows = part["rows"]
        inside = [row["title"] for row in rows if row["inside"] == 1]
        winner = next((row for row in rows if part["winner"] and row["method"] == part["winner"]["method"]), None)
        best.append(winner["title"] if winner else "none")
        found.append(
            f"{_TITLES.get(budget, budget).capitalize()}: inside the tolerance on every seed {len(inside)} of "
            f"{len(rows)}: {', '.join(inside) or 'none'}."
        )
    found += [note for note in told["notes"] if " wins by " in note or "no method ended inside" in note]
    word = (
        "No method inside the tolerance"
        if set(best) == {"none"}
        else f"Best inside: {', then '.join(dict.fromkeys(best))}"
    )
    return Verdict(word, set(best) != {"none"}, told["question"], found)


def _curves(table: Table, budget: str, titles: dict[str, str], looks: dict[str, int]) -> Chart:
    here, series = chosen(table, budget=budget), []
    for method in dict.fromkeys(here["method"].tolist()):
        rows = chosen(here, method=method)
        steps, place = np.unique(rows["step"], return_inverse=True)
        kept = thinned(len(steps))
        found: dict[str, Any] = {"step": steps[kept]}
        for name in ("evaluations", "seconds", *(n for n in _CURVES if n in rows)):
            # A row for each recorded step, a column for each seed, so that the band is over seeds.
            seeds, which = np.unique(rows["seed"], return_inverse=True)
            values = np.full((len(steps), len(seeds)), np.nan)
            values[place, which] = rows[name]
            if np.isfinite(values).any():
                found |= spread(name, values[kept], (0, 1))
        series.append(Series(titles.get(method, method), found, looks.get(method, 0)))
    y = [axis for name, axis in _CURVES.items() if any(name in each.columns for each in series)]
    return Chart(
        f"During training, {_TITLES.get(budget, budget)}",
        "Means over the seeds; bands from the least to the largest. Inside is an excess of at most 1.",
        _ALONG, y, series, [Mark("excess", 1.0, "the tolerance")],
    )  # fmt: skip


def _front(results: Table, told: dict[str, Any], budget: str, titles: dict[str, str], looks: dict[str, int]) -> Chart:
    metrics = [metric["name"] for metric in told["metrics"] if metric["name"] in results]
    names = ["upper", *metrics]
    series = [_swept(results, names)] if np.any(results["budget"] == "tuning") else []
    for row in told["budgets"][budget]["rows"]:
        spreads = {"excess": row["excess"], "upper": row["upper"], **row["metrics"]}
        found: dict[str, Any] = {}
        for name, end in spreads.items():
            found[name] = [np.nan if end["mean"] is None else end["mean"]]
            if end["deviation"] is not None:
                found[f"{name}:error"] = [end["deviation"]]
        series.append(Series(titles[row["method"]], found, looks[row["method"]], "markers"))
    y = [Axis("upper", "upper loss"), *(Axis(name, name) for name in metrics)]
    return Chart(
        f"Where each method ends, {_TITLES.get(budget, budget)}",
        "Means over the seeds, error bars are standard deviations. The line is the weighted sum's front, its trials by "
        "weight. Left of the dashed line is inside the tolerance.",
        [_CURVES["excess"]], y, series, [Mark("excess", 1.0, "the tolerance")],
    )  # fmt: skip


def _swept(results: Table, names: list[str]) -> Series:
    """The weighted sum's trials, means over the tuning seeds, in the order of their weights."""
    rows = chosen(results, budget="tuning", method="weighted-sum")
    knobs = sorted(set(rows["knobs"].tolist()), key=lambda text: float(text.rpartition(" ")[2] or 0))
    found: dict[str, Any] = {}
    for name in ("excess", *names):
        found[name] = [float(np.mean(rows[name][rows["knobs"] == knob])) for knob in knobs]
    return Series("weights swept", found, NEUTRAL, "lines+markers", dash="solid")
