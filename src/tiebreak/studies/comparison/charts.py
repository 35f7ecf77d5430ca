"""Charts of a comparison: performance profiles, residuals against the budget, and the recorded curves."""

from typing import Any

import numpy as np

from tiebreak.studies.charts import Axis, Chart, Series, spread, thinned
from tiebreak.studies.comparison.report import calls
from tiebreak.studies.comparison.result import ComparisonResult
from tiebreak.studies.tables import Columns, by_step, distinct, select

_LARGEST = 1e3  # the τ at which the profiles end
_RESIDUALS = {
    "residual": "larger of both residuals",
    "stationarity_squared": "min over λ of ‖∇f+λ∇g‖²",
    "lower_gradient_squared": "‖∇g‖²",
    "direction_squared": "‖d‖², own λ",
}
_VALUES = {"upper_value": "f", "lower_value": "g", "multiplier": "λ as sampled"}
_NUMBERS = 60_000  # of all recorded curves together: about half a megabyte
_BANDED = 40  # curves, up to which a reader can tell their bands apart


def comparison_charts(result: ComparisonResult) -> dict[str, Chart]:
    """The charts by the names of their figures: profiles of several problems, curves of what was recorded."""
    c = result.comparison
    charts: dict[str, Chart] = {}
    if len(c.compared_problems) > 1:
        charts["profiles"] = profiles_chart(result.profiles)
    if result.curves:
        charts["curves"] = recorded_chart(result.curves)
    if (
        len(c.budgets) > 1 or not result.curves
    ):  # residuals at a single budget make no curve
        charts["residuals"] = residuals_chart(result)
    return charts


def profiles_chart(profiles: Columns) -> Chart:
    """The profiles, a quantity for every budget."""
    taus = np.unique([1.0, *profiles["tau"][profiles["tau"] <= _LARGEST], _LARGEST])
    budgets = [int(budget) for budget in distinct(profiles, "budget")]
    series = []
    for look, method in enumerate(distinct(profiles, "method")):
        columns = {"tau": taus}
        for budget in budgets:
            rows = select(profiles, method=method, budget=budget)
            corner = np.searchsorted(rows["tau"], taus, side="right") - 1
            columns[f"share {budget}"] = rows["share"][corner]
        series.append(Series(method, columns, look, shape="hv"))
    axes = [
        Axis(f"share {budget}", f"share of problems at {calls(budget)}")
        for budget in reversed(budgets)
    ]
    return Chart(
        "Performance profiles",
        "The share of problems on which a method's residual is within the factor τ of the best one's. Left end: best; "
        "right end: does not fail. Higher is better.",
        [Axis("tau", "factor τ", "log")],
        axes,
        series,
        panels=3,
    )


def residuals_chart(result: ComparisonResult) -> Chart:
    """Residuals at the last iterate against the budget."""
    c = result.comparison
    problems = [each.label for each in c.compared_problems]
    series = []
    for look, method in enumerate(each.label for each in c.compared_methods):
        columns: Columns = {"budget": np.array(c.budgets)}
        for problem in problems:
            rows = select(result.results, method=method, problem=problem)
            columns |= {f"{problem} {name}": rows[name] for name in _RESIDUALS}
            columns[f"{problem} residual:error"] = rows["error"]
        series.append(Series(method, columns, look, "lines+markers"))
    axes = [
        Axis(f"{problem} {name}", f"{problem}: {label}", "log", problem)
        for problem in problems
        for name, label in _RESIDUALS.items()
    ]
    have_constants = [
        each.problem.constants is not None for each in c.compared_problems
    ]
    units = ", in the problem's units" if any(have_constants) else ", as they are"
    units += " where its constants are known" * (
        any(have_constants) and not all(have_constants)
    )
    return Chart(
        "Residuals against the budget",
        f"Means over runs at the last iterate{units}.",
        [Axis("budget", "calls", "log")],
        axes,
        series,
        panels=0,
    )


def recorded_chart(curves: Columns) -> Chart:
    """The recorded curves of the runs with the largest budget, means over the runs."""
    labels = {n: text for n, text in _RESIDUALS.items() if n != "residual"} | _VALUES
    names = [n for n in labels if n in curves and np.isfinite(curves[n]).any()]
    problems = distinct(curves, "problem")
    methods = distinct(curves, "method")
    several = len(np.unique(curves["run"])) > 1
    banded = several and len(problems) * len(methods) <= _BANDED
    columns = len(problems) * len(methods) * len(names) * (3 if banded else 1)
    points = min(max(_NUMBERS // columns, 25), 400)
    series = []
    axes = []
    for problem in problems:
        of_problem = select(curves, problem=problem)
        for look, method in enumerate(methods):
            rows = select(of_problem, method=method)
            # A method with plans for each budget has a curve for each budget.
            rows = select(rows, budget=rows["budget"].max())
            means = _means(rows, problem, names, points, banded)
            series.append(Series(method, means, look))
        for name in names:
            if np.isfinite(of_problem[name]).any():
                scale = "linear" if name in _VALUES else "log"
                text = f"{problem}: {labels[name]}"
                axes.append(Axis(f"{problem} {name}", text, scale, problem))  # type: ignore[arg-type]
    over = "means over runs" if several else "one run"
    over += ", bands hold the middle 80 % of them" * banded
    return Chart(
        "Residuals along the run",
        f"What was recorded of the run with the largest budget: exact gradients, {over}, as they are. ‖d‖² uses each "
        "method's own λ; the least over λ ≥ 0 compares methods.",
        [Axis("calls", "calls", "log"), Axis("step", "steps", "log")],
        axes,
        series,
        panels=2 if len(problems) == 1 else 0,
    )


def _means(
    rows: Columns, problem: str, names: list[str], points: int, banded: bool
) -> dict[str, Any]:
    """Columns of a series: a row for each step that any run recorded."""
    steps, charged, *arrays = by_step(rows, "calls", *names)
    rows_drawn = thinned(len(steps), points)
    band = (0.1, 0.9) if banded else None
    columns = {
        "step": steps[rows_drawn],
        "calls": np.nanmax(charged[rows_drawn], axis=1),
    }
    for name, values in zip(names, arrays, strict=True):
        columns |= spread(f"{problem} {name}", values[rows_drawn], band)
    return columns
