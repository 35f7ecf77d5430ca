"""The paper's figure: residuals against calls."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullFormatter

from tiebreak.experiments.outcome import Outcome
from tiebreak.experiments.style import footnote, handles, look, style

__all__ = ["comparison"]

_BAND = (0.1, 0.9)


def comparison(outcome: Outcome) -> Figure:
    """Mean over runs of ‖d_k‖² and of ‖∇g(x_k)‖² against calls, with the middle 80 % of the runs as a band."""
    with style():
        figure = Figure(figsize=(7.4, 3.7), layout=ConstrainedLayoutEngine(h_pad=0.06))
        panels = figure.subplots(1, 2)
        titles = {
            "direction_squared": r"Upper level: $\|d_k\|^2$",
            "lower_gradient_squared": r"Lower level: $\|\nabla g(x_k)\|^2$",
        }
        for axes, (column, title) in zip(panels, titles.items(), strict=True):
            for method in outcome.methods:
                _curve(axes, outcome, method, column)
            axes.set(xscale="log", yscale="log", xlabel="stochastic oracle calls")
            axes.set_title(title, loc="left")
            _log_grid(axes)
        lines = handles(outcome)
        figure.legend(
            handles=lines, loc="outside upper center", ncols=min(len(lines), 4), frameon=False, handlelength=3
        )
        runs = outcome.experiment.runs
        text = f"Mean over {runs} runs; bands hold the middle 80 % of them." if runs > 1 else "One run."
        footnote(figure, outcome, f"{text} $d_k$ uses each method's own $\\lambda_k$.")
    return figure


def _curve(axes: Axes, outcome: Outcome, method: str, column: str) -> None:
    calls, values = outcome.curve(method, column)
    values = np.where(np.isfinite(values), values, np.nan)
    # The start has cost nothing, and has no place on a logarithmic axis.
    shown = (calls > 0) & ~np.isnan(values).all(axis=1)
    calls, values = calls[shown], values[shown]
    if not len(calls):
        return
    low, high = np.nanquantile(values, _BAND, axis=1)
    own = look(method)
    axes.fill_between(calls, low, high, color=own["color"], alpha=0.18, linewidth=0)
    axes.plot(calls, np.nanmean(values, axis=1), linewidth=1.8, **own)


def _log_grid(axes: Axes) -> None:
    axes.grid(which="major", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(LogLocator(subs=tuple(range(2, 10)), numticks=12))
        axis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(LogLocator(numticks=12))
