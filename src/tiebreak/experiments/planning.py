"""Plans as plain data, and their runs: what ``tiebreak plan`` does around :func:`tiebreak.theory.plan`."""

from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from tiebreak import methods
from tiebreak.experiments.evidence import RESIDUALS, Case, simulate
from tiebreak.experiments.tables import SYMBOLS, Table
from tiebreak.problems import Problem, paper
from tiebreak.result import Result
from tiebreak.schedules import LEGAL
from tiebreak.theory import Constants
from tiebreak.theory.plans import Plan

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
            raise ValueError(
                f"constants={text!r} {legal}; {part.strip()!r} is none of them"
            )
        try:
            given[name] = float(value)
        except ValueError:
            raise ValueError(
                f"constants={text!r} {legal}; {name}={value!r} is no number"
            ) from None
    missing = [name for name in names if name not in given]
    if missing:
        raise ValueError(
            f"constants={text!r} {legal}; it does not set {', '.join(missing)}"
        )
    return Constants(**given)


def record_of(plan: Plan) -> dict[str, Any]:
    """All of a plan as plain data, for a JSON file.

    >>> from tiebreak.theory import plan
    >>> chosen = plan(constants_from("paper"), budget=10**6)
    >>> record_of(chosen)["steps"] == chosen.steps
    True
    """
    key = next(
        name for name, row in methods.METHODS.items() if row.name == plan.method.name
    )
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
        "schedule": {
            name: asdict(law) for name, law in set_laws.items() if law is not None
        },
        "bounds": {name: getattr(plan.bounds, name) for name in RESIDUALS},
        "prediction": None
        if prediction is None
        else {name: getattr(prediction, name) for name in RESIDUALS},
        "constants": asdict(plan.constants),
        "noise_smoothness": plan.noise_smoothness,
    }


def check_runnable(plan: Plan, problem: Problem | None = None) -> None:
    """Raise ValueError if :func:`run_plan` could not run the plan."""
    known = paper().constants
    if problem is None and plan.constants != known:
        raise ValueError(
            f"constants={plan.constants} must be those of the paper's problem to be run there: {known}"
        )
    if plan.steps > _LONGEST:
        raise ValueError(
            f"steps={plan.steps:,} of the plan must be at most {_LONGEST:,} to be run"
        )


def run_plan(
    plan: Plan,
    runs: int,
    seed: int,
    hear: Callable[[float], Any] | None = None,
    problem: Problem | None = None,
) -> Result:
    """Run a plan on a problem; the paper's, if none is given."""
    check_runnable(plan, problem)
    case = Case("plan", problem or paper(), plan.method.name, plan.method, plan.steps)
    return simulate(case, runs, seed, hear, budget=plan.budget)


def measured(result: Result) -> Table:
    """The curves of a result as a table: steps, calls, and each residual's mean and the middle 80 % of the runs."""
    history = result.history
    table: Table = {"step": history.step, "calls": history.calls}
    for name in SYMBOLS:
        values = history[name]
        low, high = np.nanquantile(values, (0.1, 0.9), axis=1)
        table |= {
            name: np.nanmean(values, axis=1),
            f"{name}:low": low,
            f"{name}:high": high,
        }
    return table
