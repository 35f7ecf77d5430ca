"""Runs of the solver: every method alone, ten runs at once, and a run that is saved in the middle and resumed."""

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import tiebreak
from golden.trace import Trace
from tiebreak import Average, FiniteSum, methods, minimize

STEPS = 200
DATA = np.random.default_rng(5).standard_normal((30, 3))
PAPER = tiebreak.problems.paper()
NAMES = [f"solver_{name}" for name in methods.NAMED] + [
    "solver_average",
    "solver_finite_sum",
    "solver_budget",
]


def _record(result: Any, name: str, trace: Trace) -> None:
    trace.arrays[f"{name}/x"] = result.x
    trace.arrays[f"{name}/selected"] = result.selected.x
    trace.arrays[f"{name}/calls"] = np.asarray(result.calls)
    trace.arrays[f"{name}/step"] = result.history.step
    trace.arrays |= {
        f"{name}/{column}": np.asarray(result.history[column])
        for column in result.history.columns
    }
    trace.texts[name] = [
        line for line in str(result).splitlines() if "second" not in line
    ]


def run(name: str) -> Trace:
    """Run one scenario: alone, ten at once, and stopped and resumed."""
    upper, lower, x0 = PAPER.upper, PAPER.lower, PAPER.x0
    method: Any = name.removeprefix("solver_")
    options: dict[str, Any] = {"steps": STEPS, "seed": 7, "record": 5}
    if name == "solver_average":
        method = methods.sdbgd.replace(name="averaged", estimator=Average(0.1))
    if name == "solver_finite_sum":
        method = "storm_sdbgd"
        upper = FiniteSum(lambda x, i: x - DATA[i].mean(axis=0), n=30)
        lower = FiniteSum(
            lambda x, i: DATA[i] * (DATA[i] @ x - 1), n=30, per_example=True
        )
        x0 = np.zeros(3)
        options["record"] = 50
    if name == "solver_budget":
        method = "sdbgd"
        upper, lower = tiebreak.problems.paper().upper, tiebreak.problems.paper().lower
        options = {"budget": 10**6, "seed": 7, "record": 5}
    trace = Trace()
    with (
        warnings.catch_warnings(record=True) as caught,
        tempfile.TemporaryDirectory() as folder,
    ):
        warnings.simplefilter("always")
        _record(minimize(upper, lower, x0, method=method, **options), "alone", trace)
        _record(
            minimize(upper, lower, x0, method=method, runs=10, **options), "ten", trace
        )
        if "steps" in options:
            half = minimize(
                upper,
                lower,
                x0,
                method=method,
                runs=2,
                **options | {"steps": STEPS // 2},
            )
            path = Path(folder) / "half.npz"
            half.save(path)
            with np.load(path, allow_pickle=False) as file:
                trace.texts["saved"] = sorted(file.files)
            _record(
                minimize(upper, lower, method=method, steps=STEPS, resume=path),
                "resumed",
                trace,
            )
    trace.texts["warnings"] = [f"{w.category.__name__}: {w.message}" for w in caught]
    return trace
