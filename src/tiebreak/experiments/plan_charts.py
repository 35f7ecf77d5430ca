"""Charts of a plan: what it spends, what is proved and, if it was run, what was measured."""

import math
from typing import Any

import numpy as np

from tiebreak.experiments.charts import Axis, Chart, Series
from tiebreak.experiments.evidence import bounds_of
from tiebreak.experiments.tables import Table
from tiebreak.solver.budget import Many, calls, steps_within
from tiebreak.theory.plans import Plan

_RESIDUALS = (
    Axis("direction_squared", "‖d‖²", "log"),
    Axis("lower_gradient_squared", "‖∇g‖²", "log"),
)


def residuals_chart(curves: Table, measured: Table | None) -> Chart:
    """The proved bounds after K steps and, if the plan was run, the measured residuals."""
    proved = {axis.key: curves[axis.key] for axis in _RESIDUALS}
    series = [
        Series(
            "proved at x_N",
            {**proved, "step": curves["K"], "calls": curves["calls"]},
            0,
            dash="dash",
        )
    ]
    axes = list(_RESIDUALS)
    about = "The bounds speak of x_N, drawn among all iterates."
    if measured is not None:
        series.append(Series("measured", measured, 1, dash="solid"))
        axes.append(
            Axis("stationarity_squared", "min over λ of ‖∇f+λ∇g‖², measured", "log")
        )
        about += " Measured: means over the runs at the last iterate, bands hold the middle 80 % of them."
    title = (
        "What is proved"
        if measured is None
        else "What is proved, and what was measured"
    )
    return Chart(
        title,
        about,
        [Axis("calls", "calls", "log"), Axis("step", "steps", "log")],
        axes,
        series,
    )


def batches_chart(curves: Table) -> Chart:
    """Batches of every step, and calls so far."""
    spent = {name: curves[name] for name in ("calls", "upper_batch", "lower_batch")}
    axes = [
        Axis("lower_batch", "lower batch size", "log"),
        Axis("upper_batch", "upper batch size", "log"),
        Axis("calls", "calls so far", "log"),
    ]
    series = [Series("the plan", {**spent, "step": curves["K"]}, 0)]
    return Chart(
        "What it spends",
        "Batches of every step, and calls so far.",
        [Axis("step", "step", "log")],
        axes,
        series,
    )


def plan_curves(plan: Plan) -> Table:
    """Batches, calls and bounds on a logarithmic grid of steps."""
    # A bound that is computed step by step takes as long for every K.
    count = (
        24
        if plan.noise_smoothness is not None and not plan.schedule.constant()
        else 200
    )
    exponents = np.linspace(0, math.log10(plan.steps), count)
    inner = sorted(
        {min(plan.steps, max(1, int(10**e))) for e in exponents} | {plan.steps}
    )
    K: Any = np.array(inner, dtype=object if plan.steps > 2**62 else np.int64)
    at = [plan.schedule.at(int(k) - 1) for k in inner]
    upper, lower = (
        np.array([float(getattr(p, name)) for p in at])
        for name in ("upper_batch", "lower_batch")
    )
    if plan.schedule.constant():
        enough = 2 * plan.budget  # so that no step is left out
        charged = np.array(
            [
                float(sum(steps_within(plan.method, enough, horizon=k)[1:]))
                for k in inner
            ]
        )
    else:
        charged = np.cumsum(sum(calls(plan.method, Many(plan.schedule, plan.steps))))[
            K - 1
        ]
    bounds = bounds_of(plan.method, plan.constants, K, plan.noise_smoothness)
    return {
        "K": K.astype(float),
        "upper_batch": upper,
        "lower_batch": lower,
        "calls": charged,
    } | bounds
