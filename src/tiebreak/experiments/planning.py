"""Plans as files, figures and comparisons: what ``tiebreak plan`` does around :func:`tiebreak.theory.plan`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tiebreak import methods, theory
from tiebreak.budget import batches, calls
from tiebreak.experiments.configuration import Experiment
from tiebreak.experiments.evidence import RESIDUALS, bounds_of
from tiebreak.experiments.outcome import Table
from tiebreak.experiments.report import Estimate, Sheet, _estimate, label
from tiebreak.experiments.verification_report import scientific
from tiebreak.problems import paper
from tiebreak.result import Result, Status
from tiebreak.schedules import LEGAL, Power, Schedule
from tiebreak.solve import minimize
from tiebreak.theory import Bounds, Constants, Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Entry",
    "check_runnable",
    "compare",
    "comparison_sheet",
    "constants_from",
    "plan_figure",
    "record_of",
    "run_plan",
    "schedule_of",
]

_ROWS = ("sdbgd", "sdbpg", "pr_sdbpg", "vr_pr_sdbpg", "penalty")
_LONGEST = 10**6  # steps that may be asked to be run


def constants_from(text: str) -> Constants:
    """The constants that a text spells: "paper", all seven of them by name, or "paper" and those that differ.

    >>> constants_from("paper,sigma_g=2").sigma_g
    2.0
    >>> constants_from("L_f=1,G_f=1,sigma_f=1,sigma_g=1,delta_f=1,delta_g=1")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: constants='L_f=1,...' must set L_f, ..., delta_g, or begin with 'paper'; it does not set L_g
    """
    names = [field.name for field in fields(Constants)]
    start, *rest = text.split(",")
    known = paper().constants
    assert known is not None
    given: dict[str, float] = asdict(known) if start.strip() == "paper" else {}
    legal = f"must set {', '.join(names)}, or begin with 'paper'"
    for part in rest if given else [start, *rest]:
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in names:
            raise ValueError(f"constants={text!r} {legal}; {part.strip()!r} is none of them")
        try:
            given[name] = float(value)
        except ValueError:
            raise ValueError(f"constants={text!r} {legal}; {name}={value!r} is no number") from None
    missing = [name for name in names if name not in given]
    if missing:
        raise ValueError(f"constants={text!r} {legal}; it does not set {', '.join(missing)}")
    return Constants(**given)


def record_of(plan: Plan) -> dict[str, Any]:
    """All of a plan as plain data, for a JSON file; :func:`schedule_of` makes a schedule of it again."""
    key = next(name for name, row in methods.METHODS.items() if row.rule is plan.method.rule)
    set_laws = {name: getattr(plan.schedule, name) for name in LEGAL}
    prediction = plan.prediction
    return {
        "method": key,
        "objective": plan.objective,
        "kind": "horizon" if plan.schedule.constant() else "anytime",
        "budget": plan.budget,
        "steps": plan.steps,
        "upper_calls": plan.upper_calls,
        "lower_calls": plan.lower_calls,
        "schedule": {name: asdict(law) for name, law in set_laws.items() if law is not None},
        "bounds": {name: getattr(plan.bounds, name) for name in RESIDUALS},
        "prediction": None if prediction is None else {name: getattr(prediction, name) for name in RESIDUALS},
        "constants": asdict(plan.constants),
    }


def schedule_of(record: Mapping[str, Any]) -> Schedule:
    """The schedule that a record of a plan holds.

    >>> import json
    >>> chosen = theory.plan(constants_from("paper"), budget=10**6)
    >>> schedule_of(json.loads(json.dumps(record_of(chosen)))) == chosen.schedule
    True
    """
    found: dict[str, Any] = {name: Power(**law) for name, law in record["schedule"].items()}
    return Schedule(**found)


def check_runnable(plan: Plan) -> None:
    """Raise ValueError if :func:`run_plan` could not run the plan."""
    known = paper().constants
    if plan.constants != known:
        raise ValueError(f"constants={plan.constants} must be those of the paper's problem to be run there: {known}")
    if plan.steps > _LONGEST:
        raise ValueError(f"steps={plan.steps:,} of the plan must be at most {_LONGEST:,} to be run")


def run_plan(plan: Plan, runs: int, seed: int, hear: Callable[[float], Any] = lambda share: None) -> Result:
    """Run a plan on the paper's problem."""
    check_runnable(plan)
    return _result(plan.method, plan.budget, runs, seed, hear, steps=plan.steps)


def _result(method: Any, budget: int, runs: int, seed: int, hear: Callable[[float], Any], **options: Any) -> Result:
    problem = paper()
    options |= {"runs": runs, "seed": seed, "progress": lambda now: hear(now.fraction)}
    result = minimize(problem.upper, problem.lower, problem.x0, method=method, budget=budget, **options)
    if Status.INTERRUPTED in result.status:
        raise KeyboardInterrupt
    return result


@dataclass(frozen=True)
class Entry:
    """A row of the comparison: how a method ends, and what is proved of it, if anything is."""

    name: str
    steps: int
    measured: Mapping[str, Estimate]
    bounds: Bounds | None

    def record(self) -> dict[str, Any]:
        """As plain data."""
        proved = None if self.bounds is None else {name: getattr(self.bounds, name) for name in RESIDUALS}
        measured = {name: each._asdict() for name, each in self.measured.items()}
        return {"name": self.name, "steps": self.steps, "measured": measured, "bounds": proved}


