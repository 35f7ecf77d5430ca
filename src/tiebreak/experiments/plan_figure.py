"""The figure of a plan: what it spends, what is proved and, if it was run, what was measured."""

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tiebreak.budget import Many, calls, steps_within
from tiebreak.experiments.evidence import RESIDUALS, bounds_of
from tiebreak.experiments.style import COLOURS, TITLES, footnote, legend, log_grid, panels, style
from tiebreak.experiments.tables import Table, scientific
from tiebreak.result import Result
from tiebreak.theory import Plan

__all__ = ["plan_curves", "plan_figure"]


def plan_figure(plan: Plan, result: Result | None = None) -> Figure:
    """Batches and calls of every step; what is proved after K steps and, of a result, what was measured."""
    table = plan_curves(plan)
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
        lines = [Line2D([], [], color=colours[name], linewidth=4, label=TITLES[name]) for name in RESIDUALS]
        lines.append(Line2D([], [], color="0.3", label="proved at $x_{N_K}$", **dashed))
        if result is not None:
            runs = len(result.steps)
            lines.append(Line2D([], [], color="0.3", linewidth=1.8, label=f"measured at $x_k$, {runs} runs"))
        if plan.prediction is not None:
            lines.append(Line2D([], [], color="0.3", linestyle="", marker="x", label="expected (a model)"))
        for axes in (left, right):
            log_grid(axes)
        left.legend(frameon=False)
        legend(figure, lines, 3)
        spent = f"{plan.budget:,}" if plan.budget < 10**12 else scientific(plan.budget)
        text = f"{plan.method.name}, planned for {plan.objective}: {spent} calls, {plan.steps:,} steps."
        footnote(figure, text)
    return figure


def plan_curves(plan: Plan) -> Table:
    """Batches, calls and bounds on a logarithmic grid of steps."""
    # A bound that is gone over step by step takes as long for every K.
    count = 24 if plan.noise_smoothness is not None and not plan.schedule.constant() else 200
    exponents = np.linspace(0, math.log10(plan.steps), count)
    inner = sorted({min(plan.steps, max(1, int(10**e))) for e in exponents} | {plan.steps})
    K: Any = np.array(inner, dtype=object if plan.steps > 2**62 else np.int64)
    at = [plan.schedule.at(int(k) - 1) for k in inner]
    upper, lower = (np.array([float(getattr(p, name)) for p in at]) for name in ("upper_batch", "lower_batch"))
    if plan.schedule.constant():
        enough = 2 * plan.budget  # no step is left out for it
        charged = np.array([float(sum(steps_within(plan.method, enough, horizon=k)[1:])) for k in inner])
    else:
        charged = np.cumsum(sum(calls(plan.method, Many(plan.schedule, plan.steps))))[K - 1]
    bounds = bounds_of(plan.method, plan.constants, K, plan.noise_smoothness)
    return {"K": K.astype(float), "upper_batch": upper, "lower_batch": lower, "calls": charged} | bounds
