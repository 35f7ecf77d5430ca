"""A folder of ``tiebreak verify`` as a page."""

from itertools import product
from pathlib import Path
from typing import Any

from tiebreak.experiments.tables import Table, chosen
from tiebreak.report.data import thinned
from tiebreak.report.origin import origin
from tiebreak.report.reading import columns, record, summary
from tiebreak.report.section import Axis, Chart, Mark, Notes, Page, Section, Series, Verdict

__all__ = ["page"]

_RESIDUALS = (
    Axis("direction_squared", "E‖d‖² at x_N", "log"),
    Axis("lower_gradient_squared", "E‖∇g‖² at x_N", "log"),
)
_STEPS = (Axis("K", "steps K", "log"),)


def page(folder: Path) -> Page:
    """The page of a folder."""
    saved = record(folder / "configuration.json")
    bounds = columns(
        folder / "bounds.csv", "group", "problem", "schedule", "K", "residual", "estimate", "mean", "bound", "ratio"
    )
    rates = []
    if set(bounds["group"].tolist()) != {"own"}:  # a case of one's own has no rates
        rates.append(_rates(columns(folder / "rates.csv", "a", "residual", "K", "weighted", "last", "bound")))
    tables, notes = summary(folder / "summary.md")
    return Page(
        "The theorems against simulation",
        _verdict(saved),
        [
            Section("Bounds", [_bounds(bounds), _shares(bounds)]),
            *([Section("Rates", rates)] if rates else []),
            Section("Tables", [*tables, Notes(notes)]),
            origin(saved, ("passed", "verdicts", "cases")),
        ],
    )


def _verdict(saved: dict[str, Any]) -> Verdict:
    counts, passed = saved.get("verdicts", {}), saved.get("passed") is True
    runs = saved.get("verification", {}).get("runs", "?")
    return Verdict(
        "PASS: no bound is violated" if passed else "FAIL: a bound is violated",
        passed,
        f"Do the residuals of {runs} runs of each case stay inside the bounds that the theorems prove?",
        [f"{counts.get('PASS', 0):,} comparisons inside their bound, {counts.get('FAIL', 0):,} outside, "
         f"{counts.get('open', 0):,} open."],
    )  # fmt: skip


def _bounds(table: Table) -> Chart:
    own = [] if "paper" in table["group"] else [str(name) for name in dict.fromkeys(table["problem"].tolist())]
    here, series = (table if own else chosen(table, group="paper")), []
    for look, schedule in enumerate(dict.fromkeys(here["schedule"].tolist())):
        for kind, column, dash in (("measured", "mean", "solid"), ("proved", "bound", "dash")):
            found: dict[str, Any] = {}
            for axis in _RESIDUALS:
                rows = chosen(here, schedule=schedule, residual=axis.key, estimate="weighted")
                found |= {"K": rows["K"], axis.key: rows[column]}
            series.append(Series(f"{schedule}, {kind}", found, look, dash=dash))
    title = f"The bounds on {', '.join(own)}" if own else "Theorem 1 on the paper's problem"
    return Chart(title, "What is proved of x_N, and the mean that was measured.",
                 _STEPS, _RESIDUALS, series)  # fmt: skip


def _shares(table: Table) -> Chart:
    exact, series = chosen(table, estimate="weighted"), []
    groups = list(dict.fromkeys(exact["group"].tolist()))
    for group in groups:
        here = chosen(exact, group=group)
        cases = dict.fromkeys(zip(here["problem"].tolist(), here["schedule"].tolist(), strict=True))
        for problem, schedule in cases:
            found: dict[str, Any] = {}
            for axis in _RESIDUALS:
                rows = chosen(here, problem=problem, schedule=schedule, residual=axis.key)
                found |= {"K": rows["K"], axis.key: rows["ratio"]}
            name = {"paper": "the paper's problem", "own": problem}.get(group, f"random problems, {group} noise")
            series.append(Series(name, found, groups.index(group), dash="solid"))
    y = [Axis(axis.key, f"{axis.label}, share of its bound", "log") for axis in _RESIDUALS]
    return Chart("Measured as a share of what is proved", "A line for each case. Nothing may be above 1.", _STEPS, y,
                 series, [Mark(axis.key, 1.0, "the bound") for axis in y])  # fmt: skip


def _rates(table: Table) -> Chart:
    series = []
    for (look, a), (column, name, dash) in product(
        enumerate(sorted(set(table["a"].tolist()))),
        (("weighted", "at x_N", "solid"), ("last", "at the last iterate", "dot")),
    ):
        found: dict[str, Any] = {}
        for axis in _RESIDUALS:
            rows = chosen(table, a=a, residual=axis.key)
            kept = thinned(len(rows["K"]))
            found |= {"K": rows["K"][kept], axis.key: rows[column][kept]}
        series.append(Series(f"a = {a:g}, {name}", found, look, dash=dash))
    y = [Axis("direction_squared", "E‖d‖²", "log"), Axis("lower_gradient_squared", "E‖∇g‖²", "log")]
    return Chart("Corollary 1: how fast the residuals fall", "Anytime schedules on the paper's problem.", _STEPS, y,
                 series)  # fmt: skip