def compare(
    budget: int, runs: int = 100, seed: int = 0, hear: Callable[[str, float], Any] = lambda what, share: None
) -> list[Entry]:
    """The paper's rows, the penalty and the plans on the paper's problem, all with the same budget; last iterates."""
    asked = Experiment(methods=_ROWS, budget=budget, runs=runs, seed=seed)  # checks them
    constants = paper().constants
    assert constants is not None
    rows: dict[str, Any] = {label(name): methods.METHODS[name] for name in _ROWS}
    for name, method, objective in (
        ("SDBGD, plan for the bound", "sdbgd", "bound"),
        ("SDBGD, plan for practice", "sdbgd", "practice"),
        ("Penalty, plan for the bound", "penalty", "bound"),
    ):
        rows[name] = theory.plan(constants, budget=asked.budget, method=method, objective=objective)
    entries = []
    for name, row in rows.items():
        result = _result(row, asked.budget, asked.runs, asked.seed, partial(hear, name))
        hear(name, 1.0)
        steps, bounds = int(result.steps[0]), getattr(row, "bounds", None)
        if row is methods.sdbgd:
            bounds = theory.residual_bounds(row.schedule, constants, steps)
        measured = {m: _estimate(getattr(result.last, m)) for m in (*RESIDUALS, "stationarity_squared")}
        entries.append(Entry(name, steps, measured, bounds))
    return entries


def comparison_sheet(entries: list[Entry], budget: int, runs: int) -> Sheet:
    """The comparison as a table."""
    columns = {
        "direction_squared": "‖d‖², own λ",
        "stationarity_squared": "min over λ",
        "lower_gradient_squared": "‖∇g‖²",
    }
    rows = []
    for entry in entries:
        measured = [_with_error(entry.measured[name]) for name in columns]
        proved = ["–"] * 2 if entry.bounds is None else [scientific(getattr(entry.bounds, m)) for m in RESIDUALS]
        rows.append([entry.name, f"{entry.steps:,}", *measured, *proved])
    header = ("method", "steps", *columns.values(), "E‖d‖² ≤", "E‖∇g‖² ≤")
    many = "one run" if runs == 1 else f"{runs} runs"
    return Sheet(f"The paper's problem, {budget:,} calls, {many}, last iterate", header, rows)


def _with_error(estimate: Estimate) -> str:
    known = not math.isnan(estimate.error)
    return scientific(estimate.mean) + (f" ± {scientific(estimate.error, 0)}" if known else "")


def plan_figure(plan: Plan, result: Result | None = None) -> "Figure":
    """Batches and calls of every step; what is proved after K steps and, of a result, what was measured."""
    from matplotlib.lines import Line2D

    from tiebreak.experiments.curves import _log_grid
    from tiebreak.experiments.style import style
    from tiebreak.experiments.verification_figures import COLOURS, TITLES, panels

    table = _curves(plan)
    colours = dict(zip(("upper", "lower", *RESIDUALS), COLOURS, strict=False))
    dashed: dict[str, Any] = {"linewidth": 1.3, "linestyle": (0, (4, 2))}
    with style():
        title = "What is proved" + (", and what happens" if result is not None else "")
        figure, (left, right) = panels(("What it spends", title), ["step"] * 2)
        for level, letter in (("upper", "f"), ("lower", "g")):
            left.plot(
                table["K"], table[f"{level}_batch"], color=colours[level], linewidth=1.8, label=f"batch $B_{letter}$"
            )
        left.plot(table["K"], table["calls"], color="0.35", label="calls so far", **dashed)
        for name in RESIDUALS:
            colour = colours[name]
            right.plot(table["K"], table[name], color=colour, **dashed)
            right.plot(table["K"][-1:], table[name][-1:], "o", color=colour, markersize=5)
            if plan.prediction is not None:
                right.plot(plan.steps, getattr(plan.prediction, name), "x", color=colour, markersize=6, zorder=4)
            if result is not None:
                steps, values = result.history.step[1:], result.history[name][1:]
                low, high = np.quantile(values, (0.1, 0.9), axis=1)
                right.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
                right.plot(steps, values.mean(axis=1), color=colour, linewidth=1.8)
        handles = [Line2D([], [], color=colours[name], linewidth=4, label=TITLES[name]) for name in RESIDUALS]
        handles.append(Line2D([], [], color="0.3", label="proved at $x_{N_K}$", **dashed))
        if result is not None:
            runs = len(result.steps)
            handles.append(Line2D([], [], color="0.3", linewidth=1.8, label=f"measured at $x_k$, {runs} runs"))
        if plan.prediction is not None:
            handles.append(Line2D([], [], color="0.3", linestyle="", marker="x", label="expected (a model)"))
        for axes in (left, right):
            _log_grid(axes)
        left.legend(frameon=False)
        figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, handlelength=2.4)
        spent = f"{plan.budget:,}" if plan.budget < 10**12 else scientific(plan.budget)
        text = f"{plan.method.name}, planned for {plan.objective}: {spent} calls, {plan.steps:,} steps."
        figure.supxlabel(text, fontsize=8.5, color="0.35")
    return figure


def _curves(plan: Plan) -> Table:
    """Batches, calls and bounds on a logarithmic grid of steps."""
    exponents = np.linspace(0, math.log10(plan.steps), 200)
    inner = sorted({min(plan.steps, max(1, int(10**e))) for e in exponents} | {plan.steps})
    K: Any = np.array(inner, dtype=object if plan.steps > 2**62 else np.int64)
    at = [plan.schedule.at(int(k) - 1) for k in inner]
    upper, lower = (np.array([float(getattr(p, name)) for p in at]) for name in ("upper_batch", "lower_batch"))
    if plan.schedule.constant():
        charged = K.astype(float) * float(sum(calls(plan.method, at[0])))
    else:
        charged = np.cumsum(sum(calls(plan.method, batches(plan.schedule, plan.steps))))[K - 1]
    bounds = bounds_of(plan.method, plan.constants, K)
    return {"K": K.astype(float), "upper_batch": upper, "lower_batch": lower, "calls": charged} | bounds
