"""Charts of a verification: what is proved, what was measured, and how fast the residuals fall."""

from collections.abc import Mapping
from itertools import product
from typing import Literal

from tiebreak.experiments.charts import Axis, Chart, Mark, Series
from tiebreak.experiments.tables import Table, chosen, distinct

_RESIDUALS = {"direction_squared": "E‖d‖²", "lower_gradient_squared": "E‖∇g‖²"}
_STEPS = (Axis("K", "steps K", "log"),)


def verification_charts(tables: Mapping[str, Table]) -> dict[str, Chart]:
    """The charts by the names of their files; a single case has no rates and no table of deviations."""
    charts = {
        "bounds": _bounds_chart(tables["bounds"]),
        "family": _family_chart(tables["bounds"]),
    }
    if tables.get("deviations"):
        charts["stability"] = _stability_chart(tables["deviations"])
    if tables.get("rates"):
        charts["rates"] = _rates_chart(tables["rates"])
    return charts


def _bounds_chart(table: Table) -> Chart:
    title = "Theorem 1 on the paper's problem"
    if "paper" in table["group"]:
        table = chosen(table, group="paper")
    else:
        title = f"The bounds on {', '.join(distinct(table, 'problem'))}"
    series = []
    for look, schedule in enumerate(distinct(table, "schedule")):
        exact = chosen(table, schedule=schedule, estimate="weighted")
        drawn = chosen(table, schedule=schedule, estimate="sampled")
        series.append(_residual_series(f"{schedule}, measured", exact, "mean", look))
        series.append(
            _residual_series(
                f"{schedule}, measured", drawn, "mean", look, mode="markers"
            )
        )
        series.append(
            _residual_series(f"{schedule}, proved", exact, "bound", look, "dash")
        )
    about = (
        "What is proved of x_N, and the mean that was measured. Points: the iterate that the solver drew, one a run, "
        "which mostly misses the rare early ones."
    )
    return Chart(title, about, _STEPS, _axes("{} at x_N"), series)


def _residual_series(
    name: str,
    rows: Table,
    column: str,
    look: int,
    dash: str = "solid",
    mode: Literal["lines", "markers"] = "lines",
) -> Series:
    """A column of the rows, for both residuals against K."""
    columns: Table = {}
    for residual in _RESIDUALS:
        part = chosen(rows, residual=residual)
        columns |= {"K": part["K"], residual: part[column]}
    return Series(name, columns, look, mode, dash)


def _axes(label: str) -> list[Axis]:
    return [
        Axis(name, label.format(symbol), "log") for name, symbol in _RESIDUALS.items()
    ]


def _cases(table: Table) -> list[tuple[str, int, Table]]:
    """Every problem and schedule: its name in a legend, the number of its group, and its rows."""
    groups = distinct(table, "group")
    keys = dict.fromkeys(
        zip(
            *(table[name].tolist() for name in ("group", "problem", "schedule")),
            strict=True,
        )
    )
    cases = []
    for group, problem, schedule in keys:
        names = {
            "paper": "the paper's problem",
            "own": problem,
            "worst case": "near the worst case",
        }
        name = names.get(group, f"random problems, {group} noise")
        cases.append(
            (
                name,
                groups.index(group),
                chosen(table, problem=problem, schedule=schedule),
            )
        )
    return cases


def _family_chart(table: Table) -> Chart:
    exact = chosen(table, estimate="weighted")
    series = [
        _residual_series(name, rows, "ratio", look)
        for name, look, rows in _cases(exact)
    ]
    axes = _axes("{} at x_N, share of its bound")
    marks = [Mark(axis.key, 1.0, "the bound") for axis in axes]
    about = "A line for each case. Nothing may be above 1."
    return Chart(
        "Measured as a share of what is proved", about, _STEPS, axes, series, marks
    )


def _stability_chart(table: Table) -> Chart:
    series = []
    for name, look, rows in _cases(table):
        series.append(
            Series(
                name,
                {"step": rows["step"] + 1, "ratio": rows["ratio"]},
                look,
                dash="solid",
            )
        )
    axis = Axis("ratio", "E‖d−d̂‖², share of τ²", "log")
    about = "The stability lemma at the worst of some iterates of a step. Nothing may be above 1."
    mark = Mark("ratio", 1.0, "the bound")
    return Chart(
        "Stability of the direction",
        about,
        [Axis("step", "step k + 1", "log")],
        [axis],
        series,
        [mark],
    )


def _rates_chart(table: Table) -> Chart:
    estimates = (
        ("weighted", "at x_N", "solid"),
        ("last", "at the last iterate", "dot"),
    )
    every = sorted(set(table["a"].tolist()))
    series = []
    for (look, a), (column, name, dash) in product(enumerate(every), estimates):
        series.append(
            _residual_series(
                f"a = {a:g}, {name}", chosen(table, a=a), column, look, dash
            )
        )
    about = "Anytime schedules on the paper's problem."
    return Chart(
        "Corollary 1: how fast the residuals fall", about, _STEPS, _axes("{}"), series
    )
