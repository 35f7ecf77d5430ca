"""Charts of a comparison: performance profiles, residuals against the budget, and the recorded curves."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiebreak.experiments.charts import Axis, Chart, Scale, Series, spread, thinned
from tiebreak.experiments.comparing_report import calls
from tiebreak.experiments.tables import Table, chosen, distinct

_LARGEST = 1e3  # the τ at which the profiles end
_RESIDUALS = {
    "residual": "larger of both residuals",
    "stationarity_squared": "min over λ of ‖∇f+λ∇g‖²",
    "lower_gradient_squared": "‖∇g‖²",
    "direction_squared": "‖d‖², own λ",
}
_RECORDED: dict[str, tuple[str, Scale]] = {
    "stationarity_squared": ("min over λ of ‖∇f+λ∇g‖²", "log"),
    "lower_gradient_squared": ("‖∇g‖²", "log"),
    "direction_squared": ("‖d‖², own λ", "log"),
    "upper_value": ("f", "linear"),
    "lower_value": ("g", "linear"),
    "multiplier": ("λ as sampled", "linear"),
}
_NUMBERS = 60_000  # of all recorded curves together: about half a megabyte
_BANDED = 40  # curves, up to which a reader can tell their bands apart


def profiles_chart(table: Table) -> Chart:
    """The profiles, from a table of the corners of each; a quantity for every budget."""
    taus = np.unique([1.0, *table["tau"][table["tau"] <= _LARGEST], _LARGEST])
    budgets = [int(budget) for budget in distinct(table, "budget")]
    series = []
    for look, method in enumerate(distinct(table, "method")):
        columns = {"tau": taus}
        for budget in budgets:
            rows = chosen(table, method=method, budget=budget)
            corner = np.searchsorted(rows["tau"], taus, side="right") - 1
            columns[f"share {budget}"] = rows["share"][corner]
        series.append(Series(method, columns, look, shape="hv"))
    about = (
        "The share of problems on which a method's residual is within the factor τ of the best one's. Left end: best; "
        "right end: does not fail. Higher is better."
    )
    axes = [
        Axis(f"share {budget}", f"share of problems at {calls(budget)}")
        for budget in reversed(budgets)
    ]
    return Chart(
        "Performance profiles", about, [Axis("tau", "factor τ", "log")], axes, series
    )


def residuals_chart(table: Table, constants: Mapping[str, Any]) -> Chart:
    """Residuals at the last iterate against the budget; `constants` of each problem are None if they are unknown."""
    problems = distinct(table, "problem")
    series = []
    for look, method in enumerate(distinct(table, "method")):
        columns: Table = {"budget": np.unique(table["budget"])}
        for problem in problems:
            rows = chosen(table, method=method, problem=problem)
            columns |= {f"{problem} {name}": rows[name] for name in _RESIDUALS}
            columns[f"{problem} residual:error"] = rows["error"]
        series.append(Series(method, columns, look, "lines+markers"))
    axes = []
    for problem in problems:
        for name, label in _RESIDUALS.items():
            axes.append(
                Axis(f"{problem} {name}", f"{problem}: {label}", "log", problem)
            )
    scaled = [each is not None for each in constants.values()]
    units = ", in the problem's units" if any(scaled) else ", as they are"
    units += " where its constants are known" if any(scaled) and not all(scaled) else ""
    about = f"Means over runs at the last iterate{units}."
    return Chart(
        "Residuals against the budget",
        about,
        [Axis("budget", "calls", "log")],
        axes,
        series,
    )


def recorded_chart(table: Table) -> Chart:
    """The recorded curves of the runs with the largest budget, means over the runs."""
    names = [
        name for name in _RECORDED if name in table and np.isfinite(table[name]).any()
    ]
    problems = distinct(table, "problem")
    methods = distinct(table, "method")
    several = len(np.unique(table["run"])) > 1
    banded = several and len(problems) * len(methods) <= _BANDED
    room = _NUMBERS // (
        len(problems) * len(methods) * len(names) * (3 if banded else 1)
    )
    series = []
    axes = []
    for problem in problems:
        of_problem = chosen(table, problem=problem)
        for look, method in enumerate(methods):
            rows = chosen(of_problem, method=method)
            rows = chosen(
                rows, budget=rows["budget"].max()
            )  # a method that depends on the budget has more curves
            columns = _recorded_columns(
                rows, problem, names, min(max(room, 25), 400), banded
            )
            series.append(Series(method, columns, look))
        for name in names:
            if np.isfinite(of_problem[name]).any():
                label, scale = _RECORDED[name]
                axes.append(
                    Axis(f"{problem} {name}", f"{problem}: {label}", scale, problem)
                )
    over = "means over runs" if several else "one run"
    over += ", bands hold the middle 80 % of them" if banded else ""
    about = (
        f"What was recorded of the run with the largest budget: exact gradients, {over}, as they are. ‖d‖² uses each "
        "method's own λ; the least over λ ≥ 0 compares methods."
    )
    along = [Axis("calls", "calls", "log"), Axis("step", "steps", "log")]
    return Chart("Residuals along the run", about, along, axes, series)


def _recorded_columns(
    rows: Table, problem: str, names: list[str], points: int, banded: bool
) -> Table:
    """Columns of a series: a row for each step that any run recorded."""
    steps, step_of_row = np.unique(rows["step"], return_inverse=True)
    runs, run_of_row = np.unique(rows["run"], return_inverse=True)
    rows_shown = thinned(len(steps), points)

    def by_step(name: str) -> Any:
        values = np.full((len(steps), len(runs)), np.nan)
        values[step_of_row, run_of_row] = rows[name]
        return values[rows_shown]

    columns = {"step": steps[rows_shown], "calls": np.nanmax(by_step("calls"), axis=1)}
    for name in names:
        columns |= spread(
            f"{problem} {name}", by_step(name), (0.1, 0.9) if banded else None
        )
    return columns
